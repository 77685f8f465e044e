"""The neighbouring literature's environments: as published, with exact answers worked out here."""

import functools
import itertools

import numpy as np
import pytest

from bigtrain import (
    CostOfExploration,
    Demonstrations,
    Fixed,
    SolveConfig,
    TabularCMDP,
    Task,
    baselines,
    demonstrate,
    envs,
    evaluate_exactly,
    solve,
)
from bigtrain.errors import CMDPError
from bigtrain.exploration import predictive_reward
from bigtrain.finite.evaluation import exploration_pairs, never_exploring_value
from bigtrain.finite.exact import BayesConfig, map_reward, planning, solve_bayes
from bigtrain.finite.exact.hyperstates import Hyperstates
from bigtrain.finite.expert import plan_expert
from bigtrain.finite.policies import PrivilegedPolicy
from bigtrain.policy import Policy
from bigtrain.reward.irl import RewardPosterior

GAMMA = 0.99
DOORS = envs.make("poisoned-doors")
CODE = (2, 0, 1, 1, 2, 0, 0, 1, 1, 1)
PATIENT = BayesConfig(time_limit=1_800.0)
CODE_STATES = tuple(f"code-{entered}" for entered in range(10))


def task_of(cmdp: TabularCMDP) -> Task:
    assert cmdp.task is not None
    return cmdp.task


def play(cmdp: TabularCMDP, context: int, actions: list[int]) -> list[int]:
    """The states that `actions` leave, in a problem without chance."""
    successors, probabilities = cmdp.transitions
    states = [int(np.argmax(cmdp.initial))]
    for action in actions:
        certain = np.flatnonzero(probabilities[context, states[-1], action] == 1)
        states.append(int(successors[states[-1], action, certain[0]]))
    return states[:-1]


# ── poisoned-doors ───────────────────────────────────────────────────────────────────────────────


def published_return(good_door: int, actions: list[int]) -> float:
    """What an episode of PoisonedDoors pays, from its definition: 3 symbols, then doors 0 to 3."""
    moves = itertools.dropwhile(lambda action: action < 3, actions)
    door = next(moves, None)
    if door is None:
        return 0.0
    if door > 3:
        return 2.0 if door - 3 == good_door else -2.0
    return 1.0 if tuple(itertools.islice(moves, 10)) == CODE else 0.0


def test_episodes_of_poisoned_doors_pay_what_is_published():
    rng = np.random.default_rng(0)
    returns = set()
    for context, start in itertools.product(range(3), [[], [0, 2], [3], [1, 3], [0, 3]]):
        for right in range(11):  # symbols of the code that come right after `start`
            actions = [*start, *CODE[:right], *rng.integers(0, 7, 100).tolist()][:100]
            paid = task_of(DOORS).reward[play(DOORS, context, actions), actions].sum()
            assert paid == published_return(context + 1, actions)
            returns.add(paid)
    assert returns == {-2, 0, 1, 2}, "an end was never met"


def test_doors_and_code_are_options():
    cmdp = envs.make("poisoned-doors", doors=6, code=[1, 0])
    assert (cmdp.num_contexts, cmdp.num_actions, cmdp.num_states) == (5, 9, 8)
    np.testing.assert_allclose(cmdp.context_prior, 0.2, rtol=1e-15)
    names = [cmdp.state_names[state] for state in play(cmdp, 0, [3, 1, 0, 0, 0])]
    assert names == ["choosing", "code-0", "code-1", "Unlocked", "ST"]


def test_poisoned_doors_best_is_the_code():
    found = solve_bayes(DOORS, task_of(DOORS).reward)
    result = evaluate_exactly(found.policy, DOORS, horizon=100)
    # Door 0, ten symbols, and +1 for leaving Unlocked: γ¹¹. Discounted or not, it beats guessing,
    # which is below 0, and waiting, which is 0; and opening a door is all there is to find out.
    assert found.closed
    assert found.lower == pytest.approx(GAMMA**11, abs=1e-9)
    assert result.total_return.mean == pytest.approx(1, abs=1e-12)
    assert result.exploring is not None and result.exploring.mean == pytest.approx(10, abs=1e-12)
    never = never_exploring_value(
        DOORS, task_of(DOORS).reward, exploration_pairs(DOORS, task_of(DOORS).reward, CODE_STATES)
    )
    assert never == pytest.approx(0, abs=1e-9)


