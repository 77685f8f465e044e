"""Phase 1 learned, against the exact route: the reward, and the policies that it leads to.

What must hold comes first; then that a run can be killed, watched, batched and misused.
"""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import Hidden, as_seen, expert_data_of
from scipy import optimize

from bigtrain import (
    CostOfExploration,
    Demonstrations,
    Event,
    Fixed,
    InferenceConfig,
    InferredReward,
    IRLConfig,
    TabularCMDP,
    baselines,
    demonstrate,
    envs,
    evaluate_exactly,
    infer_reward,
    regret,
)
from bigtrain.belief import ExactInference
from bigtrain.errors import ConfigError, DemonstrationError
from bigtrain.exploration import predictive_reward
from bigtrain.finite.exact import MAPResult, map_reward, planning, solve_bayes
from bigtrain.learning.networks import NetworkConfig
from bigtrain.reward import RolloutConfig, fast, irl, paper_tiger_maze, paper_tiger_treasure
from bigtrain.reward.successor import SuccessorConfig, merge_ties
from bigtrain.runs import metric_values, read_metrics

SEEDS = [0, 1, 2, 3, 4]
ROOT = Path(__file__).parents[1]
SMALL = InferenceConfig(
    successor=SuccessorConfig(network=NetworkConfig(width=32)),
    rollout=RolloutConfig(num_environments=64, horizon=20, settling_batch_size=100),
    num_iterations=5,
    num_updates=4,
)
"""Enough for problems of a handful of states, and quick to compile."""

# ── the problems ─────────────────────────────────────────────────────────────────────────────────

PROBLEMS: dict[str, tuple[str, dict[str, Any], IRLConfig]] = {
    "tiger-treasure": ("tiger-treasure", {}, IRLConfig()),
    "detour": ("detour", {}, IRLConfig()),
    "tiger-maze": ("tiger-maze", {}, IRLConfig(prior_variance=1.0)),
    "tiger-maze, pixels": (
        "tiger-maze",
        {"observation": "pixels"},
        IRLConfig(prior_variance=1.0),
    ),
}


@functools.cache
def problem(name: str) -> tuple[TabularCMDP, Demonstrations, IRLConfig]:
    """An environment with the demonstrations of the design, and the model of its expert."""
    env_name, options, config = PROBLEMS[name]
    env = envs.make(env_name, **options)
    assert env.task is not None
    reward = env.task.reward
    if env_name == "tiger-treasure":
        contexts = np.arange(100) % 2
        return env, demonstrate(env, reward, episodes=100, horizon=50, contexts=contexts), config
    if env_name == "detour":
        return env, demonstrate(env, reward, episodes=100, horizon=40), config
    anywhere = np.zeros(env.num_states)
    anywhere[:27:3] = 1  # every floor cell, with no indicator
    return env, demonstrate(env, reward, episodes=1_000, horizon=40, initial=anywhere), config


@functools.cache
def exact_map(name: str) -> MAPResult:
    return map_reward(*problem(name))


@functools.cache
def learned(name: str) -> list[InferredReward]:
    env, demonstrations, config = problem(name)
    return infer_reward(env, demonstrations, config=fast(config), seed=SEEDS)


def stretched(weights: np.ndarray) -> np.ndarray:
    """One-hot weights as shares of their range."""
    return (weights - weights.min()) / np.ptp(weights)


# ── what must hold ───────────────────────────────────────────────────────────────────────────────


SYMBOLS = pytest.param("tiger-maze", marks=pytest.mark.slow)
"""The same maze as its pictures, which are harder."""


@pytest.mark.parametrize("name", ["tiger-treasure", "detour", SYMBOLS, "tiger-maze, pixels"])
def test_the_learned_reward_is_the_exact_one(name):
    """Within 5% of the range on every state, for 5 seeds of 5.

    The posterior is so flat that this takes successor features right to about 0.03 visits in 100;
    see docs/decisions/0004 and 0006.
    """
    want = stretched(exact_map(name).posterior.mean)
    for result in learned(name):
        assert result.settled
        np.testing.assert_allclose(stretched(result.posterior.mean), want, atol=0.05)


