"""Phase 1: contextual Bayesian inverse RL with learned successor features (Algorithm 1)."""

from bigtrain.reward import irl
from bigtrain.reward.config import (
    InferenceConfig,
    RolloutConfig,
    fast,
    paper_tiger_maze,
    paper_tiger_treasure,
    planned,
)
from bigtrain.reward.experience import (
    ActionValues,
    Experience,
    Memory,
    ReplayedExperience,
    featurise,
)
from bigtrain.reward.expert import expert_data
from bigtrain.reward.irl import ExpertData, IRLConfig, RewardPosterior
from bigtrain.reward.learner import (
    Learner,
    LearnerState,
    expert_successor_features,
    init_seeds,
)
from bigtrain.reward.planning import PlannedExperience, plan_experience
from bigtrain.reward.stages import FeaturesStage, PlannedSettlingStage, SettlingStage
from bigtrain.reward.successor import Batch, Steps, SuccessorConfig, SuccessorNetwork

__all__ = [
    "ActionValues",
    "Batch",
    "Experience",
    "ExpertData",
    "FeaturesStage",
    "IRLConfig",
    "InferenceConfig",
    "Learner",
    "LearnerState",
    "Memory",
    "PlannedExperience",
    "PlannedSettlingStage",
    "ReplayedExperience",
    "RewardPosterior",
    "RolloutConfig",
    "SettlingStage",
    "Steps",
    "SuccessorConfig",
    "SuccessorNetwork",
    "expert_data",
    "expert_successor_features",
    "fast",
    "featurise",
    "init_seeds",
    "irl",
    "paper_tiger_maze",
    "paper_tiger_treasure",
    "plan_experience",
    "planned",
]
