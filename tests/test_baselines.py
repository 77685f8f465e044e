"""Baselines: copies by networks against exact ones, and IRL that leaves something out.

Networks are small and updates few, so that training takes less time than compiling it.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Shaped
from problems import Hidden, as_seen

from bigtrain import (
    Demonstrations,
    Event,
    SolveConfig,
    TabularCMDP,
    Trajectory,
    baselines,
    demonstrate,
    envs,
    evaluate,
    evaluate_exactly,
    solve,
)
from bigtrain.baselines import CloneConfig, ClonedPolicy, clone, clone_network
from bigtrain.errors import ConfigError, DemonstrationError
from bigtrain.finite.policies import MemorylessPolicy
from bigtrain.learning.networks import NetworkConfig
from bigtrain.policy import Decision, Policy
from bigtrain.problem import NO_ACTION

TIGER = envs.make("tiger-treasure")
DETOUR = envs.make("detour")
MAZE = envs.make("tiger-maze")
PICTURES = envs.make("tiger-maze", observation="pixels")
PROBLEMS = {"tiger": TIGER, "detour": DETOUR, "maze": MAZE, "pictures": PICTURES}
LISTEN, ST = 2, 5
LEFT, RIGHT = range(2)

FEEDFORWARD = CloneConfig(
    network=NetworkConfig(width=32, depth=1),
    learning_rate=1e-2,
    num_updates=300,
    batch_size=1_000,
)
RECURRENT = dataclasses.replace(FEEDFORWARD, recurrent=True, core_width=16)
BOTH = pytest.mark.parametrize("config", [FEEDFORWARD, RECURRENT], ids=["feedforward", "recurrent"])


@functools.cache
def demonstrations(name: str) -> Demonstrations:
    if name == "pictures":  # the same states, seen in another way
        return demonstrations("maze")
    cmdp = PROBLEMS[name]
    assert cmdp.task is not None
    horizon = 50 if name == "tiger" else 40
    contexts = np.arange(100) % 2 if name == "tiger" else None
    return demonstrate(cmdp, cmdp.task.reward, episodes=100, horizon=horizon, contexts=contexts)


@functools.cache
def cloned(name: str, config: CloneConfig) -> ClonedPolicy:
    return clone_network(PROBLEMS[name], demonstrations(name), config=config)


def ragged(name: str) -> Demonstrations:
    """The first steps of some demonstrations, from 1 to 9 of them."""
    cut = [
        Trajectory(one.observations[: length + 1], one.actions[:length])
        for one, length in zip(demonstrations(name), [1, 9, 4, 9, 1, 4], strict=False)
    ]
    return Demonstrations.from_trajectories(cut)


def few(config: CloneConfig, num_updates: int = 20, **changes: Any) -> CloneConfig:
    return dataclasses.replace(config, num_updates=num_updates, **changes)


@eqx.filter_jit
def decide(policy: Policy, observations: Shaped[Array, "step ..."], actions: Array) -> Decision:
    """What the policy decides at each step of a history; `actions` are the previous ones."""

    def advance(memory, step):
        return policy.step(memory, *step)

    return jax.lax.scan(advance, policy.init(), (observations, actions))[1]


def probs_after(
    policy: Policy, cmdp: TabularCMDP, states: Sequence[int], actions: Sequence[int]
) -> np.ndarray:
    """The action probabilities at the last of `states`, reached by `actions`."""
    observations = jax.vmap(cmdp.observe)(jnp.asarray(states))
    previous = jnp.asarray([NO_ACTION, *actions], jnp.int32)
    return np.asarray(decide(policy, observations, previous).probs[-1])


def table(policy: Policy, cmdp: TabularCMDP) -> np.ndarray:
    """The action probabilities of every state, seen first in an episode."""
    return np.asarray(_first_probs(policy, cmdp))


@eqx.filter_jit
def _first_probs(policy: Policy, cmdp: TabularCMDP) -> Array:
    def first(state):
        observation = cmdp.observe(state)
        return policy.step(policy.init(), observation, jnp.asarray(NO_ACTION))[1].probs

    return jax.vmap(first)(jnp.arange(cmdp.num_states))


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    """The largest over the rows."""
    return float(0.5 * np.abs(one - other).sum(-1).max())


def visited(name: str) -> np.ndarray:
    """The states in which experts acted."""
    states = demonstrations(name).observations.reshape(100, -1)
    return np.unique(states[:, :-1])


# ── copies by networks ───────────────────────────────────────────────────────────────────────────


@BOTH
def test_clones_meet_the_tiger_half_of_the_time(config):
    """Half the experts open each door, and none listens."""
    policy = cloned("tiger", config)
    opens_1, opens_2, listens = probs_after(policy, TIGER, [0], [])
    # A softmax never gets to 0; and with a memory, S0 is one step in 50 of what is fitted.
    assert listens < 0.02
    assert opens_1 == pytest.approx(0.5, abs=0.03) and opens_2 == pytest.approx(0.5, abs=0.03)
    played = evaluate(policy, TIGER, episodes=2_000, horizon=10)
    assert played.success is not None and played.exploring is not None
    assert abs(played.success.mean - 0.5) < 4 * played.success.stderr
    assert played.exploring.mean < 0.03
    exact = evaluate_exactly(policy, TIGER, horizon=3)
    copied = evaluate_exactly(clone(TIGER, demonstrations("tiger")), TIGER, horizon=3)
    assert exact.success is not None and copied.success is not None
    assert copied.success.mean == pytest.approx(0.5, abs=1e-9)
    # Where it listens it then acts as it likes, which changes at most that much.
    assert abs(exact.success.mean - copied.success.mean) <= listens


@pytest.mark.parametrize("name", ["tiger", "detour", "maze"])
def test_a_network_without_memory_converges_to_the_exact_copy(name):
    want = np.asarray(clone(PROBLEMS[name], demonstrations(name)).table)
    found = table(cloned(name, FEEDFORWARD), PROBLEMS[name])
    # Every update uses all demonstrations, so there is no noise; what is left is the probability
    # of actions that experts never took, which takes for ever to reach 0: now at most 0.002.
    assert total_variation(found[visited(name)], want[visited(name)]) < 0.01


def test_only_a_memory_tells_the_contexts_apart():
    """s4 and s5 reveal the context; the expert then goes right or left at s0."""
    recurrent, feedforward = (cloned("detour", config) for config in (RECURRENT, FEEDFORWARD))
    demos = demonstrations("detour")
    at_s0 = demos.observations.reshape(100, -1)[:, :-1].ravel() == 0
    mean = np.mean(demos.actions[at_s0] == RIGHT)
    assert 0.8 < mean < 0.95, "both kinds of experts are shown"
    assert probs_after(recurrent, DETOUR, [0], [])[RIGHT] == pytest.approx(mean, abs=0.03)
    for states, first, expert in (
        ([0, 2, 3, 4, 0], RIGHT, RIGHT),
        ([0, 1, 3, 5, 0], LEFT, LEFT),
        ([0, 2, 3, 5, 0], RIGHT, LEFT),  # no expert went this way in context 1
    ):
        for rest in ([LEFT] * 3, [RIGHT] * 3):
            history = states, [first, *rest]
            assert probs_after(recurrent, DETOUR, *history)[expert] > 0.9
            assert probs_after(feedforward, DETOUR, *history)[RIGHT] == pytest.approx(
                mean, abs=0.01
            )


def test_pictures_are_as_good_as_symbols():
    # Both are within 0.01 of the exact copy, by the reason given there.
    symbols, pictures = (
        table(cloned(name, FEEDFORWARD), PROBLEMS[name]) for name in ("maze", "pictures")
    )
    assert total_variation(symbols[visited("maze")], pictures[visited("maze")]) < 0.02
    assert np.abs(symbols - pictures).max() > 1e-6, "another network, after all"


def test_uneven_trajectories_count_by_their_steps():
    """Nine steps of one kind and one of another, seen one trajectory at a time."""
    demos = Demonstrations([ST, ST] + [ST] * 10, [0] + [1] * 9, [1, 9])
    config = few(FEEDFORWARD, 1_000, batch_size=1, learning_rate=3e-3)
    found = table(clone_network(TIGER, demos, config=config), TIGER)[ST]
    # An update sees one kind only, which leaves noise; trajectories that count alike give 0.5.
    np.testing.assert_allclose(found, [0.1, 0.9, 0], atol=0.05)


# ── training ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("simulated", [False, True], ids=["finite", "simulated"])
def test_the_loss_is_that_of_the_policy(simulated):
    """The policy, a step at a time, against the compiled loss on padded rectangles.

    States of a finite problem are embedded once each, observations of a simulator as they come.
    """
    events: list[Event] = []
    demos = ragged("detour")
    policy = clone_network(
        Hidden(DETOUR, mute=True) if simulated else DETOUR,
        as_seen(DETOUR, demos) if simulated else demos,
        config=few(RECURRENT, 1, learning_rate=1e-12),  # too small to change anything
        callbacks=[events.append],
    )
    chosen, hits = [], []
    for one in demos:
        previous = jnp.asarray(np.append(NO_ACTION, one.actions[:-1]))
        observations = jax.vmap(DETOUR.observe)(jnp.asarray(one.observations[:-1]))
        probs = np.asarray(decide(policy, observations, previous).probs)
        chosen.extend(probs[np.arange(len(one)), one.actions])
        hits.extend(probs.argmax(-1) == one.actions)
    assert len(chosen) == 28
    (event,) = events
    assert event.metrics["loss"] == pytest.approx(-np.log(chosen).mean(), abs=1e-5)
    assert event.metrics["accuracy"] == pytest.approx(np.mean(hits), abs=1e-6)


def test_seeds_side_by_side_are_seeds_one_by_one():
    """In chunks or not, and callbacks hear of each."""
    heard: list[Event] = []
    heard_alone: list[Event] = []
    demos, config = demonstrations("detour"), few(FEEDFORWARD, batch_size=10)
    chunks = dataclasses.replace(config, report_every=8)
    policies = clone_network(DETOUR, demos, config=chunks, seed=[3, 4], callbacks=[heard.append])
    together = [table(policy, DETOUR) for policy in policies]
    for seed, found in zip((3, 4), together, strict=True):
        alone = clone_network(
            DETOUR, demos, config=config, seed=seed, callbacks=[heard_alone.append]
        )
        np.testing.assert_allclose(found, table(alone, DETOUR), atol=1e-5)  # another order of sums
    assert np.abs(together[0] - together[1]).max() > 1e-3
    assert [(event.phase, event.step, event.total) for event in heard] == [
        ("cloning", step, 20) for step in (8, 16, 20)
    ]
    assert [event.step for event in heard_alone] == [20, 20]
    for name in ("loss", "accuracy"):
        values = np.array([event.metrics[name] for event in heard])
        assert values.shape == (3, 2)
        mean = np.average(values, axis=0, weights=[8, 8, 4])  # all trajectories have 40 steps
        for event, want in zip(heard_alone, mean, strict=True):
            assert isinstance(event.metrics[name], float)
            assert event.metrics[name] == pytest.approx(want, rel=1e-4)
    losses = np.array([event.metrics["loss"] for event in heard])
    assert (np.diff(losses, axis=0) < 0).all()


def test_nothing_is_compiled_again(caplog):
    """Neither between chunks, of whatever length, nor between calls."""

    def num_compiled() -> int:
        return sum("Finished XLA compilation" in record.message for record in caplog.records)

    demos, counts = demonstrations("detour"), []
    with jax.log_compiles():
        for call in range(3):
            clone_network(
                DETOUR,
                demos[9 * call : 9 * (call + 1)],
                config=few(RECURRENT, report_every=7),
                seed=call,
                callbacks=[lambda _: counts.append(num_compiled())],
            )
            counts.append(num_compiled())
    first, later = counts[:3], counts[4:]
    assert first[0] > 0 and first == first[:1] * 3
    assert later == counts[3:4] * 8


# ── what carries over ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "states, actions",
    [([5, 3, 0, 4, 1, 2], [0, 1, 2]), ([0, 1, 2, 3, 4, 5], [2, 0, 1])],
    ids=["states", "actions"],
)
def test_new_numbers(states, actions):
    """Where state i becomes `states[i]` and action i `actions[i]`, the same optimum is found."""
    old_states, old_actions = np.argsort(states), np.argsort(actions)
    successors, probabilities = TIGER.transitions
    cmdp = eqx.tree_at(
        lambda problem: (problem.successors, problem.probabilities, problem.initial),
        TIGER,
        (
            np.asarray(states)[successors][old_states][:, old_actions],
            probabilities[:, old_states][:, :, old_actions],
            np.asarray(TIGER.initial)[old_states],
        ),
    )
    demos = demonstrations("tiger")
    moved = Demonstrations(
        np.asarray(states)[demos.observations], np.asarray(actions)[demos.actions], demos.lengths
    )
    found = table(clone_network(cmdp, moved, config=FEEDFORWARD), cmdp)[states][:, actions]
    want = table(cloned("tiger", FEEDFORWARD), TIGER)
    # Other weights meet other inputs, so it is on the way that they differ.
    assert total_variation(found[visited("tiger")], want[visited("tiger")]) < 0.01


def test_contexts_are_not_read():
    demos = demonstrations("detour")
    told = Demonstrations(demos.observations, demos.actions, demos.lengths, np.zeros(100, int))
    found = clone_network(DETOUR, told, config=FEEDFORWARD)
    want = cloned("detour", FEEDFORWARD)
    np.testing.assert_array_equal(table(found, DETOUR), table(want, DETOUR))


# ── the policy ───────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_what_a_clone_believes(config):
    """The prior, whatever it sees: nobody taught it more. Nor does it know values."""
    policy = cloned("tiger", config)
    states, actions = jnp.asarray([0, 1, 1, 2, 0]), jnp.asarray([NO_ACTION, *[LISTEN] * 4])
    found = decide(policy, jax.vmap(TIGER.observe)(states), actions)
    np.testing.assert_allclose(found.belief.probs, [TIGER.context_prior] * 5, rtol=1e-6)
    assert not found.surprised.any()
    assert np.isnan(found.values).all() and found.values.shape == found.probs.shape
    np.testing.assert_allclose(found.probs.sum(-1), 1, rtol=1e-5)


def test_exact_evaluation_without_memory():
    """The same as that of the table which the network amounts to."""
    policy = cloned("tiger", FEEDFORWARD)
    probs = table(policy, TIGER)
    found = evaluate_exactly(policy, TIGER, horizon=20)
    want = evaluate_exactly(MemorylessPolicy(TIGER, probs), TIGER, horizon=20)
    for part, other in zip(found, want, strict=True):
        assert part is not None and other is not None
        assert part.mean == pytest.approx(other.mean, rel=1e-4, abs=1e-6)


def test_exact_evaluation_with_memory():
    policy = cloned("detour", RECURRENT)
    exact = evaluate_exactly(policy, DETOUR, horizon=8).total_return.mean
    played = evaluate(policy, DETOUR, horizon=8, episodes=4_000).total_return
    assert abs(played.mean - exact) < 4 * played.stderr
    # Two rounds worth 1 or, in context 1, one of these and one worth 2, are as good as can be.
    assert 1.5 < exact < 0.9 * 2 + 0.1 * 3


# ── simulators ───────────────────────────────────────────────────────────────────────────────────


def test_stored_pictures_are_as_good_as_those_drawn_on_reading():
    demos, config = ragged("pictures"), few(FEEDFORWARD, batch_size=5)
    want = table(clone_network(PICTURES, demos, config=config), PICTURES)
    for problem in (PICTURES, Hidden(PICTURES, mute=True)):
        found = clone_network(problem, as_seen(PICTURES, demos), config=config)
        # Sums in another order, and then twenty updates.
        np.testing.assert_allclose(table(found, PICTURES), want, atol=1e-4)


def test_a_memory_of_what_was_done():
    """Experts repeat their first action, and there is nothing to see."""
    blind = TabularCMDP(
        np.ones((2, 1, 2, 1)), [0.7, 0.3], [1.0], gamma=0.9, observations=np.ones((1, 3))
    )
    actions = [[i % 2] * (2 + i % 4) for i in range(40)]
    demos = Demonstrations(
        np.ones((sum(map(len, actions)) + 40, 3)),
        np.concatenate(actions),
        [len(one) for one in actions],
    )
    policies = clone_network(Hidden(blind, mute=True), demos, config=RECURRENT, seed=range(2))
    assert isinstance(policies, list) and len(policies) == 2
    for policy in policies:
        for given in (NO_ACTION, 0, 1):  # on the first step it is ignored
            for action in range(2):
                found = decide(policy, jnp.ones((3, 3)), jnp.asarray([given, action, action]))
                np.testing.assert_allclose(found.probs[0], 0.5, atol=0.05)  # trained, not counted
                assert (found.probs[1:, action] > 0.9).all()
                np.testing.assert_allclose(found.belief.probs, [[0.7, 0.3]] * 3, rtol=1e-6)
                assert not found.surprised.any()
    played = evaluate(
        policies[0],
        Hidden(blind, mute=True),
        reward=lambda state, action: action.astype(float),
        episodes=200,
        horizon=6,
    )
    assert played.total_return.mean == pytest.approx(3, abs=1)  # six times the same: 0 or 6
    assert played.total_return.stderr * np.sqrt(200) > 2


# ── inference that leaves something out ──────────────────────────────────────────────────────────


def test_without_a_prior_nobody_listens():
    demos, heard = demonstrations("tiger"), []
    options = {"reward_range": (-100.0, 10.0), "config": SolveConfig(num_restarts=0)}
    found = baselines.solve_without_prior(TIGER, demos, callbacks=[heard.append], **options)
    want = solve(TIGER, demos, **options)
    np.testing.assert_array_equal(found.reward.table(), want.reward.table())
    assert tuple(heard) == found.history
    result = evaluate_exactly(found.policy, TIGER, horizon=20)
    assert result.success is not None and result.exploring is not None
    assert result.success.mean == pytest.approx(0.5, abs=1e-9)
    assert result.exploring.mean == 0


def test_averaging_contexts_loses_the_short_cut():
    """The design's 27.4 and 25.0: 24 more rounds by s1, each worth 1 more, in a tenth of them."""
    options = {"reward_range": (-1.0, 2.0), "config": SolveConfig(num_restarts=0)}
    returns = [
        evaluate_exactly(
            method(DETOUR, demonstrations("detour"), **options).policy, DETOUR, horizon=100
        ).total_return.mean
        for method in (baselines.solve_without_prior, baselines.solve_averaged)
    ]
    assert returns == pytest.approx([27.4, 25.0], abs=1e-9)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options, message",
    [
        ({"core_width": 0}, "`core_width` must be at least 1, got 0."),
        ({"num_updates": 0}, "`num_updates` must be at least 1, got 0."),
        ({"batch_size": -1}, "`batch_size` must be at least 1, got -1."),
        ({"report_every": 0}, "`report_every` must be at least 1, got 0."),
        ({"learning_rate": 0.0}, "`learning_rate` must be positive, got 0.0."),
        ({"learning_rate": float("nan")}, "`learning_rate` must be positive, got nan."),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(ConfigError, match=message):
        CloneConfig(**options)


def test_no_seeds():
    with pytest.raises(ConfigError, match="`seed` must be a number or a sequence of them"):
        clone_network(TIGER, demonstrations("tiger"), seed=[])


@pytest.mark.parametrize(
    "cmdp, demos, message",
    [
        (TIGER, Demonstrations([0, 4], [3], [1]), "`actions` must be below 3"),
        (TIGER, Demonstrations([0, 9], [0], [1]), "`observations` must be below 6"),
        (TIGER, Demonstrations([0, 5], [0], [1]), "impossible in every context"),
        (TIGER, Demonstrations(np.zeros((2, 5)), [0], [1]), "state indices or have the shape"),
        (
            Hidden(TIGER, mute=True),
            Demonstrations(np.eye(6)[:2], [3], [1]),
            "below 3.* but trajectory 0, step 0 has 3",
        ),
        (
            Hidden(TIGER, mute=True),
            Demonstrations([0, 4], [0], [1]),
            r"must have the shape \(6,\) of the problem's observations, got \(\)",
        ),
        (
            Hidden(PICTURES, mute=True),
            Demonstrations(np.zeros((2, 20, 20, 3)), [0], [1]),
            "must be uint8, as the problem's observations are, got float64",
        ),
    ],
)
def test_demonstrations_that_cannot_be(cmdp, demos, message):
    with pytest.raises(DemonstrationError, match=message):
        clone_network(cmdp, demos)
