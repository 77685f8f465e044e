"""What one would do without BIG: copy the expert, or average the contexts out."""

import numpy as np

from bigtrain import irl, transitions
from bigtrain.cmdp import TabularCMDP
from bigtrain.demos import Demonstrations
from bigtrain.policy import MemorylessPolicy


def clone(cmdp: TabularCMDP, demonstrations: Demonstrations) -> MemorylessPolicy:
    """Behaviour cloning: in each state, the experts' actions as often as they took them.

    This is what any cloning without memory converges to. Where no expert was, every action is as
    good as another.
    """
    data = irl.expert_data(cmdp, demonstrations)
    counts = np.zeros((cmdp.num_states, cmdp.num_actions))
    np.add.at(counts, (data.visited[data.rows], data.actions), 1)
    counts[counts.sum(-1) == 0] = 1
    return MemorylessPolicy(cmdp, counts / counts.sum(-1, keepdims=True))


def average_contexts(cmdp: TabularCMDP) -> TabularCMDP:
    """The one MDP that has the prior's mean dynamics: what IRL sees that infers no contexts."""
    successors, probabilities = cmdp.transitions
    mean = np.tensordot(cmdp.context_prior, probabilities, 1)[None]
    return TabularCMDP(
        transitions.Transitions(successors, mean),
        [1.0],
        cmdp.initial,
        gamma=cmdp.gamma,
        features=cmdp.feature_table,
        observations=cmdp.observer,
        state_names=cmdp.state_names,
        action_names=cmdp.action_names,
        context_names=["averaged"],
    )
