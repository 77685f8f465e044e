"""Results into the bytes of a bundle, and these into a `Bundle`."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from bigtrain.belief import AmortisedInference
from bigtrain.bundle import records
from bigtrain.bundle.model import ArraySpec, Bundle
from bigtrain.bundle.networks import Interface, read_network, write_network
from bigtrain.bundle.policies import read_policy, write_policy
from bigtrain.errors import BundleLimitError, BundleShapeError, BundleValueError, BundleWriteError
from bigtrain.finite import stored
from bigtrain.policy import NetworkPolicy, Policy
from bigtrain.problem import Simulator
from bigtrain.result import FitResult
from bigtrain.reward import SuccessorNetwork
from bigtrain.storage import (
    DTYPES,
    MAX_NAME,
    MAX_OBSERVATION,
    MAX_RANK,
    Fields,
    seal,
    unseal,
    write_array,
    write_names,
)

_LEAST_POSITIVE = float(np.finfo(np.float32).tiny)

T = TypeVar("T")


def dump_bundle(result: FitResult) -> bytes:
    """The bundle of a result. The same result gives the same bytes."""
    cmdp, reward = result.cmdp, result.reward
    problem = stored.as_finite(cmdp)
    _check_discounts(result)
    data = seal(
        {
            "action_names": write_names(cmdp.action_names),
            "context_names": write_names(cmdp.context_names),
            "context_prior": write_array(cmdp.context_prior, "float64"),
            "gamma": float(cmdp.gamma),
            "observation": _write_spec(describe_observation(cmdp, result.policy)),
            "problem": _write(stored.write_problem, problem),
            "reward": {
                "weights": write_array(reward.weights, "float64"),
                "bias": float(reward.bias),
                "covariance": write_array(reward.covariance, "float64"),
                "scale": float(reward.scale),
                "minimum": float(reward.reward_range[0]),
                "maximum": float(reward.reward_range[1]),
                "temperature": float(result.temperature),
            },
            "exploration": None
            if problem is None or reward.exploration is None
            else stored.write_exploration(reward.exploration, problem),
            "exploration_note": stored.note_exploration(reward.exploration, cmdp),
            "policy": write_policy(result.policy, cmdp),
            "successor": _write(write_network, result.successor),
            "expert": _write(lambda table: write_array(table, "float64"), result.expert),
            "provenance": records.write_provenance(result.provenance),
            "measured": _write(records.write_measured, result.measured),
            "certificate": _write(records.write_certificate, records.certify(result)),
        }
    )
    parse_bundle(data)  # what could not be read is not written
    return data


def parse_bundle(data: bytes) -> Bundle:
    """The bundle in these bytes. Nothing in them is run, and any flaw is a `BundleError`."""
    digest, content = unseal(data)
    with np.errstate(all="ignore"):  # what overflows on the way is found by its value
        return _read(digest, Fields(content))


def _read(digest: str, fields: Fields) -> Bundle:
    names = stored.Names(fields.names("action_names"), fields.names("context_names"))
    context_prior = fields.probabilities("context_prior", (len(names.contexts),))
    gamma = fields.number("gamma", low=0.0, high=1.0)
    if gamma == 1:
        raise BundleValueError("`gamma` must be below 1.")
    reward = fields.fields("reward")
    weights = reward.array("weights", "float64", (None,))
    reward_range = reward.number("minimum"), reward.number("maximum")
    if not reward_range[0] < reward_range[1]:
        raise BundleValueError(f"`reward` must have a minimum below its maximum: {reward_range}.")
    spec = _read_spec(fields.fields("observation"))
    counts = len(names.actions), len(names.contexts), len(weights)
    interface = Interface(spec.shape, *counts, gamma)

    def part(name: str, read: Callable[..., T], *given: Any) -> T | None:
        return fields.optional(name, lambda name: read(fields.fields(name), *given))

    problem = part("problem", stored.read_problem, names, context_prior, gamma)
    policy = read_policy(fields.fields("policy"), problem, interface)
    if problem is not None:
        _check_fit(problem, policy, spec, interface)

    def read_expert(name: str) -> Float[np.ndarray, "context state action"]:
        num_states = stored.require_problem(problem, name).num_states
        shape = (interface.num_contexts, num_states, interface.num_actions)
        return fields.probabilities(name, shape)

    return Bundle(
        digest=digest,
        observation=spec,
        action_names=names.actions,
        context_names=names.contexts,
        context_prior=context_prior,
        gamma=gamma,
        reward_range=reward_range,
        weights=weights,
        bias=reward.number("bias"),
        covariance=reward.array("covariance", "float64", (len(weights), len(weights))),
        scale=reward.number("scale", low=_LEAST_POSITIVE),
        temperature=reward.number("temperature", low=_LEAST_POSITIVE),
        exploration=part("exploration", stored.read_exploration, problem, reward_range),
        exploration_note=fields.text("exploration_note"),
        policy=policy,
        problem=problem,
        successor=part("successor", read_network, SuccessorNetwork, interface),
        expert=fields.optional("expert", read_expert),
        provenance=records.read_provenance(fields.fields("provenance")),
        measured=part("measured", records.read_measured),
        certificate=part("certificate", records.read_certificate),
    )


def describe_observation(cmdp: Simulator, policy: Policy) -> ArraySpec:
    """What an observation looks like.

    Bounds are those over all states. There are none where the belief is learned, which can make
    something of what no state looks like.
    """
    seen, (low, high, names) = cmdp.observation, cmdp.observation_bounds
    if isinstance(policy, NetworkPolicy) and isinstance(policy.inference, AmortisedInference):
        low = high = None
    return ArraySpec("", seen.dtype.name, seen.shape, low, high, names)


def _write_spec(spec: ArraySpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "minimum": spec.minimum,
        "maximum": spec.maximum,
        "value_names": write_names(spec.value_names) if spec.value_names else None,
    }


def _read_spec(fields: Fields) -> ArraySpec:
    shape = fields.integers("shape", 1, MAX_OBSERVATION, most=MAX_RANK - 1)
    if math.prod(shape) > MAX_OBSERVATION:
        raise BundleLimitError(
            f"`{fields.where}` must have at most {MAX_OBSERVATION:,} numbers, got {shape}."
        )
    low, high = (fields.optional(name, fields.number) for name in ("minimum", "maximum"))
    if (low is None) != (high is None) or (low is not None and high is not None and low > high):
        raise BundleValueError(
            f"`{fields.where}` must have a minimum below its maximum, or neither, got {low} and "
            f"{high}."
        )
    names = fields.optional("value_names", fields.names) or ()
    return ArraySpec(
        fields.text("name", MAX_NAME), fields.choice("dtype", DTYPES), shape, low, high, names
    )


def _check_discounts(result: FitResult) -> None:
    parts = {"policy": result.policy, "successor": result.successor}
    for name, part in parts.items():
        gamma = getattr(part, "gamma", result.cmdp.gamma)
        if gamma != result.cmdp.gamma:
            raise BundleWriteError(
                f"`{name}` must have the discount of the problem, {result.cmdp.gamma}, to be "
                f"stored, got {gamma}."
            )


def _check_fit(
    problem: stored.StoredProblem, policy: Policy, spec: ArraySpec, interface: Interface
) -> None:
    expected = describe_observation(problem, policy)
    if spec != expected:
        raise BundleShapeError(
            f"`observation` must be what the states of `problem` look like: {expected.dtype} of "
            f"the shape {expected.shape}, from {expected.minimum} to {expected.maximum}, with the "
            "states' names where it is their number."
        )
    if problem.num_features != interface.num_features:
        raise BundleShapeError(
            f"`reward.weights` must have an entry for each of the {problem.num_features} features "
            f"of `problem`, got {interface.num_features}."
        )


def _write(write: Callable[[T], dict[str, Any]], value: T | None) -> dict[str, Any] | None:
    return None if value is None else write(value)
