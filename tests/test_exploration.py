"""Rescaling, the cost of exploration, and the predictive reward, by hand and by sampling."""

import dataclasses
import warnings
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike
from problems import permute_states, random_cmdp
from scipy import integrate, optimize

from bigtrain import CostOfExploration, Fixed, KPrior, MaximumEntropy, Uniform, envs
from bigtrain.errors import CMDPError, ConfigError
from bigtrain.exploration import PredictiveReward, check_settings, predictive_reward, rescale
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import solve_bayes
from bigtrain.problem import CMDP
from bigtrain.reward.irl import RewardPosterior

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
        Fixed([[0.0], [-10.5]]),
        MaximumEntropy(0.0, -10.5, 1.0),
        MaximumEntropy(0.5, 0.0, 1.001),
        MaximumEntropy([0.1, 0.2, 0.3], [0.0, 0.1, -10.1], 0.9),
    ],
)
def test_k_must_keep_within_the_range(k):
    with pytest.raises(ConfigError, match=r"`k` must lie from r_min/r_max = -10 to 1"):
        tiger_reward(CostOfExploration(["T1", "T2"], k=k))


def test_k_at_the_edges_of_the_range():
    lowest = tiger_reward(CostOfExploration(["T1"], k=Fixed(-10.0))).table()
    np.testing.assert_array_equal(lowest[T1], -100)
    # −0.3 / 0.1 comes out above −3.
    lowest = tiger_reward(CostOfExploration(["T1"], k=Fixed(-3.0)), reward_range=(-0.3, 0.1))
    np.testing.assert_allclose(lowest.table()[T1], -0.3)


@pytest.mark.parametrize("bounds", [(-2.0, 0.0), (-2.0, -1.0)])
def test_k_needs_a_positive_r_max(bounds):
    with pytest.raises(ConfigError, match="`r_max` must be positive"):
        tiger_reward(CostOfExploration(["T1"], k=Fixed(0.0)), reward_range=bounds)


