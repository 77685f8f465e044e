"""Settings of phase 1, and presets: a fast one, and the tables of the paper's appendix."""

from dataclasses import dataclass
from typing import Literal

from bigtrain.errors import ConfigError
from bigtrain.learning import NetworkConfig
from bigtrain.reward.irl import IRLConfig
from bigtrain.reward.successor import SuccessorConfig


@dataclass(frozen=True)
class RolloutConfig:
    """How the simulator is used.

    The last three count episodes, and matter where a problem is not finite: how many are kept, and
    how many are sampled for an update and for a round of settling.
    """

    num_environments: int = 128
    horizon: int = 40
    epsilon: float = 0.5
    replay_size: int = 10_000
    batch_size: int = 32
    settling_batch_size: int = 500

    def __post_init__(self):
        counts = ("num_environments", "horizon", "replay_size", "batch_size", "settling_batch_size")
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(f"`epsilon` must be from 0 to 1, got {self.epsilon}.")
        if self.num_environments > self.replay_size:
            raise ConfigError(
                f"`replay_size` must hold the {self.num_environments} episodes of a roll-out, "
                f"got {self.replay_size}."
            )


@dataclass(frozen=True)
class InferenceConfig:
    """Settings of phase 1.

    An iteration of the first stage is a roll-out, `num_updates` updates of Ψ, and an update of ω;
    the first `num_burn_in` learn from demonstrations alone. `reward_update` is Newton's method or
    the paper's sampled gradient, at `reward_learning_rate`. The second stage ends after
    `max_rounds`, or when for `patience` rounds the maximum of the posterior has moved by less than
    `tolerance` of ω's range, in a round and since half as many rounds, and no action's probability
    by more than `tolerance`.

    With `plans`, for a simulator that can be stepped from anywhere, Ψ is learned from looked-ahead
    steps of `batch_size` states, and planned for where experts were.
    """

    irl: IRLConfig = IRLConfig()
    successor: SuccessorConfig = SuccessorConfig()
    rollout: RolloutConfig = RolloutConfig()
    num_iterations: int = 20
    num_updates: int = 20
    num_burn_in: int = 2
    plans: bool = False
    reward_update: Literal["newton", "sampled"] = "newton"
    reward_learning_rate: float = 1e-2
    max_rounds: int = 200
    tolerance: float = 1e-3
    patience: int = 3

    def __post_init__(self):
        for name in ("num_iterations", "num_burn_in", "max_rounds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"`{name}` must not be negative, got {getattr(self, name)}.")
        for name in ("num_updates", "patience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        for name in ("tolerance", "reward_learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must be positive, got {getattr(self, name)}.")
        if self.reward_update not in ("newton", "sampled"):
            raise ConfigError(
                f"`reward_update` must be 'newton' or 'sampled', got {self.reward_update!r}."
            )
        if self.num_iterations + self.max_rounds < 1:
            raise ConfigError(
                "`num_iterations` and `max_rounds` must not both be 0: nothing would be learned."
            )


def planned(irl: IRLConfig = IRLConfig()) -> InferenceConfig:
    """For a simulator that can be stepped from anywhere: see `bigtrain.reward.planning`."""
    return InferenceConfig(
        irl=irl,
        successor=SuccessorConfig(
            network=NetworkConfig(width=64, units="each"), learning_rate=3e-3, target_period=10
        ),
        rollout=RolloutConfig(num_environments=64, horizon=32, replay_size=8_192, batch_size=256),
        plans=True,
    )


def fast(irl: IRLConfig = IRLConfig()) -> InferenceConfig:
    """Reaches the exact answer on the paper's problems, in seconds."""
    return InferenceConfig(irl=irl)


def paper_tiger_treasure() -> InferenceConfig:
    """The paper's table for tiger-treasure: gradient updates alone, of Ψ and of ω.

    What it does not print (the network, β, the burn-in) is as in `fast`.
    """
    return _paper(
        IRLConfig(temperature=0.01, prior_variance=100.0),
        RolloutConfig(num_environments=500, horizon=50, replay_size=50_000, batch_size=500),
        num_iterations=5_000,
        successor_rate=1e-3,
        reward_rate=1e-2,
    )


def paper_tiger_maze() -> InferenceConfig:
    """The same for tiger-maze."""
    return _paper(
        IRLConfig(temperature=0.01, prior_variance=1.0),
        RolloutConfig(num_environments=16, horizon=40, replay_size=10_000, batch_size=100),
        num_iterations=20_000,
        successor_rate=3e-4,
        reward_rate=3e-3,
    )


def _paper(
    irl: IRLConfig,
    rollout: RolloutConfig,
    *,
    num_iterations: int,
    successor_rate: float,
    reward_rate: float,
) -> InferenceConfig:
    return InferenceConfig(
        irl=irl,
        successor=SuccessorConfig(
            learning_rate=successor_rate, decay=False, max_gradient_norm=0.5, target_period=50
        ),
        rollout=rollout,
        num_iterations=num_iterations,
        num_updates=1,
        reward_update="sampled",
        reward_learning_rate=reward_rate,
        max_rounds=0,
    )
