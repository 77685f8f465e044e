"""Where things are in an engine's arrays: a row, which is all that is known of an episode between
two steps, and the details of a decision. Nothing else knows.

A row is words of 32 bits: a head, the policy's state, and the details of the last decision. What
goes into the engine is the head and the state, and an observation in place of the details; what
comes out is a row, and a word that says whether no context explains the observation.
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
from bigtrain.policy import Decision

BEGUN, STEP, PREVIOUS, KEY, EPSILON, TEMPERATURE = 0, 1, 2, slice(3, 5), 5, 6
"""Words of a row's head: whether the episode has made a step, the number of the next one, the
action before; the random key; and, as the bits of a float32, how actions are drawn."""

HEAD = 7
SIGNED = 0x7FFFFFFF
"""Steps are counted in the bits that a signed word has for itself."""


class Details(NamedTuple):
    """What a decision was made by: the belief's entropy, the value of each action, the belief."""

    table: Float[np.ndarray, "*batch detail"]
    num_actions: int

    @classmethod
    def join(
        cls,
        entropy: Float[np.ndarray, "*batch 1"],
        values: Float[np.ndarray, "*batch action"],
        belief: Float[np.ndarray, "*batch context"],
    ) -> "Details":
        """Details from their parts."""
        return cls(np.concatenate([entropy, values, belief], -1), values.shape[-1])

    @property
    def entropy(self) -> Float[np.ndarray, "*batch"]:
        return self.table[..., 0]

    @property
    def values(self) -> Float[np.ndarray, "*batch action"]:
        return self.table[..., 1 : 1 + self.num_actions]

    @property
    def belief(self) -> Float[np.ndarray, "*batch context"]:
        return self.table[..., 1 + self.num_actions :]

    def select(self, rows: Any) -> "Details":
        """Those of some rows."""
        return self._replace(table=self.table[rows])

    def put(self, rows: Any, others: "Details") -> None:
        """Overwrites those of some rows."""
        self.table[rows] = others.table


class Stepped(NamedTuple):
    """What came out of the engine: rows, and which of them no context explains."""

    rows: Int[np.ndarray, "episode word"]
    impossible: Int[np.ndarray, " episode"]


class Draw(NamedTuple):
    """What actions are drawn by."""

    key: Int[Array, "episode 2"]
    step: Int[Array, " episode"]
    epsilon: Float[Array, " episode"]
    temperature: Float[Array, " episode"]


