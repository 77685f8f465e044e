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
from bigtrain.bayes_rl import BayesRLConfig, RolloutConfig, backups
from bigtrain.bayes_rl.config import paper_tiger_maze, paper_tiger_treasure
from bigtrain.bayes_rl.lanes import Lanes, roll_out
from bigtrain.bayes_rl.learn import make_learner
from bigtrain.bayes_rl.learner import Learner, track, weigh_errors
from bigtrain.bayes_rl.rewards import Numbers, RewardModel, prepare
from bigtrain.belief import Belief, ExactFilter, Posterior, filter_trajectory
from bigtrain.errors import ConfigError
from bigtrain.exploration import PredictiveReward
from bigtrain.finite import hyperstate_table as hyperstates
from bigtrain.finite.evaluation import never_exploring_value
from bigtrain.finite.exact import solve_bayes
from bigtrain.finite.exact.bayes import BayesConfig
from bigtrain.finite.hyperstate_table import Met
from bigtrain.finite.inference import FiniteInference
from bigtrain.learning.networks import NetworkConfig
from bigtrain.phases.learn import LearnedPolicy, learn_policies
from bigtrain.policy import NetworkPolicy, PolicyConfig, ValueNetwork
from bigtrain.policy.network import Core
from bigtrain.problem import NO_ACTION
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


def tiger_learner(config: BayesRLConfig) -> tuple[Learner, Numbers]:
    """A learner of the tiger, and the numbers of its only member."""
    model, numbers = prepare(TIGER, [np.repeat(TIGER_REWARD[:, None], 3, 1)], [1e-3], None)
    return make_learner(TIGER, model, config), jax.tree.map(lambda leaf: leaf[0], numbers)


@functools.cache
def tiger_lanes(core: Core = "none", epsilon: float = 0.5) -> Lanes:
    return eqx.filter_jit(roll_out)(
        TIGER,
        ExactFilter(TIGER),
        value_network(TIGER, core),
        jax.random.key(2),
        num_lanes=8,
        horizon=40,
        epsilon=epsilon,
    )


def split(lanes: Lanes) -> list[tuple[int, slice]]:
    """The episodes of lanes: the lane, and the moments."""
    episodes = []
    for lane, previous in enumerate(np.asarray(lanes.previous)):
        begins = np.flatnonzero(previous == NO_ACTION)
        ends = [*begins[1:], len(previous)]
        episodes += [(lane, slice(*span)) for span in zip(begins, ends, strict=True)]
    return episodes


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────


def test_an_episode_begins_after_an_absorbing_moment_and_nowhere_else():
    lanes = tiger_lanes()
    assert lanes.actions.shape == (8, 41)
    np.testing.assert_array_equal(lanes.absorbing, lanes.states == ST)
    begins = np.asarray(lanes.previous) == NO_ACTION
    assert begins[:, 0].all() and begins[:, 1:].sum() > 20
    np.testing.assert_array_equal(begins[:, 1:], lanes.absorbing[:, :-1])
    np.testing.assert_array_equal(lanes.states[begins], S0)
    went_on = np.asarray(lanes.previous)[:, 1:][~begins[:, 1:]]
    np.testing.assert_array_equal(went_on, lanes.actions[:, :-1][~begins[:, 1:]])


def test_episodes_of_lanes_are_episodes_of_the_problem():
    """Each has one context, in which its steps are possible, and the beliefs of the filter."""
    lanes = tiger_lanes()
    table = dense(TIGER)
    contexts = []

    @jax.jit
    def beliefs(states, actions):
        return filter_trajectory(ExactFilter(TIGER), states, actions[:-1])[0]

    for place in split(lanes):
        states, actions, own = lanes.states[place], lanes.actions[place], lanes.contexts[place]
        assert len(set(own.tolist())) == 1
        contexts.append(int(own[0]))
        assert (table[own[:-1], states[:-1], actions[:-1], states[1:]] > 0).all()
        want = beliefs(*(jnp.pad(part, (0, 41 - len(part))) for part in (states, actions)))
        found = lanes.log_beliefs[place]
        np.testing.assert_allclose(found, want.log_probs[: len(found)], atol=1e-5)
    assert 0.3 < np.mean(contexts) < 0.7  # of some 60 fair draws: three standard deviations


