"""Playing policies and adding them up exactly: by hand, by algebra, and each by the other."""

import functools
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpy.typing import NDArray
from problems import Watchful, dense, kaelbling_tiger, random_cmdp

from bigtrain import (
    CMDP,
    CostOfExploration,
    Demonstrations,
    Fixed,
    TabularCMDP,
    Task,
    baselines,
    demonstrate,
    envs,
    evaluate,
    evaluate_exactly,
    plan_expert,
    policy_value,
    regret,
)
from bigtrain.belief import Categorical
from bigtrain.errors import CMDPError, ConfigError, DemonstrationError
from bigtrain.evaluate import Estimate, Evaluation, Regret
from bigtrain.exploration import predictive_reward
from bigtrain.finite.evaluation import exploration_pairs, never_exploring_value
from bigtrain.finite.exact import BayesConfig, BayesSolution, evaluate_policy, plan, solve_bayes
from bigtrain.finite.policies import MemorylessPolicy
from bigtrain.policy import Decision, Policy, PolicyActor
from bigtrain.reward.irl import RewardPosterior

GAMMA = 0.99
TIGER = envs.make("tiger-treasure")
CERTAIN = envs.make("tiger-treasure", p_hear=1.0)
OPEN_1, OPEN_2, LISTEN = range(3)


def task_of(cmdp: TabularCMDP) -> Task:
    assert cmdp.task is not None
    return cmdp.task


def means(evaluation: Evaluation) -> dict[str, float | None]:
    return {
        name: None if part is None else part.mean for name, part in evaluation._asdict().items()
    }


def always(cmdp: TabularCMDP, action: int) -> MemorylessPolicy:
    table = np.zeros((cmdp.num_states, cmdp.num_actions))
    table[:, action] = 1
    return MemorylessPolicy(cmdp, table)


