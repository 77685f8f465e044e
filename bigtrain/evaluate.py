"""How good a policy is: by playing it, or exactly; and how far from the best there is."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from bigtrain.arrays import ArrayLike
from bigtrain.errors import ConfigError
from bigtrain.exploration import PredictiveReward
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact.bayes import BayesConfig, BayesSolution, solve_bayes
from bigtrain.finite.exact.controller import SAME_MEMORY, Controller
from bigtrain.finite.exact.planning import evaluate_policy, policy_iteration, reward_table
from bigtrain.finite.policies import MemorylessPolicy, PrivilegedPolicy
from bigtrain.policy import Decision, Policy
from bigtrain.problem import CMDP, State
from bigtrain.rollout import rollout

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
    neither. `exploring` counts steps in exploration states. What a problem does not define is
    None. Standard errors are over seeds where there are several, otherwise over episodes; exact
    results have none.
    """

    total_return: Estimate
    discounted_return: Estimate
    success: Estimate | None
    unfinished: Estimate | None
    exploring: Estimate | None


class Regret(NamedTuple):
    """How far a policy's value is from the Bayes-optimal one.

    `normalised` is 0 for the best policy and 1 for the best one that never explores. It is None
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
    policy: Policy | PrivilegedPolicy,
    cmdp: CMDP,
    *,
    reward: Reward | None = None,
    episodes: int = 1_000,
    horizon: int = 100,
    seed: int | Sequence[int] = 0,
    goal: States | None = None,
    failure: States | None = None,
    exploring: States | None = None,
) -> Evaluation:
    """Plays `episodes` episodes of `horizon` steps for each seed.

    What is not given is taken from the problem's `task`, if it has one.
    """
    for name, value in (("episodes", episodes), ("horizon", horizon)):
        if value < 1:
            raise ConfigError(f"`{name}` must be at least 1, got {value}.")
    seeds = [seed] if isinstance(seed, int) else list(seed)
    if not seeds:
        raise ConfigError("`seed` must be a number or a sequence of them, got an empty one.")
    keys = jnp.stack([jax.random.split(jax.random.key(s), episodes) for s in seeds])
    given = _resolve(cmdp, reward, goal, failure, exploring)
    total, discounted, *optional = _play(policy, cmdp, keys, horizon, *given)
    return Evaluation(
        _estimate(total),
        _estimate(discounted),
        *(None if part is None else _estimate(part) for part in optional),
    )


def evaluate_exactly(
    policy: Policy | PrivilegedPolicy,
    cmdp: TabularCMDP,
    *,
    reward: ArrayLike | PredictiveReward | None = None,
    horizon: int = 100,
    goal: Sequence[int | str] | None = None,
    failure: Sequence[int | str] | None = None,
    exploring: Sequence[int | str] | None = None,
    resolution: float = SAME_MEMORY,
) -> Evaluation:
    """What `evaluate` would find with endless episodes, for a finite problem.

    Memories of the policy that differ by less than `resolution`, relatively where they are large,
    are taken as one.
    """
    if horizon < 1:
        raise ConfigError(f"`horizon` must be at least 1, got {horizon}.")
    table, *places = _resolve(cmdp, reward, goal, failure, exploring)
    none = np.zeros(cmdp.num_states, bool)
    masks = [none if place is None else np.asarray(place.table) for place in places]
    totals = np.sum(
        [
            weight
            * np.array(
                Controller(actor, problem, resolution).totals(
                    np.asarray(table.table, np.float64),
                    horizon,
                    **dict(zip(("goal", "failure", "exploring"), masks, strict=True)),
                )
            )
            for weight, actor, problem in _actors(policy, cmdp)
        ],
        axis=0,
    )
    total, discounted, success, unfinished, explored = (Estimate(float(x), 0.0) for x in totals)
    return Evaluation(
        total,
        discounted,
        success if places[0] else None,
        unfinished if places[0] else None,
        explored if places[2] else None,
    )


def policy_value(
    policy: Policy | PrivilegedPolicy,
    cmdp: TabularCMDP,
    *,
    reward: ArrayLike | PredictiveReward,
    tolerance: float = 1e-11,
    resolution: float = SAME_MEMORY,
) -> tuple[float, float]:
    """Bounds on the discounted return without end.

    Histories that weigh less than `tolerance` are not followed; the bounds allow for them. They do
    not allow for what is taken as one: memories of the policy that differ by less than
    `resolution`, relatively where they are large.
    """
    table = _reward_array(cmdp, reward)
    bounds = [
        weight * np.array(Controller(actor, problem, resolution).value(table, tolerance=tolerance))
        for weight, actor, problem in _actors(policy, cmdp)
    ]
    lower, upper = np.sum(bounds, axis=0)
    return float(lower), float(upper)


def regret(
    policy: Policy,
    cmdp: TabularCMDP,
    *,
    reward: ArrayLike | PredictiveReward,
    exploration_states: Sequence[int | str] | None = None,
    optimal: BayesSolution | None = None,
    config: BayesConfig = BayesConfig(),
) -> Regret:
    """The regret of `policy` in expectation over contexts, without end.

    The policy's value counts at its lower bound and the optimum at its upper one. `optimal`
    saves solving the problem again.
    """
    table = _reward_array(cmdp, reward)
    if optimal is None:
        optimal = solve_bayes(cmdp, table, config)
    if exploration_states is None:
        exploration_states = cmdp.task.exploration_states if cmdp.task else ()
    value, _ = policy_value(policy, cmdp, reward=table)
    if policy is optimal.policy:  # its certificate may prove more than following it for long
        value = max(value, optimal.lower)
    return Regret(
        value,
        optimal.upper,
        never_exploring_value(cmdp, table, exploration_states, config),
    )


def never_exploring_value(
    cmdp: TabularCMDP,
    reward: ArrayLike,
    exploration_states: Sequence[int | str],
    config: BayesConfig = BayesConfig(),
) -> float | None:
    """What the best policy that never enters an exploration state is worth; None if none can.

    Where a problem has no exploration states, never to explore is never to learn: the plan that is
    optimal for the prior's mean dynamics, whatever is seen.
    """
    table = reward_table(cmdp, reward)
    if not len(exploration_states):
        successors, probabilities = cmdp.transitions
        mean = np.tensordot(cmdp.context_prior, probabilities, 1)
        actions = policy_iteration(successors, mean, table, cmdp.gamma).actions
        values = evaluate_policy(cmdp, np.eye(cmdp.num_actions)[actions], table)
        return float(np.asarray(cmdp.context_prior) @ values @ np.asarray(cmdp.initial))
    allowed = _avoiding(cmdp, exploration_states)
    if allowed is None:
        return None
    return solve_bayes(cmdp, table, config, allowed=allowed).lower


def _avoiding(
    cmdp: TabularCMDP, states: Sequence[int | str]
) -> Bool[np.ndarray, "state action"] | None:
    """The actions that never lead to `states`, now or later; None if that cannot be had."""
    successors, probabilities = cmdp.transitions
    possible = (probabilities[np.asarray(cmdp.context_prior) > 0] > 0).any(0)
    bad = np.zeros(cmdp.num_states, bool)
    bad[list(cmdp.state_indices(states))] = True
    while True:
        allowed = ~(possible & bad[successors]).any(-1)
        stuck = ~allowed.any(-1) & ~bad
        if not stuck.any():
            break
        bad |= stuck
    if bad[np.asarray(cmdp.initial) > 0].any():
        return None
    return allowed | bad[:, None]


class _Lookup(eqx.Module):
    """A table as a function of indices."""

    table: Shaped[np.ndarray | Array, "..."]

    def __call__(self, *indices: Int[Array, ""]) -> Shaped[Array, "..."]:
        return jnp.asarray(self.table)[indices]


def _resolve(
    cmdp: CMDP,
    reward: Reward | None,
    goal: States | None,
    failure: States | None,
    exploring: States | None,
) -> tuple[Any, Any, Any, Any]:
    """The reward and the three kinds of states as functions; the task's where none is given."""
    task = cmdp.task if isinstance(cmdp, TabularCMDP) else None
    if reward is None:
        if task is None:
            raise ConfigError("`reward` must be given: this problem has no task to take it from.")
        reward = task.reward
    if task is not None:
        goal = task.goal_states if goal is None else goal
        failure = task.failure_states if failure is None else failure
        exploring = task.exploration_states if exploring is None else exploring
    if not callable(reward):
        if not isinstance(cmdp, TabularCMDP):
            raise ConfigError(
                "`reward` must be a function of state and action: this problem is not finite."
            )
        reward = _Lookup(_reward_array(cmdp, reward))
    return reward, *(_predicate(cmdp, states) for states in (goal, failure, exploring))


