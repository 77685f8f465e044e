"""A short cut that exists in one context only (section 5.2): contexts must be inferred.

From s0 the agent goes left to s1 or right to s2, and s2 always leads to s3. In context 0 s1 leads
back to s0; in context 1 it is a way to s3 that avoids the cost of s2. s4 and s5, which lead back
to s0, tell the contexts apart.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bigtrain.finite import transitions
from bigtrain.finite.cmdp import TabularCMDP, Task

LEFT, RIGHT = range(2)


def detour(*, prior: Sequence[float] = (0.9, 0.1)) -> TabularCMDP:
    """Going round by s2 costs 1; the short cut by s1 is open in context 1 only."""

    def outcomes(context: int, state: int, action: int) -> Mapping[int, float]:
        after_s1, after_s3 = ((0, 4), (3, 5))[context]
        next_states = (1 if action == LEFT else 2, after_s1, 3, after_s3, 0, 0)
        return {next_states[state]: 1.0}

    reward = np.zeros((6, 2))
    reward[2], reward[3] = -1, 2
    return TabularCMDP(
        transitions.from_function(outcomes, num_contexts=2, num_states=6, num_actions=2),
        prior,
        np.eye(6)[0],
        gamma=0.99,
        action_names=("left", "right"),
        task=Task(reward=reward, reward_range=(-1.0, 2.0)),
    )