def test_lanes_explore_from_not_at_all_to_twice_epsilon():
    network = value_network(TIGER)
    greedy = {}
    for epsilon in (0.0, 0.5):
        lanes = tiger_lanes(epsilon=epsilon)
        values = backups.unroll(TIGER, network, lanes) @ network.head.T
        greedy[epsilon] = np.asarray(lanes.actions == values.argmax(-1))
    assert greedy[0.0].all() and greedy[0.5][0].all()
    assert 0.1 < greedy[0.5][-1].mean() < 0.6  # a third, by chance: three standard deviations


@pytest.mark.parametrize("core", ["none", "gru"])
def test_lanes_unrolled_are_what_the_policy_sees_step_by_step(core):
    network, lanes = value_network(TIGER, core), tiger_lanes(core)
    values = np.asarray(backups.unroll(TIGER, network, lanes) @ network.head.T)
    policy = NetworkPolicy(FiniteInference(TIGER), network, 0.0, 1.0, TIGER.gamma)
    step = eqx.filter_jit(policy.step)
    for place in split(lanes)[-6:]:
        memory = policy.init()
        for state, previous, want in zip(
            lanes.states[place], lanes.previous[place], values[place], strict=True
        ):
            memory, decision = step(memory, TIGER.observe(state), previous)
            np.testing.assert_allclose(decision.values, want, atol=1e-4)


# ── hyperstates ──────────────────────────────────────────────────────────────────────────────────

INFORMED = jnp.arange(12.0).reshape(2, 6)


def met_by_lanes(num_places: int = 64) -> Met:
    return hyperstates.add_lanes(hyperstates.nothing(num_places, 2), tiger_lanes(), INFORMED)


def names(states, log_beliefs) -> list[tuple[int, float]]:
    """The hyperstates of the tiger by state and rounded belief, apart from the code under test."""
    beliefs = np.exp(np.asarray(log_beliefs, np.float64)[..., 0]).ravel()
    return list(zip(np.ravel(states).tolist(), beliefs.round(4).tolist(), strict=True))


def test_each_hyperstate_is_met_once_and_counted():
    lanes, met = tiger_lanes(), met_by_lanes()
    want: dict[tuple[int, float], int] = {}
    for name in names(lanes.states, lanes.log_beliefs):
        want[name] = want.get(name, 0) + 1
    there = np.asarray(met.times) > 0
    found = names(met.states[there], met.log_beliefs[there])
    assert dict(zip(found, met.times[there].astype(int).tolist(), strict=True)) == want
    assert len(found) == len(want) and met.times.sum() == lanes.states.size
    again = hyperstates.add_lanes(met, lanes, INFORMED)
    np.testing.assert_array_equal(np.sort(again.times), 2 * np.sort(met.times))


def test_where_there_is_no_room_the_most_met_stay():
    all_of_them, few = met_by_lanes(), met_by_lanes(4)
    np.testing.assert_array_equal(few.times, np.sort(all_of_them.times)[::-1][:4])


def worths(met: Met) -> dict[tuple[int, float], float]:
    there = met.times > 0
    found = names(met.states[there], met.log_beliefs[there])
    return dict(zip(found, met.worth[there].tolist(), strict=True))


def test_what_the_informed_get_is_the_first_guess_and_gives_way_to_what_is_found_out():
    met = met_by_lanes()
    new = (met.times > 0) & (met.states != S0)
    want = (jnp.exp(met.log_beliefs) * INFORMED.T[met.states]).sum(-1)
    np.testing.assert_allclose(met.worth[new], want[new], rtol=1e-5)
    found_out = met._replace(worth=jnp.arange(64.0))
    assert worths(hyperstates.add_lanes(found_out, tiger_lanes(), INFORMED)) == worths(found_out)


def test_what_may_follow_is_by_the_belief_and_the_filter():
    cmdp = random_cmdp(0, num_contexts=3, num_states=4, sparsity=0.4)
    rng = np.random.default_rng(0)
    log_beliefs = jnp.log(jnp.asarray(rng.dirichlet(np.ones(3), 8), jnp.float32))
    states = jnp.asarray(rng.integers(4, size=8))
    met = Met(states, log_beliefs, jnp.ones(8), jnp.zeros(8))
    ahead = hyperstates.look_ahead(cmdp, met)
    np.testing.assert_allclose(ahead.probs.sum(-1), 1, rtol=1e-5)
    table, beliefs = dense(cmdp), np.exp(np.asarray(log_beliefs))
    checked = 0
    for place, action, k in np.ndindex(ahead.states.shape):
        state, follower = states[place], ahead.states[place, action, k]
        if (probability := ahead.probs[place, action, k]) == 0:
            continue
        want = beliefs[place] @ table[:, state, action, follower]
        assert probability == pytest.approx(want, rel=1e-4)
        after, info = ExactFilter(cmdp).update(
            Belief(log_beliefs[place]), state, jnp.asarray(action), follower
        )
        assert not info.impossible
        np.testing.assert_allclose(
            ahead.log_beliefs[place, action, k], after.log_probs, rtol=1e-4, atol=1e-5
        )
        checked += 1
    assert checked > 16