def random_table(cmdp: TabularCMDP, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng([seed, 5])
    return rng.dirichlet(np.ones(cmdp.num_actions), cmdp.num_states)


def random_reward(cmdp: TabularCMDP, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng([seed, 1]).normal(size=(cmdp.num_states, cmdp.num_actions))


def deterministic_cmdp(seed: int, gamma: float = 0.9) -> TabularCMDP:
    """Three contexts with sure transitions of their own: few beliefs can be reached."""
    rng = np.random.default_rng(seed)
    follows = rng.integers(4, size=(3, 4, 2))
    return TabularCMDP(
        np.eye(4)[follows], rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(4)), gamma=gamma
    )


def corridor(length: int = 5) -> TabularCMDP:
    """0 → 1 → 2 → … by the first action; the second stays."""
    table = np.zeros((1, length, 2, length))
    for state in range(length):
        table[0, state, 0, min(state + 1, length - 1)] = table[0, state, 1, state] = 1
    return TabularCMDP(table, [1.0], np.eye(length)[0], gamma=0.5)


@functools.cache
def certain_listener() -> BayesSolution:
    return solve_bayes(CERTAIN, task_of(CERTAIN).reward)


@functools.cache
def tiger_listener() -> BayesSolution:
    return solve_bayes(TIGER, task_of(TIGER).reward)


@functools.cache
def tiger_demonstrations() -> Demonstrations:
    reward = task_of(TIGER).reward
    return demonstrate(
        TIGER, reward, episodes=200, horizon=50, contexts=np.arange(200) % 2, reveal_contexts=True
    )


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────


def test_naive_imitator_by_hand():
    """Half the experts open each door, so their clone meets the tiger half of the time: −45γ."""
    clone = baselines.clone(CERTAIN, tiger_demonstrations().without_contexts())
    np.testing.assert_allclose(clone.table[0], [0.5, 0.5, 0])
    found = evaluate_exactly(clone, CERTAIN, horizon=50)
    assert means(found) == pytest.approx(
        {
            "total_return": -45,
            "discounted_return": -45 * GAMMA,
            "success": 0.5,
            "unfinished": 0,
            "exploring": 0,
        },
        abs=1e-9,
    )
    value = policy_value(clone, CERTAIN, reward=task_of(CERTAIN).reward)
    assert value == pytest.approx((-45 * GAMMA, -45 * GAMMA), abs=1e-9)


def test_listener_by_hand():
    """Listens once, at a cost of 1, and knows: γ(10γ − 1)."""
    found = evaluate_exactly(certain_listener().policy, CERTAIN, horizon=50)
    want = GAMMA * (10 * GAMMA - 1)
    assert means(found) == pytest.approx(
        {
            "total_return": 9,
            "discounted_return": want,
            "success": 1,
            "unfinished": 0,
            "exploring": 1,
        },
        abs=1e-9,
    )
    assert certain_listener().lower == pytest.approx(want, abs=1e-9)
    value = policy_value(certain_listener().policy, CERTAIN, reward=task_of(CERTAIN).reward)
    assert value == pytest.approx((want, want), abs=1e-9)


def test_expert_by_hand():
    expert = plan_expert(TIGER, task_of(TIGER).reward)
    for found in (
        evaluate_exactly(expert, TIGER, horizon=20),
        evaluate(expert, TIGER, episodes=32, horizon=20),
    ):
        assert means(found) == pytest.approx(
            {
                "total_return": 10,
                "discounted_return": 10 * GAMMA,
                "success": 1,
                "unfinished": 0,
                "exploring": 0,
            },
            abs=1e-5,
        )
    value = policy_value(expert, TIGER, reward=task_of(TIGER).reward)
    assert value == pytest.approx((9.9, 9.9), abs=1e-9)


@pytest.mark.parametrize(
    "goal, failure, horizon, success, unfinished",
    [
        ([2], [1], 4, 0, 0),  # the failure comes first
        ([1], [2], 4, 1, 0),
        ([1], None, 1, 1, 0),  # the state after the last step counts
        ([2], None, 1, 0, 1),
        ([0], [1], 1, 1, 0),  # and so does the one before the first
        ([4], [3], 2, 0, 1),
        (["s3"], ["s4"], 4, 1, 0),
    ],
)
def test_success_and_unfinished(goal, failure, horizon, success, unfinished):
    walker = always(corridor(), 0)
    options = {"reward": np.zeros(5), "horizon": horizon, "goal": goal, "failure": failure}
    results = [evaluate_exactly(walker, corridor(), **options)]
    if horizon == 4 or failure is None:  # two programs to compile
        results.append(evaluate(walker, corridor(), episodes=2, **options))
    for found in results:
        assert found.success is not None and found.unfinished is not None
        assert (found.success.mean, found.unfinished.mean) == (success, unfinished)


@pytest.mark.parametrize("horizon, exploring", [(1, 0), (2, 1), (3, 2), (9, 2)])
def test_exploring_counts_the_states_that_are_left(horizon, exploring):
    walker = always(corridor(), 0)
    options = {"reward": np.zeros(5), "horizon": horizon, "exploring": [1, 2]}
    results = [evaluate_exactly(walker, corridor(), **options)]
    if horizon == 2:
        results.append(evaluate(walker, corridor(), episodes=2, **options))
    for found in results:
        assert found.exploring is not None and found.exploring.mean == exploring
        assert found.success is None and found.unfinished is None


def test_rewards_belong_to_the_state_being_left():
    reward = np.array([[1.0, 0], [10, 0], [100, 0], [1000, 0], [0, 0]])
    walker = always(corridor(), 0)
    for found in (
        evaluate_exactly(walker, corridor(), reward=reward, horizon=3),
        evaluate(walker, corridor(), reward=reward, horizon=3, episodes=2),
    ):
        assert found.total_return.mean == 111
        assert found.discounted_return.mean == 1 + 10 / 2 + 100 / 4


def test_what_a_problem_does_not_define_is_none():
    found = evaluate_exactly(always(corridor(), 0), corridor(), reward=np.ones(5), horizon=3)
    assert (found.success, found.unfinished, found.exploring) == (None, None, None)
    detour = envs.make("detour")
    found = evaluate_exactly(always(detour, 1), detour, horizon=4)
    assert (found.success, found.unfinished, found.exploring) == (None, None, None)
    assert found.total_return == Estimate(1.0, 0.0)


def test_what_is_given_outweighs_the_task():
    listener = certain_listener().policy
    found = evaluate_exactly(
        listener, CERTAIN, reward=np.arange(6.0), goal=["Tiger"], failure=["Gold"], exploring=["ST"]
    )
    assert found.success is not None and found.exploring is not None
    assert (found.success.mean, found.exploring.mean) == (0, 97)
    assert found.total_return.mean == pytest.approx(0 + 1.5 + 4 + 97 * 5)


# ── played against exact ─────────────────────────────────────────────────────────────────────────


def check_close(played: Evaluation, exact: Evaluation, errors: float = 4.0) -> None:
    for name in Evaluation._fields:
        one, other = getattr(played, name), getattr(exact, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert other.stderr == 0
            assert abs(one.mean - other.mean) <= errors * one.stderr + 1e-4 * (1 + abs(other.mean))


def test_listening_with_noise():
    exact = evaluate_exactly(tiger_listener().policy, TIGER, horizon=100)
    played = evaluate(tiger_listener().policy, TIGER, episodes=4_000, horizon=100)
    check_close(played, exact)
    assert played.total_return.stderr > 0


def test_random_policies(seed=0):
    cmdp = random_cmdp(seed, 2, 4, 2, 0.9)
    policy = MemorylessPolicy(cmdp, random_table(cmdp, seed))
    options = {
        "reward": random_reward(cmdp, seed),
        "horizon": 4,
        "goal": [0],
        "failure": [1],
        "exploring": [2, 3],
    }
    exact = evaluate_exactly(policy, cmdp, **options)
    check_close(evaluate(policy, cmdp, episodes=4_000, **options), exact)
    # By hand: the distribution over (context, state), pushed forward.
    chain = np.einsum("sa,csan->csn", policy.table, dense(cmdp))
    mass = np.outer(np.asarray(cmdp.context_prior), np.asarray(cmdp.initial))
    gained = (policy.table * options["reward"]).sum(-1)
    total = discounted = explored = success = 0.0
    undecided = mass.copy()
    for step in range(5):
        success += undecided[:, 0].sum()
        undecided[:, :2] = 0
        if step == 4:
            break
        total += (mass @ gained).sum()
        discounted += 0.9**step * (mass @ gained).sum()
        explored += mass[:, 2:].sum()
        mass = np.einsum("cs,csn->cn", mass, chain)
        undecided = np.einsum("cs,csn->cn", undecided, chain)
    want = [total, discounted, success, undecided.sum(), explored]
    np.testing.assert_allclose([part.mean for part in exact if part], want, rtol=1e-6)


def test_pictures_are_as_good_as_symbols():
    mazes = [envs.make("tiger-maze", observation=kind) for kind in ("symbolic", "pixels")]
    reward = task_of(mazes[0]).reward
    found = [evaluate_exactly(solve_bayes(m, reward).policy, m, horizon=40) for m in mazes]
    assert means(found[0]) == pytest.approx(means(found[1]), abs=1e-12)
    assert found[1].total_return.mean == pytest.approx(10, abs=1e-9)
    seen = Demonstrations([12, 9, 27, 21, 22], [2, 2, 0, 4], [4])  # left to the gold, and listen
    pictures = Demonstrations(
        mazes[1].observation_array()[seen.observations], seen.actions, seen.lengths
    )
    clones = [baselines.clone(mazes[1], demos) for demos in (seen, pictures)]
    np.testing.assert_array_equal(clones[0].table, clones[1].table)


def test_predictive_rewards_can_be_evaluated():
    reward = predictive_reward(
        TIGER,
        RewardPosterior(np.array([0, -1, -1, -2, 1, 0.5]), np.eye(6)),
        reward_range=(-100.0, 10.0),
        exploration=CostOfExploration(["T1", "T2"], k=Fixed(-0.1)),
    )
    policy = tiger_listener().policy
    tabled = evaluate_exactly(policy, TIGER, reward=reward.table(), horizon=100)
    assert evaluate_exactly(policy, TIGER, reward=reward, horizon=100) == tabled
    played = evaluate(policy, TIGER, reward=reward, horizon=100, episodes=4_000)
    check_close(played, tabled)


# ── values without end ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
def test_memoryless_values_by_linear_algebra(seed):
    for cmdp in (random_cmdp(seed, 1, 5, 2, 0.95), deterministic_cmdp(seed)):
        table, reward = random_table(cmdp, seed), random_reward(cmdp, seed)
        values = evaluate_policy(cmdp, table, reward)
        want = float(np.asarray(cmdp.context_prior) @ values @ np.asarray(cmdp.initial))
        lower, upper = policy_value(MemorylessPolicy(cmdp, table), cmdp, reward=reward)
        # The policy's table is in float32.
        assert lower == pytest.approx(want, abs=1e-5) and upper == pytest.approx(want, abs=1e-5)
        assert lower <= upper


def test_expert_values_are_the_plans(seed=0):
    cmdp = random_cmdp(seed, 2, 4, 2, 0.9)
    reward = random_reward(cmdp, seed)
    values = plan(cmdp, reward).values
    want = float(np.asarray(cmdp.context_prior) @ values @ np.asarray(cmdp.initial))
    found = policy_value(plan_expert(cmdp, reward), cmdp, reward=reward)
    assert found == pytest.approx((want, want), abs=1e-6)


def test_memoryless_values_on_a_problem_with_endless_beliefs(seed=0):
    """What a policy does not look at should not matter; at the least the bounds must hold, and
    where it does not even keep a belief there is nothing to bound."""
    cmdp = random_cmdp(seed, 2, 3, 2, 0.9)
    table, reward = random_table(cmdp, seed), random_reward(cmdp, seed)
    values = evaluate_policy(cmdp, table, reward)
    want = float(np.asarray(cmdp.context_prior) @ values @ np.asarray(cmdp.initial))
    for policy in (Watchful(cmdp, table), MemorylessPolicy(cmdp, table)):
        lower, upper = policy_value(policy, cmdp, reward=reward)
        assert lower <= want + 1e-6 and want - 1e-6 <= upper
    assert upper - lower < 1e-9 * np.ptp(reward) / (1 - 0.9)


@pytest.mark.parametrize("seed", range(3))
def test_bayes_values_are_the_certificates(seed):
    cmdp = deterministic_cmdp(seed)
    reward = random_reward(cmdp, seed)
    solution = solve_bayes(cmdp, reward)
    lower, upper = policy_value(solution.policy, cmdp, reward=reward)
    slack = 1e-6 * np.ptp(reward)
    assert solution.lower - slack <= lower <= upper <= solution.upper + slack
    assert upper - lower < 1e-9


def test_kaelbling_value_is_reached():
    cmdp, reward, value = kaelbling_tiger()
    solution = solve_bayes(cmdp, reward)
    lower, upper = policy_value(solution.policy, cmdp, reward=reward)
    assert lower == pytest.approx(value, abs=5e-7) and upper == pytest.approx(value, abs=5e-7)


# ── regret ───────────────────────────────────────────────────────────────────────────────────────


def test_regret_is_0_for_the_best_and_1_for_the_best_that_never_explores():
    reward = task_of(TIGER).reward
    best = regret(tiger_listener().policy, TIGER, reward=reward)
    assert best.optimal == tiger_listener().upper
    assert best.normalised == pytest.approx(0, abs=1e-5)
    assert best.never_exploring == pytest.approx(-45 * GAMMA, abs=1e-9)
    guess = regret(always(TIGER, OPEN_1), TIGER, reward=reward, optimal=tiger_listener())
    assert guess.value == pytest.approx(-45 * GAMMA, abs=1e-9)
    assert guess.normalised == pytest.approx(1, abs=1e-9)
    assert guess.absolute == pytest.approx(tiger_listener().upper + 45 * GAMMA, abs=1e-9)


def test_regret_of_a_certified_policy_where_beliefs_are_endless():
    """The policy that a closed certificate comes with has next to none, however restless it is."""
    cmdp = random_cmdp(1, 2, 3, 2, 0.6)
    reward = random_reward(cmdp, 1)
    solution = solve_bayes(cmdp, reward, BayesConfig(gap=1e-4))
    assert solution.closed
    found = regret(solution.policy, cmdp, reward=reward, optimal=solution)
    assert found.absolute <= 1e-4 * np.ptp(reward)


def test_regret_without_exploration_states_is_measured_by_who_never_learns():
    detour = envs.make("detour")
    reward = task_of(detour).reward
    loop = (-GAMMA + 2 * GAMMA**2) / (1 - GAMMA**4)
    found = regret(always(detour, 1), detour, reward=reward)
    assert found.never_exploring == pytest.approx(loop, abs=1e-9)
    assert found.normalised == pytest.approx(1, abs=1e-9)
    assert found.optimal == pytest.approx(27.0353, abs=1e-4)
    best = regret(solve_bayes(detour, reward).policy, detour, reward=reward)
    assert best.normalised == pytest.approx(0, abs=1e-5)


def test_regret_where_exploring_cannot_be_avoided():
    reward = task_of(TIGER).reward
    found = regret(
        always(TIGER, OPEN_1),
        TIGER,
        reward=reward,
        exploration_states=["S0"],
        optimal=tiger_listener(),
    )
    assert found.never_exploring is None and found.normalised is None
    assert found.absolute > 0
    # Every action but listening leads to ST in the end.
    exploring = exploration_pairs(TIGER, reward, ["ST", "T1"])
    assert never_exploring_value(TIGER, reward, exploring) is None


def test_regret_where_exploring_brings_nothing():
    deaf = envs.make("tiger-treasure", p_hear=0.5)
    reward = task_of(deaf).reward
    guess = regret(always(deaf, OPEN_2), deaf, reward=reward)
    assert guess.normalised == 0
    late = regret(always(deaf, LISTEN), deaf, reward=reward)
    assert late.absolute == pytest.approx(GAMMA / (1 - GAMMA) - 45 * GAMMA, abs=1e-3)
    assert late.normalised == float("inf")


def test_never_exploring_by_hand():
    """In the maze one can guess a door, see what is behind it, and know from then on."""
    maze = envs.make("tiger-maze")
    task = task_of(maze)
    exploring = exploration_pairs(maze, task.reward)
    assert np.all(exploring, axis=-1)[list(task.exploration_states)].all()
    found = never_exploring_value(maze, task.reward, exploring)
    again = GAMMA**4 / (1 - GAMMA**4)
    want = GAMMA**2 * (0.5 * (1 + again) + 0.5 * (-0.05 + again))
    assert found == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize(
    "value, optimal, never, normalised",
    [
        (2.0, 2.0, 0.0, 0.0),
        (0.0, 2.0, 0.0, 1.0),
        (1.5, 2.0, 0.0, 0.25),
        (-2.0, 2.0, 0.0, 2.0),
        (2.0, 2.0, 2.0, 0.0),
        (1.0, 2.0, 2.0, float("inf")),
        (1.0, 2.0, None, None),
    ],
)
def test_normalised_regret(value, optimal, never, normalised):
    found = Regret(value, optimal, never)
    assert found.absolute == optimal - value
    assert found.normalised == normalised


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options, message",
    [
        ({"episodes": 0}, "`episodes` must be at least 1, got 0"),
        ({"horizon": 0}, "`horizon` must be at least 1, got 0"),
        ({"seed": []}, "`seed` must be a number or a sequence"),
        ({"reward": None}, "`reward` must be given"),
    ],
)
def test_evaluate_errors(options, message):
    cmdp = corridor()
    with pytest.raises(ConfigError, match=message):
        evaluate(always(cmdp, 0), cmdp, **{"reward": np.zeros(5), **options})


def test_evaluate_exactly_errors():
    cmdp = corridor()
    with pytest.raises(ConfigError, match="`horizon` must be at least 1, got 0"):
        evaluate_exactly(always(cmdp, 0), cmdp, reward=np.zeros(5), horizon=0)
    with pytest.raises(ConfigError, match="`reward` must be given"):
        evaluate_exactly(always(cmdp, 0), cmdp)
    with pytest.raises(CMDPError, match="'nowhere' is not the name of a state"):
        evaluate_exactly(always(cmdp, 0), cmdp, reward=np.zeros(5), goal=["nowhere"])
    with pytest.raises(CMDPError, match="must be from 0 to 4, got 5"):
        regret(always(cmdp, 0), cmdp, reward=np.zeros(5), exploration_states=[5])


# ── demonstrations ───────────────────────────────────────────────────────────────────────────────


def test_experts_open_the_right_door():
    demos = tiger_demonstrations()
    assert len(demos) == 200 and demos.num_steps == 200 * 50
    assert demos.contexts is not None
    np.testing.assert_array_equal(demos.contexts, np.arange(200) % 2)
    states = demos.observations.reshape(200, 51)
    assert (states[:, :2] == [0, 4]).all() and (states[:, 2:] == 5).all()
    np.testing.assert_array_equal(demos.actions.reshape(200, 50)[:, 0], 1 - np.arange(200) % 2)
    demos.check(TIGER)


def test_ties_are_broken_uniformly():
    """In Gold and ST all actions are alike: χ² with two degrees of freedom, beyond 1e-6."""
    actions = tiger_demonstrations().actions.reshape(200, 50)[:, 1:]
    for part in (actions, actions[::2], actions[1::2], actions[:, :1], actions[:, -1:]):
        counts = np.bincount(part.ravel(), minlength=3)
        expected = part.size / 3
        assert ((counts - expected) ** 2 / expected).sum() < 27.6
    repeats = (actions[:, 1:] == actions[:, :-1]).mean()
    assert abs(repeats - 1 / 3) < 5 * np.sqrt(2 / 9 / actions.size)  # one step tells not the next


UNEVEN = envs.make("tiger-treasure", prior=[0.9, 0.1])


def demonstrate_uneven(seed: int, **options) -> Demonstrations:
    return demonstrate(
        UNEVEN, task_of(UNEVEN).reward, episodes=500, horizon=3, seed=seed, **options
    )


def test_demonstrations_are_reproducible():
    assert demonstrate_uneven(1).digest() == demonstrate_uneven(1).digest()
    assert demonstrate_uneven(1).digest() != demonstrate_uneven(2).digest()


def test_contexts_are_hidden_unless_revealed():
    hidden, shown = demonstrate_uneven(4), demonstrate_uneven(4, reveal_contexts=True)
    assert hidden.contexts is None and shown.contexts is not None
    assert hidden.digest() == shown.without_contexts().digest()
    # Drawn from the prior: 50 of 500, give or take five deviations of √45.
    assert abs(int(shown.contexts.sum()) - 50) < 5 * np.sqrt(45)
    np.testing.assert_array_equal(shown.actions.reshape(500, 3)[:, 0], 1 - shown.contexts)


def test_demonstrations_from_elsewhere():
    demos = demonstrate_uneven(5, initial=[0.0, 3.0, 1.0, 0, 0, 0])
    counts = np.bincount(demos.observations.reshape(500, 4)[:, 0], minlength=6)
    assert counts[[0, 3, 4, 5]].sum() == 0
    assert abs(counts[1] - 375) < 5 * np.sqrt(94)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"episodes": 0}, "`episodes` must be at least 1, got 0"),
        ({"horizon": -1}, "`horizon` must be at least 1, got -1"),
        ({"contexts": [0, 1]}, "`contexts` must be 3 integers"),
        ({"contexts": [0, 1, 2]}, "`contexts` must be from 0 to 1, got 0 to 2"),
        ({"contexts": [0, -1, 1]}, "`contexts` must be from 0 to 1, got -1 to 1"),
        ({"contexts": np.zeros(3)}, "`contexts` must be 3 integers, one an episode, got float64"),
        ({"initial": [1.0, 0.0]}, "`initial` must be 6 weights"),
        ({"initial": [0.0] * 6}, "none negative and not all zero"),
        ({"initial": [-1.0, 2.0, 0, 0, 0, 0]}, "none negative"),
        ({"initial": [float("nan")] + [1.0] * 5}, "`initial` must be"),
    ],
)
def test_demonstrate_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        demonstrate(TIGER, task_of(TIGER).reward, **{"episodes": 3, "horizon": 2, **options})


