"""What a finite problem is for, as its designer knows it."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

from bigtrain.errors import CMDPError


@final
@dataclass(frozen=True, eq=False)
class Task:
    """What the designer of a problem knows and learners never see; for experts and evaluation.

    An episode succeeds when it meets a goal state before any failure state. Exploring is to be in
    an exploration state, whatever is done there; where there are `exploration_actions`, to take one
    of these in one of those.
    """

    reward: Float[np.ndarray, "state action"]
    reward_range: tuple[float, float]
    exploration_states: tuple[int, ...] = ()
    goal_states: tuple[int, ...] = ()
    failure_states: tuple[int, ...] = ()
    exploration_actions: tuple[int, ...] | None = None

    def __post_init__(self):
        actions = self.exploration_actions
        if actions is not None and not (actions and self.exploration_states):
            raise CMDPError(
                "`exploration_actions` must be at least one, of given `exploration_states`, got "
                f"{len(actions)} actions and {len(self.exploration_states)} states. Leave them "
                "out where any action explores."
            )