def test_free_exploration_warns():
    with pytest.warns(UserWarning, match="the agent may never stop exploring"):
        tiger_reward(CostOfExploration(["T1"], k=Fixed(1.0)))
    with pytest.warns(UserWarning):
        tiger_reward(CostOfExploration(["T1"], k=Fixed([0.0, 1.0, 0.0])))
    with pytest.warns(UserWarning):
        tiger_reward(CostOfExploration(["T1"], k=MaximumEntropy([0.5, 0.5, 1.0], [0, 0, 1], 1.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiger_reward(CostOfExploration(["T1"], k=Fixed(0.999)))
        tiger_reward(CostOfExploration(["T1"], k=Uniform(0.0, 1.0)))
        tiger_reward(CostOfExploration(["T1"], k=MaximumEntropy(0.999, 0.0, 1.0)))


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


# ── p(k) of a mean and a support ─────────────────────────────────────────────────────────────────

PROBABILITIES = jnp.array([0.0, 0.02, 0.3, 0.5, 0.77, 0.999, 1.0])


def test_maximum_entropy_by_hand():
    """The density ∝ 4^−k on [0, 1] has F(k) = (1 − 4^−k) · 4/3 and the mean 1/ln 4 − 1/3."""
    root = 1 / np.log(4)
    for prior, turned in (
        (MaximumEntropy(root - 1 / 3, 0.0, 1.0), False),
        (MaximumEntropy(mean=4 / 3 - root, low=0.0, high=1.0), True),
    ):
        assert prior.variance == pytest.approx(root**2 - 4 / 9, rel=1e-12)
        want = -root * np.log1p(-np.array([0, 1 / 3, 1 / 2, 1]) * 3 / 4)
        assert want[1] == pytest.approx(0.5 * np.log2(4 / 3)) and want[3] == pytest.approx(1)
        found = prior.quantile(jnp.array([0, 1 / 3, 1 / 2, 1]))
        if turned:
            found = 1 - prior.quantile(jnp.array([1, 2 / 3, 1 / 2, 0]))
        np.testing.assert_allclose(found, want, atol=1e-6)


@pytest.mark.parametrize(
    "mean, low, high", [(0.3, 0.0, 1.0), (0.62, -0.4, 0.9), (-3.0, -10.0, 0.5), (0.05, -1.0, 1.0)]
)
def test_maximum_entropy_against_integration(mean, low, high):
    """The density is exp(λk), normalised by quadrature, with λ found by bisection."""

    def moment(rate: float, power: int, upto: float = high) -> float:
        return integrate.quad(lambda k: (k - mean) ** power * np.exp(rate * k), low, upto)[0]

    rate: Any = optimize.brentq(lambda rate: moment(rate, 1), -30, 30, xtol=1e-14)
    prior = MaximumEntropy(mean, low, high)
    assert prior.variance == pytest.approx(moment(rate, 2) / moment(rate, 0), rel=1e-8)
    for probability in (0.01, 0.2, 0.5, 0.9, 0.99):
        k = float(prior.quantile(jnp.asarray(probability)))
        # Float32 is good to 1e-7 of the widest support, the density at most 1 a tenth of it.
        assert moment(rate, 0, k) / moment(rate, 0) == pytest.approx(probability, abs=1e-5)


def test_maximum_entropy_has_the_greatest_entropy():
    """Any change of the density that keeps its mass and mean lowers −∫ p log p."""
    prior = MaximumEntropy(0.3, 0.0, 1.0)
    with jax.enable_x64(True):
        edges = np.asarray(prior.quantile(jnp.linspace(0, 1, 4001)))
    k, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    density = 1 / (4000 * width)
    assert k @ (density * width) == pytest.approx(0.3, abs=1e-6)

    def entropy(density):
        return -(density * np.log(density)) @ width

    constraints = np.stack([np.ones_like(k), k])
    for seed in range(5):
        waves = np.cos(np.random.default_rng(seed).normal(size=(1, 3)) * 9 * k[:, None]).sum(-1)
        kept = np.linalg.solve((constraints * width) @ constraints.T, (constraints * width) @ waves)
        change = waves - kept @ constraints
        for size in (-1e-2, 1e-2):
            changed = density + size * change
            assert (changed > 0).all() and k @ (changed * width) == pytest.approx(0.3, abs=1e-6)
            # To second order the loss is half of ∫ change² / density.
            loss = size**2 / 2 * (change**2 / density) @ width
            assert entropy(density) - entropy(changed) == pytest.approx(loss, rel=0.1)


def test_maximum_entropy_midway_is_uniform():
    uniform = Uniform(-1.0, 0.5)
    for offset in (0.0, 1e-15, -1e-15, 1e-9, -1e-9):
        prior = MaximumEntropy(-0.25 + offset, -1.0, 0.5)
        np.testing.assert_allclose(
            prior.quantile(PROBABILITIES), uniform.quantile(PROBABILITIES), atol=3e-7
        )
        assert prior.variance == pytest.approx(uniform.variance, rel=1e-12)


def test_maximum_entropy_is_smooth_about_the_middle():
    """Third differences of the variance: a seam between series and closed form would show."""
    means = np.linspace(0.45, 0.55, 2001)
    variances = MaximumEntropy(means, 0.0, 1.0).variance
    # Var = 1/12 − 3/5 d² + O(d⁴), at an offset d of at most 0.05.
    np.testing.assert_allclose(variances, 1 / 12 - 0.6 * (means - 0.5) ** 2, atol=1e-5)
    np.testing.assert_allclose(variances, variances[::-1], atol=1e-14)
    # The third derivative is below 1, the step 5e-5; closed forms round to 1e-14 and more.
    assert np.abs(np.diff(variances, 3)).max() < 2e-12


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-12, 1e-60, 1e-310])
def test_maximum_entropy_near_an_end_is_exponential(gap):
    prior = MaximumEntropy(gap, 0.0, 1.0)
    wide = max(gap, 1e-30)  # a narrower one stands for 0
    assert prior.variance == pytest.approx(wide**2, rel=1e-12, abs=0)
    assert prior.quantile(jnp.array([0.0, 1.0])).tolist() == [0, 1]
    found = prior.quantile(jnp.array([0.1, 0.5, 0.99]))
    np.testing.assert_allclose(found, -wide * np.log([0.9, 0.5, 0.01]), rtol=1e-5)
    mirrored = MaximumEntropy(-gap, -1.0, 0.0).quantile(jnp.array([0.9, 0.5, 0.01]))
    np.testing.assert_allclose(mirrored, -np.asarray(found), rtol=1e-5)


@pytest.mark.parametrize("mean", [1e-5, 0.02, 0.3, 0.4999, 0.5 - 1e-8, 0.5, 0.51, 0.8, 0.9999])
def test_maximum_entropy_keeps_its_mean_in_float32(mean):
    """Quantiles at 2²⁰ midpoints: the mean and the variance by quadrature."""
    prior = MaximumEntropy(mean, 0.0, 1.0)
    count = 2**20
    levels = (jnp.arange(count, dtype=jnp.float32) + 0.5) / count
    found = np.asarray(jax.jit(prior.quantile)(levels), np.float64)
    assert (np.diff(found) >= 0).all() and found.min() >= 0 and found.max() <= 1
    assert found.mean() == pytest.approx(mean, abs=1e-6 * min(mean, 1 - mean) + 1e-7)
    # The last of the midpoints leaves out a tail of 1e-5 of the variance; 1 is known to 6e-8.
    assert found.var() == pytest.approx(prior.variance, rel=2e-5, abs=1e-11)


def test_maximum_entropy_has_exactly_the_mean_given():
    for mean in (0.1, -0.7, 0.3333333333333333, 1e-300):
        assert MaximumEntropy(mean, -1.0, 1.0).mean == mean
    exploration = CostOfExploration(["T1"], k=MaximumEntropy(0.1, -3.0, 0.7))
    fixed = CostOfExploration(["T1"], k=Fixed(0.1))
    np.testing.assert_array_equal(tiger_reward(exploration).table(), tiger_reward(fixed).table())
    assert [float(end) for end in exploration.k.support] == [-3, 0.7]


@settings(deadline=None, max_examples=25)
@given(
    share=st.floats(1e-3, 1 - 1e-3),
    width=st.floats(1e-2, 10),
    shift=st.floats(-5, 5),
    turn=st.booleans(),
)
def test_maximum_entropy_moves_with_its_support(share, width, shift, turn):
    plain = MaximumEntropy(share, 0.0, 1.0)
    sign = -1 if turn else 1
    ends = sorted((shift, shift + sign * width))
    moved = MaximumEntropy(shift + sign * width * share, *ends)
    # The mean is rounded to 1e-15, and divided by the width and by its distance from an end.
    assert moved.variance == pytest.approx(width**2 * float(plain.variance), rel=1e-7)
    levels = 1 - PROBABILITIES if turn else PROBABILITIES
    np.testing.assert_allclose(
        moved.quantile(levels),
        shift + sign * width * np.asarray(plain.quantile(PROBABILITIES)),
        atol=1e-5 * width + 1e-6 * abs(shift),
    )


def test_maximum_entropy_of_many_pairs():
    mean, high = np.array([[0.2], [0.3]]), np.array([0.4, 0.6, 1.0])
    prior = MaximumEntropy(mean, 0.1, high)
    assert prior.mean.shape == prior.variance.shape == (2, 3)
    quantiles = prior.quantile(jnp.full((2, 3), 0.3))
    for row, column in np.ndindex(2, 3):
        single = MaximumEntropy(float(mean[row, 0]), 0.1, float(high[column]))
        assert prior.mean[row, column] == single.mean
        assert prior.variance[row, column] == pytest.approx(single.variance, rel=1e-12)
        want = float(single.quantile(jnp.asarray(0.3)))
        assert float(quantiles[row, column]) == pytest.approx(want, rel=1e-6)
    table = tiger_reward(CostOfExploration(["T2", "T1"], k=prior)).table()
    np.testing.assert_array_equal(table[[T2, T1]], np.repeat(10 * mean, 3, 1))


def test_maximum_entropy_of_no_width_is_fixed():
    prior = MaximumEntropy([0.3, 0.5], [0.3, 0.0], [0.3, 1.0])
    assert prior.mean.tolist() == [0.3, 0.5] and prior.variance[0] == 0
    found = prior.quantile(jnp.array([[0.0], [0.2], [1.0]]))
    np.testing.assert_allclose(found, [[0.3, 0], [0.3, 0.2], [0.3, 1]], rtol=1e-6)


@pytest.mark.parametrize(
    "mean, low, high, message",
    [
        (0.5, 1.0, 0.0, "`low` must not exceed `high`, got 1.0 and 0.0"),
        (0.5, float("nan"), 1.0, "`low` must not exceed `high`"),
        (0.0, -float("inf"), 1.0, "`low` and `high` must be finite, got -inf and 1.0"),
        (1.5, 0.0, 1.0, "`mean` must lie between `low` and `high`.* got 1.5 for 0.0 to 1.0"),
        (-0.1, 0.0, 1.0, "`mean` must lie between"),
        (0.0, 0.0, 1.0, "at an end only where these are equal.*use `Fixed`"),
        (1.0, 0.0, 1.0, "at an end only"),
        ([0.5, 1.0], 0.0, 1.0, "at an end only"),
        (float("nan"), 0.0, 1.0, "`mean` must lie between"),
        (0.5, [0.0, 0.0], [1.0] * 3, r"`low` and `high` must fit each other.*\(2,\) and \(3,\)"),
        (
            [0.5] * 2,
            [0.0] * 3,
            1.0,
            r"`mean`, `low` and `high` must fit each other, got the shapes \(2,\), \(3,\) and \(\)",
        ),
    ],
)
def test_maximum_entropy_errors(mean, low, high, message):
    with pytest.raises(ConfigError, match=message):
        MaximumEntropy(mean, low, high)


def test_maximum_entropy_is_frozen():
    prior: Any = MaximumEntropy(0.3, 0.0, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        prior.low = 0.1
    assert prior == MaximumEntropy(0.3, 0.0, 1.0) != MaximumEntropy(0.4, 0.0, 1.0)


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
        CostOfExploration(["T1"], [1, 0], MaximumEntropy([0.4, -4.0], [0.0, -9.0], 0.5)),
    ],
    ids=["none", "uniform", "pairs", "fixed", "maximum entropy"],
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


# ── one pair ─────────────────────────────────────────────────────────────────────────────────────


class Coin(KPrior):
    """A prior of one's own: k is −1 with probability 3/4, otherwise 1/2."""

    @property
    def mean(self) -> Float[np.ndarray, "..."]:
        return np.asarray(-0.625)

    @property
    def variance(self) -> Float[np.ndarray, "..."]:
        return np.asarray(1.5**2 * 3 / 16)

    @property
    def support(self) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        return np.asarray(-1.0), np.asarray(0.5)

    def quantile(self, probability: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(probability < 0.75, -1.0, 0.5)


def draw(reward: PredictiveReward, states: Any, actions: ArrayLike, count: int) -> np.ndarray:
    """Samples [sample, pair] of pairs given by two batches, each with a key of its own."""
    actions = jnp.asarray(actions)
    keys = jax.random.split(jax.random.key(7), (count, len(actions)))
    sample = jax.vmap(jax.vmap(reward.sample), (0, None, None))
    return np.asarray(jax.jit(sample)(keys, states, actions), np.float64)


def check_samples(drawn: np.ndarray, mean: np.ndarray, variance: np.ndarray):
    """Within five standard errors, and float32's 1e-6 of the largest sample."""
    count, slack = len(drawn), 1e-6 * np.abs(drawn).max()
    assert (np.abs(drawn.mean(0) - mean) <= 5 * np.sqrt(variance / count) + slack).all()
    assert (np.abs(drawn.var(0) - variance) <= 5 * variance * np.sqrt(2 / count) + slack).all()


@pytest.mark.parametrize(
    "exploration",
    [
        None,
        CostOfExploration(["T2", "S0"], ["listen", 0], Uniform([[-1.0, 0.0], [0.2, 0.3]], 0.9)),
        CostOfExploration(["T2", "T1"], k=MaximumEntropy([[-1.0], [0.3]], -2.0, 0.5)),
        CostOfExploration(["T1"], k=Coin()),
    ],
    ids=["none", "pairs", "states", "own"],
)
def test_one_pair_agrees_with_the_tables(exploration):
    reward = tiger_reward(exploration)
    states, actions = (jnp.asarray(index.ravel()) for index in np.indices((6, 3)))

    @eqx.filter_jit
    def ask(reward, states, actions):
        return [jax.vmap(f)(states, actions) for f in (reward.mean, reward.variance)]

    found = [np.reshape(part, (6, 3)) for part in ask(reward, states, actions)]
    np.testing.assert_allclose(found[0], reward.table(), rtol=1e-5)
    np.testing.assert_allclose(found[1], reward.variance_table(), rtol=1e-5)
    explores = np.reshape(jax.jit(jax.vmap(reward.is_exploring))(states, actions), (6, 3))
    want = np.zeros((6, 3), bool) if exploration is None else exploration.mask(TIGER)
    np.testing.assert_array_equal(explores, want)
    drawn = draw(reward, states, actions, 4_000)
    check_samples(drawn, reward.table().ravel(), reward.variance_table().ravel())


def test_a_prior_of_ones_own_is_drawn_from():
    reward = tiger_reward(CostOfExploration(["T1"], k=Coin()))
    drawn = draw(reward, jnp.array([T1, S0]), [2, 2], 4_000)
    values, counts = np.unique(drawn[:, 0], return_counts=True)
    assert values.tolist() == [-10, 5] and abs(counts[0] / 4_000 - 0.75) < 5 * np.sqrt(3 / 16 / 4e3)
    assert len(np.unique(drawn[:, 1])) > 3_900
    tables = np.asarray(reward.sample_tables(jax.random.key(0), 100))
    assert np.unique(tables[:, T1]).tolist() == [-10, 5]


# ── problems that are not finite ─────────────────────────────────────────────────────────────────


class Spot(NamedTuple):
    """A place on a line, and whether something was heard there; arrays, or batches of them."""

    position: Any
    heard: Any


@final
class Walk(CMDP):
    """A random walk that drifts with the context; the third action stays, and hears something."""

    context_prior: Any
    gamma: float = 0.9
    offset: float = 0.0

    @property
    def num_actions(self) -> int:
        return 3

    def reset(self, key, context) -> Spot:
        return Spot(jax.random.normal(key), jnp.asarray(False))

    def step(self, key, state, action, context) -> Spot:
        move = jnp.array([-1.0, 1.0, 0.0])[action] + 0.1 * (context + jax.random.normal(key))
        return Spot(state.position + move, action == 2)

    def observe(self, state: Spot) -> Float[Array, " coordinate"]:
        return state.position[None]

    def features(self, state: Spot, action: Int[Array, ""]) -> Float[Array, " feature"]:
        place = state.position
        return jnp.stack([place, place**2 * (action == 1), state.heard + self.offset])


WALK = Walk(np.array([0.5, 0.5]))
SPOTS = Spot(np.linspace(-2, 3, 11, dtype=np.float32), np.arange(11) % 3 == 0)
WALK_POSTERIOR = posterior([1.0, -0.4, 0.5])
HEARD = CostOfExploration(lambda spot: spot.heard, [2], Uniform(-1.0, 0.5))


def walk_features() -> np.ndarray:
    """ν of `SPOTS` and every action, in plain numpy."""
    place, heard = (np.asarray(part, np.float64) for part in SPOTS)
    table = np.zeros((11, 3, 3))
    table[..., 0], table[:, 1, 1], table[..., 2] = place[:, None], place**2, heard[:, None]
    return table


def walk_reward(exploration: CostOfExploration | None = None, **options) -> PredictiveReward:
    given = {"reward_range": (-4.0, 2.0), "exploration": exploration, "states": SPOTS, **options}
    return predictive_reward(WALK, WALK_POSTERIOR, **given)


def all_pairs() -> tuple[Spot, Int[Array, " pair"]]:
    """`SPOTS` and every action, states first."""
    states, actions = np.indices((11, 3)).reshape(2, -1)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[states]), SPOTS), jnp.asarray(actions)


