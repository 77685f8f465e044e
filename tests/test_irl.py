"""The reward posterior against plain sums, other optimisers, grids, and the paper's formulas."""

import functools
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from problems import dense, expert_data_of, permute_states, random_cmdp, relabel_contexts
from scipy import optimize, special

from bigtrain import Demonstrations, IRLConfig, envs
from bigtrain.errors import ConfigError, DemonstrationError, PlanningError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import inverse, map_reward, planning
from bigtrain.reward import irl
from bigtrain.reward.expert import ExpertData
from bigtrain.reward.irl import Evidence, RewardPosterior

Table = NDArray[np.float64]
EVIDENCE: list[Evidence] = ["transitions", "transitions-and-actions"]
SETTINGS: dict[str, Any] = {"temperature": 0.7, "prior_mean": 0.3, "prior_variance": 2.0}


def featured_cmdp(seed: int, num_features: int = 2, gamma: float = 0.8) -> TabularCMDP:
    plain = random_cmdp(seed, 2, 4, 2, gamma)
    features = np.random.default_rng([seed, 1]).normal(size=(4, 2, num_features))
    return TabularCMDP(
        plain.transitions, plain.context_prior, plain.initial, gamma=gamma, features=features
    )


def random_demonstrations(
    cmdp: TabularCMDP, seed: int, lengths: list[int], preference: Table | None = None
) -> Demonstrations:
    """Someone who acts at random, in contexts drawn from the prior."""
    rng = np.random.default_rng([seed, 2])
    table = dense(cmdp)
    shape = (cmdp.num_contexts, cmdp.num_states, cmdp.num_actions)
    policy = np.full(shape, 1 / cmdp.num_actions) if preference is None else preference
    observations, actions = [], []
    for length in lengths:
        context = rng.choice(cmdp.num_contexts, p=np.asarray(cmdp.context_prior))
        state = rng.choice(cmdp.num_states, p=np.asarray(cmdp.initial))
        observations.append(state)
        for _ in range(length):
            actions.append(rng.choice(cmdp.num_actions, p=policy[context, state]))
            state = rng.choice(cmdp.num_states, p=table[context, state, actions[-1]])
            observations.append(state)
    return Demonstrations(np.array(observations), np.array(actions), np.array(lengths))


def inclined_policy(cmdp: TabularCMDP, seed: int) -> Table:
    rng = np.random.default_rng([seed, 3])
    return rng.dirichlet(np.full(cmdp.num_actions, 0.5), (cmdp.num_contexts, cmdp.num_states))


def plain_log_posterior(
    weights: Table, psi: Table, cmdp: TabularCMDP, demos: Demonstrations, config: IRLConfig
) -> float:
    """A trajectory, a context, a step at a time. `psi` has a row for every state."""
    table = dense(cmdp)
    logits = psi @ weights / config.temperature
    log_policy = logits - special.logsumexp(logits, axis=-1, keepdims=True)
    total = 0.0
    for trajectory in demos:
        log_dynamics = np.log(np.asarray(cmdp.context_prior))
        log_actions = np.zeros(cmdp.num_contexts)
        steps = zip(
            trajectory.observations[:-1],
            trajectory.actions,
            trajectory.observations[1:],
            strict=True,
        )
        for state, action, following in steps:
            for context in range(cmdp.num_contexts):
                log_dynamics[context] += np.log(table[context, state, action, following])
                log_actions[context] += log_policy[context, state, action]
        if config.evidence == "transitions":
            total += special.softmax(log_dynamics) @ log_actions
        else:
            total += float(np.logaddexp.reduce(log_dynamics + log_actions))
    deviation = weights - config.prior_mean
    return float(total - (deviation**2).sum() / (2 * config.weight_variance))


def plain_derivatives(function, weights: Table, step: float = 1e-3) -> tuple[Table, Table]:
    """Gradient and Hessian by central differences of the fourth order."""
    offsets, first = [-2, -1, 1, 2], np.array([1, -8, 8, -1]) / (12 * step)
    size = len(weights)
    basis = step * np.eye(size)
    gradient = np.array([first @ [function(weights + k * e) for k in offsets] for e in basis])
    hessian = np.zeros((size, size))
    for i, j in itertools.product(range(size), repeat=2):
        values = [
            [function(weights + k * basis[i] + m * basis[j]) for m in offsets] for k in offsets
        ]
        hessian[i, j] = first @ np.array(values) @ first
    return gradient, hessian


