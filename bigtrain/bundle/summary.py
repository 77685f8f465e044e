"""Parts of a bundle for programs: all but the large arrays, as JSON can hold it."""

import dataclasses
import math
from typing import Any

from bigtrain.belief import AmortisedInference
from bigtrain.bundle.networks import Network, count_weights, describe_network
from bigtrain.bundle.policies import StorablePolicy
from bigtrain.finite import stored
from bigtrain.policy import NetworkPolicy
from bigtrain.result import Measured


def summarise_policy(policy: StorablePolicy) -> dict[str, Any]:
    """What a policy is made of."""
    if not isinstance(policy, NetworkPolicy):
        return stored.summarise_policy(policy)
    belief: dict[str, Any] = {"belief": "exact"}
    if isinstance(policy.inference, AmortisedInference):
        network = summarise_network(policy.inference)
        belief = {"belief": "learned", "belief_network": network}
    return {"kind": "network", **belief, **summarise_network(policy.network)}


def summarise_network(network: Network) -> dict[str, Any]:
    """The sizes of a network."""
    config, core_width = describe_network(network)
    sizes = {**dataclasses.asdict(config), "core_width": core_width}
    return {**sizes, "num_weights": count_weights(network)}


def summarise_measured(measured: Measured) -> dict[str, Any]:
    """What the policy was seen to do."""
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
