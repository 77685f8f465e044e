"""Optimal plans and successor features, exactly: policy iteration with sparse linear algebra.

With P_π[s, s'] = Σ_a π(a | s) p(s' | s, a, θ), sparse, and r_π(s) = Σ_a π(a | s) r(s, a), in each
context θ:

    V_π = r_π + γ P_π V_π                                          [state]
    Q_π(s, a) = r(s, a) + γ Σ_s' p(s' | s, a, θ) V_π(s')           [state, action]
    Ψ_π(s, a) = ν(s, a) + γ Σ_s' p(s' | s, a, θ) M_π(s')           [state, action, feature]
    M_π = (I − γ P_π)⁻¹ ν_π                                        [state, feature]

The optimal contextual Q* and Ψ* (section 4.1, appendix B) are those of the policy that is greedy
for itself. For a few rows of Ψ the transposed system is less work: with γ p(· | s, a) Σ_t (γ P_π)^t
the discounted visits d after (s, a), a row is ν(s, a) + d ν_π.

What bites:
- Ties. A plan breaks them uniformly (design, point 3), so which actions tie is decided by a
  tolerance, relative to the range of action values: they are equal but for the rounding of solves.
- Policy iteration must not switch between tied actions for ever: it changes an action only where
  another is better by more than rounding.
- An improvement of at most g everywhere leaves V within g / (1 − γ) of V*, not within g.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse import linalg

from bigtrain.arrays import ArrayLike
from bigtrain.errors import PlanningError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.transitions import Transitions

TIE_TOLERANCE = 1e-9
"""Action values that differ by less than this share of their range count as tied."""

_IMPROVEMENT = 1e-11
_MAX_ITERATIONS = 10_000
_DIRECT_SIZE = 400
_KRYLOV_ITERATIONS = 80
_KRYLOV_TOLERANCE = 1e-13


class Plan(NamedTuple):
    """Optimal values in every context, and the policy that breaks ties uniformly."""

    values: Float[np.ndarray, "context state"]
    action_values: Float[np.ndarray, "context state action"]
    policy: Float[np.ndarray, "context state action"]


class Solution(NamedTuple):
    """Values of one MDP and actions that reach them; nothing is better by more than `error`."""

    values: Float[np.ndarray, " state"]
    action_values: Float[np.ndarray, "state action"]
    actions: Int[np.ndarray, " state"]
    error: float


def plan(cmdp: TabularCMDP, reward: ArrayLike) -> Plan:
    """The optimal plan of every context for a reward [state] or [state, action]."""
    reward = cmdp.reward_table(reward)
    transitions = cmdp.transitions
    solutions = [
        policy_iteration(transitions.successors, probabilities, reward, cmdp.gamma)
        for probabilities in transitions.probabilities
    ]
    action_values = np.stack([solution.action_values for solution in solutions])
    best = tied_actions(action_values)  # by one tolerance for all contexts
    return Plan(
        np.stack([solution.values for solution in solutions]),
        action_values,
        best / best.sum(-1, keepdims=True),
    )


def tied_actions(
    action_values: Float[np.ndarray, "*state action"],
) -> Bool[np.ndarray, "*state action"]:
    """Which actions are as good as the best one, up to rounding."""
    finite = action_values[np.isfinite(action_values)]
    # The range alone would be 0 where all is worth the same, and solves round in proportion to
    # values.
    tolerance = TIE_TOLERANCE * max(np.ptp(finite), 1e-3 * np.abs(finite).max(), 1e-300)
    return action_values >= action_values.max(-1, keepdims=True) - tolerance


def policy_iteration(
    successors: Int[np.ndarray, "state action successor"],
    probabilities: Float[np.ndarray, "state action successor"],
    reward: Float[np.ndarray, "state action"],
    gamma: float,
    *,
    actions: Int[np.ndarray, " state"] | None = None,
) -> Solution:
    """Solves one MDP. A reward of -inf forbids an action; `actions` is where to begin."""
    chosen = np.asarray(reward.argmax(-1) if actions is None else actions)
    dynamics = Transitions(successors, probabilities[None])
    all_states = np.arange(len(reward))
    for _ in range(_MAX_ITERATIONS):
        matrix = dynamics.matrix(0, np.eye(reward.shape[1])[chosen])
        values = solve_bellman(matrix, reward[all_states, chosen], gamma)
        action_values = reward + gamma * (probabilities * values[successors]).sum(-1)
        # Against Q of the chosen action, not V: the two differ by the residual of the solve.
        gain = action_values.max(-1) - action_values[all_states, chosen]
        if not (better := gain > _IMPROVEMENT * np.abs(values).max()).any():
            return Solution(values, action_values, chosen, float(gain.max() / (1 - gamma)))
        chosen = np.where(better, action_values.argmax(-1), chosen)
    raise PlanningError(
        f"Policy iteration did not settle within {_MAX_ITERATIONS} rounds on {len(reward)} states."
    )


def solve_bellman(
    matrix: sparse.csr_matrix, reward: Float[np.ndarray, "state *column"], gamma: float
) -> Float[np.ndarray, "state *column"]:
    """Solves v = reward + γ · matrix v, for each column of `reward`.

    Fast-mixing chains, whose factors would fill in, are quick for a Krylov method; long
    deterministic ones, which defeat it, have factors that stay sparse. So try the one, then
    fall back to the other.
    """
    system = sparse.identity(len(reward), format="csr") - gamma * matrix
    if len(reward) > _DIRECT_SIZE:
        columns = []
        start = np.random.default_rng(0).normal(size=len(reward))  # from 0 it can break down
        for column in reward.reshape(len(reward), -1).T:
            guess = start * np.abs(column).max()
            values, _ = linalg.bicgstab(
                system, column, guess, rtol=_KRYLOV_TOLERANCE, atol=0.0, maxiter=_KRYLOV_ITERATIONS
            )
            # Its own report is of a recursion for the residual, which can drift from the true one.
            residual = np.abs(system @ values - column).max()
            if not residual <= 100 * _KRYLOV_TOLERANCE * np.abs(column).max():
                break
            columns.append(values)
        else:
            return np.stack(columns, -1).reshape(reward.shape)
    return linalg.splu(system.tocsc()).solve(np.ascontiguousarray(reward))


def evaluate_policy(
    cmdp: TabularCMDP,
    policy: Float[np.ndarray, "*context state action"],
    reward: ArrayLike,
) -> Float[np.ndarray, "context state"]:
    """V of a policy that depends on the state, and where it has that axis on the context.

    `reward` is [state] or [state, action].
    """
    return policy_values(cmdp, policy, cmdp.reward_table(reward))


def policy_values(
    cmdp: TabularCMDP,
    policy: Float[np.ndarray, "*context state action"],
    reward: Float[np.ndarray, "state action"],
) -> Float[np.ndarray, "context state"]:
    """The same for a reward that may be -inf where the policy never goes."""
    shape = (cmdp.num_contexts, cmdp.num_states, cmdp.num_actions)
    return np.stack(
        [
            solve_bellman(
                cmdp.transitions.matrix(context, choice),
                (choice * np.where(choice > 0, reward, 0)).sum(-1),  # 0 · −∞ is NaN
                cmdp.gamma,
            )
            for context, choice in enumerate(np.broadcast_to(policy, shape))
        ]
    )


def successor_features(
    cmdp: TabularCMDP,
    policy: Float[np.ndarray, "context state action"],
    states: Int[np.ndarray, " visited"] | None = None,
) -> Float[np.ndarray, "context visited action feature"]:
    """Ψ(s, a, θ) of a policy, for the given states (all of them unless said otherwise).

    With fewer rows wanted than there are features, solves the transposed system instead: a row
    of Ψ is where the policy will be, and the features found there.
    """
    successors, probabilities = cmdp.transitions
    states = np.arange(cmdp.num_states) if states is None else states
    features = cmdp.feature_matrix()
    by_row = len(states) * cmdp.num_actions < cmdp.num_features
    result = np.empty((cmdp.num_contexts, len(states), cmdp.num_actions, cmdp.num_features))
    wanted = (states[:, None] * cmdp.num_actions + np.arange(cmdp.num_actions)).ravel()
    for context in range(cmdp.num_contexts):
        # `onward` is p(s' | s, a, θ) with a row for each wanted (s, a); `followed` is ν_π.
        matrix = cmdp.transitions.matrix(context, policy[context])
        onward = sparse.csr_matrix(
            (
                probabilities[context, states].ravel(),
                successors[states].ravel(),
                np.arange(len(wanted) + 1) * successors.shape[-1],
            ),
            shape=(len(wanted), cmdp.num_states),
        )
        choose = sparse.csr_matrix(
            (
                policy[context].ravel(),
                np.arange(policy[context].size),
                np.arange(cmdp.num_states + 1) * cmdp.num_actions,
            )
        )
        followed = sparse.csr_matrix(choose @ features)
        if by_row:
            occupancy = solve_bellman(matrix.T.tocsr(), onward.T.toarray(), cmdp.gamma)
            after = (followed.T @ occupancy).T
        else:
            after = onward @ solve_bellman(matrix, followed.toarray(), cmdp.gamma)
        rows = sparse.csr_matrix(features[wanted]).toarray() + cmdp.gamma * after
        result[context] = rows.reshape(result.shape[1:])
    return result
