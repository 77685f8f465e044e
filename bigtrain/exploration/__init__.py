"""Phase 2: the reward's scale, and what exploring may cost (section 4.3).

Inverse RL finds a reward up to scale and shift. It is stretched to [r_min, r_max], and where the
expert never had to explore, a prior over k says what exploring pays: r = k · r_max there.
"""

from bigtrain.exploration.cost import CostOfExploration, States
from bigtrain.exploration.kpriors import Fixed, KPrior, MaximumEntropy, Uniform
from bigtrain.exploration.predictive import (
    PredictiveReward,
    Rescaling,
    check_settings,
    predictive_reward,
    rescale,
)

__all__ = [
    "CostOfExploration",
    "Fixed",
    "KPrior",
    "MaximumEntropy",
    "PredictiveReward",
    "Rescaling",
    "States",
    "Uniform",
    "check_settings",
    "predictive_reward",
    "rescale",
]
