"""Two doors and two ends (appendix G, on temperature): small enough for formulas.

    Ψ*(s0, a1, θ1) = 1(s0) + γ/(1 − γ) 1(s1),    Ψ*(s0, a2, θ1) = 1(s0) + γ/(1 − γ) 1(s2)

with 1(s) the one-hot of s, and the actions reversed in θ2.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bigtrain.finite import transitions
from bigtrain.finite.cmdp import TabularCMDP, Task


def three_state(*, prior: Sequence[float] = (0.5, 0.5)) -> TabularCMDP:
    """a1 leads to s1 and a2 to s2 in context 0, the other way round in context 1."""

    def outcomes(context: int, state: int, action: int) -> Mapping[int, float]:
        if state != 0:
            return {state: 1.0}
        return {1 if action == context else 2: 1.0}

    reward = np.zeros((3, 2))
    reward[1], reward[2] = 1, -1
    return TabularCMDP(
        transitions.from_function(outcomes, num_contexts=2, num_states=3, num_actions=2),
        prior,
        np.eye(3)[0],
        gamma=0.99,
        action_names=("a1", "a2"),
        task=Task(reward=reward, reward_range=(-1.0, 1.0), goal_states=(1,), failure_states=(2,)),
    )
