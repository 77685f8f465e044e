"""Bayes-optimal behaviour, with proof: lower and upper bounds that meet (section 4.4).

The value of a hyperstate h = (s, b) of the Bayes-adaptive MDP,

    V*(h) = max_a r(s, a) + γ Σ_s' p(s' | h, a) V*(h'),        J* = Σ_s p(s_0 = s) V*(s, p(θ)),

is convex in b, and lies between that of the best of a few plans m that look at the state alone, and
that of an agent who knows θ (by Jensen's inequality, max_a inside the expectation):

    L(h) = max_m Σ_θ b(θ) α_m(s, θ)  ≤  V*(h)  ≤  U(h) = Σ_θ b(θ) V*_θ(s),        (a)

    α_m(·, θ) = (I − γ P_m,θ)⁻¹ r_m       [plan, context, state], the α-vectors of POMDPs.

The graph of hyperstates (`hyperstates`) grows from the prior. Those at its edge are bounded by (a),
the others by solving the graph with the one or the other at the edge. Nodes are expanded where the
optimistic policy goes and the bounds still differ, by discounted visits times gap, as in heuristic
search value iteration (Smith and Simmons, 2004). Where the reachable beliefs are few the bounds
meet; where they are endless, they close in until the gap is small enough or time is up.

What bites:
- What nodes were merged for must be paid for: |V*(s, b) − V*(s, b')| ≤ ‖b − b'‖₁ Δr / (2 (1 − γ)),
  and an error ε of every step's beliefs adds up to γ/(1 − γ)² · ε Δr / 2 of the value.
- Listening for ever may tie with opening. Both bounds are solved exactly (policy iteration), since
  value iteration would never tell.
- A belief that the graph rules out can occur in a policy's float32, so every state keeps some plan.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from bigtrain.arrays import ArrayLike
from bigtrain.errors import ConfigError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import planning
from bigtrain.finite.exact.hyperstates import Hyperstates
from bigtrain.finite.policies import BayesPolicy

_EXPAND_SHARE = 0.98
"""The share of the gap, weighed by the optimistic policy's visits, that a round expands."""

_GROWTH = 0.1
"""A round expands at least this share of the graph, or there would be a round for every node."""

_ROUNDING = 1e-12


@dataclass(frozen=True)
class BayesConfig:
    """When to stop closing the bounds.

    `gap` is the difference between them that counts as closed, as a share of the reward's range;
    `time_limit` is in seconds.
    """

    gap: float = 1e-6
    time_limit: float = 60.0
    max_hyperstates: int = 200_000

    def __post_init__(self):
        for name in ("gap", "time_limit", "max_hyperstates"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"`{name}` must be positive, got {getattr(self, name)}.")


class BayesSolution(NamedTuple):
    """A policy and the proof of how good it is: lower ≤ its value ≤ optimum ≤ upper."""

    policy: BayesPolicy
    lower: float
    upper: float
    closed: bool
    num_hyperstates: int


def solve_bayes(
    cmdp: TabularCMDP,
    reward: ArrayLike,
    config: BayesConfig = BayesConfig(),
    *,
    allowed: Bool[np.ndarray, "state action"] | None = None,
    report: Callable[[float, float, int], None] = lambda lower, upper, num_hyperstates: None,
) -> BayesSolution:
    """The Bayes-optimal policy of `cmdp` for a reward [state] or [state, action].

    `allowed` limits the actions. `report` hears lower bound, upper bound and the number of
    hyperstates after every round.
    """
    table = cmdp.reward_table(reward)
    enough = config.gap * np.ptp(table)
    if allowed is not None:
        table = np.where(allowed, table, -np.inf)  # policy iteration never chooses those
    started = time.monotonic()
    search = _Search(cmdp, table)
    while True:
        search.solve()
        report(search.lower, search.upper, len(search.nodes))
        # Even bounds that meet differ by 2 slack, since each one is moved by it.
        closed = bool(search.upper - search.lower <= enough + 4 * search.slack)
        late = time.monotonic() - started > config.time_limit
        edge = search.edge()
        if closed or late or not len(edge) or len(search.nodes) >= config.max_hyperstates:
            return BayesSolution(
                search.policy(), search.lower, search.upper, closed, len(search.nodes)
            )
        search.nodes.expand(edge)


