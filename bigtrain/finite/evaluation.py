"""What policies of finite problems bring, exactly, and how far from the best that is.

    J(π) = Σ_θ p(θ) E[Σ_t γ^t r(s_t, a_t)]            the objective of section 4.4, by `Controller`
    absolute = J* − J(π),      normalised = (J* − J(π)) / (J* − J_never)

J_never is the best of a policy that never explores: that keeps out of the exploration pairs X, and
of states from where X can not be avoided. Such a policy may still learn from what happens to it, so
it is a Bayes-adaptive problem of its own, with fewer actions.

What bites: of each number a bound is known only, and a regret must not look better than it is. So
J(π) counts at its lower bound, J* at its upper one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bigtrain.arrays import ArrayLike
from bigtrain.errors import ConfigError
from bigtrain.evaluate import Estimate, Evaluation, Regret, check_no_actions
from bigtrain.exploration import CostOfExploration, PredictiveReward
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact.bayes import BayesConfig, BayesSolution, solve_bayes
from bigtrain.finite.exact.controller import SAME_MEMORY, Controller
from bigtrain.finite.exact.planning import evaluate_policy, policy_iteration
from bigtrain.finite.policies import PrivilegedPolicy
from bigtrain.policy import Policy

Pairs = Bool[np.ndarray, "state action"]
"""State-action pairs, marked in a table."""


def evaluate_exactly(
    policy: Policy | PrivilegedPolicy,
    cmdp: TabularCMDP,
    *,
    reward: ArrayLike | PredictiveReward | None = None,
    horizon: int = 100,
    goal: Sequence[int | str] | None = None,
    failure: Sequence[int | str] | None = None,
    exploring: Sequence[int | str] | None = None,
    exploring_actions: Sequence[int | str] | None = None,
    resolution: float = SAME_MEMORY,
) -> Evaluation:
    """What `evaluate` would find with endless episodes, for a finite problem.

    `reward` is [state] or [state, action]; the task's where none is given.
    Memories of the policy that differ by less than `resolution`, relatively where they are large,
    are taken as one.
    """
    if horizon < 1:
        raise ConfigError(f"`horizon` must be at least 1, got {horizon}.")
    if reward is None:
        if cmdp.task is None:
            raise ConfigError("`reward` must be given: this problem has no task to take it from.")
        reward = cmdp.task.reward
    masks = _Masks(
        _mask(cmdp, goal, "goal_states"),
        _mask(cmdp, failure, "failure_states"),
        *_exploring(cmdp, exploring, exploring_actions),
    )
    table = table_of(cmdp, reward)
    totals = np.sum(
        [
            weight
            * np.array(
                Controller(actor, problem, resolution).totals(table, horizon, **masks._asdict())
            )
            for weight, actor, problem in _actors(policy, cmdp)
        ],
        axis=0,
    )
    # An exact number has no standard error.
    total, discounted, success, unfinished, explored = (Estimate(float(x), 0.0) for x in totals)
    has_goal = masks.goal.any()
    return Evaluation(
        total,
        discounted,
        success if has_goal else None,
        unfinished if has_goal else None,
        explored if masks.exploring.any() else None,
    )


def policy_value(
    policy: Policy | PrivilegedPolicy,
    cmdp: TabularCMDP,
    *,
    reward: ArrayLike | PredictiveReward,
    tolerance: float = 1e-11,
    resolution: float = SAME_MEMORY,
) -> tuple[float, float]:
    """Bounds on the discounted return without end, for a `reward` [state] or [state, action].

    Histories that weigh less than `tolerance` are not followed; the bounds allow for them. They do
    not allow for what is taken as one: memories of the policy that differ by less than
    `resolution`, relatively where they are large.
    """
    table = table_of(cmdp, reward)
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
    exploration_actions: Sequence[int | str] | None = None,
    optimal: BayesSolution | None = None,
    config: BayesConfig = BayesConfig(),
) -> Regret:
    """The regret of `policy` in expectation over contexts, without end.

    `reward` is [state] or [state, action]. The policy's value counts at its lower bound and the
    optimum at its upper one. What counts as exploring is told by `exploration_states`, any action
    there or `exploration_actions` only, or else by the reward's exploration prior, or by the task.
    `optimal` saves solving the problem again.
    """
    table = table_of(cmdp, reward)
    if optimal is None:
        optimal = solve_bayes(cmdp, table, config)
    value, _ = policy_value(policy, cmdp, reward=table)
    if policy is optimal.policy:  # its certificate may prove more than following it for long
        value = max(value, optimal.lower)
    exploring = exploration_pairs(cmdp, reward, exploration_states, exploration_actions)
    never = never_exploring_value(cmdp, table, exploring, config)
    return Regret(value, optimal.upper, never)


def exploration_pairs(
    cmdp: TabularCMDP,
    reward: ArrayLike | PredictiveReward,
    states: Sequence[int | str] | None = None,
    actions: Sequence[int | str] | None = None,
) -> Pairs:
    """What counts as exploring: any action in `states`, or `actions` only, or as the reward (a
    table [state, action] has none) or the task says."""
    prior = reward.exploration if isinstance(reward, PredictiveReward) else None
    if states is None and actions is None and isinstance(prior, CostOfExploration):
        return prior.mask(cmdp)
    inside, taken = _exploring(cmdp, states, actions)
    return inside[:, None] & taken


def never_exploring_value(
    cmdp: TabularCMDP, reward: ArrayLike, exploring: Pairs, config: BayesConfig = BayesConfig()
) -> float | None:
    """What the best policy is worth that takes none of the pairs `exploring`; None if none can.

    It learns from all else that it does. Where a state has other actions it may be entered, and
    these are left: where every state has, there is always such a policy. A state all of whose
    actions explore must not be entered, nor anything be done that may lead there in some context
    of the prior, also where what was seen rules that context out.

    `reward` is [state] or [state, action]. Where nothing counts as exploring, never to explore is
    never to learn: the plan that is optimal for the prior's mean dynamics, whatever is seen.
    """
    table = cmdp.reward_table(reward)
    if not exploring.any():
        successors, probabilities = cmdp.transitions
        mean = np.tensordot(cmdp.context_prior, probabilities, 1)
        actions = policy_iteration(successors, mean, table, cmdp.gamma).actions
        # Valued in each context as it is: in the mean dynamics it would forget θ at every step.
        values = evaluate_policy(cmdp, np.eye(cmdp.num_actions)[actions], table)
        return float(np.asarray(cmdp.context_prior) @ values @ np.asarray(cmdp.initial))
    allowed = _avoiding(cmdp, exploring)
    if allowed is None:
        return None
    return solve_bayes(cmdp, table, config, allowed=allowed).lower


def _avoiding(cmdp: TabularCMDP, pairs: Pairs) -> Pairs | None:
    """The actions that are none of `pairs` and never lead to where only such are left.

    None if that cannot be had. A state all of whose actions explore is thereby never entered.
    """
    successors, probabilities = cmdp.transitions
    # Contexts that the prior rules out lead nowhere.
    possible = (probabilities[np.asarray(cmdp.context_prior) > 0] > 0).any(0)
    # The least fixed point of "every action is in X or may lead to a lost state".
    lost = np.all(pairs, axis=-1)
    while True:
        allowed = ~pairs & ~np.any(possible & lost[successors], axis=-1)
        stuck = ~np.any(allowed, axis=-1) & ~lost
        if not stuck.any():
            break
        lost |= stuck
    if lost[np.asarray(cmdp.initial) > 0].any():
        return None
    return allowed | lost[:, None]  # nobody gets there, but a solve wants an action everywhere


class _Masks(NamedTuple):
    goal: Bool[np.ndarray, " state"]
    failure: Bool[np.ndarray, " state"]
    exploring: Bool[np.ndarray, " state"]
    exploring_actions: Bool[np.ndarray, " action"]


def _exploring(
    cmdp: TabularCMDP,
    states: Sequence[int | str] | None,
    actions: Sequence[int | str] | None,
) -> tuple[Bool[np.ndarray, " state"], Bool[np.ndarray, " action"]]:
    """The states and the actions that span the exploration set: in given states all actions unless
    they are given too, and the task's where neither is."""
    if states is None:
        check_no_actions(actions)
        actions = cmdp.task.exploration_actions if cmdp.task else None
    taken = np.ones(cmdp.num_actions, bool)
    if actions is not None:
        taken[:] = False
        taken[list(cmdp.action_indices(actions))] = True
    return _mask(cmdp, states, "exploration_states"), taken


