"""Simulated episodes and demonstrations as batches, against plain loops over their steps."""

import collections
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpy.typing import NDArray
from problems import Hidden, as_seen, dense, random_cmdp

from bigtrain import Demonstrations, envs
from bigtrain.belief import Categorical, ExactInference
from bigtrain.data.replay import Replay
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.experience import CountedExperience
from bigtrain.learning.networks import NetworkConfig
from bigtrain.phases.routing import route
from bigtrain.problem import CMDP, State, Trajectories
from bigtrain.reward.experience import ReplayedExperience, SampledContextActor, featurise
from bigtrain.reward.successor import Batch, SuccessorNetwork

Table = NDArray[np.float64]


class Preference(eqx.Module):
    """A table of what actions are worth."""

    table: Float[Array, "context state action"]

    def __call__(self, state: State, context: Int[Array, ""]) -> Float[Array, " action"]:
        return self.table[context, state["place"] if isinstance(state, dict) else state]


@eqx.filter_jit
def roll_out(
    cmdp: CMDP,
    preference: Float[Array, "context state action"],
    key: PRNGKeyArray,
    count: int,
    horizon: int,
    epsilon: float,
) -> Trajectories:
    """Episodes of someone who has a table of what actions are worth."""
    inference = route(cmdp).exact_inference()
    assert inference is not None
    encode = inference.state_encoder(cmdp, count * (horizon + 1))
    values = Preference(preference)
    actor = SampledContextActor(inference, encode, values, cmdp.num_actions, epsilon)
    return cmdp.collect(actor, key, num_envs=count, horizon=horizon, restart=False)


@eqx.filter_jit
def filtered(cmdp: CMDP, episodes: Trajectories) -> Categorical:
    """The beliefs at every moment of someone who looks on, and sees what states look like."""
    inference = ExactInference(cmdp)
    memories, _ = inference.unroll(cmdp, episodes)
    return inference.belief(memories)


def last_log_beliefs(episodes: Trajectories) -> Table:
    """What who acted believed in the end."""
    return np.asarray(episodes.notes.log_probs)[:, -1]


def random_preference(cmdp: TabularCMDP, seed: int = 0) -> jax.Array:
    shape = (cmdp.num_contexts, cmdp.num_states, cmdp.num_actions)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def some_episodes(cmdp: TabularCMDP, seed: int = 0) -> Trajectories:
    """Forty of eight random steps."""
    return roll_out(cmdp, random_preference(cmdp), jax.random.key(seed), 40, 8, 1.0)


def standard_error(share: float | Table, count: float | Table) -> float | Table:
    """Of a frequency."""
    return np.sqrt(share * (1 - np.asarray(share)) / count)


SPARSE = random_cmdp(3, 3, 5, 3, 0.9, sparsity=0.5)
TIGER = envs.make("tiger-treasure")
DETOUR = envs.make("detour")


# ── simulated episodes ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cmdp", [TIGER, SPARSE], ids=["tiger", "sparse"])
def test_the_belief_is_that_of_all_steps(cmdp):
    episodes = some_episodes(cmdp)
    assert episodes.states.shape == (40, 9) and episodes.actions.shape == (40, 9)
    found = episodes.notes.log_probs
    np.testing.assert_allclose(found, filtered(cmdp, episodes).log_probs, atol=1e-5)
    # And by Bayes' rule in one go.
    table, states = dense(cmdp), np.asarray(episodes.states)
    actions = np.asarray(episodes.actions)[:, :-1]
    joint = (
        np.asarray(cmdp.context_prior)[None]
        * table[:, states[:, :-1], actions, states[:, 1:]].prod(-1).T
    )
    want = joint / joint.sum(-1, keepdims=True)
    np.testing.assert_allclose(np.exp(last_log_beliefs(episodes)), want, atol=1e-5)
    assert (np.abs(want - np.asarray(cmdp.context_prior)).max(0) > 0.1).all()


def test_steps_are_possible_in_one_context():
    """Not each in another one: the context stays for an episode, and is the one that is told."""
    episodes = some_episodes(SPARSE)
    states, actions = np.asarray(episodes.states), np.asarray(episodes.actions)[:, :-1]
    assert (np.asarray(SPARSE.initial)[states[:, 0]] > 0).all()
    possible = dense(SPARSE)[:, states[:, :-1], actions, states[:, 1:]] > 0
    assert possible.all(-1).any(0).all()
    contexts = np.asarray(episodes.contexts)
    assert (contexts == contexts[:, :1]).all()
    assert np.all(possible, axis=-1)[contexts[:, 0], np.arange(len(contexts))].all()
    assert not possible.all(-1).all(0).all(), "no step tells contexts apart: choose another seed"


