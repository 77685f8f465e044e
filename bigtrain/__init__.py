"""BIG: learn from an expert who saw more than you ever will.

State a problem (`envs.make`, `TabularCMDP`), collect demonstrations (`demonstrate`,
`Demonstrations.load`), say what exploring may cost (`CostOfExploration`), and `fit` a policy, or
`solve` for it where the problem is finite.
"""

from bigtrain import baselines, bayes_rl, envs, errors, exact, inference, runs
from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.bundle import load_bundle
from bigtrain.cmdp import CMDP, TabularCMDP, Task
from bigtrain.demos import Demonstrations, Trajectory
from bigtrain.evaluate import Evaluation, evaluate, evaluate_exactly, policy_value, regret
from bigtrain.exact import SolveConfig, solve
from bigtrain.expert import demonstrate, plan_expert
from bigtrain.exploration import CostOfExploration, Fixed, KPrior, MaximumEntropy, Uniform
from bigtrain.fit import FitConfig, fit
from bigtrain.inference import InferenceConfig, InferredReward, infer_reward
from bigtrain.irl import IRLConfig
from bigtrain.result import FitResult
from bigtrain.runs import Event
from bigtrain.transitions import Transitions

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
    "inference",
    "load_bundle",
    "plan_expert",
    "policy_value",
    "regret",
    "runs",
    "solve",
]
