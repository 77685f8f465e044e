"""Finite problems: all that knows tables."""

from bigtrain.finite import envs, exact, stored
from bigtrain.finite.baselines import average_contexts, clone, solve_averaged, solve_without_prior
from bigtrain.finite.certificates import COARSE
from bigtrain.finite.cmdp import TabularCMDP, Task
from bigtrain.finite.envs import CELL_PIXELS, INDICATORS, Painter
from bigtrain.finite.evaluation import (
    evaluate_exactly,
    exploration_pairs,
    never_exploring_value,
    policy_value,
    regret,
)
from bigtrain.finite.exact import BayesConfig, MAPResult, map_reward, solve_bayes
from bigtrain.finite.expert import anywhere, demonstrate, plan_expert
from bigtrain.finite.inference import FiniteInference
from bigtrain.finite.kind import as_finite
from bigtrain.finite.policies import BayesPolicy, MemorylessPolicy, PrivilegedPolicy
from bigtrain.finite.route import FiniteRoute
from bigtrain.finite.solving import SolveConfig, solve
from bigtrain.finite.transitions import Transitions

__all__ = [
    "CELL_PIXELS",
    "COARSE",
    "INDICATORS",
    "BayesConfig",
    "BayesPolicy",
    "FiniteInference",
    "FiniteRoute",
    "MAPResult",
    "MemorylessPolicy",
    "Painter",
    "PrivilegedPolicy",
    "SolveConfig",
    "TabularCMDP",
    "Task",
    "Transitions",
    "anywhere",
    "as_finite",
    "average_contexts",
    "clone",
    "demonstrate",
    "envs",
    "evaluate_exactly",
    "exact",
    "exploration_pairs",
    "map_reward",
    "never_exploring_value",
    "plan_expert",
    "policy_value",
    "regret",
    "solve",
    "solve_averaged",
    "solve_bayes",
    "solve_without_prior",
    "stored",
]