@functools.cache
def shown_doors() -> Demonstrations:
    reward = task_of(DOORS).reward
    return demonstrate(DOORS, reward, episodes=99, horizon=50, contexts=np.arange(99) % 3)


@functools.cache
def inferred_doors() -> RewardPosterior:
    return map_reward(DOORS, shown_doors(), num_restarts=4).posterior


def doors_reward(states: tuple[str, ...] = (), k: float = 0.0) -> np.ndarray:
    """The predictive reward, with k fixed in `states`."""
    return predictive_reward(
        DOORS,
        inferred_doors(),
        reward_range=task_of(DOORS).reward_range,
        exploration=CostOfExploration(states, k=Fixed(k)) if states else None,
    ).table()


def test_poisoned_doors_expert_and_its_copy():
    expert = plan_expert(DOORS, task_of(DOORS).reward)
    assert evaluate_exactly(expert, DOORS).total_return.mean == pytest.approx(2, abs=1e-12)
    copied = baselines.clone(DOORS, shown_doors())
    # One door in three is good: (2 − 2 − 2) / 3, up to float32. Published for cloning: −0.60.
    assert evaluate_exactly(copied, DOORS).total_return.mean == pytest.approx(-2 / 3, abs=1e-6)


@pytest.mark.parametrize(("k", "total_return"), [(None, -2 / 3), (0.99, 1)])
def test_poisoned_doors_without_the_reward(k, total_return):
    """A door is guessed, or with an exploration prior the code entered."""
    found = solve(
        DOORS,
        shown_doors(),
        reward_range=task_of(DOORS).reward_range,
        exploration=None if k is None else CostOfExploration(CODE_STATES, k=Fixed(k)),
        config=SolveConfig(num_restarts=0),
    )
    assert found.certificate.closed
    result = evaluate_exactly(found.policy, DOORS)
    assert result.total_return.mean == pytest.approx(total_return, abs=1e-9)


def least_k(to_the_end: bool) -> tuple[float, float]:
    """From which k on a wrong symbol beats guessing, and the whole code a wrong symbol.

    All ways end in ST, so what counts is what each loses against it. A step of the code loses
    2 (1 − k), and so does Unlocked if the prior speaks of it.
    """
    worth = dict(zip(DOORS.state_names, doors_reward()[:, 0], strict=True))
    loss = {state: worth["ST"] - value for state, value in worth.items()}
    guess = GAMMA * (loss["Good"] + 2 * loss["Bad"]) / 3
    jam = GAMMA**2 * loss["Jammed"]
    more_steps = sum(GAMMA**step for step in range(2, 12 if to_the_end else 11))
    unlocked = 0 if to_the_end else GAMMA**11 * loss["Unlocked"]
    return 1 - (guess - jam) / (2 * GAMMA), 1 - (jam - unlocked) / (2 * more_steps)


@pytest.mark.parametrize(
    ("to_the_end", "jams_from", "enters_from"), [(False, 0.793, 0.980), (True, 0.793, 0.883)]
)
def test_which_exploration_prior_makes_the_agent_enter_the_code(to_the_end, jams_from, enters_from):
    """No demonstration tells the code's right end from its wrong one: the agent goes to the right
    one because a step of the code is worth nearly the best there is. So k must be near 1, and less
    near if the prior speaks of Unlocked as well."""
    assert least_k(to_the_end) == pytest.approx((jams_from, enters_from), abs=1e-3)
    states = (*CODE_STATES, "Unlocked") if to_the_end else CODE_STATES
    for k, total_return in (
        (jams_from - 0.002, -2 / 3),
        (jams_from + 0.002, 0),
        (enters_from - 0.002, 0),
        (enters_from + 0.002, 1),
        (0.999, 1),
    ):
        found = solve_bayes(DOORS, doors_reward(states, k))
        assert found.closed
        result = evaluate_exactly(found.policy, DOORS)
        assert result.total_return.mean == pytest.approx(total_return, abs=1e-9), k