def test_what_has_been_met_is_found():
    met = met_by_lanes()
    ahead = hyperstates.look_ahead(TIGER, met)
    places = np.asarray(hyperstates.find(met, ahead))
    here = names(met.states, met.log_beliefs)
    known = {here[place] for place in np.flatnonzero(met.times > 0)}
    followers = names(ahead.states, ahead.log_beliefs)
    for place, follower in zip(places.ravel(), followers, strict=True):
        assert (place >= 0) == (follower in known)
        if place >= 0:
            assert here[place] == follower and met.times[place] > 0
    assert 0 < (places >= 0).mean() < 1


def test_places_are_drawn_as_often_as_their_weight_says():
    """Give or take one, whatever the offset; free places never, not even by rounding."""
    met = met_by_lanes()
    want = 256 * np.sqrt(met.times) / np.sqrt(met.times).sum()
    for offset in (0.0, 0.3, float(np.nextafter(np.float32(1), np.float32(0)))):
        drawn = hyperstates.sample(met, offset, 256)
        assert (np.abs(np.bincount(drawn, minlength=64) - want) < 1.01).all()
        assert (met.times[drawn] > 0).all()


def test_sweeps_find_the_exact_value():
    """From the root alone, with what may follow added a step at a time."""
    config = dataclasses.replace(SMALL, num_hyperstates=128)
    learner, numbers = tiger_learner(config)
    informed = numbers.informed
    assert informed is not None
    network = value_network(TIGER).with_head(jnp.zeros((3, 33)))
    root = jnp.array([S0]), jnp.log(jnp.full((1, 2), 0.5)), jnp.ones(1)
    met = hyperstates.add(hyperstates.nothing(128, 2), *root, informed)

    @eqx.filter_jit
    def advance(met):
        ahead = hyperstates.look_ahead(TIGER, met)
        met, values = backups.sweep(learner, network, numbers, met, ahead)
        return hyperstates.add_ahead(met, ahead, informed), (met, values)

    for _ in range(15):
        met, _ = advance(met)
    _, (swept, values) = advance(met)
    place = int(np.flatnonzero((swept.states == S0) & (swept.times > 0))[0])
    found = float(values[place].max() * numbers.scale + numbers.baseline / (1 - TIGER.gamma))
    want = solve_bayes(TIGER, TIGER_REWARD)
    assert want.closed
    assert found == pytest.approx(want.lower, abs=1e-3 * np.ptp(TIGER_REWARD))
    assert values[place].argmax() == LISTEN


# ── gradients and equations ──────────────────────────────────────────────────────────────────────


def trap() -> tuple[TabularCMDP, Learner, Numbers]:
    """Wait (action 0) or go (action 1), from which there is no return; γ = 1/2."""
    table = np.zeros((1, 2, 2, 2))
    table[0, 0, 0, 0] = table[0, 0, 1, 1] = table[0, 1, :, 1] = 1
    cmdp = TabularCMDP(table, [1.0], [1.0, 0.0], gamma=0.5)
    reward = jnp.array([[0.1, 0.2], [0.3, 0.4]])
    one = jnp.ones(())
    numbers = Numbers(reward, 0 * one, one, one, jnp.zeros((1, 2)))
    return cmdp, make_learner(cmdp, RewardModel(cmdp, None), SMALL), numbers


TRAP_LANES = Lanes(
    jnp.array([[0, 0, 1, 0]]),
    jnp.zeros((1, 4, 1)),
    jnp.array([[0, 1, 0, 1]]),
    jnp.array([[NO_ACTION, 0, 1, NO_ACTION]]),
    jnp.array([[False, False, True, False]]),
    jnp.zeros((1, 4), jnp.int32),
)


