"""Exact answers for finite problems: plans, successor features, rewards, Bayes-optimal values."""

from bigtrain.exact.bayes import BayesConfig, BayesSolution, solve_bayes
from bigtrain.exact.inverse import MAPResult, map_reward
from bigtrain.exact.planning import Plan, evaluate_policy, plan, successor_features
from bigtrain.exact.solve import SolveConfig, solve

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
