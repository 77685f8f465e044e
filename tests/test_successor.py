"""Successor features: losses by hand, and least squares against exact answers."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from problems import dense, random_cmdp

from bigtrain import envs
from bigtrain.errors import ConfigError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import planning
from bigtrain.learning.networks import NetworkConfig
from bigtrain.reward.successor import (
    Batch,
    Steps,
    SuccessorConfig,
    SuccessorNetwork,
    greedy_actions,
    losses,
    merge_ties,
    solve_head,
    td_errors,
)

Table = NDArray[np.float64]

FINE = SuccessorConfig(resolution=1e-3)
"""Random problems have actions that are nearly alike, and plans tell them apart."""
EXACT = SuccessorConfig(resolution=1e-3, ridge=1e-9, proximity=1e-10)
"""In float64 the least squares need next to nothing to steady them."""
ROUNDING = float(np.finfo(np.float32).eps)


def floats(values: ArrayLike) -> jax.Array:
    """In the precision that is switched on."""
    return jnp.asarray(values, jnp.result_type(float))


# ── problems as batches ──────────────────────────────────────────────────────────────────────────


def feature_table(cmdp: TabularCMDP) -> Table:
    return cmdp.feature_matrix().toarray().reshape(cmdp.num_states, cmdp.num_actions, -1)


def uneven(cmdp: TabularCMDP, seed: int, magnitudes: float) -> Table:
    """How much each (θ, s, a) counts, over some orders of magnitude."""
    shape = (cmdp.num_contexts, cmdp.num_states, cmdp.num_actions)
    return 10 ** np.random.default_rng([seed, 1]).uniform(-magnitudes, 0, shape)


def listed_steps(weights: Table) -> Steps:
    """Steps from a table [θ, s, a, s'] or [θ, s, a, s', a'], those that happen somewhere."""
    places = np.nonzero((weights > 0).any(0))
    parts = [jnp.asarray(part) for part in places]
    rows, actions, next_rows, *rest = parts
    counted = floats(weights[(slice(None), *places)])
    return Steps(rows, actions, next_rows, counted, rest[0] if rest else None)


def simulated_steps(cmdp: TabularCMDP, share: Table) -> Steps:
    """Every (s, a, s') in every context, as often as it comes."""
    return listed_steps(dense(cmdp) * share[..., None])


def expert_steps(cmdp: TabularCMDP, share: Table, policy: Table) -> Steps:
    """Every (s, a, s', a') in every context, as often as it comes to someone with `policy`."""
    return listed_steps((dense(cmdp) * share[..., None])[..., None] * policy[:, None, None])


def weightless(steps: Steps) -> Steps:
    return eqx.tree_at(lambda s: s.weights, steps, 0 * steps.weights)


def uniform(cmdp: TabularCMDP) -> Table:
    shape = (cmdp.num_contexts, cmdp.num_states, cmdp.num_actions)
    return np.full(shape, 1 / cmdp.num_actions)


def simulated_batch(cmdp: TabularCMDP, share: Table) -> Batch:
    """With an expert who says nothing."""
    someone = np.eye(cmdp.num_actions)[np.zeros(share.shape[:2], int)]
    return Batch(
        jnp.asarray(cmdp.observation_array()),
        floats(feature_table(cmdp)),
        weightless(expert_steps(cmdp, share, someone)),
        simulated_steps(cmdp, share),
    )


def expert_batch(cmdp: TabularCMDP, share: Table, policy: Table) -> Batch:
    """With a simulator that was not used."""
    return Batch(
        jnp.asarray(cmdp.observation_array()),
        floats(feature_table(cmdp)),
        expert_steps(cmdp, share, policy),
        weightless(simulated_steps(cmdp, share)),
    )


build = eqx.filter_jit(SuccessorNetwork)


def make_network(
    cmdp: TabularCMDP, width: int = 64, seed: int = 0, depth: int = 2
) -> SuccessorNetwork:
    return build(
        jnp.asarray(cmdp.observation_array()),
        num_contexts=cmdp.num_contexts,
        num_actions=cmdp.num_actions,
        num_features=cmdp.num_features,
        gamma=cmdp.gamma,
        config=NetworkConfig(width=width, depth=depth),
        key=jax.random.key(seed),
    )


def with_random_head(network: SuccessorNetwork, seed: int = 0) -> SuccessorNetwork:
    head = np.random.default_rng([seed, 2]).normal(size=network.head.shape)
    return eqx.tree_at(lambda n: n.head, network, floats(head))


solve = eqx.filter_jit(solve_head)


@eqx.filter_jit
def evaluate(network: SuccessorNetwork, batch: Batch) -> jax.Array:
    return network(batch.observations, batch.features)


@eqx.filter_jit
def see(network: SuccessorNetwork, batch: Batch) -> jax.Array:
    return network.hidden(batch.observations)


def solve_often(
    network: SuccessorNetwork,
    batch: Batch,
    weights: Table,
    config: SuccessorConfig,
    *,
    calls: int,
    num_steps: int,
) -> Table:
    """Ψ after some calls: each evaluates the policy that was greedy before it."""
    for _ in range(calls):
        network = solve(network, batch, floats(weights), config, num_steps=num_steps)
    return np.asarray(evaluate(network, batch), np.float64)


def optimal_features(cmdp: TabularCMDP, weights: Table) -> Table:
    plan = planning.plan(cmdp, feature_table(cmdp) @ weights)
    return planning.successor_features(cmdp, plan.policy)


def reward_weights(cmdp: TabularCMDP, seed: int) -> Table:
    return np.random.default_rng([seed, 3]).normal(size=cmdp.num_features)


@functools.cache
def problem(name: str) -> TabularCMDP:
    if not name.startswith("random"):
        return envs.make(name)
    seed = int(name.removeprefix("random-"))
    if seed < 2:
        return random_cmdp(seed, 3, 5, 3, 0.9)
    if seed == 2:
        return random_cmdp(seed, 2, 6, 3, 0.9, sparsity=0.6)
    plain = random_cmdp(seed, 2, 5, 2, 0.95, sparsity=0.3)
    features = np.random.default_rng([seed, 1]).normal(size=(5, 2, 3))
    return TabularCMDP(
        plain.transitions, plain.context_prior, plain.initial, gamma=0.95, features=features
    )


RANDOM = [f"random-{seed}" for seed in range(4)]
PAPER = ["tiger-treasure", "detour", "tiger-maze"]


# ── ties ─────────────────────────────────────────────────────────────────────────────────────────


def test_merge_ties_by_hand():
    """The first two differ by 0.04 and 0.02; the third by 0.06 from the one, in one feature."""
    features = jnp.array([[1.0, 0.0, 5.0], [1.04, 0.02, 5.0], [1.0, -0.06, 5.0]])
    want = [[1.02, 0.01, 5.0], [1.02, 0.01, 5.0], [1.0, -0.06, 5.0]]
    np.testing.assert_allclose(merge_ties(features, 0.05), want, atol=1e-6)
    np.testing.assert_allclose(
        merge_ties(features, 0.1), np.tile(np.mean(features, 0), (3, 1)), atol=1e-6
    )
    np.testing.assert_allclose(merge_ties(features, 0.01), features, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_what_ties_gets_the_same_value_to_the_last_bit(seed):
    """Else an argmax, and a likelihood of a thousand choices, would still tell them apart."""
    rng = np.random.default_rng(seed)
    kinds = np.array([0, 1, 0, 2, 1, 0, 3])
    base = 100 * rng.normal(size=(3, 4, 4, 6))[:, :, kinds]
    noise = rng.uniform(-0.02, 0.02, base.shape)
    features = jnp.asarray(base + noise, jnp.float32)
    for merge in (merge_ties, eqx.filter_jit(merge_ties)):
        found = np.asarray(merge(features, 0.05))
        for kind in range(4):
            alike = found[:, :, kinds == kind]
            np.testing.assert_array_equal(alike, alike[:, :, :1].repeat(alike.shape[2], 2))
            want = np.asarray(features)[:, :, kinds == kind].mean(2)
            # Numbers up to 400 in float32, of which seven are added.
            np.testing.assert_allclose(alike[:, :, 0], want, atol=2e-4)
        np.testing.assert_allclose(found.mean(2), np.asarray(features).mean(2), atol=2e-4)


def test_merge_ties_on_leading_axes_is_one_place_at_a_time():
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.uniform(0, 0.15, (2, 3, 4, 2)), jnp.float32)
    found = merge_ties(features, 0.05)
    for place in np.ndindex(2, 3):
        np.testing.assert_allclose(found[place], merge_ties(features[place], 0.05), atol=1e-6)


def test_a_resolution_of_nothing_merges_only_equals():
    features = jnp.array([[1.0, 2.0], [1.0, 2.0], [1.0, np.nextafter(np.float32(2), 3)]])
    found = np.asarray(merge_ties(features, 0.0))
    np.testing.assert_array_equal(found[0], found[1])
    assert found[2, 1] > found[1, 1]
    np.testing.assert_allclose(found, features, atol=1e-6)


def test_greedy_actions_take_the_first_of_equals():
    """With ω = (1, −1): in the first row the last is best; in the second the last two tie, and
    their mean beats the first; in the third all tie, though the last is a little better."""
    row = [[1.0, 0.0], [0.0, 0.0], [3.0, 1.0]]
    tied = [[1.0, 0.0], [2.0, 0.02], [2.03, 0.0]]
    same = [[1.0, 0.0], [1.01, 0.0], [1.02, 0.0]]
    features = jnp.array([[row, tied, same], [same, row, tied]])
    weights = jnp.array([1.0, -1.0])
    np.testing.assert_array_equal(
        greedy_actions(features, weights, 0.05), np.array([[2, 1, 0], [0, 2, 1]])
    )
    np.testing.assert_array_equal(
        greedy_actions(features, weights, 0.0), np.array([[2, 2, 2], [2, 2, 2]])
    )
    assert not np.asarray(greedy_actions(features, 0 * weights, 0.0)).any()


# ── errors and losses ────────────────────────────────────────────────────────────────────────────

GAMMA = 0.5
PSI = jnp.array([[[[1.0], [2.0]], [[3.0], [4.0]]], [[[5.0], [6.0]], [[7.0], [8.0]]]])
TARGETS = 10 * PSI
FEATURES = jnp.array([[[0.1], [0.2]], [[0.3], [0.4]]])
GREEDY = jnp.array([[0, 1], [1, 0]])
WEIGHTS = jnp.array([[1.0, 0.0, 2.0], [0.5, 0.25, 0.25]])
ROWS, ACTIONS, NEXT_ROWS = jnp.array([0, 0, 1]), jnp.array([1, 0, 1]), jnp.array([1, 0, 1])
SIMULATED = Steps(ROWS, ACTIONS, NEXT_ROWS, WEIGHTS)
EXPERT = Steps(ROWS, ACTIONS, NEXT_ROWS, WEIGHTS, jnp.array([0, 1, 0]))
GREEDY_ERRORS = np.array(
    [
        [0.2 + 0.5 * 40 - 2, 0.1 + 0.5 * 10 - 1, 0.4 + 0.5 * 40 - 4],
        [0.2 + 0.5 * 70 - 6, 0.1 + 0.5 * 60 - 5, 0.4 + 0.5 * 70 - 8],
    ]
)
EXPERT_ERRORS = np.array(
    [
        [0.2 + 0.5 * 30 - 2, 0.1 + 0.5 * 20 - 1, 0.4 + 0.5 * 30 - 4],
        [0.2 + 0.5 * 70 - 6, 0.1 + 0.5 * 60 - 5, 0.4 + 0.5 * 70 - 8],
    ]
)


def test_td_errors_by_hand():
    """Two states, two actions, two contexts. Greedy actions differ between contexts, an expert's
    are the same in both."""
    found = td_errors(PSI, TARGETS, FEATURES, SIMULATED, GREEDY, GAMMA)
    np.testing.assert_allclose(found[..., 0], GREEDY_ERRORS, rtol=1e-6)
    found = td_errors(PSI, TARGETS, FEATURES, EXPERT, GREEDY, GAMMA)
    np.testing.assert_allclose(found[..., 0], EXPERT_ERRORS, rtol=1e-6)


def test_losses_by_hand():
    """The mean of the squares by weight, each divided by 1/(1−γ)² = 4."""
    batch = Batch(jnp.zeros((2, 1)), FEATURES, EXPERT, SIMULATED)
    expert, simulated = losses(PSI, TARGETS, batch, GREEDY, GAMMA)
    weights = np.asarray(WEIGHTS)
    assert float(expert) == pytest.approx((weights * EXPERT_ERRORS**2).sum() / 4 / 4, rel=1e-6)
    assert float(simulated) == pytest.approx((weights * GREEDY_ERRORS**2).sum() / 4 / 4, rel=1e-6)
    scaled = eqx.tree_at(lambda b: b.expert.weights, batch, 7 * WEIGHTS)
    np.testing.assert_allclose(
        losses(PSI, TARGETS, scaled, GREEDY, GAMMA), [expert, simulated], rtol=1e-6
    )
    none = eqx.tree_at(lambda b: b.expert.weights, batch, 0 * WEIGHTS)
    np.testing.assert_allclose(
        losses(PSI, TARGETS, none, GREEDY, GAMMA), [0, float(simulated)], rtol=1e-6
    )


def test_losses_add_up_over_features():
    batch = Batch(jnp.zeros((2, 1)), FEATURES, EXPERT, SIMULATED)
    wide = Batch(jnp.zeros((2, 1)), jnp.tile(FEATURES, 3), EXPERT, SIMULATED)
    want = losses(PSI, TARGETS, batch, GREEDY, GAMMA)
    found = losses(jnp.tile(PSI, 3), jnp.tile(TARGETS, 3), wide, GREEDY, GAMMA)
    np.testing.assert_allclose(found, 3 * np.array(want), rtol=1e-6)


def test_losses_vanish_at_the_exact_successor_features():
    """In detour contexts leave nothing to chance."""
    cmdp = problem("detour")
    weights, share = reward_weights(cmdp, 0), uneven(cmdp, 0, 3)
    policy = planning.plan(cmdp, feature_table(cmdp) @ weights).policy
    with jax.enable_x64(True):
        batch = Batch(
            jnp.asarray(cmdp.observation_array()),
            floats(feature_table(cmdp)),
            expert_steps(cmdp, share, policy),
            simulated_steps(cmdp, share),
        )
        psi = floats(optimal_features(cmdp, weights))
        greedy = greedy_actions(psi, floats(weights), 1e-9)
        np.testing.assert_allclose(losses(psi, psi, batch, greedy, cmdp.gamma), 0, atol=1e-20)
        wrong = losses(1.01 * psi, 1.01 * psi, batch, greedy, cmdp.gamma)
    # Ψ − γΨ' = ν: one in a hundred too large, both err by 0.01 ν, in units of 1 − γ = 0.01.
    np.testing.assert_allclose(wrong, 1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", ["tiger-treasure", "random-3"])
def test_errors_vanish_on_average_at_the_exact_successor_features(name):
    """By chance single steps err; weighed by their probabilities they do not."""
    cmdp = problem(name)
    weights = reward_weights(cmdp, 0)
    with jax.enable_x64(True):
        psi = floats(optimal_features(cmdp, weights))
        steps = simulated_steps(cmdp, np.ones_like(uniform(cmdp)))
        greedy = greedy_actions(psi, floats(weights), 1e-9)
        errors = td_errors(psi, psi, floats(feature_table(cmdp)), steps, greedy, cmdp.gamma)
        weighted = np.asarray(steps.weights[..., None] * errors)
    total = np.zeros((cmdp.num_contexts, cmdp.num_states, cmdp.num_actions, weighted.shape[-1]))
    for step, place in enumerate(zip(steps.rows.tolist(), steps.actions.tolist(), strict=True)):
        total[:, *place] += weighted[:, step]
    assert np.abs(weighted).max() > 1e-3
    np.testing.assert_allclose(total, 0, atol=1e-10)


def test_gradient_for_a_table_is_the_papers_update():
    """∂L/∂Ψ(s, a, θ) = −2 (1−γ)² Σ w (ν + γΨ' − Ψ) / Σ w, with Ψ' held fixed (appendix B)."""
    batch = Batch(jnp.zeros((2, 1)), FEATURES, EXPERT, SIMULATED)
    for part, errors in enumerate((EXPERT_ERRORS, GREEDY_ERRORS)):
        gradient = jax.grad(lambda psi, part=part: losses(psi, TARGETS, batch, GREEDY, GAMMA)[part])
        want = np.zeros(PSI.shape)
        for context in range(2):
            for step in range(3):
                place = (context, int(ROWS[step]), int(ACTIONS[step]), 0)
                want[place] -= 2 * 0.25 * float(WEIGHTS[context, step]) * errors[context, step] / 4
        np.testing.assert_allclose(gradient(PSI), want, rtol=1e-5)


def test_gradient_for_a_head_is_the_papers_update():
    """The chain rule through Ψ = ν + γ/(1−γ) x·head: minus Σ w x (ν + γΨ' − Ψ)."""
    cmdp = problem("random-2")
    weights, share = reward_weights(cmdp, 0), uneven(cmdp, 0, 2)
    with jax.enable_x64(True):
        network = with_random_head(make_network(cmdp, 8))
        batch = eqx.tree_at(
            lambda b: b.expert,
            simulated_batch(cmdp, share),
            expert_steps(cmdp, share, uniform(cmdp)),
        )
        psi = evaluate(network, batch)
        greedy = greedy_actions(psi, floats(weights), 0.0)

        def loss(network: SuccessorNetwork) -> jax.Array:
            present = network(batch.observations, batch.features)
            return (
                losses(present, psi, batch, greedy, cmdp.gamma)[0]
                + 0.3 * (losses(present, psi, batch, greedy, cmdp.gamma)[1])
            )

        found = np.asarray(eqx.filter_grad(loss)(network).head)
        hidden, values = np.asarray(see(network, batch)), np.asarray(psi)
    want, features = np.zeros(network.head.shape), feature_table(cmdp)
    batch, greedy = jax.tree.map(np.asarray, (batch, greedy))
    for steps, scale in ((batch.expert, 1.0), (batch.simulated, 0.3)):
        total = np.asarray(steps.weights).sum()
        for context, step in np.ndindex(*steps.weights.shape):
            row, action, next_row = (
                int(part[step]) for part in (steps.rows, steps.actions, steps.next_rows)
            )
            chosen = steps.next_actions
            following = greedy[context, next_row] if chosen is None else chosen[step]
            error = (
                features[row, action]
                + cmdp.gamma * values[context, next_row, int(following)]
                - values[context, row, action]
            )
            weight = scale * float(steps.weights[context, step]) / total
            want[action] -= weight * np.outer(hidden[context, row], error)
    want *= 2 * (1 - cmdp.gamma) ** 2 * cmdp.gamma / (1 - cmdp.gamma)
    np.testing.assert_allclose(found, want, atol=1e-10)
    assert np.abs(want).max() > 1e-3


# ── the network ──────────────────────────────────────────────────────────────────────────────────


def test_a_fresh_network_expects_nothing_to_come():
    cmdp = problem("random-3")
    network = make_network(cmdp)
    features = floats(feature_table(cmdp))
    found = network(jnp.asarray(cmdp.observation_array()), features)
    np.testing.assert_array_equal(found, np.tile(features, (2, 1, 1, 1)))


def test_read_out_by_hand():
    """Ψ = ν + γ/(1−γ) x·head, one action and context at a time."""
    cmdp = problem("random-3")
    network = with_random_head(make_network(cmdp, 8))
    observations, features = jnp.asarray(cmdp.observation_array()), feature_table(cmdp)
    hidden = np.asarray(network.hidden(observations))
    assert hidden.shape == (2, 5, 9)
    np.testing.assert_allclose(hidden[..., -1], 1 / np.sqrt(8), rtol=1e-6)
    found = np.asarray(network(observations, floats(features)))
    head = np.asarray(network.head)
    for context, state, action in np.ndindex(2, 5, 2):
        want = features[state, action] + 0.95 / 0.05 * hidden[context, state] @ head[action]
        np.testing.assert_allclose(found[context, state, action], want, atol=1e-4)


@pytest.mark.parametrize("depth", [1, 3])
def test_contexts_and_states_are_told_apart(depth):
    """What the head sees is independent for all of them, else least squares could not be exact."""
    cmdp = problem("tiger-treasure")
    network = make_network(cmdp, seed=depth, depth=depth)
    hidden = np.asarray(network.hidden(jnp.asarray(cmdp.observation_array()))).reshape(12, -1)
    singular = np.linalg.svd(hidden, compute_uv=False)
    assert singular[-1] > 1e-2 * singular[0]


# ── least squares ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("magnitudes", [0.0, 3.0])
@pytest.mark.parametrize("name", [*PAPER, *RANDOM])
def test_solve_head_reaches_the_exact_optimum(name, magnitudes):
    """A call evaluates the greedy policy, and so calls are policy iteration.

    In float64 with next to no ridge hardly anything is left but that encoders round what is seen
    to float32, every compiled program in its own way: an ε of Ψ, which is up to 1/(1−γ).
    """
    cmdp = problem(name)
    weights = reward_weights(cmdp, 1)
    with jax.enable_x64(True):
        batch = simulated_batch(cmdp, uneven(cmdp, 1, magnitudes))
        network = make_network(cmdp, 128 if name == "tiger-maze" else 48)
        found = solve_often(network, batch, weights, EXACT, calls=12, num_steps=5)
    tolerance = ROUNDING / (1 - cmdp.gamma)
    np.testing.assert_allclose(found, optimal_features(cmdp, weights), atol=tolerance)


@pytest.mark.parametrize("magnitudes", [0.0, 1.0])
@pytest.mark.parametrize("name", [*PAPER, "random-1"])
def test_solve_head_in_single_precision(name, magnitudes):
    """Errors δ are differences of Ψ, which rounds to ε/(1−γ), and add up over 1/(1−γ) steps to
    come. Ten times that, for sums over many steps.

    Neither ridge nor proximity moves the solution: they say in how many steps it is reached. The
    slowest part shrinks by proximity/(proximity + σ²) a step, with σ about 2e-3 here.
    """
    cmdp = problem(name)
    weights = reward_weights(cmdp, 2)
    batch = simulated_batch(cmdp, uneven(cmdp, 2, magnitudes))
    network = make_network(cmdp, 128 if name == "tiger-maze" else 64)
    found = solve_often(network, batch, weights, FINE, calls=10, num_steps=60)
    tolerance = 10 * ROUNDING / (1 - cmdp.gamma) ** 2
    np.testing.assert_allclose(found, optimal_features(cmdp, weights), atol=tolerance)


@pytest.mark.parametrize("magnitudes", [0.0, 3.0])
@pytest.mark.parametrize("name", ["tiger-treasure", *RANDOM[2:]])
def test_solve_head_follows_an_expert(name, magnitudes):
    """Whatever the reward, demonstrations say what comes next."""
    cmdp = problem(name)
    rng = np.random.default_rng([5, 1])
    policy = rng.dirichlet(np.full(cmdp.num_actions, 0.5), (cmdp.num_contexts, cmdp.num_states))
    with jax.enable_x64(True):
        batch = expert_batch(cmdp, uneven(cmdp, 3, magnitudes), policy)
        network = make_network(cmdp, 48)
        weights = reward_weights(cmdp, 3)
        found = solve_often(network, batch, weights, EXACT, calls=1, num_steps=10)
    np.testing.assert_allclose(found, planning.successor_features(cmdp, policy), atol=1e-6)


def test_expert_and_simulator_agree_about_an_optimal_expert():
    """Both parts at once, however they weigh: the equations of both hold at Ψ*."""
    cmdp = problem("random-0")
    weights = reward_weights(cmdp, 0)
    want = optimal_features(cmdp, weights)
    policy = planning.plan(cmdp, feature_table(cmdp) @ weights).policy
    for beta in (0.01, 100.0):
        config = SuccessorConfig(
            resolution=1e-3, ridge=1e-9, proximity=1e-10, simulator_weight=beta
        )
        with jax.enable_x64(True):
            share = uneven(cmdp, 4, 1)
            batch = eqx.tree_at(
                lambda b: b.expert, simulated_batch(cmdp, share), expert_steps(cmdp, share, policy)
            )
            found = solve_often(
                make_network(cmdp, 48), batch, weights, config, calls=8, num_steps=5
            )
        np.testing.assert_allclose(found, want, atol=1e-6)


def test_the_simulator_weight_counts():
    """An expert who acts against the reward is followed as far as the simulator lets one."""
    cmdp = problem("random-0")
    weights = reward_weights(cmdp, 0)
    policy = planning.plan(cmdp, -feature_table(cmdp) @ weights).policy
    followed, best = planning.successor_features(cmdp, policy), optimal_features(cmdp, weights)
    found = []
    for beta in (0.0, 1.0, 1e9):
        config = SuccessorConfig(
            resolution=1e-3, ridge=1e-12, proximity=1e-12, simulator_weight=beta
        )
        with jax.enable_x64(True):
            share = uneven(cmdp, 4, 0)
            batch = eqx.tree_at(
                lambda b: b.expert, simulated_batch(cmdp, share), expert_steps(cmdp, share, policy)
            )
            found.append(
                solve_often(make_network(cmdp, 48), batch, weights, config, calls=8, num_steps=5)
            )
    np.testing.assert_allclose(found[0], followed, atol=1e-6)
    np.testing.assert_allclose(found[2], best, atol=1e-5)
    for end in (followed, best):
        assert np.abs(found[1] - end).max() > 0.1


def projected_error(
    network: SuccessorNetwork, batch: Batch, greedy: jax.Array, config: SuccessorConfig
) -> float:
    """‖G^{-1/2} Σ w x δᵀ‖ of the simulated steps, a step at a time."""
    hidden = np.asarray(see(network, batch))
    values = np.asarray(evaluate(network, batch))
    features, steps = np.asarray(batch.features), batch.simulated
    weights = np.asarray(steps.weights) / np.asarray(steps.weights).sum()
    num_actions, width, num_features = network.head.shape
    gram = np.zeros((num_actions * width,) * 2)
    total = np.zeros((num_actions * width, num_features))
    rows, actions, next_rows, best = (
        np.asarray(part) for part in (steps.rows, steps.actions, steps.next_rows, greedy)
    )
    for context, step in zip(*np.nonzero(weights), strict=True):
        row, action, following = rows[step], actions[step], next_rows[step]
        x = np.zeros((num_actions, width))
        x[action] = hidden[context, row]
        ahead = values[context, following, best[context, following]]
        error = features[row, action] + network.gamma * ahead - values[context, row, action]
        gram += weights[context, step] * np.outer(x, x)
        total += weights[context, step] * np.outer(x, error)
    gram += config.ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
    return float(np.sqrt((total * np.linalg.solve(gram, total)).sum()))


@pytest.mark.parametrize("width", [3, 48])
@pytest.mark.parametrize("seed", range(3))
def test_the_projected_error_never_grows(width, seed):
    """Also where the network is too small for Ψ, and steps come from anybody. A call holds the
    greedy actions it began with."""
    cmdp = random_cmdp(seed, 2, 8, 3, 0.95)
    weights, config = reward_weights(cmdp, seed), SuccessorConfig(resolution=1e-3)
    errors = []
    with jax.enable_x64(True):
        batch = simulated_batch(cmdp, uneven(cmdp, seed, 3))
        network = with_random_head(make_network(cmdp, width, seed), seed)
        for _ in range(8):
            present = evaluate(network, batch)
            greedy = greedy_actions(present, floats(weights), config.resolution)
            before = projected_error(network, batch, greedy, config)
            network = solve(network, batch, floats(weights), config, num_steps=1)
            errors.append((before, projected_error(network, batch, greedy, config)))
    for before, after in errors:
        assert after <= before * (1 + 1e-9)
    assert errors[0][1] < 0.5 * errors[0][0]


def test_a_small_network_ends_where_the_expected_update_vanishes():
    """Six numbers a state cannot hold Ψ, but Σ w x δᵀ = 0 has a solution all the same."""
    cmdp = random_cmdp(1, 2, 8, 2, 0.9)
    policy = np.eye(2)[np.random.default_rng(0).integers(2, size=(2, 8))]
    share = uneven(cmdp, 0, 1)
    with jax.enable_x64(True):
        batch = expert_batch(cmdp, share, policy)
        network = make_network(cmdp, 5)
        hidden = np.asarray(see(network, batch))
        found = solve_often(network, batch, np.zeros(8), EXACT, calls=2, num_steps=20)
    # Least-squares temporal differences, by the exact dynamics.
    x = np.einsum("ab,csh->csabh", np.eye(2), hidden).reshape(2, 8, 2, 12)
    on_policy = np.einsum("csa,csaz->csz", policy, x)
    ahead = np.einsum("csan,cnz->csaz", dense(cmdp), on_policy)
    after = np.einsum("csan,cnb,nbd->csad", dense(cmdp), policy, feature_table(cmdp))
    system = np.einsum("csa,csay,csaz->yz", share, x, x - 0.9 * ahead)
    head = np.linalg.lstsq(system, np.einsum("csa,csay,csad->yd", share, x, after), rcond=1e-10)[0]
    want = feature_table(cmdp) + 0.9 * np.einsum("csaz,zd->csad", x, head)
    assert np.abs(want - planning.successor_features(cmdp, policy)).max() > 0.01
    np.testing.assert_allclose(found, want, atol=1e-6)


def test_without_a_future_successor_features_are_features():
    cmdp = random_cmdp(0, 2, 4, 2, 0.0)
    network = with_random_head(make_network(cmdp, 8))
    batch = simulated_batch(cmdp, uneven(cmdp, 0, 1))
    found = solve(network, batch, jnp.ones(4), SuccessorConfig())
    psi = np.asarray(found(batch.observations, batch.features))
    np.testing.assert_array_equal(psi, np.tile(feature_table(cmdp), (2, 1, 1, 1)))
    assert np.isfinite(found.head).all()


@pytest.mark.parametrize("order", [[1, 0, 2], [2, 0, 1]])
def test_permuting_contexts(order):
    cmdp = problem("random-0")
    weights, share = reward_weights(cmdp, 0), uneven(cmdp, 0, 2)
    with jax.enable_x64(True):
        batch = eqx.tree_at(
            lambda b: b.expert,
            simulated_batch(cmdp, share),
            expert_steps(cmdp, share, uniform(cmdp)),
        )
        moved = eqx.tree_at(
            lambda b: (b.expert.weights, b.simulated.weights),
            batch,
            (batch.expert.weights[jnp.array(order)], batch.simulated.weights[jnp.array(order)]),
        )
        network = make_network(cmdp, 16)
        other = eqx.tree_at(lambda n: n.contexts, network, network.contexts[jnp.array(order)])
        config = SuccessorConfig()
        want = solve_often(network, batch, weights, config, calls=4, num_steps=3)
        found = solve_often(other, moved, weights, config, calls=4, num_steps=3)
    np.testing.assert_allclose(found, want[order], atol=1e-6)
    assert np.abs(want[order] - want).max() > 0.01


@pytest.mark.parametrize("name", ["tiger-treasure", "detour"])
def test_rare_steps_in_single_precision(name):
    """Steps into states that are seldom left: whitened, their features become large."""
    cmdp = problem(name)
    for seed in range(4):
        batch = simulated_batch(cmdp, uneven(cmdp, seed, 4))
        found = solve(
            make_network(cmdp), batch, floats(reward_weights(cmdp, seed)), FINE, num_steps=60
        )
        assert np.isfinite(found.head).all()


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["learning_rate", "max_gradient_norm", "ridge", "proximity"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_config_refuses_what_is_not_positive(field, value):
    changed: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=f"^`{field}` must be positive, got {value}.$"):
        SuccessorConfig(**changed)


@pytest.mark.parametrize("value", [0, -1])
def test_config_refuses_a_target_that_is_never_renewed(value):
    with pytest.raises(ConfigError, match=f"^`target_period` must be positive, got {value}.$"):
        SuccessorConfig(target_period=value)


@pytest.mark.parametrize("field", ["simulator_weight", "resolution"])
@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
def test_config_refuses_what_is_negative(field, value):
    changed: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=f"^`{field}` must not be negative, got {value}.$"):
        SuccessorConfig(**changed)
    unused: dict[str, Any] = {field: 0.0}
    assert getattr(SuccessorConfig(**unused), field) == 0
