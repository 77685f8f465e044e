"""Phase 1: contextual Bayesian inverse RL with learned successor features (Algorithm 1)."""

from bigtrain.reward.config import (
    InferenceConfig,
    RolloutConfig,
    fast,
    paper_tiger_maze,
    paper_tiger_treasure,
)
from bigtrain.reward.infer import InferredReward, infer_reward

__all__ = [
    "InferenceConfig",
    "InferredReward",
    "RolloutConfig",
    "fast",
    "infer_reward",
    "paper_tiger_maze",
    "paper_tiger_treasure",
]
