"""What a problem is for, as its designer knows it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Array, Bool, Float

from bigtrain.errors import CMDPError
from bigtrain.problem.trajectories import State

States = tuple[int, ...] | Callable[[State], Bool[Array, ""]]
"""A set of states: by number, or by what tells whether a state is in it."""


@final
@dataclass(frozen=True, eq=False)
class Task:
    """What the designer of a problem knows and learners never see; for experts and evaluation.

    An episode succeeds when it meets a goal state before any failure state. Exploring is to be in
    an exploration state, whatever is done there; where there are `exploration_actions`, to take one
    of these in one of those.

    In a finite problem `reward` is a table and states are indices. In any other the reward is a
    function of state and action, sets of states are predicates, and `expert(state, context)` marks
    the actions that are best for one who knows the context; finite problems are planned in.
    """

    reward: Float[np.ndarray, "state action"] | Callable[[State, Array], Array]
    reward_range: tuple[float, float]
    exploration_states: States = ()
    goal_states: States = ()
    failure_states: States = ()
    exploration_actions: tuple[int, ...] | None = None
    expert: Callable[[State, Array], Bool[Array, " action"]] | None = None

    def __post_init__(self):
        actions = self.exploration_actions
        states = self.exploration_states
        if actions is not None and not (actions and states):
            named = "no" if callable(states) else len(states)
            raise CMDPError(
                "`exploration_actions` must be at least one, of given `exploration_states`, got "
                f"{len(actions)} actions and {named} states. Leave them "
                "out where any action explores."
            )
