"""Exact answers for finite problems: plans, successor features, rewards, Bayes-optimal values."""

from bigtrain.finite.exact.bayes import BayesConfig, BayesSolution, solve_bayes
from bigtrain.finite.exact.inverse import MAPResult, map_reward
from bigtrain.finite.exact.planning import Plan, evaluate_policy, plan, successor_features

__all__ = [
    "BayesConfig",
    "BayesSolution",
    "MAPResult",
    "Plan",
    "evaluate_policy",
    "map_reward",
    "plan",
    "solve_bayes",
    "successor_features",
]