def test_errors_by_hand():
    """Q is (1, 2) everywhere, and the target network's (30, 20): of the best action, 20.

    Waiting: 1 − (0.1 + ½ 20). Going: 2 − (0.2 + ½ 0.8), for the best reward in the trap is 0.4,
    for ever. There: 1 − (0.3 + ½ 0.8), and not what the next episode is worth.
    """
    cmdp, learner, numbers = trap()

    def constant(*values: float) -> ValueNetwork:
        network = value_network(cmdp)
        head = jnp.zeros_like(network.head).at[:, -1].set(jnp.array(values) * jnp.sqrt(32))
        return network.with_head(head)

    network, target = constant(1, 2), constant(30, 20)
    found = backups.sampled_errors(learner, network, target, numbers, TRAP_LANES)
    np.testing.assert_allclose(found, [[-9.1, 1.4, 0.3]], rtol=1e-5)


def test_what_differs_between_actions_counts_for_more():
    """Errors of 1 and 3 are 2 on average, and 1 apart from that."""
    assert weigh_errors(jnp.array([[1.0, 3.0]]), 10.0) == pytest.approx(4 + 10 * 1)
    errors = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    assert weigh_errors(errors, 1.0) == pytest.approx(float((errors**2).mean()))


def test_equations_are_where_the_errors_are_uncorrelated_with_what_the_head_sees():
    """constant − cross · head is the mean of x δ over steps, whatever the head."""
    cmdp, learner, numbers = trap()
    network = value_network(cmdp)
    equations = backups.sampled_equations(learner, network, numbers, TRAP_LANES)
    errors = backups.sampled_errors(learner, network, network, numbers, TRAP_LANES)[0]
    hidden = backups.unroll(cmdp, network, TRAP_LANES)[0, :-1]
    taken = jax.nn.one_hot(TRAP_LANES.actions[0, :-1], 2)
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


def test_a_ring_keeps_the_latest():
    kept = replay.empty(jax.ShapeDtypeStruct((), jnp.int32), 4)
    kept = replay.push(kept, jnp.array([1, 2, 3]))
    assert set(replay.sample(kept, jax.random.key(0), 100).tolist()) == {1, 2, 3}
    kept = replay.push(kept, jnp.array([4, 5, 6]))
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
    _, plain = prepare(TIGER, [TIGER_REWARD], [1e-3], None)
    _, moved = prepare(TIGER, [scale * TIGER_REWARD + shift], [1e-3], None)
    np.testing.assert_allclose(moved.reward, plain.reward, atol=1e-6)
    assert moved.informed is not None and plain.informed is not None
    np.testing.assert_allclose(moved.informed, plain.informed, atol=1e-4)
    np.testing.assert_allclose(moved.scale, scale * plain.scale, rtol=1e-6)
    want = scale * plain.baseline + shift
    np.testing.assert_allclose(moved.baseline, want, rtol=1e-5, atol=1e-4)


def test_the_informed_are_worth_nothing_at_the_start():
    """That is what the baseline is: what an agent who is told the context gets a step."""
    _, numbers = prepare(TIGER, [TIGER_REWARD], [1e-3], None)
    assert numbers.informed is not None
    np.testing.assert_allclose(numbers.informed[0, :, S0].mean(), 0, atol=1e-5)
    assert float(numbers.scale[0]) == np.float32(np.ptp(TIGER_REWARD))


def test_a_simulator_gets_the_rewards_of_the_table():
    hidden = Hidden(TIGER)
    reward = dataclasses.replace(
        predicted(), cmdp=hidden, exploration=explored(hidden, T1, T2, k=0.5)
    )
    model, numbers = prepare(hidden, [reward], [1e-3], [-20.0])
    own = jax.tree.map(lambda leaf: leaf[0], numbers)
    found = jnp.stack([model(own, {"place": jnp.asarray(state)}) for state in range(6)])
    want = np.array([-52.35, 5, 5, -100, -4.07, 10])
    np.testing.assert_allclose(found, np.repeat((want[:, None] + 20) / 110, 3, 1), atol=1e-6)


def explored(cmdp: Hidden, *states: int, k: float) -> CostOfExploration:
    def contains(state):
        return functools.reduce(jnp.logical_or, [state["place"] == s for s in states])

    return CostOfExploration(contains, k=Fixed(k))


def test_rewards_that_cannot_be_learned_for():
    with pytest.raises(ConfigError, match="must not be the same everywhere"):
        prepare(TIGER, [np.ones(6)], [1e-3], None)
    hidden = Hidden(TIGER)
    with pytest.raises(ConfigError, match="must be a `PredictiveReward`"):
        prepare(hidden, [TIGER_REWARD], [1e-3], None)
    sets = [explored(hidden, T1, k=0.5), None]
    rewards = [dataclasses.replace(predicted(), cmdp=hidden, exploration=one) for one in sets]
    with pytest.raises(ConfigError, match="must have one exploration set"):
        prepare(hidden, rewards, [1e-3, 1e-3], None)