@pytest.mark.parametrize(
    "name, ks",
    [
        ("tiger-treasure", [-4.0, -1.0, 0.0, 0.5, 0.9]),
        ("detour", [None]),
        # k cannot be below r_min / r_max
        pytest.param("tiger-maze", [-0.05, 0.0, 0.5, 0.9], marks=pytest.mark.slow),
        ("tiger-maze, pixels", [-0.05, 0.0, 0.5, 0.9]),
    ],
)
def test_the_best_policy_for_the_learned_reward_is_good_for_the_exact_one(name, ks):
    """Regret of at most 1% of what exploring brings, under the exact MAP reward."""
    env, _, _ = problem(name)
    assert env.task is not None
    for k in ks:
        exploration = None
        if k is not None:
            exploration = CostOfExploration(env.task.exploration_states, k=Fixed(k))
        options = {"reward_range": env.task.reward_range, "exploration": exploration}
        exactly = predictive_reward(env, exact_map(name).posterior, **options)
        optimal = solve_bayes(env, exactly.table())
        for result in learned(name):
            policy = solve_bayes(env, result.reward(**options).table()).policy
            found = regret(policy, env, reward=exactly, optimal=optimal)
            assert found.normalised is not None
            assert found.normalised <= 0.01, (name, k)


def test_detour_needs_contexts():
    """s3 > s1 > s2 and 27.4 in a hundred steps; 25.0 where contexts are averaged out."""
    env, demonstrations, config = problem("detour")
    averaged = infer_reward(
        baselines.average_contexts(env), demonstrations, config=fast(config), seed=SEEDS
    )
    for inferred, blind in zip(learned("detour"), averaged, strict=True):
        weights = inferred.posterior.mean
        assert weights[3] > weights[1] > weights[2]
        for result, want in ((inferred, 27.4), (blind, 25.0)):
            reward = predictive_reward(env, result.posterior, reward_range=(-1.0, 2.0))
            policy = solve_bayes(env, reward.table()).policy
            found = evaluate_exactly(policy, env, horizon=100).total_return.mean
            assert found == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("temperature", [0.001, pytest.param(0.1, marks=pytest.mark.slow), 10.0])
def test_three_states_against_the_closed_form(temperature):
    """ω(s1) = −ω(s2) solves x = N ς₀² L (1 − σ(2 x L / α)) with L = γ/(1−γ)."""
    env = envs.make("three-state")
    assert env.task is not None
    demonstrations = demonstrate(env, env.task.reward, episodes=10, horizon=20)
    config = IRLConfig(temperature=temperature, prior_variance=2.0)
    ahead = 0.99 / 0.01
    scale = 10 * config.prior_variance * ahead

    def excess(log_weight):
        x = np.exp(log_weight)
        return log_weight - np.log(scale) + np.logaddexp(0, 2 * x * ahead / temperature)

    want = np.exp(optimize.root_scalar(excess, bracket=(-80, 80)).root)
    result = infer_reward(env, demonstrations, config=dataclasses.replace(SMALL, irl=config))
    # Ψ in float32 is right to about 1e-3, the slope of ω in it is about 1.
    np.testing.assert_allclose(result.posterior.mean, [0, want, -want], atol=0.01 * want)


def test_the_posterior_is_the_exact_one_in_spread_too():
    want = np.sqrt(np.diag(exact_map("tiger-treasure").posterior.covariance))
    for result in learned("tiger-treasure"):
        found = np.sqrt(np.diag(result.posterior.covariance))
        np.testing.assert_allclose(found, want, rtol=0.02)


def test_evidence_from_actions():
    """The same bound where actions tell contexts as well (Theorem 1)."""
    env, demonstrations, _ = problem("tiger-treasure")
    config = IRLConfig(evidence="transitions-and-actions")
    want = stretched(map_reward(env, demonstrations, config).posterior.mean)
    for result in infer_reward(env, demonstrations, config=fast(config), seed=[0, 1]):
        np.testing.assert_allclose(stretched(result.posterior.mean), want, atol=0.05)


