"""Phase 3 part by part, each against numbers from elsewhere; and learned against exact.

What `fit` makes of it all is in test_fit.py.
"""

import dataclasses
import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import Hidden, dense, kaelbling_tiger, random_cmdp

from bigtrain import CostOfExploration, Event, Fixed, TabularCMDP, envs
from bigtrain.bayes_rl import (
    BayesRLConfig,
    Learner,
    MemberParams,
    RolloutConfig,
    SampledTargets,
    ValuesStage,
    init_members,
    prepare_linear,
    weigh_errors,
)
from bigtrain.bayes_rl.actor import ValueActor, spread_epsilon, unroll
from bigtrain.bayes_rl.config import paper_tiger_maze, paper_tiger_treasure
from bigtrain.belief import (
    AmortisedInference,
    BeliefState,
    Categorical,
    ExactInference,
    InferenceModel,
)
from bigtrain.data import replay
from bigtrain.errors import ConfigError
from bigtrain.exploration import PredictiveReward
from bigtrain.finite import hyperstate_table as tables
from bigtrain.finite.evaluation import never_exploring_value
from bigtrain.finite.exact import solve_bayes
from bigtrain.finite.exact.bayes import BayesConfig
from bigtrain.finite.hyperstate_table import HyperstateTable
from bigtrain.finite.inference import FiniteInference
from bigtrain.finite.swept import SweptTargets, TableRewards, prepare_tables
from bigtrain.learning import heads
from bigtrain.learning.driver import advance
from bigtrain.learning.networks import NetworkConfig
from bigtrain.phases.belief import row_like
from bigtrain.phases.learn import LearnedPolicy, learn_policies
from bigtrain.phases.routing import route
from bigtrain.policy import NetworkPolicy, PolicyConfig, ValueNetwork
from bigtrain.policy.network import Core
from bigtrain.problem import NO_ACTION, Simulator, Trajectories
from bigtrain.runs import Callback, metric_values

TIGER = envs.make("tiger-treasure")
DETOUR = envs.make("detour")
S0, T1, T2, ST, LISTEN = 0, 1, 2, 5, 2
TIGER_REWARD = np.array([-52.35, 5, 5, -100, -4.07, 10])
"""The rescaled MAP reward of test_known_answers.py, with k = 0.5: listen for two net hearings."""
SMALL = BayesRLConfig(
    model=PolicyConfig(network=NetworkConfig(width=32, depth=2), core_width=8),
    rollout=RolloutConfig(num_environments=16, horizon=20, replay_size=64, settling_batch_size=32),
    num_iterations=4,
    num_updates=5,
    max_rounds=4,
    num_hyperstates=64,
    evaluate_every=1,
    target_regret=0.0,
)
"""Quick to compile."""


def value_network(cmdp: TabularCMDP, core: Core = "none") -> ValueNetwork:
    """One that has not learned, but has values to give: the head begins at 0."""
    network = ValueNetwork(
        jnp.asarray(cmdp.observation_array()),
        num_contexts=cmdp.num_contexts,
        num_actions=cmdp.num_actions,
        config=dataclasses.replace(SMALL.model, core=core),
        key=jax.random.key(0),
    )
    return network.with_head(jax.random.normal(jax.random.key(1), network.head.shape))


def learner_of(
    cmdp: Simulator, config: BayesRLConfig = SMALL, inference: InferenceModel | None = None
) -> Learner:
    """The learner that a problem gets, of rewards in a table."""
    chosen = route(cmdp)
    inference = inference or chosen.exact_inference()
    assert inference is not None
    return chosen.learner(inference, TableRewards(), config)[0]


def tiger_learner(config: BayesRLConfig) -> tuple[Learner, MemberParams]:
    """A learner of the tiger, and the numbers of its only member."""
    _, members = prepare_tables(TIGER, [np.repeat(TIGER_REWARD[:, None], 3, 1)], [1e-3])
    return learner_of(TIGER, config), jax.tree.map(lambda leaf: leaf[0], members)


@eqx.filter_jit
def roll_out(
    cmdp: TabularCMDP,
    network: ValueNetwork,
    key: jax.Array,
    *,
    num_envs: int,
    horizon: int,
    epsilon: float,
) -> Trajectories:
    """ε-greedy episodes end to end, by the exact filter."""
    inference, num_uses = FiniteInference(cmdp), num_envs * (horizon + 1)
    actor = ValueActor(
        inference,
        inference.state_encoder(cmdp, num_uses),
        network,
        cmdp.encoder(network.encode, num_uses),
        spread_epsilon(epsilon, num_envs),
    )
    return cmdp.collect(actor, key, num_envs=num_envs, horizon=horizon, restart=True)