def test_without_epsilon_actions_are_greedy_for_a_context_that_may_be():
    preference = random_preference(SPARSE, 1)
    episodes = roll_out(SPARSE, preference, jax.random.key(1), 100, 10, 0.0)
    before = np.asarray(filtered(SPARSE, episodes).probs)
    greedy = np.asarray(preference).argmax(-1)
    matches = greedy[:, np.asarray(episodes.states)] == np.asarray(episodes.actions)
    allowed = matches & (np.moveaxis(before, -1, 0) > 0)
    assert allowed.any(0).all()
    # Both halves matter: contexts are ruled out, and no single one explains all actions.
    assert (before == 0).any() and not matches.all((1, 2)).any()


def test_the_guessed_context_is_drawn_from_the_belief():
    """Action c is best in context c, so that first actions show the prior, and after one left
    turn in detour the second action shows what was found out: nothing yet, then everything."""
    prior = np.asarray(SPARSE.context_prior)
    preference = jnp.tile(jnp.eye(3)[:, None], (1, 5, 1))
    first = np.asarray(roll_out(SPARSE, preference, jax.random.key(0), 4_000, 2, 0.0).actions[:, 0])
    found = np.bincount(first, minlength=3) / 4_000
    assert (np.abs(found - prior) <= 4 * standard_error(prior, 4_000)).all()
    in_detour = jnp.tile(jnp.eye(2)[:, None], (1, 6, 1))
    episodes = roll_out(DETOUR, in_detour, jax.random.key(0), 500, 4, 0.0)
    states, actions = np.asarray(episodes.states), np.asarray(episodes.actions)
    told = np.isin(states[:, 2], [0]) & (states[:, 1] == 1)  # s1 leads back: context 0
    assert told.sum() > 100 and not actions[told][:, 2:].any()


def test_epsilon_one_takes_every_action_equally_often():
    num_actions = 5
    cmdp = random_cmdp(0, 2, 3, num_actions, 0.9)
    actions = np.asarray(
        roll_out(cmdp, random_preference(cmdp), jax.random.key(0), 400, 25, 1.0).actions
    )[:, :-1]
    found = np.bincount(actions.ravel(), minlength=num_actions) / actions.size
    assert len(found) == num_actions
    # Of 10,000 draws; four standard errors.
    assert np.abs(found - 0.2).max() <= 4 * standard_error(0.2, 10_000)


def test_epsilon_is_how_often_anything_is_done(epsilon=0.3):
    """With one action always best, others are taken ε·3/4 of the time, all alike."""
    cmdp = random_cmdp(0, 2, 3, 4, 0.9)
    preference = jnp.zeros((2, 3, 4)).at[..., 2].set(1.0)
    actions = roll_out(cmdp, preference, jax.random.key(2), 400, 25, epsilon).actions[:, :-1]
    found = np.bincount(np.asarray(actions).ravel(), minlength=4) / 10_000
    want = epsilon / 4 + (1 - epsilon) * np.eye(4)[2]
    assert (np.abs(found - want) <= 4 * standard_error(want, 10_000)).all()


def test_contexts_come_from_the_prior():
    """Going left in detour shows the context in two steps."""
    left = jnp.zeros((2, 6, 2)).at[..., 0].set(1.0)
    episodes = roll_out(DETOUR, left, jax.random.key(0), 4_000, 2, 0.0)
    beliefs = np.exp(last_log_beliefs(episodes))
    np.testing.assert_allclose(beliefs.max(-1), 1, atol=1e-6)
    assert abs(beliefs[:, 1].mean() - 0.1) <= 4 * standard_error(0.1, 4_000)
    np.testing.assert_array_equal(beliefs.argmax(-1), episodes.contexts[:, 0])


def test_nobody_acts_otherwise_for_not_knowing_that_a_problem_is_finite():
    """By what states look like, and as dictionaries: the same episodes, of the same beliefs."""
    found = roll_out(Hidden(SPARSE), random_preference(SPARSE), jax.random.key(0), 40, 8, 0.5)
    want = roll_out(SPARSE, random_preference(SPARSE), jax.random.key(0), 40, 8, 0.5)
    np.testing.assert_array_equal(found.states["place"], want.states)
    np.testing.assert_array_equal(found.actions, want.actions)
    np.testing.assert_allclose(found.notes.log_probs, want.notes.log_probs, atol=1e-5)