def test_ties_without_a_resolution_drown_the_rest():
    """Why Ψ has a resolution: errors of 1e-4 in values of up to 100 make the reward worthless,
    because experts choose at random some 4,900 times where it does not matter what they do."""
    env, demonstrations, config = problem("tiger-treasure")
    data = expert_data_of(env, demonstrations)
    weights = exact_map("tiger-treasure").posterior.mean
    policy = planning.plan(env, np.repeat(weights[:, None], 3, 1)).policy
    exactly = planning.successor_features(env, policy, data.visited)
    rng = np.random.default_rng(0)
    noisy = exactly + 1e-4 * rng.normal(size=exactly.shape)
    errors = []
    with jax.enable_x64(True):
        for psi in (jnp.asarray(noisy), merge_ties(jnp.asarray(noisy), 0.05)):
            found, _ = irl.map_estimate(psi, data, config, jnp.asarray(weights))
            errors.append(np.abs(stretched(np.asarray(found)) - stretched(weights)).max())
    assert errors[0] > 0.3
    assert errors[1] < 0.001


@pytest.mark.slow
def test_what_has_settled_is_right():
    """Doors behind a code that random play seldom enters: after few updates of Ψ some seeds go
    astray. They must not be taken to have settled, however slowly they move."""
    env = envs.make("poisoned-doors")
    assert env.task is not None
    demonstrations = demonstrate(env, env.task.reward, episodes=300, horizon=50)
    settings = dataclasses.replace(fast(IRLConfig()), max_rounds=100)
    with pytest.warns(UserWarning, match="did not settle .* Allow more `num_iterations`"):
        results = infer_reward(env, demonstrations, config=settings, seed=SEEDS)
    want = map_reward(env, demonstrations, settings.irl).posterior.mean
    settled = [result for result in results if result.settled]
    assert 0 < len(settled) < len(results)
    for result in settled:
        assert np.abs(result.posterior.mean - want).max() <= 0.05 * np.ptp(want)


def test_the_result_tells_how_it_came_about():
    result = learned("tiger-treasure")[0]
    phases = [event.phase for event in result.history]
    assert phases == sorted(phases) and set(phases) == {"features", "settling"}
    assert len(result.path) <= len(result.history)
    last = {name: metric_values(name, v) for name, v in result.history[-1].metrics.items()}
    assert last["accuracy/tiger-1"] == last["accuracy/tiger-2"] == 1
    assert last["movement"] <= 1e-3 and last["policy_change"] <= 1e-3
    np.testing.assert_allclose(result.path[-1], result.posterior.mean, atol=1e-3)
    exactly = exact_map("tiger-treasure")
    assert result.log_posterior == pytest.approx(exactly.log_posterior, abs=0.01)


def test_the_network_has_learned_the_successor_features():
    """Differences between actions where experts were; 0.05 is what ties are told by."""
    env, demonstrations, _ = problem("tiger-treasure")
    data = expert_data_of(env, demonstrations)
    reward = np.repeat(exact_map("tiger-treasure").posterior.mean[:, None], 3, 1)
    want = planning.successor_features(env, planning.plan(env, reward).policy, data.visited)
    states = jnp.asarray(data.visited)
    features = jax.vmap(jax.vmap(env.features, (None, 0)), (0, None))(states, jnp.arange(3))
    for result in learned("tiger-treasure"):
        found = np.asarray(result.successor(jax.vmap(env.observe)(states), features))
        differences = (table - table.mean(2, keepdims=True) for table in (found, want))
        np.testing.assert_allclose(*differences, atol=0.05)


# ── simulators that are not finite ───────────────────────────────────────────────────────────────


