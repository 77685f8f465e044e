"""Tiger-treasure in closed form: what can follow what, what to believe, what is best to do."""

from __future__ import annotations

from collections.abc import Hashable

from model import Decision, History

from bigproto.v1 import policy_pb2 as pb

STATES = ("S0", "T1", "T2", "Tiger", "Gold", "ST")
ACTIONS = ("open-1", "open-2", "listen")
CONTEXTS = ("tiger-1", "tiger-2")
OPEN_1, OPEN_2, LISTEN = range(3)

P_HEAR = 0.85
THRESHOLD = 2
"""Net hearings after which the bundle of the tests opens a door: right for k = 0.5."""

BROKEN = "NaN"
"""Stands for an observation that no spec allows."""


def likelihoods(state: Hashable, action: int, after: Hashable) -> tuple[float, float]:
    """The probability of what comes after, in each context."""
    if state in ("Tiger", "Gold", "ST"):
        return (1.0, 1.0) if after == "ST" else (0.0, 0.0)
    if action == LISTEN:
        right, wrong = P_HEAR, 1 - P_HEAR
        return {"T1": (right, wrong), "T2": (wrong, right)}.get(str(after), (0.0, 0.0))
    tiger_is_there = (1.0, 0.0) if action == OPEN_1 else (0.0, 1.0)
    gold_is_there = tiger_is_there[::-1]
    return {"Tiger": tiger_is_there, "Gold": gold_is_there}.get(str(after), (0.0, 0.0))


def possible(history: History) -> list[str]:
    """The states that can come next. Any state can be the first."""
    return [state for state in STATES if belief(history, state) is not None]


def belief(history: History, seen: Hashable) -> tuple[float, float] | None:
    """p(θ | history) by Bayes' rule; None where no context explains what is seen."""
    first, second = 0.5, 0.5
    states = [*(state for state, _ in history), seen]
    for (state, action), after in zip(history, states[1:], strict=True):
        likelihood = likelihoods(state, action, after)
        first, second = first * likelihood[0], second * likelihood[1]
        if first + second == 0:
            return None
        first, second = first / (first + second), second / (first + second)
    return first, second


def best_actions(history: History, seen: Hashable) -> frozenset[int]:
    """Listen until one door has been heard `THRESHOLD` times more often, then open the other.

    Once a door is open everything is equally good, and the first action is taken.
    """
    if seen in ("Tiger", "Gold", "ST"):
        return frozenset({OPEN_1})
    heard = [*(state for state, _ in history), seen][1:]  # where it begins tells nothing
    net = heard.count("T1") - heard.count("T2")
    if abs(net) < THRESHOLD:
        return frozenset({LISTEN})
    return frozenset({OPEN_2 if net > 0 else OPEN_1})


def greedy(history: History, seen: Hashable) -> Decision | pb.Problem:
    """The exact policy."""
    return _decide(history, seen, best_actions(history, seen))


def drawing(history: History, seen: Hashable) -> Decision | pb.Problem:
    """The same belief; the rule may draw any action."""
    return _decide(history, seen, frozenset(range(len(ACTIONS))))


def _decide(history: History, seen: Hashable, actions: frozenset[int]) -> Decision | pb.Problem:
    if seen == BROKEN:
        return pb.PROBLEM_OBSERVATION_INVALID
    after = belief(history, seen)
    return pb.PROBLEM_OBSERVATION_IMPOSSIBLE if after is None else Decision(after, actions)
