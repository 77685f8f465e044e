"""Two doors, a tiger and a treasure (section 3.1): the imitation gap at its smallest.

    p(T_θ | listen, θ) = p,  p(the other | listen, θ) = 1 − p,  log-odds = ± n log(p / (1 − p))

after n net hearings, 1.73 each at p = 0.85. Rewards belong to the state being left: for p = 1 the
naive imitator gets −45γ, the listener γ(10γ − 1) (the paper drops one γ; design, point 9). ST
rests: in an episode that ended there the agent would listen for ever (point 1).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bigtrain.finite import transitions
from bigtrain.finite.cmdp import TabularCMDP, Task
from bigtrain.finite.envs.options import check_probability

STATES = ("S0", "T1", "T2", "Tiger", "Gold", "ST")
ACTIONS = ("open-1", "open-2", "listen")
CONTEXTS = ("tiger-1", "tiger-2")
S0, T1, T2, TIGER, GOLD, ST = range(6)
LISTEN = 2


def tiger_treasure(*, p_hear: float = 0.85, prior: Sequence[float] = (0.5, 0.5)) -> TabularCMDP:
    """The tiger waits behind door θ. Listening tells which door, rightly with `p_hear`."""
    check_probability("p_hear", p_hear)

    def outcomes(context: int, state: int, action: int) -> Mapping[int, float]:
        if state in (TIGER, GOLD, ST):
            return {ST: 1.0}
        if action != LISTEN:
            return {TIGER if action == context else GOLD: 1.0}
        right, wrong = (T1, T2) if context == 0 else (T2, T1)
        return {right: p_hear, wrong: 1 - p_hear}

    reward = np.zeros((len(STATES), len(ACTIONS)))
    reward[GOLD], reward[TIGER], reward[[T1, T2]] = 10, -100, -1
    return TabularCMDP(
        transitions.from_function(outcomes, num_contexts=2, num_states=6, num_actions=3),
        prior,
        np.eye(6)[S0],
        gamma=0.99,
        state_names=STATES,
        action_names=ACTIONS,
        context_names=CONTEXTS,
        task=Task(
            reward=reward,
            reward_range=(-100.0, 10.0),
            exploration_states=(T1, T2),
            goal_states=(GOLD,),
            failure_states=(TIGER,),
        ),
    )
