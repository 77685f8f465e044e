"""Demonstrations held against a problem: which states they visit, and whether they can."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, Shaped

from bigtrain.data.arrays import Where, is_state_indices
from bigtrain.errors import DemonstrationError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.problem import CMDP

_NO_STATE = -1


def find_states(
    observations: Shaped[np.ndarray, "observation ..."], cmdp: TabularCMDP, where: Where
) -> Int[np.ndarray, " observation"]:
    """The state behind each observation. `where` words the place of a flat index."""
    if is_state_indices(observations):
        return check_below("observations", observations, cmdp.num_states, "states", where)
    table = np.asarray(cmdp.observation_array())
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
            f"`{cmdp.state_names[state]}` and `{cmdp.state_names[twins[state]]}`. Give state "
            "indices as observations."
        )
    return states


def check_observations(
    observations: Shaped[np.ndarray, "observation ..."], cmdp: CMDP, where: Where
) -> None:
    """Raises unless these are observations from which a simulator's states can be told."""
    state = jax.eval_shape(cmdp.reset, jax.random.key(0), jnp.asarray(0))
    seen = jax.eval_shape(cmdp.observe, state)
    if observations.shape[1:] != seen.shape:
        raise DemonstrationError(
            f"`observations` must have the shape {seen.shape} of the problem's observations, "
            f"got {observations.shape[1:]}."
        )
    told, _ = jax.eval_shape(cmdp.identify, jax.ShapeDtypeStruct(seen.shape, observations.dtype))
    if jax.tree.map(jnp.shape, told) != jax.tree.map(jnp.shape, state):
        raise DemonstrationError(
            f"A state must be told from its observation, but `{type(cmdp).__name__}.identify` "
            f"gives {told} where states are {state}. Override it."
        )
    known = jax.jit(jax.vmap(lambda seen: cmdp.identify(seen)[1]))(jnp.asarray(observations))
    unknown = _first(~np.asarray(known))
    if unknown is not None:
        raise DemonstrationError(
            f"`observations` must be of the problem's states, but {where(unknown)} looks like none."
        )


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


def check_below(
    field: str, values: Int[np.ndarray, " entry"], limit: int, noun: str, where: Where
) -> Int[np.ndarray, " entry"]:
    """`values`, all of them below `limit`."""
    place = _first(values >= limit)
    if place is not None:
        raise DemonstrationError(
            f"`{field}` must be below {limit}, the number of {noun}, "
            f"but {where(place)} has {values[place]}."
        )
    return values


def check_transitions(
    cmdp: TabularCMDP,
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
        state, action = cmdp.state_names[states[step]], cmdp.action_names[actions[step]]
        return DemonstrationError(
            f"Demonstrations must be possible in the problem, but {where(step)} goes from "
            f"`{state}` by `{action}` to `{cmdp.state_names[next_states[step]]}`, {reason}."
        )

    possible = _possible(cmdp, states, actions, next_states)
    if contexts is not None:
        trajectory = np.searchsorted(first_steps, np.arange(len(actions)), side="right") - 1
        context = contexts[trajectory]
        step = _first(~possible[context, np.arange(len(actions))])
        if step is not None:
            name = cmdp.context_names[context[step]]
            raise refuse(step, f"which is impossible in its context `{name}`")
    possible = possible & (np.asarray(cmdp.context_prior) > 0)[:, None]
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
    cmdp: TabularCMDP,
    states: Int[np.ndarray, " step"],
    actions: Int[np.ndarray, " step"],
    next_states: Int[np.ndarray, " step"],
) -> Bool[np.ndarray, "context step"]:
    """Whether each step has a positive probability in each context."""
    shape = (cmdp.num_states, cmdp.num_actions, cmdp.num_states)
    codes = np.ravel_multi_index((states, actions, next_states), shape)
    kinds, inverse = np.unique(codes, return_inverse=True)
    state, action, next_state = np.unravel_index(kinds, shape)
    follows = np.asarray(cmdp.successors)[state, action] == next_state[:, None]
    likely = np.asarray(cmdp.probabilities)[:, state, action] > 0
    return (likely & follows).any(-1)[:, inverse]