def _predicate(cmdp: CMDP, states: States | None) -> Any:
    if states is None or callable(states):
        return states
    if not isinstance(cmdp, TabularCMDP):
        raise ConfigError("States must be given by a predicate: this problem is not finite.")
    if not len(states):
        return None
    mask = np.zeros(cmdp.num_states, bool)
    mask[list(cmdp.state_indices(states))] = True
    return _Lookup(mask)


def _reward_array(
    cmdp: TabularCMDP, reward: ArrayLike | PredictiveReward
) -> Float[np.ndarray, "state action"]:
    return reward_table(cmdp, reward.table() if isinstance(reward, PredictiveReward) else reward)


def _actors(
    policy: Policy | PrivilegedPolicy, cmdp: TabularCMDP
) -> list[tuple[float, Policy, TabularCMDP]]:
    """A policy as it is; an expert as one policy a context, each with the context's probability."""
    if isinstance(policy, MemorylessPolicy):
        return [(1.0, _Reflex(policy), cmdp)]
    if isinstance(policy, Policy):
        return [(1.0, policy, cmdp)]
    certain = np.eye(cmdp.num_contexts)
    return [
        (
            float(probability),
            _Reflex(policy.in_context(jnp.asarray(context))),
            eqx.tree_at(lambda problem: problem.context_prior, cmdp, certain[context]),
        )
        for context, probability in enumerate(np.asarray(cmdp.context_prior))
        if probability > 0
    ]


