"""Where certain actions explore: what counts, and the best policy that never takes them."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from problems import dense, permute_states, random_cmdp, relabel_contexts

from bigtrain import (
    BayesRLConfig,
    CostOfExploration,
    Fixed,
    TabularCMDP,
    Task,
    envs,
    evaluate,
    evaluate_exactly,
    learn_policies,
    regret,
)
from bigtrain.errors import CMDPError, ConfigError
from bigtrain.exploration import PredictiveReward, predictive_reward
from bigtrain.finite import anywhere
from bigtrain.finite.evaluation import exploration_pairs, never_exploring_value
from bigtrain.finite.exact import BayesSolution, solve_bayes
from bigtrain.finite.policies import MemorylessPolicy
from bigtrain.reward import RewardPosterior

GAMMA = 0.9
WHOLE, RIPE, ROTTEN, SWEET, SOUR, GONE = range(6)
EAT, LEAVE, PEEK = range(3)
TIGER = envs.make("tiger-treasure")
Pairs = NDArray[np.bool_]


def fruit(p_ripe: float = 0.5, **task: Any) -> TabularCMDP:
    """Eat it and get the next of the same tree, leave it for good, or turn it over first.

    Sweet is worth 1 and sour −2, a step later; turning anything over costs 0.1, also where it tells
    nothing. The context is whether the tree's fruits are ripe.
    """
    after = np.zeros((2, 6, 3), int)
    for context, (seen, taste) in enumerate(((RIPE, SWEET), (ROTTEN, SOUR))):
        after[context, [WHOLE, RIPE, ROTTEN]] = taste, GONE, seen
        after[context, [RIPE, ROTTEN], PEEK] = RIPE, ROTTEN
        after[context, [SWEET, SOUR]] = WHOLE
        after[context, GONE] = GONE
    reward = np.repeat([[0], [0], [0], [1], [-2], [0]], 3, 1).astype(float)
    reward[:, PEEK] -= 0.1
    known = {"exploration_states": tuple(range(6)), "exploration_actions": (PEEK,), **task}
    return TabularCMDP(
        np.eye(6)[after],
        [p_ripe, 1 - p_ripe],
        np.eye(6)[WHOLE],
        gamma=GAMMA,
        state_names=["whole", "ripe", "rotten", "sweet", "sour", "gone"],
        action_names=["eat", "leave", "peek"],
        context_names=["ripe", "rotten"],
        task=Task(reward=reward, reward_range=(-2.1, 1.0), **known),
    )


def true_reward(cmdp: TabularCMDP) -> NDArray[np.float64]:
    assert cmdp.task is not None
    return cmdp.task.reward


@functools.cache
def bayes(p_ripe: float) -> tuple[TabularCMDP, BayesSolution]:
    cmdp = fruit(p_ripe)
    return cmdp, solve_bayes(cmdp, true_reward(cmdp))


def always(cmdp: TabularCMDP, action: int) -> MemorylessPolicy:
    return MemorylessPolicy(cmdp, np.eye(cmdp.num_actions)[[action] * cmdp.num_states])


def never(cmdp: TabularCMDP, reward: NDArray, pairs: Pairs) -> float:
    found = never_exploring_value(cmdp, reward, pairs)
    assert found is not None
    return found


def by_recursion(
    cmdp: TabularCMDP, reward: NDArray, pairs: Pairs, horizon: int, precision: int = 12
) -> float:
    """The best value of `horizon` steps that take none of `pairs`: every action, everything that
    may follow, and Bayes' rule by hand."""
    transitions, seen = dense(cmdp), {}

    def best(state: int, belief: NDArray, left: int) -> float:
        key = state, left, tuple(np.round(belief, precision))
        if left == 0 or key in seen:
            return seen.get(key, 0.0)
        values = []
        for action in np.flatnonzero(~pairs[state]):
            value = reward[state, action]
            for follower in range(cmdp.num_states):
                joint = belief * transitions[:, state, action, follower]
                if joint.sum() > 0:
                    ahead = best(follower, joint / joint.sum(), left - 1)
                    value += cmdp.gamma * joint.sum() * ahead
            values.append(value)
        seen[key] = max(values)
        return seen[key]

    prior = np.asarray(cmdp.context_prior)
    starts = np.flatnonzero(cmdp.initial).tolist()
    return sum(float(np.asarray(cmdp.initial)[s]) * best(s, prior, horizon) for s in starts)


def sure_cmdp(seed: int, gamma: float = 0.8) -> TabularCMDP:
    """Three contexts with sure transitions of their own: few beliefs can be reached."""
    rng = np.random.default_rng([seed, 0])
    follows = rng.integers(4, size=(3, 4, 3))
    return TabularCMDP(
        np.eye(4)[follows], rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(4)), gamma=gamma
    )