@functools.cache
def tiger_trajectories(core: Core = "none", epsilon: float = 0.5) -> Trajectories:
    network, key = value_network(TIGER, core), jax.random.key(2)
    return roll_out(TIGER, network, key, num_envs=8, horizon=40, epsilon=epsilon)


def split(trajectories: Trajectories) -> list[tuple[int, slice]]:
    """The episodes of trajectories: the row, and the moments."""
    episodes = []
    for row, first in enumerate(np.asarray(trajectories.first)):
        begins = np.flatnonzero(first)
        ends = [*begins[1:], len(first)]
        episodes += [(row, slice(*span)) for span in zip(begins, ends, strict=True)]
    return episodes


# ── trajectories ─────────────────────────────────────────────────────────────────────────────────


def test_an_episode_begins_after_an_absorbing_moment_and_nowhere_else():
    trajectories = tiger_trajectories()
    assert trajectories.actions.shape == (8, 41) and trajectories.mask.all()
    absorbing = np.asarray(jax.vmap(jax.vmap(TIGER.is_absorbing))(trajectories.states))
    np.testing.assert_array_equal(absorbing, trajectories.states == ST)
    begins, previous = np.asarray(trajectories.first), np.asarray(trajectories.previous_actions)
    np.testing.assert_array_equal(begins, previous == NO_ACTION)
    assert begins[:, 0].all() and begins[:, 1:].sum() > 20
    np.testing.assert_array_equal(begins[:, 1:], absorbing[:, :-1])
    np.testing.assert_array_equal(trajectories.states[begins], S0)
    went_on = previous[:, 1:][~begins[:, 1:]]
    np.testing.assert_array_equal(went_on, trajectories.actions[:, :-1][~begins[:, 1:]])


def test_episodes_end_to_end_are_episodes_of_the_problem():
    """Each has one context, in which its steps are possible, and the beliefs of Bayes' rule."""
    trajectories = jax.tree.map(np.asarray, tiger_trajectories())
    table = dense(TIGER)
    contexts = []
    for place in split(trajectories):
        states, actions = trajectories.states[place], trajectories.actions[place]
        own = trajectories.contexts[place]
        assert len(set(own.tolist())) == 1
        contexts.append(int(own[0]))
        assert (table[own[:-1], states[:-1], actions[:-1], states[1:]] > 0).all()
        likelihood = table[:, states[:-1], actions[:-1], states[1:]].T
        joint = np.cumprod(np.concatenate([[TIGER.context_prior], likelihood]), axis=0)
        with np.errstate(divide="ignore"):
            want = np.log(joint / joint.sum(-1, keepdims=True))
        np.testing.assert_allclose(trajectories.notes.log_probs[place], want, atol=1e-5)
    assert 0.3 < np.mean(contexts) < 0.7  # of some 60 fair draws: three standard deviations


def test_environments_explore_from_not_at_all_to_twice_epsilon():
    network = value_network(TIGER)
    greedy = {}
    for epsilon in (0.0, 0.5):
        trajectories = tiger_trajectories(epsilon=epsilon)
        values = unroll(TIGER, network, trajectories) @ network.head.T
        greedy[epsilon] = np.asarray(trajectories.actions == values.argmax(-1))
    assert greedy[0.0].all() and greedy[0.5][0].all()
    assert 0.1 < greedy[0.5][-1].mean() < 0.6  # a third, by chance: three standard deviations


@pytest.mark.parametrize("core", ["none", "gru"])
def test_trajectories_unrolled_are_what_the_policy_sees_step_by_step(core):
    network, trajectories = value_network(TIGER, core), tiger_trajectories(core)
    values = np.asarray(unroll(TIGER, network, trajectories) @ network.head.T)
    policy = NetworkPolicy(FiniteInference(TIGER), network, 0.0, 1.0, TIGER.gamma)
    step = eqx.filter_jit(policy.step)
    for place in split(trajectories)[-6:]:
        memory = policy.init()
        for state, previous, want in zip(
            trajectories.states[place],
            trajectories.previous_actions[place],
            values[place],
            strict=True,
        ):
            memory, decision = step(memory, TIGER.observe(state), previous)
            np.testing.assert_allclose(decision.values, want, atol=1e-4)


# ── hyperstates ──────────────────────────────────────────────────────────────────────────────────

INFORMED = jnp.arange(12.0).reshape(2, 6)


