"""Beliefs over contexts, and the models that infer them from what is seen."""

from bigtrain.belief.amortised import Posterior
from bigtrain.belief.filter import Belief, BeliefInfo, ExactFilter, Filter, filter_trajectory
from bigtrain.belief.tracker import BeliefTracker

__all__ = [
    "Belief",
    "BeliefInfo",
    "BeliefTracker",
    "ExactFilter",
    "Filter",
    "Posterior",
    "filter_trajectory",
]
