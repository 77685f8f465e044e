"""Phase 3: Bayes-adaptive Q-learning (section 4.4)."""

from bigtrain.bayes_rl.config import BayesRLConfig, RolloutConfig
from bigtrain.bayes_rl.learner import Learner, Networks, SettlingStage, ValuesStage, init_members
from bigtrain.bayes_rl.rewards import (
    LinearRewards,
    MemberParams,
    RewardModel,
    as_float32,
    prepare_linear,
)
from bigtrain.bayes_rl.targets import (
    SampledTargets,
    ValueLoss,
    ValueTargets,
    value_of_resting,
    weigh_errors,
)

__all__ = [
    "BayesRLConfig",
    "Learner",
    "LinearRewards",
    "MemberParams",
    "Networks",
    "RewardModel",
    "RolloutConfig",
    "SampledTargets",
    "SettlingStage",
    "ValueLoss",
    "ValueTargets",
    "ValuesStage",
    "as_float32",
    "init_members",
    "prepare_linear",
    "value_of_resting",
    "weigh_errors",
]