# ── counts ───────────────────────────────────────────────────────────────────────────────────────


def one_trajectory(cmdp: TabularCMDP) -> Demonstrations:
    """Some demonstration, where they do not matter."""
    states = [int(np.argmax(cmdp.initial))]
    for _ in range(2):
        states.append(int(dense(cmdp)[0, states[-1], 0].argmax()))
    return Demonstrations(np.array(states), np.zeros(2, int), [2])


def counted(cmdp: TabularCMDP, demos: Demonstrations) -> CountedExperience:
    return CountedExperience(cmdp, demos.trajectories(cmdp))


def full_counts(cmdp: TabularCMDP, memory: Any) -> Table:
    """Counts as a table [context, state, action, next state]."""
    table = np.zeros((cmdp.num_contexts, cmdp.num_states, cmdp.num_actions, cmdp.num_states))
    successors = np.asarray(cmdp.successors)
    for context, state, action, place in np.ndindex(*np.shape(memory)):
        value = float(np.asarray(memory)[context, state, action, place])
        table[context, state, action, successors[state, action, place]] += value
    return table


def plain_counts(cmdp: TabularCMDP, episodes: Trajectories) -> Table:
    table = np.zeros((cmdp.num_contexts, cmdp.num_states, cmdp.num_actions, cmdp.num_states))
    states, actions = np.asarray(episodes.states), np.asarray(episodes.actions)[:, :-1]
    beliefs = np.exp(last_log_beliefs(episodes))
    for path, choices, belief in zip(states, actions, beliefs, strict=True):
        for time, action in enumerate(choices):
            table[:, path[time], action, path[time + 1]] += belief
    return table


@pytest.mark.parametrize("cmdp", [TIGER, DETOUR, SPARSE], ids=["tiger", "detour", "sparse"])
def test_counts_are_a_plain_sum(cmdp):
    experience = counted(cmdp, one_trajectory(cmdp))
    first, second = (some_episodes(cmdp, seed) for seed in range(2))
    memory = experience.init()
    assert not np.asarray(memory).any()
    memory = experience.add(experience.add(memory, first), second)
    want = plain_counts(cmdp, first) + plain_counts(cmdp, second)
    assert want.sum() == pytest.approx(2 * 40 * 8, rel=1e-6)
    np.testing.assert_allclose(full_counts(cmdp, memory), want, atol=1e-4)


def test_counts_approach_the_dynamics_of_every_context():
    """Nobody is told contexts, and hearing is wrong 15 times in 100, but p(θ | τ) sorts it out.

    With w = p(θ | τ) ≤ 1 an episode adds w (n' − p n) to what tells a frequency from p, for n
    visits of which n' went to s'. Its mean is p(θ) E[n' − p n | θ] = 0, and its variance at most
    E[w (n' − p n)²] = p(θ) E[n | θ] p (1 − p): the frequency errs no more than that of as many
    plain draws as the count says. Five standard errors.
    """
    experience = counted(TIGER, one_trajectory(TIGER))
    memory = experience.init()
    preference = random_preference(TIGER)
    for seed in range(4):
        memory = experience.add(
            memory, roll_out(TIGER, preference, jax.random.key(seed), 2_000, 6, 1.0)
        )
    counts, want = full_counts(TIGER, memory), dense(TIGER)
    visits = counts.sum(-1, keepdims=True)
    assert (visits > 50).all()
    error = np.abs(counts / visits - want)
    assert (error <= 5 * standard_error(want, visits) + 1e-5).all()
    # It would be seen if contexts were mixed up: hearings differ by 0.7 between them.
    assert np.abs(want[0] - want[1])[:3, 2].max() > 0.6
    assert (5 * np.asarray(standard_error(want, visits))[:, :3, 2]).max() < 0.3


