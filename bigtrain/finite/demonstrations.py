"""Demonstrations held against a problem: which states they visit, and whether they can.

A trajectory must be possible: Π_j p(s_{j+1} | s_j, a_j, θ) > 0 in some θ with p(θ) > 0. Each of its
steps may be, in one context or another, and yet no context allow all of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped

from bigtrain.data import check_below, is_state_indices
from bigtrain.errors import DemonstrationError
from bigtrain.finite.transitions import Transitions
from bigtrain.problem import Where

_NO_STATE = -1


def find_states(
    observations: Shaped[np.ndarray, "observation ..."],
    observation_array: Callable[[], Shaped[np.ndarray, "state ..."]],
    num_states: int,
    state_names: tuple[str, ...],
    where: Where,
) -> Int[np.ndarray, " observation"]:
    """The state behind each observation. `where` words the place of a flat index.

    What states look like is only asked for where observations are more than their numbers.
    """
    if is_state_indices(observations):
        return check_below("observations", observations, num_states, "states", where)
    table = np.asarray(observation_array())
    if observations.shape[1:] != table.shape[1:]:
        raise DemonstrationError(
            f"`observations` must be state indices or have the shape {table.shape[1:]} of the "
            f"problem's observations, got {observations.shape[1:]}."
        )
    states, twins = _match_rows(observations, table)
    unknown = _first(states == _NO_STATE)
    if unknown is not None:
        raise DemonstrationError(
            "`observations` must be observations of the problem's states, to the last bit, but "
            f"{where(unknown)} looks like no state."
        )
    ambiguous = _first(np.isin(states, list(twins)))
    if ambiguous is not None:
        state = int(states[ambiguous])
        raise DemonstrationError(
            f"`observations` must tell the states apart, but {where(ambiguous)} looks like both "
            f"`{state_names[state]}` and `{state_names[twins[state]]}`. Give state "
            "indices as observations."
        )
    return states


def _match_rows(
    rows: Shaped[np.ndarray, "observation ..."], table: Shaped[np.ndarray, "state ..."]
) -> tuple[Int[np.ndarray, " observation"], dict[int, int]]:
    """The table's first row that equals each row, and the second for those that have two.

    A dictionary of bytes: 255,000 pictures of 5 × 5 × 3 take 0.06 s, and large pictures
    are not sorted or moved.
    """
    both_floating = rows.dtype.kind == table.dtype.kind == "f"
    dtype = table.dtype if both_floating else np.result_type(rows, table)
    size = dtype.itemsize * max(1, int(np.prod(table.shape[1:])))
    known: dict[bytes, int] = {}
    twins: dict[int, int] = {}
    content = _comparable_bytes(table, dtype)
    for state in range(len(table)):
        first = known.setdefault(bytes(content[state * size : (state + 1) * size]), state)
        if first != state:
            twins.setdefault(first, state)
    content = _comparable_bytes(rows, dtype)
    found = [
        known.get(bytes(content[i : i + size]), _NO_STATE) for i in range(0, len(content), size)
    ]
    return np.array(found, np.int32), twins


def _comparable_bytes(values: np.ndarray, dtype: np.dtype) -> memoryview:
    """The bytes of `values`, the same for equal numbers: -0.0 counts as 0.0."""
    values = values.astype(dtype, copy=False)
    if dtype.kind == "f":
        values = values + dtype.type(0)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


class Names(NamedTuple):
    """What states, actions and contexts are called, for errors."""

    states: tuple[str, ...]
    actions: tuple[str, ...]
    contexts: tuple[str, ...]


def check_transitions(
    dynamics: Transitions,
    context_possible: Bool[np.ndarray, " context"],
    names: Names,
    *,
    states: Int[np.ndarray, " step"],
    actions: Int[np.ndarray, " step"],
    next_states: Int[np.ndarray, " step"],
    first_steps: Int[np.ndarray, " trajectory"],
    contexts: Int[np.ndarray, " trajectory"] | None,
    where: Where,
) -> None:
    """Every trajectory must be possible in one context: its own, where that is known.

    A trajectory that no context explains would leave every learner with a posterior of 0 / 0.
    """

    def refuse(step: int, reason: str) -> DemonstrationError:
        state, action = names.states[states[step]], names.actions[actions[step]]
        return DemonstrationError(
            f"Demonstrations must be possible in the problem, but {where(step)} goes from "
            f"`{state}` by `{action}` to `{names.states[next_states[step]]}`, {reason}."
        )

    possible = _possible(dynamics, states, actions, next_states)
    if contexts is not None:
        trajectory = np.searchsorted(first_steps, np.arange(len(actions)), side="right") - 1
        context = contexts[trajectory]
        step = _first(~possible[context, np.arange(len(actions))])
        if step is not None:
            name = names.contexts[context[step]]
            raise refuse(step, f"which is impossible in its context `{name}`")
    # [context, step]. A step alone first, since that error is the easier one to understand.
    possible = possible & context_possible[:, None]
    step = _first(~possible.any(0))
    if step is not None:
        raise refuse(step, "which is impossible in every context of the prior")
    start = _first(~np.logical_and.reduceat(possible, first_steps, axis=1).any(0))
    if start is not None:
        explained = np.logical_and.accumulate(possible[:, first_steps[start] :], axis=1).any(0)
        step = int(first_steps[start] + np.argmin(explained))
        raise refuse(step, "which no context allows that allows the steps before it")


def _first(mask: Any) -> int | None:
    """The first place that is true, if any is."""
    places = np.flatnonzero(mask)
    return int(places[0]) if len(places) else None


def _possible(
    dynamics: Transitions,
    states: Int[np.ndarray, " step"],
    actions: Int[np.ndarray, " step"],
    next_states: Int[np.ndarray, " step"],
) -> Bool[np.ndarray, "context step"]:
    """Whether each step has a positive probability in each context."""
    num_states, num_actions, _ = dynamics.successors.shape
    shape = (num_states, num_actions, num_states)
    # Each kind of step once: demonstrations repeat a few of them many times.
    codes = np.ravel_multi_index((states, actions, next_states), shape)
    kinds, inverse = np.unique(codes, return_inverse=True)
    state, action, next_state = np.unravel_index(kinds, shape)
    follows = dynamics.successors[state, action] == next_state[:, None]
    likely = dynamics.probabilities[:, state, action] > 0
    return (likely & follows).any(-1)[:, inverse]
