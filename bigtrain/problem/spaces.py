"""What can be done, and what can be hidden: the spaces of actions and of contexts."""

import abc
import collections
from collections.abc import Sequence
from typing import Any, final

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from bigtrain.arrays import ArrayLike
from bigtrain.errors import CMDPError

SUM_TOLERANCE = 1e-5  # probabilities computed in float32 are off by about this much
"""How far probabilities may be from summing to one before it counts as an error."""


class ActionSpace(eqx.Module):
    """The actions of a problem, as candidates to choose among by number.

    Learners, demonstrations, the wire and simulators in JAX know an action by its number; the
    environments of a host and robots get the action itself.
    """

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """What each candidate is called, for people."""

    @abc.abstractmethod
    def action(self, number: int) -> Any:
        """The action that a candidate stands for, as an environment takes it."""

    @abc.abstractmethod
    def number(self, action: Any) -> int:
        """The candidate that an action is, as when demonstrations are read."""

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return len(self.names)


@final
class Discrete(ActionSpace):
    """Actions numbered from 0: each is its own number."""

    _names: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, names: int | Sequence[str]):
        """From their names, or from how many there are."""
        if isinstance(names, int):
            names = [f"a{number}" for number in range(names)]
        self._names = check_names("action_names", names)

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    def action(self, number: int) -> int:
        return number

    def number(self, action: Any) -> int:
        if not 0 <= (number := int(action)) < self.size:
            raise CMDPError(f"An action must be from 0 to {self.size - 1}, got {action}.")
        return number


@final
class Contexts(eqx.Module):
    """The contexts that there can be, with names for people, and how likely each is."""

    prior: Float[np.ndarray | Array, " context"]
    names: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, prior: ArrayLike, names: Sequence[str] | None = None):
        count = np.size(np.asarray(prior, np.float64))
        self.names = name("context_names", names, "context-", count)
        self.prior = check_distribution("context_prior", prior, self.names)


def name(field: str, names: Sequence[str] | None, prefix: str, count: int) -> tuple[str, ...]:
    """The names given, `count` of them, or numbered ones."""
    if names is None:
        return tuple(f"{prefix}{index}" for index in range(count))
    if len(names) != count:
        raise CMDPError(f"`{field}` must have {count} entries, got {len(names)}: {tuple(names)}.")
    return check_names(field, names)


def check_names(field: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names as text, all different."""
    names = tuple(str(name) for name in names)
    if len(set(names)) < len(names):
        repeated, _ = collections.Counter(names).most_common(1)[0]
        raise CMDPError(f"`{field}` must differ from each other, got {repeated!r} twice.")
    return names


def find(kind: str, given: int | np.integer | str, names: tuple[str, ...]) -> int:
    """The index of something given by index or by name."""
    one = f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
    if isinstance(given, str):
        if given in names:
            return names.index(given)
        raise CMDPError(f"{given!r} is not the name of {one}. There are: {', '.join(names)}.")
    if not 0 <= int(given) < len(names):
        raise CMDPError(f"{one.capitalize()} must be from 0 to {len(names) - 1}, got {given}.")
    return int(given)


def check_distribution(
    field: str, given: ArrayLike, names: tuple[str, ...]
) -> Float[np.ndarray, " outcome"]:
    """Probabilities, one for each name, normalised."""
    values = np.asarray(given, np.float64)
    if values.shape != (len(names),):
        raise CMDPError(
            f"`{field}` must have the shape ({len(names)},), as `transitions` has it, "
            f"got {values.shape}."
        )
    wrong = np.flatnonzero(~(values >= 0) | ~np.isfinite(values))
    if len(wrong):
        raise CMDPError(
            f"`{field}` must be probabilities, finite and not negative, "
            f"but {names[wrong[0]]!r} has {values[wrong[0]]:.6g}."
        )
    if abs(values.sum() - 1) > SUM_TOLERANCE:
        raise CMDPError(f"`{field}` must sum to one, got {values.sum():.6g}.")
    return values / values.sum()
