"""One policy, compiled: rows that say where episodes stand, into rows that say where they go.

A row is words of 32 bits, and all of an episode that the policy needs is in it: state is data, on
the server's side of every call, and a step that fails changes nothing. Rows go in and come out as
one array each, since handing over a dozen costs more than a small step does. A step of an episode
gives the same bits whatever others are stepped with it: see `bigtrain.policy.block`.

Nothing is compiled after an `Engine` has been made. It runs on a thread of its own, never on the
event loop.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from bigtrain.bundle import ArraySpec
from bigtrain.policy import BLOCK, Decision, Policy, step_block

BEGUN, STEP, PREVIOUS, KEY, EPSILON, TEMPERATURE = 0, 1, 2, slice(3, 5), 5, 6
"""Words of a row's head: whether the episode has made a step, the number of the next one, the
action before; the random key; and, as the bits of a float32, how actions are drawn."""

HEAD = 7
SIGNED = 0x7FFFFFFF
"""Steps are counted in the bits that a signed word has for itself."""


class _Leaf(NamedTuple):
    """An array within a row: where it begins, and what it is."""

    start: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + _count_words(self.dtype, self.shape)


@final
class Engine:
    """The compiled step of a policy.

    A row that goes in is a head, the policy's state and an observation. One that comes out is the
    next head and state, the details of the decision, and whether no context explains the
    observation; it then means nothing else. Details are the belief's entropy, the value of each
    action, and the belief.

    `sizes` are the batches that are compiled, ascending multiples of `BLOCK`; a batch goes into
    the smallest that holds it, and only the blocks that have episodes are computed.
    """

    def __init__(self, policy: Policy, observation: ArraySpec, *, sizes: Sequence[int]):
        self._policy = policy
        self._sizes = tuple(sizes)
        paths, self._tree = jax.tree.flatten_with_path(policy.init())
        self._initial = [jnp.asarray(leaf) for _, leaf in paths]
        self._leaves: dict[str, _Leaf] = {}
        end = HEAD
        for (path, _), leaf in zip(paths, self._initial, strict=True):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            self._leaves[name] = _Leaf(end, np.dtype(leaf.dtype), leaf.shape)
            end = self._leaves[name].end
        self.state_width = end
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(observation.dtype))
        self._observation = _Leaf(end, dtype, observation.shape)
        self.width = self._observation.end
        self._buffers = {size: np.zeros((size, self.width), np.int32) for size in self._sizes}
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

    def pack(
        self, observations: Shaped[np.ndarray, "episode ..."]
    ) -> Int[np.ndarray, "episode word"]:
        """Observations as words; of numbers of 64 bits, what the policy takes of them."""
        if observations.dtype == self._observation.dtype and observations.itemsize == 4:
            return observations.reshape(len(observations), -1).view(np.int32)
        narrow = np.ascontiguousarray(observations, self._observation.dtype)
        flat = narrow.reshape(len(observations), -1).view(np.uint8)
        missing = -flat.shape[1] % 4
        if missing:
            flat = np.pad(flat, ((0, 0), (0, missing)))
        return flat.view(np.int32)

    def unpack(self, words: Int[np.ndarray, " word"]) -> Shaped[np.ndarray, "..."]:
        """An observation from its words."""
        return _read(words, self._observation._replace(start=0))

    def read(self, row: Int[np.ndarray, " word"]) -> dict[str, Shaped[np.ndarray, "..."]]:
        """The arrays of the policy's state in a row, by their path in it."""
        return {name: _read(row, leaf) for name, leaf in self._leaves.items()}

    def write(
        self, row: Int[np.ndarray, " word"], state: dict[str, Shaped[np.ndarray, "..."]]
    ) -> None:
        """Puts a policy's state that `read` gave into a row."""
        for name, leaf in self._leaves.items():
            data = np.asarray(state[name], leaf.dtype).reshape(leaf.shape).tobytes()
            row[leaf.start : leaf.end] = np.frombuffer(data + bytes(-len(data) % 4), np.int32)

    def _step(
        self, rows: Int[Array, "episode given"], num_blocks: Int[Array, ""] | None = None
    ) -> Int[Array, "episode taken"]:
        """The compiled program. Only what has sums in it goes block by block."""
        begun = rows[:, BEGUN] != 0
        before = [
            jnp.where(begun.reshape(-1, *(1,) * first.ndim), _take(rows, leaf), first)
            for leaf, first in zip(self._leaves.values(), self._initial, strict=True)
        ]
        states = jax.tree.unflatten(self._tree, before)
        given = states, _take(rows, self._observation), rows[:, PREVIOUS]
        after, decision = self._decide(given, num_blocks)
        begun, step = jnp.ones(len(rows), jnp.int32), (rows[:, STEP] + 1) & SIGNED
        return _put_together(
            jnp.stack([begun, step, _choose(decision, rows)], 1),  # BEGUN, STEP, PREVIOUS
            rows[:, KEY.start : HEAD],
            *jax.tree.leaves(after),
            decision.belief.entropy[:, None],
            decision.values,
            decision.belief.probs,
            decision.surprised[:, None],
        )

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


