"""Exact answers for finite problems: plans, successor features, rewards, Bayes-optimal values."""

from bigtrain.finite.exact.bayes import BayesConfig, BayesSolution, solve_bayes
from bigtrain.finite.exact.inverse import MAPResult, map_reward
from bigtrain.finite.exact.planning import Plan, evaluate_policy, plan, successor_features
from bigtrain.finite.exact.solve import SolveConfig, solve

__all__ = [
    "BayesConfig",
    "BayesSolution",
    "MAPResult",
    "Plan",
    "SolveConfig",
    "evaluate_policy",
    "map_reward",
    "plan",
    "solve",
    "solve_bayes",
    "successor_features",
]