def table_met(num_rows: int = 64) -> HyperstateTable:
    """The hyperstates of the trajectories."""
    return tables.add_trajectories(tables.empty(num_rows, 2), tiger_trajectories(), INFORMED)


def names(states, log_beliefs) -> list[tuple[int, float]]:
    """The hyperstates of the tiger by state and rounded belief, apart from the code under test."""
    beliefs = np.exp(np.asarray(log_beliefs, np.float64)[..., 0]).ravel()
    return list(zip(np.ravel(states).tolist(), beliefs.round(4).tolist(), strict=True))


def test_each_hyperstate_is_met_once_and_counted():
    trajectories, met = tiger_trajectories(), table_met()
    want: dict[tuple[int, float], int] = {}
    for name in names(trajectories.states, trajectories.notes.log_probs):
        want[name] = want.get(name, 0) + 1
    there = np.asarray(met.times) > 0
    found = names(met.states[there], met.log_beliefs[there])
    assert dict(zip(found, met.times[there].astype(int).tolist(), strict=True)) == want
    assert len(found) == len(want) and met.times.sum() == trajectories.states.size
    again = tables.add_trajectories(met, trajectories, INFORMED)
    np.testing.assert_array_equal(np.sort(again.times), 2 * np.sort(met.times))


def test_where_there_is_no_room_the_most_met_stay():
    all_of_them, few = table_met(), table_met(4)
    np.testing.assert_array_equal(few.times, np.sort(all_of_them.times)[::-1][:4])


def values_of(met: HyperstateTable) -> dict[tuple[int, float], float]:
    there = met.times > 0
    found = names(met.states[there], met.log_beliefs[there])
    return dict(zip(found, met.values[there].tolist(), strict=True))


def test_what_the_informed_get_is_the_first_guess_and_gives_way_to_what_is_found_out():
    met = table_met()
    new = (met.times > 0) & (met.states != S0)
    want = (jnp.exp(met.log_beliefs) * INFORMED.T[met.states]).sum(-1)
    np.testing.assert_allclose(met.values[new], want[new], rtol=1e-5)
    found_out = met._replace(values=jnp.arange(64.0))
    again = tables.add_trajectories(found_out, tiger_trajectories(), INFORMED)
    assert values_of(again) == values_of(found_out)


def test_what_may_follow_is_by_the_belief_and_the_filter():
    cmdp = random_cmdp(0, num_contexts=3, num_states=4, sparsity=0.4)
    rng = np.random.default_rng(0)
    log_beliefs = jnp.log(jnp.asarray(rng.dirichlet(np.ones(3), 8), jnp.float32))
    states = jnp.asarray(rng.integers(4, size=8), jnp.int32)
    met = HyperstateTable(states, log_beliefs, jnp.ones(8), jnp.zeros(8))
    successors = tables.successors_of(cmdp, met)
    np.testing.assert_allclose(successors.probs.sum(-1), 1, rtol=1e-5)
    table, beliefs = dense(cmdp), np.exp(np.asarray(log_beliefs))
    update = eqx.filter_jit(FiniteInference(cmdp).update)
    checked = 0
    for row, action, k in np.ndindex(successors.states.shape):
        state, follower = states[row], successors.states[row, action, k]
        if (probability := successors.probs[row, action, k]) == 0:
            continue
        want = beliefs[row] @ table[:, state, action, follower]
        assert probability == pytest.approx(want, rel=1e-4)
        memory = BeliefState(state, log_beliefs[row])
        code = follower.astype(jnp.int32), jnp.asarray(True)
        after, info = update(memory, code, jnp.asarray(action, jnp.int32))
        assert not info.impossible
        np.testing.assert_allclose(
            successors.log_beliefs[row, action, k], after.log_belief, rtol=1e-4, atol=1e-5
        )
        checked += 1
    assert checked > 16


def test_what_has_been_met_is_found():
    met = table_met()
    successors = tables.successors_of(TIGER, met)
    rows = np.asarray(tables.find(met, successors))
    here = names(met.states, met.log_beliefs)
    known = {here[row] for row in np.flatnonzero(met.times > 0)}
    followers = names(successors.states, successors.log_beliefs)
    for row, follower in zip(rows.ravel(), followers, strict=True):
        assert (row >= 0) == (follower in known)
        if row >= 0:
            assert here[row] == follower and met.times[row] > 0
    assert 0 < (rows >= 0).mean() < 1