def on_every_pair(method) -> np.ndarray:
    return np.reshape(jax.jit(jax.vmap(method))(*all_pairs()), (11, 3))


def test_a_problem_that_is_not_finite_against_numpy():
    features, (weights, covariance) = walk_features(), WALK_POSTERIOR
    plain = features @ weights
    scale = 6 / (plain.max() - plain.min())
    inferred = -4 + scale * (plain - plain.min())
    spread = scale**2 * np.einsum("sad,de,sae->sa", features, covariance, features)
    reward = walk_reward()
    np.testing.assert_allclose(reward.weights, scale * weights, rtol=1e-12)
    assert reward.bias == pytest.approx(-4 - scale * plain.min())
    # Float32, of a range of 6.
    np.testing.assert_allclose(on_every_pair(reward.mean), inferred, atol=3e-6)
    np.testing.assert_allclose(on_every_pair(reward.variance), spread, rtol=1e-5, atol=1e-5)
    assert not on_every_pair(reward.is_exploring).any()

    reward = walk_reward(HEARD)
    explores = np.zeros((11, 3), bool)
    explores[::3, 2] = True
    mean, variance = np.where(explores, -0.5, inferred), np.where(explores, 4 * 1.5**2 / 12, spread)
    np.testing.assert_array_equal(on_every_pair(reward.is_exploring), explores)
    np.testing.assert_allclose(on_every_pair(reward.mean), mean, atol=3e-6)
    np.testing.assert_allclose(on_every_pair(reward.variance), variance, rtol=1e-5, atol=1e-5)
    drawn = draw(reward, *all_pairs(), 4_000)
    check_samples(drawn, mean.ravel(), variance.ravel())
    assert (-2 <= drawn[:, explores.ravel()]).all() and (drawn[:, explores.ravel()] <= 1).all()


