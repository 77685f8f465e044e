"""One policy, compiled: rows that say where episodes stand, into rows that say where they go.

A row is words of 32 bits, and all of an episode that the policy needs is in it: state is data, on
the server's side of every call, and a step that fails changes nothing. Rows go in and come out as
one array each, since handing over a dozen costs more than a small step does. A step of an episode
gives the same bits whatever others are stepped with it: see `bigtrain.policy.block`.

Nothing is compiled after an `Engine` has been made. It runs on a thread of its own, never on the
event loop.
"""

from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from bigserve.layout import Draw, Layout
from bigtrain.bundle import ArraySpec
from bigtrain.policy import BLOCK, Decision, Policy, step_block


@final
class Engine:
    """The compiled step of a policy.

    What goes in and what comes out is as its `layout` says.

    `sizes` are the batches that are compiled, ascending multiples of `BLOCK`; a batch goes into
    the smallest that holds it, and only the blocks that have episodes are computed.
    """

    def __init__(self, policy: Policy, observation: ArraySpec, *, sizes: Sequence[int]):
        self._policy = policy
        self._sizes = tuple(sizes)
        paths, self._tree = jax.tree.flatten_with_path(policy.init())
        self._initial = [jnp.asarray(leaf) for _, leaf in paths]
        names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
        seen = jax.ShapeDtypeStruct(
            observation.shape, jax.dtypes.canonicalize_dtype(observation.dtype)
        )
        previous = jax.ShapeDtypeStruct((), jnp.int32)
        _, decision = jax.eval_shape(policy.step, policy.init(), seen, previous)
        self.layout = Layout(
            dict(zip(names, self._initial, strict=True)),
            observation,
            decision.values.size,
            decision.belief.log_probs.size,
        )
        width = self.layout.given_width
        self._buffers = {size: np.zeros((size, width), np.int32) for size in self._sizes}
        self._counts = [np.int32(n) for n in range(self._sizes[-1] // BLOCK + 1)]
        step = jax.jit(self._step)
        self._block = step.lower(self._buffers[self._sizes[0]][:BLOCK]).compile()
        self._blocks = {
            size: step.lower(buffer, self._counts[0]).compile()
            for size, buffer in self._buffers.items()
            if size > BLOCK
        }

    def step(self, rows: Int[np.ndarray, "episode given"]) -> Int[np.ndarray, "episode taken"]:
        """One step of each episode; at most as many as the largest size."""
        count = len(rows)
        size = next(size for size in self._sizes if size >= count)
        buffer = self._buffers[size]
        buffer[:count] = rows  # the rest is what an earlier batch left, which is as good as any
        if count <= BLOCK:
            return np.asarray(self._block(buffer[:BLOCK]))[:count]
        return np.asarray(self._blocks[size](buffer, self._counts[-(-count // BLOCK)]))[:count]

    def _step(
        self, rows: Int[Array, "episode given"], num_blocks: Int[Array, ""] | None = None
    ) -> Int[Array, "episode taken"]:
        """The compiled program. Only what has sums in it goes block by block."""
        states = jax.tree.unflatten(self._tree, self.layout.take_states(rows, self._initial))
        given = states, self.layout.take_observations(rows), self.layout.take_actions(rows)
        after, decision = self._decide(given, num_blocks)
        actions = _choose(decision, self.layout.take_draws(rows))
        return self.layout.put_together(rows, actions, jax.tree.leaves(after), decision)

    def _decide(self, given: Any, num_blocks: Int[Array, ""] | None) -> tuple[Any, Decision]:
        if num_blocks is None:
            return step_block(self._policy, *given)

        def block(whole: Any, index: Int[Array, ""]) -> Any:
            return jax.tree.map(
                lambda leaf: lax.dynamic_slice_in_dim(leaf, index * BLOCK, BLOCK), whole
            )

        def step(index: Int[Array, ""], stepped: Any) -> Any:
            taken = step_block(self._policy, *block(given, index))
            return jax.tree.map(
                lambda leaf, part: lax.dynamic_update_slice_in_dim(leaf, part, index * BLOCK, 0),
                stepped,
                taken,
            )

        shapes = jax.eval_shape(jax.vmap(self._policy.step), *given)
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return lax.fori_loop(0, num_blocks, step, empty)


def _choose(decision: Decision, by: Draw) -> Int[Array, " episode"]:
    """The actions, by each episode's rule. Nothing is drawn where all are greedy."""
    greedy = jnp.argmax(decision.probs, -1).astype(jnp.int32)

    def draw() -> Int[Array, " episode"]:
        keys = jax.random.wrap_key_data(by.key.astype(jnp.uint32))
        return jax.vmap(_draw)(
            jax.vmap(jax.random.fold_in)(keys, by.step),
            greedy,
            decision.values,
            by.epsilon,
            by.temperature,
        )

    return lax.cond(jnp.any((by.epsilon > 0) | (by.temperature > 0)), draw, lambda: greedy)


def _draw(
    key: Array,
    greedy: Int[Array, ""],
    values: Float[Array, " action"],
    epsilon: Float[Array, ""],
    temperature: Float[Array, ""],
) -> Int[Array, ""]:
    key_explore, key_uniform, key_softmax = jax.random.split(key, 3)
    explores = jax.random.uniform(key_explore) < epsilon
    anything = jax.random.randint(key_uniform, (), 0, len(values))
    warm = jnp.where(temperature > 0, temperature, 1)
    soft = jax.random.categorical(key_softmax, (values - values.max()) / warm)
    return jnp.where(temperature > 0, soft, jnp.where(explores, anything, greedy)).astype(jnp.int32)