def test_rows_are_drawn_as_often_as_their_weight_says():
    """Give or take one, whatever the offset; free rows never, not even by rounding."""
    met = table_met()
    want = 256 * np.sqrt(met.times) / np.sqrt(met.times).sum()
    for offset in (0.0, 0.3, float(np.nextafter(np.float32(1), np.float32(0)))):
        drawn = tables.sample(met, offset, 256)
        assert (np.abs(np.bincount(drawn, minlength=64) - want) < 1.01).all()
        assert (met.times[drawn] > 0).all()


def test_sweeps_find_the_exact_value():
    """From the root alone, with what may follow added a step at a time."""
    config = dataclasses.replace(SMALL, num_hyperstates=128)
    learner, member = tiger_learner(config)
    targets = learner.targets
    assert isinstance(targets, SweptTargets)
    network = value_network(TIGER).with_head(jnp.zeros((3, 33)))
    root = jnp.array([S0]), jnp.log(jnp.full((1, 2), 0.5)), jnp.ones(1)
    met = tables.add(targets.init(), *root, member.targets)

    @eqx.filter_jit
    def advance(met):
        successors = tables.successors_of(TIGER, met)
        met, values = targets.sweep(network, member, met, successors)
        return tables.add_successors(met, successors, member.targets), (met, values)

    for _ in range(15):
        met, _ = advance(met)
    _, (swept, values) = advance(met)
    row = int(np.flatnonzero((swept.states == S0) & (swept.times > 0))[0])
    found = float(values[row].max() * member.scale + member.baseline / (1 - TIGER.gamma))
    want = solve_bayes(TIGER, TIGER_REWARD)
    assert want.closed
    assert found == pytest.approx(want.lower, abs=1e-3 * np.ptp(TIGER_REWARD))
    assert values[row].argmax() == LISTEN


# ── gradients and equations ──────────────────────────────────────────────────────────────────────


def trap() -> tuple[TabularCMDP, SampledTargets, MemberParams]:
    """Wait (action 0) or go (action 1), from which there is no return; γ = 1/2."""
    table = np.zeros((1, 2, 2, 2))
    table[0, 0, 0, 0] = table[0, 0, 1, 1] = table[0, 1, :, 1] = 1
    cmdp = TabularCMDP(table, [1.0], [1.0, 0.0], gamma=0.5)
    one = jnp.ones(())
    member = MemberParams(jnp.array([[0.1, 0.2], [0.3, 0.4]]), 0 * one, one, one)
    return cmdp, SampledTargets(cmdp, TableRewards()), member


TRAPPED = Trajectories(
    jnp.array([[0, 0, 1, 0]]),
    jnp.array([[0, 1, 0, 1]]),
    jnp.array([[True, False, False, True]]),
    jnp.zeros((1, 4), jnp.int32),
    jnp.ones((1, 4), bool),
    Categorical(jnp.zeros((1, 4, 1))),
)


def test_errors_by_hand():
    """Q is (1, 2) everywhere, and the target network's (30, 20): of the best action, 20.

    Waiting: 1 − (0.1 + ½ 20). Going: 2 − (0.2 + ½ 0.8), for the best reward in the trap is 0.4,
    for ever. There: 1 − (0.3 + ½ 0.8), and not what the next episode is worth.
    """
    cmdp, targets, member = trap()

    def constant(*values: float) -> ValueNetwork:
        network = value_network(cmdp)
        head = jnp.zeros_like(network.head).at[:, -1].set(jnp.array(values) * jnp.sqrt(32))
        return network.with_head(head)

    network, target = constant(1, 2), constant(30, 20)
    found = targets.td_errors(network, target, member, TRAPPED)
    np.testing.assert_allclose(found, [[-9.1, 1.4, 0.3]], rtol=1e-5)


def test_what_differs_between_actions_counts_for_more():
    """Errors of 1 and 3 are 2 on average, and 1 apart from that."""
    assert weigh_errors(jnp.array([[1.0, 3.0]]), 10.0) == pytest.approx(4 + 10 * 1)
    errors = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    assert weigh_errors(errors, 1.0) == pytest.approx(float((errors**2).mean()))


def test_equations_are_where_the_errors_are_uncorrelated_with_what_the_head_sees():
    """constant − cross · head is the mean of x δ over steps, whatever the head."""
    cmdp, targets, member = trap()
    network = value_network(cmdp)
    equations = targets.equations(network, member, TRAPPED)
    errors = targets.td_errors(network, network, member, TRAPPED)[0]
    hidden = unroll(cmdp, network, TRAPPED)[0, :-1]
    taken = jax.nn.one_hot(TRAPPED.actions[0, :-1], 2)
    want = -jnp.einsum("t,ta,th->ah", errors, taken, hidden) / 3
    found = equations.constant - equations.cross @ network.head.reshape(-1, 1)
    np.testing.assert_allclose(found.reshape(2, -1), want, atol=1e-5)
    gram = jnp.einsum("ta,th,tb,tk->ahbk", taken, hidden, taken, hidden).reshape(66, 66) / 3
    np.testing.assert_allclose(equations.gram, gram, atol=1e-5)


