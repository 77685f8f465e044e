"""The exact filter against Bayes' rule by hand and by enumeration, and where floats give out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from problems import (
    Hidden,
    dense,
    kaelbling_tiger,
    permute_states,
    random_cmdp,
    relabel_contexts,
)

from bigtrain import envs
from bigtrain.belief import (
    AmortisedInference,
    BeliefInfo,
    BeliefState,
    Categorical,
    ExactInference,
    bayes_update,
    clip_log_belief,
)
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.inference import FiniteInference, trajectory_log_evidence
from bigtrain.learning import NetworkConfig
from bigtrain.problem import NO_ACTION, Trajectories

S0, T1, T2, TIGER, GOLD, ST = range(6)
OPEN_1, OPEN_2, LISTEN = range(3)
ODDS = 0.85 / 0.15


def rows(states, actions, masks=None) -> Trajectories:
    """One episode a row. `masks` has one entry for each step, as `actions`."""
    actions = jnp.pad(jnp.asarray(actions, jnp.int32), ((0, 0), (0, 1)))
    masks = jnp.ones(actions[:, 1:].shape, bool) if masks is None else jnp.asarray(masks)
    first = jnp.zeros(actions.shape, bool).at[:, 0].set(True)
    masks = jnp.pad(masks, ((0, 0), (1, 0)), constant_values=True)
    contexts = jnp.full(actions.shape, -1, jnp.int32)
    return Trajectories(jnp.asarray(states), actions, first, contexts, masks)


@jax.jit
def run_batch(cmdp: TabularCMDP, states, actions, masks=None) -> tuple[Categorical, BeliefInfo]:
    """Beliefs before every step and after the last, and what each step said."""
    inference = FiniteInference(cmdp)
    memories, infos = inference.unroll(cmdp, rows(states, actions, masks))
    return inference.belief(memories), jax.tree.map(lambda leaf: leaf[:, 1:], infos)


def run(cmdp: TabularCMDP, states, actions, mask=None) -> tuple[Categorical, BeliefInfo]:
    masks = None if mask is None else mask[None]
    return jax.tree.map(lambda leaf: leaf[0], run_batch(cmdp, states[None], actions[None], masks))


def update(
    cmdp: TabularCMDP, belief: Categorical, before, action, after
) -> tuple[Categorical, BeliefInfo]:
    """One step from somewhere."""
    inference = FiniteInference(cmdp)
    memory = BeliefState(jnp.int32(before), belief.log_probs)
    memory, info = inference.update(
        memory, (jnp.int32(after), jnp.asarray(True)), jnp.int32(action)
    )
    return inference.belief(memory), info


@jax.jit
def run_steps(cmdp: TabularCMDP, before, actions, after) -> Categorical:
    """The belief after steps that need not follow one another."""
    first = Categorical(jnp.log(jnp.asarray(cmdp.context_prior)))
    return jax.lax.scan(
        lambda belief, step: update(cmdp, belief, *step), first, (before, actions, after)
    )[0]


def hear(*heard: int, cmdp: TabularCMDP | None = None) -> tuple[Categorical, BeliefInfo]:
    """Beliefs and infos of listening from S0 and hearing the tiger so."""
    cmdp = cmdp or envs.make("tiger-treasure")
    return run(cmdp, jnp.array([S0, *heard]), jnp.full(len(heard), LISTEN))


def walk(table: NDArray[np.float64], rng: np.random.Generator, num_steps: int):
    """States and actions of random actions in a random context of a full table."""
    num_contexts, num_states, num_actions, _ = table.shape
    context = rng.integers(num_contexts)
    states, actions = [rng.integers(num_states)], rng.integers(0, num_actions, num_steps)
    for action in actions:
        states.append(rng.choice(num_states, p=table[context, states[-1], action]))
    return np.array(states), actions


def bayes(cmdp: TabularCMDP, states, actions) -> NDArray[np.float64]:
    """p(θ, first steps) for no step, one, two...: [step + 1, context], as plain products."""
    table = dense(cmdp)
    joint = np.array(cmdp.context_prior, np.float64)
    joints = [joint]
    for state, action, after in zip(states[:-1], actions, states[1:], strict=True):
        joint = joint * np.array([table[c, state, action, after] for c in range(len(joint))])
        joints.append(joint)
    return np.array(joints)


def normalised(joint: NDArray[np.float64]) -> NDArray[np.float64]:
    return joint / joint.sum(-1, keepdims=True)


class TestByHand:
    def test_the_belief_before_the_first_step_is_the_prior(self):
        for prior in ([0.5, 0.5], [0.9, 0.1], [1.0, 0.0]):
            cmdp = envs.make("detour", prior=prior)
            for inference in (FiniteInference(cmdp), ExactInference(cmdp)):
                belief = inference.belief(inference.init())
                np.testing.assert_allclose(belief.probs, prior, rtol=1e-6)

    @pytest.mark.parametrize(
        ("heard", "probability"),
        [
            ([T1], 0.85),
            ([T2], 0.15),
            ([T1, T1], 0.7225 / 0.745),  # 0.85² : 0.15²
            ([T1, T2], 0.5),
            ([T2, T2, T1], 0.15),
            ([T1, T1, T1], 0.614125 / 0.6175),  # 0.85³ : 0.15³, 0.9945
            ([T1, T1, T2, T1, T1, T1], 0.52200625 / 0.5225125),  # 0.85⁴ : 0.15⁴, 0.9990
        ],
    )
    def test_hearings_multiply_the_odds(self, heard, probability):
        beliefs, infos = hear(*heard)
        final = np.exp(beliefs.log_probs[-1])
        np.testing.assert_allclose(final, [probability, 1 - probability], rtol=2e-6)
        assert not infos.impossible.any()

    def test_beliefs_after_every_step_and_what_each_step_said(self):
        """0.5, then 0.85 : 0.15, then even again; the second T1 would have had 0.745."""
        beliefs, infos = hear(T1, T2)
        want = [[0.5, 0.5], [0.85, 0.15], [0.5, 0.5]]
        np.testing.assert_allclose(np.exp(beliefs.log_probs), want, rtol=1e-6)
        np.testing.assert_allclose(np.exp(infos.log_evidence), [0.5, 0.255], rtol=1e-6)
        np.testing.assert_allclose(np.exp(hear(T1, T1)[1].log_evidence), [0.5, 0.745], rtol=1e-6)

    @pytest.mark.parametrize(
        ("door", "found", "context"),
        [(OPEN_1, TIGER, 0), (OPEN_1, GOLD, 1), (OPEN_2, TIGER, 1), (OPEN_2, GOLD, 0)],
    )
    def test_a_door_tells_all_and_what_follows_no_more(self, door, found, context):
        states = jnp.array([S0, T1, found, ST, ST])
        beliefs, infos = run(
            envs.make("tiger-treasure"), states, jnp.array([LISTEN, door, LISTEN, OPEN_1])
        )
        for after in (2, 3, 4):
            np.testing.assert_array_equal(np.exp(beliefs.log_probs[after]), np.eye(2)[context])
        heard_right = 0.85 if context == 0 else 0.15
        np.testing.assert_allclose(np.exp(infos.log_evidence), [0.5, heard_right, 1, 1], rtol=1e-6)
        assert not infos.impossible.any()

    def test_what_happens_alike_in_all_contexts_tells_nothing(self):
        states, actions = jnp.array([0, 2, 3]), jnp.array([1, 0])
        beliefs, infos = run(envs.make("detour"), states, actions)
        np.testing.assert_allclose(np.exp(beliefs.log_probs), [[0.9, 0.1]] * 3, rtol=1e-6)
        np.testing.assert_allclose(infos.log_evidence, 0, atol=1e-6)

    @pytest.mark.parametrize(
        ("probabilities", "nats"),
        [
            ([0.5, 0.5], np.log(2)),
            ([0.85, 0.15], 0.42270908780599),  # −0.85 log 0.85 − 0.15 log 0.15
            ([1.0, 0.0], 0.0),
            ([0.25, 0.25, 0.5, 0.0], 1.5 * np.log(2)),
        ],
    )
    def test_entropy(self, probabilities, nats):
        with np.errstate(divide="ignore"):
            belief = Categorical(jnp.log(jnp.array(probabilities)))
        np.testing.assert_allclose(belief.entropy, nats, rtol=1e-6, atol=1e-7)

    def test_the_value_of_kaelbling_s_tiger_follows_from_the_filter(self):
        """Value iteration over net hearings −40…40, with the filter's beliefs and evidence.

        Listening at the ends is left out: at 40 the tiger's door is sure to 10⁻³⁰, and opening is
        best long before. The known value has 6 decimals, and the filter float32.
        """
        cmdp, reward, known = kaelbling_tiger()
        joints = np.array([ODDS**n for n in range(-40, 41)])
        beliefs = np.log(np.stack([joints / (1 + joints), 1 / (1 + joints)], -1))
        listen = jax.jit(
            jax.vmap(
                lambda log_probs, heard: update(cmdp, Categorical(log_probs), S0, LISTEN, heard),
                (0, None),
            )
        )
        (after_t1, heard_t1), (after_t2, heard_t2) = (
            listen(jnp.asarray(beliefs, jnp.float32), jnp.int32(heard)) for heard in (T1, T2)
        )
        # A hearing moves one place along, which the filter must say itself.
        for after, moved in (
            (after_t1.log_probs[:-1], beliefs[1:]),
            (after_t2.log_probs[1:], beliefs[:-1]),
        ):
            np.testing.assert_allclose(after, moved, rtol=1e-5, atol=1e-6)
        p_t1, p_t2 = (np.exp(info.log_evidence, dtype=np.float64) for info in (heard_t1, heard_t2))
        probs = np.exp(beliefs)
        gold, tiger = cmdp.gamma * reward[GOLD, 0], cmdp.gamma * reward[TIGER, 0]
        opening = np.maximum(probs @ [tiger, gold], probs @ [gold, tiger])
        value = opening.copy()
        for _ in range(600):  # 0.95⁶⁰⁰ of an error of 100 is 10⁻¹¹
            listening = reward[S0, LISTEN] + cmdp.gamma * (
                p_t1[1:-1] * value[2:] + p_t2[1:-1] * value[:-2]
            )
            value[1:-1] = np.maximum(opening[1:-1], listening)
        np.testing.assert_allclose(value[40], known, atol=3e-6)


class TestAgainstEnumeration:
    @pytest.mark.parametrize("sparsity", [0.0, 0.5])
    @pytest.mark.parametrize("seed", range(4))
    def test_whole_trajectories(self, seed, sparsity):
        cmdp = random_cmdp(seed, num_contexts=3, sparsity=sparsity)
        rng = np.random.default_rng(seed)
        states, actions = walk(dense(cmdp), rng, 25)
        joints = bayes(cmdp, states, actions)
        beliefs, infos = run(cmdp, jnp.asarray(states), jnp.asarray(actions))
        # 25 steps of float32, each of them off by about 10⁻⁷ of the logarithms.
        probs = np.exp(np.asarray(beliefs.log_probs, np.float64))
        np.testing.assert_allclose(probs, normalised(joints), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(np.isneginf(beliefs.log_probs), joints == 0)
        evidence = np.log(joints.sum(-1))
        np.testing.assert_allclose(infos.log_evidence, np.diff(evidence), rtol=1e-4, atol=1e-5)
        assert not infos.impossible.any()

    def test_some_of_these_rule_contexts_out(self):
        """Otherwise zeros would not have been tested."""
        ruled_out = 0
        for seed in range(4):
            cmdp = random_cmdp(seed, num_contexts=3, sparsity=0.5)
            states, actions = walk(dense(cmdp), np.random.default_rng(seed), 25)
            ruled_out += (bayes(cmdp, states, actions)[-1] == 0).any()
        assert ruled_out >= 2

    def test_a_batch_of_padded_trajectories(self):
        """Lengths 0 to 12 in one call; the padding is junk, some of it impossible."""
        cmdp = random_cmdp(11, num_contexts=3, sparsity=0.4)
        rng = np.random.default_rng(0)
        lengths = np.array([12, 0, 1, 7, 11, 3])
        states = rng.integers(0, cmdp.num_states, (6, 13))
        actions = rng.integers(0, cmdp.num_actions, (6, 12))
        walks = [walk(dense(cmdp), rng, length) for length in lengths]
        for row, (real_states, real_actions) in enumerate(walks):
            states[row, : len(real_states)] = real_states
            actions[row, : len(real_actions)] = real_actions
        masks = np.arange(12) < lengths[:, None]
        beliefs, infos = run_batch(cmdp, *(jnp.asarray(a) for a in (states, actions, masks)))
        assert beliefs.log_probs.shape == (6, 13, 3)
        for row, (real_states, real_actions) in enumerate(walks):
            length = lengths[row]
            joints = bayes(cmdp, real_states, real_actions)
            got = np.exp(np.asarray(beliefs.log_probs[row], np.float64))
            np.testing.assert_allclose(got[: length + 1], normalised(joints), rtol=1e-4, atol=1e-6)
            # Whatever the padding says, the belief stays and nothing is reported.
            np.testing.assert_array_equal(got[length:], np.tile(got[length], (13 - length, 1)))
            np.testing.assert_array_equal(infos.log_evidence[row, length:], 0)
            evidence = np.asarray(infos.log_evidence[row], np.float64).sum()
            np.testing.assert_allclose(evidence, np.log(joints[-1].sum()), rtol=1e-4, atol=1e-5)
        assert not infos.impossible.any()

    def test_a_mask_may_leave_out_steps_in_the_middle(self):
        cmdp = envs.make("tiger-treasure")
        heard = jnp.array([S0, T1, T2, T1])
        beliefs, _ = run(cmdp, heard, jnp.full(3, LISTEN), jnp.array([True, False, True]))
        want = [0.5, 0.85, 0.85, 0.7225 / 0.745]
        np.testing.assert_allclose(np.exp(beliefs.log_probs[:, 0]), want, rtol=1e-6)

    def test_no_steps_leave_the_prior(self):
        beliefs, infos = run(envs.make("detour"), jnp.array([3]), jnp.zeros(0, int))
        np.testing.assert_allclose(np.exp(beliefs.log_probs), [[0.9, 0.1]], rtol=1e-6)
        assert infos.log_evidence.shape == infos.impossible.shape == (0,)

    def test_step_by_step_is_the_same_as_at_once(self):
        cmdp = random_cmdp(2, num_contexts=3)
        states, actions = walk(dense(cmdp), np.random.default_rng(2), 6)
        beliefs, infos = run(cmdp, jnp.asarray(states), jnp.asarray(actions))
        inference = FiniteInference(cmdp)
        memory = inference.init()
        for moment, state in enumerate(states):
            previous = jnp.int32(actions[moment - 1] if moment else NO_ACTION)
            seen = inference.encode(cmdp.observe(jnp.int32(state)))
            memory, info = inference.update(memory, seen, previous)
            log_probs = inference.belief(memory).log_probs
            np.testing.assert_allclose(log_probs, beliefs.log_probs[moment], rtol=1e-5)
            said = infos.log_evidence[moment - 1] if moment else 0
            np.testing.assert_allclose(info.log_evidence, said, rtol=1e-5)


class TestAnySimulator:
    """Where states are not numbers, and where the filter sees no more than a robot does."""

    @staticmethod
    @jax.jit
    def unroll(cmdp: TabularCMDP, trajectories: Trajectories):
        hidden = Hidden(cmdp)
        exact, finite = ExactInference(hidden), FiniteInference(cmdp)
        moved = trajectories._replace(states={"place": trajectories.states})
        found = []
        for inference, simulator, seen in (
            (finite, cmdp, trajectories),
            (exact, hidden, moved),
            (finite, hidden, moved),
        ):
            memories, infos = inference.unroll(simulator, seen)
            found.append((inference.belief(memories).log_probs, infos))
        return found

    @pytest.mark.parametrize("sparsity", [0.0, 0.5])
    def test_the_filters_agree(self, sparsity):
        """Also where steps are impossible, as most junk is when half of the transitions are."""
        cmdp = random_cmdp(7, num_contexts=3, sparsity=sparsity)
        rng = np.random.default_rng(7)
        states, actions = (rng.integers(0, n, (5, 9)) for n in (cmdp.num_states, cmdp.num_actions))
        masks = np.arange(8) < np.array([8, 8, 0, 3, 5])[:, None]
        trajectories = rows(states, actions[:, :-1], masks)
        want, *others = self.unroll(cmdp, trajectories)
        assert want[1].impossible.any() == (sparsity > 0)
        for log_probs, infos in others:
            np.testing.assert_allclose(log_probs, want[0], rtol=1e-6)
            np.testing.assert_allclose(infos.log_evidence, want[1].log_evidence, rtol=1e-6)
            np.testing.assert_array_equal(infos.impossible, want[1].impossible)

    def test_episodes_end_to_end_begin_with_the_prior(self):
        """Two in a row: what was heard in the first says nothing in the second."""
        cmdp = envs.make("tiger-treasure")
        states, actions = jnp.array([[S0, T1, T1, S0, T2]]), jnp.full((1, 4), LISTEN)
        trajectories = rows(states, actions)
        trajectories = trajectories._replace(
            first=jnp.asarray(trajectories.first).at[0, 3].set(True)
        )
        for log_probs, infos in self.unroll(cmdp, trajectories):
            want = [0.5, 0.85, 0.7225 / 0.745, 0.5, 0.15]
            np.testing.assert_allclose(np.exp(log_probs[0, :, 0]), want, rtol=1e-6)
            np.testing.assert_allclose(
                np.exp(infos.log_evidence[0]), [1, 0.5, 0.745, 1, 0.5], rtol=1e-6
            )
            assert not infos.impossible.any()

    @pytest.mark.parametrize("kind", [FiniteInference, ExactInference])
    def test_what_looks_like_no_state_leaves_the_belief(self, kind):
        cmdp = envs.make("tiger-treasure")
        inference = kind(cmdp)
        memory = inference.init()
        for observation, previous in ((S0, NO_ACTION), (T1, LISTEN)):
            code = inference.encode(cmdp.observe(jnp.int32(observation)))
            memory, info = inference.update(memory, code, jnp.int32(previous))
            assert not info.impossible
        code = inference.encode(jnp.full(cmdp.num_states, 0.5))
        after, info = inference.update(memory, code, jnp.int32(LISTEN))
        assert info.impossible
        np.testing.assert_array_equal(after.log_belief, memory.log_belief)
        np.testing.assert_array_equal(after.last, memory.last)

    def test_bayes_rule_alone(self):
        """0.5 · 0.85 : 0.5 · 0.15; and a step that has probability 0 in both."""
        prior = jnp.log(jnp.array([0.5, 0.5]))
        after, info = bayes_update(prior, jnp.log(jnp.array([0.85, 0.15])))
        np.testing.assert_allclose(np.exp(after), [0.85, 0.15], rtol=1e-6)
        np.testing.assert_allclose(np.exp(info.log_evidence), 0.5, rtol=1e-6)
        assert not info.impossible
        after, info = bayes_update(prior, jnp.full(2, -jnp.inf))
        np.testing.assert_array_equal(after, prior)
        assert info.impossible and np.isneginf(info.log_evidence)


class TestFarOut:
    NUM_HEARINGS = 1000

    def test_log_odds_grow_evenly_beyond_what_probabilities_can_hold(self):
        """0.15¹⁰⁰⁰ is 10⁻⁸²⁴, below any float; each hearing adds log(0.85 / 0.15)."""
        beliefs, infos = hear(*[T1] * self.NUM_HEARINGS)
        log_odds = np.asarray(beliefs.log_probs[:, 0] - beliefs.log_probs[:, 1], np.float64)
        want = np.arange(self.NUM_HEARINGS + 1) * np.log(ODDS)
        # Near 1,735 a float32 is off by 10⁻⁴ at most, and 1,000 times that adds up to 0.1.
        np.testing.assert_allclose(log_odds, want, rtol=1e-4, atol=1e-5)
        assert np.isfinite(np.asarray(beliefs.log_probs)).all()
        assert not infos.impossible.any()
        np.testing.assert_allclose(np.exp(infos.log_evidence[100:]), 0.85, rtol=1e-5)

    def test_it_comes_back_from_there(self):
        """As many hearings of the other door undo them: probabilities would be stuck at 0."""
        beliefs, infos = hear(*[T1] * self.NUM_HEARINGS, *[T2] * self.NUM_HEARINGS)
        assert not infos.impossible.any()
        log_odds = float(beliefs.log_probs[-1, 0] - beliefs.log_probs[-1, 1])
        assert abs(log_odds) < 0.2  # 2,000 roundings of 10⁻⁴ at most

    def test_beliefs_stay_normalised(self):
        rng = np.random.default_rng(0)
        beliefs, _ = hear(*rng.choice([T1, T2], 2 * self.NUM_HEARINGS, p=[0.6, 0.4]).tolist())
        totals = np.exp(np.asarray(beliefs.log_probs, np.float64)).sum(-1)
        np.testing.assert_allclose(totals, 1, atol=1e-5)

    def test_entropy_of_a_sure_belief_is_a_number(self):
        beliefs, _ = hear(*[T1] * self.NUM_HEARINGS)
        entropies = jax.jit(jax.vmap(lambda log_probs: Categorical(log_probs).entropy))(
            beliefs.log_probs
        )
        assert np.isfinite(np.asarray(entropies)).all()
        np.testing.assert_allclose(entropies[:2], [np.log(2), 0.4227091], rtol=1e-6)
        assert abs(float(entropies[-1])) < 1e-5


class TestImpossible:
    def test_what_no_context_allows_is_flagged_and_changes_nothing(self):
        cmdp = envs.make("tiger-treasure")
        states = jnp.array([S0, T1, ST, T1, T1])  # from T1 to ST by listening: no
        actions = jnp.full(4, LISTEN)  # and from ST nobody comes back
        beliefs, infos = run(cmdp, states, actions)
        assert infos.impossible.tolist() == [False, True, True, False]
        want = [0.5, 0.85, 0.85, 0.85, 0.7225 / 0.745]
        np.testing.assert_allclose(np.exp(beliefs.log_probs[:, 0]), want, rtol=1e-6)
        assert np.isneginf(infos.log_evidence[1:3]).all()
        np.testing.assert_allclose(
            np.exp(infos.log_evidence[jnp.array([0, 3])]), [0.5, 0.745], rtol=1e-6
        )
        assert not np.isnan(np.asarray(beliefs.log_probs)).any()

    def test_what_the_history_ruled_out_is_impossible_too(self):
        """Door 1 had the tiger, so that it has gold is possible in a context of belief 0 only."""
        cmdp = envs.make("tiger-treasure")
        beliefs, infos = run(cmdp, jnp.array([S0, TIGER]), jnp.array([OPEN_1]))
        sure = Categorical(beliefs.log_probs[-1])
        after, info = update(cmdp, sure, S0, OPEN_1, GOLD)
        assert bool(info.impossible)
        assert np.isneginf(info.log_evidence)
        np.testing.assert_array_equal(after.log_probs, sure.log_probs)
        np.testing.assert_array_equal(after.probs, [1, 0])

    def test_a_context_without_prior_stays_out(self):
        cmdp = envs.make("tiger-treasure", prior=[0.0, 1.0])
        beliefs, infos = hear(T1, T1, T1, cmdp=cmdp)
        np.testing.assert_array_equal(np.exp(beliefs.log_probs), [[0, 1]] * 4)
        np.testing.assert_allclose(np.exp(infos.log_evidence), 0.15, rtol=1e-6)
        assert not infos.impossible.any()

    def test_hearings_that_are_always_right_cannot_differ(self):
        cmdp = envs.make("tiger-treasure", p_hear=1.0)
        beliefs, infos = hear(T2, T1, T2, cmdp=cmdp)
        assert infos.impossible.tolist() == [False, True, False]
        np.testing.assert_array_equal(np.exp(beliefs.log_probs[1:]), [[0, 1]] * 3)


class TestInvariances:
    NUM_STEPS = 12

    def trajectory(self, cmdp: TabularCMDP, seed: int) -> tuple[Any, Any]:
        states, actions = walk(dense(cmdp), np.random.default_rng(seed), self.NUM_STEPS)
        return jnp.asarray(states), jnp.asarray(actions)

    @given(seed=st.integers(0, 10**6), order=st.permutations(range(3)))
    @settings(max_examples=25, deadline=None)
    def test_relabelled_contexts_permute_the_beliefs(self, seed, order):
        cmdp = random_cmdp(seed, num_contexts=3)
        other = relabel_contexts(cmdp, order)
        states, actions = self.trajectory(cmdp, seed)
        beliefs, infos = run(cmdp, states, actions)
        permuted, other_infos = run(other, states, actions)
        # Only the order of the sums over contexts differs.
        np.testing.assert_allclose(
            permuted.log_probs, beliefs.log_probs[:, jnp.array(order)], rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(
            other_infos.log_evidence, infos.log_evidence, rtol=1e-5, atol=1e-5
        )
        assert list(other.context_names) == [cmdp.context_names[old] for old in order]

    @pytest.mark.parametrize("seed", range(3))
    def test_permuted_states_leave_the_beliefs_alone(self, seed):
        cmdp = random_cmdp(seed, num_contexts=3)
        order = np.random.default_rng(seed).permutation(cmdp.num_states)
        states, actions = self.trajectory(cmdp, seed)
        beliefs, _ = run(cmdp, states, actions)
        moved = jnp.asarray(np.argsort(order))[states]
        others, _ = run(permute_states(cmdp, order.tolist()), moved, actions)
        np.testing.assert_allclose(others.log_probs, beliefs.log_probs, rtol=1e-5, atol=1e-6)

    @given(seed=st.integers(0, 10**6))
    @settings(max_examples=15, deadline=None)
    def test_evidence_does_not_depend_on_its_order(self, seed):
        """A set of (s, a, s') is as good in any order: products commute."""
        cmdp = random_cmdp(seed, num_contexts=3)
        states, actions = self.trajectory(cmdp, seed)
        order = np.random.default_rng(seed).permutation(self.NUM_STEPS)
        shuffled = run_steps(cmdp, states[:-1][order], actions[order], states[1:][order])
        straight, _ = run(cmdp, states, actions)
        np.testing.assert_allclose(shuffled.log_probs, straight.log_probs[-1], rtol=1e-4, atol=1e-5)


class TestTrajectoryLogEvidence:
    @pytest.mark.parametrize("sparsity", [0.0, 0.5])
    def test_it_agrees_with_products_and_with_the_filter(self, sparsity):
        """Trajectories of several lengths, their steps mixed up, one of them without any."""
        cmdp = random_cmdp(3, num_contexts=3, sparsity=sparsity)
        rng = np.random.default_rng(1)
        walks = [walk(dense(cmdp), rng, length) for length in (9, 1, 0, 20)]
        steps = np.array(
            [
                (states[t], actions[t], states[t + 1], number)
                for number, (states, actions) in enumerate(walks)
                for t in range(len(actions))
            ]
        )
        rng.shuffle(steps)
        got = trajectory_log_evidence(cmdp, *steps.T, num_trajectories=4)
        assert got.dtype == np.float64
        for number, (states, actions) in enumerate(walks):
            with np.errstate(divide="ignore"):
                want = np.log(bayes(cmdp, states, actions)[-1])
            np.testing.assert_allclose(got[number], want, rtol=1e-12)
            beliefs, infos = run(cmdp, jnp.asarray(states), jnp.asarray(actions))
            total = np.logaddexp.reduce(got[number])
            # The filter is float32.
            np.testing.assert_allclose(
                beliefs.log_probs[-1], got[number] - total, rtol=1e-4, atol=1e-5
            )
            np.testing.assert_allclose(infos.log_evidence.sum(), total, rtol=1e-4, atol=1e-5)

    def test_contexts_of_demonstrations_are_inferred_so(self):
        """With padding, and by both filters; the general one is float32, and normalised."""
        cmdp = random_cmdp(3, num_contexts=3)
        rng = np.random.default_rng(1)
        lengths = np.array([9, 1, 0, 20])
        states = rng.integers(0, cmdp.num_states, (4, 21))
        actions = rng.integers(0, cmdp.num_actions, (4, 20))
        trajectories = rows(states, actions, np.arange(20) < lengths[:, None])
        found = FiniteInference(cmdp).infer_contexts(cmdp, trajectories)
        assert found.dtype == np.float64
        for row, length in enumerate(lengths):
            want = np.log(bayes(cmdp, states[row, : length + 1], actions[row, :length])[-1])
            np.testing.assert_allclose(found[row], want, rtol=1e-12)
        hidden = Hidden(cmdp)
        moved = trajectories._replace(states={"place": trajectories.states})
        learned = ExactInference(hidden).infer_contexts(hidden, moved)
        total = np.logaddexp.reduce(found, axis=-1, keepdims=True)
        np.testing.assert_allclose(learned, found - total, rtol=1e-4, atol=1e-5)

    def test_by_hand(self):
        """T1, T1 and then gold behind door 2: 0.5 · 0.85² · 1 against 0."""
        states, after = np.array([S0, T1, T1, S0]), np.array([T1, T1, GOLD, T2])
        got = trajectory_log_evidence(
            envs.make("tiger-treasure"),
            states,
            np.array([LISTEN, LISTEN, OPEN_2, LISTEN]),
            after,
            np.array([0, 0, 0, 1]),
            3,
        )
        want = [[0.5 * 0.7225, 0], [0.5 * 0.15, 0.5 * 0.85], [0.5, 0.5]]
        np.testing.assert_allclose(np.exp(got), want, rtol=1e-12)
        assert np.isneginf(got[0, 1])
        assert not np.isnan(got).any()

    def test_a_thousand_hearings_in_float64(self):
        heard = np.full(1000, T1)
        got = trajectory_log_evidence(
            envs.make("tiger-treasure"),
            np.array([S0, *heard[:-1]]),
            np.full(1000, LISTEN),
            heard,
            np.zeros(1000, int),
            1,
        )
        want = np.log(0.5) + 1000 * np.log([0.85, 0.15])
        np.testing.assert_allclose(got[0], want, rtol=1e-12)


def test_distillation_measures_how_far_learned_beliefs_are_from_the_noted_ones():
    """As networks see them, divided by 4 and clipped: 0 where they agree, by hand where they do
    not."""
    cmdp = envs.make("tiger-treasure")
    model = AmortisedInference(
        jax.vmap(cmdp.observe)(jnp.arange(6)),
        context_prior=cmdp.context_prior,
        num_actions=3,
        config=NetworkConfig(width=8, depth=1),
        core_width=None,
        key=jax.random.key(0),
    )
    steps = rows([[S0, T1, T1, T2]], [[LISTEN, LISTEN, LISTEN]])
    learned = model.log_beliefs(cmdp, steps)
    agreeing = steps._replace(notes=Categorical(learned))
    np.testing.assert_allclose(model.distillation_loss(cmdp, agreeing), 0, atol=1e-12)
    certain = jnp.broadcast_to(jnp.array([0.0, -jnp.inf]), learned.shape)
    want = np.mean((np.asarray(learned - clip_log_belief(certain)) / 4) ** 2)
    found = model.distillation_loss(cmdp, steps._replace(notes=Categorical(certain)))
    np.testing.assert_allclose(found, want, rtol=1e-6)