def test_the_range_is_that_of_the_states_given():
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(11), 2))
    shuffled = jax.tree.map(lambda leaf: leaf[order], SPOTS)
    again = walk_reward(states=shuffled)
    np.testing.assert_array_equal(again.weights, walk_reward().weights)
    assert again.bias == walk_reward().bias
    fewer = walk_reward(states=jax.tree.map(lambda leaf: leaf[4:8], SPOTS))
    inside = on_every_pair(fewer.mean)[4:8]
    np.testing.assert_allclose([inside.min(), inside.max()], [-4, 2], atol=3e-6)
    assert on_every_pair(fewer.mean).min() < -4.1


def test_k_of_each_action_where_the_problem_is_not_finite():
    for k in (
        MaximumEntropy([0.3, -1.5], [0.0, -2.0], 0.5),
        MaximumEntropy([[0.3, -1.5]], [[0.0, -2.0]], 0.5),
    ):
        reward = walk_reward(CostOfExploration(lambda spot: spot.position > 1.2, [2, 0], k))
        means, variances = on_every_pair(reward.mean), on_every_pair(reward.variance)
        np.testing.assert_allclose(means[7:, [2, 0]], [[0.6, -3.0]] * 4, rtol=1e-6)
        np.testing.assert_allclose(variances[7:, [2, 0]], [4 * k.variance.ravel()] * 4, rtol=1e-6)
        np.testing.assert_array_equal(means[:7], on_every_pair(walk_reward().mean)[:7])
        np.testing.assert_array_equal(means[:, 1], on_every_pair(walk_reward().mean)[:, 1])
    drawn = draw(reward, Spot(jnp.full(2, 2.0), jnp.full(2, False)), [2, 0], 4_000)
    check_samples(drawn, np.array([0.6, -3.0]), 4 * k.variance.ravel())
    assert drawn[:, 0].min() >= 0 and drawn[:, 1].max() <= 1


