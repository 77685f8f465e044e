"""The Bayes-adaptive MDP as a growing graph: a node n is a hyperstate (s_n, b_n) (section 4.4).

    states [node],  beliefs [node, context]
    child_probs[n, a, k] = Σ_θ b_n(θ) p(s'_k | s_n, a, θ)         [node, action, successor]
    children[n, a, k]    = the node (s'_k, b'),  b'(θ) = b_n(θ) p(s'_k | s_n, a, θ) / child_probs

with s'_k the k-th of `cmdp.successors[s_n, a]`. Roots are the first states with the prior.

What bites: the tree of histories is endless, the graph need not be. Two hearings that cancel lead
back to the prior, but for rounding, so beliefs that agree to 9 decimals of their logarithms are one
node. In logarithms, since near certainty the probabilities themselves all agree. `merge_error`
bounds what that does to beliefs; `bayes` turns it into a bound on values.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from bigtrain.finite.cmdp import TabularCMDP

_MERGE_DECIMALS = 9
"""Beliefs whose log-probabilities agree to this many places are one node."""


class Hyperstates:
    """The hyperstates found so far and, of the expanded ones, where their actions lead.

    `children[n, a, k]` is the node behind the k-th successor of the node's state, or -1 where the
    node's belief rules it out; `child_probs` is its probability under that belief. Nodes that are
    not expanded have no children. `merge_error` is the largest distance (L1) between beliefs that
    were taken as one: rounding, as a rule.
    """

    def __init__(self, cmdp: TabularCMDP):
        self._successors, self._probabilities = cmdp.transitions
        num_contexts, _, num_actions, width = self._probabilities.shape
        self._index: dict[bytes, int] = {}
        self.states = np.zeros(0, np.int64)
        self.beliefs = np.zeros((0, num_contexts))
        self.expanded: Bool[np.ndarray, " node"] = np.zeros(0, bool)
        self.children = np.zeros((0, num_actions, width), np.int64)
        self.child_probs = np.zeros((0, num_actions, width))
        self.merge_error = 0.0
        starts = np.flatnonzero(cmdp.initial)
        prior = np.broadcast_to(cmdp.context_prior, (len(starts), num_contexts))
        self.roots = self._add(starts, prior)
        self.root_probs = np.asarray(cmdp.initial)[starts]

    def __len__(self) -> int:
        return len(self.states)

    def expand(self, nodes: Int[np.ndarray, " node"]) -> None:
        """Finds what follows each of `nodes`."""
        states = self.states[nodes]
        # [node, action, successor, context], the context last as in beliefs.
        likelihood = np.moveaxis(self._probabilities[:, states], 0, -1)
        joint = likelihood * self.beliefs[nodes][:, None, None, :]
        probs = joint.sum(-1)
        possible = probs > 0
        # What a belief rules out has no posterior, and gets no node.
        children = np.full(probs.shape, -1)
        children[possible] = self._add(
            self._successors[states][possible], joint[possible] / probs[possible][:, None]
        )
        self.children[nodes], self.child_probs[nodes] = children, probs
        self.expanded[nodes] = True

    def _add(
        self, states: Int[np.ndarray, " new"], beliefs: Float[np.ndarray, "new context"]
    ) -> Int[np.ndarray, " new"]:
        """The nodes of these hyperstates, made where they are new."""
        with np.errstate(divide="ignore"):
            keys = np.round(np.log(beliefs), _MERGE_DECIMALS) + 0.0  # no negative zeros
        keys = np.concatenate([states[:, None].astype(float), keys], axis=1)
        # A Python loop over those that differ only: many children of a batch are one node.
        unique, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        nodes = np.empty(len(unique), np.int64)
        fresh = []
        for place, key in enumerate(unique):
            node = self._index.setdefault(key.tobytes(), len(self) + len(fresh))
            if node == len(self) + len(fresh):
                fresh.append(first[place])
            nodes[place] = node
        self._grow(states[fresh], beliefs[fresh])
        nodes = nodes[inverse.ravel()]
        # A node keeps the belief it was made with: how far from it are those that were merged?
        if len(nodes):
            distance = np.abs(self.beliefs[nodes] - beliefs).sum(-1).max()
            self.merge_error = max(self.merge_error, float(distance))
        return nodes

    def _grow(
        self, states: Int[np.ndarray, " new"], beliefs: Float[np.ndarray, "new context"]
    ) -> None:
        count = len(states)
        shape = (count, *self.children.shape[1:])
        self.states = np.concatenate([self.states, states])
        self.beliefs = np.concatenate([self.beliefs, beliefs])
        self.expanded = np.concatenate([self.expanded, np.zeros(count, bool)])
        self.children = np.concatenate([self.children, np.full(shape, -1)])
        self.child_probs = np.concatenate([self.child_probs, np.zeros(shape)])