# ── lighthouse ───────────────────────────────────────────────────────────────────────────────────


def walk(start: tuple[int, int], end: tuple[int, int]) -> int:
    return abs(start[0] - end[0]) + abs(start[1] - end[1])


def arrivals(half_width: int, view: int) -> set[tuple[int, ...]]:
    """When each corner's goal would be reached, for every tour: an order of the corners, and for
    all but the last a cell to look from. Who has seen three empty corners knows the fourth."""
    side = range(half_width - view, half_width + 1)
    corners = list(itertools.product((-1, 1), repeat=2))
    found = set()
    for order in itertools.permutations(corners):
        for depths in itertools.product(itertools.product(side, side), repeat=3):
            here, now, times = (0, 0), 0, []
            looks = [(sx * x, sy * y) for (sx, sy), (x, y) in zip(order, depths, strict=False)]
            goals = [(sx * half_width, sy * half_width) for sx, sy in order]
            for cell, goal in zip([*looks, goals[3]], goals, strict=True):
                now += walk(here, cell)
                here = cell
                times.append(now + walk(cell, goal))
            found.add(tuple(times))
    return found


def mean_length(policy: Policy | PrivilegedPolicy, cmdp: TabularCMDP) -> float:
    """Steps to the goal: the return is 1 less 0.01 for each."""
    result = evaluate_exactly(policy, cmdp, horizon=150)
    assert result.success is not None and result.success.mean == pytest.approx(1, abs=1e-9)
    return (1 - result.total_return.mean) / 0.01


@pytest.mark.parametrize(("half_width", "view"), [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2)])
def test_lighthouse_against_all_tours(half_width, view):
    cmdp = envs.make("lighthouse", half_width=half_width, view=view)
    tours = np.array(sorted(arrivals(half_width, view)))
    shortest = tours.mean(-1).min()
    tau = 2 * (half_width - view)
    assert shortest == (8 * view + 10 * tau) / 4, "the published formula"
    found = solve_bayes(cmdp, task_of(cmdp).reward)
    # Arriving after T steps is worth γᵀ − 0.01 (1 − γᵀ) / (1 − γ) = 2γᵀ − 1.
    assert found.closed
    assert found.lower == pytest.approx((2 * GAMMA**tours - 1).mean(-1).max(), abs=1e-9)
    assert mean_length(found.policy, cmdp) == pytest.approx(shortest, abs=1e-9)


def test_a_corner_is_seen_from_near_only():
    cmdp = envs.make("lighthouse", half_width=3)
    left, right, down = 0, 1, 2

    def met(context: int, actions: list[int]) -> list[str]:
        return [cmdp.state_names[state] for state in play(cmdp, context, [*actions, left])][1:]

    way = [right, right, down, down, right, down, left, left]  # to right-down, and on
    plain = ["(1,0)", "(2,0)", "(2,-1)"]
    empty = ["(2,-2) empty", "(3,-2) empty", "(3,-3) empty", "(2,-3) empty", "(1,-3)"]
    for context in (0, 1, 3):
        assert met(context, way) == plain + empty
    assert met(2, way) == [*plain, "(2,-2) goal", "(3,-2) goal", "(3,-3) at-goal", "ST", "ST"]
    assert met(0, [left] * 5) == ["(-1,0)", "(-2,0)", "(-3,0)", "(-3,0)", "(-3,0)"]


