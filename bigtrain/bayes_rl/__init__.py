"""Phase 3: Bayes-adaptive Q-learning (section 4.4)."""

from bigtrain.bayes_rl.actor import hidden_of
from bigtrain.bayes_rl.config import (
    BayesRLConfig,
    RolloutConfig,
    looking,
    paper_tiger_maze,
    paper_tiger_treasure,
)
from bigtrain.bayes_rl.learner import (
    Learner,
    LearnerState,
    Networks,
    SettlingStage,
    ValuesStage,
    init_members,
)
from bigtrain.bayes_rl.lookahead import LookAheadTargets, look_ahead, normalise
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
    "LearnerState",
    "LinearRewards",
    "LookAheadTargets",
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
    "hidden_of",
    "init_members",
    "look_ahead",
    "looking",
    "normalise",
    "paper_tiger_maze",
    "paper_tiger_treasure",
    "prepare_linear",
    "value_of_resting",
    "weigh_errors",
]
