"""Four states in which averaging contexts out misleads (appendix on context inference).

From s0 the agent goes left to s1 or right to s2, and s2 always leads to s3. In context 0 s1 leads
to s3 as well; in context 1 it leads back to s0. The paper draws this problem and gives no rewards;
these make its expert go left in context 0 and right in context 1, and s3 is where the task ends.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bigtrain.finite import transitions
from bigtrain.finite.cmdp import TabularCMDP, Task

LEFT, RIGHT = range(2)


def crossroads(*, prior: Sequence[float] = (0.5, 0.5)) -> TabularCMDP:
    """Going right costs 1 but always arrives; going left arrives in context 0 only."""

    def outcomes(context: int, state: int, action: int) -> Mapping[int, float]:
        next_states = (1 if action == LEFT else 2, 3 if context == 0 else 0, 3, 3)
        return {next_states[state]: 1.0}

    reward = np.zeros((4, 2))
    reward[2], reward[3] = -1, 2
    return TabularCMDP(
        transitions.from_function(outcomes, num_contexts=2, num_states=4, num_actions=2),
        prior,
        np.eye(4)[0],
        gamma=0.99,
        action_names=("left", "right"),
        task=Task(reward=reward, reward_range=(-1.0, 2.0), goal_states=(3,)),
    )