def test_any_simulator_gives_the_same_reward():
    env, demonstrations, config = problem("detour")
    settings = dataclasses.replace(SMALL, irl=config)
    result = infer_reward(Hidden(env), as_seen(env, demonstrations), config=settings)
    want = stretched(exact_map("detour").posterior.mean)
    np.testing.assert_allclose(stretched(result.posterior.mean), want, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiger-treasure", "detour"])
def test_any_simulator_gives_the_same_reward_for_every_seed(name):
    env, demonstrations, config = problem(name)
    results = infer_reward(
        Hidden(env), as_seen(env, demonstrations), config=fast(config), seed=SEEDS
    )
    want = stretched(exact_map(name).posterior.mean)
    for result in results:
        np.testing.assert_allclose(stretched(result.posterior.mean), want, atol=0.05)


def test_a_simulator_without_probabilities_learns_to_believe_first():
    """And then finds the reward as before: who was where is told from what was seen."""
    env, demonstrations, config = problem("detour")
    result = infer_reward(
        Hidden(env, mute=True),
        as_seen(env, demonstrations),
        config=dataclasses.replace(SMALL, irl=config),
    )
    want = stretched(exact_map("detour").posterior.mean)
    np.testing.assert_allclose(stretched(result.posterior.mean), want, atol=0.05)


def test_an_inference_model_that_is_given_takes_the_place_of_the_exact_one():
    """One that knows the probabilities, to a simulator that does not: nothing is left to learn."""
    env, demonstrations, _ = problem("detour")
    heard: list[Event] = []
    mute, knowing = Hidden(env, mute=True), Hidden(env)
    seen = as_seen(env, demonstrations)
    found = infer_reward(
        mute, seen, config=SMALL, inference=ExactInference(knowing), callbacks=[heard.append]
    )
    assert {event.phase for event in heard} == {"features", "settling"}
    want = infer_reward(knowing, seen, config=SMALL)
    np.testing.assert_array_equal(found.posterior.mean, want.posterior.mean)


def test_demonstrations_of_another_shape():
    env, demonstrations, _ = problem("detour")
    wrong = Demonstrations(np.zeros((4, 5), np.float32), np.zeros(3, np.int32), np.array([3]))
    with pytest.raises(DemonstrationError, match=r"the shape \(6,\).*got \(5,\)"):
        infer_reward(Hidden(env), wrong, config=SMALL)


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def small_run() -> list[InferredReward]:
    env, demonstrations, _ = problem("detour")
    return infer_reward(env, demonstrations, config=SMALL, seed=[7, 8])


def same(one: InferredReward, other: InferredReward) -> bool:
    """To the last bit."""
    arrays = [
        [*jax.tree.leaves(result.successor), *result.posterior, result.path]
        for result in (one, other)
    ]
    equal = all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))
    return equal and one.history == other.history


def test_the_same_again():
    env, demonstrations, _ = problem("detour")
    again = infer_reward(env, demonstrations, config=SMALL, seed=[7, 8])
    assert all(map(same, small_run(), again))
    assert not same(*small_run())


def test_a_seed_alone_is_the_seed_among_others():
    env, demonstrations, _ = problem("detour")
    alone = infer_reward(env, demonstrations, config=SMALL, seed=8)
    among = small_run()[1]
    # Sums are taken in another order, which rounds differently.
    np.testing.assert_allclose(alone.posterior.mean, among.posterior.mean, rtol=1e-3, atol=1e-4)


def test_contexts_in_the_demonstrations_are_not_read():
    env, demonstrations, _ = problem("detour")
    lied = dataclasses.replace(
        demonstrations, contexts=1 - np.asarray(likely_contexts(env, demonstrations))
    )
    told = infer_reward(env, lied.without_contexts(), config=SMALL, seed=[7, 8])
    assert all(map(same, small_run(), told))
    with pytest.raises(DemonstrationError, match="impossible in its context"):
        lied.check(env)


