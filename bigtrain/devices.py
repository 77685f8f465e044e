"""Several devices: environments and batches laid out over all of them.

Where a process has one device nothing changes. Where it has several, the axis of rows is split
between them and the compiler does the rest; results are the same up to the order of floating-point
sums. Devices of other processes are theirs: each process learns its own seeds.
"""

from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tree = TypeVar("Tree")

AXIS = "rows"


def shard(tree: Tree, axis: int = 0) -> Tree:
    """Splits an axis of every array between the devices, if it divides evenly."""
    devices = jax.local_devices()
    if len(devices) == 1:
        return tree
    mesh = Mesh(np.array(devices), (AXIS,))

    def lay_out(leaf):
        if leaf.shape[axis] % len(devices):
            return leaf
        place = NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))
        return jax.lax.with_sharding_constraint(leaf, place)

    return jax.tree.map(lay_out, tree)