def test_batch_weighs_every_state_and_action_alike():
    """n/(n+1) for n meetings in a context, split as the successors came."""
    experience = counted(SPARSE, one_trajectory(SPARSE))
    episodes = jax.tree.map(lambda leaf: leaf[:4], some_episodes(SPARSE, 4))
    memory = experience.add(experience.init(), episodes)
    batch = experience.batch(memory, jax.random.key(0), jnp.full((1, 3), 1 / 3), 1)
    counts = plain_counts(SPARSE, episodes)
    want = counts / (counts.sum(-1, keepdims=True) + 1)
    found = np.zeros_like(want)
    steps = batch.simulated
    places = (part.tolist() for part in (steps.rows, steps.actions, steps.next_rows))
    for place, weights in zip(zip(*places, strict=True), np.asarray(steps.weights).T, strict=True):
        found[:, *place] += weights
    np.testing.assert_allclose(found, want, atol=1e-5)
    assert steps.next_actions is None
    totals = want.sum(-1)
    assert (totals == 0).any() and totals.max() > 0.7 and totals.max() < 1
    np.testing.assert_array_equal(batch.observations, np.eye(5))
    np.testing.assert_array_equal(batch.features, np.tile(np.eye(5)[:, None], (1, 3, 1)))


DEMONSTRATIONS = Demonstrations(
    np.array([0, 2, 3, 5, 0, 0, 1, 0, 2, 0, 2, 0, 2, 3, 5, 0, 2]),
    np.array([1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1]),
    [4, 3, 1, 5],
)
"""In detour: by s5 in context 1, by s1 back in context 0, too short to tell, and by s5 again."""
BELIEFS = np.array([[0.2, 0.8], [1.0, 0.0], [0.5, 0.5], [0.7, 0.3]])


def plain_expert_steps(demos: Demonstrations, beliefs: Table) -> dict[tuple[int, ...], Table]:
    """How often (s, a, s', a') came, in each context."""
    counts: dict[tuple[int, ...], Table] = collections.defaultdict(lambda: np.zeros(2))
    for trajectory, belief in zip(demos, beliefs, strict=True):
        states, actions = trajectory.observations.tolist(), trajectory.actions.tolist()
        for time in range(len(actions) - 1):
            kind = (states[time], actions[time], states[time + 1], actions[time + 1])
            counts[kind] = counts[kind] + belief
    return dict(counts)


def test_expert_steps_are_a_plain_sum():
    experience = counted(DETOUR, DEMONSTRATIONS)
    batch = experience.batch(
        experience.init(), jax.random.key(0), jnp.asarray(BELIEFS, jnp.float32), 1
    )
    steps = batch.expert
    assert steps.next_actions is not None
    kinds = zip(
        *(
            np.asarray(part).tolist()
            for part in (steps.rows, steps.actions, steps.next_rows, steps.next_actions)
        ),
        strict=True,
    )
    found = dict(zip(kinds, np.asarray(steps.weights).T, strict=True))
    counts = plain_expert_steps(DEMONSTRATIONS, BELIEFS)
    met: dict[tuple[int, ...], Table] = collections.defaultdict(lambda: np.zeros(2))
    for kind, count in counts.items():
        met[kind[:2]] = met[kind[:2]] + count
    assert found.keys() == counts.keys() and len(steps.rows) == len(counts)
    for kind, count in counts.items():
        np.testing.assert_allclose(found[kind], count / (met[kind[:2]] + 1), rtol=1e-5)
    assert not np.asarray(batch.simulated.weights).any()


def test_expert_steps_by_hand():
    """In context 1 the first and the last trajectory count 0.8 and 0.3, the second nothing.

    Both leave s0 by 1, and are at s2 followed by 0: one kind, met 1.1 times (the last actions of
    all but the first trajectory leave s0 by 1 too, and do not count). Both leave s3 by 1, followed
    by 0 in the first and by 1 in the last: two kinds, which share their meetings.
    """
    experience = counted(DETOUR, DEMONSTRATIONS)
    batch = experience.batch(
        experience.init(), jax.random.key(0), jnp.asarray(BELIEFS, jnp.float32), 1
    )
    steps = batch.expert
    for state, next_actions, weights in ((0, [0], [1.1]), (3, [0, 1], [0.8, 0.3])):
        at = (np.asarray(steps.rows) == state) & (np.asarray(steps.actions) == 1)
        assert np.asarray(steps.next_actions)[at].tolist() == next_actions
        found = np.asarray(steps.weights)[1, at]
        np.testing.assert_allclose(found, np.array(weights) / 2.1, rtol=1e-5)


def test_trajectories_of_one_action_show_no_step():
    demos = Demonstrations(np.array([0, 2, 0, 1]), np.array([1, 0]), [1, 1])
    experience = counted(DETOUR, demos)
    batch = experience.batch(experience.init(), jax.random.key(0), jnp.full((2, 2), 0.5), 1)
    assert batch.expert.rows.shape == (0,) and batch.expert.weights.shape == (2, 0)


# ── replay ───────────────────────────────────────────────────────────────────────────────────────


