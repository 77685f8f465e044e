"""What the transitions of many trajectories say of their contexts, at once, in float64."""

import numpy as np
from jaxtyping import Float, Int

from bigtrain.finite.cmdp import TabularCMDP


def trajectory_log_evidence(
    cmdp: TabularCMDP,
    states: Int[np.ndarray, " step"],
    actions: Int[np.ndarray, " step"],
    next_states: Int[np.ndarray, " step"],
    trajectories: Int[np.ndarray, " step"],
    num_trajectories: int,
) -> Float[np.ndarray, "trajectory context"]:
    """log p(θ) + Σ log p(s' | s, a, θ) of many trajectories at once, in float64."""
    successors, probabilities = cmdp.transitions
    follows = successors[states, actions] == next_states[:, None]
    likelihood = np.where(follows, probabilities[:, states, actions], 0).sum(-1)
    with np.errstate(divide="ignore"):
        result = np.tile(np.log(np.asarray(cmdp.context_prior)), (num_trajectories, 1))
        np.add.at(result, trajectories, np.log(likelihood).T)
    return result
