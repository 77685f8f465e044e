"""Finite contextual MDPs and their transitions: both forms, what is refused, and what JAX sees."""

import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array, Float
from numpy.typing import NDArray
from problems import dense, permute_states, random_cmdp, random_table, relabel_contexts

from bigtrain import envs
from bigtrain.belief import ExactInference
from bigtrain.errors import BigTrainError, CMDPError, UnknownDynamicsError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.transitions import Transitions, check, convert, from_dense, from_function
from bigtrain.problem import CMDP, NO_ACTION

NAN, INF = float("nan"), float("inf")
SPARSE = list(range(8))  # seeds of random problems in which most transitions are impossible


def fork(**changes) -> TabularCMDP:
    """Two contexts, three states, two actions: `stay` stays, `go` goes on or not, by context."""
    go_0 = [[0.2, 0.8, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    go_1 = [[1.0, 0.0, 0.0], [0.25, 0.0, 0.75], [0.0, 0.0, 1.0]]
    transitions = np.stack([np.stack([np.eye(3), go], 1) for go in (go_0, go_1)])
    fields = {
        "transitions": transitions,
        "context_prior": [0.6, 0.4],
        "initial": [0.5, 0.5, 0.0],
        "gamma": 0.9,
        "state_names": ["home", "road", "end"],
        "action_names": ["stay", "go"],
        "context_names": ["dry", "wet"],
    }
    return TabularCMDP(**{**fields, **changes})


def changed(entry: tuple[int, ...], value: float) -> NDArray[np.float64]:
    table = dense(fork())
    table[entry] = value
    return table


def random_sparse(seed: int) -> TabularCMDP:
    return random_cmdp(seed, num_contexts=3, num_states=7, num_actions=2, sparsity=0.8)


def every_transition(cmdp: TabularCMDP) -> tuple[Any, ...]:
    shape = (cmdp.num_contexts, cmdp.num_states, cmdp.num_actions, cmdp.num_states)
    return tuple(jnp.asarray(part.ravel()) for part in np.indices(shape, np.int32))


class TestForms:
    @pytest.mark.parametrize("seed", SPARSE)
    def test_a_full_table_comes_back_from_its_sparse_form(self, seed):
        table = dense(random_sparse(seed))
        made = check(convert(table))
        assert made.successors.shape == made.probabilities.shape[1:]
        # No wider than the most successors that some (s, a) has over all contexts.
        assert made.successors.shape[-1] == (table > 0).any(0).sum(-1).max()
        again = np.zeros_like(table)
        for c, s, a, k in np.ndindex(made.probabilities.shape):
            again[c, s, a, made.successors[s, a, k]] += made.probabilities[c, s, a, k]
        np.testing.assert_allclose(again, table, rtol=1e-15)

    def test_a_problem_is_the_same_from_either_form_or_a_function(self):
        table = random_table(np.random.default_rng(3), (2, 5, 3), 5, sparsity=0.6)
        function = from_function(
            lambda c, s, a: {t: float(p) for t, p in enumerate(table[c, s, a]) if p > 0},
            num_contexts=2,
            num_states=5,
            num_actions=3,
        )
        for form in (table, table.tolist(), from_dense(table), function):
            cmdp = TabularCMDP(form, [0.5, 0.5], np.eye(5)[0], gamma=0.5)
            assert (cmdp.num_contexts, cmdp.num_states, cmdp.num_actions) == (2, 5, 3)
            np.testing.assert_allclose(dense(cmdp), table, rtol=1e-15)

    def test_a_function_s_rows_by_hand(self):
        """The successors are those of any context, in order; the rest is 0 with probability 0."""
        rows = {(0, 0): {2: 0.3, 1: 0.7}, (1, 0): {0: 1.0}, (0, 1): {1: 1.0}, (1, 1): {1: 1.0}}
        made = from_function(
            lambda c, s, a: rows.get((c, s), {2: 1.0}), num_contexts=2, num_states=3, num_actions=1
        )
        np.testing.assert_array_equal(made.successors, [[[0, 1, 2]], [[1, 0, 0]], [[2, 0, 0]]])
        np.testing.assert_array_equal(
            made.probabilities,
            [
                [[[0.0, 0.7, 0.3]], [[1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]]],
                [[[1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]]],
            ],
        )

    def test_repeated_successors_are_merged(self):
        """State 1 is listed three times for (0, a0): one place holds its probability."""
        successors = np.array([[[1, 0, 1, 1]], [[1, 1, 0, 0]]])
        probabilities = np.array(
            [
                [[[0.1, 0.2, 0.3, 0.4]], [[0.5, 0.5, 0.0, 0.0]]],
                [[[0.0, 0.0, 0.0, 1.0]], [[0.0, 0.0, 0.0, 1.0]]],
            ]
        )
        made = check(Transitions(successors, probabilities))
        np.testing.assert_allclose(
            made.probabilities,
            [
                [[[0.8, 0.2, 0.0, 0.0]], [[1.0, 0.0, 0.0, 0.0]]],
                [[[1.0, 0.0, 0.0, 0.0]], [[0.0, 0.0, 1.0, 0.0]]],
            ],
            rtol=1e-15,
        )
        np.testing.assert_array_equal(made.successors, successors)

    @given(seed=st.integers(0, 10**6))
    @settings(max_examples=30, deadline=None)
    def test_merging_changes_no_probability(self, seed):
        rng = np.random.default_rng(seed)
        successors = rng.integers(0, 3, (3, 2, 5))
        probabilities = random_table(rng, (2, 3, 2), 5, sparsity=0.4)
        cmdp = TabularCMDP(
            Transitions(successors, probabilities), [0.5, 0.5], [1.0, 0.0, 0.0], gamma=0.9
        )
        want = np.zeros((2, 3, 2, 3))
        for c, s, a, k in np.ndindex(probabilities.shape):
            want[c, s, a, successors[s, a, k]] += probabilities[c, s, a, k]
        np.testing.assert_allclose(dense(cmdp), want, atol=1e-15)
        made_successors, made = cmdp.transitions
        for c, s, a in np.ndindex(made.shape[:3]):
            used = made_successors[s, a][made[c, s, a] > 0]
            assert len(set(used.tolist())) == len(used)

    def test_rows_a_little_off_are_normalised(self):
        """Rows made in float32 sum to one only nearly; later logarithms rely on exactly."""
        table = random_table(np.random.default_rng(0), (2, 50, 3), 50).astype(np.float32)
        assert np.abs(table.astype(np.float64).sum(-1) - 1).max() > 1e-9
        cmdp = TabularCMDP(
            table, np.array([1 / 3, 2 / 3], np.float32), np.full(50, 0.02, np.float32), gamma=0.9
        )
        np.testing.assert_allclose(dense(cmdp).sum(-1), 1, rtol=0, atol=1e-14)
        np.testing.assert_allclose(dense(cmdp), table, rtol=1e-6)
        for distribution in (cmdp.context_prior, cmdp.initial):
            np.testing.assert_allclose(np.sum(distribution), 1, rtol=0, atol=1e-14)

    def test_a_policy_s_matrix_by_hand(self):
        cmdp = fork()
        policy = np.array([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])
        dry = cmdp.transitions.matrix(0, policy).toarray()
        want = [[0.6, 0.4, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
        np.testing.assert_allclose(dry, want, rtol=1e-15)
        wet = cmdp.transitions.matrix(1, policy).toarray()
        want = [[1.0, 0.0, 0.0], [0.25, 0.0, 0.75], [0.0, 0.0, 1.0]]
        np.testing.assert_allclose(wet, want, rtol=1e-15)

    @pytest.mark.parametrize("seed", SPARSE[:3])
    def test_a_matrix_of_mixed_contexts_is_the_mixture(self, seed):
        cmdp = random_sparse(seed)
        rng = np.random.default_rng(seed)
        policy = rng.dirichlet(np.ones(cmdp.num_actions), cmdp.num_states)
        weights = np.asarray(cmdp.context_prior)
        transitions = cmdp.transitions
        mixed = np.tensordot(weights, transitions.probabilities, 1)
        want = np.einsum("c,csat,sa->st", weights, dense(cmdp), policy)
        got = transitions.mixed_matrix(mixed, policy).toarray()
        np.testing.assert_allclose(got, want, atol=1e-15)


class TestRefused:
    """Every wrong statement: the message names the place, what is there and what must be."""

    @pytest.mark.parametrize(
        ("wrong", "parts"),
        [
            pytest.param(
                {"transitions": changed((1, 1, 1, 2), 0.5)},
                ["sum to one", "'wet'", "'road'", "'go'", "sums to 0.75"],
                id="row short of one",
            ),
            pytest.param(
                {"transitions": changed((0, 0, 0, 1), 0.001)},
                ["sum to one", "'dry'", "'home'", "'stay'", "sums to 1.001"],
                id="row above one",
            ),
            pytest.param(
                {"transitions": changed((0, 2, 1, 2), 0.0)},
                ["sum to one", "'dry'", "'end'", "'go'", "sums to 0."],
                id="row of zeros",
            ),
            pytest.param(
                {"transitions": np.zeros((2, 3, 2, 3))},
                ["sum to one", "'dry'", "'home'", "'stay'", "sums to 0."],
                id="nothing but zeros",
            ),
            pytest.param(
                {"transitions": changed((1, 0, 1, 2), -0.25)},
                ["not negative", "'wet'", "'home'", "'go'", "-0.25", "next state 2"],
                id="negative",
            ),
            pytest.param(
                {"transitions": changed((1, 2, 0, 1), NAN)},
                ["finite", "'wet'", "'end'", "'stay'", "nan", "next state 1"],
                id="NaN",
            ),
            pytest.param(
                {"transitions": changed((0, 1, 0, 0), INF)},
                ["finite", "'dry'", "'road'", "'stay'", "inf", "next state 0"],
                id="infinity",
            ),
            pytest.param(
                {"transitions": np.full((2, 3, 2, 4), 0.25)},
                ["[context, state, action, next state]", "(2, 3, 2, 4)"],
                id="more next states than states",
            ),
            pytest.param(
                {"context_prior": [0.6, 0.6]},
                ["`context_prior`", "sum to one", "1.2"],
                id="prior above one",
            ),
            pytest.param(
                {"context_prior": [1.25, -0.25]},
                ["`context_prior`", "not negative", "'wet'", "-0.25"],
                id="prior negative",
            ),
            pytest.param(
                {"context_prior": [NAN, 1.0]},
                ["`context_prior`", "finite", "'dry'", "nan"],
                id="prior NaN",
            ),
            pytest.param(
                {"context_prior": [0.5, 0.25, 0.25]},
                ["`context_prior`", "(2,)", "(3,)"],
                id="prior for three",
            ),
            pytest.param(
                {"initial": [0.5, 0.2, 0.2]},
                ["`initial`", "sum to one", "0.9"],
                id="initial below one",
            ),
            pytest.param(
                {"initial": [0.5, 0.75, -0.25]},
                ["`initial`", "not negative", "'end'", "-0.25"],
                id="initial negative",
            ),
            pytest.param(
                {"initial": [0.0, INF, 0.0]},
                ["`initial`", "finite", "'road'", "inf"],
                id="initial infinite",
            ),
            pytest.param(
                {"initial": [[0.5, 0.5, 0.0]]},
                ["`initial`", "(3,)", "(1, 3)"],
                id="initial of two axes",
            ),
            pytest.param({"gamma": 1.0}, ["`gamma`", "below 1", "1.0"], id="gamma 1"),
            pytest.param({"gamma": -0.1}, ["`gamma`", "at least 0", "-0.1"], id="gamma negative"),
            pytest.param({"gamma": NAN}, ["`gamma`", "at least 0", "nan"], id="gamma NaN"),
            pytest.param(
                {"state_names": ["home", "road"]},
                ["`state_names`", "3 entries", "got 2", "'road'"],
                id="too few state names",
            ),
            pytest.param(
                {"action_names": ["stay", "go", "run"]},
                ["`action_names`", "2 entries", "got 3", "'run'"],
                id="too many action names",
            ),
            pytest.param(
                {"context_names": []},
                ["`context_names`", "2 entries", "got 0"],
                id="no context names",
            ),
            pytest.param(
                {"state_names": ["home", "road", "home"]},
                ["`state_names`", "differ", "'home'"],
                id="repeated state name",
            ),
            pytest.param(
                {"context_names": ["dry", "dry"]},
                ["`context_names`", "differ", "'dry'"],
                id="repeated context name",
            ),
            pytest.param(
                {"features": np.zeros((3, 3, 4))},
                ["`features`", "(3, 2, feature)", "(3, 3, 4)"],
                id="features of other actions",
            ),
            pytest.param(
                {"features": np.zeros((3, 2))},
                ["`features`", "(3, 2, feature)", "(3, 2)"],
                id="features without their axis",
            ),
            pytest.param(
                {"features": np.where(np.arange(12).reshape(3, 2, 2) == 7, NAN, 0)},
                ["`features`", "finite", "state 1", "action 1", "nan", "feature 1"],
                id="features NaN",
            ),
            pytest.param(
                {"features": np.where(np.arange(12).reshape(3, 2, 2) == 8, -INF, 0)},
                ["`features`", "finite", "state 2", "action 0", "-inf", "feature 0"],
                id="features infinite",
            ),
            pytest.param(
                {"observations": np.zeros((4, 2))},
                ["`observations`", "3 entries", "(4, 2)"],
                id="observations of other states",
            ),
            pytest.param(
                {"observations": [[0.0, 1.0], [2.0, 3.0], [NAN, 4.0]]},
                ["`observations`", "finite", "state 2"],
                id="observations NaN",
            ),
        ],
    )
    def test_a_field(self, wrong, parts):
        with pytest.raises(CMDPError) as refused:
            fork(**wrong)
        assert isinstance(refused.value, BigTrainError)
        for part in parts:
            assert part in str(refused.value)

    @pytest.mark.parametrize(
        ("shape", "named"),
        [
            ((3, 2, 3), "(3, 2, 3)"),
            ((2, 3, 2, 3, 1), "(2, 3, 2, 3, 1)"),
            ((0, 3, 2, 3), "(0, 3, 2, 3)"),
            ((2, 0, 2, 0), "(2, 0, 2, 0)"),
            ((2, 3, 0, 3), "(2, 3, 0, 3)"),
        ],
    )
    def test_a_table_of_another_shape(self, shape, named):
        with pytest.raises(CMDPError) as refused:
            TabularCMDP(np.ones(shape), [0.5, 0.5], [1.0, 0.0, 0.0], gamma=0.9)
        assert "[context, state, action, next state]" in str(refused.value)
        assert named in str(refused.value)

    @pytest.mark.parametrize(
        ("successors", "probabilities", "parts"),
        [
            pytest.param(
                np.full((3, 2, 1), 3), np.ones((2, 3, 2, 1)), ["from 0 to 2", "3"], id="too high"
            ),
            pytest.param(
                np.full((3, 2, 1), -1), np.ones((2, 3, 2, 1)), ["from 0 to 2", "-1"], id="negative"
            ),
            pytest.param(
                np.zeros((3, 2, 1)), np.ones((2, 3, 2, 1)), ["integers", "float64"], id="floats"
            ),
            pytest.param(
                np.zeros((3, 2, 2), int),
                np.ones((2, 3, 2, 1)),
                ["[state, action, successor]", "(3, 2, 2)", "(2, 3, 2, 1)"],
                id="widths that differ",
            ),
            pytest.param(
                np.zeros((2, 3, 2, 1), int),
                np.ones((2, 3, 2, 1)),
                ["[state, action, successor]", "(2, 3, 2, 1)"],
                id="successors for each context",
            ),
            pytest.param(
                np.zeros((3, 2, 1), int),
                np.ones((3, 2, 1)),
                ["[context, state, action, successor]", "(3, 2, 1)"],
                id="no contexts",
            ),
            pytest.param(
                np.zeros((3, 2, 0), int),
                np.ones((2, 3, 2, 0)),
                ["[context, state, action, successor]", "(2, 3, 2, 0)"],
                id="no successors",
            ),
            pytest.param(
                np.zeros((3, 2, 1), int),
                np.where(np.arange(12).reshape(2, 3, 2, 1) == 9, 0.5, 1),
                ["sum to one", "'context-1'", "'s1'", "'a1'", "0.5"],
                id="row short of one",
            ),
            pytest.param(
                np.zeros((3, 2, 1), int),
                np.where(np.arange(12).reshape(2, 3, 2, 1) == 4, NAN, 1),
                ["finite", "'context-0'", "'s2'", "'a0'", "nan"],
                id="NaN",
            ),
            pytest.param(
                np.zeros((3, 2, 2), int),
                np.tile([1.5, -0.5], (2, 3, 2, 1)),
                ["not negative", "'context-0'", "'s0'", "'a0'", "-0.5", "next state 0"],
                id="negative where the row sums to one",
            ),
        ],
    )
    def test_sparse_transitions(self, successors, probabilities, parts):
        with pytest.raises(CMDPError) as refused:
            TabularCMDP(
                Transitions(successors, probabilities), [0.5, 0.5], [1.0, 0.0, 0.0], gamma=0.9
            )
        for part in parts:
            assert part in str(refused.value)

    def test_a_function_that_leaves_the_problem(self):
        made = from_function(
            lambda c, s, a: {s + 1: 1.0}, num_contexts=1, num_states=3, num_actions=1
        )
        with pytest.raises(CMDPError, match="from 0 to 2.* to 3"):
            TabularCMDP(made, [1.0], [1.0, 0.0, 0.0], gamma=0.9)

    @pytest.mark.parametrize("gamma", [0.0, 0.999999])
    def test_the_edges_of_gamma_are_allowed(self, gamma):
        assert fork(gamma=gamma).gamma == gamma

    @pytest.mark.parametrize(
        ("ask", "parts"),
        [
            (lambda cmdp: cmdp.state_indices(["raod"]), ["'raod'", "state", "home, road, end"]),
            (lambda cmdp: cmdp.state_indices([0, 3]), ["state", "from 0 to 2", "3"]),
            (lambda cmdp: cmdp.state_indices([-1]), ["state", "from 0 to 2", "-1"]),
            (lambda cmdp: cmdp.action_indices(["run"]), ["'run'", "action", "stay, go"]),
            (lambda cmdp: cmdp.action_indices([2]), ["action", "from 0 to 1", "2"]),
        ],
    )
    def test_a_state_or_action_that_is_not_there(self, ask, parts):
        with pytest.raises(CMDPError) as refused:
            ask(fork())
        for part in parts:
            assert part in str(refused.value)


class TestNames:
    def test_states_and_actions_by_name_or_index(self):
        assert fork().state_indices(["end", 0, "road"]) == (2, 0, 1)
        assert fork().action_indices([1, "stay"]) == (1, 0)

    def test_defaults(self):
        cmdp = random_cmdp(0)
        assert cmdp.state_names == ("s0", "s1", "s2", "s3")
        assert cmdp.action_names == ("a0", "a1")
        assert cmdp.context_names == ("context-0", "context-1")


class TestFeaturesAndObservations:
    def test_both_are_a_one_hot_of_the_state_unless_given(self):
        cmdp = fork()
        assert cmdp.num_features == 3
        for state, action in itertools.product(range(3), range(2)):
            want = np.eye(3)[state]
            got = cmdp.features(jnp.int32(state), jnp.int32(action))
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(cmdp.observe(jnp.int32(state)), want)
        np.testing.assert_array_equal(cmdp.observation_array(), np.eye(3))

    def test_given_ones(self):
        features = np.arange(24.0).reshape(3, 2, 4)
        observations = np.arange(18, dtype=np.uint8).reshape(3, 3, 2)
        cmdp = fork(features=features, observations=observations)
        assert cmdp.num_features == 4
        for state, action in itertools.product(range(3), range(2)):
            got = cmdp.features(jnp.int32(state), jnp.int32(action))
            np.testing.assert_array_equal(got, features[state, action])
            seen = cmdp.observe(jnp.int32(state))
            assert seen.dtype == jnp.uint8
            np.testing.assert_array_equal(seen, observations[state])
        np.testing.assert_array_equal(cmdp.observation_array(), observations)

    def test_observations_may_be_drawn_by_a_function(self):
        cmdp = fork(observations=lambda state: jnp.stack([10 * state, 7 - state]))
        want = np.array([[0, 7], [10, 6], [20, 5]])
        np.testing.assert_array_equal(cmdp.observation_array(), want)
        np.testing.assert_array_equal(cmdp.observe(jnp.int32(2)), want[2])
        state, found = cmdp.identify(jnp.array([10, 6]))
        assert (int(state), bool(found)) == (1, True)
        assert not cmdp.identify(jnp.array([10, 5]))[1]

    @pytest.mark.parametrize("given", [None, [[5.0], [5.5], [-1.0]], [4, 9, 2]])
    def test_every_observation_is_identified_and_others_are_not(self, given):
        cmdp = fork(observations=given)
        table = jnp.asarray(cmdp.observation_array())
        for identify in (cmdp.identify, eqx.filter_jit(cmdp.identify)):
            for wanted in range(3):
                state, found = identify(table[wanted])
                assert (int(state), bool(found)) == (wanted, True)
                assert not identify(table[wanted] + 3)[1]

    def test_no_state_looks_like_nothing(self):
        for unseen in ([0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.5, 0.0, 0.0], [NAN, 0.0, 1.0]):
            assert not fork().identify(jnp.array(unseen))[1]

    @pytest.mark.parametrize("num_features", [None, 5])
    def test_feature_matrix_has_a_row_for_each_state_and_action(self, num_features):
        features = (
            None
            if num_features is None
            else np.random.default_rng(0).normal(size=(3, 2, num_features))
        )
        cmdp = fork(features=features)
        matrix = cmdp.feature_matrix().toarray()
        assert matrix.shape == (6, cmdp.num_features)
        for state, action in itertools.product(range(3), range(2)):
            want = cmdp.features(jnp.int32(state), jnp.int32(action))
            # `features` are float32, the matrix is not.
            np.testing.assert_allclose(matrix[2 * state + action], want, rtol=1e-6)


class TestDynamics:
    @pytest.mark.parametrize("seed", SPARSE[:4])
    def test_log_probabilities_are_those_of_the_table(self, seed):
        cmdp = random_sparse(seed)
        contexts, states, actions, after = every_transition(cmdp)
        got = jax.jit(jax.vmap(cmdp.transition_log_prob))(states, actions, after, contexts)
        want = dense(cmdp).ravel()
        assert 0 < (want == 0).sum() < want.size
        np.testing.assert_array_equal(np.isneginf(got), want == 0)
        # float32: a relative error of 10⁻⁷ of p, and the same in adding up merged successors.
        np.testing.assert_allclose(np.exp(np.asarray(got, np.float64)), want, rtol=1e-6)

    @pytest.mark.parametrize("seed", SPARSE[:2])
    def test_all_contexts_at_once_are_each_of_them(self, seed):
        cmdp = random_sparse(seed)
        contexts, states, actions, after = every_transition(cmdp)
        one = jax.jit(jax.vmap(cmdp.transition_log_prob))(states, actions, after, contexts)
        every = jax.jit(jax.vmap(cmdp.context_log_likelihood))(states, actions, after)
        np.testing.assert_array_equal(every[jnp.arange(len(contexts)), contexts], one)

    @pytest.mark.parametrize("seed", range(20))
    def test_occurring_states_are_those_that_some_path_reaches(self, seed):
        cmdp = random_cmdp(seed, num_states=20, num_actions=1, sparsity=0.98)
        possible, initial = dense(cmdp) > 0, np.asarray(cmdp.initial)
        want = set()
        for context in range(2):
            open_states = np.flatnonzero(initial).tolist()
            reached = set(open_states)
            while open_states:
                state = open_states.pop()
                found = set(np.flatnonzero(possible[context, state].any(0)).tolist()) - reached
                reached |= found
                open_states += found
            want |= reached
        assert 1 < len(want) < 20, "nothing would be tested: choose a sparser problem"
        assert set(np.flatnonzero(cmdp.occurring_states()).tolist()) == want

    def test_paths_of_different_contexts_are_not_joined(self):
        """Context 0 goes 0 → 1 and context 1 goes 1 → 2: no episode sees 2."""
        follows = {(0, 0): 1, (1, 1): 2}
        transitions = from_function(
            lambda c, s, a: {follows.get((c, s), s): 1.0},
            num_contexts=2,
            num_states=3,
            num_actions=1,
        )
        start = [1.0, 0.0, 0.0]
        cmdp = TabularCMDP(transitions, [0.5, 0.5], start, gamma=0.9)
        assert cmdp.occurring_states().tolist() == [True, True, False]
        # A context that the prior rules out opens nothing.
        cmdp = TabularCMDP(transitions, [0.0, 1.0], start, gamma=0.9)
        assert cmdp.occurring_states().tolist() == [True, False, False]

    def test_starts_follow_the_initial_distribution(self):
        """20,000 draws: 5 standard errors of a half are 0.018. Impossible starts never come."""
        cmdp = fork()
        keys = jax.random.split(jax.random.key(0), 20_000)
        starts = jax.jit(jax.vmap(cmdp.reset, (0, None)))(keys, jnp.int32(1))
        share = np.bincount(starts, minlength=3) / len(keys)
        assert abs(share[0] - 0.5) < 0.018
        assert share[2] == 0


class TestTransformations:
    """`problems` says a problem differently; here, that it stays the same problem."""

    def test_permuted_states_keep_their_transitions_looks_and_names(self):
        cmdp = envs.make("tiger-maze", p_hear=0.85)
        order = np.random.default_rng(0).permutation(cmdp.num_states).tolist()
        other = permute_states(cmdp, order)
        old = {name: state for state, name in enumerate(cmdp.state_names)}
        at = [old[name] for name in other.state_names]
        assert at == order
        np.testing.assert_array_equal(dense(other), dense(cmdp)[:, at][..., at])
        np.testing.assert_array_equal(other.initial, np.asarray(cmdp.initial)[at])
        np.testing.assert_array_equal(other.observation_array(), cmdp.observation_array()[at])
        assert cmdp.task is not None and other.task is not None
        np.testing.assert_array_equal(other.task.reward, cmdp.task.reward[at])
        for group in ("exploration_states", "goal_states", "failure_states"):
            moved = {other.state_names[state] for state in getattr(other.task, group)}
            assert moved == {cmdp.state_names[state] for state in getattr(cmdp.task, group)}
        back = permute_states(other, np.argsort(order).tolist())
        np.testing.assert_array_equal(dense(back), dense(cmdp))
        assert back.state_names == cmdp.state_names

    def test_relabelled_contexts_keep_their_dynamics_and_names(self):
        cmdp = random_sparse(0)
        other = relabel_contexts(cmdp, [2, 0, 1])
        assert other.context_names == ("context-2", "context-0", "context-1")
        np.testing.assert_allclose(dense(other), dense(cmdp)[[2, 0, 1]], rtol=1e-15)
        np.testing.assert_allclose(
            other.context_prior, np.asarray(cmdp.context_prior)[[2, 0, 1]], rtol=1e-15
        )


class TestThroughJAX:
    @pytest.mark.parametrize(
        "observations",
        [None, np.arange(6.0).reshape(3, 2), jax.tree_util.Partial(lambda state: state * 2)],
    )
    def test_a_cmdp_is_an_argument_like_any_other(self, observations):
        cmdp = fork(observations=observations)
        traces = []

        @jax.jit
        def use(cmdp: TabularCMDP, key, state, action, context):
            traces.append(cmdp)
            return (
                cmdp.step(key, state, action, context),
                cmdp.observe(state),
                cmdp.features(state, action),
                cmdp.context_log_likelihood(state, action, state),
                cmdp.sample_context(key),
                cmdp.reset(key, context),
            )

        arguments = jax.random.key(0), jnp.int32(1), jnp.int32(1), jnp.int32(0)
        key, state, action, context = arguments
        inside = use(cmdp, *arguments)
        outside = (
            cmdp.step(key, state, action, context),
            cmdp.observe(state),
            cmdp.features(state, action),
            cmdp.context_log_likelihood(state, action, state),
            cmdp.sample_context(key),
            cmdp.reset(key, context),
        )
        for got, want in zip(inside, outside, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-6)
        # Another problem of the same shape and names is other data, not another program.
        use(fork(context_prior=[0.1, 0.9], observations=observations), *arguments)
        assert len(traces) == 1

    def test_pixels_pass_through_too(self):
        cmdp = envs.make("tiger-maze", observation="pixels")
        seen = jax.jit(lambda cmdp, state: cmdp.observe(state))(cmdp, jnp.int32(7))
        np.testing.assert_array_equal(seen, cmdp.observation_array()[7])

    def test_no_episode_looks_at_the_others(self):
        """A batch is each of its episodes, to the last bit."""
        cmdp = random_cmdp(5, num_contexts=3)
        keys = jax.random.split(jax.random.key(0), 64)
        rng = np.random.default_rng(0)
        states, actions, contexts = (jnp.asarray(rng.integers(0, n, 64)) for n in (4, 2, 3))
        batched = jax.jit(jax.vmap(cmdp.step))(keys, states, actions, contexts)
        step = eqx.filter_jit(cmdp.step)
        singly = [int(step(keys[i], states[i], actions[i], contexts[i])) for i in range(64)]
        assert batched.tolist() == singly


class Slide(CMDP):
    """A state of two numbers: the context is the slope, and noise hides it. No probabilities."""

    context_prior: Float[Array, " context"]
    gamma: float = 0.9

    @property
    def num_actions(self) -> int:
        return 2

    def reset(self, key, context):
        return jnp.zeros(2)

    def step(self, key, state, action, context):
        noise = jax.random.normal(key)
        return state + jnp.array([1.0, 0.0]) * (context + action) + jnp.array([0.0, 1.0]) * noise

    def observe(self, state):
        return state

    def features(self, state, action):
        return jnp.append(state, 1.0)


class KnownSlide(CMDP):
    """The same in one dimension, with noise of variance 1 and with its density."""

    context_prior: Float[Array, " context"]
    gamma: float = 0.9

    @property
    def num_actions(self) -> int:
        return 2

    def reset(self, key, context):
        return jnp.zeros(())

    def step(self, key, state, action, context):
        return state + context + action + jax.random.normal(key)

    def observe(self, state):
        return state[None]

    def identify(self, observation):
        return observation[0], jnp.asarray(True)

    def features(self, state, action):
        return state[None]

    def transition_log_prob(self, state, action, next_state, context):
        return jax.scipy.stats.norm.logpdf(next_state, state + context + action)


class TestSimulators:
    PRIOR = jnp.array([0.2, 0.3, 0.5])

    @pytest.mark.parametrize(
        "ask",
        [
            lambda cmdp, s, a: cmdp.transition_log_prob(s, a, s, jnp.int32(0)),
            lambda cmdp, s, a: cmdp.context_log_likelihood(s, a, s),
            lambda cmdp, s, a: ExactInference(cmdp).update(
                ExactInference(cmdp).init(), ExactInference(cmdp).encode(s), a
            ),
        ],
    )
    def test_dynamics_that_are_not_known_are_said_to_be_unknown(
        self, ask: Callable[[CMDP, Array, Array], Any]
    ):
        with pytest.raises(UnknownDynamicsError, match="`Slide`.*`transition_log_prob`"):
            ask(Slide(self.PRIOR), jnp.zeros(2), jnp.int32(0))
        assert issubclass(UnknownDynamicsError, BigTrainError)
        assert not Slide(self.PRIOR).knows_likelihood and KnownSlide(self.PRIOR).knows_likelihood

    def test_the_rest_works_without_them(self):
        cmdp = Slide(self.PRIOR)
        assert (cmdp.num_contexts, cmdp.num_actions) == (3, 2)
        assert cmdp.action_names == ("a0", "a1")
        assert cmdp.context_names == ("context-0", "context-1", "context-2")
        after = cmdp.step(jax.random.key(0), jnp.zeros(2), jnp.int32(1), jnp.int32(2))
        assert float(after[0]) == 3
        keys = jax.random.split(jax.random.key(0), 20_000)
        contexts = jax.jit(jax.vmap(cmdp.sample_context))(keys)
        # 5 standard errors of a half.
        np.testing.assert_allclose(np.bincount(contexts) / 20_000, self.PRIOR, atol=0.018)

    def test_likelihoods_of_all_contexts_come_with_the_one(self):
        """N(x + θ + a, 1): from 1 to 3.5 by action 1, θ = 0, 1, 2 are off by 1.5, 0.5 and −0.5."""
        cmdp = KnownSlide(self.PRIOR)
        got = cmdp.context_log_likelihood(jnp.float32(1), jnp.int32(1), jnp.float32(3.5))
        want = -0.5 * np.array([1.5, 0.5, -0.5]) ** 2 - 0.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(got, want, rtol=1e-6)
        inference = ExactInference(cmdp)
        memory = inference.init()
        for position, previous in ((1.0, NO_ACTION), (3.5, 1)):
            code = inference.encode(jnp.array([position]))
            memory, info = inference.update(memory, code, jnp.int32(previous))
        joint = np.array([0.2, 0.3, 0.5]) * np.exp(want)
        np.testing.assert_allclose(inference.belief(memory).probs, joint / joint.sum(), rtol=1e-5)
        assert float(info.log_evidence) == pytest.approx(np.log(joint.sum()), rel=1e-5)

    def test_the_base_class_is_abstract(self):
        with pytest.raises(TypeError, match="abstract"):
            CMDP()  # pyright: ignore[reportAbstractUsage, reportCallIssue]


class TestStatedOddly:
    """Flaws that would otherwise pass unseen, or speak of the wrong thing."""

    uniform = np.full((2, 4, 2, 4), 0.25)

    def make(self, transitions: Any = None, **fields) -> TabularCMDP:
        given = self.uniform if transitions is None else transitions
        return TabularCMDP(given, [0.5, 0.5], [1.0, 0.0, 0.0, 0.0], gamma=0.9, **fields)

    def test_a_missing_axis_is_named_before_the_names_that_do_not_fit_it(self):
        with pytest.raises(CMDPError, match=r"`transitions` must have the axes .*\(4, 2, 4\)"):
            self.make(self.uniform[0], state_names=list("abcd"))

    def test_ragged_lists(self):
        with pytest.raises(CMDPError, match="`transitions` must be an array of numbers"):
            self.make([[[[1.0], [0.5, 0.5]]]])

    def test_many_states_with_one_name(self):
        table = Transitions(np.zeros((1000, 1, 1), int), np.ones((1, 1000, 1, 1)))
        with pytest.raises(CMDPError, match="'x' twice"):
            TabularCMDP(table, [1.0], np.eye(1, 1000)[0], gamma=0.9, state_names=["x"] * 1000)

    def test_a_plain_function_as_observer_goes_through_jit(self):
        made = self.make(observations=lambda state: state * 2)
        assert int(jax.jit(lambda cmdp: cmdp.observe(jnp.int32(1)))(made)) == 2

    def test_integers_that_jax_cannot_carry(self):
        with pytest.raises(CMDPError, match="must fit int32, but state 1"):
            self.make(observations=np.array([0, 2**32, 1, 2]))

    def test_an_observation_of_another_shape_is_not_broadcast(self):
        made = self.make(observations=np.array([[5.0, 5.0], [1, 2], [3, 4], [6, 7]]))
        with pytest.raises(CMDPError, match=r"shape \(2,\), got \(\)"):
            made.identify(jnp.float32(5))

    def test_what_all_states_look_like_is_what_each_looks_like(self):
        made = self.make(observations=np.array([0.1, 0.2, 0.3, 0.4]))
        assert made.observation_array().dtype == made.observe(jnp.int32(0)).dtype

    def test_features_are_ones_own(self):
        features = np.ones((4, 2, 3))
        made = self.make(features=features)
        features[:] = 0
        assert np.asarray(made.feature_table).all()