# ── baselines ────────────────────────────────────────────────────────────────────────────────────


def test_clone_by_hand():
    """Counts of each state, and evenly where nobody was."""
    demos = Demonstrations(np.array([0, 1, 1, 0, 1]), np.array([0, 1, 0]), [2, 1])
    clone = baselines.clone(corridor(3), demos)
    np.testing.assert_allclose(clone.table, [[1, 0], [0, 1], [0.5, 0.5]])
    demos = Demonstrations(np.array([0, 0, 1, 2, 2]), np.array([1, 0, 0, 1]), [4])
    np.testing.assert_allclose(
        baselines.clone(corridor(3), demos).table, [[0.5, 0.5], [1, 0], [0, 1]]
    )
    impossible = Demonstrations(np.array([0, 2]), np.array([0]), [1])
    with pytest.raises(DemonstrationError, match="Demonstrations must be possible"):
        baselines.clone(corridor(3), impossible)


def test_average_contexts_by_hand():
    detour = envs.make("detour")
    averaged = baselines.average_contexts(detour)
    assert averaged.num_contexts == 1 and averaged.task is None
    want = np.tensordot([0.9, 0.1], dense(detour), 1)
    np.testing.assert_allclose(dense(averaged)[0], want)
    assert want[1, 0].tolist() == [0.9, 0, 0, 0.1, 0, 0]
    assert (averaged.state_names, averaged.action_names) == (detour.state_names, ("left", "right"))
    assert averaged.gamma == detour.gamma
    featured = TabularCMDP(
        detour.transitions,
        detour.context_prior,
        detour.initial,
        gamma=0.9,
        features=np.arange(36.0).reshape(6, 2, 3),
        observations=np.arange(12.0).reshape(6, 2),
    )
    averaged = baselines.average_contexts(featured)
    np.testing.assert_array_equal(averaged.feature_matrix().toarray(), np.arange(36).reshape(12, 3))
    np.testing.assert_array_equal(averaged.observation_array(), np.arange(12).reshape(6, 2))


