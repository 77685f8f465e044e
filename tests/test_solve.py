"""The exact route end to end: what comes out, what it depends on, and what it must not."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import permute_states, relabel_contexts

from bigtrain import (
    CostOfExploration,
    Demonstrations,
    Event,
    FitResult,
    Fixed,
    IRLConfig,
    SolveConfig,
    TabularCMDP,
    Uniform,
    baselines,
    demonstrate,
    envs,
    evaluate_exactly,
    solve,
)
from bigtrain.errors import CMDPError, ConfigError, DemonstrationError
from bigtrain.exploration import PredictiveReward, predictive_reward
from bigtrain.finite.exact import BayesConfig, map_reward, solve_bayes
from bigtrain.finite.policies import BayesPolicy

TIGER = envs.make("tiger-treasure")
DETOUR = envs.make("detour")
RANGE = (-100.0, 10.0)
EXPLORATION = CostOfExploration(["T1", "T2"], k=Fixed(0.5))


def tiger_demonstrations() -> Demonstrations:
    """Thirty experts, half in each context: the other door, and then anything."""
    actions = np.random.default_rng(0).integers(3, size=(30, 10))
    actions[:, 0] = 1 - np.arange(30) % 2
    states = np.tile([0, 4] + [5] * 9, 30)
    return Demonstrations(states, actions.ravel(), np.full(30, 10), np.arange(30) % 2)


def detour_demonstrations() -> Demonstrations:
    """By s2 in context 0 and by s1 in context 1, three rounds each."""
    rng = np.random.default_rng(1)
    states, actions = [], []
    contexts = np.array([0] * 9 + [1])
    for context in contexts:
        via, after = ((2, 4), (1, 5))[context]
        states += [0, via, 3, after] * 3 + [0]
        chosen = rng.integers(2, size=(3, 4))
        chosen[:, 0] = 1 - context
        actions += chosen.ravel().tolist()
    return Demonstrations(states, actions, np.full(10, 12), contexts)


@functools.cache
def solved(**options) -> FitResult:
    given = {"reward_range": RANGE, "exploration": EXPLORATION, **options}
    return solve(TIGER, tiger_demonstrations(), **given)


def without_task(cmdp: TabularCMDP) -> TabularCMDP:
    return TabularCMDP(
        cmdp.transitions,
        cmdp.context_prior,
        cmdp.initial,
        gamma=cmdp.gamma,
        state_names=cmdp.state_names,
        action_names=cmdp.action_names,
        context_names=cmdp.context_names,
    )


def check_same(found: FitResult, want: FitResult) -> None:
    """The same to the last bit."""
    np.testing.assert_array_equal(found.reward.table(), want.reward.table())
    np.testing.assert_array_equal(found.reward.covariance, want.reward.covariance)
    assert isinstance(found.policy, BayesPolicy) and isinstance(want.policy, BayesPolicy)
    np.testing.assert_array_equal(found.policy.plans, want.policy.plans)
    assert found.certificate[1:] == want.certificate[1:]
    assert found.history == want.history


# ── what comes out ───────────────────────────────────────────────────────────────────────────────


def test_the_three_phases_in_a_row():
    """Nothing but the parts, put together."""
    found = solved()
    posterior = map_reward(TIGER, tiger_demonstrations()).posterior
    reward = predictive_reward(TIGER, posterior, reward_range=RANGE, exploration=EXPLORATION)
    solution = solve_bayes(TIGER, reward.table())
    assert found.cmdp is TIGER
    assert isinstance(found.reward, PredictiveReward)
    np.testing.assert_array_equal(found.reward.table(), reward.table())
    np.testing.assert_array_equal(found.reward.weights, reward.weights)
    np.testing.assert_array_equal(found.reward.covariance, reward.covariance)
    assert found.reward.bias == reward.bias
    assert found.reward.exploration is EXPLORATION and found.reward.reward_range == RANGE
    assert found.certificate[1:] == solution[1:] and found.certificate.closed
    assert found.policy is found.certificate.policy


def test_reward_of_the_result():
    table = solved().reward.table()
    np.testing.assert_allclose(table[[1, 2]], 5)
    rest = table[[0, 3, 4, 5]]
    assert rest.min() == pytest.approx(-100) and rest.max() == pytest.approx(10)
    assert table[3, 0] == pytest.approx(-100)  # the tiger
    unpriced = solve(TIGER, tiger_demonstrations(), reward_range=RANGE)
    np.testing.assert_array_equal(unpriced.reward.table(), unpriced.reward.irl_table())
    np.testing.assert_array_equal(unpriced.reward.table(), solved().reward.irl_table())


def test_policy_listens_as_it_should():
    """k = 0.5: twice more for one door than for the other (the design's table)."""
    found = evaluate_exactly(solved().policy, TIGER, horizon=200)
    assert found.success is not None and found.exploring is not None
    odds = (0.85 / 0.15) ** 2
    assert found.success.mean == pytest.approx(odds / (1 + odds), abs=1e-6)


def test_history_and_callbacks():
    heard: list[Event] = []
    also: list[Event] = []
    found = solve(
        TIGER,
        tiger_demonstrations(),
        reward_range=RANGE,
        exploration=EXPLORATION,
        callbacks=[heard.append, also.append],
    )
    assert tuple(heard) == tuple(also) == found.history
    phases = [event.phase for event in found.history]
    assert phases == sorted(phases, key=["reward", "policy"].index), "one phase after the other"
    for phase, metrics in (("reward", {"mismatch"}), ("policy", {"lower", "upper", "hyperstates"})):
        events = [event for event in found.history if event.phase == phase]
        assert [event.step for event in events] == list(range(1, len(events) + 1))
        assert events and all(set(event.metrics) == metrics for event in events)
    last = found.history[-1].metrics
    assert last["lower"] == found.certificate.lower
    assert last["upper"] == found.certificate.upper
    assert last["hyperstates"] == found.certificate.num_hyperstates


def test_callbacks_hear_events_as_they_happen():
    """One that raises stops the work."""

    class Enough(Exception):
        pass

    def stop(event: Event) -> None:
        if event.phase == "policy":
            raise Enough

    with pytest.raises(Enough):
        solve(TIGER, tiger_demonstrations(), reward_range=RANGE, callbacks=[stop])


def test_result_plays_its_policy():
    found = solved()
    played = found.evaluate(episodes=500, horizon=40)
    exact = evaluate_exactly(found.policy, TIGER, horizon=40)
    assert played.success is not None and exact.success is not None
    assert abs(played.success.mean - exact.success.mean) <= 5 * played.success.stderr
    assert abs(played.total_return.mean - exact.total_return.mean) <= (
        5 * played.total_return.stderr
    ), "under the task's reward"


def test_result_without_a_task_plays_for_the_inferred_reward():
    plain = without_task(TIGER)
    found = solve(plain, tiger_demonstrations(), reward_range=RANGE, exploration=EXPLORATION)
    played = found.evaluate(episodes=500, horizon=40)
    exact = evaluate_exactly(found.policy, plain, reward=found.reward, horizon=40)
    assert played.success is None and played.exploring is None
    assert abs(played.total_return.mean - exact.total_return.mean) <= (
        5 * played.total_return.stderr
    )


def test_result_tells_its_regret():
    found = solved()
    own = found.regret()
    assert own.normalised == pytest.approx(0, abs=1e-5)
    assert own.optimal == found.certificate.upper
    assert own.never_exploring is not None and own.never_exploring < own.optimal - 1
    careful = predictive_reward(
        TIGER,
        map_reward(TIGER, tiger_demonstrations()).posterior,
        reward_range=RANGE,
        exploration=CostOfExploration(["T1", "T2"], k=Fixed(0.98)),
    )
    other = found.regret(careful)  # with k = 0.98 one should listen longer
    assert other.normalised is not None and other.normalised > 1e-3
    unpriced = solve(DETOUR, detour_demonstrations(), reward_range=(-1.0, 2.0))
    assert unpriced.regret().normalised == pytest.approx(0, abs=1e-5)


def test_result_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(solved(), "policy", None)  # noqa: B010


# ── what it depends on ───────────────────────────────────────────────────────────────────────────


def test_the_task_is_not_read():
    assert TIGER.task is not None
    absurd = dataclasses.replace(
        TIGER.task, reward=-TIGER.task.reward, reward_range=(0.0, 1.0), exploration_states=(0,)
    )
    lying = TabularCMDP(
        TIGER.transitions,
        TIGER.context_prior,
        TIGER.initial,
        gamma=TIGER.gamma,
        state_names=TIGER.state_names,
        action_names=TIGER.action_names,
        context_names=TIGER.context_names,
        task=absurd,
    )
    for cmdp in (without_task(TIGER), lying):
        options = {"reward_range": RANGE, "exploration": EXPLORATION}
        check_same(solve(cmdp, tiger_demonstrations(), **options), solved())


def test_contexts_in_the_demonstrations_are_not_read():
    demos = tiger_demonstrations()
    assert demos.contexts is not None
    options = {"reward_range": RANGE, "exploration": EXPLORATION}
    check_same(solve(TIGER, demos.without_contexts(), **options), solved())


def test_contexts_in_the_demonstrations_are_not_read_where_they_are_averaged_out():
    demos = detour_demonstrations()
    options = {
        "reward_range": (-1.0, 2.0),
        "inference_cmdp": baselines.average_contexts(DETOUR),
    }
    want = solve(DETOUR, demos.without_contexts(), **options)
    check_same(solve(DETOUR, demos, **options), want)


def test_solving_again_gives_the_same():
    check_same(
        solve(TIGER, tiger_demonstrations(), reward_range=RANGE, exploration=EXPLORATION), solved()
    )
    seeded = solve(
        TIGER, tiger_demonstrations(), reward_range=RANGE, exploration=EXPLORATION, seed=9
    )
    check_same(seeded, solved())


def test_pictures_give_the_same():
    demos = tiger_demonstrations()
    seen = Demonstrations(
        TIGER.observation_array()[demos.observations], demos.actions, demos.lengths
    )
    found = solve(TIGER, seen, reward_range=RANGE, exploration=EXPLORATION)
    check_same(found, solved())


def test_only_the_mean_of_k_matters():
    wide = CostOfExploration(["T1", "T2"], k=Uniform(0.1, 0.9))
    found = solve(TIGER, tiger_demonstrations(), reward_range=RANGE, exploration=wide)
    assert found.certificate.lower == pytest.approx(solved().certificate.lower, abs=1e-9)
    assert (found.reward.variance_table()[1] > 0).all()


def test_settings_are_used():
    config = SolveConfig(
        irl=IRLConfig(temperature=1.0), bayes=BayesConfig(max_hyperstates=1), num_restarts=0
    )
    with pytest.warns(UserWarning, match="bounds on the Bayes-optimal value still differ"):
        found = solve(
            TIGER,
            tiger_demonstrations(),
            reward_range=RANGE,
            exploration=EXPLORATION,
            config=config,
        )
    assert not found.certificate.closed
    assert found.certificate.lower < found.certificate.upper
    want = map_reward(TIGER, tiger_demonstrations(), config.irl, num_restarts=0).posterior.mean
    scale = 110 / np.ptp(want)
    np.testing.assert_allclose(found.reward.weights, scale * want, rtol=1e-9, atol=1e-9)


def test_a_closed_certificate_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(TIGER, tiger_demonstrations(), reward_range=RANGE, exploration=EXPLORATION)


def test_averaging_contexts_out_changes_the_reward_only():
    """The policy is still that of the problem with its contexts (section 5.2)."""
    reward_range = (-1.0, 2.0)
    demos = detour_demonstrations().without_contexts()
    inferred = solve(DETOUR, demos, reward_range=reward_range)
    averaged = solve(
        DETOUR,
        demos,
        reward_range=reward_range,
        inference_cmdp=baselines.average_contexts(DETOUR),
    )
    assert averaged.cmdp is DETOUR
    assert np.abs(inferred.reward.table() - averaged.reward.table()).max() > 0.1
    want = solve_bayes(DETOUR, averaged.reward.table())
    assert averaged.certificate[1:] == want[1:]


# ── the same problem, said differently ───────────────────────────────────────────────────────────


def test_permuting_states():
    order = [5, 3, 0, 4, 1, 2]
    demos = tiger_demonstrations()
    moved = Demonstrations(np.argsort(order)[demos.observations], demos.actions, demos.lengths)
    cmdp = permute_states(TIGER, order)
    found = solve(cmdp, moved, reward_range=RANGE, exploration=EXPLORATION)
    np.testing.assert_allclose(found.reward.table(), solved().reward.table()[order], atol=1e-4)
    assert found.certificate.lower == pytest.approx(solved().certificate.lower, abs=1e-2)
    one, other = (evaluate_exactly(f.policy, f.cmdp, horizon=60) for f in (found, solved()))
    for part, want in zip(one, other, strict=True):
        assert part is not None and want is not None
        assert part.mean == pytest.approx(want.mean, abs=1e-9)


def test_relabelling_contexts():
    cmdp = relabel_contexts(TIGER, [1, 0])
    demos = tiger_demonstrations().without_contexts()
    found = solve(cmdp, demos, reward_range=RANGE, exploration=EXPLORATION)
    np.testing.assert_allclose(found.reward.table(), solved().reward.table(), atol=1e-4)
    prior = jnp.array([0.5, 0.5])
    plain, moved = solved().policy, found.policy
    assert isinstance(plain, BayesPolicy) and isinstance(moved, BayesPolicy)
    for belief in (prior, jnp.array([0.99, 0.01]), jnp.array([0.2, 0.8])):
        chosen = moved.action_values(jnp.asarray(1), belief[::-1]).argmax()
        want = plain.action_values(jnp.asarray(1), belief).argmax()
        assert int(chosen) == int(want)


# ── every environment ────────────────────────────────────────────────────────────────────────────


def test_a_small_environment(name="crossroads"):
    """From its own experts to a policy that is as good as one that was told the reward."""
    cmdp = envs.make(name)
    assert cmdp.task is not None
    demos = demonstrate(cmdp, cmdp.task.reward, episodes=40, horizon=5)
    found = solve(cmdp, demos, reward_range=cmdp.task.reward_range)
    assert found.certificate.closed
    best = solve_bayes(cmdp, cmdp.task.reward)
    told, inferred = (
        evaluate_exactly(policy, cmdp, horizon=400).discounted_return.mean
        for policy in (best.policy, found.policy)
    )
    assert inferred == pytest.approx(told, abs=1e-6)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "demos, message",
    [
        (Demonstrations([0, 4], [0], [1], [0]), "impossible in its context `tiger-1`"),
        (Demonstrations([0, 5], [0], [1]), "impossible in every context of the prior"),
        (Demonstrations([0, 4, 5, 0], [0, 0, 0], [3]), "impossible in every context of the prior"),
        (Demonstrations([0, 9], [0], [1]), "`observations` must be below 6"),
        (Demonstrations([0, 4], [3], [1]), "`actions` must be below 3"),
        (Demonstrations([0, 4], [0], [1], [2]), "`contexts` must be below 2"),
        (Demonstrations(np.zeros((2, 5)), [0], [1]), "state indices or have the shape"),
        (Demonstrations(np.full((2, 6), 0.5), [0], [1]), "looks like no state"),
    ],
)
def test_demonstrations_that_cannot_be(demos, message):
    with pytest.raises(DemonstrationError, match=message):
        solve(TIGER, demos, reward_range=RANGE)


