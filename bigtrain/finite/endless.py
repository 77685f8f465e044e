"""Exploring that never ends: where it is priced higher than all else that can be kept up.

Who knows θ has nothing to find out. If even that agent, by the predictive reward r, does best to go
on exploring for ever, so does one who is merely sure enough. With X the exploration set, in context
θ let

    C(X) = the largest set of states, each with a pair in X that surely leads back into the set;
    V_X  = the best value of acting by such pairs alone, for ever, on C(X).

Exploring never ends where V_X(s) = V*(s) in a state s that the agent gets to: one on the way of the
optimal plan, or one step off it. In one that is out of the way it may well be so and not matter.
V_X falls by r_max / (1 − γ) with k and V* by no more than that, so that a lower k ends it, and how
low it must be is found by bisection.

C(X) is the greatest fixed point of "has a pair whose every successor is in the set": from all of X,
pairs that may lead out are taken away until none is left that does. V_X and V* are [state], solved
exactly for each θ: they are equal, or apart by more than the rounding of solves.
"""

import warnings
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from bigtrain.exploration import PredictiveReward
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact.planning import TIE_TOLERANCE, policy_iteration, tied_actions

_BISECTIONS = 20

Pairs = Bool[np.ndarray, "state action"]


class Endless(NamedTuple):
    """Where exploring never ends: what it pays a step in `state`, and `other`, the most that
    anything else can keep up, NaN where nothing can. A mean of k below `ends_below` ends it, NaN
    where none does."""

    context: int
    state: int
    paid: float
    other: float
    ends_below: float


def find_endless(reward: PredictiveReward) -> Endless | None:
    """Where exploring never ends by this reward of a finite problem, and what would end it."""
    cmdp, exploration = reward.cmdp, reward.exploration
    if exploration is None:
        return None
    assert isinstance(cmdp, TabularCMDP)
    mask, table = exploration.mask(cmdp), reward.table()
    if (found := _endless(cmdp, table, mask)) is None:
        return None
    r_max, k = reward.reward_range[1], float(np.mean(exploration.k.mean))
    # In units of k: 0 is what was asked for; at `high` all of X pays r_min or less.
    low, high = 0.0, (table[mask].max() - reward.reward_range[0]) / r_max
    # Not even then: the range, not k, is what makes exploring pay.
    if _endless(cmdp, table - high * r_max * mask, mask):
        return found
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        still = _endless(cmdp, table - middle * r_max * mask, mask) is not None
        low, high = (middle, high) if still else (low, middle)
    return found._replace(ends_below=float(k - high))


def warn_of_endless(reward: PredictiveReward) -> None:
    """Says so, with the numbers, where exploring never ends by this reward."""
    if (found := find_endless(reward)) is None:
        return
    cmdp = reward.cmdp
    assert reward.exploration is not None
    k = float(np.mean(reward.exploration.k.mean))
    if np.isnan(found.other):
        other = "nothing else can be kept up"
    elif found.other < found.paid:
        other = f"nothing else that can be kept up pays more than {found.other:.4g}"
    else:
        other = f"the way to where {found.other:.4g} can be had costs more than that brings"
    ending = "No k ends it: check `reward_range` and the exploration set."
    if np.isfinite(found.ends_below):
        ending = f"A k of less than {found.ends_below:.3g} ends it."
    warnings.warn(
        f"The best policy explores for ever: with k = {k:.3g} exploring pays {found.paid:.4g} a "
        f"step in the state {cmdp.state_names[found.state]!r}, and {other}, even to an agent that "
        f"knows the context ({cmdp.context_names[found.context]!r}). {ending}",
        stacklevel=3,
    )


def _endless(
    cmdp: TabularCMDP, table: Float[np.ndarray, "state action"], mask: Pairs
) -> Endless | None:
    for context in np.flatnonzero(np.asarray(cmdp.context_prior)).tolist():
        staying = _closed(cmdp, context, mask)  # C(X), by its pairs
        inside = staying.any(-1)
        if not inside.any():
            continue
        best = policy_iteration(
            cmdp.transitions.successors, cmdp.transitions.probabilities[context], table, cmdp.gamma
        )
        kept = _values_within(cmdp, context, table, staying)
        tolerance = TIE_TOLERANCE * np.abs(best.values).max()
        visited = _visited(cmdp, context, tied_actions(best.action_values))
        # V* includes acting by X alone, so it can exceed V_X by rounding only or by a better way.
        endless = np.flatnonzero(inside & visited & (kept >= best.values - tolerance))
        if len(endless):
            state = endless[kept[endless].argmax()]
            # For the message: the most that the pairs outside X can keep up, by the same means.
            others = _closed(cmdp, context, ~mask)
            other = np.where(others.any(-1), _values_within(cmdp, context, table, others), -np.inf)
            paid, other = (1 - cmdp.gamma) * kept[state], (1 - cmdp.gamma) * other.max()
            return Endless(
                context,
                int(state),
                float(paid),
                float(other) if np.isfinite(other) else np.nan,
                np.nan,
            )
    return None


def _closed(cmdp: TabularCMDP, context: int, pairs: Pairs) -> Pairs:
    """Those of `pairs` that surely lead to where others of them are, for ever."""
    successors, probabilities = cmdp.transitions
    possible = probabilities[context] > 0
    while True:
        outside = ~np.any(pairs, axis=-1)
        left = pairs & ~np.any(possible & outside[successors], axis=-1)
        if (left == pairs).all():
            return left
        pairs = left


def _values_within(
    cmdp: TabularCMDP, context: int, table: Float[np.ndarray, "state action"], pairs: Pairs
) -> Float[np.ndarray, " state"]:
    """The best values of acting by closed `pairs` alone; of no meaning where there is none."""
    # A state without any is left all its actions, since a solve wants one; nobody enters it.
    allowed = pairs | ~np.any(pairs, axis=-1, keepdims=True)
    successors, probabilities = cmdp.transitions
    restricted = np.where(allowed, table, -np.inf)
    return policy_iteration(successors, probabilities[context], restricted, cmdp.gamma).values


def _visited(cmdp: TabularCMDP, context: int, best: Pairs) -> Bool[np.ndarray, " state"]:
    """States on the way of a plan, or one step off it."""
    on_the_way = cmdp.transitions.matrix(context, best.astype(float)).T
    anywhere = cmdp.transitions.matrix(context, np.ones(best.shape)).T
    visited = np.asarray(cmdp.initial) > 0
    while (grown := visited | (on_the_way @ visited > 0)).sum() > visited.sum():
        visited = grown
    return visited | (anywhere @ visited > 0)
