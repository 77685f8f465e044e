"""The latest of many things, in arrays of a fixed size.

Twenty lines are all that is wanted of a replay buffer here; the libraries that have one bring
another network library along.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from bigtrain.learning.devices import spread


class Ring(NamedTuple):
    """The latest items, one a leading index; `num_added` counts all there ever were."""

    items: Any
    num_added: Int[Array, ""]


def empty(like: Any, capacity: int) -> Ring:
    """A ring with room for `capacity` items, each with the shapes and dtypes of `like`."""
    room = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), like)
    return Ring(room, jnp.asarray(0))


def push(ring: Ring, items: Any) -> Ring:
    """With more items, in the place of the oldest."""
    capacity, count = (len(jax.tree.leaves(tree)[0]) for tree in (ring.items, items))
    places = (ring.num_added + jnp.arange(count)) % capacity
    kept = jax.tree.map(lambda old, new: old.at[places].set(new), ring.items, items)
    return Ring(kept, ring.num_added + count)


def sample(ring: Ring, key: PRNGKeyArray, count: int) -> Any:
    """Some of the items, each drawn from all of them."""
    capacity = len(jax.tree.leaves(ring.items)[0])
    filled = jnp.minimum(ring.num_added, capacity)
    chosen = jax.random.randint(key, (count,), 0, filled)
    return spread(jax.tree.map(lambda leaf: leaf[chosen], ring.items))