@functools.cache
def example(seed: int, num_features: int = 2):
    """A problem, demonstrations of it, and the successor features of some policy."""
    cmdp = featured_cmdp(seed, num_features)
    demos = random_demonstrations(cmdp, seed, [3, 5, 1, 4, 6, 2, 5, 3], inclined_policy(cmdp, seed))
    reward = np.random.default_rng([seed, 4]).normal(size=(4, 2))
    psi = planning.successor_features(cmdp, planning.plan(cmdp, reward).policy)
    return cmdp, demos, psi, expert_data_of(cmdp, demos)


def visited(psi: Table, data: ExpertData) -> jax.Array:
    return jnp.asarray(psi[:, data.visited])


# ── the log posterior and its derivatives ────────────────────────────────────────────────────────


@pytest.mark.parametrize("evidence", EVIDENCE)
@pytest.mark.parametrize("seed", range(3))
def test_log_posterior_is_the_plain_sum(evidence, seed):
    cmdp, demos, psi, data = example(seed)
    config = IRLConfig(**SETTINGS, evidence=evidence)
    for weights in np.random.default_rng(seed).normal(size=(3, 2)):
        with jax.enable_x64(True):
            found = irl.log_posterior(jnp.asarray(weights), visited(psi, data), data, config)
        want = plain_log_posterior(weights, psi, cmdp, demos, config)
        assert float(found) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_derivatives(evidence, seed=0):
    """The gradient and Hessian that the search uses, by differentiation and by differences."""
    cmdp, demos, psi, data = example(seed)
    config = IRLConfig(**SETTINGS, evidence=evidence)
    weights = np.random.default_rng(seed).normal(size=2)
    gradient, hessian = plain_derivatives(
        lambda w: plain_log_posterior(w, psi, cmdp, demos, config), weights
    )
    with jax.enable_x64(True):
        given = (jnp.asarray(weights), visited(psi, data), data, config)
        by_jax = (
            eqx.filter_jit(jax.grad(irl.log_posterior))(*given),
            eqx.filter_jit(jax.hessian(irl.log_posterior))(*given),
        )
        own_gradient, own_precision = irl.log_posterior_derivatives(*given)
        covariance = irl.laplace_covariance(*given)
    np.testing.assert_allclose(by_jax[0], gradient, atol=1e-7)
    np.testing.assert_allclose(by_jax[1], hessian, atol=1e-5)
    np.testing.assert_allclose(own_gradient, gradient, atol=1e-7)
    np.testing.assert_allclose(covariance, np.linalg.inv(-hessian), rtol=1e-5)
    np.testing.assert_allclose(covariance, np.linalg.inv(-np.asarray(by_jax[1])), rtol=1e-9)
    if evidence == "transitions":
        np.testing.assert_allclose(own_precision, -hessian, atol=1e-5)
    else:  # expectation maximisation takes contexts as known, and its curvature for more
        assert np.linalg.eigvalsh(np.asarray(own_precision) + hessian).min() > -1e-5


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_the_sampled_gradient_is_right_on_average(evidence):
    """α times the gradient, with the likelihood scaled up and the prior counted once (eq. 3)."""
    _, _, psi, data = example(0)
    config = IRLConfig(**SETTINGS, evidence=evidence)
    weights = np.array([0.4, -0.7])
    keys = jax.random.split(jax.random.key(0), 20_000)
    with jax.enable_x64(True):
        rows = visited(psi, data)
        want = config.temperature * np.asarray(
            irl.log_posterior_derivatives(jnp.asarray(weights), rows, data, config)[0]
        )
        drawn = jax.vmap(
            lambda key: irl.sampled_gradient(key, jnp.asarray(weights), rows, data, config, 3)
        )(keys)
    drawn = np.asarray(drawn)
    error = drawn.std(0) / np.sqrt(len(drawn))
    assert (error > 0).all()
    np.testing.assert_array_less(np.abs(drawn.mean(0) - want), 5 * error)


