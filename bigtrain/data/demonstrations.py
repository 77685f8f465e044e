"""Demonstrations: many expert episodes as a few flat arrays, in memory and on disk."""

import dataclasses
import hashlib
import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final, overload

import jax
import numpy as np
from jaxtyping import Int, Shaped

from bigtrain.arrays import ArrayLike
from bigtrain.data import minari_datasets, npz
from bigtrain.data.arrays import (
    check_below,
    clean_indices,
    clean_observations,
    freeze,
    is_state_indices,
)
from bigtrain.data.trajectory import Trajectory
from bigtrain.errors import DemonstrationError
from bigtrain.problem import Simulator, State, Trajectories

if TYPE_CHECKING:
    from minari import MinariDataset
else:  # a name for the annotations where the extra is not installed
    MinariDataset = Any


@final
@dataclass(frozen=True, eq=False, repr=False, init=False)
class Demonstrations(Sequence[Trajectory]):
    """A sequence of trajectories of one expert, stored end to end.

    Trajectory i has `lengths[i]` actions and one observation more. `contexts` are normally None:
    nobody wrote down what the expert saw. `metadata` is anything that JSON can hold.
    """

    observations: Shaped[np.ndarray, "observation ..."]
    actions: Int[np.ndarray, " step"]
    lengths: Int[np.ndarray, " trajectory"]
    contexts: Int[np.ndarray, " trajectory"] | None
    metadata: Mapping[str, Any]

    def __init__(
        self,
        observations: ArrayLike,
        actions: ArrayLike,
        lengths: ArrayLike,
        contexts: ArrayLike | None = None,
        metadata: Mapping[str, Any] | None = None,
    ):
        object.__setattr__(self, "lengths", _clean_lengths(lengths))
        seen = clean_observations(observations, self._name_observation)
        done = clean_indices("actions", actions, self._name_step)
        if len(done) != self.num_steps:
            raise DemonstrationError(
                f"`actions` must have as many entries as `lengths` sums to, {self.num_steps}, "
                f"got {len(done)}."
            )
        if len(seen) != self.num_steps + len(self):
            raise DemonstrationError(
                "`observations` must have one entry more than actions for each of the "
                f"{len(self)} trajectories, {self.num_steps + len(self)} in all, got {len(seen)}."
            )
        object.__setattr__(self, "observations", seen)
        object.__setattr__(self, "actions", done)
        object.__setattr__(self, "contexts", _clean_contexts(contexts, len(self)))
        object.__setattr__(self, "metadata", _clean_metadata(metadata or {}))

    @classmethod
    def from_trajectories(
        cls, trajectories: Iterable[Trajectory], *, metadata: Mapping[str, Any] | None = None
    ) -> "Demonstrations":
        """The trajectories end to end; either all of them have a context, or none."""
        given = list(trajectories)
        if not given:
            raise DemonstrationError("`trajectories` must have at least one entry, got none.")
        _check_alike([trajectory.observations for trajectory in given], "trajectory")
        known = [trajectory.context for trajectory in given if trajectory.context is not None]
        if len(known) not in (0, len(given)):
            raise DemonstrationError(
                "`trajectories` must all have a context or none of them, "
                f"got {len(known)} with and {len(given) - len(known)} without."
            )
        return cls(
            np.concatenate([trajectory.observations for trajectory in given]),
            np.concatenate([trajectory.actions for trajectory in given]),
            np.array([len(trajectory) for trajectory in given]),
            np.array(known) if known else None,
            metadata,
        )

    @classmethod
    def concatenate(cls, parts: Iterable["Demonstrations"]) -> "Demonstrations":
        """All trajectories of all parts; of the metadata, what all parts agree on."""
        given = list(parts)
        if not given:
            raise DemonstrationError("`parts` must have at least one entry, got none.")
        _check_alike([part.observations for part in given], "part")
        contexts = [part.contexts for part in given if part.contexts is not None]
        if len(contexts) not in (0, len(given)):
            raise DemonstrationError(
                "`parts` must all have contexts or none of them. Drop them by `without_contexts()`."
            )
        first = given[0].metadata
        agreed = {
            key: value
            for key, value in first.items()
            if all(key in part.metadata and part.metadata[key] == value for part in given)
        }
        return cls(
            np.concatenate([part.observations for part in given]),
            np.concatenate([part.actions for part in given]),
            np.concatenate([part.lengths for part in given]),
            np.concatenate(contexts) if contexts else None,
            agreed,
        )

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Demonstrations":
        """Reads a file that `save` wrote, and raises if it is damaged or some other file."""
        fields = npz.load(path)
        if fields["contexts"].size == 0:
            fields["contexts"] = None
        try:
            return cls(**fields)
        except DemonstrationError as error:
            raise DemonstrationError(f"`{path}` cannot be used: {error}") from error

    def save(self, path: str | os.PathLike) -> None:
        """Writes an `.npz` file to exactly `path`, whole or not at all."""
        arrays = {name: getattr(self, name) for name in npz.ARRAYS}
        if self.contexts is None:
            arrays["contexts"] = np.zeros(0, np.int32)
        npz.save(path, arrays, self.metadata)

    @classmethod
    def from_minari(
        cls,
        dataset: str | os.PathLike | MinariDataset,
        *,
        observation_key: str | None = None,
        context_key: str | None = "context",
    ) -> "Demonstrations":
        """Reads a Minari dataset: the dataset, its id, or its folder. Nothing is downloaded.

        `observation_key` picks one entry of a dictionary of observations. The contexts are those
        that the dataset has under `context_key` in its `infos`, if it has them.
        """
        return cls(**minari_datasets.read(dataset, observation_key, context_key))

    def to_minari(
        self,
        dataset_id: str,
        *,
        num_states: int | None = None,
        num_actions: int | None = None,
        **details: Any,
    ) -> MinariDataset:
        """Writes a local Minari dataset, with rewards of zero and contexts in `infos`.

        `num_states` and `num_actions` default to what occurs; `details` such as `author` and
        `description` go to `minari.create_dataset_from_buffers`.
        """
        if num_actions is None:
            num_actions = 1 + int(self.actions.max())
        check_below("actions", self.actions, num_actions, "actions", self._name_step)
        if not is_state_indices(self.observations):
            num_states = None
        else:
            if num_states is None:
                num_states = 1 + int(self.observations.max())
            check_below(
                "observations", self.observations, num_states, "states", self._name_observation
            )
        return minari_datasets.write(
            dataset_id,
            self,
            metadata=self.metadata,
            num_states=num_states,
            num_actions=num_actions,
            details=details,
        )

    def __len__(self) -> int:
        """The number of trajectories."""
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int | np.integer) -> Trajectory: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> "Demonstrations": ...
    def __getitem__(self, index: Any) -> "Trajectory | Demonstrations":
        """One trajectory, or the demonstrations that a slice, indices or a mask select."""
        try:
            chosen = operator.index(index)
        except TypeError:
            return self._select(np.arange(len(self))[index])
        if not -len(self) <= chosen < len(self):
            raise IndexError(f"There are {len(self)} trajectories, got the index {chosen}.")
        chosen %= len(self)
        start, length = self._first_steps[chosen], self.lengths[chosen]
        context = None if self.contexts is None else int(self.contexts[chosen])
        return Trajectory(
            self.observations[start + chosen : start + chosen + length + 1],
            self.actions[start : start + length],
            context,
        )

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"Demonstrations({len(self):,} episodes, {self.num_steps:,} steps, observations "
            f"{self.observations.shape[1:]} {self.observations.dtype}, "
            f"contexts {'unknown' if self.contexts is None else 'known'})"
        )

    @property
    def num_steps(self) -> int:
        """The number of actions in all trajectories."""
        return int(self._first_steps[-1] + self.lengths[-1])

    def without_contexts(self) -> "Demonstrations":
        """The same demonstrations as a learner usually gets them."""
        return dataclasses.replace(self, contexts=None)

    def digest(self) -> str:
        """SHA-256 of all arrays, the same on every machine; metadata does not count."""
        result = hashlib.sha256()
        for name in npz.ARRAYS:
            values = getattr(self, name)
            values = np.zeros(0, np.int32) if values is None else values
            values = values.astype(values.dtype.newbyteorder("<"), copy=False)
            result.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
            result.update(values.reshape(-1).view(np.uint8).data)
        return result.hexdigest()

    def states(self, simulator: Simulator) -> State:
        """The state behind each observation."""
        return simulator.read_states(self.observations, self._name_observation)

    def trajectories(self, simulator: Simulator) -> Trajectories:
        """The demonstrations as a simulator sees them, a row each, padded to the longest.

        Raises where an action, a state or a transition cannot be of the simulator, as far as it can
        tell. Contexts are not read: learners infer them.
        """
        check_below("actions", self.actions, simulator.num_actions, "actions", self._name_step)
        states = self.states(simulator)
        simulator.check_steps(states, self.actions, self.lengths, None, self._name_step)
        moments = np.arange(self.lengths.max() + 1)
        mask = moments <= self.lengths[:, None]
        actions = np.zeros(mask.shape, np.int32)
        actions[moments < self.lengths[:, None]] = self.actions
        rows = (self._first_steps + np.arange(len(self)))[:, None]
        rows = rows + np.minimum(moments, self.lengths[:, None])  # the last moment repeats
        first = np.broadcast_to(moments == 0, mask.shape)
        return Trajectories(
            jax.tree.map(lambda leaf: np.asarray(leaf)[rows], states),
            actions,
            first,
            np.full(mask.shape, -1, np.int32),
            mask,
        )

    def check(self, simulator: Simulator) -> None:
        """Raises where an action, a state, a context or a transition cannot be of the simulator.

        Of a problem that is not finite only actions, contexts and observations can be told.
        """
        check_below("actions", self.actions, simulator.num_actions, "actions", self._name_step)
        if self.contexts is not None:
            check_below(
                "contexts",
                self.contexts,
                simulator.num_contexts,
                "contexts",
                "trajectory {}".format,
            )
        states = self.states(simulator)
        simulator.check_steps(states, self.actions, self.lengths, self.contexts, self._name_step)

    @cached_property
    def _first_steps(self) -> Int[np.ndarray, " trajectory"]:
        """Where each trajectory's actions begin."""
        return np.cumsum(self.lengths) - self.lengths

    def _select(self, chosen: Int[np.ndarray, " chosen"]) -> "Demonstrations":
        if chosen.ndim != 1 or len(chosen) == 0:
            raise DemonstrationError(
                f"A selection must be a list of at least one trajectory, got {chosen.tolist()}."
            )
        lengths, starts = self.lengths[chosen], self._first_steps[chosen]
        return Demonstrations(
            self.observations[_spans(starts + chosen, lengths + 1)],
            self.actions[_spans(starts, lengths)],
            lengths,
            None if self.contexts is None else self.contexts[chosen],
            self.metadata,
        )

    def _name_step(self, index: int) -> str:
        return self._name_place(index, self.lengths)

    def _name_observation(self, index: int) -> str:
        return self._name_place(index, self.lengths + 1)

    def _name_place(self, index: int, sizes: Int[np.ndarray, " trajectory"]) -> str:
        ends = np.cumsum(sizes)
        trajectory = int(np.searchsorted(ends, index, side="right"))
        if trajectory == len(ends):
            return f"entry {index}"  # past the end: told apart from the sizes, checked later
        return f"trajectory {trajectory}, step {index - (ends - sizes)[trajectory]}"