class _Leaf(NamedTuple):
    """An array within a row: where it begins, and what it is."""

    start: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + -(-math.prod(self.shape) * self.dtype.itemsize // 4)


@final
class Layout:
    """The layout of a policy's rows; `initial` has the arrays of its first state, by their path."""

    def __init__(
        self,
        initial: dict[str, Shaped[Array, "..."]],
        observation: ArraySpec,
        num_actions: int,
        num_contexts: int,
    ):
        self._num_actions = num_actions
        self._leaves: dict[str, _Leaf] = {}
        end = HEAD
        for name, leaf in initial.items():
            self._leaves[name] = _Leaf(end, np.dtype(leaf.dtype), leaf.shape)
            end = self._leaves[name].end
        self._state_end = end
        self._num_details = 1 + num_actions + num_contexts
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(observation.dtype))
        self._observation = _Leaf(end, dtype, observation.shape)

    # ── on the host ──────────────────────────────────────────────────────────────────────────────

    @property
    def given_width(self) -> int:
        """Words of what goes into the engine."""
        return self._observation.end

    def make_rows(self, count: int) -> Int[np.ndarray, "episode word"]:
        """Rows of episodes that are to begin. Those never used cost nothing: the system gives
        memory when it is written to."""
        return np.zeros((count, self._state_end + self._num_details), np.int32)

    def make_seen(self, count: int) -> Int[np.ndarray, "episode word"]:
        """Room for packed observations."""
        return np.zeros((count, self._observation.end - self._state_end), np.int32)

    def begin(
        self, row: Int[np.ndarray, " word"], key: bytes, epsilon: float, temperature: float
    ) -> None:
        """Makes a row that of an episode without a step."""
        row[:] = 0
        row[KEY] = np.frombuffer(key, np.int32)
        row[EPSILON], row[TEMPERATURE] = np.array([epsilon, temperature], np.float32).view(np.int32)

    def resume(
        self,
        row: Int[np.ndarray, " word"],
        next_step: int,
        action: int,
        state: dict[str, Shaped[np.ndarray, "..."]],
        details: Details,
    ) -> None:
        """Puts an episode that has begun to where its last step left it."""
        row[BEGUN], row[STEP], row[PREVIOUS] = 1, next_step & SIGNED, action
        for name, leaf in self._leaves.items():
            data = np.asarray(state[name], leaf.dtype).reshape(leaf.shape).tobytes()
            row[leaf.start : leaf.end] = np.frombuffer(data + bytes(-len(data) % 4), np.int32)
        row[self._state_end :] = details.table.view(np.int32)

    def key(self, row: Int[np.ndarray, " word"]) -> bytes:
        """Where the random stream of an episode stands."""
        return row[KEY].tobytes()

    def actions(self, rows: Int[np.ndarray, "*batch word"]) -> Int[np.ndarray, "*batch"]:
        """The actions of the last step."""
        return rows[..., PREVIOUS]

    def state(self, row: Int[np.ndarray, " word"]) -> dict[str, Shaped[np.ndarray, "..."]]:
        """The arrays of the policy's state, by their path in it."""
        return {name: _read(row, leaf) for name, leaf in self._leaves.items()}

    def details(self, rows: Int[np.ndarray, "*batch word"]) -> Details:
        """The details of the last decision."""
        return Details(rows[..., self._state_end :].view(np.float32), self._num_actions)

    def no_details(self, count: int) -> Details:
        """Details that mean nothing."""
        return Details(np.zeros((count, self._num_details), np.float32), self._num_actions)

    def give(
        self, rows: Int[np.ndarray, "episode word"], seen: Int[np.ndarray, "episode seen"]
    ) -> Int[np.ndarray, "episode given"]:
        """What goes into the engine, from rows and packed observations."""
        return np.concatenate([rows[:, : self._state_end], seen], 1)

    def split(self, taken: Int[np.ndarray, "episode taken"]) -> Stepped:
        """What came out of it."""
        return Stepped(taken[:, :-1], taken[:, -1])

    def pack(
        self, observations: Shaped[np.ndarray, "episode ..."]
    ) -> Int[np.ndarray, "episode seen"]:
        """Observations as words; of numbers of 64 bits, what the policy takes of them."""
        if observations.dtype == self._observation.dtype and observations.itemsize == 4:
            return observations.reshape(len(observations), -1).view(np.int32)
        narrow = np.ascontiguousarray(observations, self._observation.dtype)
        flat = narrow.reshape(len(observations), -1).view(np.uint8)
        missing = -flat.shape[1] % 4
        if missing:
            flat = np.pad(flat, ((0, 0), (0, missing)))
        return flat.view(np.int32)

    def unpack(self, seen: Int[np.ndarray, " seen"]) -> Shaped[np.ndarray, "..."]:
        """An observation from its words."""
        return _read(seen, self._observation._replace(start=0))

    # ── in the compiled program ──────────────────────────────────────────────────────────────────

    def take_states(
        self, given: Int[Array, "episode given"], initial: Sequence[Shaped[Array, "..."]]
    ) -> list[Shaped[Array, "episode ..."]]:
        """The leaves of the policies' states: the first ones where an episode has not begun."""
        begun = given[:, BEGUN] != 0
        return [
            jnp.where(begun.reshape(-1, *(1,) * first.ndim), _take(given, leaf), first)
            for leaf, first in zip(self._leaves.values(), initial, strict=True)
        ]

    def take_actions(self, given: Int[Array, "episode given"]) -> Int[Array, " episode"]:
        """The actions before."""
        return given[:, PREVIOUS]

    def take_observations(self, given: Int[Array, "episode given"]) -> Shaped[Array, "episode ..."]:
        """The observations."""
        return _take(given, self._observation)

    def take_draws(self, given: Int[Array, "episode given"]) -> Draw:
        """What the actions are to be drawn by."""
        epsilon, temperature = (
            lax.bitcast_convert_type(given[:, word], jnp.float32) for word in (EPSILON, TEMPERATURE)
        )
        return Draw(given[:, KEY], given[:, STEP], epsilon, temperature)

    def put_together(
        self,
        given: Int[Array, "episode given"],
        actions: Int[Array, " episode"],
        states: Sequence[Shaped[Array, "episode ..."]],
        decision: Decision,
    ) -> Int[Array, "episode taken"]:
        """What comes out, from what went in and what was decided."""
        begun, step = jnp.ones(len(given), jnp.int32), (given[:, STEP] + 1) & SIGNED
        return _put_together(
            jnp.stack([begun, step, actions], 1),  # BEGUN, STEP, PREVIOUS
            given[:, KEY.start : HEAD],
            *states,
            decision.belief.entropy[:, None],
            decision.values,
            decision.belief.probs,
            decision.surprised[:, None],
        )


# ── words ────────────────────────────────────────────────────────────────────────────────────────


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