def test_a_reward_that_is_certain_is_drawn_as_it_is():
    """Where ν·Σν = 0, float32 makes it a little more or less; less must not become NaN."""
    spot, action = Spot(jnp.asarray(1.7), jnp.asarray(True)), jnp.asarray(1)
    features = np.asarray(WALK.features(spot, action))
    certain = np.cross(features.astype(np.float64), np.random.default_rng(0).normal(size=(50, 3)))
    covariances = np.einsum("nd,ne->nde", certain, certain)
    rounded = covariances.astype(np.float32)
    assert (features @ rounded @ features < 0).any(), "nothing to see: take another seed"

    plain = walk_reward()

    def ask(covariance, key):
        reward = eqx.tree_at(lambda reward: reward.covariance, plain, covariance)
        drawn = reward.sample(key, spot, action)
        return reward.variance(spot, action), drawn - reward.mean(spot, action)

    keys = jax.random.split(jax.random.key(0), 50)
    variances, errors = jax.jit(jax.vmap(ask))(jnp.asarray(covariances), keys)
    assert (0 <= variances).all() and (variances < 1e-4).all()
    assert (abs(errors) < 0.05).all()


@final
class Opaque(CMDP):
    """A finite problem that does not say so."""

    inner: TabularCMDP
    context_prior: Any
    gamma: float = 0.99

    @property
    def num_actions(self) -> int:
        return self.inner.num_actions

    def reset(self, key, context):
        return self.inner.reset(key, context)

    def step(self, key, state, action, context):
        return self.inner.step(key, state, action, context)

    def observe(self, state):
        return self.inner.observe(state)

    def features(self, state, action):
        return self.inner.features(state, action)