def _choose(decision: Decision, rows: Int[Array, "episode given"]) -> Int[Array, " episode"]:
    """The actions, by each episode's rule. Nothing is drawn where all are greedy."""
    greedy = jnp.argmax(decision.probs, -1).astype(jnp.int32)
    epsilon, temperature = (
        lax.bitcast_convert_type(rows[:, column], jnp.float32) for column in (EPSILON, TEMPERATURE)
    )

    def draw() -> Int[Array, " episode"]:
        keys = jax.random.wrap_key_data(rows[:, KEY].astype(jnp.uint32))
        return jax.vmap(_draw)(
            jax.vmap(jax.random.fold_in)(keys, rows[:, STEP]),
            greedy,
            decision.values,
            epsilon,
            temperature,
        )

    return lax.cond(jnp.any((epsilon > 0) | (temperature > 0)), draw, lambda: greedy)


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


# ── words ────────────────────────────────────────────────────────────────────────────────────────


def _count_words(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // 4)


def _read(row: Int[np.ndarray, " word"], leaf: _Leaf) -> Shaped[np.ndarray, "..."]:
    data = row[leaf.start : leaf.end].tobytes()
    return np.frombuffer(data, leaf.dtype, math.prod(leaf.shape)).reshape(leaf.shape)


def _take(rows: Int[Array, "episode word"], leaf: _Leaf) -> Shaped[Array, "episode ..."]:
    """The array that a leaf is of each row."""
    words = rows[:, leaf.start : leaf.end]
    if leaf.dtype == bool:
        data = lax.bitcast_convert_type(words, jnp.uint8).reshape(len(rows), -1) != 0
    else:
        data = lax.bitcast_convert_type(words, leaf.dtype)
    flat = data.reshape(len(rows), -1) if words.shape[1] else jnp.zeros((len(rows), 0), leaf.dtype)
    return flat[:, : math.prod(leaf.shape)].reshape(len(rows), *leaf.shape)


def _put_together(*columns: Shaped[Array, "episode ..."]) -> Int[Array, "episode word"]:
    """All columns as words, side by side; put in one by one, which beats concatenating."""
    parts = [_to_words(column) for column in columns]
    whole, start = jnp.zeros((len(parts[0]), sum(p.shape[1] for p in parts)), jnp.int32), 0
    for part in parts:
        whole = lax.dynamic_update_slice(whole, part, (0, start))
        start += part.shape[1]
    return whole


def _to_words(values: Shaped[Array, "episode ..."]) -> Int[Array, "episode word"]:
    """What `_take` takes apart."""
    flat = values.reshape(len(values), -1)
    if flat.dtype == bool:
        flat = flat.astype(jnp.uint8)
    each = 4 // flat.dtype.itemsize
    flat = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % each)))
    return lax.bitcast_convert_type(
        flat if each == 1 else flat.reshape(len(flat), -1, each), jnp.int32
    )
