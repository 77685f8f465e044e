"""Bayes-optimal values and policies against expectimax over histories, written plainly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from problems import dense, kaelbling_tiger, permute_states, random_cmdp, relabel_contexts

from bigtrain import envs
from bigtrain.errors import ConfigError, PlanningError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import BayesConfig, BayesSolution, plan, solve_bayes
from bigtrain.finite.exact.hyperstates import Hyperstates
from bigtrain.finite.policies import BayesPolicy
from bigtrain.problem import NO_ACTION

SEEDS = st.integers(0, 2**31 - 1)
Table = NDArray[np.float64]


def random_reward(cmdp: TabularCMDP, seed: int) -> Table:
    return np.random.default_rng([seed, 1]).normal(size=(cmdp.num_states, cmdp.num_actions))


def deterministic_cmdp(
    seed: int, num_contexts: int = 3, num_states: int = 4, num_actions: int = 2, gamma: float = 0.9
) -> TabularCMDP:
    """Every context has its own sure transitions, so beliefs only ever rule contexts out."""
    rng = np.random.default_rng(seed)
    follows = rng.integers(num_states, size=(num_contexts, num_states, num_actions))
    prior = rng.dirichlet(np.full(num_contexts, 3.0))
    start = rng.dirichlet(np.ones(num_states))
    return TabularCMDP(np.eye(num_states)[follows], prior, start, gamma=gamma)


# ── brute force ──────────────────────────────────────────────────────────────────────────────────


def expectimax(
    cmdp: TabularCMDP,
    reward: Table,
    horizon: int,
    tail: float,
    allowed: NDArray[np.bool_] | None = None,
) -> float:
    """The best expected return over `horizon` steps, and `tail` for what comes after.

    Histories are told apart by how often each (s, a, s') occurred, which is all a belief can
    depend on.
    """
    table, gamma = dense(cmdp), cmdp.gamma
    prior = np.asarray(cmdp.context_prior)
    known: dict[tuple, float] = {}

    def value(state: int, counts: tuple, weights: Table, left: int) -> float:
        """`weights` is p(θ, what was seen | what was done)."""
        if left == 0:
            return tail
        key = (state, counts, left)
        if key not in known:
            belief = weights / weights.sum()
            best = -np.inf
            for action in range(cmdp.num_actions):
                if allowed is not None and not allowed[state, action]:
                    continue
                total = reward[state, action]
                for following in range(cmdp.num_states):
                    chances = table[:, state, action, following]
                    if (chance := float(belief @ chances)) > 0:
                        seen = dict(counts)
                        triple = (state, action, following)
                        seen[triple] = seen.get(triple, 0) + 1
                        later = tuple(sorted(seen.items()))
                        total += (
                            gamma * chance * value(following, later, weights * chances, left - 1)
                        )
                best = max(best, total)
            known[key] = best
        return known[key]

    first = np.asarray(cmdp.initial)
    return sum(first[s] * value(s, (), prior, horizon) for s in np.flatnonzero(first).tolist())


def brute_bounds(cmdp: TabularCMDP, reward: Table, horizon: int, **options) -> tuple[float, float]:
    """The optimum is in between: what comes after `horizon` is worth r_min to r_max a step."""
    rest = 1 / (1 - cmdp.gamma)
    return (
        expectimax(cmdp, reward, horizon, reward.min() * rest, **options),
        expectimax(cmdp, reward, horizon, reward.max() * rest, **options),
    )


def closed_value(
    cmdp: TabularCMDP, reward: Table, allowed: NDArray[np.bool_] | None = None
) -> float:
    """The optimum of a deterministic CMDP, by value iteration over (state, contexts left)."""
    follows = dense(cmdp).argmax(-1)
    prior = np.asarray(cmdp.context_prior)
    starts = np.flatnonzero(np.asarray(cmdp.initial)).tolist()
    everyone = frozenset(np.flatnonzero(prior).tolist())
    outcomes: dict[tuple[int, frozenset], list[tuple[float, dict]]] = {}
    waiting = [(state, everyone) for state in starts]
    while waiting:
        node = waiting.pop()
        if node in outcomes:
            continue
        state, left = node
        outcomes[node] = []
        for action in range(cmdp.num_actions):
            if allowed is not None and not allowed[state, action]:
                continue
            groups: dict[int, set] = {}
            for context in left:
                groups.setdefault(int(follows[context, state, action]), set()).add(context)
            total = sum(prior[c] for c in left)
            after = {
                (following, frozenset(group)): sum(prior[c] for c in group) / total
                for following, group in groups.items()
            }
            outcomes[node].append((reward[state, action], after))
            waiting += list(after)
    values = dict.fromkeys(outcomes, 0.0)
    for _ in range(int(np.ceil(np.log(1e-14) / np.log(cmdp.gamma)))):
        values = {
            node: max(
                r + cmdp.gamma * sum(p * values[n] for n, p in after.items()) for r, after in row
            )
            for node, row in outcomes.items()
        }
    return sum(float(cmdp.initial[s]) * values[s, everyone] for s in starts)


@eqx.filter_jit
def _choose(policy: BayesPolicy, states, beliefs):
    return jnp.argmax(jax.vmap(policy.action_values)(states, beliefs), -1)


def followed_value(
    policy: BayesPolicy, reward: Table, state: int, belief: Table, depth: int, tail: float
) -> float:
    """What the policy brings from one hyperstate, by following every history for `depth` steps."""
    cmdp = policy.cmdp
    table = dense(cmdp)
    size = cmdp.num_states**depth
    states, joint, total = np.array([state]), belief[None], 0.0
    for step in range(depth):
        beliefs = joint / np.maximum(joint.sum(-1, keepdims=True), 1e-300)
        padded = np.resize(beliefs, (size, len(belief)))
        actions = np.asarray(
            _choose(policy, jnp.asarray(np.resize(states, size)), jnp.asarray(padded))
        )[: len(states)]
        total += cmdp.gamma**step * float(joint.sum(-1) @ reward[states, actions])
        chances = np.moveaxis(table[:, states, actions], 0, -1)  # [history, next state, context]
        joint = (joint[:, None] * chances).reshape(-1, len(belief))
        states = np.tile(np.arange(cmdp.num_states), len(states))
    return total + cmdp.gamma**depth * tail


# ── values ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "shape, gamma, horizon",
    [((2, 2, 2), 0.5, 9), ((3, 2, 2), 0.4, 8), ((2, 3, 2), 0.3, 5), ((2, 2, 3), 0.35, 5)],
)
@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_the_expectimax_value(shape, gamma, horizon, seed):
    cmdp = random_cmdp(seed, *shape, gamma=gamma)
    reward = random_reward(cmdp, seed)
    low, high = brute_bounds(cmdp, reward, horizon)
    found = solve_bayes(cmdp, reward)
    assert found.closed and found.upper - found.lower <= 1e-6 * np.ptp(reward)
    assert low - 1e-9 <= found.lower and found.upper <= high + 1e-6 * np.ptp(reward)
    assert high - low < 0.05 * np.ptp(reward), "too short a horizon to tell anything"


def informative_cmdp(seed: int, gamma: float = 0.45) -> tuple[TabularCMDP, Table]:
    """One action tells a little about the context, the other two bet on it."""
    rng = np.random.default_rng(seed)
    sharp, cost = rng.uniform(0.6, 0.9), rng.uniform(0, 0.2)
    table = np.zeros((2, 2, 3, 2))
    for context in range(2):
        table[context, :, 2] = [sharp, 1 - sharp] if context == 0 else [1 - sharp, sharp]
        for bet in range(2):
            table[context, :, bet] = [0.95, 0.05] if bet == context else [0.05, 0.95]
    reward = np.array([[1.0, 1.0, 1.0 - cost], [-1.0, -1.0, -1.0 - cost]])
    reward += rng.normal(scale=0.1, size=reward.shape)
    return TabularCMDP(table, [0.5, 0.5], [0.0, 1.0], gamma=gamma), reward


@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_the_expectimax_value_where_beliefs_matter(seed):
    cmdp, reward = informative_cmdp(seed)
    low, high = brute_bounds(cmdp, reward, 7)
    found = solve_bayes(cmdp, reward)
    assert found.closed and found.num_hyperstates > 20
    assert low - 1e-9 <= found.lower and found.upper <= high + 1e-6 * np.ptp(reward)
    blind = TabularCMDP(dense(cmdp).mean(0)[None], [1.0], cmdp.initial, gamma=cmdp.gamma)
    assert found.lower > solve_bayes(blind, reward).upper + 0.01, "beliefs do not matter here"


@pytest.mark.parametrize("num_contexts, num_states, num_actions", [(2, 3, 2), (3, 4, 2), (4, 5, 3)])
@pytest.mark.parametrize("seed", range(6))
def test_few_beliefs_are_solved_exactly(num_contexts, num_states, num_actions, seed):
    cmdp = deterministic_cmdp(seed, num_contexts, num_states, num_actions)
    reward = random_reward(cmdp, seed)
    want = closed_value(cmdp, reward)
    found = solve_bayes(cmdp, reward, BayesConfig(gap=1e-9))
    assert found.closed
    assert found.lower == pytest.approx(want, abs=1e-8)
    assert found.upper == pytest.approx(want, abs=1e-8)


def test_three_state_by_hand():
    """The doors are even, and nothing but opening one tells: γ/(1−γ) times the prior's lean."""
    cmdp = envs.make("three-state", prior=[0.7, 0.3])
    assert cmdp.task is not None
    found = solve_bayes(cmdp, cmdp.task.reward)
    assert found.closed
    assert found.lower == pytest.approx(0.99 / 0.01 * 0.4, abs=1e-9)


def test_crossroads_by_hand():
    """Right costs 1 and arrives at step 2 for good; left arrives then for nothing, or leads back
    to s0, by then knowing the context."""
    cmdp = envs.make("crossroads")
    assert cmdp.task is not None
    arrived = 2 / (1 - 0.99)
    right = -0.99 + 0.99**2 * arrived
    left = 0.5 * 0.99**2 * arrived + 0.5 * 0.99**2 * right
    found = solve_bayes(cmdp, cmdp.task.reward)
    assert found.closed
    assert found.lower == pytest.approx(max(left, right), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_one_context_is_a_plain_mdp(seed):
    cmdp = random_cmdp(seed, 1, 6, 3, 0.95)
    reward = random_reward(cmdp, seed)
    found = solve_bayes(cmdp, reward)
    optimal = plan(cmdp, reward)
    want = float(optimal.values[0] @ np.asarray(cmdp.initial))
    assert found.closed
    assert found.lower == pytest.approx(want, abs=1e-9)
    assert found.upper == pytest.approx(want, abs=1e-6 * np.ptp(reward))
    certain = jnp.ones((6, 1))
    chosen = _choose(found.policy, jnp.arange(6), certain)
    np.testing.assert_array_equal(chosen, optimal.policy[0].argmax(-1))


def test_contexts_without_prior_do_not_count():
    plain, reward = deterministic_cmdp(1, 2), random_reward(deterministic_cmdp(1, 2), 1)
    extra = np.concatenate([dense(plain), dense(deterministic_cmdp(7, 1))])
    prior = np.append(np.asarray(plain.context_prior), 0.0)
    cmdp = TabularCMDP(extra, prior, plain.initial, gamma=plain.gamma)
    found = solve_bayes(cmdp, reward)
    assert found.lower == pytest.approx(closed_value(plain, reward), abs=1e-8)


def test_constant_rewards_are_worth_what_they_sum_to():
    cmdp = random_cmdp(0, 2, 4, 2, 0.9)
    found = solve_bayes(cmdp, np.full((4, 2), 0.3), BayesConfig(max_hyperstates=1_000))
    assert found.lower == pytest.approx(3.0, abs=1e-9)
    assert found.upper == pytest.approx(3.0, abs=1e-9)
    assert found.closed, "there is nothing left to close"


@pytest.mark.parametrize("seed", range(3))
def test_a_tighter_gap_closes_in_on_the_same_value(seed):
    cmdp, reward = informative_cmdp(seed, gamma=0.8)
    loose = solve_bayes(cmdp, reward, BayesConfig(gap=1e-2))
    tight = solve_bayes(cmdp, reward, BayesConfig(gap=1e-4))
    assert tight.closed and tight.num_hyperstates >= loose.num_hyperstates
    assert loose.lower - 1e-9 <= tight.lower <= tight.upper <= loose.upper + 1e-9


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [{"max_hyperstates": 1}, {"time_limit": 1e-9}])
@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_however_early_the_search_stops(limit, seed):
    cmdp = deterministic_cmdp(seed, 4, 5, 3)
    reward = random_reward(cmdp, seed)
    want = closed_value(cmdp, reward)
    found = solve_bayes(cmdp, reward, BayesConfig(gap=1e-9, **limit))
    assert not found.closed
    assert found.lower - 1e-9 <= want <= found.upper + 1e-9
    assert found.upper - found.lower > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_in_the_middle_of_the_search(seed):
    cmdp, reward = informative_cmdp(seed)
    low, high = brute_bounds(cmdp, reward, 7)
    for most in (2, 8, 20):
        found = solve_bayes(cmdp, reward, BayesConfig(max_hyperstates=most))
        assert found.lower <= high + 1e-9 and found.upper >= low - 1e-9


def test_report_hears_every_round():
    cmdp, reward, _ = kaelbling_tiger()
    heard: list[tuple[float, float, int]] = []
    found = solve_bayes(cmdp, reward, report=lambda *news: heard.append(news))
    lower, upper, count = np.array(heard).T
    assert len(heard) > 2
    assert (lower[-1], upper[-1], count[-1]) == (found.lower, found.upper, found.num_hyperstates)
    slack = 1e-9 * np.ptp(reward)  # rounding and merged beliefs
    assert (np.diff(lower) >= -slack).all() and (np.diff(upper) <= slack).all()
    assert (np.diff(count) > 0).all()


@pytest.mark.parametrize("field", ["gap", "time_limit", "max_hyperstates"])
@pytest.mark.parametrize("value", [0, -1])
def test_config_errors(field, value):
    with pytest.raises(ConfigError, match=f"`{field}` must be positive, got {value}"):
        BayesConfig(**{field: type(getattr(BayesConfig(), field))(value)})


def test_reward_errors():
    with pytest.raises(PlanningError, match="got the shape"):
        solve_bayes(random_cmdp(0), np.zeros(7))


# ── allowed actions ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_allowed_actions(seed):
    cmdp = deterministic_cmdp(seed, 3, 4, 3)
    reward = random_reward(cmdp, seed)
    allowed = np.random.default_rng([seed, 3]).random((4, 3)) < 0.5
    allowed[:, seed % 3] |= ~allowed.any(-1)
    found = solve_bayes(cmdp, reward, BayesConfig(gap=1e-9), allowed=allowed)
    assert found.closed
    assert found.lower == pytest.approx(closed_value(cmdp, reward, allowed), abs=1e-8)
    beliefs = np.random.default_rng(seed).dirichlet(np.ones(3), 40)
    states = np.arange(40) % 4
    chosen = _choose(found.policy, jnp.asarray(states), jnp.asarray(beliefs))
    assert allowed[states, chosen].all()


def test_allowing_everything_changes_nothing():
    cmdp = deterministic_cmdp(0)
    reward = random_reward(cmdp, 0)
    free = solve_bayes(cmdp, reward)
    same = solve_bayes(cmdp, reward, allowed=np.ones((4, 2), bool))
    assert (free.lower, free.upper) == (same.lower, same.upper)


# ── the policy ───────────────────────────────────────────────────────────────────────────────────


def start_over(policy: BayesPolicy, belief: Table) -> BayesPolicy:
    return eqx.tree_at(lambda p: p.cmdp.context_prior, policy, belief)


def check_attains(found: BayesSolution, reward: Table, depth: int, beliefs: Table) -> None:
    """At every state and each of `beliefs` the policy gets what its plans promise."""
    policy, cmdp = found.policy, found.policy.cmdp
    tail = float(reward.min()) / (1 - cmdp.gamma)
    promised = np.asarray(policy.plans) + policy.baseline / (1 - cmdp.gamma)
    # What lies beyond `depth` counts at its worst; float32 in the policy decides near-ties only.
    slack = cmdp.gamma**depth * np.ptp(reward) / (1 - cmdp.gamma) + 1e-5 * np.ptp(reward)
    for state in range(cmdp.num_states):
        for belief in beliefs:
            value = followed_value(policy, reward, state, belief, depth, tail)
            assert value >= (promised[state] @ belief).max() - slack


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_policy_attains_what_it_promises_at_any_belief(seed, early):
    cmdp, reward = informative_cmdp(seed)
    config = BayesConfig(max_hyperstates=10) if early else BayesConfig()
    found = solve_bayes(cmdp, reward, config)
    assert found.closed != early
    beliefs = np.array([[0.5, 0.5], [1.0, 0.0], [0.03, 0.97], [0.7, 0.3], [0.41, 0.59]])
    check_attains(found, reward, 11, beliefs)
    start = float(
        np.asarray(cmdp.initial)
        @ [
            followed_value(found.policy, reward, s, beliefs[0], 11, reward.min() / 0.55)
            for s in (0, 1)
        ]
    )
    assert start >= found.lower - 0.45**11 * np.ptp(reward) / 0.55 - 1e-5
    assert start <= found.upper


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_policy_attains_what_it_promises_where_contexts_are_ruled_out(seed, early):
    """Something that a node's belief rules out may happen at another belief."""
    cmdp = deterministic_cmdp(seed, 3, 3, 2, gamma=0.4)
    reward = random_reward(cmdp, seed)
    found = solve_bayes(cmdp, reward, BayesConfig(max_hyperstates=4) if early else BayesConfig())
    beliefs = np.random.default_rng(seed).dirichlet(np.full(3, 0.7), 4)
    check_attains(found, reward, 7, np.concatenate([beliefs, np.eye(3)[:1]]))


@pytest.mark.parametrize("most", [2, 6, 200_000])
@pytest.mark.parametrize("seed", range(6))
def test_every_plan_can_be_followed(seed, most):
    """A plan is an action and, for each state it may lead to, a plan there: whatever the context,
    it is worth no more than that. Also where the plan's own belief had ruled the context out."""
    cmdp = deterministic_cmdp(seed, 4, 4, 3)
    found = solve_bayes(cmdp, random_reward(cmdp, seed), BayesConfig(max_hyperstates=most)).policy
    follows, plans = dense(cmdp).argmax(-1), np.asarray(found.plans)

    def can_be_followed(plan: Table, state: int, action: int) -> bool:
        later = (plan - found.reward[state, action]) / cmdp.gamma
        return all(
            any(
                all(kept[c] >= later[c] - 1e-7 for c in range(4) if follows[c, state, action] == to)
                for kept in plans[to]
            )
            for to in set(follows[:, state, action].tolist())
        )

    for state in range(4):
        for plan_here in plans[state]:
            assert any(can_be_followed(plan_here, state, action) for action in range(3))


def test_policy_tells_its_values():
    cmdp, reward, value = kaelbling_tiger()
    policy = solve_bayes(cmdp, reward).policy
    memory = policy.init()
    np.testing.assert_allclose(np.exp(memory.log_belief), [0.5, 0.5], rtol=1e-6)
    none = jnp.asarray(NO_ACTION, jnp.int32)
    memory, decision = policy.step(memory, cmdp.observe(jnp.asarray(0)), none)
    # By hand: an even door is 0.95 · (10 − 100)/0.95/2 = −45, and to listen is optimal.
    np.testing.assert_allclose(decision.values, [-45, -45, value], atol=1e-4)
    np.testing.assert_array_equal(decision.probs, [0, 0, 1])
    assert not decision.surprised
    heard = jnp.asarray(2, jnp.int32)
    sure = 0.5
    for hearings in (1, 2, 3):
        np.testing.assert_array_equal(decision.probs, [0, 0, 1])
        memory, decision = policy.step(memory, cmdp.observe(jnp.asarray(1)), heard)
        sure = 0.85**hearings / (0.85**hearings + 0.15**hearings)
        np.testing.assert_allclose(decision.belief.probs, [sure, 1 - sure], rtol=1e-4)
    np.testing.assert_array_equal(decision.probs, [0, 1, 0])
    assert float(decision.values[1]) == pytest.approx(10 * sure - 100 * (1 - sure), abs=1e-4)


def test_policy_is_surprised_by_what_cannot_be():
    cmdp = envs.make("tiger-treasure")
    assert cmdp.task is not None
    policy = solve_bayes(cmdp, cmdp.task.reward).policy
    none, listen = jnp.asarray(NO_ACTION, jnp.int32), jnp.asarray(2, jnp.int32)
    memory, decision = policy.step(policy.init(), cmdp.observe(jnp.asarray(0)), none)
    memory, decision = policy.step(memory, cmdp.observe(jnp.asarray(1)), listen)
    assert not decision.surprised
    before = decision.belief.probs
    memory, decision = policy.step(memory, cmdp.observe(jnp.asarray(4)), listen)  # listen ≠> Gold
    assert decision.surprised
    np.testing.assert_array_equal(decision.belief.probs, before)
    memory, decision = policy.step(memory, jnp.full(6, 0.5), listen)  # looks like no state
    assert decision.surprised
    np.testing.assert_array_equal(decision.belief.probs, before)


def test_start_over_changes_the_prior_only():
    cmdp, reward, _ = kaelbling_tiger()
    policy = start_over(solve_bayes(cmdp, reward).policy, np.array([0.999, 0.001]))
    none = jnp.asarray(NO_ACTION, jnp.int32)
    _, decision = policy.step(policy.init(), cmdp.observe(jnp.asarray(0)), none)
    assert int(decision.probs.argmax()) == 1, "the tiger is behind the first door, surely enough"


# ── the same problem, said differently ───────────────────────────────────────────────────────────


def first_actions(found: BayesSolution) -> list[int]:
    """What the policy does at the prior, in each state."""
    policy = found.policy
    prior = jnp.asarray(policy.cmdp.context_prior)
    return [
        int(policy.action_values(jnp.asarray(state), prior).argmax())
        for state in range(policy.cmdp.num_states)
    ]


def first_margin(found: BayesSolution) -> Table:
    policy = found.policy
    prior = jnp.asarray(policy.cmdp.context_prior)
    values = np.array(
        [policy.action_values(jnp.asarray(s), prior) for s in range(policy.cmdp.num_states)]
    )
    ordered = np.sort(values, -1)
    return ordered[:, -1] - ordered[:, -2]


@settings(deadline=None, max_examples=12)
@given(seed=SEEDS, order=st.permutations(range(4)))
def test_permuting_states(seed, order):
    cmdp = deterministic_cmdp(seed)
    reward = random_reward(cmdp, seed)
    plain, moved = (
        solve_bayes(cmdp, reward),
        solve_bayes(permute_states(cmdp, order), reward[order]),
    )
    assert moved.lower == pytest.approx(plain.lower, abs=1e-6 * np.ptp(reward))
    clear = first_margin(plain) > 1e-3
    want = np.array(first_actions(plain))
    assert (np.array(first_actions(moved)) == want[order])[clear[order]].all()


@settings(deadline=None, max_examples=12)
@given(seed=SEEDS, order=st.permutations(range(3)))
def test_relabelling_contexts(seed, order):
    cmdp = deterministic_cmdp(seed)
    reward = random_reward(cmdp, seed)
    plain, moved = solve_bayes(cmdp, reward), solve_bayes(relabel_contexts(cmdp, order), reward)
    assert moved.lower == pytest.approx(plain.lower, abs=1e-6 * np.ptp(reward))
    clear = first_margin(plain) > 1e-3
    assert (np.array(first_actions(moved)) == first_actions(plain))[clear].all()


@settings(deadline=None, max_examples=12)
@given(seed=SEEDS, scale=st.floats(0.01, 100), shift=st.floats(-100, 100))
def test_scaling_and_shifting_the_reward(seed, scale, shift):
    cmdp = deterministic_cmdp(seed)
    reward = random_reward(cmdp, seed)
    plain, moved = solve_bayes(cmdp, reward), solve_bayes(cmdp, scale * reward + shift)
    want = scale * plain.lower + shift / (1 - 0.9)
    # Each bound is within 1e-6 of the range of the optimum, and rounding within 1e-11 of the value.
    assert moved.lower == pytest.approx(want, abs=1e-6 * np.ptp(reward) * scale + 1e-8)
    assert moved.closed
    clear = first_margin(plain) > 1e-3
    assert (np.array(first_actions(moved)) == first_actions(plain))[clear].all()


@pytest.mark.parametrize("shift", [-1e3, 1e3])
def test_a_large_shift_leaves_the_thresholds(shift):
    """Float32 policies must not drown in the constant."""
    cmdp, reward, value = kaelbling_tiger()
    found = solve_bayes(cmdp, reward + shift)
    assert found.closed
    assert found.lower == pytest.approx(value + shift / 0.05, abs=1e-3)
    for hearings, listens in ((0, True), (2, True), (3, False)):
        odds = (0.85 / 0.15) ** hearings
        belief = jnp.array([odds, 1]) / (1 + odds)
        chosen = int(found.policy.action_values(jnp.asarray(0), belief).argmax())
        assert (chosen == 2) == listens


# ── hyperstates ──────────────────────────────────────────────────────────────────────────────────


def test_hyperstates_expand_by_bayes_rule():
    cmdp, _, _ = kaelbling_tiger()
    graph = Hyperstates(cmdp)
    assert len(graph) == 1 and graph.states.tolist() == [0]
    np.testing.assert_array_equal(graph.beliefs, [[0.5, 0.5]])
    graph.expand(np.array([0]))
    found = {
        (int(s), round(float(b[0]), 9)) for s, b in zip(graph.states, graph.beliefs, strict=True)
    }
    assert found == {(0, 0.5), (1, 0.85), (2, 0.15), (3, 1.0), (3, 0.0), (4, 0.0), (4, 1.0)}
    np.testing.assert_allclose(graph.child_probs[0].sum(-1), 1)
    np.testing.assert_allclose(graph.child_probs[0], 0.5)  # every outcome is even at an even belief
    graph.expand(np.flatnonzero(graph.states == 1))
    graph.expand(np.flatnonzero(graph.states == 2)[:1])
    assert graph.merge_error < 1e-12
    # T1 then T2 and T2 then T1 are the even belief again, in the state that was heard last.
    even = np.isclose(graph.beliefs[:, 0], 0.5)
    assert sorted(graph.states[even].tolist()) == [0, 1, 2]