def likely_contexts(env: TabularCMDP, demonstrations: Demonstrations) -> np.ndarray:
    return np.asarray(expert_data_of(env, demonstrations).log_evidence).argmax(-1)


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop_after", [1, 6, 9])
def test_a_run_that_was_cut_off_goes_on(tmp_path, stop_after):
    """The same result as one that ran through, to the last bit, and the same metrics."""
    env, demonstrations, _ = problem("detour")
    heard: list[Event] = []

    def interrupt(event: Event) -> None:
        heard.append(event)
        if len(heard) == stop_after:
            raise Stop

    options: dict[str, Any] = {"config": SMALL, "seed": [7, 8], "checkpoint_seconds": 1e-9}
    with pytest.raises(Stop):
        infer_reward(
            env, demonstrations, callbacks=[interrupt], directory=tmp_path / "cut", **options
        )
    resumed = infer_reward(env, demonstrations, directory=tmp_path / "cut", **options)
    infer_reward(env, demonstrations, directory=tmp_path / "whole", **options)
    assert all(map(same, small_run(), resumed))
    cut, whole = (tmp_path / name / "metrics.jsonl" for name in ("cut", "whole"))
    assert cut.read_bytes() == whole.read_bytes()
    assert len(read_metrics(cut)) == len(small_run()[0].history)


def test_a_finished_run_is_not_run_again(tmp_path):
    env, demonstrations, _ = problem("detour")
    options: dict[str, Any] = {"config": SMALL, "seed": [7, 8], "directory": tmp_path}
    infer_reward(env, demonstrations, **options)
    heard: list[Event] = []
    again = infer_reward(env, demonstrations, callbacks=[heard.append], **options)
    assert heard == []
    assert all(map(same, small_run(), again))


def test_a_directory_of_another_run_is_refused(tmp_path):
    env, demonstrations, _ = problem("detour")
    infer_reward(env, demonstrations, config=SMALL, seed=7, directory=tmp_path)
    with pytest.raises(ConfigError, match=r"`inference.num_updates` was 4 and is 5"):
        other = dataclasses.replace(SMALL, num_updates=5)
        infer_reward(env, demonstrations, config=other, seed=7, directory=tmp_path)
    with pytest.raises(ConfigError, match="fingerprint.demonstrations"):
        infer_reward(env, demonstrations[:50], config=SMALL, seed=7, directory=tmp_path)
    patient = TabularCMDP(env.transitions, env.context_prior, env.initial, gamma=0.95)
    with pytest.raises(ConfigError, match="fingerprint.problem"):
        infer_reward(patient, demonstrations, config=SMALL, seed=7, directory=tmp_path)


SCRIPT = """
    import sys
    sys.path.insert(0, {tests!r})
    import numpy as np
    from test_inference import SMALL, infer_reward, problem
    env, demonstrations, _ = problem("detour")
    results = infer_reward(
        env, demonstrations, config=SMALL, seed=[7, 8], directory=sys.argv[1],
        checkpoint_seconds=1e-9,
    )
    np.save(sys.argv[1] + "/weights.npy", [result.posterior.mean for result in results])
"""


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(tmp_path):
    """SIGKILL at random moments; the weights are those of a run that was left alone."""
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(SCRIPT.format(tests=str(Path(__file__).parent))))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def start(name: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / name)], env=environment
        )

    assert start("whole").wait() == 0
    rng = np.random.default_rng(0)
    kills = 0
    while (process := start("killed")).poll() is None:
        metrics = tmp_path / "killed" / "metrics.jsonl"
        before = metrics.stat().st_size if metrics.exists() else 0
        while process.poll() is None and (not metrics.exists() or metrics.stat().st_size <= before):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        if process.wait() == 0:
            break
    assert kills >= 2, "it was too quick to be killed, which shows nothing"
    weights = [np.load(tmp_path / name / "weights.npy") for name in ("whole", "killed")]
    np.testing.assert_array_equal(*weights)
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "killed")]
    assert metrics[0] == metrics[1]


def test_callbacks_hear_of_every_iteration_and_round():
    env, demonstrations, _ = problem("detour")
    heard: list[Event] = []
    results = infer_reward(env, demonstrations, config=SMALL, seed=[7, 8], callbacks=[heard.append])
    assert [event.step for event in heard if event.phase == "features"] == [1, 2, 3, 4, 5]
    totals = {event.phase: event.total for event in heard}
    assert totals == {"features": SMALL.num_iterations, "settling": SMALL.max_rounds}
    assert len(heard) == len(results[0].history)
    assert all(metric_values(n, v).shape == (2,) for e in heard for n, v in e.metrics.items())