class _Reflex(Policy):
    """A memoryless policy without the belief that it keeps for onlookers."""

    policy: MemorylessPolicy

    def init(self) -> tuple[()]:
        return ()

    def step(
        self, state: tuple[()], observation: Shaped[Array, "..."], previous_action: Int[Array, ""]
    ) -> tuple[tuple[()], Decision]:
        _, decision = self.policy.step(self.policy.init(), observation, previous_action)
        return (), decision


@eqx.filter_jit
def _play(
    policy: Policy | PrivilegedPolicy,
    cmdp: CMDP,
    keys: Key[Array, "seed episode"],
    horizon: int,
    reward: Any,
    goal: Any,
    failure: Any,
    exploring: Any,
) -> tuple[Any, ...]:
    def episode(key):
        played = rollout(cmdp, policy, key, horizon=horizon)
        left = jax.tree.map(lambda leaf: leaf[:-1], played.states)
        rewards = jax.vmap(reward)(left, played.actions)
        total = rewards.sum()
        discounted = (rewards * cmdp.gamma ** jnp.arange(horizon)).sum()
        explored = None if exploring is None else jax.vmap(exploring)(left).sum()
        if goal is None:
            return total, discounted, None, None, explored
        reached = jax.vmap(goal)(played.states)
        missed = jnp.zeros_like(reached) if failure is None else jax.vmap(failure)(played.states)
        decided = reached | missed
        success = reached[jnp.argmax(decided)]
        return total, discounted, success, ~decided.any(), explored

    return jax.vmap(jax.vmap(episode))(keys)


def _estimate(measured: Shaped[Array, "seed episode"]) -> Estimate:
    values = np.asarray(measured, np.float64)
    samples = values.mean(1) if len(values) > 1 else values[0]
    stderr = samples.std(ddof=1) / np.sqrt(len(samples)) if len(samples) > 1 else float("nan")
    return Estimate(float(samples.mean()), float(stderr))