# ── beliefs ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [3, 11])
def test_each_possible_step_looked_at_once_tells_the_same(width):
    """As every step of the lanes one by one; in a large maze there are too many possible ones."""
    row = "." * (width // 2)
    rows = [f"#{row}.{row}#"] * (width // 2)
    plan = ["#" * (width + 2), *rows, f"L{row}S{row}R", f"#{row}x{row}#", *rows[1:]]
    maze = envs.make("tiger-maze", map=[*plan, "#" * (width + 2)], p_hear=0.85)
    posterior = Posterior(
        jnp.asarray(maze.observation_array()),
        context_prior=maze.context_prior,
        num_actions=maze.num_actions,
        config=NetworkConfig(width=16),
        core_width=None,
        key=jax.random.key(0),
    )
    head = jax.random.normal(jax.random.key(1), posterior.head.weight.shape) / 10
    posterior = eqx.tree_at(lambda p: p.head.weight, posterior, head)
    lanes = roll_out(
        maze,
        ExactFilter(maze),
        value_network(maze),
        jax.random.key(2),
        num_lanes=32,
        horizon=20,
        epsilon=1.0,
    )
    codes = jax.vmap(jax.vmap(lambda state: posterior.encode(maze.observe(state))))(lanes.states)
    want = jax.vmap(posterior.unroll)(codes, lanes.previous)
    few = maze.successors.size <= lanes.actions.size
    assert few == (width == 3), "the other way is not tested"
    np.testing.assert_allclose(track(posterior, maze, lanes), want, atol=1e-5)


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
    for cmdp, learned in ((DETOUR, False), (blurred, True), (maze, True)):
        assert make_learner(cmdp, RewardModel(cmdp, None), SMALL).learn_belief is learned
    exactly = dataclasses.replace(SMALL, model=PolicyConfig(belief="exact"))
    assert not make_learner(maze, RewardModel(maze, None), exactly).learn_belief
    for cmdp in (blurred, Hidden(DETOUR)):
        with pytest.raises(ConfigError, match="`belief` can be 'exact' only where"):
            make_learner(cmdp, RewardModel(cmdp, None), exactly)


def test_a_core_or_a_filter_learns_from_what_followed():
    """Sweeps over hyperstates need a finite problem, its exact filter, and nothing remembered."""
    model = RewardModel(DETOUR, None)
    remembering = dataclasses.replace(SMALL, model=PolicyConfig(core="gru"))
    assert make_learner(DETOUR, model, SMALL).expected
    assert not make_learner(DETOUR, model, remembering).expected
    assert not make_learner(DETOUR, model, SMALL, ExactFilter(DETOUR)).expected


def detour_run(hidden: bool, callbacks: Sequence[Callback] = ()) -> LearnedPolicy:
    """Goes on to the end: at this learning rate nothing is good enough, nor waited for."""
    cmdp = Hidden(DETOUR) if hidden else DETOUR
    weights = np.array([0.0, 0, -1, 2, 0, 0])
    reward = PredictiveReward(cmdp, weights, 0.0, np.eye(6), 1.0, (-1.0, 2.0), None)
    config = dataclasses.replace(SMALL, learning_rate=1e-9, patience=100)
    return learn_policies(cmdp, [reward], seeds=[0], config=config, callbacks=callbacks)[0]


@pytest.mark.parametrize("hidden", [False, True])
def test_nothing_is_compiled_in_steady_state(hidden, caplog):
    """Once a stage has had two chunks, and in a second call with the same settings."""

    def count(*programs: str) -> int:
        messages = [record.getMessage() for record in caplog.records]
        begins = tuple(f"Compiling jit({program}" for program in programs)
        return sum(message.startswith(begins) for message in messages)

    learning = "learn_features", "settle", "init_members", "_play"
    counts: dict[str, list[int]] = {}
    with jax.log_compiles():
        detour_run(hidden, [lambda event: counts.setdefault(event.phase, []).append(count(""))])
        compiled = count(*learning)
        detour_run(hidden)
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
    assert (treasure.lanes.horizon, maze.lanes.horizon) == (50, 40)
    assert (treasure.lanes.replay_size, maze.lanes.replay_size) == (200_000, 10_000)
    assert (treasure.model.core, maze.model.core) == ("none", "gru")
    for table in (treasure, maze):
        assert table.lanes.num_environments == 16 and table.lanes.batch_size == 100
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
        never = never_exploring_value(cmdp, reward, ())
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
