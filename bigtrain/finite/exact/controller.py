"""A policy in a finite problem as a Markov chain, so that its results need no sampling.

A node is a state of the problem with a memory of the policy. The policy itself is asked what it
does there, whatever it is made of; nodes are found as the chain reaches them.
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
"""Memories that differ by less, relatively where they are large, are taken as one."""


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
        mass = np.stack([self.start, self.start], 1)  # all episodes, and those still undecided
        total = discounted = success = explored = 0.0
        for step in range(horizon + 1):
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

        The chain is followed until what it has not seen weighs less than `tolerance`.
        """
        mass, weight = self.start[:, None], 1.0
        while len(self.states) < max_nodes:
            heavy = weight * mass[:, 0].sum(-1) > tolerance
            if not (heavy & ~self.expanded[: len(mass)]).any() and not self._unseen(mass):
                break
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
        """The value, with the worst and the best plan of each context taking over at the edge."""
        gamma, count = self.cmdp.gamma, len(self.states)
        successors, probabilities = self.cmdp.transitions
        nodes = np.flatnonzero(self.expanded)
        edge = ~self.expanded
        gained = (self.action_probs * reward[self.states]).sum(-1)
        worth = np.zeros(2)
        for context, dynamics in enumerate(probabilities):
            edges = self.action_probs[nodes][..., None] * dynamics[self.states[nodes]]
            used = np.nonzero(edges)
            chain = sparse.csr_matrix(
                (edges[used], (nodes[used[0]], self.children[nodes][used])), shape=(count, count)
            )
            reached = np.stack([gained, gained], -1)
            for column, sign in enumerate((-1, 1)):
                extreme = policy_iteration(successors, dynamics, sign * reward, gamma)
                bound = sign * (extreme.values + extreme.error)
                reached[edge, column] = bound[self.states[edge]]
            start = np.zeros(count)
            start[: len(self.start)] = self.start[:, context]
            worth += start @ solve_bellman(chain, reached, gamma)
        return float(worth[0]), float(worth[1])

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
        """Where the mass is a step later."""
        nodes = np.flatnonzero(mass.any((1, 2)) & self.expanded)
        probabilities = np.moveaxis(
            self.cmdp.transitions.probabilities[:, self.states[nodes]], 0, -1
        )
        moved = probabilities * self.action_probs[nodes][..., None, None]
        children = self.children[nodes]
        used = moved.any(-1)
        flow = mass[nodes][:, None, None] * moved[..., None, :]
        after = np.zeros_like(mass)
        np.add.at(after, children[used], flow[used])
        return after

    def _expand(self, nodes: Int[np.ndarray, " node"]) -> None:
        if not len(nodes):
            return
        memories, probs = self._ask(nodes)
        probabilities = self.cmdp.transitions.probabilities[:, self.states[nodes]]
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
        probs = np.asarray(probs, np.float64)[: len(nodes)]
        return leaves, probs / probs.sum(-1, keepdims=True)

    def _add(
        self,
        states: Int[np.ndarray, " new"],
        last_actions: Int[np.ndarray, " new"],
        memories: list[np.ndarray],
    ) -> Int[np.ndarray, " new"]:
        columns = [states[:, None], last_actions[:, None]]
        columns += [self._round(leaf).reshape(len(states), -1) for leaf in memories]
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