# ── simulators and policies of one's own ─────────────────────────────────────────────────────────


class Place(NamedTuple):
    position: Float[Array, ""]
    time: Int[Array, ""]


@final
class Slide(CMDP):
    """A line on which the two actions move by one; which way is the context's to say."""

    context_prior: Any
    gamma: float = 0.5

    @property
    def num_actions(self) -> int:
        return 2

    def reset(self, key: PRNGKeyArray, context: Int[Array, ""]) -> Place:
        return Place(jnp.asarray(0.0), jnp.asarray(0))

    def step(self, key, state, action, context) -> Place:
        move = jnp.where(action == context, 1.0, -1.0)
        return Place(state.position + move, state.time + 1)

    def observe(self, state: Place) -> Float[Array, " coordinate"]:
        return state.position[None]

    def features(self, state: Place, action) -> Float[Array, " feature"]:
        return state.position[None]


TRACES = 0


@final
class Climber(Policy):
    """Tries the first action, and keeps to what went up."""

    def init(self) -> Float[Array, " coordinate"]:
        return jnp.zeros(1)

    def step(self, state, observation, previous_action):
        global TRACES
        TRACES += 1
        other = 1 - previous_action
        kept = jnp.where(observation[0] > state[0], previous_action, other)
        action = jnp.where(previous_action < 0, 0, kept)
        probs = jax.nn.one_hot(action, 2)
        log_probs = jnp.log(jnp.full(2, 0.5))
        return observation, Decision(probs, probs, Categorical(log_probs), jnp.asarray(False))