def test_a_small_system_is_solved():
    """In double precision, so that nothing but the algorithm is left; by a direct solve."""
    rng = np.random.default_rng(0)
    here, ahead = rng.normal(size=(2, 50, 4))
    gram, cross = here.T @ here / 50, here.T @ (here - 0.9 * ahead) / 50
    constant = here.T @ rng.normal(size=(50, 2)) / 50
    with jax.enable_x64(True):
        factors = heads.factorise(jnp.asarray(gram), jnp.asarray(cross), ridge=1e-9, proximity=1e-4)
        head = jnp.zeros((4, 2))
        for _ in range(6):
            head = head + heads.step(factors, constant - cross @ head)
    np.testing.assert_allclose(head, np.linalg.solve(cross, constant), rtol=1e-6)


def test_a_system_without_a_solution_does_not_blow_up():
    """A feature that is never on, and one that is twice another."""
    rng = np.random.default_rng(0)
    here = rng.normal(size=(50, 2)) @ np.array([[1.0, 2, 0, 0], [0, 0, 1, 0]])
    gram = jnp.asarray(here.T @ here / 50, jnp.float32)
    constant = jnp.asarray(here.T @ rng.normal(size=(50, 1)) / 50, jnp.float32)
    factors = heads.factorise(gram, gram, ridge=1e-3, proximity=1e-4)
    head = heads.step(factors, constant)
    assert jnp.isfinite(head).all()
    left = jnp.abs(constant - gram @ head).max() / jnp.abs(constant).max()
    assert left < 0.05  # the ridge is 1e-3 of the mean of the diagonal


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


def test_replay_keeps_the_latest():
    kept = replay.init(jax.ShapeDtypeStruct((), jnp.int32), 4)
    kept = replay.add(kept, jnp.array([1, 2, 3]))
    assert set(replay.sample(kept, jax.random.key(0), 100).tolist()) == {1, 2, 3}
    kept = replay.add(kept, jnp.array([4, 5, 6]))
    assert int(kept.num_added) == 6
    assert set(replay.sample(kept, jax.random.key(0), 100).tolist()) == {3, 4, 5, 6}


# ── rewards ──────────────────────────────────────────────────────────────────────────────────────


def predicted(k: float | None = 0.5, states: tuple[str, ...] = ("T1", "T2")) -> PredictiveReward:
    exploration = None if k is None else CostOfExploration(list(states), k=Fixed(k))
    weights = np.array([-52.35, -83.84, -83.84, -100, -4.07, 10])
    return PredictiveReward(TIGER, weights, 0.0, np.eye(6), 1.0, (-100.0, 10.0), exploration)


@pytest.mark.parametrize("shift", [0.0, 1.0, -1_000.0])
@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_a_reward_shifted_or_scaled_is_the_same_to_the_learner(shift, scale):
    """Up to float32; the values that it stands for are not lost."""
    _, plain = prepare_tables(TIGER, [TIGER_REWARD], [1e-3])
    _, moved = prepare_tables(TIGER, [scale * TIGER_REWARD + shift], [1e-3])
    np.testing.assert_allclose(moved.reward, plain.reward, atol=1e-6)
    np.testing.assert_allclose(moved.targets, plain.targets, atol=1e-4)
    np.testing.assert_allclose(moved.scale, scale * plain.scale, rtol=1e-6)
    want = scale * plain.baseline + shift
    np.testing.assert_allclose(moved.baseline, want, rtol=1e-5, atol=1e-4)


def test_the_informed_are_worth_nothing_at_the_start():
    """That is what the baseline is: what an agent who is told the context gets a step."""
    _, members = prepare_tables(TIGER, [TIGER_REWARD], [1e-3])
    np.testing.assert_allclose(members.targets[0, :, S0].mean(), 0, atol=1e-5)
    assert float(members.scale[0]) == np.float32(np.ptp(TIGER_REWARD))


