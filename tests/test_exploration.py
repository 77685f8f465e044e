"""Rescaling, the cost of exploration, and the predictive reward, by hand and by sampling."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from problems import permute_states, random_cmdp

from bigtrain import CostOfExploration, Fixed, Uniform, envs
from bigtrain.cmdp import TabularCMDP
from bigtrain.errors import CMDPError, ConfigError
from bigtrain.exact import solve_bayes
from bigtrain.exploration import PredictiveReward, predictive_reward, rescale
from bigtrain.irl import RewardPosterior

TIGER = envs.make("tiger-treasure")
WEIGHTS = np.array([0.0, -2.0, -1.5, -4.0, 1.0, 3.0])
S0, T1, T2, TIGERS, GOLD, ST = range(6)


def posterior(mean: ArrayLike = WEIGHTS, scale: float = 1.0) -> RewardPosterior:
    size = np.size(mean)
    root = np.random.default_rng(0).normal(size=(size, size))
    return RewardPosterior(np.asarray(mean, float), scale**2 * (root @ root.T))


def tiger_reward(exploration: CostOfExploration | None = None, **options) -> PredictiveReward:
    given = {"reward_range": (-100.0, 10.0), "exploration": exploration, **options}
    return predictive_reward(TIGER, posterior(), **given)


# ── rescaling ────────────────────────────────────────────────────────────────────────────────────


def test_rescaling_by_hand():
    """−4 … 3 becomes −100 … 10: 110/7 a unit."""
    reward = tiger_reward()
    want = -100 + 110 / 7 * (WEIGHTS + 4)
    np.testing.assert_allclose(reward.table(), np.repeat(want[:, None], 3, 1), rtol=1e-12)
    np.testing.assert_allclose(reward.weights, 110 / 7 * WEIGHTS, rtol=1e-12)
    assert reward.bias == pytest.approx(-100 + 4 * 110 / 7)
    np.testing.assert_allclose(reward.covariance, (110 / 7) ** 2 * posterior().covariance)
    np.testing.assert_array_equal(reward.table(), reward.irl_table())


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**31 - 1),
    r_min=st.floats(-1e3, 1e3),
    width=st.floats(1e-3, 1e3),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-1e3, 1e3),
)
def test_rescaling_forgets_scale_and_shift(seed, r_min, width, scale, shift):
    table = np.random.default_rng(seed).normal(size=(4, 3))
    occurring = np.array([True, True, False, True])
    bounds = (r_min, r_min + width)
    found = [
        part.scale * given + part.shift
        for given in (table, scale * table + shift)
        for part in [rescale(given, occurring, bounds)]
    ]
    slack = 1e-9 * (abs(r_min) + width) * (1 + abs(shift) / scale)
    assert found[0][occurring].min() == pytest.approx(bounds[0], abs=slack)
    assert found[0][occurring].max() == pytest.approx(bounds[1], abs=slack)
    np.testing.assert_allclose(found[1], found[0], atol=slack)


def test_only_state_actions_that_occur_set_the_range():
    """The extremes are where nobody can be: never reached, or in a context of no prior only."""
    table = np.zeros((2, 5, 2, 5))
    table[:, 0, 0, 1] = table[:, 0, 1, 2] = 1
    table[:, [1, 2, 3, 4], :, [1, 2, 3, 4]] = 1
    table[1, 1, :, :] = np.eye(5)[4]  # only the second context leads on to state 4
    cmdp = TabularCMDP(table, [1.0, 0.0], [1.0, 0, 0, 0, 0], gamma=0.9)
    reward = predictive_reward(
        cmdp, posterior([1.0, 2.0, 3.0, -50.0, 70.0]), reward_range=(-1.0, 1.0)
    )
    np.testing.assert_allclose(reward.table()[:3, 0], [-1, 0, 1], atol=1e-12)
    np.testing.assert_allclose(reward.table()[3:, 0], [-52, 68], atol=1e-9)
    likely = TabularCMDP(table, [0.5, 0.5], [1.0, 0, 0, 0, 0], gamma=0.9)
    wider = predictive_reward(
        likely, posterior([1.0, 2.0, 3.0, -50.0, 70.0]), reward_range=(-1.0, 1.0)
    )
    np.testing.assert_allclose(wider.table()[[0, 4], 0], [-1, 1], atol=1e-12)


def test_the_shift_is_a_bias_where_features_do_not_sum_to_one():
    """No ω makes the rescaled reward, since the features of s0 are 0 and its reward is not."""
    plain = random_cmdp(0, 2, 3, 2, 0.9)
    features = np.zeros((3, 2, 2))
    features[1, :, 0], features[2, 0, 1], features[2, 1] = 1, 1, [0.5, 2.0]
    cmdp = TabularCMDP(
        plain.transitions, plain.context_prior, plain.initial, gamma=0.9, features=features
    )
    reward = predictive_reward(cmdp, posterior([-1.0, 1.0]), reward_range=(0.0, 10.0))
    # ν·ω is 0, 0; −1, −1; 1, 1.5: from −1 … 1.5 to 0 … 10, four a unit.
    np.testing.assert_allclose(reward.table(), [[4, 4], [0, 0], [8, 10]], atol=1e-12)
    assert reward.bias == pytest.approx(4)
    np.testing.assert_allclose(reward.weights, [-4, 4])
    covariance = 16 * posterior([-1.0, 1.0]).covariance
    want = np.einsum("sad,de,sae->sa", features, covariance, features)
    np.testing.assert_allclose(reward.variance_table(), want, atol=1e-12)
    assert reward.variance_table()[0].tolist() == [0, 0], "the range counts as known"


def test_rescaling_leaves_the_policy():
    cmdp = random_cmdp(3, 2, 3, 2, 0.2)
    weights = np.array([0.3, -1.0, 0.7])
    reward = predictive_reward(cmdp, posterior(weights), reward_range=(-7.0, 40.0))
    scale = 47 / 1.7
    want = solve_bayes(cmdp, weights)
    found = solve_bayes(cmdp, reward.table())
    assert found.lower == pytest.approx(scale * want.lower + reward.bias / 0.8, abs=1e-4)


@pytest.mark.parametrize(
    "bounds",
    [(10.0, -100.0), (1.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0), (0.0, float("nan"))],
)
def test_reward_range_errors(bounds):
    with pytest.raises(ConfigError, match="`reward_range` must be"):
        tiger_reward(reward_range=bounds)


def test_a_constant_reward_has_no_scale():
    with pytest.raises(ConfigError, match="has no scale"):
        predictive_reward(TIGER, posterior(np.full(6, 0.7)), reward_range=(-100.0, 10.0))
    # Constant where the agent can be; what differs cannot be reached.
    table = np.zeros((1, 3, 1, 3))
    table[0, [0, 1, 2], 0, [1, 1, 2]] = 1
    cmdp = TabularCMDP(table, [1.0], [1.0, 0, 0], gamma=0.9)
    with pytest.raises(ConfigError, match="has no scale"):
        predictive_reward(cmdp, posterior([0.5, 0.5, 9.0]), reward_range=(0.0, 1.0))


# ── where exploring is done ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "states",
    [[T1, T2], ["T1", "T2"], ["T1", 2], (1, 2), lambda state: state in (1, 2)],
    ids=["index", "name", "mixed", "tuple", "predicate"],
)
def test_exploration_states(states):
    exploration = CostOfExploration(states, k=Fixed(-1.0))
    mask = exploration.mask(TIGER)
    assert mask.shape == (6, 3)
    assert np.argwhere(mask).tolist() == [[s, a] for s in (1, 2) for a in range(3)]
    plain, priced = tiger_reward().table(), tiger_reward(exploration).table()
    np.testing.assert_array_equal(priced[mask], -10)
    np.testing.assert_array_equal(priced[~mask], plain[~mask])


@pytest.mark.parametrize("actions", [["listen"], [2]])
def test_exploration_actions(actions):
    exploration = CostOfExploration(["S0", "T1", "T2"], actions, Fixed(0.5))
    assert np.argwhere(exploration.mask(TIGER)).tolist() == [[0, 2], [1, 2], [2, 2]]
    plain, priced = tiger_reward().table(), tiger_reward(exploration).table()
    np.testing.assert_array_equal(priced[:3, 2], 5)
    np.testing.assert_array_equal(priced[:, :2], plain[:, :2])


def test_k_may_differ_between_pairs():
    k = np.array([[-1.0, -2.0, -3.0], [0.1, 0.2, 0.3]])
    table = tiger_reward(CostOfExploration(["T2", "T1"], k=Fixed(k))).table()
    np.testing.assert_allclose(table[T2], 10 * k[0])  # in the order in which states were named
    np.testing.assert_allclose(table[T1], 10 * k[1])
    by_state = Fixed(np.array([[0.5], [-0.5]]))
    table = tiger_reward(CostOfExploration(["T1", "T2"], k=by_state)).table()
    np.testing.assert_allclose(table[[T1, T2]], [[5] * 3, [-5] * 3])
    by_action = Fixed([0.1, 0.2])
    table = tiger_reward(CostOfExploration(["T1", "T2"], [0, "listen"], by_action)).table()
    np.testing.assert_allclose(table[[T1, T2]][:, [0, 2]], [[1, 2], [1, 2]])
    np.testing.assert_allclose(table[:, 1], tiger_reward().table()[:, 1])


def test_exploration_follows_renamed_states():
    order = [3, 1, 0, 5, 4, 2]
    moved = permute_states(TIGER, order)
    exploration = CostOfExploration(["T1", "T2"], ["listen"], Fixed(0.5))
    np.testing.assert_array_equal(exploration.mask(moved), exploration.mask(TIGER)[order])


@pytest.mark.parametrize(
    "exploration, error, message",
    [
        (CostOfExploration([]), ConfigError, "must not be empty, got 0 states and 3 actions"),
        (CostOfExploration(lambda state: False), ConfigError, "must not be empty"),
        (CostOfExploration(["T1"], []), ConfigError, "got 1 states and 0 actions"),
        (CostOfExploration(["T3"]), CMDPError, "'T3' is not the name of a state"),
        (CostOfExploration([6]), CMDPError, "must be from 0 to 5, got 6"),
        (CostOfExploration([-1]), CMDPError, "must be from 0 to 5, got -1"),
        (CostOfExploration(["T1"], ["sing"]), CMDPError, "'sing' is not the name of an? action"),
    ],
)
def test_exploration_set_errors(exploration, error, message):
    with pytest.raises(error, match=message):
        tiger_reward(exploration)


@pytest.mark.parametrize(
    "k", [np.zeros((3, 3)), np.zeros((2, 2)), np.zeros(2), np.zeros((1, 2, 3, 1))]
)
def test_k_of_the_wrong_shape(k):
    with pytest.raises(
        ConfigError, match="`k` must be a number, or fit the 2 states and 3 actions"
    ):
        tiger_reward(CostOfExploration(["T1", "T2"], k=Fixed(k))).table()


# ── p(k) ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "k",
    [
        Fixed(-10.1),
        Fixed(1.001),
        Uniform(-11.0, 0.0),
        Uniform(0.0, 1.2),
        Fixed(float("nan")),
        Fixed([0.0, 0.5, 1.5]),
    ],
)
def test_k_must_keep_within_the_range(k):
    with pytest.raises(ConfigError, match=r"`k` must lie from r_min/r_max = -10 to 1"):
        tiger_reward(CostOfExploration(["T1", "T2"], k=k))


def test_k_at_the_edges_of_the_range():
    lowest = tiger_reward(CostOfExploration(["T1"], k=Fixed(-10.0))).table()
    np.testing.assert_array_equal(lowest[T1], -100)


@pytest.mark.parametrize("bounds", [(-2.0, 0.0), (-2.0, -1.0)])
def test_k_needs_a_positive_r_max(bounds):
    with pytest.raises(ConfigError, match="`r_max` must be positive"):
        tiger_reward(CostOfExploration(["T1"], k=Fixed(0.0)), reward_range=bounds)


def test_free_exploration_warns():
    with pytest.warns(UserWarning, match="the agent may never stop exploring"):
        tiger_reward(CostOfExploration(["T1"], k=Fixed(1.0)))
    with pytest.warns(UserWarning):
        tiger_reward(CostOfExploration(["T1"], k=Fixed([0.0, 1.0, 0.0])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiger_reward(CostOfExploration(["T1"], k=Fixed(0.999)))
        tiger_reward(CostOfExploration(["T1"], k=Uniform(0.0, 1.0)))


def test_uniform_prior():
    k = Uniform(-1.0, 0.5)
    assert k.mean == -0.25 and k.variance == pytest.approx(1.5**2 / 12)
    assert [float(edge) for edge in k.support] == [-1, 0.5]
    np.testing.assert_allclose(k.quantile(jnp.array([0, 0.5, 1])), [-1, -0.25, 0.5], atol=1e-6)
    table = tiger_reward(CostOfExploration(["T1", "T2"], k=k)).table()
    np.testing.assert_allclose(table[[T1, T2]], -2.5)


def test_uniform_of_no_width_is_fixed():
    for prior in (Uniform(0.3, 0.3), Fixed(0.3)):
        assert prior.mean == 0.3 and prior.variance == 0
        np.testing.assert_allclose(prior.quantile(jnp.array([0.1, 0.9])), 0.3, rtol=1e-6)


@pytest.mark.parametrize("low, high", [(0.5, 0.4), ([0.0, 0.5], [0.1, 0.4]), (float("nan"), 1.0)])
def test_uniform_must_not_be_reversed(low, high):
    with pytest.raises(ConfigError, match="`low` must not exceed `high`"):
        Uniform(low, high)


def test_default_prior_is_uniform_over_the_positive():
    assert CostOfExploration(["T1"]).k == Uniform(0.0, 1.0)
    assert tiger_reward(CostOfExploration(["T1"])).table()[T1].tolist() == [5, 5, 5]


# ── the distribution ─────────────────────────────────────────────────────────────────────────────


def test_variance_table_by_hand():
    reward = tiger_reward(CostOfExploration(["T1", "T2"], k=Uniform(-1.0, 0.5)))
    variance = reward.variance_table()
    np.testing.assert_allclose(variance[[T1, T2]], 100 * 1.5**2 / 12)
    scale = (110 / 7) ** 2
    want = scale * np.diag(posterior().covariance)
    for state in (S0, TIGERS, GOLD, ST):
        np.testing.assert_allclose(variance[state], want[state], rtol=1e-12)


@pytest.mark.parametrize(
    "exploration",
    [
        None,
        CostOfExploration(["T1", "T2"], k=Uniform(-1.0, 0.5)),
        CostOfExploration(["T2", "S0"], ["listen", 0], Uniform([[-1.0, 0.0], [0.2, 0.3]], 0.9)),
        CostOfExploration(["T1"], k=Fixed(0.5)),
    ],
    ids=["none", "uniform", "pairs", "fixed"],
)
def test_samples_have_the_mean_and_the_variance(exploration):
    reward = tiger_reward(exploration)
    count = 20_000
    drawn = np.asarray(reward.sample_tables(jax.random.key(0), count), np.float64)
    assert drawn.shape == (count, 6, 3)
    mean, variance = reward.table(), reward.variance_table()
    # Five standard errors; for the variance that of a Gaussian, the widest of the kinds here.
    # Float32 is good to 1e-6 of the largest sample.
    slack = 1e-6 * np.abs(drawn).max()
    assert (np.abs(drawn.mean(0) - mean) <= 5 * np.sqrt(variance / count) + slack).all()
    found = drawn.var(0)
    assert (np.abs(found - variance) <= 5 * variance * np.sqrt(2 / count) + slack).all()


def test_samples_are_whole_rewards():
    """Where a reward depends on the state, so does each sample; k is drawn for each pair."""
    reward = tiger_reward(CostOfExploration(["T1", "T2"], k=Uniform(-1.0, 0.5)))
    drawn = np.asarray(reward.sample_tables(jax.random.key(1), 100))
    for state in (S0, TIGERS, GOLD, ST):
        np.testing.assert_array_equal(drawn[:, state, 0], drawn[:, state, 2])
    assert (drawn[:, [T1, T2]] >= -10).all() and (drawn[:, [T1, T2]] <= 5).all()
    same = reward.sample_tables(jax.random.key(1), 100)
    np.testing.assert_array_equal(drawn, same)
    other = reward.sample_tables(jax.random.key(2), 100)
    assert (np.asarray(other) != drawn).any()


def test_mean_and_variance_of_one_pair_compile():
    reward = tiger_reward(CostOfExploration(["T1", "T2"], k=Uniform(-1.0, 0.5)))
    states, actions = jnp.arange(6), jnp.array([0, 1, 2, 0, 1, 2])
    means = jax.jit(jax.vmap(lambda s, a: reward.mean(s, a)))(states, actions)
    variances = jax.jit(jax.vmap(lambda s, a: reward.variance(s, a)))(states, actions)
    np.testing.assert_allclose(means, reward.table()[states, actions], rtol=1e-6)
    np.testing.assert_allclose(variances, reward.variance_table()[states, actions], rtol=1e-6)


def test_mean_does_not_depend_on_the_spread():
    """E[k] and ω* are all that the Bayes-optimal policy depends on."""
    narrow = CostOfExploration(["T1", "T2"], k=Fixed(0.2))
    wide = dataclasses.replace(narrow, k=Uniform(-0.5, 0.9))
    np.testing.assert_allclose(tiger_reward(narrow).table(), tiger_reward(wide).table(), rtol=1e-12)
    vague = predictive_reward(TIGER, posterior(scale=30.0), reward_range=(-100.0, 10.0))
    np.testing.assert_array_equal(vague.table(), tiger_reward().table())
