"""Policies, to and from the fields of a bundle."""

from typing import Any

import jax
import numpy as np

from bigtrain.belief import AmortisedInference, InferenceModel
from bigtrain.bundle.networks import Interface, read_network, write_network
from bigtrain.errors import BundleWriteError
from bigtrain.finite import stored
from bigtrain.policy import NetworkPolicy, Policy, ValueNetwork
from bigtrain.problem import Simulator
from bigtrain.storage import Fields, write_array

StorablePolicy = stored.StoredPolicy | NetworkPolicy
"""The policies that a bundle can hold."""


def write_policy(policy: Policy, cmdp: Simulator) -> dict[str, Any]:
    """A policy for `cmdp`, which the bundle holds beside it."""
    if isinstance(policy, NetworkPolicy):
        return {
            "kind": "network",
            "network": write_network(policy.network),
            "belief": _write_belief(policy.inference, cmdp),
            "baseline": _write_scalar(policy.baseline),
            "scale": _write_scalar(policy.scale),
        }
    if (fields := stored.write_policy(policy, cmdp)) is not None:
        return fields
    raise BundleWriteError(
        "`policy` must be a BayesPolicy, MemorylessPolicy or NetworkPolicy to be stored, "
        f"got {type(policy).__name__}."
    )


def read_policy(
    fields: Fields, problem: stored.StoredProblem | None, interface: Interface
) -> StorablePolicy:
    """The policy, ready to run."""
    kind = fields.choice("kind", (*stored.POLICY_KINDS, "network"))
    if kind == "network":
        return NetworkPolicy(
            _read_belief(fields.fields("belief"), problem, interface),
            read_network(fields.fields("network"), ValueNetwork, interface),
            _read_scalar(fields, "baseline"),
            _read_scalar(fields, "scale"),
            interface.gamma,
        )
    return stored.read_policy(kind, fields, problem)


def _write_belief(inference: InferenceModel, cmdp: Simulator) -> dict[str, Any]:
    if isinstance(inference, AmortisedInference):
        return {"kind": "learned", "network": write_network(inference)}
    if stored.is_exact(inference, cmdp):
        return {"kind": "exact"}
    raise BundleWriteError(
        "The policy must infer its belief by FiniteInference or AmortisedInference to be stored, "
        f"got {type(inference).__name__}."
    )


def _read_belief(
    fields: Fields, problem: stored.StoredProblem | None, interface: Interface
) -> InferenceModel:
    if fields.choice("kind", ("exact", "learned")) == "exact":
        return stored.read_inference(problem, fields.where)
    return read_network(fields.fields("network"), AmortisedInference, interface)


def _write_scalar(value: Any) -> float | dict[str, Any]:
    # Compiled code divides a Python float in float64 and an array in float32: keep which it is.
    is_array = isinstance(value, np.generic | np.ndarray | jax.Array)
    return write_array(np.asarray(value), "float32") if is_array else float(value)


def _read_scalar(fields: Fields, name: str) -> float | jax.Array:
    if fields.is_map(name):
        return jax.device_put(fields.array(name, "float32", ()))
    return fields.number(name)
