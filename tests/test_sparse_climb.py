"""The MAP reward without Ψ: products, Newton systems and climbs against those with it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from problems import dense, expert_data_of, kaelbling_tiger, random_cmdp
from scipy import special

from bigtrain import Demonstrations, IRLConfig, SolveConfig, demonstrate, envs, solve
from bigtrain.errors import ConfigError, PlanningError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import MAPResult, inverse, map_reward, planning, sparse_newton
from bigtrain.finite.expert import anywhere
from bigtrain.reward import irl
from bigtrain.reward.irl import Evidence

Table = NDArray[np.float64]
SYSTEMS = [sparse_newton.SparseSystem, sparse_newton.FullSystem]
EVIDENCE: list[Evidence] = ["transitions", "transitions-and-actions"]


def featured(seed: int, sparsity: float = 0.5) -> TabularCMDP:
    """Three contexts, in which other things are possible, and features of state and action."""
    plain = random_cmdp(seed, 3, 7, 3, 0.9, sparsity=sparsity)
    features = np.random.default_rng([seed, 1]).normal(size=(7, 3, 4))
    return TabularCMDP(
        plain.transitions, plain.context_prior, plain.initial, gamma=0.9, features=features
    )


def shown(cmdp: TabularCMDP, seed: int, episodes: int = 40) -> Demonstrations:
    reward = np.random.default_rng([seed, 2]).normal(size=cmdp.num_states)
    return demonstrate(cmdp, reward, episodes=episodes, horizon=6, seed=seed)


def some_policy(cmdp: TabularCMDP, seed: int) -> Table:
    """Certain in some states and mixed in others."""
    shape = (cmdp.num_contexts, cmdp.num_states)
    policy = np.random.default_rng(seed).dirichlet(np.full(cmdp.num_actions, 0.4), shape)
    policy[:, ::2] = np.eye(cmdp.num_actions)[policy[:, ::2].argmax(-1)]
    return policy


# ── products and systems ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [featured, lambda seed: random_cmdp(seed, 2, 6, 3, sparsity=0.6)])
def test_products_are_those_of_successor_features(make, seed):
    cmdp, rng = make(seed), np.random.default_rng(seed)
    policy = some_policy(cmdp, seed)
    psi = planning.successor_features(cmdp, policy)
    problem = sparse_newton.lay_out(cmdp)
    course = sparse_newton.factor_policy(problem, policy)
    weights, slopes = rng.normal(size=cmdp.num_features), rng.normal(size=psi.shape[:3])
    found = sparse_newton.action_values(problem, course, cmdp.feature_matrix() @ weights)
    np.testing.assert_allclose(found, psi @ weights, rtol=1e-12, atol=1e-12)
    pulled, flow = sparse_newton.pull_back(problem, course, slopes)
    np.testing.assert_allclose(pulled, np.einsum("csa,csad->d", slopes, psi), atol=1e-11)
    # A bonus in state s raises the weighted action values by the flow through s.
    paid = rng.normal(size=flow.shape)
    raised = sparse_newton.action_values(problem, course, np.zeros(problem.shape[1:]).ravel(), paid)
    assert (raised * slopes).sum() == pytest.approx((paid * flow).sum(), abs=1e-11)


def test_laying_out_leaves_the_problem_alone():
    """Sparse matrices that share its arrays would drop zeros in place."""
    cmdp = random_cmdp(0, 2, 6, 3, sparsity=0.6)
    before, policy = dense(cmdp), some_policy(cmdp, 0)
    kept = policy.copy()
    sparse_newton.factor_policy(sparse_newton.lay_out(cmdp), policy)
    np.testing.assert_array_equal(dense(cmdp), before)
    np.testing.assert_array_equal(policy, kept)


@pytest.mark.parametrize("kind", SYSTEMS)
@pytest.mark.parametrize("seed", range(3))
def test_systems_invert_the_full_matrix(kind, seed):
    cmdp, rng = featured(seed), np.random.default_rng(seed)
    policy = some_policy(cmdp, seed)
    psi = planning.successor_features(cmdp, policy)
    root = rng.normal(size=(*psi.shape[:3], 2)) * (rng.random(psi.shape[:2]) < 0.7)[..., None, None]
    blocks = root @ root.swapaxes(-1, -2)
    want = np.einsum("csad,csab,csbe->de", psi, blocks, psi) + 0.3 * np.eye(4)
    problem = sparse_newton.lay_out(cmdp)
    system = kind(problem, sparse_newton.factor_policy(problem, policy), blocks, 0.3)
    gradient = rng.normal(size=4)
    np.testing.assert_allclose(want @ system.solve(gradient), gradient, atol=1e-9)
    np.testing.assert_allclose(want @ system.inverse(), np.eye(4), atol=1e-9)


def test_maps_stay_sparse_and_random_graphs_do_not():
    floor = ["#" * 11, *["#" + "." * 9 + "#"] * 4, "L....S....R", "#....x....#", "#" * 11]
    assert sparse_newton.stays_sparse(sparse_newton.lay_out(envs.make("tiger-maze", map=floor)))
    anywhere = random_cmdp(0, 2, 60, 3, sparsity=0.95)
    assert not sparse_newton.stays_sparse(sparse_newton.lay_out(anywhere))


# ── climbs ───────────────────────────────────────────────────────────────────────────────────────


def detour() -> tuple[TabularCMDP, Demonstrations, IRLConfig]:
    cmdp = envs.make("detour")
    assert cmdp.task is not None
    return cmdp, demonstrate(cmdp, cmdp.task.reward, episodes=100, horizon=40), IRLConfig()


def treasure() -> tuple[TabularCMDP, Demonstrations, IRLConfig]:
    cmdp = envs.make("tiger-treasure")
    assert cmdp.task is not None
    return cmdp, demonstrate(cmdp, cmdp.task.reward, episodes=100, horizon=50), IRLConfig()


def kaelbling() -> tuple[TabularCMDP, Demonstrations, IRLConfig]:
    cmdp, reward, _ = kaelbling_tiger()
    return cmdp, demonstrate(cmdp, reward, episodes=50, horizon=10), IRLConfig()


def maze() -> tuple[TabularCMDP, Demonstrations, IRLConfig]:
    cmdp = envs.make("tiger-maze")
    assert cmdp.task is not None
    anywhere = np.zeros(29)
    anywhere[:27:3] = 1
    demos = demonstrate(cmdp, cmdp.task.reward, episodes=1_000, horizon=40, initial=anywhere)
    return cmdp, demos, IRLConfig(temperature=0.01, prior_variance=1.0)


def crossroads() -> tuple[TabularCMDP, Demonstrations, IRLConfig]:
    """Transitions leave open who was in which context, so that actions count."""
    actions = np.random.default_rng(0).integers(2, size=(20, 6))
    actions[:, 0] = np.arange(20) % 2
    states = np.full((20, 7), 3)
    states[:, 0], states[:, 1] = 0, 1 + actions[:, 0]
    demos = Demonstrations(states.ravel(), actions.ravel(), np.full(20, 6))
    config = IRLConfig(temperature=1.0, evidence="transitions-and-actions")
    return envs.make("crossroads"), demos, config


def random_example(seed: int, evidence: Evidence) -> tuple[TabularCMDP, Demonstrations, IRLConfig]:
    cmdp = featured(seed, 0.0)
    config = IRLConfig(temperature=0.7, prior_mean=0.3, prior_variance=2.0, evidence=evidence)
    return cmdp, shown(cmdp, seed), config


PROBLEMS = {
    "detour": detour,
    "treasure": treasure,
    "kaelbling": kaelbling,
    "maze": maze,
    "crossroads": crossroads,
    **{
        f"random-{seed}-{evidence}": functools.partial(random_example, seed, evidence)
        for seed in (1, 7)
        for evidence in EVIDENCE
    },
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_climbs_with_and_without_successor_features_agree(name, monkeypatch):
    cmdp, demos, config = PROBLEMS[name]()
    want = map_reward(cmdp, demos, config, num_restarts=0)
    assert want.num_rounds <= 10, "ties go the same way in both; choose another problem"
    scale, spread = (np.abs(part).max() for part in want.posterior)
    monkeypatch.setattr(inverse, "_DENSE_ENTRIES", 0)
    for fill in (1.0, 0.0):  # the sparse system and the full one
        monkeypatch.setattr(sparse_newton, "_SPARSE_FILL", fill)
        found = map_reward(cmdp, demos, config, num_restarts=0)
        np.testing.assert_allclose(found.posterior.mean, want.posterior.mean, atol=1e-6 * scale)
        assert found.log_posterior == pytest.approx(want.log_posterior, rel=1e-9)
        assert found.num_rounds == want.num_rounds
        np.testing.assert_allclose(
            found.posterior.covariance, want.posterior.covariance, rtol=1e-6, atol=1e-8 * spread
        )


# ── ties ─────────────────────────────────────────────────────────────────────────────────────────

ROOM = ("#######", "#.....#", "#.....#", "L..S..R", "#..x..#", "#.....#", "#######")


@functools.cache
def room() -> tuple[TabularCMDP, Demonstrations, IRLConfig]:
    """A room with many shortest ways, taken equally often but for chance."""
    cmdp = envs.make("tiger-maze", map=ROOM)
    assert cmdp.task is not None
    anywhere = np.zeros(cmdp.num_states)
    anywhere[:-2:3] = 1
    demos = demonstrate(cmdp, cmdp.task.reward, episodes=300, horizon=20, initial=anywhere)
    return cmdp, demos, IRLConfig(temperature=0.01, prior_variance=1.0)


@functools.cache
def solved_room(tolerance: float) -> MAPResult:
    cmdp, demos, config = room()
    return map_reward(cmdp, demos, config, tolerance=tolerance, num_restarts=0)


def height(weights: Table, cmdp: TabularCMDP, data: irl.ExpertData, config: IRLConfig) -> float:
    """The log posterior with the optimal action values of ω itself."""
    reward = (cmdp.feature_matrix() @ weights).reshape(cmdp.num_states, cmdp.num_actions)
    values = planning.plan(cmdp, reward).action_values[:, data.visited]
    log_policies = special.log_softmax(values / config.temperature, axis=-1)
    with jax.enable_x64(True):
        counts = irl.known_counts(data, config, cmdp.num_actions)
        likelihood = irl.log_likelihood(jnp.asarray(log_policies), data, config, counts)
    return float(likelihood) - (weights**2).sum() / (2 * config.weight_variance)


def test_a_room_of_ties_settles_in_few_rounds():
    """Where choices tie, averaging plans took a hundred rounds."""
    found = solved_room(1e-6)
    assert 10 < found.num_rounds <= 20, "10 rounds or less: nothing ties"
    assert 1e-10 < found.mismatch <= 1e-6


def test_soft_values_settle_as_far_as_they_can_be_told():
    """Here they stood still at 1.0025e-14 of the largest, the rounding of the solves."""
    maze = envs.make("tiger-maze", p_hear=0.85)
    assert maze.task is not None
    few = demonstrate(maze, maze.task.reward, episodes=10, horizon=40, initial=anywhere(maze))
    found = map_reward(maze, few, IRLConfig(prior_variance=0.01), num_restarts=4)
    assert found.mismatch <= 1e-3


def test_the_maximum_on_a_ridge_is_not_beaten_nearby():
    cmdp, demos, config = room()
    data = expert_data_of(cmdp, demos)
    found = solved_room(1e-6)
    top = height(found.posterior.mean, cmdp, data, config)
    slack = 6_000 * 1e-6  # what the mismatch may make in 6,000 steps
    assert top == pytest.approx(found.log_posterior, abs=slack)
    spread = np.linalg.cholesky(found.posterior.covariance)
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1e-2, 1e-1, 1.0):
        for move in rng.normal(scale=scale, size=(10, cmdp.num_features)):
            beside = height(found.posterior.mean + spread @ move, cmdp, data, config)
            assert beside <= top + slack


def test_a_looser_tolerance_ends_near_the_tighter_one():
    loose, tight = solved_room(1e-3), solved_room(1e-6)
    assert loose.num_rounds < tight.num_rounds
    deviations = np.sqrt(np.diag(tight.posterior.covariance))
    difference = (loose.posterior.mean - tight.posterior.mean) / deviations
    assert np.abs(difference).max() < 0.05


def test_a_climb_that_ties_do_not_let_settle_says_so():
    cmdp, demos, config = room()
    with pytest.raises(PlanningError, match=r"did not settle within 2\d rounds"):
        map_reward(cmdp, demos, config, tolerance=-1.0, num_restarts=0)


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_solve_refuses_a_tolerance_that_is_not_positive(value):
    with pytest.raises(ConfigError, match="`tolerance` must be positive and finite"):
        SolveConfig(tolerance=value)


def test_solve_passes_its_tolerance_on():
    cmdp, demos, config = room()
    rounds = {
        tolerance: sum(
            event.phase == "reward"
            for event in solve(
                cmdp,
                demos,
                reward_range=(-0.05, 1.0),
                config=SolveConfig(irl=config, num_restarts=0, tolerance=tolerance),
            ).history
        )
        for tolerance in (1e-3, 1e-6)
    }
    assert rounds[1e-3] == solved_room(1e-3).num_rounds
    assert rounds[1e-6] == solved_room(1e-6).num_rounds
