"""BIG: learn from an expert who saw more than you ever will.

State a problem (`envs.make`, `TabularCMDP`), collect demonstrations (`demonstrate`,
`Demonstrations.load`), say what exploring may cost (`CostOfExploration`), and `fit` a policy, or
`solve` for it where the problem is finite.
"""

from bigtrain import baselines, bayes_rl, envs, errors, reward, runs
from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.bundle import load_bundle
from bigtrain.data import Demonstrations, Trajectory
from bigtrain.evaluate import Evaluation, evaluate, evaluate_exactly, policy_value, regret
from bigtrain.exploration import CostOfExploration, Fixed, KPrior, MaximumEntropy, Uniform
from bigtrain.finite import exact
from bigtrain.finite.cmdp import TabularCMDP, Task
from bigtrain.finite.exact import SolveConfig, solve
from bigtrain.finite.expert import demonstrate, plan_expert
from bigtrain.finite.transitions import Transitions
from bigtrain.fit import FitConfig, fit
from bigtrain.problem import CMDP
from bigtrain.result import FitResult
from bigtrain.reward import InferenceConfig, InferredReward, infer_reward
from bigtrain.reward.irl import IRLConfig
from bigtrain.runs import Event

__all__ = [
    "BayesRLConfig",
    "CMDP",
    "CostOfExploration",
    "Demonstrations",
    "Evaluation",
    "Event",
    "FitConfig",
    "FitResult",
    "Fixed",
    "IRLConfig",
    "InferenceConfig",
    "InferredReward",
    "KPrior",
    "MaximumEntropy",
    "SolveConfig",
    "TabularCMDP",
    "Task",
    "Trajectory",
    "Transitions",
    "Uniform",
    "baselines",
    "bayes_rl",
    "demonstrate",
    "envs",
    "errors",
    "evaluate",
    "evaluate_exactly",
    "exact",
    "fit",
    "infer_reward",
    "reward",
    "load_bundle",
    "plan_expert",
    "policy_value",
    "regret",
    "runs",
    "solve",
]
