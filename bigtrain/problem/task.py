"""What a simulated problem is for, as its designer knows it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from jaxtyping import Array, Bool, Float, Int

from bigtrain.problem.trajectories import State

Predicate = Callable[[State], Bool[Array, ""]]
"""Whether a state is in a set."""


@final
@dataclass(frozen=True, eq=False)
class SimulatedTask:
    """What the designer of a simulator knows and learners never see; for experts and evaluation.

    `expert(state, context)` marks the actions that are best for one who is told the context. An
    episode succeeds when it meets a goal state before any failure state.
    """

    reward: Callable[[State, Int[Array, ""]], Float[Array, ""]]
    reward_range: tuple[float, float]
    expert: Callable[[State, Int[Array, ""]], Bool[Array, " action"]]
    exploration_states: Predicate | None = None
    goal_states: Predicate | None = None
    failure_states: Predicate | None = None
    exploration_actions: tuple[int, ...] | None = None