class _Search:
    """The bounds on the hyperstates found so far.

    The lower bound's problem has one action more in each node: to commit to the best memoryless
    plan for good. Nodes at the edge can do nothing else, and in the upper bound's problem get what
    an informed agent would.
    """

    def __init__(self, cmdp: TabularCMDP, reward: Float[np.ndarray, "state action"]):
        self.cmdp, self.reward = cmdp, reward
        self.nodes = Hyperstates(cmdp)
        successors, probabilities = cmdp.transitions
        informed = [
            planning.policy_iteration(successors, p, reward, cmdp.gamma) for p in probabilities
        ]
        # Plans m: those of agents who know θ, the best one for the prior's mean dynamics, and every
        # action for ever. Any set is sound; a better one closes the bounds sooner.
        mean_dynamics = np.tensordot(cmdp.context_prior, probabilities, 1)
        blind = planning.policy_iteration(successors, mean_dynamics, reward, cmdp.gamma)
        # Upwards by what policy iteration may have left: it must stay an upper bound.
        self._informed = np.stack([solution.values + solution.error for solution in informed])
        plans = {tuple(solution.actions.tolist()) for solution in (*informed, blind)}
        constant = np.flatnonzero(np.isfinite(reward).all(0))
        plans |= {(int(action),) * cmdp.num_states for action in constant}
        choices = [np.eye(cmdp.num_actions)[list(plan)] for plan in sorted(plans)]
        self._plans = np.stack([planning.policy_values(cmdp, c, reward) for c in choices])
        self._upper_actions = self._lower_actions = np.zeros(0, np.int64)
        self.lower = self.upper = self.slack = np.nan

    def solve(self) -> None:
        """Brings both bounds up to date with the graph."""
        nodes, gamma = self.nodes, self.cmdp.gamma
        count, num_actions, width = nodes.children.shape
        all_nodes = np.arange(count)
        # (a) at every node: U = `informed`, L = `committed`.
        informed = (nodes.beliefs * self._informed[:, nodes.states].T).sum(-1)
        committed = np.einsum("nc,pcn->np", nodes.beliefs, self._plans[:, :, nodes.states])
        self._best_plan = committed.argmax(-1)
        committed = committed.max(-1)

        # Edge nodes lead to themselves with (1 − γ) U a step, whose sum is U; so one solve of the
        # whole graph gives the upper bound everywhere.
        stay = all_nodes[:, None, None]
        children = np.where(nodes.children < 0, stay, nodes.children)
        edge = ~nodes.expanded
        probs = nodes.child_probs.copy()
        probs[edge, :, 0] = 1.0
        reward = self.reward[nodes.states]
        optimistic = np.where(edge[:, None], (1 - gamma) * informed[:, None], reward)
        # Warm start: nodes keep their numbers, so old ones keep their actions.
        fresh = reward[len(self._upper_actions) :].argmax(-1)
        upper = planning.policy_iteration(
            children, probs, optimistic, gamma, actions=np.append(self._upper_actions, fresh)
        )

        # The lower bound's extra action, the last one: to stay with (1 − γ) L a step.
        commit = np.zeros((count, 1, width))
        commit[:, :, 0] = 1.0
        careful = np.where(edge[:, None], -np.inf, reward)
        lower = planning.policy_iteration(
            np.concatenate([children, np.broadcast_to(stay, commit.shape)], axis=1),
            np.concatenate([probs, commit], axis=1),
            np.concatenate([careful, (1 - gamma) * committed[:, None]], axis=1),
            gamma,
            actions=np.append(self._lower_actions, np.full(len(fresh), num_actions)),
        )
        self._upper_actions, self._lower_actions = upper.actions, lower.actions
        self._gaps = upper.values - lower.values
        self._flow = sparse.csr_matrix(
            (
                probs[all_nodes, upper.actions].ravel(),
                children[all_nodes, upper.actions].ravel(),
                np.arange(count + 1) * width,
            ),
            shape=(count, count),
        )
        spread = np.ptp(self.reward[np.isfinite(self.reward)])
        # The price of merging, as above, and of what solves leave.
        merged = gamma / (1 - gamma) ** 2 * spread / 2 * nodes.merge_error
        self.slack = float(merged + upper.error + _ROUNDING * np.abs(upper.values).max())
        self.upper = float(nodes.root_probs @ upper.values[nodes.roots]) + self.slack
        self.lower = float(nodes.root_probs @ lower.values[nodes.roots]) - self.slack

    def edge(self) -> Int[np.ndarray, " node"]:
        """The nodes to expand: where the optimistic policy meets most of the gap, and some more."""
        start = np.zeros(len(self.nodes))
        start[self.nodes.roots] = self.nodes.root_probs
        # Discounted visits d = p_0 + γ Pᵀ d of the optimistic policy: the total gap at the root is
        # Σ_n d_n · (what node n's own bounds leave open).
        visits = planning.solve_bellman(self._flow.T.tocsr(), start, self.cmdp.gamma)
        score = np.where(self.nodes.expanded, 0, visits * np.maximum(self._gaps, 0))
        order = np.argsort(-score)
        needed = np.searchsorted(np.cumsum(score[order]), _EXPAND_SHARE * score.sum()) + 1
        found = order[:needed][score[order[:needed]] > 0]
        if not len(found):
            return found
        # Where all ways look alike, the optimistic policy meets one new node a round.
        more = max(0, int(_GROWTH * len(self.nodes)) - len(found))
        return np.union1d(found, np.flatnonzero(~self.nodes.expanded)[:more])

    def policy(self) -> BayesPolicy:
        """The policy that reaches the lower bound: each plan it may follow, context by context.

        A node's way of acting has an α-vector of its own, α_n [context], so V(s, b) = max over
        those of the state's nodes and plans: looking ahead one step with them loses nothing at the
        graph's beliefs, and is defined at all others, such as a robot's rounded ones.
        """
        nodes, gamma = self.nodes, self.cmdp.gamma
        # Relative to the value that is got, numbers fit float32.
        baseline = (1 - gamma) * self.lower
        followed = self._followed()
        commits = self._lower_actions[followed] == self.cmdp.num_actions
        own = self._plans[self._best_plan[followed], :, nodes.states[followed]]
        own[~commits] = self._controller_values(followed[~commits], followed, own)
        states = nodes.states[followed]
        rows: list[Float[np.ndarray, "plan context"]] = []
        for state in range(self.cmdp.num_states):
            values = np.concatenate([own[states == state], self._plans[:, :, state]])
            rows.append(_undominated(values - baseline / (1 - gamma)))
        width = _round_up(max(len(row) for row in rows))
        # [state, plan, context]: rows repeat plans to be equally long, which changes no maximum.
        plans = np.stack([row[np.arange(width) % len(row)] for row in rows])
        reward = np.where(np.isfinite(self.reward), self.reward - baseline, -np.inf)
        return BayesPolicy(self.cmdp, reward, plans, baseline)

    def _followed(self) -> Int[np.ndarray, " node"]:
        """The nodes that the lower bound's policy can meet, from the start on."""
        nodes = self.nodes
        seen = np.zeros(len(nodes), bool)
        frontier = nodes.roots
        while len(frontier):
            seen[frontier] = True
            acting = frontier[self._lower_actions[frontier] < self.cmdp.num_actions]
            children = nodes.children[acting, self._lower_actions[acting]].ravel()
            children = np.unique(children[children >= 0])
            frontier = children[~seen[children]]
        return np.flatnonzero(seen)

    def _controller_values(
        self,
        acting: Int[np.ndarray, " acting"],
        followed: Int[np.ndarray, " followed"],
        committed: Float[np.ndarray, "followed context"],
    ) -> Float[np.ndarray, "acting context"]:
        """α_n(θ) of acting as the lower bound does from these nodes: a policy graph's values,

            α_n(θ) = r(s_n, a_n) + γ Σ_s' p(s' | s_n, a_n, θ) α_child(θ).

        Something a node's belief rules out may happen at another belief; the controller then
        commits to the first plan.
        """
        nodes, gamma = self.nodes, self.cmdp.gamma
        successors, probabilities = self.cmdp.transitions
        states, actions = nodes.states[acting], self._lower_actions[acting]
        position = np.full(len(nodes), -1)
        position[acting] = np.arange(len(acting))
        value_of = np.zeros((len(nodes), self.cmdp.num_contexts))
        value_of[followed] = committed
        children = nodes.children[acting, actions]
        result = np.empty((len(acting), self.cmdp.num_contexts))
        for context in range(self.cmdp.num_contexts):
            probs = probabilities[context, states, actions]
            # Acting nodes are unknowns; committed ones have the value of their plan already.
            inner = (children >= 0) & (position[children] >= 0)
            unforeseen = self._plans[0, context, successors[states, actions]]
            outer = np.where(children < 0, unforeseen, value_of[children, context])
            constant = self.reward[states, actions] + gamma * np.where(inner, 0, probs * outer).sum(
                -1
            )
            rows, _ = np.nonzero(inner)
            matrix = sparse.csr_matrix(
                (probs[inner], (rows, position[children[inner]])), shape=(len(acting), len(acting))
            )
            result[:, context] = planning.solve_bellman(matrix, constant, gamma)
        return result


def _round_up(count: int) -> int:
    """The next power of two: policies of like size then share compiled code."""
    return 1 << max(2, (count - 1).bit_length())


def _undominated(values: Float[np.ndarray, "plan context"]) -> Float[np.ndarray, "kept context"]:
    """The plans that no other is at least as good as in every context, repeats left out."""
    # Unique up to rounding first: two equal plans would each spare the other.
    values = values[np.unique(np.round(values, 9), axis=0, return_index=True)[1]]
    keep = np.ones(len(values), bool)
    for index, row in enumerate(values):
        better = (values >= row).all(-1) & (values > row).any(-1) & keep
        keep[index] = not better.any()
    return values[keep]
