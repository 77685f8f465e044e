"""How good a policy is, by playing it; and what there is to say of how good policies are."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from bigtrain.arrays import ArrayLike
from bigtrain.errors import ConfigError
from bigtrain.exploration import PredictiveReward
from bigtrain.policy import Policy, PolicyActor, play
from bigtrain.problem import Actor, Simulator, State, Trajectories

Reward = ArrayLike | PredictiveReward | Callable[[State, Int[Array, ""]], Float[Array, ""]]
"""A reward of a finite problem as an array [state] or [state, action], or any function of both."""

States = Sequence[int | str] | Callable[[State], Bool[Array, ""]]
"""States by index or name (finite problems), or as a predicate."""


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    stderr: float

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if self.stderr == 0 else f"{self.mean:.4g} ± {self.stderr:.2g}"


class Evaluation(NamedTuple):
    """What episodes of a policy bring.

    An episode succeeds when it meets a goal before any failure, and is unfinished when it meets
    neither. `exploring` counts steps in exploration states, or those that take an exploration
    action there where a problem names such. What a problem does not define is None. Standard errors
    are over seeds where there are several, otherwise over episodes; exact results have none.
    """

    total_return: Estimate
    discounted_return: Estimate
    success: Estimate | None
    unfinished: Estimate | None
    exploring: Estimate | None


class Regret(NamedTuple):
    """How far a policy's value is from the Bayes-optimal one.

    `normalised` is 0 for the best policy and 1 for the best one that never explores: that never
    enters an exploration state or, where certain actions explore, never takes them. It is None
    where exploring cannot be avoided, and infinite where it brings nothing and yet value is lost.
    """

    value: float
    optimal: float
    never_exploring: float | None

    @property
    def absolute(self) -> float:
        return self.optimal - self.value

    @property
    def normalised(self) -> float | None:
        if self.never_exploring is None:
            return None
        scale = 1e-9 * max(abs(self.optimal), 1.0)
        gap = self.optimal - self.never_exploring
        if abs(self.absolute) <= scale:
            return 0.0
        return self.absolute / gap if gap > scale else float("inf")


def evaluate(
    policy: Policy | Actor,
    cmdp: Simulator,
    *,
    reward: Reward | None = None,
    episodes: int = 1_000,
    horizon: int = 100,
    seed: int | Sequence[int] = 0,
    goal: States | None = None,
    failure: States | None = None,
    exploring: States | None = None,
    exploring_actions: Sequence[int | str] | None = None,
) -> Evaluation:
    """Plays `episodes` episodes of `horizon` steps for each seed.

    What is not given is taken from the problem's `task`, if it has one. In the states `exploring`
    any action explores, unless `exploring_actions` say which.
    """
    for name, value in (("episodes", episodes), ("horizon", horizon)):
        if value < 1:
            raise ConfigError(f"`{name}` must be at least 1, got {value}.")
    seeds = [seed] if isinstance(seed, int) else list(seed)
    if not seeds:
        raise ConfigError("`seed` must be a number or a sequence of them, got an empty one.")
    given = _resolve(cmdp, reward, goal, failure, exploring, exploring_actions)
    actor = PolicyActor(cmdp, policy) if isinstance(policy, Policy) else policy
    totals = [
        _total(
            cmdp, play(cmdp, actor, jax.random.key(s), episodes=episodes, horizon=horizon), *given
        )
        for s in seeds
    ]
    estimates: Any = (
        None if parts[0] is None else _estimate(np.stack(parts))
        for parts in zip(*totals, strict=True)
    )
    return Evaluation(*estimates)


def _resolve(
    cmdp: Simulator,
    reward: Reward | None,
    goal: States | None,
    failure: States | None,
    exploring: States | None,
    exploring_actions: Sequence[int | str] | None,
) -> tuple[Any, ...]:
    """The reward and the three kinds of states as functions, and the exploring actions by number;
    the task's where none is given."""
    task = cmdp.task
    if reward is None:
        if task is None:
            raise ConfigError("`reward` must be given: this problem has no task to take it from.")
        reward = task.reward
    if exploring is None:
        check_no_actions(exploring_actions)
        exploring_actions = getattr(task, "exploration_actions", None)
    if task is not None:
        goal = task.goal_states if goal is None else goal
        failure = task.failure_states if failure is None else failure
        exploring = task.exploration_states if exploring is None else exploring
    if isinstance(reward, PredictiveReward):
        reward = reward.as_function()
    elif not callable(reward):
        reward = cmdp.tabulate(reward)
    kinds = (goal, failure, exploring)
    marked = (None if states is None else cmdp.mark(states) for states in kinds)
    actions = None if exploring_actions is None else cmdp.action_indices(exploring_actions)
    return reward, *marked, None if actions is None else jnp.asarray(actions, jnp.int32)


def check_no_actions(actions: Sequence[int | str] | None) -> None:
    """Raises where actions that explore are given without the states."""
    if actions is not None:
        raise ConfigError(
            "Actions that explore must come with the states where they do, "
            f"got the actions {list(actions)} alone."
        )


@eqx.filter_jit
def _total(
    cmdp: Simulator,
    played: Trajectories,
    reward: Any,
    goal: Any,
    failure: Any,
    exploring: Any,
    exploring_actions: Int[Array, " action"] | None,
) -> tuple[Array | None, ...]:
    """What each episode brings."""
    everywhere = lambda function: jax.vmap(jax.vmap(function))  # noqa: E731
    rewards = everywhere(reward)(played.states, played.actions)[:, :-1]
    total = rewards.sum(-1)
    discounted = (rewards * cmdp.gamma ** jnp.arange(rewards.shape[-1])).sum(-1)
    explored = None
    if exploring is not None:
        explores = everywhere(exploring)(played.states)
        if exploring_actions is not None:
            explores &= jnp.isin(played.actions, exploring_actions)
        explored = explores[:, :-1].sum(-1)
    if goal is None:
        return total, discounted, None, None, explored
    reached = everywhere(goal)(played.states)
    missed = jnp.zeros_like(reached) if failure is None else everywhere(failure)(played.states)
    decided = reached | missed
    first = jnp.argmax(decided, -1)[:, None]
    success = jnp.take_along_axis(reached, first, -1)[:, 0]
    return total, discounted, success, ~decided.any(-1), explored


def _estimate(measured: Shaped[np.ndarray, "seed episode"]) -> Estimate:
    values = np.asarray(measured, np.float64)
    samples = values.mean(1) if len(values) > 1 else values[0]
    stderr = samples.std(ddof=1) / np.sqrt(len(samples)) if len(samples) > 1 else float("nan")
    return Estimate(float(samples.mean()), float(stderr))
