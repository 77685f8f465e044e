"""Settings of phase 3, and the tables of the paper's appendix."""

from dataclasses import dataclass

from bigtrain.errors import ConfigError
from bigtrain.learning import NetworkConfig
from bigtrain.policy import Core, PolicyConfig


@dataclass(frozen=True)
class RolloutConfig:
    """How the simulator is used.

    A roll-out is `num_environments` rows of `horizon` steps, in which episodes lie end to end:
    where a state is reached that leads to itself for ever, the next one begins. `epsilon_start`
    falls to `epsilon_end` over the first `epsilon_fraction` of the iterations. `replay_size`,
    `batch_size` and `settling_batch_size` count rows: how many are kept, and sampled for an update
    and for a round of settling.
    `hyperstate_batch_size` counts what an update learns from where the problem is finite.
    """

    num_environments: int = 64
    horizon: int = 40
    epsilon_start: float = 1.0
    epsilon_end: float = 0.3
    epsilon_fraction: float = 0.5
    replay_size: int = 4_096
    batch_size: int = 64
    settling_batch_size: int = 128
    hyperstate_batch_size: int = 256

    def __post_init__(self):
        counts = ("num_environments", "horizon", "replay_size", "batch_size", "settling_batch_size")
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        for name in ("epsilon_start", "epsilon_end", "epsilon_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"`{name}` must be from 0 to 1, got {getattr(self, name)}.")
        if self.num_environments > self.replay_size:
            raise ConfigError(
                f"`replay_size` must hold the {self.num_environments} rows of a roll-out, "
                f"got {self.replay_size}."
            )


@dataclass(frozen=True)
class BayesRLConfig:
    """Settings of phase 3.

    An iteration of the first stage is a roll-out and `num_updates` gradient updates. The learning
    rate decays to 0 along a cosine over all of them if `decay`. The target network follows at
    `target_rate` an update, the averaged one, which acts in the end, at `average_rate`.

    With `sweep` a finite problem's values are known for the hyperstates visited, `num_hyperstates`
    at most, by `num_sweeps` backups of all of them an iteration; the network learns these, and how
    actions differ counts `advantage_weight` times as much as their mean value: the choice hangs on
    it, and it is small where a step matters little. Without, and in any other
    problem, it learns from what followed, and then has a second stage: a round is a roll-out and a
    solve for the head, which `ridge` and `proximity` steady.

    With `looks` a simulator that can be stepped from anywhere is: targets are one-step backups of
    every action, by `num_draws` outcomes in each context, from `num_hyperstates` of the latest
    hyperstates met, and there is no second stage. The batch is `hyperstate_batch_size`.

    Learning ends early when the certified normalised regret is at most `target_regret` in a finite
    problem, and in any other when the return has not grown for `patience` evaluations, one every
    `evaluate_every` iterations or rounds. The best policy evaluated is the result.
    """

    model: PolicyConfig = PolicyConfig()
    rollout: RolloutConfig = RolloutConfig()
    num_iterations: int = 60
    num_updates: int = 50
    learning_rate: float = 3e-3
    decay: bool = True
    max_gradient_norm: float = 1.0
    target_rate: float = 0.02
    average_rate: float = 0.01
    max_rounds: int = 60
    sweep: bool = True
    num_hyperstates: int = 512
    num_sweeps: int = 100
    looks: bool = False
    num_draws: int = 4
    advantage_weight: float = 10.0
    ridge: float = 1e-3
    proximity: float = 1e-4
    target_regret: float = 1e-3
    patience: int = 3
    evaluate_every: int = 5

    def __post_init__(self):
        for name in ("num_iterations", "max_rounds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"`{name}` must not be negative, got {getattr(self, name)}.")
        counts = ("num_updates", "patience", "evaluate_every", "num_hyperstates", "num_sweeps")
        for name in (*counts, "num_draws"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        positive = ("learning_rate", "max_gradient_norm", "advantage_weight", "ridge", "proximity")
        for name in positive:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must be positive, got {getattr(self, name)}.")
        for name in ("target_rate", "average_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(
                    f"`{name}` must be above 0 and at most 1, got {getattr(self, name)}."
                )
        if not self.target_regret >= 0:
            raise ConfigError(f"`target_regret` must not be negative, got {self.target_regret}.")
        if self.num_iterations + self.max_rounds < 1:
            raise ConfigError(
                "`num_iterations` and `max_rounds` must not both be 0: nothing would be learned."
            )


def looking() -> BayesRLConfig:
    """For a simulator that can be stepped from anywhere: see `bigtrain.bayes_rl.lookahead`."""
    return BayesRLConfig(
        model=PolicyConfig(network=NetworkConfig(width=64, units="each")),
        rollout=RolloutConfig(num_environments=64, horizon=64),
        num_iterations=400,
        num_updates=20,
        num_hyperstates=8_192,
        target_rate=0.05,
        average_rate=0.02,
        evaluate_every=20,
        patience=6,
        looks=True,
    )


def paper_tiger_treasure() -> BayesRLConfig:
    """The paper's table for tiger-treasure (tab:tt_dqn_hyperparameters): gradient updates alone."""
    return _paper(horizon=50, replay_size=200_000, num_iterations=20_000)


def paper_tiger_maze() -> BayesRLConfig:
    """The same for tiger-maze, with a recurrent network (tab:maze_dqn_hyperparameters)."""
    return _paper(horizon=40, replay_size=10_000, num_iterations=100_000, core="gru")


def _paper(
    *, horizon: int, replay_size: int, num_iterations: int, core: Core = "none"
) -> BayesRLConfig:
    return BayesRLConfig(
        model=PolicyConfig(core=core),
        rollout=RolloutConfig(
            num_environments=16,
            horizon=horizon,
            epsilon_end=0.05,
            replay_size=replay_size,
            batch_size=100,
        ),
        num_iterations=num_iterations,
        num_updates=1,
        learning_rate=1e-4,
        decay=False,
        target_rate=1.0,  # "target network update rate 1": the target is the network itself
        sweep=False,
        max_rounds=0,
        evaluate_every=200,
    )