def test_a_simulator_gets_the_rewards_of_the_table():
    hidden = Hidden(TIGER)
    reward = dataclasses.replace(
        predicted(), cmdp=hidden, exploration=explored(hidden, T1, T2, k=0.5)
    )
    model, members = prepare_linear(hidden, [reward], [1e-3], [-20.0])
    own = jax.tree.map(lambda leaf: leaf[0], members.reward)
    found = jnp.stack([model(own, {"place": jnp.asarray(state)}) for state in range(6)])
    want = np.array([-52.35, 5, 5, -100, -4.07, 10])
    np.testing.assert_allclose(found, np.repeat((want[:, None] + 20) / 110, 3, 1), atol=1e-6)


def explored(cmdp: Hidden, *states: int, k: float) -> CostOfExploration:
    def contains(state):
        return functools.reduce(jnp.logical_or, [state["place"] == s for s in states])

    return CostOfExploration(contains, k=Fixed(k))


def test_rewards_that_cannot_be_learned_for():
    with pytest.raises(ConfigError, match="must not be the same everywhere"):
        prepare_tables(TIGER, [np.ones(6)], [1e-3])
    hidden = Hidden(TIGER)
    with pytest.raises(ConfigError, match="must be a `PredictiveReward`"):
        prepare_linear(hidden, [TIGER_REWARD], [1e-3], None)
    sets = [explored(hidden, T1, k=0.5), None]
    rewards = [dataclasses.replace(predicted(), cmdp=hidden, exploration=one) for one in sets]
    with pytest.raises(ConfigError, match="must have one exploration set"):
        prepare_linear(hidden, rewards, [1e-3, 1e-3], None)