def test_the_gradient_in_single_precision_where_experts_are_certain():
    """1 − p is far below rounding there, and p itself says nothing of it."""
    _, _, psi, data = example(0)
    config = IRLConfig(temperature=0.05, prior_variance=2.0)
    weights = np.array([3.0, -2.0])
    with jax.enable_x64(True):
        want, _ = irl.log_posterior_derivatives(
            jnp.asarray(weights), visited(psi, data), data, config
        )
        likelihood = np.asarray(want) + weights / config.weight_variance
    rounded = jax.tree.map(jnp.asarray, data)
    found, _ = irl.log_posterior_derivatives(
        jnp.asarray(weights, jnp.float32),
        visited(psi, data).astype(jnp.float32),
        rounded,
        config,
    )
    np.testing.assert_allclose(
        np.asarray(found, np.float64) + weights / config.weight_variance,
        likelihood,
        rtol=1e-4,
        atol=1e-4 * np.abs(likelihood).max(),
    )


def test_predictions_by_hand():
    posterior = RewardPosterior(np.array([1.0, -2.0]), np.array([[0.5, 0.1], [0.1, 0.3]]))
    mean, variance = posterior.predict(np.array([[1.0, 0.0], [2.0, 1.0]]))
    np.testing.assert_allclose(mean, [1, 0])
    np.testing.assert_allclose(variance, [0.5, 4 * 0.5 + 2 * 2 * 0.1 + 0.3])


def test_a_prior_mean_for_each_weight():
    config = IRLConfig(prior_mean=(1.0, -2.0))
    np.testing.assert_array_equal(config.prior_weights(2), [1, -2])
    np.testing.assert_array_equal(IRLConfig(prior_mean=3.0).prior_weights(2), [3, 3])
    with pytest.raises(ConfigError, match="one number or 3, one for each feature, got 2"):
        config.prior_weights(3)
    _, _, psi, data = example(0)
    with jax.enable_x64(True):  # hardly any variance: the prior mean is what comes out
        strong = IRLConfig(prior_mean=(1.0, -2.0), prior_variance=1e-9)
        found, _ = irl.map_estimate(visited(psi, data), data, strong, jnp.zeros(2))
    np.testing.assert_allclose(found, [1, -2], atol=1e-6)


def test_visit_counts_by_hand():
    """Two trajectories; the second is in context 1 with a probability of 3/4."""
    data = ExpertData(
        visited=np.array([1, 3]),
        rows=np.array([0, 1, 0, 0]),
        actions=np.array([1, 0, 1, 0]),
        trajectories=np.array([0, 0, 1, 1]),
        log_evidence=np.zeros((2, 2)),
    )
    counts = irl.visit_counts(data, jnp.array([[1.0, 0.0], [0.25, 0.75]]), 2)
    np.testing.assert_allclose(counts[0], [[0.25, 1.25], [1, 0]])
    np.testing.assert_allclose(counts[1], [[0.75, 0.75], [0, 0]])


def test_expert_data_by_hand():
    """In detour the way s0 → s2 → s3 fits both contexts, and s3 → s5 only the second."""
    cmdp = envs.make("detour")
    demos = Demonstrations(
        np.array([0, 2, 3, 0, 2, 3, 5, 0, 1, 0]), np.array([1, 0, 1, 1, 0, 0, 0]), [2, 3, 2]
    )
    data = expert_data_of(cmdp, demos)
    assert data.visited.tolist() == [0, 1, 2, 3]
    assert np.asarray(data.visited[data.rows]).tolist() == [0, 2, 0, 2, 3, 0, 1]
    assert data.actions.tolist() == [1, 0, 1, 1, 0, 0, 0]
    assert data.trajectories.tolist() == [0, 0, 1, 1, 1, 2, 2]
    want = [[np.log(0.9), np.log(0.1)], [-np.inf, np.log(0.1)], [np.log(0.9), -np.inf]]
    np.testing.assert_allclose(data.log_evidence, want)


