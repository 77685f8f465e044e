"""Networks, to and from the fields of a bundle.

Stored are the sizes of a network and its arrays by their path in it. Reading builds the network
from its sizes without any numbers, and holds every array against that before it is taken.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from bigtrain.belief import AmortisedInference
from bigtrain.errors import BundleStructureError, BundleValueError
from bigtrain.learning import NetworkConfig
from bigtrain.policy import PolicyConfig, ValueNetwork
from bigtrain.reward import SuccessorNetwork
from bigtrain.storage import MAX_LAYERS, MAX_WIDTH, Fields, refusing, write_array

Network = ValueNetwork | AmortisedInference | SuccessorNetwork


class Interface(NamedTuple):
    """What every network of a bundle goes by: the shape of an observation, and counts."""

    observation: tuple[int, ...]
    num_actions: int
    num_contexts: int
    num_features: int
    gamma: float


class Architecture(NamedTuple):
    """The sizes of a network, and those of its recurrent core if it has one."""

    config: NetworkConfig
    core_width: int | None


def describe_network(network: Network) -> Architecture:
    """The sizes that a network was built with."""
    match network:
        case ValueNetwork():
            width, depth = len(network.value) - 1, len(network.layers) + 1
        case AmortisedInference():
            width, depth = network.entry.layers[-1].out_features, len(network.evidence.layers)
        case SuccessorNetwork():
            width, depth = network.contexts.shape[-1], len(network.trunk.layers) + 1
    core = getattr(network, "core", None)
    layers = network.encoder.convolutions
    config = NetworkConfig(
        int(width),
        depth,
        tuple(len(layer.weight) for layer in layers),
        tuple(layer.kernel for layer in layers),
        tuple(layer.stride for layer in layers),
        "each" if network.encoder.scale.ndim else "one",
    )
    return Architecture(config, None if core is None else core.hidden_size)


def count_weights(network: Network) -> int:
    """How many numbers a network is made of."""
    return sum(leaf.size for leaf in jax.tree.leaves(network))


def write_network(network: Network) -> dict[str, Any]:
    """Sizes and arrays of a network."""
    config, core_width = describe_network(network)
    return {
        "width": config.width,
        "depth": config.depth,
        "channels": list(config.channels),
        "kernels": list(config.kernels),
        "strides": list(config.strides),
        "core_width": core_width,
        # Where it is not there, as in all bundles of before, it is "one".
        **({"units": config.units} if config.units != "one" else {}),
        "arrays": {path: write_array(leaf) for path, leaf in _by_path(network).items()},
    }


def read_network(fields: Fields, kind: type[Network], interface: Interface) -> Any:
    """A network of this kind, its weights to the last bit as they were."""
    with refusing(fields.where):
        config = NetworkConfig(
            fields.integer("width", 2, MAX_WIDTH),
            fields.integer("depth", 1, MAX_LAYERS),
            fields.integers("channels", 1, MAX_WIDTH, most=MAX_LAYERS),
            fields.integers("kernels", 1, MAX_WIDTH, most=MAX_LAYERS),
            fields.integers("strides", 1, MAX_WIDTH, most=MAX_LAYERS),
            "each" if "units" in fields.keys() and fields.choice("units", ["each"]) else "one",
        )
        core_width = fields.optional("core_width", lambda n: fields.integer(n, 1, MAX_WIDTH))
        skeleton = _skeleton(kind, Architecture(config, core_width), interface)
    arrays, wanted = fields.fields("arrays"), _by_path(skeleton)
    if wrong := arrays.keys() ^ set(wanted):
        raise BundleStructureError(
            f"`{arrays.where}` must hold exactly the arrays of a {kind.__name__} of these sizes, "
            f"but {sorted(wrong)[0][:80]!r} is missing or too much."
        )
    stored = {
        path: arrays.array(path, leaf.dtype.name, leaf.shape) for path, leaf in wanted.items()
    }
    if not (stored["encoder.scale"] > 0).all():
        raise BundleValueError(f"`{arrays.path('encoder.scale')}` must be positive.")
    weights = jax.device_put(list(stored.values()))
    return jax.tree.unflatten(jax.tree.structure(skeleton), weights)


def _by_path(network: Any) -> Mapping[str, Any]:
    """The arrays of a network by their path in it, such as `layers.0.weight`."""
    leaves, _ = tree_flatten_with_path(network)
    return {keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


@functools.lru_cache(maxsize=64)
def _skeleton(kind: type[Network], architecture: Architecture, interface: Interface) -> Any:
    """The network with shapes and dtypes in place of arrays."""
    config, core_width = architecture
    num_actions, num_contexts = interface.num_actions, interface.num_contexts

    def build(examples: jax.Array) -> Network:
        key = jax.random.key(0)
        if kind is ValueNetwork:
            remembers = {} if core_width is None else {"core": "gru", "core_width": core_width}
            return ValueNetwork(
                examples,
                num_contexts=num_contexts,
                num_actions=num_actions,
                config=PolicyConfig(config, **remembers),
                key=key,
            )
        if kind is AmortisedInference:
            return AmortisedInference(
                examples,
                context_prior=np.full(num_contexts, 1 / num_contexts),
                num_actions=num_actions,
                config=config,
                core_width=core_width,
                key=key,
            )
        return SuccessorNetwork(
            examples,
            num_contexts=num_contexts,
            num_actions=num_actions,
            num_features=interface.num_features,
            gamma=interface.gamma,
            config=config,
            key=key,
        )

    examples = jax.ShapeDtypeStruct((1, *interface.observation), jnp.float32)
    # Nothing is computed, so there is nothing to compile, and nothing for JAX's caches to keep.
    with jax.enable_x64(False), jax.disable_jit():
        return eqx.filter_eval_shape(build, examples)