def height(state: Place, action: Int[Array, ""]) -> Float[Array, ""]:
    return state.position


def low(state: Place):
    return state.position < 0


def high(state: Place):
    return state.position >= 2


def slide_about(prior: list[float], **options) -> Evaluation:
    """All with the same sizes, so that one program serves them all."""
    given: dict[str, Any] = {"reward": height, "episodes": 400, "horizon": 4, "goal": high}
    given |= {"failure": low, "exploring": low}
    return evaluate(Climber(), Slide(np.array(prior)), **{**given, **options})


def test_a_simulator_that_is_not_finite():
    """Up at once: 0 1 2 3. Down first: 0 −1 0 1."""
    assert means(slide_about([1.0, 0.0])) == {
        "total_return": 6,
        "discounted_return": 1 / 2 + 2 / 4 + 3 / 8,
        "success": 1,
        "unfinished": 0,
        "exploring": 0,
    }
    assert means(slide_about([0.0, 1.0])) == {
        "total_return": 0,
        "discounted_return": -1 / 2 + 1 / 8,
        "success": 0,
        "unfinished": 0,
        "exploring": 1,
    }


def test_one_seed_has_the_error_of_its_episodes():
    found = slide_about([0.5, 0.5], seed=1)
    assert found.success is not None
    rate = found.success.mean
    assert abs(rate - 0.5) < 5 * np.sqrt(0.25 / 400)
    assert found.success.stderr == pytest.approx(np.sqrt(rate * (1 - rate) / 399), rel=1e-6)
    assert found.total_return.mean == pytest.approx(6 * rate, abs=1e-5)
    assert found.total_return.stderr == pytest.approx(6 * found.success.stderr, rel=1e-5)
    assert slide_about([0.5, 0.5], seed=1) == found
    assert slide_about([0.5, 0.5], seed=2).total_return != found.total_return
    assert np.isnan(slide_about([0.5, 0.5], episodes=1).total_return.stderr)