# ── the maximum for fixed Ψ ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("evidence", EVIDENCE)
@pytest.mark.parametrize("num_features, seed", [(2, 0), (2, 1)])
def test_map_estimate_agrees_with_scipy(evidence, num_features, seed):
    cmdp, demos, psi, data = example(seed, num_features)
    config = IRLConfig(**SETTINGS, evidence=evidence)
    with jax.enable_x64(True):
        found, info = irl.map_estimate(visited(psi, data), data, config, jnp.zeros(num_features))
    want = optimize.minimize(
        lambda w: -plain_log_posterior(w, psi, cmdp, demos, config),
        np.zeros(num_features),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 5_000},
    )
    np.testing.assert_allclose(found, want.x, atol=1e-5)
    assert float(info.log_posterior) == pytest.approx(-want.fun, abs=1e-9)
    assert bool(info.converged) and float(info.gradient_norm) < 1e-6


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_map_estimate_is_the_best_of_a_grid(evidence):
    cmdp, demos, psi, data = example(0)
    config = IRLConfig(**SETTINGS, evidence=evidence)
    axis = np.linspace(-4, 4, 161)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    with jax.enable_x64(True):
        features = visited(psi, data)
        found, info = irl.map_estimate(features, data, config, jnp.zeros(2))
        values = jax.vmap(lambda w: irl.log_posterior(w, features, data, config))(jnp.asarray(grid))
    best = int(np.asarray(values).argmax())
    assert float(values[best]) <= float(info.log_posterior)
    assert np.abs(grid[best] - np.asarray(found)).max() <= axis[1] - axis[0]


@pytest.mark.parametrize("start", [-20.0, 20.0])
def test_map_estimate_does_not_depend_on_the_start(start):
    """For fixed Ψ the log posterior is concave."""
    _, _, psi, data = example(1)
    config = IRLConfig(temperature=0.01, prior_variance=100.0)
    with jax.enable_x64(True):
        found, info = irl.map_estimate(visited(psi, data), data, config, jnp.full(2, start))
        want, _ = irl.map_estimate(visited(psi, data), data, config, jnp.zeros(2))
    assert bool(info.converged)
    np.testing.assert_allclose(found, want, atol=1e-9)


def test_map_estimate_in_single_precision():
    _, _, psi, data = example(0)
    config = IRLConfig(**SETTINGS)
    with jax.enable_x64(True):
        want, _ = irl.map_estimate(visited(psi, data), data, config, jnp.zeros(2))
    found, _ = irl.map_estimate(visited(psi, data), data, config, jnp.zeros(2))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, want, atol=1e-4)


# ── the maximum with Ψ* recomputed ───────────────────────────────────────────────────────────────


def optimal_log_posterior(
    weights: Table, cmdp: TabularCMDP, demos: Demonstrations, config: IRLConfig
) -> float:
    """log p(ω | demonstrations) with the optimal action values of ω itself."""
    reward = (cmdp.feature_matrix() @ weights).reshape(cmdp.num_states, cmdp.num_actions)
    values = planning.plan(cmdp, reward).action_values
    return plain_log_posterior(np.ones(1), values[..., None], cmdp, demos, config) + (
        ((1 - np.asarray(config.prior_mean)) ** 2 - ((weights - config.prior_mean) ** 2).sum())
        / (2 * config.weight_variance)
    )


@pytest.mark.parametrize("evidence", EVIDENCE)
@pytest.mark.parametrize("seed", range(2))
def test_map_reward_is_the_best_of_a_grid(evidence, seed):
    cmdp, demos, _, _ = example(seed)
    config = IRLConfig(**SETTINGS, evidence=evidence)
    found = map_reward(cmdp, demos, config)
    weights = found.posterior.mean
    assert found.log_posterior == pytest.approx(
        optimal_log_posterior(weights, cmdp, demos, config), abs=1e-6
    )
    axis = np.linspace(-2.5, 2.5, 21)
    grid = [np.array(pair) for pair in itertools.product(axis, axis)]
    around = weights + 0.02 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]])
    best = max(optimal_log_posterior(w, cmdp, demos, config) for w in [*grid, *around])
    assert best <= found.log_posterior + 1e-6


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_map_reward_covariance(evidence):
    cmdp, demos, _, _ = example(0)
    config = IRLConfig(**SETTINGS, evidence=evidence)
    found = map_reward(cmdp, demos, config).posterior
    # Within one plan Q* is linear in ω, so differences of the whole function see the Hessian.
    _, hessian = plain_derivatives(
        lambda w: optimal_log_posterior(w, cmdp, demos, config), found.mean, 1e-3
    )
    np.testing.assert_allclose(found.covariance, np.linalg.inv(-hessian), rtol=1e-4)