def test_a_finite_problem_comes_out_the_same_either_way():
    opaque = Opaque(inner=TIGER, context_prior=TIGER.context_prior)
    exploration = CostOfExploration(
        lambda s: (s == T1) | (s == T2), [2, 1], Uniform([-1.0, 0], 0.5)
    )
    found = predictive_reward(
        opaque,
        posterior(),
        reward_range=(-100.0, 10.0),
        exploration=exploration,
        states=np.arange(6),
    )
    want = tiger_reward(exploration)
    np.testing.assert_allclose(found.weights, want.weights, rtol=1e-12)
    pairs = [jnp.asarray(index.ravel()) for index in np.indices((6, 3))]
    for name in ("mean", "variance", "is_exploring"):
        np.testing.assert_array_equal(
            *(jax.jit(jax.vmap(getattr(reward, name)))(*pairs) for reward in (found, want))
        )
    drawn = [draw(reward, pairs[0], pairs[1], 10) for reward in (found, want)]
    np.testing.assert_array_equal(drawn[0], drawn[1])


@pytest.mark.parametrize(
    "exploration, message",
    [
        (CostOfExploration(["T1"]), r"`states` must be a predicate.* not finite, got \['T1'\]"),
        (CostOfExploration([0]), "`states` must be a predicate"),
        (CostOfExploration([]), "`states` must be a predicate"),
        (dataclasses.replace(HEARD, actions=[]), "must not be empty, got 0 actions"),
        (
            dataclasses.replace(HEARD, actions=["listen"]),
            "'listen' is not the name of an action. There are: a0, a1, a2",
        ),
        (dataclasses.replace(HEARD, actions=[3]), "from 0 to 2, got 3"),
        (dataclasses.replace(HEARD, actions=[-1]), "from 0 to 2, got -1"),
        (
            dataclasses.replace(HEARD, k=Fixed([[0.1], [0.2]])),
            r"or fit the 1 actions .* not finite, got the shape \(2, 1\)",
        ),
        (dataclasses.replace(HEARD, k=Fixed([0.1, 0.2])), r"not finite, got the shape \(2,\)"),
        (dataclasses.replace(HEARD, k=Fixed(-2.1)), "`k` must lie from r_min/r_max = -2 to 1"),
        (dataclasses.replace(HEARD, k=MaximumEntropy(0.0, -1.0, 1.1)), "`k` must lie from"),
    ],
)
def test_settings_are_checked_before_the_work_where_the_problem_is_not_finite(exploration, message):
    with pytest.raises((ConfigError, CMDPError), match=message):
        check_settings(WALK, (-4.0, 2.0), exploration)
    with pytest.raises((ConfigError, CMDPError), match=message):
        walk_reward(exploration)


