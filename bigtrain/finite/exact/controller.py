"""A policy in a finite problem as a Markov chain, so that its results need no sampling.

A node n is a state of the problem with a memory of the policy, (s, m). The policy itself is asked
what it does there, π_n(a), and which memory it has then; nodes are found as the chain reaches them.
With the context θ held, which the policy does not see,

    μ_0(n, θ) = p(s_0 = s_n) p(θ)                                             [node, context]
    μ_{t+1}(n', θ) = Σ_n μ_t(n, θ) Σ_a π_n(a) p(s_{n'} | s_n, a, θ)           sums to 1 at every t
    V(n, θ) = Σ_a π_n(a) [r(s_n, a) + γ Σ_s' p(s' | s_n, a, θ) V(n', θ)]

`totals` follows μ for some steps, `value` solves the last equation and weighs it with μ_0. Nodes
that were never looked at have the value of the best and of the worst plan of an agent who knows θ:
an upper and a lower bound.

What bites:
- Beliefs are floats, and one that a network tracks differs a little on every path. Memories that
  round alike are one node, or there would be as many nodes as histories. What that does to a value
  is not bounded here (docs/decisions/0012-memories-that-are-taken-as-one.md).
- The previous action is part of a node: the policy is given it with the next observation.
- The chain is in float64 around a policy that computes in float32: probabilities are normalised
  again, or mass would be lost by 1e-7 a step.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy import sparse

from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact.planning import policy_iteration, solve_bellman
from bigtrain.policy import Policy
from bigtrain.problem import NO_ACTION

SAME_MEMORY = 1e-4
"""Memories that differ by less, relatively where they are large, are taken as one: numbers with
the same arcsinh(x), in multiples of this."""


class Totals(NamedTuple):
    """What to expect of an episode: sums over its steps, and probabilities of how it goes."""

    total_return: float
    discounted_return: float
    success: float
    unfinished: float
    exploring: float


class Controller:
    """The chain of `policy` in `cmdp`, from its first observation on."""

    def __init__(self, policy: Policy, cmdp: TabularCMDP, resolution: float = SAME_MEMORY):
        self.cmdp = cmdp
        self._policy = policy
        self._resolution = resolution
        self._index: dict[bytes, int] = {}
        leaves, self._structure = jax.tree.flatten(policy.init())
        self._memories = [np.zeros((0, *np.shape(leaf)), leaf.dtype) for leaf in leaves]
        shape = (cmdp.num_actions, cmdp.successors.shape[-1])
        self._count = 0
        self._states = np.zeros(0, np.int32)
        self._last_actions = np.zeros(0, np.int32)
        self._expanded = np.zeros(0, bool)
        self._action_probs = np.zeros((0, cmdp.num_actions))
        self._children = np.zeros((0, *shape), np.int64)
        starts = np.flatnonzero(cmdp.initial)
        first = [np.repeat(np.asarray(leaf)[None], len(starts), 0) for leaf in leaves]
        roots = self._add(starts, np.full(len(starts), NO_ACTION), first)
        self.start = np.zeros((len(self.states), cmdp.num_contexts))
        self.start[roots] = np.outer(np.asarray(cmdp.initial)[starts], cmdp.context_prior)

    @property
    def states(self) -> Int[np.ndarray, " node"]:
        """The problem's state in every node."""
        return self._states[: self._count]

    @property
    def expanded(self) -> Bool[np.ndarray, " node"]:
        """Whether the policy was asked there."""
        return self._expanded[: self._count]

    @property
    def action_probs(self) -> Float[np.ndarray, "node action"]:
        """What it does there."""
        return self._action_probs[: self._count]

    @property
    def children(self) -> Int[np.ndarray, "node action successor"]:
        """The nodes that may follow, -1 where none does."""
        return self._children[: self._count]

    def totals(
        self,
        reward: Float[np.ndarray, "state action"],
        horizon: int,
        *,
        goal: Bool[np.ndarray, " state"],
        failure: Bool[np.ndarray, " state"],
        exploring: Bool[np.ndarray, " state"],
        exploring_actions: Bool[np.ndarray, " action"],
    ) -> Totals:
        """What `horizon` steps bring, in expectation."""
        # [node, kind, context]: all episodes, and those still undecided.
        mass = np.stack([self.start, self.start], 1)
        total = discounted = success = explored = 0.0
        for step in range(horizon + 1):
            # Whoever meets a goal first has succeeded, and is not undecided any more; so it is with
            # failures. The last observation counts, though nothing is done there.
            success += mass[goal[self.states], 1].sum()
            mass[(goal | failure)[self.states], 1] = 0
            if step == horizon:
                break
            mass = self._reach(mass)
            present = mass[:, 0].sum(-1)
            gained = float(present @ (self.action_probs * reward[self.states]).sum(-1))
            total += gained
            discounted += self.cmdp.gamma**step * gained
            if not exploring_actions.all():  # else all that is present explores, to the last bit
                present = present * self.action_probs[:, exploring_actions].sum(-1)
            explored += float(present[exploring[self.states]].sum())
            mass = self._advance(mass)
        return Totals(total, discounted, float(success), float(mass[:, 1].sum()), explored)

    def value(
        self,
        reward: Float[np.ndarray, "state action"],
        *,
        tolerance: float = 1e-11,
        max_nodes: int = 50_000,
    ) -> tuple[float, float]:
        """Bounds on the discounted return without end.

        The chain is followed until what it has not seen weighs less than `tolerance`: γ^t μ_t(n)
        of nodes that were not expanded, or γ^t altogether.
        """
        mass, weight = self.start[:, None], 1.0
        while len(self.states) < max_nodes:
            # Done where nothing new that matters is reached any more: the chain is closed.
            heavy = weight * mass[:, 0].sum(-1) > tolerance
            if not (heavy & ~self.expanded[: len(mass)]).any() and not self._unseen(mass):
                break
            # What stays on nodes too light to expand is dropped here, and kept by the bounds.
            mass = self._advance(self._reach(mass, tolerance / weight))
            weight *= self.cmdp.gamma
            if weight < tolerance:
                break
        return self._solve(reward)

    def _unseen(self, mass: Float[np.ndarray, "node 1 context"]) -> bool:
        """Whether nodes that matter still lead to nodes that were never looked at."""
        known = np.flatnonzero(mass[:, 0].sum(-1) > 0)
        children = self.children[known][self.action_probs[known] > 0]
        return bool((~self.expanded[children[children >= 0]]).any())

    def _solve(self, reward: Float[np.ndarray, "state action"]) -> tuple[float, float]:
        """V at the start, with the worst and the best plan of each context taking over at the edge.

        In each context (I − γ P) V = r_π, with a column for each bound.
        """
        gamma, count = self.cmdp.gamma, len(self.states)
        successors, probabilities = self.cmdp.transitions
        nodes = np.flatnonzero(self.expanded)
        edge = ~self.expanded
        mean_reward = (self.action_probs * reward[self.states]).sum(-1)
        bounds = np.zeros(2)
        for context, dynamics in enumerate(probabilities):
            edges = self.action_probs[nodes][..., None] * dynamics[self.states[nodes]]
            used = np.nonzero(edges)
            chain = sparse.csr_matrix(
                (edges[used], (nodes[used[0]], self.children[nodes][used])), shape=(count, count)
            )
            reached = np.stack([mean_reward, mean_reward], -1)
            for column, sign in enumerate((-1, 1)):
                # The worst plan for r is the best for −r.
                extreme = policy_iteration(successors, dynamics, sign * reward, gamma)
                bound = sign * (extreme.values + extreme.error)
                # Edge nodes have no row in the chain, so this is their value.
                reached[edge, column] = bound[self.states[edge]]
            start = np.zeros(count)
            start[: len(self.start)] = self.start[:, context]
            bounds += start @ solve_bellman(chain, reached, gamma)
        return float(bounds[0]), float(bounds[1])

    def _reach(
        self, mass: Float[np.ndarray, "node kind context"], least: float = 0.0
    ) -> Float[np.ndarray, "more_nodes kind context"]:
        """Expands the nodes that hold mass; `mass`, with a place for every node there is now."""
        wanted = np.flatnonzero(mass.sum((1, 2)) > least)
        self._expand(wanted[~self.expanded[wanted]])
        grown = np.zeros((len(self.states), *mass.shape[1:]))
        grown[: len(mass)] = mass
        return grown

    def _advance(
        self, mass: Float[np.ndarray, "node kind context"]
    ) -> Float[np.ndarray, "node kind context"]:
        """μ_{t+1} of μ_t, for the nodes that were expanded."""
        nodes = np.flatnonzero(mass.any((1, 2)) & self.expanded)
        probabilities = np.moveaxis(
            self.cmdp.transitions.probabilities[:, self.states[nodes]], 0, -1
        )
        moved = probabilities * self.action_probs[nodes][..., None, None]
        children = self.children[nodes]
        used = moved.any(-1)
        # [node, action, successor, kind, context] of all moves that can be made.
        flow = mass[nodes][:, None, None] * moved[..., None, :]
        after = np.zeros_like(mass)
        # `add.at`, since many moves lead to one node.
        np.add.at(after, children[used], flow[used])
        return after

    def _expand(self, nodes: Int[np.ndarray, " node"]) -> None:
        if not len(nodes):
            return
        memories, probs = self._ask(nodes)
        probabilities = self.cmdp.transitions.probabilities[:, self.states[nodes]]
        # In some context: the policy does not know which, so one node serves all.
        possible = (probabilities.sum(0) > 0) & (probs > 0)[..., None]
        place, action, _ = np.nonzero(possible)
        children = np.full(possible.shape, -1)
        children[possible] = self._add(
            self.cmdp.transitions.successors[self.states[nodes]][possible],
            action,
            [leaf[place] for leaf in memories],
        )
        self.children[nodes], self.action_probs[nodes] = children, probs
        self.expanded[nodes] = True

    def _ask(
        self, nodes: Int[np.ndarray, " node"]
    ) -> tuple[list[np.ndarray], Float[np.ndarray, "node action"]]:
        """What the policy does in these nodes, and its memory afterwards.

        The batch is padded to a power of two, so that few sizes are compiled.
        """
        padded = np.resize(nodes, 1 << max(4, int(np.ceil(np.log2(len(nodes))))))
        memory = jax.tree.unflatten(
            self._structure, [jnp.asarray(leaf[padded]) for leaf in self._memories]
        )
        memory, probs = _step(
            self._policy,
            self.cmdp,
            memory,
            jnp.asarray(self.states[padded]),
            jnp.asarray(self._last_actions[padded]),
        )
        leaves = [np.asarray(leaf)[: len(nodes)] for leaf in jax.tree.leaves(memory)]
        probs = np.asarray(probs, np.float64)[: len(nodes)]  # float32 sums to 1 within 1e-7
        return leaves, probs / probs.sum(-1, keepdims=True)

    def _add(
        self,
        states: Int[np.ndarray, " new"],
        last_actions: Int[np.ndarray, " new"],
        memories: list[np.ndarray],
    ) -> Int[np.ndarray, " new"]:
        columns = [states[:, None], last_actions[:, None]]
        columns += [self._round(leaf).reshape(len(states), -1) for leaf in memories]
        # + 0.0 makes −0.0 into 0.0, whose bytes differ.
        keys = np.concatenate([column.astype(np.float64) for column in columns], 1) + 0.0
        nodes = np.empty(len(states), np.int64)
        fresh: list[int] = []
        for place, key in enumerate(keys):
            new = self._count + len(fresh)
            nodes[place] = self._index.setdefault(key.tobytes(), new)
            if nodes[place] == new:
                fresh.append(place)
        begin, self._count = self._count, self._count + len(fresh)
        self._memories = [_with_room(leaf, self._count) for leaf in self._memories]
        for leaf, new in zip(self._memories, memories, strict=True):
            leaf[begin : self._count] = new[fresh]
        self._states = _with_room(self._states, self._count)
        self._states[begin : self._count] = states[fresh]
        self._last_actions = _with_room(self._last_actions, self._count)
        self._last_actions[begin : self._count] = last_actions[fresh]
        self._expanded = _with_room(self._expanded, self._count)
        self._action_probs = _with_room(self._action_probs, self._count)
        self._children = _with_room(self._children, self._count)
        self._children[begin : self._count] = -1
        return nodes

    def _round(self, leaf: np.ndarray) -> np.ndarray:
        if not np.issubdtype(leaf.dtype, np.floating):
            return leaf
        # arcsinh is x near 0 and ± log(2 |x|) far from it: absolute there, relative here.
        return np.round(np.arcsinh(leaf.astype(np.float64)) / self._resolution)


def _with_room(array: np.ndarray, count: int) -> np.ndarray:
    """The array, or a longer copy of it: twice as long, so that few are made."""
    if len(array) >= count:
        return array
    longer = np.zeros((max(count, 2 * len(array)), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


@eqx.filter_jit
def _step(
    policy: Policy,
    cmdp: TabularCMDP,
    memory: Any,
    states: Int[Array, " node"],
    last_actions: Int[Array, " node"],
) -> tuple[Any, Float[Array, "node action"]]:
    memory, decision = jax.vmap(policy.step)(memory, jax.vmap(cmdp.observe)(states), last_actions)
    return memory, decision.probs
