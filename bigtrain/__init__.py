"""BIG: learn from an expert who saw more than you ever will.

State a problem (`envs.make`, `TabularCMDP`, a `CMDP` in JAX, a `HostSimulator`), collect
demonstrations (`demonstrate`, `Demonstrations.load`), say what exploring may cost
(`CostOfExploration`), and `fit` a policy, or `solve` for it where the problem is finite.
"""

from bigtrain import baselines, bayes_rl, envs, errors, reward, runs
from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.belief import BeliefConfig, BeliefInfo, Categorical, InferenceModel
from bigtrain.bundle import load_bundle
from bigtrain.data import Demonstrations, Trajectory
from bigtrain.evaluate import Evaluation, evaluate
from bigtrain.exploration import CostOfExploration, Fixed, KPrior, MaximumEntropy, Uniform
from bigtrain.finite import (
    FiniteRoute,
    SolveConfig,
    TabularCMDP,
    Task,
    Transitions,
    demonstrate,
    evaluate_exactly,
    exact,
    plan_expert,
    policy_value,
    regret,
    solve,
)
from bigtrain.fit import FitConfig, fit, looking
from bigtrain.phases import (
    InferredReward,
    LearnedPolicy,
    infer_reward,
    learn_policies,
    learn_policy,
)
from bigtrain.problem import (
    CMDP,
    NO_ACTION,
    ActionSpace,
    Actor,
    Contexts,
    Discrete,
    HostSimulator,
    Simulator,
    Trajectories,
)
from bigtrain.result import FitResult
from bigtrain.reward import InferenceConfig, IRLConfig
from bigtrain.runs import Event

__all__ = [
    "CMDP",
    "NO_ACTION",
    "ActionSpace",
    "Actor",
    "BayesRLConfig",
    "BeliefConfig",
    "BeliefInfo",
    "Categorical",
    "Contexts",
    "CostOfExploration",
    "Demonstrations",
    "Discrete",
    "Evaluation",
    "Event",
    "FiniteRoute",
    "FitConfig",
    "FitResult",
    "Fixed",
    "HostSimulator",
    "IRLConfig",
    "InferenceConfig",
    "InferenceModel",
    "InferredReward",
    "KPrior",
    "LearnedPolicy",
    "MaximumEntropy",
    "Simulator",
    "SolveConfig",
    "TabularCMDP",
    "Task",
    "Trajectories",
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
    "learn_policies",
    "learn_policy",
    "load_bundle",
    "looking",
    "plan_expert",
    "policy_value",
    "regret",
    "reward",
    "runs",
    "solve",
]
