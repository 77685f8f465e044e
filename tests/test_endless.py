"""Exploring that never ends: what is said of it, against the Bayes-optimal policy and by hand."""

import warnings

import numpy as np
import pytest

from bigtrain import (
    CostOfExploration,
    Fixed,
    IRLConfig,
    SolveConfig,
    TabularCMDP,
    demonstrate,
    envs,
    evaluate_exactly,
    exact,
    solve,
)
from bigtrain.exploration import PredictiveReward, predictive_reward
from bigtrain.finite.endless import find_endless, warn_of_endless
from bigtrain.reward import RewardPosterior

TIGER = envs.make("tiger-treasure")
GAMMA = 0.99
S0, T1, T2, TIGER_STATE, GOLD, ST = range(6)
HORIZON = 2_000


def tiger_reward(k: float) -> PredictiveReward:
    """The design's reward: what is not T1 and T2 as the maximum of the posterior has it."""
    weights = np.array([-52.35, -83.84, -83.84, -100, -4.07, 10])
    return predictive_reward(
        TIGER,
        RewardPosterior(weights, np.eye(6)),
        reward_range=(-100.0, 10.0),
        exploration=CostOfExploration(["T1", "T2"], k=Fixed(k)),
    )


def steps_exploring(reward: PredictiveReward) -> float:
    """Of the Bayes-optimal policy, out of `HORIZON`."""
    cmdp = reward.cmdp
    assert isinstance(cmdp, TabularCMDP)
    policy = exact.solve_bayes(cmdp, reward.table()).policy
    found = evaluate_exactly(policy, cmdp, horizon=HORIZON).exploring
    assert found is not None
    return found.mean


def test_tiger_by_hand():
    """Listening for ever against going on to the gold, for one who knows where it is:
    10 k / (1 − γ) = 10 k + γ · gold + γ² · 10 / (1 − γ)."""
    ends = (-4.07 * (1 - GAMMA) + 10 * GAMMA) / 10
    found = find_endless(tiger_reward(0.995))
    assert found is not None
    assert found.state in (T1, T2)
    assert found.paid == pytest.approx(9.95)
    assert found.other == pytest.approx(10)
    assert found.ends_below == pytest.approx(ends, abs=1e-4)
    assert find_endless(tiger_reward(ends - 1e-3)) is None
    assert steps_exploring(tiger_reward(ends - 1e-3)) < 20
    assert find_endless(tiger_reward(ends + 1e-3)) is not None
    assert steps_exploring(tiger_reward(ends + 1e-3)) == pytest.approx(HORIZON - 1)


@pytest.fixture(scope="module")
def maze_posterior() -> tuple[TabularCMDP, RewardPosterior]:
    maze = envs.make("tiger-maze", p_hear=0.85)
    assert maze.task is not None
    anywhere = np.zeros(maze.num_states)
    anywhere[:27:3] = 1  # every floor cell, with no indicator
    demonstrations = demonstrate(
        maze, maze.task.reward, episodes=1_000, horizon=40, initial=anywhere
    )
    config = IRLConfig(prior_variance=0.01)
    return maze, exact.map_reward(maze, demonstrations, config).posterior


def test_maze_against_the_bayes_optimal_policy(maze_posterior):
    """There too the k that is said to end it does, though the robot does not know θ."""
    maze, posterior = maze_posterior

    def priced(k: float) -> PredictiveReward:
        return predictive_reward(
            maze,
            posterior,
            reward_range=(-0.05, 1.0),
            exploration=CostOfExploration(maze.task.exploration_states, k=Fixed(k)),
        )

    found = find_endless(priced(0.6))
    assert found is not None
    assert found.paid == pytest.approx(0.6)
    assert found.other < 0.6
    assert find_endless(priced(found.ends_below - 1e-3)) is None
    assert steps_exploring(priced(found.ends_below - 1e-3)) < 20
    assert steps_exploring(priced(found.ends_below + 1e-3)) > HORIZON - 20


def toy(over: float, leaves: bool) -> PredictiveReward:
    """Waiting in one state, by action 0, is exploring; action 1 may lead to another, for good."""
    transitions = np.zeros((1, 2, 2, 2))
    transitions[:, :, 0, 0] = 1
    transitions[:, :, 1, 1 if leaves else 0] = 1
    transitions[:, 1] = [0, 1] if leaves else [1, 0]
    cmdp = TabularCMDP(
        transitions, [1.0], [1.0, 0.0], gamma=0.9, features=_features(over), state_names=["a", "b"]
    )
    return predictive_reward(
        cmdp,
        RewardPosterior(np.array([1.0]), np.eye(1)),
        reward_range=(-1.0, 1.0),
        exploration=CostOfExploration(["a"], [0], k=Fixed(0.5)),
    )


def _features(over: float) -> np.ndarray:
    """ν of waiting is −1, of leaving 1, and of being over as said."""
    return np.array([[[-1.0], [1.0]], [[over], [over]]])


def test_pairs_and_not_states_explore():
    """In state a only action 0 does; what is over pays .4 or .6, against .5 for waiting."""
    poor, rich = (find_endless(toy(over, leaves=True)) for over in (-0.4, 0.6))
    assert rich is None
    assert poor is not None
    # Leaving pays 1 once and −.4 from then on: .1 · 1 − .9 · .4 a step.
    assert (poor.paid, poor.other) == (pytest.approx(0.5), pytest.approx(-0.26))
    assert poor.ends_below == pytest.approx(-0.26, abs=1e-4)


def test_it_is_said_with_the_numbers():
    with pytest.warns(UserWarning, match=r"k = 0\.5 .* pays 0\.5 a step in the state 'a', and"):
        warn_of_endless(toy(-0.4, leaves=True))
    with pytest.warns(UserWarning, match=r"more than -0\.26.*k of less than -0\.26 ends it\."):
        warn_of_endless(toy(-0.4, leaves=True))
    with pytest.warns(UserWarning, match=r"the way to where 10 can be had .* less than 0\.986 "):
        warn_of_endless(tiger_reward(0.99))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_endless(toy(0.6, leaves=True))
        warn_of_endless(tiger_reward(0.98))


def test_solve_says_so():
    assert TIGER.task is not None
    shown = demonstrate(
        TIGER, TIGER.task.reward, episodes=100, horizon=50, contexts=np.arange(100) % 2
    )
    with pytest.warns(UserWarning, match="The best policy explores for ever: with k = 0.99 "):
        solve(
            TIGER,
            shown,
            reward_range=(-100.0, 10.0),
            exploration=CostOfExploration(["T1", "T2"], k=Fixed(0.99)),
            config=SolveConfig(num_restarts=0),
        )