def test_settings_that_hold_where_the_problem_is_not_finite():
    check_settings(WALK, (-4.0, 2.0), HEARD)
    check_settings(WALK, (-4.0, 2.0), None)
    with pytest.raises(ConfigError, match="`reward_range` must be"):
        check_settings(WALK, (2.0, -4.0), None)
    with pytest.raises(ConfigError, match="`r_max` must be positive"):
        check_settings(WALK, (-4.0, -2.0), HEARD)
    with pytest.warns(UserWarning, match="may never stop exploring"):
        walk_reward(dataclasses.replace(HEARD, k=Fixed(1.0)))


@pytest.mark.parametrize(
    "predicate, message",
    [
        (lambda spot: spot.position > 3, "none of the 11 `states` fulfils"),
        (lambda spot: False, "none of the 11 `states` fulfils"),
        (lambda spot: spot.position, r"one boolean for a state, got float32 of the shape \(\)"),
        (lambda spot: jnp.array([True, False]), r"got bool of the shape \(2,\)"),
    ],
)
def test_predicates_are_checked_on_the_states_given(predicate, message):
    exploration = CostOfExploration(predicate)
    check_settings(WALK, (-4.0, 2.0), exploration)
    with pytest.raises(ConfigError, match=message):
        walk_reward(exploration)


