"""A square with the goal in one of its corners (Weihs et al., 2D-Lighthouse).

The expert knows the corner. The agent sees what a corner holds when it is near, so the state is a
cell and, where a corner is in view, what is seen there; which corners were empty is for the belief
to remember. The goal pays once, for leaving it, and then ST rests.

Features are the kinds of places, not the cells: among routes of equal length, demonstrations say
next to nothing about the reward of any one cell.
"""

from collections.abc import Mapping

import numpy as np

from bigtrain.errors import CMDPError
from bigtrain.finite import transitions
from bigtrain.finite.cmdp import TabularCMDP, Task

CORNERS = ("left-down", "left-up", "right-down", "right-up")
MOVES = {"left": (-1, 0), "right": (1, 0), "down": (0, -1), "up": (0, 1)}
KINDS = ("nothing", "empty", "goal", "at-goal", "ST")
REWARDS = (-0.01, -0.01, -0.01, 1.0, 0.0)
NOTHING, EMPTY, GOAL, AT_GOAL, ST = range(len(KINDS))


def lighthouse(*, half_width: int = 15, view: int = 1) -> TabularCMDP:
    """Find the corner with the goal; what a corner holds is seen from `view` cells away."""
    if not 0 <= view < half_width:
        raise CMDPError(
            "`view` must be at least 0 and less than `half_width`, so that two corners are never "
            f"in view at once, got {view} and {half_width}."
        )
    line = range(-half_width, half_width + 1)

    def look(context: int, x: int, y: int) -> tuple[int, int, int]:
        distance = half_width - min(abs(x), abs(y))
        if distance > view:
            return x, y, NOTHING
        if context != 2 * (x > 0) + (y > 0):
            return x, y, EMPTY
        return x, y, GOAL if distance else AT_GOAL

    places = sorted({look(context, x, y) for context in range(4) for x in line for y in line})
    number = {place: index for index, place in enumerate(places)}
    rest = len(places)
    kinds = np.array([*(kind for _, _, kind in places), ST])

    def outcomes(context: int, state: int, action: int) -> Mapping[int, float]:
        if kinds[state] >= AT_GOAL:
            return {rest: 1.0}
        cell = np.add(places[state][:2], tuple(MOVES.values())[action])
        x, y = np.clip(cell, -half_width, half_width).tolist()
        return {number[look(context, x, y)]: 1.0}

    symbols = np.zeros((len(kinds), 2 * len(line) + len(KINDS)), np.float32)
    for state, (x, y, _) in enumerate(places):
        symbols[state, [line.index(x), len(line) + line.index(y)]] = 1
    symbols[:, 2 * len(line) :] = np.eye(len(KINDS))[kinds]
    names = (f"({x},{y})" + f" {KINDS[kind]}" * (kind != NOTHING) for x, y, kind in places)
    return TabularCMDP(
        transitions.from_function(
            outcomes, num_contexts=4, num_states=len(kinds), num_actions=len(MOVES)
        ),
        np.full(4, 0.25),
        np.eye(len(kinds))[number[0, 0, NOTHING]],
        gamma=0.99,
        features=np.repeat(np.eye(len(KINDS))[kinds][:, None], len(MOVES), axis=1),
        observations=symbols,
        state_names=(*names, "ST"),
        action_names=tuple(MOVES),
        context_names=CORNERS,
        task=Task(
            reward=np.repeat(np.array(REWARDS)[kinds][:, None], len(MOVES), axis=1),
            reward_range=(-0.01, 1.0),
            exploration_states=tuple(np.flatnonzero(kinds == EMPTY).tolist()),
            goal_states=tuple(np.flatnonzero(kinds == AT_GOAL).tolist()),
        ),
    )