def _mask(
    cmdp: TabularCMDP, states: Sequence[int | str] | None, kind: str
) -> Bool[np.ndarray, " state"]:
    """States by index or name; the task's of this kind where none are given."""
    kept = getattr(cmdp.task, kind, ()) if states is None else states
    mask = np.zeros(cmdp.num_states, bool)
    mask[list(cmdp.state_indices(kept))] = True
    return mask


def table_of(
    cmdp: TabularCMDP, reward: PredictiveReward | ArrayLike
) -> Float[np.ndarray, "state action"]:
    """A reward as a table [state, action]."""
    return cmdp.reward_table(reward.table() if isinstance(reward, PredictiveReward) else reward)


def _actors(
    policy: Policy | PrivilegedPolicy, cmdp: TabularCMDP
) -> list[tuple[float, Policy, TabularCMDP]]:
    """A policy as it is; an expert as one policy a context, each with the context's probability."""
    if isinstance(policy, Policy):
        return [(1.0, policy, cmdp)]
    # J is linear in the prior, and given θ an expert's policy looks at the state alone.
    certain = np.eye(cmdp.num_contexts)
    return [
        (
            float(probability),
            policy.in_context(jnp.asarray(context)),
            eqx.tree_at(lambda problem: problem.context_prior, cmdp, certain[context]),
        )
        for context, probability in enumerate(np.asarray(cmdp.context_prior))
        if probability > 0
    ]