@pytest.mark.parametrize("seed", [23, 40])
def test_map_reward_where_plans_tie(seed):
    """Here the maximum is on a ridge between two plans, and Ψ that of a mixture of them."""
    cmdp = random_cmdp(seed, 2, 4, 2, 0.8)
    demos = random_demonstrations(cmdp, seed, [4] * 6, inclined_policy(cmdp, seed))
    config = IRLConfig(temperature=0.7, prior_variance=2.0)
    found = map_reward(cmdp, demos, config)
    assert 1e-9 < found.mismatch <= 1e-3, "no tie: choose another seed"
    reached = optimal_log_posterior(found.posterior.mean, cmdp, demos, config)
    # An error of 1e-3 in each of 24 steps' log-probabilities.
    assert reached == pytest.approx(found.log_posterior, abs=24e-3)
    rng = np.random.default_rng(seed)
    for scale in (1e-3, 1e-2, 1e-1):
        for move in rng.normal(scale=scale, size=(20, 4)):
            beside = optimal_log_posterior(found.posterior.mean + move, cmdp, demos, config)
            assert beside <= reached + 24e-3


def test_map_reward_reports_and_explains_itself():
    cmdp, demos, _, _ = example(0)
    heard: list[tuple[int, float]] = []
    found = map_reward(cmdp, demos, IRLConfig(**SETTINGS), report=lambda *n: heard.append(n))
    assert [number for number, _ in heard] == list(range(1, found.num_rounds + 1))
    assert found.mismatch in [mismatch for _, mismatch in heard] and found.mismatch <= 1e-3


def test_map_reward_that_does_not_settle(monkeypatch):
    cmdp, demos, _, _ = example(0)
    monkeypatch.setattr(inverse, "_MAX_ROUNDS", 3)
    with pytest.raises(PlanningError, match="did not settle within 3 rounds"):
        map_reward(cmdp, demos, tolerance=-1.0)


# ── contexts ─────────────────────────────────────────────────────────────────────────────────────


def crossroads_demonstrations() -> Demonstrations:
    """By s1 in context 0 and by s2 in context 1, in turn, and then anything."""
    actions = np.random.default_rng(0).integers(2, size=(20, 6))
    actions[:, 0] = np.arange(20) % 2
    states = np.full((20, 7), 3)
    states[:, 0], states[:, 1] = 0, 1 + actions[:, 0]
    return Demonstrations(states.ravel(), actions.ravel(), np.full(20, 6), np.arange(20) % 2)


def test_actions_tell_contexts_that_transitions_leave_open():
    """At the crossroads the way by s2 looks the same in both contexts, but only an expert in
    context 1 has a reason to take it."""
    cmdp, demos = envs.make("crossroads"), crossroads_demonstrations()
    found = {
        evidence: map_reward(cmdp, demos, IRLConfig(temperature=1.0, evidence=evidence))
        for evidence in EVIDENCE
    }
    from_transitions, from_both = (found[evidence].posterior.mean for evidence in EVIDENCE)
    assert np.abs(from_transitions - from_both).max() > 0.1 * np.abs(from_both).max()
    # p(θ = 1 | ω, τ) of an expert who went right is more than the prior once actions count.
    data = expert_data_of(cmdp, demos)
    with jax.enable_x64(True):
        reward = np.repeat(from_both[:, None], 2, 1)
        policy = planning.plan(cmdp, reward).policy
        psi = jnp.asarray(planning.successor_features(cmdp, policy, data.visited))
        log_policies = irl.log_policy(psi, jnp.asarray(from_both), 1.0)
        told = {
            evidence: jax.nn.softmax(irl.context_log_joint(data, log_policies, evidence))
            for evidence in EVIDENCE
        }
    np.testing.assert_allclose(told["transitions"][1::2], 0.5)
    assert (np.asarray(told["transitions-and-actions"][1::2, 1]) > 0.9).all()
    np.testing.assert_allclose(told["transitions-and-actions"][::2, 0], 1)  # s1 → s3 settles it


