"""Policies, to and from the fields of a bundle."""

from typing import Any

import jax
import numpy as np

from bigtrain.belief import AmortisedInference, InferenceModel
from bigtrain.bundle.networks import Interface, read_network, write_network
from bigtrain.errors import BundleWriteError
from bigtrain.finite import (
    BayesPolicy,
    FiniteInference,
    MemorylessPolicy,
    StoredProblem,
    require_problem,
    same_problem,
)
from bigtrain.policy import NetworkPolicy, Policy, ValueNetwork
from bigtrain.problem import Simulator
from bigtrain.storage import Fields, write_array

StorablePolicy = BayesPolicy | MemorylessPolicy | NetworkPolicy


def write_policy(policy: Policy, cmdp: Simulator) -> dict[str, Any]:
    """A policy for `cmdp`, which the bundle holds beside it."""
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
        case NetworkPolicy():
            return {
                "kind": "network",
                "network": write_network(policy.network),
                "belief": _write_belief(policy.inference, cmdp),
                "baseline": _write_scalar(policy.baseline),
                "scale": _write_scalar(policy.scale),
            }
    raise BundleWriteError(
        "`policy` must be a BayesPolicy, MemorylessPolicy or NetworkPolicy to be stored, "
        f"got {type(policy).__name__}."
    )


def read_policy(
    fields: Fields, problem: StoredProblem | None, interface: Interface
) -> StorablePolicy:
    """The policy, ready to run."""
    kind = fields.choice("kind", ("bayes", "memoryless", "network"))
    if kind == "network":
        return NetworkPolicy(
            _read_belief(fields.fields("belief"), problem, interface),
            read_network(fields.fields("network"), ValueNetwork, interface),
            _read_scalar(fields, "baseline"),
            _read_scalar(fields, "scale"),
            interface.gamma,
        )
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


def _write_belief(inference: InferenceModel, cmdp: Simulator) -> dict[str, Any]:
    match inference:
        case FiniteInference():
            _check_problem(inference.cmdp, cmdp)
            return {"kind": "exact"}
        case AmortisedInference():
            return {"kind": "learned", "network": write_network(inference)}
    raise BundleWriteError(
        "The policy must infer its belief by FiniteInference or AmortisedInference to be stored, "
        f"got {type(inference).__name__}."
    )


def _read_belief(
    fields: Fields, problem: StoredProblem | None, interface: Interface
) -> InferenceModel:
    if fields.choice("kind", ("exact", "learned")) == "exact":
        return FiniteInference(require_problem(problem, fields.where))
    return read_network(fields.fields("network"), AmortisedInference, interface)


def _write_scalar(value: Any) -> float | dict[str, Any]:
    # Compiled code divides a Python float in float64 and an array in float32: keep which it is.
    is_array = isinstance(value, np.generic | np.ndarray | jax.Array)
    return write_array(np.asarray(value), "float32") if is_array else float(value)


def _read_scalar(fields: Fields, name: str) -> float | jax.Array:
    if fields.is_map(name):
        return jax.device_put(fields.array(name, "float32", ()))
    return fields.number(name)


def _check_problem(own: Simulator, stored: Simulator) -> None:
    if not same_problem(own, stored):
        raise BundleWriteError(
            "The policy must be one for the problem that the result is about, since a bundle "
            "holds one problem only."
        )
