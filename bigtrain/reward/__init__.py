"""Phase 1: contextual Bayesian inverse RL with learned successor features (Algorithm 1)."""

from bigtrain.reward.config import (
    InferenceConfig,
    RolloutConfig,
    fast,
    paper_tiger_maze,
    paper_tiger_treasure,
)

__all__ = [
    "InferenceConfig",
    "RolloutConfig",
    "fast",
    "paper_tiger_maze",
    "paper_tiger_treasure",
]