def replayed(capacity: int, horizon: int) -> ReplayedExperience:
    simulator = Hidden(DETOUR)
    expert = as_seen(DETOUR, DEMONSTRATIONS).trajectories(simulator)
    return ReplayedExperience(simulator, expert, capacity, horizon)


def marked_episodes(numbers: range, horizon: int) -> Trajectories:
    """Episodes that can be told by their first state, action and last belief."""
    count = jnp.asarray(list(numbers), jnp.int32)
    every = jnp.tile(count[:, None], (1, horizon + 1))
    last = -jnp.stack([count, 2 * count], -1).astype(jnp.float32)
    before = jnp.arange(horizon, -1.0, -1.0)[None, :, None]  # other beliefs, which do not matter
    return Trajectories(
        {"place": every},
        every + 100,
        jnp.zeros(every.shape, bool).at[:, 0].set(True),
        jnp.zeros_like(every),
        jnp.ones(every.shape, bool),
        Categorical(last[:, None] - before),
    )


def ring_numbers(ring: Replay) -> list[int]:
    """Which episode stands where, each checked to be of one piece."""
    kept = ring.items
    states, actions, log_belief = map(np.asarray, (kept.states["place"], kept.actions, kept.notes))
    numbers = states[:, 0]
    assert (states == numbers[:, None]).all() and (actions == numbers[:, None] + 100).all()
    np.testing.assert_array_equal(log_belief, -np.stack([numbers, 2 * numbers], -1))
    return numbers.tolist()


def test_the_ring_overwrites_the_oldest():
    experience = replayed(capacity=5, horizon=3)
    memory = experience.init()
    assert int(memory.num_added) == 0
    add = eqx.filter_jit(lambda ring, episodes: experience.add(ring, episodes))
    memory = add(memory, marked_episodes(range(1, 3), 3))
    assert np.asarray(memory.items.states["place"])[:, 0].tolist() == [1, 2, 0, 0, 0]
    memory = add(add(memory, marked_episodes(range(3, 5), 3)), marked_episodes(range(5, 7), 3))
    assert ring_numbers(memory) == [6, 2, 3, 4, 5] and int(memory.num_added) == 6
    memory = add(memory, marked_episodes(range(7, 9), 3))
    assert ring_numbers(memory) == [6, 7, 8, 4, 5]
    memory = experience.add(memory, marked_episodes(range(9, 14), 3))
    assert sorted(ring_numbers(memory)) == [9, 10, 11, 12, 13]


def drawn_batch(
    num_added: int, num_episodes: int, seed: int = 0
) -> tuple[ReplayedExperience, Replay, Batch]:
    experience = replayed(capacity=40, horizon=6)
    episodes = roll_out(
        Hidden(DETOUR), random_preference(DETOUR), jax.random.key(seed), num_added, 6, 1.0
    )
    memory = experience.add(experience.init(), episodes)
    batch = eqx.filter_jit(lambda e, m, key, b: e.batch(m, key, b, num_episodes))(
        experience, memory, jax.random.key(seed), jnp.asarray(BELIEFS, jnp.float32)
    )
    return experience, memory, batch


def test_replayed_steps_are_those_of_stored_episodes():
    """Rows one after another are an episode of the ring, with its own belief as their weight."""
    _, memory, batch = drawn_batch(num_added=25, num_episodes=30)
    stored = {
        (tuple(states), tuple(actions)): np.exp(log_belief)
        for states, actions, log_belief in zip(
            np.asarray(memory.items.states["place"]).tolist(),
            np.asarray(memory.items.actions)[:, :-1].tolist(),
            np.asarray(memory.items.notes),
            strict=True,
        )
    }
    steps, places = batch.simulated, np.asarray(batch.observations).argmax(-1)
    rows, next_rows, actions = (
        np.asarray(part).reshape(30, 6) for part in (steps.rows, steps.next_rows, steps.actions)
    )
    weights = np.asarray(steps.weights).reshape(2, 30, 6)
    empty = ((0,) * 7, (0,) * 6)  # what an unused place of the ring holds
    met = set()
    for episode in range(30):
        assert rows[episode, 1:].tolist() == next_rows[episode, :-1].tolist()
        path = tuple(places[[*rows[episode], next_rows[episode, -1]]].tolist())
        kind = (path, tuple(actions[episode].tolist()))
        assert kind in stored and kind != empty
        np.testing.assert_allclose(weights[:, episode], np.tile(stored[kind][:, None], (1, 6)))
        met.add(kind)
    assert len(met) > 5
    table = dense(DETOUR)[:, places[steps.rows], np.asarray(steps.actions), places[steps.next_rows]]
    assert table.max(0).min() > 0
    assert (np.asarray(steps.weights)[table == 0] == 0).all() and (table == 0).any()
    assert steps.next_actions is None


