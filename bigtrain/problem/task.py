"""What the designer of a problem knows and learners never see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, eq=False)
class Task:
    """The true reward, and what counts as success; for experts and evaluation.

    In a finite problem `reward` is a table [state, action] and sets of states are indices; in any
    other the first is a function of state and action, and the sets are predicates. An episode
    succeeds when it meets a goal state before any failure state. `expert(state, context)` marks the
    actions [action] that are best for one who knows the context, where that is known at all; finite
    problems are planned in.
    """

    reward: Any
    reward_range: tuple[float, float]
    exploration_states: Any = ()
    goal_states: Any = ()
    failure_states: Any = ()
    expert: Callable[[Any, Any], Any] | None = None
