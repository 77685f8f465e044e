"""Plans and successor features against value iteration and enumeration, written plainly."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from problems import dense, permute_states, random_cmdp
from scipy import sparse

from bigtrain import Transitions, envs
from bigtrain.errors import PlanningError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import evaluate_policy, plan, planning, successor_features

SEEDS = st.integers(0, 2**31 - 1)
SHAPES = [(1, 5, 1, 0.5), (2, 4, 2, 0.9), (3, 6, 3, 0.95), (2, 5, 4, 0.0)]


def random_reward(cmdp: TabularCMDP, seed: int, scale: float = 1.0) -> NDArray[np.float64]:
    rng = np.random.default_rng([seed, 1])
    return scale * rng.normal(size=(cmdp.num_states, cmdp.num_actions))


def random_policy(cmdp: TabularCMDP, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng([seed, 2])
    shape = (cmdp.num_contexts, cmdp.num_states)
    return rng.dirichlet(np.ones(cmdp.num_actions), shape)


def value_iteration(
    table: NDArray[np.float64], reward: NDArray[np.float64], gamma: float
) -> NDArray[np.float64]:
    """Q* [state, action] of one context, until it stands still."""
    values = np.zeros(len(reward))
    for _ in range(100_000):
        action_values = reward + gamma * np.einsum("san,n->sa", table, values)
        if np.abs(action_values.max(-1) - values).max() < 1e-15 * max(1, np.abs(values).max()):
            return action_values
        values = action_values.max(-1)
    raise AssertionError("value iteration did not settle")


def followed_by_hand(
    table: NDArray[np.float64], policy: NDArray[np.float64], features: NDArray, gamma: float
) -> NDArray[np.float64]:
    """Ψ [state, action, feature] of one context, by summing until γ^t is nothing."""
    result = np.zeros_like(features)
    for _ in range(3_000):
        expected = np.einsum("sa,sad->sd", policy, result)
        result = features + gamma * np.einsum("san,nd->sad", table, expected)
    return result


def with_features(cmdp: TabularCMDP, features: NDArray[np.float64]) -> TabularCMDP:
    return TabularCMDP(
        cmdp.transitions, cmdp.context_prior, cmdp.initial, gamma=cmdp.gamma, features=features
    )


# ── plans ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("num_contexts, num_states, num_actions, gamma", SHAPES)
@pytest.mark.parametrize("sparsity", [0.0, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_plan_agrees_with_value_iteration(
    num_contexts, num_states, num_actions, gamma, sparsity, seed
):
    cmdp = random_cmdp(seed, num_contexts, num_states, num_actions, gamma, sparsity=sparsity)
    reward = random_reward(cmdp, seed)
    found = plan(cmdp, reward)
    for context, table in enumerate(dense(cmdp)):
        want = value_iteration(table, reward, gamma)
        np.testing.assert_allclose(found.action_values[context], want, atol=1e-11)
        np.testing.assert_allclose(found.values[context], want.max(-1), atol=1e-11)
        np.testing.assert_array_equal(found.policy[context], np.eye(num_actions)[want.argmax(-1)])


@pytest.mark.parametrize("seed", range(5))
def test_plan_is_the_best_of_all_deterministic_policies(seed):
    cmdp = random_cmdp(seed, 2, 3, 2, 0.9)
    reward = random_reward(cmdp, seed)
    best = np.full((2, 3), -np.inf)
    for actions in itertools.product(range(2), repeat=3):
        for context, table in enumerate(dense(cmdp)):
            chain = table[np.arange(3), actions]
            values = np.linalg.solve(np.eye(3) - 0.9 * chain, reward[np.arange(3), actions])
            best[context] = np.maximum(best[context], values)
    np.testing.assert_allclose(plan(cmdp, reward).values, best, rtol=1e-12)


def test_plan_by_hand():
    """In tiger-treasure an expert opens the other door: 10γ, and nothing after that."""
    cmdp = envs.make("tiger-treasure")
    assert cmdp.task is not None
    found = plan(cmdp, cmdp.task.reward)
    want = [9.9, 8.9, 8.9, -100, 10, 0]
    np.testing.assert_allclose(found.values, [want, want], atol=1e-12)
    listen = 0.99 * 8.9
    doors = {0: [-99, 9.9, listen], 1: [9.9, -99, listen]}
    for context, row in doors.items():
        np.testing.assert_allclose(found.action_values[context, 0], row, atol=1e-12)
    np.testing.assert_array_equal(found.policy[:, 0], [[0, 1, 0], [1, 0, 0]])
    np.testing.assert_allclose(found.policy[:, 3:], 1 / 3)


@pytest.mark.parametrize("scale, shift", [(1.0, 0.0), (1e-6, 0.0), (1e6, 0.0), (1.0, 1e3)])
def test_ties_are_broken_uniformly(scale, shift):
    """Two of three actions are the same action; rounding, scale and shift do not part them."""
    twins = random_cmdp(0, 2, 6, 2, 0.95)
    table = dense(twins)[:, :, [0, 1, 0]]
    cmdp = TabularCMDP(table, twins.context_prior, twins.initial, gamma=0.95)
    reward = scale * random_reward(twins, 0)[:, [0, 1, 0]] + shift
    policy = plan(cmdp, reward).policy
    first = policy[..., 0] > 0
    assert first.any() and not first.all()
    np.testing.assert_array_equal(policy[first], np.tile([0.5, 0, 0.5], (first.sum(), 1)))
    np.testing.assert_array_equal(policy[~first], np.tile([0.0, 1, 0], ((~first).sum(), 1)))


def test_tied_actions_spares_real_differences():
    values = np.array([[1.0, 1.0 + 1e-12, 0.0], [1.0, 1.0 - 1e-6, 0.0], [-np.inf, 0.5, 0.5]])
    want = [[True, True, False], [True, False, False], [False, True, True]]
    np.testing.assert_array_equal(planning.tied_actions(values), want)


def test_reward_of_states_is_the_same_for_every_action():
    cmdp = random_cmdp(3)
    reward = random_reward(cmdp, 3)[:, 0]
    one = plan(cmdp, reward)
    full = plan(cmdp, np.repeat(reward[:, None], cmdp.num_actions, 1))
    np.testing.assert_array_equal(one.action_values, full.action_values)
    np.testing.assert_array_equal(plan(cmdp, reward.tolist()).policy, full.policy)


@settings(deadline=None, max_examples=20)
@given(seed=SEEDS, scale=st.floats(0.01, 100), shift=st.floats(-10, 10))
def test_scaling_and_shifting_the_reward_scales_and_shifts_values(seed, scale, shift):
    cmdp = random_cmdp(seed, 2, 4, 2, 0.9)
    reward = random_reward(cmdp, seed)
    plain, moved = plan(cmdp, reward), plan(cmdp, scale * reward + shift)
    want = scale * plain.values + shift / (1 - 0.9)
    np.testing.assert_allclose(moved.values, want, atol=1e-9 * (scale + abs(shift)))
    np.testing.assert_array_equal(moved.policy, plain.policy)


@settings(deadline=None, max_examples=20)
@given(seed=SEEDS, order=st.permutations(range(4)))
def test_permuting_states_permutes_the_plan(seed, order):
    cmdp = random_cmdp(seed, 2, 4, 2, 0.9)
    reward = random_reward(cmdp, seed)
    plain, moved = plan(cmdp, reward), plan(permute_states(cmdp, order), reward[order])
    np.testing.assert_allclose(moved.action_values, plain.action_values[:, order], atol=1e-12)
    np.testing.assert_array_equal(moved.policy, plain.policy[:, order])


@pytest.mark.parametrize(
    "reward, message",
    [
        (np.zeros(3), r"shape \(4,\) or \(4, 2\), got the shape \(3,\)"),
        (np.zeros((2, 4)), r"got the shape \(2, 4\)"),
        (np.zeros(()), r"got the shape \(\)"),
        (np.array([0, np.nan, 0, 0]), r"NaN or infinity"),
        (np.full((4, 2), -np.inf), r"NaN or infinity"),
    ],
)
def test_reward_errors(reward, message):
    cmdp = random_cmdp(0)
    with pytest.raises(PlanningError, match=message):
        plan(cmdp, reward)
    with pytest.raises(PlanningError, match=message):
        evaluate_policy(cmdp, random_policy(cmdp, 0), reward)


def test_forbidden_actions_are_never_taken():
    cmdp = random_cmdp(4, 1, 5, 3, 0.9)
    reward = random_reward(cmdp, 4)
    allowed = np.random.default_rng(4).random((5, 3)) < 0.5
    allowed[:, 0] |= ~allowed.any(-1)
    limited = np.where(allowed, reward, -np.inf)
    successors, probabilities = cmdp.transitions
    found = planning.policy_iteration(successors, probabilities[0], limited, 0.9)
    assert allowed[np.arange(5), found.actions].all()
    want = value_iteration(dense(cmdp)[0], np.where(allowed, reward, -1e9), 0.9)
    np.testing.assert_allclose(found.values, want.max(-1), atol=1e-11)
    assert 0 <= found.error < 1e-10


# ── policies ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
def test_policy_values_by_linear_algebra(seed):
    cmdp = random_cmdp(seed, 3, 5, 2, 0.95)
    reward, policy = random_reward(cmdp, seed), random_policy(cmdp, seed)
    chains = np.einsum("csa,csan->csn", policy, dense(cmdp))
    gained = np.einsum("csa,sa->cs", policy, reward)
    want = np.linalg.solve(np.eye(5) - 0.95 * chains, gained[..., None])[..., 0]
    np.testing.assert_allclose(evaluate_policy(cmdp, policy, reward), want, rtol=1e-12)
    blind = evaluate_policy(cmdp, policy[0], reward)
    np.testing.assert_allclose(blind[0], want[0], rtol=1e-12)
    assert np.abs(blind[1] - want[1]).max() > 1e-3


# ── successor features ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("num_features", [2, 30])  # solved by column, by row
@pytest.mark.parametrize("seed", range(2))
def test_successor_features_by_hand(num_features, seed):
    cmdp = random_cmdp(seed, 2, 4, 2, 0.9)
    features = np.random.default_rng(seed).normal(size=(4, 2, num_features))
    policy = random_policy(cmdp, seed)
    found = successor_features(with_features(cmdp, features), policy)
    for context, table in enumerate(dense(cmdp)):
        want = followed_by_hand(table, policy[context], features, 0.9)
        np.testing.assert_allclose(found[context], want, atol=1e-11)


@pytest.mark.parametrize("seed", range(2))
def test_one_hot_successor_features(seed):
    cmdp = random_cmdp(seed, 2, 4, 2, 0.9, sparsity=0.5)
    policy = random_policy(cmdp, seed)
    found = successor_features(cmdp, policy)
    features = np.repeat(np.eye(4)[:, None], 2, 1)
    for context, table in enumerate(dense(cmdp)):
        want = followed_by_hand(table, policy[context], features, 0.9)
        np.testing.assert_allclose(found[context], want, atol=1e-11)
    np.testing.assert_allclose(found.sum(-1), 1 / (1 - 0.9), rtol=1e-12)


def test_three_state_successor_features_are_the_papers():
    cmdp = envs.make("three-state")
    assert cmdp.task is not None
    found = successor_features(cmdp, plan(cmdp, cmdp.task.reward).policy)
    s0, s1, s2 = np.eye(3)
    later = 0.99 / (1 - 0.99)
    for context in range(2):
        np.testing.assert_allclose(found[context, 0, context], s0 + later * s1, atol=1e-10)
        np.testing.assert_allclose(found[context, 0, 1 - context], s0 + later * s2, atol=1e-10)
        for action in range(2):
            np.testing.assert_allclose(found[context, 1, action], s1 / (1 - 0.99), atol=1e-10)
            np.testing.assert_allclose(found[context, 2, action], s2 / (1 - 0.99), atol=1e-10)


@pytest.mark.parametrize("num_features", [1, 3, 40])
@pytest.mark.parametrize("seed", range(3))
def test_successor_features_times_weights_are_the_optimal_action_values(num_features, seed):
    rng = np.random.default_rng(seed)
    cmdp = with_features(random_cmdp(seed, 3, 5, 2, 0.95), rng.normal(size=(5, 2, num_features)))
    weights = rng.normal(size=num_features)
    reward = (cmdp.feature_matrix() @ weights).reshape(5, 2)
    found = plan(cmdp, reward)
    psi = successor_features(cmdp, found.policy)
    np.testing.assert_allclose(psi @ weights, found.action_values, atol=1e-10)


@pytest.mark.parametrize("states", [[2], [3, 0], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("num_features", [1, 9, 40])
def test_successor_features_of_some_states(states, num_features):
    """Each of these shapes is solved by row or by column; both give the rows of the whole."""
    rng = np.random.default_rng(0)
    cmdp = with_features(random_cmdp(0, 2, 5, 2, 0.9), rng.normal(size=(5, 2, num_features)))
    policy = random_policy(cmdp, 0)
    whole = successor_features(cmdp, policy)
    found = successor_features(cmdp, policy, np.array(states))
    np.testing.assert_allclose(found, whole[:, states], atol=1e-11)


def test_rows_and_columns_agree_where_the_krylov_method_is_used():
    """Above 400 states linear systems are solved iteratively, rows of Ψ by the transposed one."""
    cmdp = slippery_grid(24)
    reward = np.random.default_rng(0).normal(size=cmdp.num_states)
    policy = plan(cmdp, reward).policy
    states = np.array([0, 300, 575])
    by_row = successor_features(cmdp, policy, states)
    features = np.random.default_rng(1).normal(size=(cmdp.num_states, 4, 2))
    by_column = successor_features(with_features(cmdp, features), policy, states)
    # Σ_s Ψ(·, s) ν(s, π(s)) differs from Ψ of ν only in the first step's action.
    followed = np.einsum("sa,sad->sd", policy[0], features)
    expected = by_row @ followed
    first = features[states] - followed[states][:, None]
    np.testing.assert_allclose(by_column, expected + first[None], atol=1e-8)


# ── large problems ───────────────────────────────────────────────────────────────────────────────


def slippery_grid(side: int) -> TabularCMDP:
    """A grid with four moves that go astray to either side one time in five."""
    row, column = np.divmod(np.arange(side * side), side)
    moves = [(-1, 0), (0, 1), (1, 0), (0, -1)]
    after = np.stack(
        [
            np.clip(row + down, 0, side - 1) * side + np.clip(column + across, 0, side - 1)
            for down, across in moves
        ],
        axis=1,
    )
    turns = np.arange(4)[:, None] + [0, 1, -1]
    successors = after[:, turns % 4]
    probabilities = np.broadcast_to([0.8, 0.1, 0.1], (1, *successors.shape))
    start = np.eye(1, side * side)[0]
    return TabularCMDP(Transitions(successors, probabilities.copy()), [1.0], start, gamma=0.99)


def random_graph(num_states: int) -> TabularCMDP:
    rng = np.random.default_rng(0)
    successors = rng.integers(num_states, size=(num_states, 3, 4))
    probabilities = rng.dirichlet(np.ones(4), (1, num_states, 3))
    start = np.eye(1, num_states)[0]
    return TabularCMDP(Transitions(successors, probabilities), [1.0], start, gamma=0.99)


@pytest.mark.parametrize("kind", ["grid", "graph"])
def test_ten_thousand_states(kind):
    cmdp = slippery_grid(100) if kind == "grid" else random_graph(10_000)
    reward = np.random.default_rng(1).normal(size=(cmdp.num_states, cmdp.num_actions))
    found = plan(cmdp, reward)
    successors, probabilities = cmdp.transitions
    onward = (probabilities[0] * found.values[0][successors]).sum(-1)
    optimal = (reward + 0.99 * onward).max(-1)
    assert np.abs(optimal - found.values[0]).max() < 1e-8
    np.testing.assert_allclose(found.policy.sum(-1), 1)


def test_long_chains_are_solved_too():
    """Deterministic chains defeat the Krylov method; the answer must not depend on it."""
    size, gamma = 3_000, 0.999
    chain = sparse.csr_matrix(
        (np.ones(size), (np.arange(size), np.minimum(np.arange(size) + 1, size - 1)))
    )
    reward = np.zeros(size)
    reward[-1] = 1
    found = planning.solve_bellman(chain, reward, gamma)
    want = gamma ** np.arange(size)[::-1] / (1 - gamma)
    np.testing.assert_allclose(found, want, rtol=1e-9)
