"""A bundle for programs: all but the large arrays, as JSON can hold it."""

import dataclasses
import math
from typing import Any

import numpy as np

from bigtrain.belief import AmortisedInference
from bigtrain.bundle.model import Bundle
from bigtrain.bundle.networks import Network, count_weights, describe_network
from bigtrain.bundle.policies import StorablePolicy
from bigtrain.finite import stored
from bigtrain.policy import NetworkPolicy
from bigtrain.result import Measured
from bigtrain.storage import VERSION


def summarise(bundle: Bundle) -> dict[str, Any]:
    """What is in a bundle, but for the large arrays, as JSON can hold it."""
    certificate, successor = bundle.certificate, bundle.successor
    return {
        "format_version": VERSION,
        "digest": bundle.digest,
        "observation": dataclasses.asdict(bundle.observation),
        "actions": list(bundle.action_names),
        "contexts": dict(zip(bundle.context_names, bundle.context_prior.tolist(), strict=True)),
        "gamma": bundle.gamma,
        "reward_range": list(bundle.reward_range),
        "temperature": bundle.temperature,
        "reward": _summarise_reward(bundle),
        "exploration": _summarise_exploration(bundle),
        "policy": _summarise_policy(bundle.policy),
        "successor": None if successor is None else _summarise_network(successor),
        "certificate": None if certificate is None else certificate._asdict(),
        "measured": None if bundle.measured is None else _summarise_measured(bundle.measured),
        "provenance": dataclasses.asdict(bundle.provenance),
    }


def _summarise_policy(policy: StorablePolicy) -> dict[str, Any]:
    """What a policy is made of."""
    if not isinstance(policy, NetworkPolicy):
        return stored.summarise_policy(policy)
    belief: dict[str, Any] = {"belief": "exact"}
    if isinstance(policy.inference, AmortisedInference):
        network = _summarise_network(policy.inference)
        belief = {"belief": "learned", "belief_network": network}
    return {"kind": "network", **belief, **_summarise_network(policy.network)}


def _summarise_network(network: Network) -> dict[str, Any]:
    config, core_width = describe_network(network)
    sizes = {**dataclasses.asdict(config), "core_width": core_width}
    return {**sizes, "num_weights": count_weights(network)}


def _summarise_reward(bundle: Bundle) -> dict[str, Any]:
    """By state and action where the problem is finite, and by feature where it is not."""
    problem, tables = bundle.problem, bundle.reward_tables
    if problem is None or tables is None:
        deviation = np.sqrt(np.maximum(np.diag(bundle.covariance), 0))
        return {
            "bias": bundle.bias,
            "weights": bundle.weights.tolist(),
            "deviation": deviation.tolist(),
        }
    return {
        name: dict(zip(problem.state_names, table.tolist(), strict=True))
        for name, table in (("mean", tables.mean), ("deviation", tables.deviation))
    }


def _summarise_exploration(bundle: Bundle) -> dict[str, Any] | None:
    exploration, problem = bundle.exploration, bundle.problem
    if exploration is None or problem is None:
        return {"note": bundle.exploration_note} if bundle.exploration_note else None
    states, actions = exploration.indices(problem)
    low, high = exploration.k.support
    return {
        "states": [problem.state_names[state] for state in states],
        "actions": [problem.action_names[action] for action in actions],
        "k": {"mean": exploration.k.mean.tolist(), "low": low.tolist(), "high": high.tolist()},
    }


def _summarise_measured(measured: Measured) -> dict[str, Any]:
    regret, evaluation = measured.regret, measured.evaluation
    return {
        "episodes": measured.episodes,
        "horizon": measured.horizon,
        **{
            name: None if estimate is None else [estimate.mean, _finite(estimate.stderr)]
            for name, estimate in evaluation._asdict().items()
        },
        "regret": None
        if regret is None
        else {
            **regret._asdict(),
            "absolute": regret.absolute,
            "normalised": _finite(regret.normalised),
        },
    }


def _finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None
