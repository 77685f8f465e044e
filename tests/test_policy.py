"""Learned policies a step at a time: values, memories, and the beliefs that they act on."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from problems import dense, random_cmdp

from bigtrain import TabularCMDP, envs
from bigtrain.belief import LEAST_LOG_PROB, AmortisedInference, Categorical
from bigtrain.errors import ConfigError
from bigtrain.finite.inference import FiniteInference
from bigtrain.learning.networks import NetworkConfig
from bigtrain.policy import BLOCK, NetworkPolicy, PolicyConfig, ValueNetwork, compile_block
from bigtrain.policy.network import Core
from bigtrain.problem import NO_ACTION, Trajectories

TIGER = envs.make("tiger-treasure")
S0, T1, T2, LISTEN = 0, 1, 2, 2
SMALL = NetworkConfig(width=32, depth=2)
FIRST = jnp.asarray(NO_ACTION, jnp.int32)


def observations(cmdp: TabularCMDP) -> jax.Array:
    return jnp.asarray(cmdp.observation_array())


def value_network(core: Core = "none") -> ValueNetwork:
    """One that has not learned, but has values to give: the head begins at 0."""
    network = ValueNetwork(
        observations(TIGER),
        num_contexts=2,
        num_actions=3,
        config=PolicyConfig(network=SMALL, core=core, core_width=8),
        key=jax.random.key(0),
    )
    return network.with_head(jax.random.normal(jax.random.key(1), network.head.shape))


def posterior(
    core_width: int | None = None, prior: tuple[float, ...] = (0.5, 0.5)
) -> AmortisedInference:
    """One that has not learned, but takes everything for evidence: its head begins at 0."""
    found = AmortisedInference(
        observations(TIGER),
        context_prior=prior,
        num_actions=3,
        config=SMALL,
        core_width=core_width,
        key=jax.random.key(2),
    )
    weight = jax.random.normal(jax.random.key(3), found.head.weight.shape)
    return eqx.tree_at(lambda p: p.head.weight, found, weight)


def policies() -> dict[str, NetworkPolicy]:
    options = (-3.0, 110.0, TIGER.gamma)
    return {
        "filter": NetworkPolicy(FiniteInference(TIGER), value_network(), *options),
        "filter and core": NetworkPolicy(FiniteInference(TIGER), value_network("gru"), *options),
        "posterior and cores": NetworkPolicy(posterior(8), value_network("gru"), *options),
    }


def follow(policy: NetworkPolicy, states: list[int]) -> np.ndarray:
    """The values at the end of a history of listening."""
    memory, values = policy.init(), None
    for moment, state in enumerate(states):
        previous = FIRST if moment == 0 else jnp.asarray(LISTEN, jnp.int32)
        memory, decision = policy.step(memory, observations(TIGER)[state], previous)
        values = decision.values
    return np.asarray(values)


# ── values ───────────────────────────────────────────────────────────────────────────────────────


def test_a_head_that_was_put_in_comes_out():
    head = jax.random.normal(jax.random.key(4), (3, 33))
    network = value_network().with_head(head)
    np.testing.assert_allclose(network.head, head, rtol=1e-6, atol=1e-6)  # rounding of the mean
    np.testing.assert_allclose(network.value, head.mean(0), rtol=1e-6)
    np.testing.assert_allclose(network.advantages.sum(0), 0, atol=1e-5)


def test_values_are_the_mean_and_what_each_action_adds():
    """Whatever the advantages have in common does not count, as in dueling networks."""
    plain = value_network()
    common = jax.random.normal(jax.random.key(5), plain.value.shape)
    shifted = eqx.tree_at(lambda n: n.advantages, plain, plain.advantages + common)
    hidden = plain.hidden(
        plain.encode(observations(TIGER)[S0]), Categorical(jnp.log(jnp.full(2, 0.5))), plain.init()
    )
    np.testing.assert_allclose(shifted.head @ hidden, plain.head @ hidden, atol=1e-5)
    np.testing.assert_allclose((shifted.head @ hidden).mean(), plain.value @ hidden, atol=1e-5)


def test_decisions_are_in_units_of_the_reward():
    """Twice the scale and another baseline: the same action, and values that follow."""
    plain = NetworkPolicy(FiniteInference(TIGER), value_network(), 0.0, 1.0, TIGER.gamma)
    scaled = NetworkPolicy(FiniteInference(TIGER), value_network(), -3.0, 2.0, TIGER.gamma)
    want = 2 * follow(plain, [S0, T1]) - 3 / (1 - 0.99)
    np.testing.assert_allclose(follow(scaled, [S0, T1]), want, rtol=1e-5)


def test_beliefs_near_certainty_are_told_apart():
    """Design, point 11: hearings add up evenly. As probabilities, 0.9990 is to 0.9945 less than a
    fifth of what that is to 0.9698; what the head sees must move by more than half as much."""
    network = value_network()
    code = network.encode(observations(TIGER)[T1])

    def after(hearings: int) -> jax.Array:
        odds = hearings * jnp.log(0.85 / 0.15)
        log_belief = jax.nn.log_softmax(jnp.array([odds, 0.0]))
        return network.hidden(code, Categorical(log_belief), network.init())

    moved = [float(jnp.linalg.norm(after(n + 1) - after(n))) for n in (2, 3)]
    assert moved[1] > 0.5 * moved[0]
    assert not np.allclose(network.head @ after(3), network.head @ after(4), atol=1e-2)


def test_what_is_hardly_possible_counts_as_impossible():
    network = value_network()
    code = network.encode(observations(TIGER)[T1])
    seen = [
        network.head @ network.hidden(code, Categorical(jnp.array([0.0, least])), network.init())
        for least in (LEAST_LOG_PROB - 1, -jnp.inf)
    ]
    np.testing.assert_allclose(
        seen[0], seen[1], atol=1e-4
    )  # e^-12 is what is left of the difference


# ── steps ────────────────────────────────────────────────────────────────────────────────────────


def play(policy: NetworkPolicy, heard: np.ndarray) -> tuple[Any, Any]:
    """Episodes of listening side by side: memories and decisions after the last moment."""
    step = eqx.filter_jit(eqx.filter_vmap(policy.step))
    memories = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(heard)), policy.init())
    decisions = None
    for moment, states in enumerate(heard.T):
        previous = jnp.full(len(heard), LISTEN if moment else NO_ACTION, jnp.int32)
        memories, decisions = step(memories, observations(TIGER)[states], previous)
    return memories, decisions


HEARD = np.array([[S0, T1, T1, T2], [S0, T2, T2, T2], [S0, T1, T2, T1], [S0, T2, T1, T1]])


@pytest.mark.parametrize("name", policies())
def test_a_batch_of_episodes_is_as_many_single_ones(name):
    """To rounding: a product with one vector adds up in another order than one with several."""
    policy = policies()[name]
    _, decisions = play(policy, HEARD)
    for row, states in enumerate(HEARD):
        want = follow(policy, states.tolist())
        np.testing.assert_allclose(decisions.values[row], want, rtol=1e-5, atol=1e-3)
        assert decisions.probs[row].argmax() == want.argmax()


@pytest.mark.parametrize("name", policies())
def test_an_episode_does_not_depend_on_its_company(name):
    """Nor on its place in a batch of one size, to the last bit."""
    policy = policies()[name]
    together = play(policy, HEARD)
    apart = play(policy, HEARD[[3, 0, 0, 0]])
    for leaf, other in zip(jax.tree.leaves(together), jax.tree.leaves(apart), strict=True):
        np.testing.assert_array_equal(np.asarray(leaf)[3], np.asarray(other)[0])


def play_blocks(policy: NetworkPolicy, heard: np.ndarray) -> tuple[Any, Any]:
    """The same of a whole block, by the program that servers compare with."""
    step = compile_block(policy)
    memories = jax.tree.map(lambda leaf: jnp.stack([leaf] * BLOCK), policy.init())
    decisions = None
    for moment, states in enumerate(heard.T):
        previous = jnp.full(BLOCK, LISTEN if moment else NO_ACTION, jnp.int32)
        memories, decisions = step(memories, observations(TIGER)[states], previous)
    return memories, decisions


@pytest.mark.parametrize("name", policies())
def test_a_block_is_as_many_single_episodes_whoever_they_are(name):
    """Values to rounding, as above; and to the last bit in any place and company."""
    policy = policies()[name]
    rng = np.random.default_rng(0)
    heard = np.concatenate([HEARD, np.array([S0, T1, T2])[rng.integers(3, size=(BLOCK - 4, 4))]])
    order = rng.permutation(BLOCK)
    order[-4:] = 0  # others than before
    together, moved = play_blocks(policy, heard), play_blocks(policy, heard[order])
    for leaf, other in zip(jax.tree.leaves(together), jax.tree.leaves(moved), strict=True):
        np.testing.assert_array_equal(np.asarray(leaf)[order], np.asarray(other))
    _, decisions = together
    for row, states in enumerate(HEARD):
        want = follow(policy, states.tolist())
        np.testing.assert_allclose(decisions.values[row], want, rtol=1e-5, atol=1e-3)
        assert decisions.probs[row].argmax() == want.argmax()


@pytest.mark.parametrize("name", policies())
def test_the_previous_action_of_a_first_step_is_ignored(name):
    policy = policies()[name]
    step = eqx.filter_jit(policy.step)
    found = [
        step(policy.init(), observations(TIGER)[S0], jnp.asarray(action, jnp.int32))
        for action in (NO_ACTION, 0, LISTEN)
    ]
    for other in found[1:]:
        for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_core_remembers_what_the_belief_forgets():
    """The same hearings in another order: the same belief and the same observation at the end."""
    histories = [S0, T1, T2, T2], [S0, T2, T1, T2]
    with_core, without = policies()["filter and core"], policies()["filter"]
    one, other = (follow(without, history) for history in histories)
    np.testing.assert_allclose(one, other, atol=1e-3)
    one, other = (follow(with_core, history) for history in histories)
    assert np.abs(one - other).max() > 0.1  # of values of some 100; rounding is below 1e-3


# ── beliefs ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("core_width", [None, 8])
def test_a_posterior_unrolled_is_advanced_moment_by_moment(core_width):
    """And begins again from the prior where an episode begins."""
    model = posterior(core_width, prior=(0.8, 0.2))
    states = jnp.array([S0, T1, T2, S0, T1, S0, T2, T2], jnp.int32)
    actions = jnp.array([2, 2, 1, 2, 0, 2, 0, 2], jnp.int32)
    first = jnp.array([1, 0, 0, 1, 0, 1, 0, 0], bool)
    row = Trajectories(states, actions, first, jnp.zeros(8, jnp.int32), jnp.ones(8, bool))
    found = model.log_beliefs(TIGER, jax.tree.map(lambda leaf: leaf[None], row))[0]
    memory, want = model.init(), []
    for state, previous in zip(states, row.previous_actions, strict=True):
        if int(previous) == NO_ACTION:
            memory = model.init()
        memory, _ = model.update(memory, model.encode(observations(TIGER)[state]), previous)
        want.append(memory.log_belief)
    np.testing.assert_allclose(found, jnp.stack(want), atol=1e-5)
    prior = np.tile([0.8, 0.2], (3, 1))
    np.testing.assert_allclose(np.exp(found)[np.asarray(first)], prior, rtol=1e-5)
    assert np.abs(np.exp(found)[~np.asarray(first)] - [0.8, 0.2]).min() > 1e-3


def test_a_posterior_that_has_learned_nothing_keeps_the_prior():
    tracker = posterior(prior=(0.8, 0.2))
    tracker = eqx.tree_at(
        lambda p: (p.head.weight, p.head.bias),
        tracker,
        (jnp.zeros_like(tracker.head.weight), jnp.zeros(2)),
    )
    memory = tracker.init()
    for state in (S0, T1, T1):
        code = tracker.encode(observations(TIGER)[state])
        memory, info = tracker.update(memory, code, jnp.asarray(LISTEN, jnp.int32))
        assert not info.impossible
    np.testing.assert_allclose(tracker.belief(memory).probs, [0.8, 0.2], rtol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_filter_of_observations_is_the_filter_of_states(seed):
    cmdp = random_cmdp(seed, num_contexts=3, num_states=5)
    rng = np.random.default_rng(seed)
    states, actions = rng.integers(5, size=12), rng.integers(2, size=11)
    likelihoods = dense(cmdp)[:, states[:-1], actions, states[1:]]
    want = np.cumprod(np.c_[np.asarray(cmdp.context_prior), likelihoods], axis=-1)
    want /= want.sum(0)
    inference = FiniteInference(cmdp)
    update = eqx.filter_jit(inference.update)
    memory = inference.init()
    for moment, state in enumerate(states):
        previous = jnp.asarray(actions[moment - 1] if moment else NO_ACTION, jnp.int32)
        memory, info = update(memory, inference.encode(cmdp.observe(jnp.asarray(state))), previous)
        assert not info.impossible
        np.testing.assert_allclose(inference.belief(memory).probs, want[:, moment], rtol=1e-4)


def test_the_impossible_is_told_and_changes_no_belief():
    """What looks like no state, and what cannot follow: Gold after listening."""
    inference = FiniteInference(TIGER)
    listened = jnp.asarray(LISTEN, jnp.int32)

    def update(memory, seen, previous):
        return inference.update(memory, inference.encode(seen), previous)

    memory, _ = update(inference.init(), observations(TIGER)[S0], FIRST)
    memory, info = update(memory, observations(TIGER)[T1], listened)
    assert not info.impossible
    before = inference.belief(memory)
    np.testing.assert_allclose(before.probs, [0.85, 0.15], rtol=1e-5)
    for strange in (jnp.full(6, 0.5), observations(TIGER)[4]):
        after, info = update(memory, strange, listened)
        assert info.impossible
        np.testing.assert_array_equal(inference.belief(after).log_probs, before.log_probs)


# ── where a task has an end ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name, absorbing", [("tiger-treasure", ["ST"]), ("detour", []), ("tiger-maze", [])]
)
def test_states_that_lead_to_themselves_for_ever(name, absorbing):
    cmdp = envs.make(name)
    found = jax.vmap(cmdp.is_absorbing)(jnp.arange(cmdp.num_states))
    assert [cmdp.state_names[state] for state in np.flatnonzero(found)] == absorbing


def test_a_context_that_cannot_be_does_not_open_a_trap():
    """State 1 is left in context 1 and by no action in context 0."""
    table = np.zeros((2, 2, 2, 2))
    table[:, 0, :, 1] = table[0, 1, :, 1] = table[1, 1, :, 0] = 1
    for prior, want in (([1.0, 0.0], [False, True]), ([0.5, 0.5], [False, False])):
        cmdp = TabularCMDP(table, prior, [1.0, 0.0], gamma=0.9)
        assert jax.vmap(cmdp.is_absorbing)(jnp.arange(2)).tolist() == want


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"core": "lstm"}, "`core` must be 'none' or 'gru', got 'lstm'"),
        ({"core_width": 0}, "`core_width` must be at least 1, got 0"),
        ({"belief": "vague"}, "`belief` must be 'auto', 'exact' or 'learned', got 'vague'"),
    ],
)
def test_settings_that_cannot_be(settings, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is for users
    with pytest.raises(ConfigError, match=message):
        PolicyConfig(**settings)
