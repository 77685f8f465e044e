"""Settings of learning to believe, where the likelihood is not known."""

from dataclasses import dataclass
from typing import Literal

from bigtrain.errors import ConfigError
from bigtrain.learning import NetworkConfig


@dataclass(frozen=True)
class BeliefConfig:
    """Settings of an amortised belief.

    An iteration is a roll-out of random actions and `num_updates` gradient updates on `batch_size`
    rows of the latest `replay_size`. `core` is what remembers beside the belief: nothing, which is
    enough where what is seen tells the state, or a GRU of `core_width` units.
    """

    network: NetworkConfig = NetworkConfig(width=64, depth=2)
    core: Literal["none", "gru"] = "none"
    core_width: int = 64
    num_environments: int = 64
    horizon: int = 20
    replay_size: int = 2_048
    num_iterations: int = 50
    num_updates: int = 20
    batch_size: int = 64
    learning_rate: float = 3e-3
    max_gradient_norm: float = 1.0

    def __post_init__(self):
        counts = ("core_width", "num_environments", "horizon", "num_iterations", "num_updates")
        for name in (*counts, "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.core not in ("none", "gru"):
            raise ConfigError(f"`core` must be 'none' or 'gru', got {self.core!r}.")
        for name in ("learning_rate", "max_gradient_norm"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must be positive, got {getattr(self, name)}.")
        if self.num_environments > self.replay_size:
            raise ConfigError(
                f"`replay_size` must hold the {self.num_environments} rows of a roll-out, "
                f"got {self.replay_size}."
            )