def random_reward(cmdp: TabularCMDP, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng([seed, 1]).normal(size=(cmdp.num_states, cmdp.num_actions))


def random_pairs(cmdp: TabularCMDP, seed: int) -> Pairs:
    """Some pairs, at least one, that leave every state an action."""
    rng = np.random.default_rng([seed, 2])
    pairs = rng.random((cmdp.num_states, cmdp.num_actions)) < 0.5
    pairs[0, 0] = True
    pairs[np.arange(cmdp.num_states), rng.integers(1, cmdp.num_actions, cmdp.num_states)] = False
    return pairs


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────

SWEET_FOR_EVER = GAMMA / (1 - GAMMA**2)  # from a whole fruit, one every second step


@pytest.mark.parametrize("p_ripe", [0.05, 0.5, 0.8])
def test_fruit_by_hand(p_ripe):
    """Who never peeks leaves, or eats one and knows from then on: that is no exploring here.

    Who peeks pays 0.1 and a step, and eats for ever if that is good. Where ripe ones are likely
    enough it does better to eat at once, and peeking is worth nothing.
    """
    cmdp, solution = bayes(p_ripe)
    eats = p_ripe * SWEET_FOR_EVER + (1 - p_ripe) * -2 * GAMMA
    peeks = -0.1 + GAMMA * p_ripe * SWEET_FOR_EVER
    found = regret(always(cmdp, LEAVE), cmdp, reward=true_reward(cmdp), optimal=solution)
    best = max(eats, peeks, 0)
    assert (best == peeks) == (p_ripe < 0.7)
    assert found.never_exploring == pytest.approx(max(eats, 0), abs=1e-6)
    assert found.optimal == pytest.approx(best, abs=1e-6)
    assert found.value == pytest.approx(0, abs=1e-6)
    if best == peeks:
        assert found.normalised == pytest.approx(best / (best - max(eats, 0)), rel=1e-4)
    else:
        assert found.normalised == float("inf")
    own = regret(solution.policy, cmdp, reward=true_reward(cmdp), optimal=solution)
    assert own.normalised == pytest.approx(0, abs=1e-5)


def test_1_is_the_best_that_never_peeks():
    """One that does not eat is as far from it as its value says; the best one is at 1."""
    cmdp, solution = bayes(0.5)
    reward = true_reward(cmdp)
    allowed = ~exploration_pairs(cmdp, reward)
    assert (~allowed).sum() == 6 and not allowed[:, PEEK].any()
    best = solve_bayes(cmdp, reward, allowed=allowed).policy
    found = regret(best, cmdp, reward=reward, optimal=solution)
    assert found.normalised == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("states", [["whole"], range(6)])
def test_by_states_alone_there_is_no_such_policy(states):
    """Every episode begins in such a state, whatever is done there."""
    cmdp, solution = bayes(0.5)
    reward = true_reward(cmdp)
    leave = always(cmdp, LEAVE)
    entered = regret(leave, cmdp, reward=reward, exploration_states=states, optimal=solution)
    assert entered.never_exploring is None and entered.normalised is None
    taken = regret(
        leave,
        cmdp,
        reward=reward,
        exploration_states=states,
        exploration_actions=["peek"],
        optimal=solution,
    )
    by_task = regret(leave, cmdp, reward=reward, optimal=solution)
    # Only a whole fruit has anything to tell.
    assert taken == pytest.approx(by_task, abs=1e-6)


def test_steps_that_explore_are_those_that_take_the_action():
    """One peek in an episode, of 20 steps that are all spent in states where one could."""
    cmdp, solution = bayes(0.5)
    exact = evaluate_exactly(solution.policy, cmdp, horizon=20)
    assert exact.exploring is not None and exact.exploring.mean == pytest.approx(1, abs=1e-6)
    played = evaluate(solution.policy, cmdp, horizon=20, episodes=50)
    assert played.exploring == (1, 0)
    half = MemorylessPolicy(cmdp, np.tile([0.5, 0.2, 0.3], (6, 1)))
    by_task: dict[str, Any] = {}
    by_states: dict[str, Any] = {"exploring": range(6)}
    by_all: dict[str, Any] = {"exploring": range(6), "exploring_actions": range(3)}
    by_name: dict[str, Any] = {"exploring": cmdp.state_names, "exploring_actions": ["peek"]}
    by_two: dict[str, Any] = {"exploring": range(6), "exploring_actions": ["eat", "peek"]}
    for how, want in ((by_task, 6), (by_states, 20), (by_all, 20), (by_name, 6), (by_two, 16)):
        found = evaluate_exactly(half, cmdp, horizon=20, **how).exploring
        assert found is not None and found.mean == pytest.approx(want, abs=1e-5)
    for how, want in ((by_states, 20), (by_two, 16)):
        sampled = evaluate(half, cmdp, horizon=20, episodes=1_000, **how).exploring
        assert sampled is not None and abs(sampled.mean - want) <= 5 * sampled.stderr


# ── by brute force ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(8))
def test_never_exploring_by_recursion_where_contexts_show_themselves(seed):
    """80 steps leave 0.8^80 / 0.2 < 1e-6 of the largest reward."""
    cmdp = sure_cmdp(seed)
    reward, pairs = random_reward(cmdp, seed), random_pairs(cmdp, seed)
    want = by_recursion(cmdp, reward, pairs, 80)
    found = never(cmdp, reward, pairs)
    assert found == pytest.approx(want, abs=1e-5)
    free = by_recursion(cmdp, reward, np.zeros_like(pairs), 80)
    assert solve_bayes(cmdp, reward).upper == pytest.approx(free, abs=1e-5) and found <= free + 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_never_exploring_by_recursion_where_evidence_is_noisy(seed):
    """7 steps leave at most 0.2^7 / 0.8 < 2e-5 of the largest reward, about 3."""
    cmdp = random_cmdp(seed, 2, 3, 2, 0.2)
    reward, pairs = random_reward(cmdp, seed), random_pairs(cmdp, seed)
    want = by_recursion(cmdp, reward, pairs, 7)
    assert never(cmdp, reward, pairs) == pytest.approx(want, abs=1e-4)


def test_brute_force_agrees_with_the_hand():
    cmdp, _ = bayes(0.5)
    pairs = exploration_pairs(cmdp, true_reward(cmdp))
    want = (SWEET_FOR_EVER - 2 * GAMMA) / 2
    assert by_recursion(cmdp, true_reward(cmdp), pairs, 200) == pytest.approx(want, abs=1e-6)


# ── invariances ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["tiger-treasure", "tiger-maze", "poisoned-doors"])
def test_all_actions_of_states_are_the_states(name):
    """To the last bit, however they are named."""
    cmdp = envs.make(name)
    assert cmdp.task is not None
    states, actions = cmdp.task.exploration_states, cmdp.action_names
    by_task = exploration_pairs(cmdp, cmdp.task.reward)
    np.testing.assert_array_equal(by_task.any(-1), by_task.all(-1))
    np.testing.assert_array_equal(np.flatnonzero(by_task.any(-1)), sorted(states))
    for found in (
        exploration_pairs(cmdp, cmdp.task.reward, states),
        exploration_pairs(cmdp, cmdp.task.reward, states, actions[::-1]),
        CostOfExploration(states, actions, Fixed(0.1)).mask(cmdp),
    ):
        np.testing.assert_array_equal(found, by_task)


def test_states_with_all_their_actions_must_not_be_entered():
    """In the tiger's room to listen is to enter T1 or T2, so the three ways to say it are one."""
    reward = true_reward(TIGER)
    entered = exploration_pairs(TIGER, reward, ["T1", "T2"])
    every = exploration_pairs(TIGER, reward, ["T1", "T2"], TIGER.action_names)
    listening = exploration_pairs(TIGER, reward, range(TIGER.num_states), [2])
    want = -45 * TIGER.gamma
    assert never_exploring_value(TIGER, reward, every) == never(TIGER, reward, entered)
    assert never(TIGER, reward, entered) == pytest.approx(want, abs=1e-9)
    assert never(TIGER, reward, listening) == pytest.approx(want, abs=1e-6)
    # To open a door in T1 or T2 and not to listen on is a smaller set, and leaves more.
    again = exploration_pairs(TIGER, reward, ["T1", "T2"], [2])
    assert never(TIGER, reward, again) > want + 1


def test_none_where_all_actions_of_a_state_explore_that_cannot_be_avoided():
    cmdp, _ = bayes(0.5)
    reward = true_reward(cmdp)
    for state, avoidable in (("whole", False), ("ripe", True), ("gone", True)):
        pairs = exploration_pairs(cmdp, reward, [state], ["eat", "leave", "peek"])
        assert (never_exploring_value(cmdp, reward, pairs) is not None) == avoidable
    # Neither to eat nor to peek, and what remains is to leave, which is worth 0.
    pairs = exploration_pairs(cmdp, reward, ["ripe", "rotten", "sweet", "sour"])
    assert never(cmdp, reward, pairs) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_names_and_orders_do_not_matter(seed):
    cmdp = sure_cmdp(seed)
    reward, pairs = random_reward(cmdp, seed), random_pairs(cmdp, seed)
    want = never(cmdp, reward, pairs)
    order = np.random.default_rng(seed).permutation(4)
    moved = permute_states(cmdp, order)
    assert never(moved, reward[order], pairs[order]) == pytest.approx(want, abs=1e-5)
    assert never(relabel_contexts(cmdp, [2, 0, 1]), reward, pairs) == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_the_more_is_left_the_better(seed):
    cmdp = sure_cmdp(seed)
    reward, pairs = random_reward(cmdp, seed), random_pairs(cmdp, seed)
    values = []
    for share in (0, 0.5, 1):
        fewer = pairs & (np.random.default_rng([seed, 3]).random(pairs.shape) <= share)
        fewer[0, 0] = True
        values.append(never(cmdp, reward, fewer))
    assert values == sorted(values, reverse=True)


# ── from end to end ──────────────────────────────────────────────────────────────────────────────


@functools.cache
def priced() -> PredictiveReward:
    """By features of states alone, and a price for peeking at a whole fruit."""
    posterior = RewardPosterior(np.array([0.0, 0, 0, 1, -2, 0]), np.eye(6) / 100)
    exploration = CostOfExploration(["whole"], ["peek"], k=Fixed(-0.1))
    return predictive_reward(fruit(), posterior, reward_range=(-2.0, 1.0), exploration=exploration)


def test_the_pairs_of_the_prior_are_what_is_never_done():
    """And not those of the task, nor the states of the prior, which cannot be avoided."""
    reward = priced()
    cmdp, table = fruit(), reward.table()
    found = regret(always(cmdp, LEAVE), cmdp, reward=reward)
    eats, peeks = (SWEET_FOR_EVER - 2 * GAMMA) / 2, -0.1 + GAMMA * SWEET_FOR_EVER / 2
    assert found.never_exploring == pytest.approx(eats, abs=1e-6)
    assert found.optimal == pytest.approx(peeks, abs=1e-6)
    assert found.normalised == pytest.approx(peeks / (peeks - eats), rel=1e-4)
    pairs = np.zeros((6, 3), bool)
    pairs[WHOLE, PEEK] = True
    np.testing.assert_array_equal(exploration_pairs(cmdp, reward), pairs)
    assert by_recursion(cmdp, table, pairs, 200) == pytest.approx(eats, abs=1e-6)


def test_learning_is_judged_by_the_pairs():
    cmdp, solution = bayes(0.5)
    want = (SWEET_FOR_EVER - 2 * GAMMA) / 2
    plain = TabularCMDP(cmdp.transitions, cmdp.context_prior, cmdp.initial, gamma=GAMMA)
    (found,) = learn_policies(
        plain,
        [true_reward(cmdp)],
        config=BayesRLConfig(target_regret=1e3),  # the first policy will do
        seeds=[0],
        exploration_states=[WHOLE],
        exploration_actions=[PEEK],
    )
    assert found.regret is not None and found.regret.normalised is not None
    gap = found.regret.optimal - want
    assert found.regret.normalised == pytest.approx(found.regret.absolute / gap, abs=1e-6)
    assert found.regret.never_exploring == pytest.approx(want, abs=1e-6)
    assert found.regret.optimal == pytest.approx(solution.upper, abs=1e-6)


def test_experts_begin_where_one_may_peek():
    assert anywhere(fruit()).tolist() == [1] * 6
    assert anywhere(fruit(goal_states=(SWEET,))).tolist() == [1, 1, 1, 0, 1, 1]
    assert anywhere(fruit(exploration_actions=None)).tolist() == [0] * 6


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", [{"exploration_states": ()}, {"exploration_actions": ()}])
def test_actions_of_a_task_belong_to_states(task):
    with pytest.raises(CMDPError, match="`exploration_actions` must be at least one, of given"):
        fruit(**task)
    with pytest.raises(CMDPError, match="got 2 actions and 0 states"):
        dataclasses.replace(Task(np.zeros((2, 2)), (0.0, 1.0)), exploration_actions=(0, 1))


def test_actions_come_with_states():
    cmdp = fruit()
    message = r"must come with the states where they do, got the actions \['peek'\] alone"
    leave = always(cmdp, LEAVE)
    with pytest.raises(ConfigError, match=message):
        regret(leave, cmdp, reward=true_reward(cmdp), exploration_actions=["peek"])
    for judge in (evaluate, evaluate_exactly):
        with pytest.raises(ConfigError, match=message):
            judge(leave, cmdp, exploring_actions=["peek"])
        with pytest.raises(CMDPError, match="'poke' is not the name of a"):
            judge(leave, cmdp, exploring=["whole"], exploring_actions=["poke"])
    with pytest.raises(CMDPError, match="must be from 0 to 2, got 3"):
        exploration_pairs(cmdp, true_reward(cmdp), [0], [3])