def test_several_seeds_have_the_error_of_their_means():
    single = [slide_about([0.5, 0.5], seed=seed) for seed in (3, 4, 5)]
    found = slide_about([0.5, 0.5], seed=[3, 4, 5])
    for name in Evaluation._fields:
        each = np.array([getattr(one, name).mean for one in single])
        part = getattr(found, name)
        assert part.mean == pytest.approx(each.mean(), abs=1e-5)
        assert part.stderr == pytest.approx(each.std(ddof=1) / np.sqrt(3), abs=1e-5)


def test_a_simulator_that_is_not_finite_needs_functions():
    slide = Slide(np.array([0.5, 0.5]))
    with pytest.raises(ConfigError, match="`reward` must be a function of state and action"):
        evaluate(Climber(), slide, reward=np.zeros(3))
    with pytest.raises(ConfigError, match="`reward` must be given"):
        evaluate(Climber(), slide)
    with pytest.raises(ConfigError, match="States must be given by a predicate"):
        evaluate(Climber(), slide, reward=height, goal=[0])


def test_collecting_keeps_what_is_given():
    slide = Slide(np.array([0.5, 0.5]))
    played = slide.collect(
        PolicyActor(slide, Climber()),
        jax.random.key(0),
        num_envs=2,
        horizon=3,
        restart=False,
        contexts=jnp.arange(2),
        first_states=Place(jnp.full(2, 10.0), jnp.full(2, 3)),
    )
    for context in range(2):
        assert played.contexts[context].tolist() == [context] * 4
        assert played.states.time[context].tolist() == [3, 4, 5, 6]
        # At 10 the first observation is above the memory of 0, whatever came before.
        want = [[10, 11, 12, 13], [10, 9, 10, 11]][context]
        assert played.states.position[context].tolist() == want
        assert played.actions[context].tolist() == [[0, 0, 0, 0], [0, 1, 1, 1]][context]
        assert played.first[context].tolist() == [True, False, False, False]
        assert played.mask[context].all()