# ── beliefs ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [3, 11])
def test_each_possible_step_looked_at_once_tells_the_same(width):
    """As every step of the episodes one by one; a large maze has too many possible ones."""
    row = "." * (width // 2)
    rows = [f"#{row}.{row}#"] * (width // 2)
    plan = ["#" * (width + 2), *rows, f"L{row}S{row}R", f"#{row}x{row}#", *rows[1:]]
    maze = envs.make("tiger-maze", map=[*plan, "#" * (width + 2)], p_hear=0.85)
    inference = AmortisedInference(
        jnp.asarray(maze.observation_array()),
        context_prior=maze.context_prior,
        num_actions=maze.num_actions,
        config=NetworkConfig(width=16),
        core_width=None,
        key=jax.random.key(0),
    )
    head = jax.random.normal(jax.random.key(1), inference.head.weight.shape) / 10
    inference = eqx.tree_at(lambda p: p.head.weight, inference, head)
    trajectories = roll_out(
        maze, value_network(maze), jax.random.key(2), num_envs=32, horizon=20, epsilon=1.0
    )
    memories, _ = inference.unroll(maze, trajectories)
    few = maze.successors.size <= trajectories.actions.size
    assert few == (width == 3), "the other way is not tested"
    found = inference.log_beliefs(maze, trajectories)
    np.testing.assert_allclose(found, inference.belief(memories).log_probs, atol=1e-5)


# ── learning ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_kaelblings_tiger_is_learned():
    """Its value too, 3.77, which the regret is measured from."""
    cmdp, reward, value = kaelbling_tiger()
    found = learn_policies(cmdp, [reward] * 2, seeds=[0, 1], exploration_states=["T1", "T2"])
    for learned in found:
        assert learned.regret is not None and learned.regret.normalised is not None
        assert learned.regret.normalised <= 0.01
        assert learned.regret.optimal == pytest.approx(value, abs=2e-4)
        assert learned.regret.value == pytest.approx(value, abs=0.05)


@pytest.mark.parametrize("rewards, seeds", [([TIGER_REWARD], [0, 1]), ([], [])])
def test_as_many_rewards_as_seeds(rewards, seeds):
    with pytest.raises(ConfigError, match=f"got {len(rewards)} and {len(seeds)}"):
        learn_policies(TIGER, rewards, seeds=seeds)


def test_kinds_of_belief():
    """Exact where what is seen tells the state, but not for pictures; learned anywhere else."""
    blurred = TabularCMDP(
        DETOUR.transitions,
        DETOUR.context_prior,
        DETOUR.initial,
        gamma=0.99,
        observations=np.ones((6, 2)),
    )
    maze = envs.make("tiger-maze", observation="pixels")
    for cmdp, learned in ((DETOUR, False), (blurred, True), (maze, True), (Hidden(DETOUR), True)):
        assert learner_of(cmdp).distils is learned
    exactly = dataclasses.replace(SMALL, model=PolicyConfig(belief="exact"))
    assert not learner_of(maze, exactly).distils
    for cmdp in (blurred, Hidden(DETOUR)):
        with pytest.raises(ConfigError, match="`belief` can be 'exact' only where"):
            learner_of(cmdp, exactly)


def test_a_core_or_another_model_learns_from_what_followed():
    """Sweeps over hyperstates need a finite problem, its exact filter, and nothing remembered."""
    remembering = dataclasses.replace(SMALL, model=PolicyConfig(core="gru"))
    sampling = dataclasses.replace(SMALL, sweep=False)
    assert isinstance(learner_of(DETOUR).targets, SweptTargets)
    for learner in (
        learner_of(DETOUR, remembering),
        learner_of(DETOUR, sampling),
        learner_of(DETOUR, SMALL, ExactInference(DETOUR)),
        learner_of(Hidden(DETOUR)),
    ):
        assert isinstance(learner.targets, SampledTargets)


def test_the_exact_filter_when_it_is_given_is_the_same_as_when_it_is_not():
    """To the last bit, of what is learned and of what is told."""
    learner = learner_of(DETOUR, SMALL, FiniteInference(DETOUR))
    assert isinstance(learner.targets, SweptTargets)
    plain, given = detour_run(False), detour_run(False, inference=FiniteInference(DETOUR))
    assert given.history == plain.history and given.regret == plain.regret
    for one, other in zip(
        jax.tree.leaves(given.policy), jax.tree.leaves(plain.policy), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_model_that_is_given_is_what_is_believed_by():
    """Also where the problem is finite: here one that takes every hearing for noise.

    Sweeps would foresee the beliefs of the problem's own filter, so there are none.
    """
    deaf = FiniteInference(envs.make("tiger-treasure", p_hear=0.5))
    learner = learner_of(TIGER, SMALL, deaf)
    assert isinstance(learner.targets, SampledTargets) and not learner.distils
    stage = ValuesStage(learner)
    keys, like = jnp.stack([jax.random.key(0)]), row_like(TIGER, 20, deaf.belief(deaf.init()))
    states = init_members(learner, keys, jnp.arange(TIGER.num_states), like)
    _, members = prepare_tables(TIGER, [TIGER_REWARD], [1e-3])
    states, _ = advance(stage, states, members, 1)
    kept = jax.tree.map(lambda leaf: leaf[0][:16], states.replay.items)
    heard = np.isin(kept.states, [T1, T2])
    told = np.isin(np.roll(kept.states, 1, 1), [3, 4]) & ~np.asarray(kept.first)
    assert heard.sum() > 10 and told.sum() > 10
    probs = np.asarray(kept.notes.probs)
    np.testing.assert_allclose(probs[heard], 0.5, rtol=1e-6)
    np.testing.assert_array_equal(probs[told], np.eye(2)[np.asarray(kept.contexts)[told]])
    [learned] = learn_policies(TIGER, [TIGER_REWARD], seeds=[0], config=SMALL, inference=deaf)
    assert isinstance(learned.policy.inference, FiniteInference)
    np.testing.assert_array_equal(
        learned.policy.inference.cmdp.probabilities, deaf.cmdp.probabilities
    )


def detour_run(
    hidden: bool,
    callbacks: Sequence[Callback] = (),
    inference: InferenceModel | None = None,
    num_updates: int = SMALL.num_updates,
) -> LearnedPolicy:
    """Goes on to the end: this seed begins with the wrong action, and at this learning rate ends
    with it."""
    cmdp = Hidden(DETOUR) if hidden else DETOUR
    weights = np.array([0.0, 0, -1, 2, 0, 0])
    reward = PredictiveReward(cmdp, weights, 0.0, np.eye(6), 1.0, (-1.0, 2.0), None)
    config = dataclasses.replace(SMALL, learning_rate=1e-9, patience=100, num_updates=num_updates)
    return learn_policies(
        cmdp, [reward], seeds=[3], config=config, inference=inference, callbacks=callbacks
    )[0]


@pytest.mark.parametrize("hidden", [False, True])
def test_nothing_is_compiled_in_steady_state(hidden, caplog):
    """Once a stage has had two chunks, and in a second call with the same settings."""

    def count(*programs: str) -> int:
        messages = [record.getMessage() for record in caplog.records]
        begins = tuple(f"Compiling jit({program}" for program in programs)
        return sum(message.startswith(begins) for message in messages)

    learning = "_advance", "init_members", "_play"
    counts: dict[str, list[int]] = {}
    with jax.log_compiles():
        told = [lambda event: counts.setdefault(event.phase, []).append(count(""))]
        detour_run(hidden, told, num_updates=4)  # as no other test has them
        compiled = count(*learning)
        detour_run(hidden, num_updates=4)
    assert compiled == (4 if hidden else 2), "each program once"
    assert count(*learning) == compiled
    assert list(counts) == ["policy", "settling-policy"][: 1 + hidden]
    for totals in counts.values():
        assert totals[1:] == [totals[1]] * 3


def test_what_is_measured_is_in_the_events():
    """Of every member's policy, from before anything is learned on."""
    rewards = [np.repeat(TIGER_REWARD[:, None], 3, 1)] * 2
    found = learn_policies(
        TIGER,
        rewards,
        seeds=[0, 1],
        config=SMALL,
        measure=lambda policy: {"listens": float(np.argmax(policy.network.head.sum(-1)) == LISTEN)},
    )
    for learned in found:
        first, *later = learned.history
        assert first.step == 0 and set(first.metrics) == {"listens"}
        assert len(later) == SMALL.num_iterations
        assert all(event.metrics["listens"] in (0.0, 1.0) for event in later)


def test_the_result_tells_how_it_came_about():
    heard: list[Event] = []
    found = detour_run(True, [heard.append])
    assert [event.step for event in heard] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert {event.phase: event.total for event in heard} == {"policy": 4, "settling-policy": 4}
    assert [event.step for event in found.history] == [event.step for event in heard]
    assert set(found.history[0].metrics) == {"return", "loss", "belief_loss", "reward"}
    returns = [metric_values("return", event.metrics["return"]).item() for event in found.history]
    assert found.discounted_return == max(returns)
    assert found.regret is None and found.certificate is None


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: BayesRLConfig(num_updates=0), "`num_updates` must be at least 1, got 0"),
        (lambda: BayesRLConfig(max_rounds=-1), "`max_rounds` must not be negative, got -1"),
        (lambda: BayesRLConfig(advantage_weight=0.0), "`advantage_weight` must be positive"),
        (lambda: BayesRLConfig(ridge=0.0), "`ridge` must be positive, got 0.0"),
        (lambda: BayesRLConfig(target_rate=1.5), "`target_rate` must be above 0 and at most 1"),
        (lambda: BayesRLConfig(target_regret=-0.1), "`target_regret` must not be negative"),
        (lambda: BayesRLConfig(num_iterations=0, max_rounds=0), "nothing would be learned"),
        (lambda: RolloutConfig(epsilon_end=1.5), "`epsilon_end` must be from 0 to 1, got 1.5"),
        (lambda: RolloutConfig(horizon=0), "`horizon` must be at least 1, got 0"),
        (lambda: RolloutConfig(num_environments=11, replay_size=10), "`replay_size` must hold"),
    ],
)
def test_settings_that_cannot_be(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_papers_tables():
    treasure, maze = paper_tiger_treasure(), paper_tiger_maze()
    assert (treasure.num_iterations, maze.num_iterations) == (20_000, 100_000)
    assert (treasure.rollout.horizon, maze.rollout.horizon) == (50, 40)
    assert (treasure.rollout.replay_size, maze.rollout.replay_size) == (200_000, 10_000)
    assert (treasure.model.core, maze.model.core) == ("none", "gru")
    for table in (treasure, maze):
        assert table.rollout.num_environments == 16 and table.rollout.batch_size == 100
        assert table.learning_rate == 1e-4 and not table.decay and table.max_rounds == 0


# ── random problems ──────────────────────────────────────────────────────────────────────────────


@functools.cache
def worth_exploring(count: int) -> list[tuple[TabularCMDP, np.ndarray]]:
    """Random problems in which what can be learned is worth 5% of the reward's range."""
    found: list[tuple[TabularCMDP, np.ndarray]] = []
    seed = 0
    while len(found) < count:
        cmdp = random_cmdp(seed, num_contexts=3, num_states=5, num_actions=3, sparsity=0.6)
        reward = np.random.default_rng([seed, 1]).uniform(size=(5, 3))
        best = solve_bayes(cmdp, reward, BayesConfig(time_limit=10.0))
        never = never_exploring_value(cmdp, reward, np.zeros(reward.shape, bool))
        assert never is not None
        if best.closed and best.lower - never >= 0.05 * np.ptp(reward):
            found.append((cmdp, reward))
        seed += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("place", range(5))
def test_random_problems_are_learned(place):
    cmdp, reward = worth_exploring(5)[place]
    for learned in learn_policies(cmdp, [reward] * 3, seeds=[0, 1, 2]):
        assert learned.regret is not None and learned.regret.normalised is not None
        assert learned.regret.normalised <= 0.01