def test_both_kinds_of_evidence_agree_where_transitions_tell_all():
    """Opening a door in the three-state problem shows the context, whatever was wanted: the log
    posteriors differ by a constant."""
    cmdp, demos = envs.make("three-state"), three_state_demonstrations(10)
    psi = planning.successor_features(cmdp, np.full((2, 3, 2), 0.5))
    weights = np.random.default_rng(0).normal(scale=0.01, size=(4, 3))
    both = [
        log_posteriors(weights, psi, cmdp, demos, IRLConfig(evidence=evidence))
        for evidence in EVIDENCE
    ]
    np.testing.assert_allclose(both[1] - both[0], 10 * np.log(0.5), rtol=1e-9)
    assert np.ptp(both[0]) > 1


def test_contexts_in_demonstrations_are_not_read():
    cmdp, shown = envs.make("crossroads"), crossroads_demonstrations()
    assert shown.contexts is not None
    config = IRLConfig(temperature=1.0)
    with_contexts = map_reward(cmdp, shown, config)
    without = map_reward(cmdp, shown.without_contexts(), config)
    np.testing.assert_array_equal(with_contexts.posterior.mean, without.posterior.mean)
    np.testing.assert_array_equal(with_contexts.posterior.covariance, without.posterior.covariance)


def test_a_context_of_no_prior_cannot_be_named():
    """Left to itself it would make every context impossible, and the reward NaN."""
    cmdp = envs.make("three-state", prior=[1.0, 0.0])
    demos = Demonstrations(np.array([0, 1]), np.array([1]), [1], contexts=[1])
    with pytest.raises(DemonstrationError):
        map_reward(cmdp, demos)


# ── the prior ────────────────────────────────────────────────────────────────────────────────────


def log_posteriors(
    weights: Table, psi: Table, cmdp: TabularCMDP, demos: Demonstrations, config: IRLConfig
) -> Table:
    """The log posterior of each row of `weights`."""
    data = expert_data_of(cmdp, demos)
    with jax.enable_x64(True):
        found = [
            irl.log_posterior(jnp.asarray(row), visited(psi, data), data, config) for row in weights
        ]
        return np.array([float(value) for value in found])


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_the_prior_counts_once(evidence):
    """N ς₀² (Ψ − E Ψ) = ω − ω₀: twice the demonstrations and half the variance give twice the log
    posterior, with the same maximum and half the covariance."""
    cmdp, demos, psi, _ = example(0)
    twice = Demonstrations.concatenate([demos, demos])
    config = IRLConfig(**SETTINGS, evidence=evidence)
    halved = IRLConfig(**{**SETTINGS, "prior_variance": 1.0}, evidence=evidence)
    weights = np.random.default_rng(0).normal(size=(4, 2))
    want = log_posteriors(weights, psi, cmdp, demos, config)
    found = log_posteriors(weights, psi, cmdp, twice, halved)
    np.testing.assert_allclose(found, 2 * want, rtol=1e-12)


def test_cutting_trajectories_up_changes_nothing_where_the_context_is_known():
    """The prior counts once, not once a trajectory."""
    plain = random_cmdp(5, 1, 4, 2, 0.8)
    demos = random_demonstrations(plain, 5, [12], inclined_policy(plain, 5))
    observations = np.stack([demos.observations[:-1], demos.observations[1:]], -1).ravel()
    pieces = Demonstrations(observations, demos.actions, np.ones(12, int))
    psi = planning.successor_features(plain, inclined_policy(plain, 6))
    with jax.enable_x64(True):
        for weights in np.random.default_rng(5).normal(size=(3, 4)):
            whole, cut = (
                irl.log_posterior(jnp.asarray(weights), visited(psi, data), data, IRLConfig())
                for data in (expert_data_of(plain, demos), expert_data_of(plain, pieces))
            )
            assert float(whole) == pytest.approx(float(cut), rel=1e-12)


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_a_prior_mean_shifts_one_hot_weights(evidence):
    """A constant reward is no preference, so ω moves with the prior."""
    cmdp = random_cmdp(2, 2, 4, 2, 0.8)
    demos = random_demonstrations(cmdp, 2, [4] * 6, inclined_policy(cmdp, 2))
    psi = planning.successor_features(cmdp, inclined_policy(cmdp, 3))
    settings: dict[str, Any] = {"temperature": 0.7, "prior_variance": 2.0, "evidence": evidence}
    weights = np.random.default_rng(0).normal(size=(3, 4))
    want = log_posteriors(weights, psi, cmdp, demos, IRLConfig(**settings))
    moved = IRLConfig(**settings, prior_mean=1.7)
    np.testing.assert_allclose(
        log_posteriors(weights + 1.7, psi, cmdp, demos, moved), want, rtol=1e-12
    )