def test_nothing_is_compiled_twice(caplog):
    """Chunk after chunk, and call after call."""
    env, demonstrations, _ = problem("detour")
    small_run()
    with jax.log_compiles():
        infer_reward(env, demonstrations, config=SMALL, seed=[7, 8])
    compiled = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")]
    assert not [m for m in compiled if "_advance" in m or "init_" in m]
    with jax.log_compiles():
        infer_reward(env, demonstrations, config=SMALL, seed=[7, 8, 9])
    compiled = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")]
    told = [sum(name in m for m in compiled) for name in ("_advance", "init_seeds")]
    assert told == [2, 1], "the log is not what this test takes it for"  # two stages


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


def test_the_papers_tables():
    treasure, maze = paper_tiger_treasure(), paper_tiger_maze()
    assert (treasure.num_iterations, maze.num_iterations) == (5_000, 20_000)
    assert (treasure.rollout.num_environments, maze.rollout.num_environments) == (500, 16)
    assert (treasure.rollout.horizon, maze.rollout.horizon) == (50, 40)
    assert (treasure.successor.learning_rate, maze.successor.learning_rate) == (1e-3, 3e-4)
    assert (treasure.reward_learning_rate, maze.reward_learning_rate) == (1e-2, 3e-3)
    assert (treasure.irl.prior_variance, maze.irl.prior_variance) == (100.0, 1.0)
    assert (treasure.rollout.replay_size, maze.rollout.replay_size) == (50_000, 10_000)
    assert (treasure.rollout.batch_size, maze.rollout.batch_size) == (500, 100)
    for table in (treasure, maze):
        assert table.irl.temperature == 0.01 and table.rollout.epsilon == 0.5
        assert table.successor.target_period == 50 and table.successor.max_gradient_norm == 0.5
        assert table.reward_update == "sampled" and table.max_rounds == 0


def test_the_papers_updates_run():
    """Shortened: after the burn-in the reward moves, and nothing is said of settling.

    Where the whole table leads is measured by benchmarks/training.py.
    """
    env, demonstrations, _ = problem("tiger-treasure")
    config = dataclasses.replace(
        paper_tiger_treasure(),
        rollout=RolloutConfig(num_environments=32, horizon=50),
        num_iterations=30,
        num_burn_in=10,
    )
    result = infer_reward(env, demonstrations, config=config)
    assert not result.settled
    np.testing.assert_array_equal(result.path[:10], 0)
    np.testing.assert_array_less(0, np.abs(np.diff(result.path[9:], axis=0)).max(-1))
    np.testing.assert_array_equal(result.posterior.mean, result.path[-1].astype(float))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: InferenceConfig(num_updates=0), "`num_updates` must be at least 1, got 0"),
        (lambda: InferenceConfig(max_rounds=-1), "`max_rounds` must not be negative, got -1"),
        (lambda: InferenceConfig(tolerance=0.0), "`tolerance` must be positive, got 0.0"),
        (lambda: InferenceConfig(num_iterations=0, max_rounds=0), "nothing would be learned"),
        (lambda: RolloutConfig(epsilon=1.5), "`epsilon` must be from 0 to 1, got 1.5"),
        (lambda: RolloutConfig(horizon=0), "`horizon` must be at least 1, got 0"),
        (lambda: RolloutConfig(num_environments=11, replay_size=10), "`replay_size` must hold"),
    ],
)
def test_settings_that_cannot_be(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_no_seed():
    env, demonstrations, _ = problem("detour")
    with pytest.raises(ConfigError, match="`seed` must be"):
        infer_reward(env, demonstrations, seed=[])


def test_a_prior_mean_of_the_wrong_length():
    env, demonstrations, _ = problem("detour")
    config = dataclasses.replace(SMALL, irl=IRLConfig(prior_mean=(0.0, 1.0)))
    with pytest.raises(ConfigError, match="`prior_mean` must be one number or 6"):
        infer_reward(env, demonstrations, config=config)
