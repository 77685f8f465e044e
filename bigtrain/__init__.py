"""BIG: learn from an expert who saw more than you ever will.

State a problem (`envs.make`, `TabularCMDP`), collect demonstrations (`demonstrate`,
`Demonstrations.load`), say what exploring may cost (`CostOfExploration`), and `solve` it.
"""

from bigtrain import baselines, envs, errors, exact, inference, runs
from bigtrain.cmdp import CMDP, TabularCMDP, Task
from bigtrain.demos import Demonstrations, Trajectory
from bigtrain.evaluate import Evaluation, evaluate, evaluate_exactly, policy_value, regret
from bigtrain.exact import SolveConfig, solve
from bigtrain.expert import demonstrate, plan_expert
from bigtrain.exploration import CostOfExploration, Fixed, KPrior, MaximumEntropy, Uniform
from bigtrain.inference import InferenceConfig, InferredReward, infer_reward
from bigtrain.irl import IRLConfig
from bigtrain.result import FitResult
from bigtrain.runs import Event
from bigtrain.transitions import Transitions

__all__ = [
    "CMDP",
    "CostOfExploration",
    "Demonstrations",
    "Evaluation",
    "Event",
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
    "demonstrate",
    "envs",
    "errors",
    "evaluate",
    "evaluate_exactly",
    "exact",
    "infer_reward",
    "inference",
    "plan_expert",
    "policy_value",
    "regret",
    "runs",
    "solve",
]
