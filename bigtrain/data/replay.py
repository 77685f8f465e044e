"""Replay: the latest of many things, in arrays of a fixed size.

Twenty lines are all that is wanted here; the library that has them, flashbax, brings another
network library and a tensor store along (docs/decisions/0014-written-by-hand.md).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from bigtrain.devices import shard


class Replay(NamedTuple):
    """The latest items, one a leading index; `num_added` counts all there ever were."""

    items: Any
    num_added: Int[Array, ""]


def init(like: Any, capacity: int) -> Replay:
    """Room for `capacity` items, each with the shapes and dtypes of `like`."""
    room = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), like)
    return Replay(room, jnp.asarray(0))


def add(replay: Replay, items: Any) -> Replay:
    """With more items, in place of the oldest."""
    capacity, count = (len(jax.tree.leaves(tree)[0]) for tree in (replay.items, items))
    slots = (replay.num_added + jnp.arange(count)) % capacity
    kept = jax.tree.map(lambda old, new: old.at[slots].set(new), replay.items, items)
    return Replay(kept, replay.num_added + count)


def sample(replay: Replay, key: PRNGKeyArray, count: int) -> Any:
    """Some of the items, each drawn from all of them."""
    capacity = len(jax.tree.leaves(replay.items)[0])
    filled = jnp.minimum(replay.num_added, capacity)
    chosen = jax.random.randint(key, (count,), 0, filled)
    return shard(jax.tree.map(lambda leaf: leaf[chosen], replay.items))
