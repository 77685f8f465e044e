"""Learning in simulators that can be stepped from anywhere: look-ahead, plans, beliefs by steps."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import Hidden, dense
from simulated import as_seen, car_flag_table, foggy_values, show

from bigtrain import (
    Actor,
    BeliefConfig,
    Contexts,
    CostOfExploration,
    Demonstrations,
    Discrete,
    Fixed,
    HostSimulator,
    IRLConfig,
    Trajectories,
    envs,
    evaluate,
    fit,
    infer_reward,
    learn_policies,
    looking,
)
from bigtrain.bayes_rl import LookAheadTargets, normalise
from bigtrain.belief import AmortisedInference, ExactInference
from bigtrain.errors import ConfigError
from bigtrain.exploration import PredictiveReward
from bigtrain.finite.exact import map_reward, planning
from bigtrain.learning import NetworkConfig
from bigtrain.phases import choose_inference, init_policies, route
from bigtrain.policy import PolicyConfig
from bigtrain.problem import MixedActor, draw_index, draw_mixes
from bigtrain.problem.envs import CarFlag, Foggy
from bigtrain.reward import (
    ExpertData,
    Learner,
    expert_data,
    init_seeds,
    plan_experience,
    planned,
)
from bigtrain.runs import Run

S0, HEARD, GOLD, TIGER, OVER = range(5)
DETOUR = envs.make("detour")


# ── the problems ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("simulator", [Foggy(), CarFlag()], ids=["foggy", "car-flag"])
def test_probabilities_of_transitions_are_those_of_the_steps(simulator):
    """What can follow has a probability, and more in its own context than in the other, on
    average."""
    mixes = draw_mixes(jax.random.key(0), 3, 500)
    played = simulator.collect(
        MixedActor(mixes), jax.random.key(1), num_envs=500, horizon=40, restart=False
    )
    before, after = played.states[:, :-1], played.states[:, 1:]
    each = jax.vmap(jax.vmap(simulator.context_log_likelihood))
    likelihoods = np.asarray(each(before, played.actions[:, :-1], after))
    contexts = np.asarray(played.contexts)[:, :-1, None]
    own = np.take_along_axis(likelihoods, contexts, -1)
    other = np.take_along_axis(likelihoods, 1 - contexts, -1)
    assert np.isfinite(own).all()
    told = np.clip(own - other, -20, 20)
    assert told.mean() > 0.01 and (told > 10).any()


def test_car_flag_is_its_table():
    """The simulator goes from place to place as the exact problem does."""
    table, simulator = car_flag_table(), CarFlag()
    seen = jnp.asarray(table.observation_array())
    successors = np.asarray(table.transitions.successors)
    probabilities = np.asarray(table.transitions.probabilities)
    for context in range(2):
        follow = jax.vmap(
            jax.vmap(lambda s, a, c: simulator.look(jax.random.key(0), s, a, c), (None, 0, None)),
            (0, None, None),
        )
        want = np.take_along_axis(successors, probabilities[context].argmax(-1)[..., None], -1)
        np.testing.assert_allclose(
            follow(seen, jnp.arange(3), jnp.asarray(context)), seen[want[..., 0]], atol=1e-6
        )


def test_foggy_is_worth_what_a_grid_says():
    """The known values and thresholds on the log-odds, with the true reward."""
    for k, value, threshold in (
        (0.5, -22.644, 2.472),
        (0.9, -13.382, 4.213),
        (0.97, -11.193, 5.448),
    ):
        found, grid, q = foggy_values(np.array([0, 10 * k, 10, -100, 10.0]))
        assert found == pytest.approx(value, rel=2e-3)
        assert grid[q.argmax(-1) == 2].max() == pytest.approx(threshold, abs=0.03)


# ── beliefs, by steps made anew ──────────────────────────────────────────────────────────────────


def test_a_belief_learned_from_steps_is_the_exact_one():
    simulator = Foggy(blind=True)
    config = BeliefConfig(num_iterations=60)
    model = choose_inference(
        route(simulator), None, Run(None, {}, fingerprint=""), config=config, seed=0
    )
    mixes = draw_mixes(jax.random.key(0), 3, 1_000)
    played = simulator.collect(
        MixedActor(mixes), jax.random.key(1), num_envs=1_000, horizon=40, restart=True
    )
    unroll = eqx.filter_jit(lambda model: model.unroll(simulator, played)[0])
    exact, learned = unroll(ExactInference(Foggy())), unroll(model)
    want, found = np.asarray(exact.log_belief), np.asarray(learned.log_belief)
    assert np.abs(np.exp(want) - np.exp(found)).sum(-1).mean() / 2 < 0.01
    odds, told = want[..., 1] - want[..., 0], found[..., 1] - found[..., 0]
    unsure = np.abs(odds) < 5
    assert np.abs(odds - told)[unsure].mean() < 0.2


# ── look-ahead ───────────────────────────────────────────────────────────────────────────────────


def test_a_look_ahead_is_the_exact_backup_where_nothing_is_left_to_chance():
    """On detour, whose steps are certain in each context: Σ_θ b(θ) V(s', b')."""
    simulator = Hidden(DETOUR)
    reward = PredictiveReward(
        simulator, np.array([0.0, 0, -1, 2, 0, 0]), 0.0, np.eye(6), 1.0, (-1.0, 2.0), None
    )
    config = dataclasses.replace(looking().policy, num_updates=2)
    chosen = route(simulator)
    model, members = chosen.rewards([reward], [1e-3], None)
    learner, _ = chosen.learner(ExactInference(simulator), model, config)
    targets = learner.targets
    assert isinstance(targets, LookAheadTargets)
    states = init_policies(learner, [0])
    state, member = jax.tree.map(lambda leaf: leaf[0], (states, members))
    mixes = draw_mixes(jax.random.key(0), 2, 16)
    played = simulator.collect(
        MixedActor(mixes), jax.random.key(1), num_envs=16, horizon=8, restart=True
    )
    _, lesson = targets.prepare(
        state.memory, member, state.average.values, played, jax.random.key(2)
    )
    np.testing.assert_allclose(lesson.probs.sum(-1), 1, rtol=1e-6)
    places, beliefs = np.asarray(lesson.states["place"]), np.exp(lesson.log_beliefs)
    dynamics = dense(DETOUR)  # [context, state, action, next state]
    for row in range(0, len(places), 37):
        for action in range(2):
            want = np.einsum("c,cn->n", beliefs[row], dynamics[:, places[row], action])
            found = np.zeros(6)
            np.add.at(
                found,
                np.asarray(lesson.next_states["place"])[row, action],
                lesson.probs[row, action],
            )
            np.testing.assert_allclose(found, want, atol=1e-6)


def test_rewards_are_normalised_by_what_random_episodes_bring():
    simulator = Foggy()
    reward = PredictiveReward(
        simulator, np.array([0, 0, 10.0, -100, 10]), 0.0, np.eye(5), 1.0, (-100.0, 10.0), None
    )
    chosen = route(simulator)
    model, members = chosen.rewards([reward], [1e-3], None)
    learner, _ = chosen.learner(ExactInference(simulator), model, looking().policy)
    after = normalise(learner, members)
    assert float(after.baseline[0]) == pytest.approx(10, rel=1e-5)  # nothing is got once it is over
    seen = jnp.eye(6)[:5]
    for member in (members, after):
        one = jax.tree.map(lambda leaf: leaf[0], member)
        got = jax.vmap(lambda s, m=one: model(m.reward, s))(seen)[:, 0] * one.scale + one.baseline
        np.testing.assert_allclose(got, [0, 0, 10, -100, 10], atol=1e-3)


# ── plans ────────────────────────────────────────────────────────────────────────────────────────


def test_plans_are_the_exact_ones_where_experts_were():
    """On Car-Flag, where a step more of driving in twenty is what the likelihood hangs on."""
    table, weights = car_flag_table(), np.array([-0.12, 0.136, 0.0])
    simulator, inference = CarFlag(), ExactInference(CarFlag())
    expert = as_seen(table, show(table, episodes=10, horizon=30)).trajectories(simulator)
    data = expert_data(simulator, expert, inference)
    experience = plan_experience(simulator, expert, data, 64)
    assert experience.is_deterministic
    assert not plan_experience(Foggy(), *foggy_data()[1:], 64).is_deterministic
    learner = Learner(simulator, inference, experience, as_arrays(data), planned())
    state = jax.tree.map(lambda leaf: leaf[0], init_seeds(learner, jax.random.key(0)[None]))
    memory, psi = experience.init(), jnp.zeros(())
    for number in range(25):
        memory, psi = experience.expert_features(
            memory,
            state.network,
            jnp.asarray(weights, jnp.float32),
            data.visited,
            jax.random.key(number),
        )
    reward = np.asarray(table.feature_table) @ weights
    exact = planning.successor_features(table, planning.plan(table, reward).policy)
    places = [
        int(np.abs(table.observation_array() - seen).sum(1).argmin()) for seen in data.visited
    ]
    missed = (exact[:, places] - np.asarray(psi)) @ weights  # [context, visited, action]
    own = np.exp(data.log_evidence)[data.trajectories] > 0.5  # which context a step was in
    at_step = missed[:, data.rows, data.actions].T
    assert missed.min() > -1e-4  # nothing is better than the best plan
    assert np.abs(at_step[own]).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_car_flag_settles_on_the_exact_reward(seed):
    table = car_flag_table()
    demos = show(table, episodes=100, horizon=40)
    exact = map_reward(table, demos, IRLConfig()).posterior.mean
    found = infer_reward(CarFlag(), as_seen(table, demos), config=planned(), seed=seed)
    assert found.settled
    np.testing.assert_allclose(found.posterior.mean, exact, atol=0.02 * np.ptp(exact))


# ── all of it ────────────────────────────────────────────────────────────────────────────────────


def foggy_data() -> tuple[Demonstrations, Trajectories, ExpertData]:
    """A hundred episodes of one who knows where the tiger is."""
    simulator = Foggy()
    played = simulator.collect(
        Expert(simulator), jax.random.key(0), num_envs=100, horizon=10, restart=False
    )
    demos = Demonstrations(
        np.asarray(played.states).reshape(-1, 6),
        np.asarray(played.actions)[:, :-1].ravel(),
        np.full(100, 10),
    )
    expert = demos.trajectories(simulator)
    return demos, expert, expert_data(simulator, expert, ExactInference(simulator))


class Expert(Actor):
    """Any of the actions that are best for one who knows the context."""

    num_draws = 1
    simulator: Foggy

    def init(self, env, context):
        return context

    def act(self, memory, state, previous_action, draws):
        best = jnp.broadcast_to(self.simulator.task.expert(state, memory), (3,))
        return memory, draw_index(best / best.sum(), draws[0]), None


@pytest.mark.slow
@pytest.mark.parametrize(("k", "seed"), [(0.5, 0), (0.9, 1), (0.97, 2)])
def test_foggy_is_learned_without_a_likelihood(k, seed):
    """Reward and policy, from demonstrations and a simulator that tells no probabilities."""
    simulator = Foggy(blind=True)
    heard = CostOfExploration(lambda seen: seen[HEARD] > 0, k=Fixed(k))
    result = fit(
        simulator,
        foggy_data()[0],
        reward_range=(-100.0, 10.0),
        exploration=heard,
        config=looking(),
        seed=seed,
    )
    reward = np.asarray(result.reward.weights) + result.reward.bias
    reward[HEARD] = 10 * k
    relative = jnp.asarray(reward - reward[OVER], jnp.float32)
    got = evaluate(
        result.policy,
        simulator,
        reward=lambda seen, action: relative @ seen[:5],
        episodes=40_000,
        horizon=80,
    ).discounted_return
    value, *_ = foggy_values(reward)
    assert got.mean > value - 0.01 * abs(value) - 3 * got.stderr


def test_what_cannot_be_stepped_from_anywhere_is_told_so():
    class Nothing:
        def reset(self, context: int, seed: int) -> np.ndarray:
            return np.zeros(2, np.float32)

        def step(self, action: int) -> np.ndarray:
            return np.zeros(2, np.float32)

    host = HostSimulator(
        Nothing,
        observation=jax.ShapeDtypeStruct((2,), np.float32),
        actions=Discrete(2),
        contexts=Contexts([0.5, 0.5]),
        gamma=0.9,
        features=lambda seen, action: seen,
    )
    assert not host.can_look
    demos = Demonstrations(np.zeros((3, 2), np.float32), [0, 1], [2])
    inference = AmortisedInference(
        jnp.eye(2),
        context_prior=[0.5, 0.5],
        num_actions=2,
        config=NetworkConfig(width=8),
        core_width=None,
        key=jax.random.key(0),
    )
    with pytest.raises(ConfigError, match="`plans` must be False: `HostSimulator` can be reset"):
        infer_reward(host, demos, config=planned(), inference=inference)
    reward = PredictiveReward(host, np.zeros(2), 0.0, np.eye(2), 1.0, (-1.0, 1.0), None)
    with pytest.raises(ConfigError, match="`looks` must be False: `HostSimulator` can be reset"):
        learn_policies(host, [reward], seeds=[0], config=looking().policy, inference=inference)
    config = dataclasses.replace(looking().policy, model=PolicyConfig(core="gru"))
    reward = PredictiveReward(Foggy(), np.ones(5), 0.0, np.eye(5), 1.0, (-1.0, 1.0), None)
    with pytest.raises(ConfigError, match="`core` must be 'none' where `looks` is set"):
        learn_policies(Foggy(), [reward], seeds=[0], config=config)


def as_arrays(data: ExpertData) -> ExpertData:
    return jax.tree.map(jnp.asarray, data)
