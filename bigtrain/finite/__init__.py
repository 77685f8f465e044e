"""Finite problems: all that knows tables."""

from bigtrain.finite import envs, exact, stored
from bigtrain.finite.baselines import average_contexts, clone, solve_averaged, solve_without_prior
from bigtrain.finite.certificates import COARSE
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.evaluation import evaluate_exactly, policy_value, regret
from bigtrain.finite.expert import anywhere, demonstrate, plan_expert
from bigtrain.finite.inference import FiniteInference
from bigtrain.finite.policies import BayesPolicy, MemorylessPolicy
from bigtrain.finite.route import FiniteRoute
from bigtrain.finite.solving import SolveConfig, solve
from bigtrain.finite.stored import StoredProblem, refusing, require_problem, same_problem
from bigtrain.finite.transitions import Transitions

__all__ = [
    "BayesPolicy",
    "COARSE",
    "FiniteInference",
    "FiniteRoute",
    "MemorylessPolicy",
    "SolveConfig",
    "StoredProblem",
    "TabularCMDP",
    "Transitions",
    "anywhere",
    "average_contexts",
    "clone",
    "demonstrate",
    "envs",
    "evaluate_exactly",
    "exact",
    "plan_expert",
    "policy_value",
    "refusing",
    "regret",
    "require_problem",
    "same_problem",
    "solve",
    "solve_averaged",
    "solve_without_prior",
    "stored",
]