def test_nothing_is_traced_again_in_steady_state():
    slide_about([0.5, 0.5])
    before = TRACES
    for seed in (1, 2):
        slide_about([0.5, 0.5], seed=seed)
    slide_about([0.2, 0.8], seed=3)
    assert before == TRACES
    slide_about([0.5, 0.5], horizon=5)
    assert before < TRACES, "the counter counts nothing"


@final
class Counted(Policy):
    """A policy of a finite problem that counts how often it is compiled."""

    inner: MemorylessPolicy

    def init(self):
        return self.inner.init()

    def step(self, state, observation, previous_action):
        global TRACES
        TRACES += 1
        return self.inner.step(state, observation, previous_action)


def test_finite_problems_are_traced_once():
    policy = Counted(MemorylessPolicy(TIGER, random_table(TIGER, 0)))
    evaluate(policy, TIGER, episodes=5, horizon=6, seed=[0, 1])
    before = TRACES
    evaluate(policy, TIGER, episodes=5, horizon=6, seed=[2, 3])
    other = Counted(MemorylessPolicy(TIGER, random_table(TIGER, 1)))
    evaluate(other, TIGER, episodes=5, horizon=6, seed=[2, 3], reward=np.arange(6.0))
    assert before == TRACES
    evaluate_exactly(policy, TIGER, horizon=20)
    before = TRACES
    evaluate_exactly(other, TIGER, horizon=20)
    assert before == TRACES


