"""Policies of finite problems and the exact filter, to and from the fields of a bundle."""

from typing import Any

from bigtrain.belief import InferenceModel
from bigtrain.errors import BundleWriteError
from bigtrain.finite.inference import FiniteInference
from bigtrain.finite.policies import BayesPolicy, MemorylessPolicy
from bigtrain.finite.stored.problems import StoredProblem, require_problem, same_problem
from bigtrain.policy import Policy
from bigtrain.problem import Simulator
from bigtrain.storage import Fields, write_array

StoredPolicy = BayesPolicy | MemorylessPolicy
"""The policies of finite problems that a bundle can hold."""

POLICY_KINDS = ("bayes", "memoryless")
"""What a bundle calls them."""


def write_policy(policy: Policy, cmdp: Simulator) -> dict[str, Any] | None:
    """A policy for `cmdp`, which the bundle holds beside it; None where it is none of ours."""
    match policy:
        case BayesPolicy():
            _check_problem(policy.cmdp, cmdp)
            return {
                "kind": "bayes",
                "reward": write_array(policy.reward, "float64"),
                "plans": write_array(policy.plans, "float64"),
                "baseline": float(policy.baseline),
            }
        case MemorylessPolicy():
            _check_problem(policy.cmdp, cmdp)
            return {"kind": "memoryless", "table": write_array(policy.table, "float64")}
    return None


def read_policy(kind: str, fields: Fields, problem: StoredProblem | None) -> StoredPolicy:
    """The policy of one of `POLICY_KINDS`, ready to run."""
    problem = require_problem(problem, fields.where)
    shape = (problem.num_states, problem.num_actions)
    if kind == "memoryless":
        return MemorylessPolicy(problem, fields.probabilities("table", shape))
    return BayesPolicy(
        problem,
        fields.array("reward", "float64", shape),
        fields.array("plans", "float64", (problem.num_states, None, problem.num_contexts)),
        fields.number("baseline"),
    )


def is_exact(inference: InferenceModel, cmdp: Simulator) -> bool:
    """Whether beliefs are the exact filter's of `cmdp`, which the bundle holds beside it."""
    if not isinstance(inference, FiniteInference):
        return False
    _check_problem(inference.cmdp, cmdp)
    return True


def read_inference(problem: StoredProblem | None, path: str) -> InferenceModel:
    """The exact filter of the bundle's problem."""
    return FiniteInference(require_problem(problem, path))


def summarise_policy(policy: StoredPolicy) -> dict[str, Any]:
    """What a policy is made of, for programs."""
    match policy:
        case BayesPolicy(plans=plans):
            return {"kind": "bayes", "belief": "exact", "num_plans": plans.shape[1]}
        case MemorylessPolicy():
            return {"kind": "memoryless", "belief": "exact"}


def describe_policy(policy: StoredPolicy) -> str:
    """The same for people."""
    match policy:
        case BayesPolicy(plans=plans):
            return f"exact, by the belief: {plans.shape[1]} plans in each of {len(plans)} states"
        case MemorylessPolicy(table=table):
            return f"a table of {len(table)} states, whatever the belief"


def _check_problem(own: Simulator, stored: Simulator) -> None:
    if not same_problem(own, stored):
        raise BundleWriteError(
            "The policy must be one for the problem that the result is about, since a bundle "
            "holds one problem only."
        )