def _spans(
    starts: Int[np.ndarray, " span"], sizes: Int[np.ndarray, " span"]
) -> Int[np.ndarray, " entry"]:
    """The indices start, …, start + size - 1 of every span, end to end."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - sizes), sizes)


def _clean_lengths(given: ArrayLike) -> Int[np.ndarray, " trajectory"]:
    lengths = clean_indices("lengths", given, "trajectory {}".format)
    if len(lengths) == 0:
        raise DemonstrationError("Demonstrations must have at least one trajectory, got none.")
    if not lengths.all():
        raise DemonstrationError(
            "`lengths` must be at least 1, one action for each trajectory, but trajectory "
            f"{int(np.argmin(lengths))} has 0."
        )
    return freeze(lengths.astype(np.int64))


def _clean_contexts(
    given: ArrayLike | None, num_trajectories: int
) -> Int[np.ndarray, " trajectory"] | None:
    if given is None:
        return None
    contexts = clean_indices("contexts", given, "trajectory {}".format)
    if len(contexts) != num_trajectories:
        raise DemonstrationError(
            f"`contexts` must have one entry for each of the {num_trajectories} trajectories, "
            f"got {len(contexts)}. Leave it out where contexts are unknown."
        )
    return contexts


def _clean_metadata(given: Mapping[str, Any]) -> dict[str, Any]:
    """A copy as JSON would give it back."""
    try:
        return json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DemonstrationError(f"`metadata` must be what JSON can hold: {error}.") from error


def _check_alike(observations: Sequence[np.ndarray], noun: str) -> None:
    """All observations must be of one shape and dtype."""
    first = observations[0]
    for index, other in enumerate(observations):
        if (other.shape[1:], other.dtype) != (first.shape[1:], first.dtype):
            raise DemonstrationError(
                f"Observations must have one shape and dtype, but those of {noun} 0 have "
                f"{first.shape[1:]} {first.dtype} and those of {noun} {index} "
                f"{other.shape[1:]} {other.dtype}."
            )
