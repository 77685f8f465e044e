"""Beliefs over contexts, and the models that infer them from what is seen."""

from bigtrain.belief.amortised import AmortisedInference
from bigtrain.belief.beliefs import LEAST_LOG_PROB, Belief, Categorical, clip_log_belief
from bigtrain.belief.config import BeliefConfig
from bigtrain.belief.exact import BeliefState, ExactInference, bayes_update
from bigtrain.belief.inference import UNKNOWN, BeliefInfo, InferenceModel

__all__ = [
    "LEAST_LOG_PROB",
    "UNKNOWN",
    "AmortisedInference",
    "Belief",
    "BeliefConfig",
    "BeliefInfo",
    "BeliefState",
    "Categorical",
    "ExactInference",
    "InferenceModel",
    "bayes_update",
    "clip_log_belief",
]