def test_lighthouse_as_published():
    """31 × 31, by all hyperstates that there are: 72 steps."""
    cmdp = envs.make("lighthouse")
    assert cmdp.num_states == 31**2 + 4 * 4 + 1, "all cells, 16 of them seen in two ways, and ST"
    nodes = Hyperstates(cmdp)
    while len(edge := np.flatnonzero(~nodes.expanded)):
        nodes.expand(edge)
    children = np.maximum(nodes.children, 0)
    reward = task_of(cmdp).reward[nodes.states]
    best = planning.policy_iteration(children, nodes.child_probs, reward, GAMMA)
    start = nodes.roots[0]
    tour = np.array([30, 58, 86, 114])  # 28 steps to a corner's view, 28 to the next, 2 to a goal
    assert best.values[start] == pytest.approx((2 * GAMMA**tour - 1).mean(), abs=1e-9)

    present, length = (np.arange(len(nodes)) == start).astype(float), 0.0
    chain = planning.Transitions(children, nodes.child_probs[None]).matrix(
        0, np.eye(cmdp.num_actions)[best.actions]
    )
    on_the_way = ~np.isin(nodes.states, (*task_of(cmdp).goal_states, cmdp.num_states - 1))
    for _ in range(200):
        length += present[on_the_way].sum()
        present = chain.T @ present
    assert length == pytest.approx(72, abs=1e-9)


def test_lighthouse_expert():
    cmdp = envs.make("lighthouse")
    assert mean_length(plan_expert(cmdp, task_of(cmdp).reward), cmdp) == pytest.approx(30, abs=1e-9)


def test_lighthouse_without_the_reward():
    """On a small square. To look into a corner is no detour, so no exploration prior is needed;
    one that is too high makes the agent stay where it sees an empty corner."""
    cmdp = envs.make("lighthouse", half_width=3)
    task = task_of(cmdp)
    shown = demonstrate(cmdp, task.reward, episodes=100, horizon=12)
    posterior = map_reward(cmdp, shown, num_restarts=0).posterior
    lengths = []
    for k in (None, 0.5, 0.9):
        exploration = None if k is None else CostOfExploration(task.exploration_states, k=Fixed(k))
        reward = predictive_reward(
            cmdp, posterior, reward_range=task.reward_range, exploration=exploration
        )
        lengths.append(mean_length(solve_bayes(cmdp, reward.table()).policy, cmdp))
    assert lengths == pytest.approx([12, 12, 13.5], abs=1e-9)


@pytest.mark.slow
def test_lighthouse_as_published_by_its_bounds():
    cmdp = envs.make("lighthouse")
    found = solve_bayes(cmdp, task_of(cmdp).reward, PATIENT)
    assert found.closed
    assert mean_length(found.policy, cmdp) == pytest.approx(72, abs=1e-9)


@pytest.mark.slow
def test_lighthouse_as_published_without_the_reward():
    cmdp = envs.make("lighthouse")
    task = task_of(cmdp)
    found = solve(
        cmdp,
        demonstrate(cmdp, task.reward, episodes=100, horizon=60),
        reward_range=task.reward_range,
        config=SolveConfig(bayes=PATIENT, num_restarts=0),
    )
    assert found.certificate.closed
    assert mean_length(found.policy, cmdp) == pytest.approx(72, abs=1e-9)


# ── both ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("poisoned-doors", {"doors": 1}, ["`doors`", "at least 2", "got 1"]),
        ("poisoned-doors", {"code": []}, ["`code`", "at least one", "got ()"]),
        ("poisoned-doors", {"code": [0, 3]}, ["`code`", "from 0 to 2", "got (0, 3)"]),
        ("lighthouse", {"view": -1}, ["`view`", "at least 0", "got -1 and 15"]),
        ("lighthouse", {"half_width": 2, "view": 2}, ["less than `half_width`", "got 2 and 2"]),
    ],
)
def test_wrong_options_are_refused(name, options, parts):
    with pytest.raises(CMDPError) as refused:
        envs.make(name, **options)
    for part in parts:
        assert part in str(refused.value)
