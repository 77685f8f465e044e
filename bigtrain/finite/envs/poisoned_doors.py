"""Doors of which one is good, and a safe one behind a code (Weihs et al., PoisonedDoors).

The expert knows the good door and opens it. Who does not know it had better enter the code of
door 0, which no expert ever does. Every end pays once, for leaving it, and then ST rests.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bigtrain.errors import CMDPError
from bigtrain.finite import transitions
from bigtrain.finite.cmdp import TabularCMDP, Task

CODE = (2, 0, 1, 1, 2, 0, 0, 1, 1, 1)
NUM_SYMBOLS = 3
DOOR_0 = NUM_SYMBOLS
ENDS = {"Unlocked": 1.0, "Jammed": 0.0, "Good": 2.0, "Bad": -2.0, "ST": 0.0}


def poisoned_doors(*, doors: int = 4, code: Sequence[int] = CODE) -> TabularCMDP:
    """All doors but the good one are poisoned, and door 0, which pays half, needs a code."""
    if doors < 2:
        raise CMDPError(f"`doors` must be at least 2, door 0 and a good one, got {doors}.")
    if not len(code) or not set(code) <= set(range(NUM_SYMBOLS)):
        raise CMDPError(
            f"`code` must be at least one symbol, each from 0 to {NUM_SYMBOLS - 1}, "
            f"got {tuple(code)}."
        )
    choosing, first_end = 0, 1 + len(code)
    unlocked, jammed, good, bad, rest = range(first_end, first_end + len(ENDS))

    def outcomes(context: int, state: int, action: int) -> Mapping[int, float]:
        if state >= first_end:
            return {rest: 1.0}
        if state != choosing:
            return {state + 1 if action == code[state - 1] else jammed: 1.0}
        if action <= DOOR_0:
            return {state + 1 if action == DOOR_0 else state: 1.0}
        return {good if action == DOOR_0 + 1 + context else bad: 1.0}

    state_names = ("choosing", *(f"code-{entered}" for entered in range(len(code))), *ENDS)
    num_actions, num_contexts = NUM_SYMBOLS + doors, doors - 1
    reward = np.zeros((len(state_names), num_actions))
    reward[first_end:] = np.array(list(ENDS.values()))[:, None]
    return TabularCMDP(
        transitions.from_function(
            outcomes,
            num_contexts=num_contexts,
            num_states=len(state_names),
            num_actions=num_actions,
        ),
        np.full(num_contexts, 1 / num_contexts),
        np.eye(len(state_names))[choosing],
        gamma=0.99,
        state_names=state_names,
        action_names=(
            *(f"symbol-{symbol}" for symbol in range(NUM_SYMBOLS)),
            *(f"door-{door}" for door in range(doors)),
        ),
        context_names=tuple(f"good-{door}" for door in range(1, doors)),
        task=Task(
            reward=reward,
            reward_range=(-2.0, 2.0),
            exploration_states=tuple(range(1, first_end)),
            goal_states=(unlocked, good),
            failure_states=(jammed, bad),
        ),
    )