def test_memoryless_policies_know_no_values_and_learn_nothing():
    """What they believe is the prior, whatever they hear; and they notice what is no state."""
    table = random_table(UNEVEN, 0)
    policy = MemorylessPolicy(UNEVEN, table)
    step = eqx.filter_jit(policy.step)
    memory = policy.init()
    for state, previous in ((0, -1), (2, LISTEN), (1, LISTEN), (3, 1)):
        memory, decision = step(memory, UNEVEN.observe(jnp.asarray(state)), jnp.asarray(previous))
        np.testing.assert_allclose(decision.belief.probs, [0.9, 0.1], rtol=1e-6)
        np.testing.assert_allclose(decision.probs, table[state], rtol=1e-6)
        assert np.isnan(decision.values).all() and decision.values.shape == (3,)
        assert not decision.surprised
    assert step(memory, jnp.full(6, 0.5), jnp.asarray(LISTEN))[1].surprised
    batch = eqx.filter_jit(lambda seen, last: jax.vmap(policy.step, (None, 0, 0))((), seen, last))(
        jnp.stack([UNEVEN.observe(jnp.asarray(s)) for s in (1, 2)]), jnp.full(2, LISTEN)
    )[1]
    np.testing.assert_allclose(batch.belief.probs, [[0.9, 0.1]] * 2, rtol=1e-6)
    np.testing.assert_allclose(batch.probs, table[1:3], rtol=1e-6)


def test_privileged_policies_are_told_the_context():
    expert = plan_expert(TIGER, task_of(TIGER).reward)
    for context in range(2):
        told = expert.in_context(jnp.asarray(context))
        np.testing.assert_array_equal(told.table[0], np.eye(3)[1 - context])
    assert not isinstance(expert, Policy)
    assert eqx.is_array_like(expert.table)