def test_only_what_was_stored_is_drawn_and_all_of_it():
    experience = replayed(capacity=50, horizon=3)
    memory = experience.add(experience.init(), marked_episodes(range(1, 5), 3))
    drawn = []
    for seed in range(4):
        batch = experience.batch(
            memory, jax.random.key(seed), jnp.asarray(BELIEFS, jnp.float32), 100
        )
        drawn += np.asarray(batch.simulated.actions).reshape(100, 3)[:, 0].tolist()
    found = np.bincount(drawn, minlength=105)[100:] / 400
    assert found[0] == 0 and found.sum() == pytest.approx(1)
    assert np.abs(found[1:] - 0.25).max() <= 4 * standard_error(0.25, 400)


def test_replayed_expert_steps_are_those_of_trajectories():
    """Padding and last actions weigh nothing; what is left is each trajectory, by its belief."""
    _, _, batch = drawn_batch(num_added=5, num_episodes=4, seed=2)
    steps, places = batch.expert, np.asarray(batch.observations).argmax(-1)
    assert steps.next_actions is not None
    longest = int(DEMONSTRATIONS.lengths.max())
    parts = (
        places[steps.rows],
        np.asarray(steps.actions),
        places[steps.next_rows],
        np.asarray(steps.next_actions),
    )
    parts = tuple(part.reshape(4, longest) for part in parts)
    weights = np.asarray(steps.weights).reshape(2, 4, longest)
    wanted = []
    for trajectory, belief in zip(DEMONSTRATIONS, BELIEFS, strict=True):
        states, actions = trajectory.observations.tolist(), trajectory.actions.tolist()
        kinds = zip(states, actions, states[1:], actions[1:], strict=False)
        wanted.append((list(kinds), belief))
    assert [len(kinds) for kinds, _ in wanted] == [3, 2, 0, 4]
    lengths = set()
    for episode in range(4):
        counted = weights[:, episode].sum(0) > 0
        found = [tuple(int(part[episode, i]) for part in parts) for i in np.flatnonzero(counted)]
        matches = [belief for kinds, belief in wanted if kinds == found]
        assert len(matches) == 1
        np.testing.assert_allclose(weights[:, episode], matches[0][:, None] * counted, atol=1e-6)
        lengths.add(len(found))
    assert len(lengths) > 1, "only one trajectory drawn: choose another seed"


def test_replayed_features_belong_to_their_rows():
    _, _, batch = drawn_batch(num_added=5, num_episodes=4)
    want = np.tile(np.asarray(batch.observations)[:, None], (1, 2, 1))  # both are one-hot
    np.testing.assert_array_equal(batch.features, want)
    # Four trajectories of at most 5 actions, then four episodes of 6.
    assert len(want) == 4 * 6 + 4 * 7


# ── values ───────────────────────────────────────────────────────────────────────────────────────


def test_counted_and_replayed_values_agree():
    experience = counted(DETOUR, DEMONSTRATIONS)
    observations, features = featurise(DETOUR, jnp.arange(6))
    network = SuccessorNetwork(
        observations,
        num_contexts=2,
        num_actions=2,
        num_features=6,
        gamma=DETOUR.gamma,
        config=NetworkConfig(width=8),
        key=jax.random.key(0),
    )
    rng = np.random.default_rng(0)
    head = jnp.asarray(rng.normal(size=network.head.shape) / 100, jnp.float32)
    network = eqx.tree_at(lambda n: n.head, network, head)
    weights = jnp.asarray(rng.normal(size=6), jnp.float32)
    psi = np.asarray(network(observations, features))
    from_table = experience.action_values(network, weights)
    from_network = eqx.filter_jit(replayed(4, 3).action_values(network, weights))
    for context, state in np.ndindex(2, 6):
        place = jnp.asarray(state, jnp.int32)
        want = psi[context, state] @ np.asarray(weights)
        np.testing.assert_allclose(from_table(place, jnp.asarray(context)), want, atol=1e-5)
        np.testing.assert_allclose(
            from_network({"place": place}, jnp.asarray(context)), want, atol=1e-5
        )
    assert np.abs(psi[0] - psi[1]).max() > 0.1
