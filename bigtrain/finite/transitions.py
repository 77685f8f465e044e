"""p(s' | s, a, θ) of a finite problem, as the few successors that each (s, a) has.

`successors[s, a]` lists the states that may follow (s, a) in *some* context and
`probabilities[θ, s, a]` how likely each of them is in context θ. The list is shared by all
contexts, so one row of `probabilities[:, s, a, k]` is what a belief update needs, and a problem
with 10,000 states and a handful of successors each stays small.

    successors [state, action, successor],  probabilities [context, state, action, successor]
    p(s' | s, a, θ) = Σ_k [successors[s, a, k] = s'] probabilities[θ, s, a, k]

What bites: rows are as long as the longest, and unused places name some state, with probability 0
in every context. Whoever reads `successors` alone takes them for possible. A state stands once in a
row with positive probability, or a belief update would see a part of its likelihood.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from bigtrain.arrays import ArrayLike
from bigtrain.errors import CMDPError
from bigtrain.problem import SUM_TOLERANCE


class Transitions(NamedTuple):
    """Successors and their probabilities; unused places have probability 0 in every context."""

    successors: Int[np.ndarray, "state action successor"]
    probabilities: Float[np.ndarray, "context state action successor"]

    def matrix(self, context: int, policy: Float[np.ndarray, "state action"]) -> sparse.csr_matrix:
        """P_π of `policy` in `context`: P_π[s, s'] = Σ_a π(a | s) p(s' | s, a, θ), sparse."""
        return self.mixed_matrix(self.probabilities[context], policy)

    def mixed_matrix(
        self,
        probabilities: Float[np.ndarray, "state action successor"],
        policy: Float[np.ndarray, "state action"],
    ) -> sparse.csr_matrix:
        """The state-to-state matrix of `policy` for any probabilities of these successors."""
        num_states = len(self.successors)
        weights = policy[..., None] * probabilities
        used = np.nonzero(weights)  # zeros would be stored, and fill the factors of solves
        entries = (weights[used], (used[0], self.successors[used]))
        return sparse.csr_matrix(entries, shape=(num_states, num_states))


def from_dense(transitions: Float[np.ndarray, "context state action next_state"]) -> Transitions:
    """The sparse form of a full table."""
    # States possible in some context first, in their order; NaN counts, for `check` to find.
    possible = (transitions != 0).any(0)
    order = np.argsort(~possible, axis=-1, kind="stable")
    successors = order[..., : max(1, possible.sum(-1).max())]
    return Transitions(successors, np.take_along_axis(transitions, successors[None], axis=-1))


def from_function(
    outcomes: Callable[[int, int, int], Mapping[int, float]],
    *,
    num_contexts: int,
    num_states: int,
    num_actions: int,
) -> Transitions:
    """Transitions from `outcomes(context, state, action)`, given as {next state: probability}."""
    rows = {
        (context, state, action): outcomes(context, state, action)
        for context in range(num_contexts)
        for state in range(num_states)
        for action in range(num_actions)
    }
    union = [
        [
            sorted(set().union(*(rows[c, s, a] for c in range(num_contexts))))
            for a in range(num_actions)
        ]
        for s in range(num_states)
    ]
    width = max(1, max(len(names) for row in union for names in row))
    successors = np.zeros((num_states, num_actions, width), np.int64)
    probabilities = np.zeros((num_contexts, num_states, num_actions, width))
    for state in range(num_states):
        for action in range(num_actions):
            for place, successor in enumerate(union[state][action]):
                successors[state, action, place] = successor
                for context in range(num_contexts):
                    row = rows[context, state, action]
                    probabilities[context, state, action, place] = row.get(successor, 0.0)
    return Transitions(successors, probabilities)


def convert(given: ArrayLike | Transitions) -> Transitions:
    """`given` in the sparse form, its shapes checked."""
    if isinstance(given, Transitions):
        successors, probabilities = (np.asarray(part) for part in given)
        sparse_form = Transitions(successors, probabilities.astype(np.float64))
        _check_sparse_shapes(sparse_form)
        return sparse_form
    try:
        dense = np.asarray(given, np.float64)
    except ValueError as error:
        raise CMDPError(f"`transitions` must be an array of numbers: {error}.") from None
    if dense.ndim != 4 or dense.shape[1] != dense.shape[3] or 0 in dense.shape:
        raise CMDPError(
            "`transitions` must have the axes [context, state, action, next state] with as "
            f"many states as next states, got the shape {dense.shape}."
        )
    return from_dense(dense)


def check(
    sparse_form: Transitions, *, name_row: Callable[[tuple[int, ...]], str] = str
) -> Transitions:
    """Checks that these are probabilities, and normalises them.

    `name_row` words the place of a flaw from its index (context, state, action).
    """
    probabilities = sparse_form.probabilities
    wrong = ~(probabilities >= 0) | ~np.isfinite(probabilities)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        next_state = sparse_form.successors[place[1:]]
        raise CMDPError(
            "`transitions` must be probabilities, finite and not negative, but "
            f"{name_row(place[:3])} has {probabilities[place]:.6g} for the next state {next_state}."
        )
    sums = probabilities.sum(-1)
    wrong = np.abs(sums - 1) > SUM_TOLERANCE
    if wrong.any():
        row = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise CMDPError(
            f"`transitions` must sum to one over the next states, but {name_row(row)} "
            f"sums to {sums[row]:.6g}."
        )
    # Within `SUM_TOLERANCE` they are meant to sum to one: filters and solves rely on it.
    successors = np.asarray(sparse_form.successors, np.int32)
    return _merge_repeated(Transitions(successors, probabilities / sums[..., None]))


def _check_sparse_shapes(given: Transitions) -> None:
    successors, probabilities = given
    if (
        successors.ndim != 3
        or probabilities.ndim != 4
        or probabilities.shape[1:] != successors.shape
        or 0 in probabilities.shape
    ):
        raise CMDPError(
            "`successors` must have the axes [state, action, successor] and `probabilities` "
            "[context, state, action, successor], "
            f"got the shapes {successors.shape} and {probabilities.shape}."
        )
    if not np.issubdtype(successors.dtype, np.integer):
        raise CMDPError(f"`successors` must be integers, got {successors.dtype}.")
    if successors.min() < 0 or successors.max() >= len(successors):
        raise CMDPError(
            f"`successors` must be states from 0 to {len(successors) - 1}, "
            f"got values from {successors.min()} to {successors.max()}."
        )


def _merge_repeated(transitions: Transitions) -> Transitions:
    """Gives each state at most one place with positive probability among the successors."""
    successors, probabilities = transitions
    order = np.argsort(successors, axis=-1, kind="stable")
    ordered = np.take_along_axis(successors, order, -1)
    # In sorted order equal states are neighbours, and a run of them has a first.
    begins = np.ones(ordered.shape, bool)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    if begins.all():  # as a rule: nothing to merge, and nothing to copy
        return transitions
    # For each place the first one that names the same state, by way of the sorted order.
    begin = np.maximum.accumulate(np.where(begins, np.arange(ordered.shape[-1]), 0), axis=-1)
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, begin, -1), -1)
    merged = np.zeros_like(probabilities)
    index = np.broadcast_to(first, probabilities.shape)
    places = np.indices(probabilities.shape, sparse=True)
    # `add.at`, since several places add to one; += would keep the last of them.
    np.add.at(merged, (*places[:-1], index), probabilities)
    return Transitions(successors, merged)