def test_demonstrations_that_no_context_allows_as_a_whole():
    """Each step could be; both together could not."""
    demos = Demonstrations([0, 2, 3, 4, 0, 2, 3, 5], [1, 0, 0, 0, 1, 0, 0], [7])
    with pytest.raises(DemonstrationError, match="no context allows that allows the steps before"):
        solve(DETOUR, demos, reward_range=(-1.0, 2.0))


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"reward_range": (10.0, -100.0)}, ConfigError, "`reward_range` must be"),
        ({"exploration": CostOfExploration(["T9"])}, CMDPError, "'T9' is not the name of a state"),
        ({"exploration": CostOfExploration([])}, ConfigError, "must not be empty"),
        ({"exploration": CostOfExploration(["T1"], k=Fixed(3.0))}, ConfigError, "`k` must lie"),
    ],
)
def test_settings_that_cannot_be(options, error, message):
    with pytest.raises(error, match=message):
        solve(TIGER, tiger_demonstrations(), **{"reward_range": RANGE, **options})


def test_demonstrations_that_show_no_preference():
    idle = Demonstrations(np.tile([5] * 4, 3), np.array([0, 1, 2] * 3), [3, 3, 3])
    with pytest.raises(ConfigError, match="The demonstrations show no preference"):
        solve(TIGER, idle, reward_range=RANGE)


def test_solve_config_errors():
    with pytest.raises(ConfigError, match="`num_restarts` must not be negative, got -1"):
        SolveConfig(num_restarts=-1)


def test_double_precision_stays_inside():
    """Solving switches to float64 for itself, and back."""
    solve(TIGER, tiger_demonstrations(), reward_range=RANGE)
    assert not jax.config.read("jax_enable_x64")
    assert jnp.asarray(0.5).dtype == jnp.float32