def test_weights_sum_to_the_prior_means():
    cmdp = random_cmdp(2, 2, 4, 2, 0.8)
    demos = random_demonstrations(cmdp, 2, [4] * 6, inclined_policy(cmdp, 2))
    config = IRLConfig(temperature=0.7, prior_variance=2.0, prior_mean=1.7)
    found = map_reward(cmdp, demos, config).posterior.mean
    assert found.sum() == pytest.approx(4 * 1.7, abs=1e-7)
    assert np.ptp(found) > 0.1


def test_a_strong_prior_outweighs_the_data():
    """ς₀² → 0: the demonstrations are ignored (section 4.2)."""
    cmdp, demos, _, _ = example(0)
    config = IRLConfig(temperature=0.7, prior_mean=0.3, prior_variance=1e-9)
    found = map_reward(cmdp, demos, config).posterior
    np.testing.assert_allclose(found.mean, 0.3, atol=1e-6)
    np.testing.assert_allclose(found.covariance, 0.7e-9 * np.eye(2), rtol=1e-5, atol=1e-15)


def test_states_that_no_expert_could_reach_keep_the_prior():
    """What is never seen, nor avoided, stays at the prior's mean and variance."""
    table = np.zeros((1, 4, 2, 4))
    table[0, [0, 1, 2], 0, [1, 1, 2]] = table[0, [0, 1, 2], 1, [2, 1, 2]] = 1
    table[0, 3, :, 3] = 1
    cmdp = TabularCMDP(table, [1.0], [1.0, 0, 0, 0], gamma=0.9)
    demos = Demonstrations(np.array([0, 1, 1]), np.array([0, 1]), [2])
    config = IRLConfig(temperature=0.1, prior_mean=0.5, prior_variance=3.0)
    found = map_reward(cmdp, demos, config).posterior
    assert found.mean[3] == pytest.approx(0.5, abs=1e-12)
    np.testing.assert_allclose(found.covariance[3], [0, 0, 0, 0.3], atol=1e-9)
    assert found.mean[1] > 0.5 > found.mean[2]


# ── the three-state family (appendix on temperature) ─────────────────────────────────────────────


def three_state_demonstrations(count: int) -> Demonstrations:
    """s0 → s1 by a1 in context 0 and by a2 in context 1, in turn."""
    return Demonstrations(np.tile([0, 1], count), np.arange(count) % 2, np.ones(count, int))


def three_state_weight(count: int, config: IRLConfig, gamma: float = 0.99) -> float:
    """ω(s1) = −ω(s2) from ω₁ = N ς₀² (γ/(1−γ)) (1 − p), p = σ(2 ω₁ γ/((1−γ) α))."""
    later = gamma / (1 - gamma)
    scale = count * config.prior_variance * later

    def excess(log_weight):
        weight = np.exp(log_weight)
        return log_weight - np.log(scale) + np.logaddexp(0, 2 * weight * later / config.temperature)

    found = optimize.root_scalar(excess, bracket=(-80, 80), xtol=1e-13)
    assert found.converged
    return float(np.exp(found.root))


def test_three_state_first_order_condition_and_its_limits():
    """Cold experts need hardly any reward to be explained; hot ones all that the prior allows."""
    cmdp, demos = envs.make("three-state"), three_state_demonstrations(10)
    weights = []
    for temperature in (1e-6, 0.01, 1e8):
        config = IRLConfig(temperature=temperature, prior_variance=2.0)
        found = map_reward(cmdp, demos, config).posterior.mean
        want = three_state_weight(10, config)
        np.testing.assert_allclose(found, [0, want, -want], rtol=1e-6, atol=1e-6 * want)
        weights.append(found[1])
    assert (np.diff(weights) > 0).all()
    assert weights[0] < 1e-6
    assert weights[-1] == pytest.approx(10 * 2.0 * 0.99 / (2 * (1 - 0.99)), rel=0.01)