@pytest.mark.parametrize(
    "states, message",
    [
        (None, "`states` must be a batch .* not finite.* got none"),
        ((), r"got leading axes \[\]"),
        (Spot(np.zeros(0), np.zeros(0, bool)), r"got leading axes \[\(0,\)\]"),
        (Spot(np.zeros(3), np.zeros(2, bool)), r"got leading axes \[\(2,\), \(3,\)\]"),
        (Spot(np.zeros(()), np.zeros((), bool)), r"got leading axes \[\(\)\]"),
        (
            Spot(np.array([0.0, np.inf]), np.zeros(2, bool)),
            "state 1 of `states` has inf as feature 0 of action 0",
        ),
        (Spot(np.zeros(4), np.zeros(4, bool)), "has no scale"),
    ],
)
def test_states_that_occur_must_be_given(states, message):
    with pytest.raises(ConfigError, match=message):
        walk_reward(states=states)


def test_a_finite_problem_takes_no_states():
    with pytest.raises(ConfigError, match="`states` must be left out"):
        tiger_reward(states=np.arange(6))


@pytest.mark.parametrize(
    "ask",
    [
        lambda reward: reward.table(),
        lambda reward: reward.irl_table(),
        lambda reward: reward.variance_table(),
        lambda reward: reward.sample_tables(jax.random.key(0), 2),
    ],
)
def test_tables_are_of_finite_problems(ask):
    with pytest.raises(ConfigError, match="of finite problems only, and `Walk` is none"):
        ask(walk_reward(HEARD))


def test_a_mean_that_float32_would_lose_is_announced():
    """Features that share 10⁴, of weight 1/2, cancel against the bias: float32 has 7 digits."""
    shifted = Walk(WALK.context_prior, offset=1e4)
    options: dict[str, Any] = {"reward_range": (-4.0, 2.0), "states": SPOTS}
    with pytest.warns(UserWarning, match="off by 0.000.* of the reward range"):
        reward = predictive_reward(shifted, WALK_POSTERIOR, **options)
    off = np.abs(on_every_pair(reward.mean) - on_every_pair(walk_reward().mean)).max()
    assert 1e-5 < off / 6 < 1e-3
    with pytest.warns(UserWarning, match="Take out of the features"):
        predictive_reward(TIGER, posterior(WEIGHTS + 1e5), reward_range=(-100.0, 10.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictive_reward(Walk(WALK.context_prior, offset=10.0), WALK_POSTERIOR, **options)
        predictive_reward(TIGER, posterior(WEIGHTS + 100), reward_range=(-100.0, 10.0))


def test_nothing_compiles_twice():
    traces = []

    def explores(spot: Spot):
        traces.append(spot)
        return spot.heard

    reward = walk_reward(CostOfExploration(explores, k=MaximumEntropy(0.3, 0.0, 0.5)))
    step = eqx.filter_jit(lambda reward, key, spot, action: reward.sample(key, spot, action))
    counts = []
    for turn in range(4):
        spot = Spot(jnp.asarray(float(turn)), jnp.asarray(turn == 1))
        step(reward, jax.random.key(turn), spot, jnp.asarray(turn % 3))
        counts.append(len(traces))
    assert counts[0] == counts[-1] > 0
