"""Episodes in blocks of one size, so that each comes out as it would alone, to the last bit.

How a compiler orders a sum depends on the shapes it is given: one episode stepped by itself and
the same one in a batch of 64 differ in the last bits. In a block of a fixed size they do not,
whoever the others are; `bigserve` steps episodes this way, and so can whoever compares with it.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Int, Shaped

from bigtrain.policy.base import Decision, Policy

BLOCK = 32
"""How many episodes a block holds. On a CPU, a block of one takes little less time."""


def step_block(
    policy: Policy,
    states: Any,
    observations: Shaped[Array, "episode ..."],
    previous_actions: Int[Array, " episode"],
) -> tuple[Any, Decision]:
    """One step of each of `BLOCK` episodes; fill up with any that are valid.

    Within a larger program it is compiled apart from what is round it.
    """
    # Without barriers XLA may fuse across the block's edge, and round otherwise than without it.
    given = jax.lax.optimization_barrier((states, observations, previous_actions))
    return jax.lax.optimization_barrier(jax.vmap(policy.step)(*given))


def compile_block(policy: Policy) -> Callable[[Any, Any, Any], tuple[Any, Decision]]:
    """`step_block` of a policy as a program, with the policy's numbers built in.

    Programs that take them as arguments round differently here and there.
    """
    return jax.jit(lambda *given: step_block(policy, *given))