def test_three_state_first_update():
    """The paper's first step from 0: ± γ N / (2(1−γ)) for s1 and s2, once times α."""
    cmdp, demos = envs.make("three-state"), three_state_demonstrations(10)
    data = expert_data_of(cmdp, demos)
    config = IRLConfig(temperature=0.2)
    policy = np.full((2, 3, 2), 0.5)
    with jax.enable_x64(True):
        psi = jnp.asarray(planning.successor_features(cmdp, policy, data.visited))
        gradient = np.asarray(jax.grad(irl.log_posterior)(jnp.zeros(3), psi, data, config))
    step = 10 * 0.99 / (2 * (1 - 0.99))
    np.testing.assert_allclose(0.2 * gradient, [0, step, -step], rtol=1e-9, atol=1e-9)


# ── the same problem, said differently ───────────────────────────────────────────────────────────


def renumbered(demos: Demonstrations, order: list[int]) -> Demonstrations:
    return Demonstrations(np.argsort(order)[demos.observations], demos.actions, demos.lengths)


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 30), order=st.permutations(range(4)))
def test_permuting_states(seed, order):
    cmdp = random_cmdp(seed, 2, 4, 2, 0.8)
    demos = random_demonstrations(cmdp, seed, [4] * 6, inclined_policy(cmdp, seed))
    config = IRLConfig(temperature=0.7, prior_variance=2.0)
    want = map_reward(cmdp, demos, config)
    found = map_reward(permute_states(cmdp, order), renumbered(demos, order), config)
    assume(max(found.mismatch, want.mismatch) < 1e-9)  # else plans tie, and it is found to 1e-3
    np.testing.assert_allclose(found.posterior.mean, want.posterior.mean[order], atol=1e-6)
    np.testing.assert_allclose(
        found.posterior.covariance, want.posterior.covariance[np.ix_(order, order)], atol=1e-6
    )


@pytest.mark.parametrize("evidence", EVIDENCE)
@pytest.mark.parametrize("seed", range(2))
def test_relabelling_contexts(seed, evidence):
    cmdp, demos, _, _ = example(seed)
    config = IRLConfig(**SETTINGS, evidence=evidence)
    want = map_reward(cmdp, demos, config).posterior
    found = map_reward(relabel_contexts(cmdp, [1, 0]), demos, config).posterior
    np.testing.assert_allclose(found.mean, want.mean, atol=1e-7)
    np.testing.assert_allclose(found.covariance, want.covariance, rtol=1e-6)


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_scaling_temperature_and_variance_scales_the_reward(evidence):
    """Q/α is what experts follow: with α, the prior's mean and its deviation doubled, so is ω."""
    cmdp, demos, psi, _ = example(0)
    config = IRLConfig(**SETTINGS, evidence=evidence)
    doubled = IRLConfig(temperature=1.4, prior_mean=0.6, prior_variance=4.0, evidence=evidence)
    weights = np.random.default_rng(0).normal(size=(4, 2))
    want = log_posteriors(weights, psi, cmdp, demos, config)
    found = log_posteriors(2 * weights, psi, cmdp, demos, doubled)
    np.testing.assert_allclose(found, want, rtol=1e-12)


# ── settings and samples ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["temperature", "prior_variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_config_refuses_what_is_not_positive(field, value):
    with pytest.raises(ConfigError, match=f"`{field}` must be positive, got {value}"):
        IRLConfig(**{field: value})


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_config_refuses_a_prior_mean_that_is_not_finite(value):
    with pytest.raises(ConfigError, match="`prior_mean` must be finite"):
        IRLConfig(prior_mean=value)


def test_weight_variance_is_temperature_times_prior_variance():
    assert IRLConfig(temperature=0.02, prior_variance=50.0).weight_variance == pytest.approx(1.0)


def test_posterior_samples():
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    posterior = RewardPosterior(np.array([1.0, -3.0]), covariance)
    drawn = np.asarray(posterior.sample(jax.random.key(0), 40_000))
    assert drawn.shape == (40_000, 2)
    # Standard errors of a mean and of a variance v are √(v/n) and v·√(2/n); four of them.
    np.testing.assert_allclose(drawn.mean(0), [1, -3], atol=4 * np.sqrt(2 / 40_000))
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=4 * 2 * np.sqrt(2 / 40_000))
