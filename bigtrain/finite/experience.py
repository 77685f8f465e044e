"""Phase 1's experience of finite problems: how often each step was made, and nothing else.

With p(θ | τ_i) what is believed of the context of trajectory i,

    n(θ, s, a, s') = Σ_i p(θ | τ_i) #{t: (s_t, a_t, s_{t+1}) = (s, a, s')}
    w(θ, s, a, s') = n(θ, s, a, s') / (n(θ, s, a) + 1)

and both losses of appendix B (eq:sf_expert_objective, eq:bellman_eq_for_sf) are sums over the
different steps, weighted by w. The expert's also name the next action a', their own (SARSA).

What bites: the paper draws steps uniformly from trajectories, which is n. An episode spends nearly
all of its time in one absorbing state, and the few steps that led there drown. With w each (s, a)
weighs alike in each context once it has been visited, and next to nothing before.
"""

from typing import final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.problem import State, Trajectories
from bigtrain.reward import (
    ActionValues,
    Batch,
    Experience,
    Memory,
    Steps,
    SuccessorNetwork,
    featurise,
)


@final
class _TableValues(eqx.Module):
    table: Float[Array, "context state action"]

    def __call__(self, state: Int[Array, ""], context: Int[Array, ""]) -> Float[Array, " action"]:
        return self.table[context, state]


class _ExpertKinds(eqx.Module):
    """The steps of a finite problem's demonstrations, each kind (s, a, s', a') once.

    Row i says that the step `kinds[i]` occurs `times[i]` times in `trajectories[i]`: beliefs about
    contexts change as ω does, and then counting again is one scatter over these rows.
    """

    steps: Int[np.ndarray | Array, "part kind"]
    kinds: Int[np.ndarray | Array, " row"]
    trajectories: Int[np.ndarray | Array, " row"]
    times: Float[np.ndarray | Array, " row"]


@final
class CountedExperience(Experience):
    """n(θ, s, a, s') of all simulated steps so far, in each context as far as one can tell."""

    cmdp: TabularCMDP
    expert: _ExpertKinds

    def __init__(self, cmdp: TabularCMDP, expert: Trajectories):
        self.cmdp = cmdp
        self.expert = _expert_kinds(expert)

    def init(self) -> Float[Array, "context state action successor"]:
        return jnp.zeros(np.shape(self.cmdp.probabilities))

    def add(
        self, memory: Float[Array, "context state action successor"], episodes: Trajectories
    ) -> Float[Array, "context state action successor"]:
        states, actions = episodes.states[:, :-1], episodes.actions[:, :-1]
        reached = jnp.asarray(self.cmdp.successors)[states, actions] == episodes.states[:, 1:, None]
        step = (states, actions, jnp.argmax(reached, axis=-1))
        # By the belief at the end of the episode, which has seen all of its evidence.
        added = episodes.notes.probs[:, -1].T[..., None]
        return memory.at[(slice(None), *step)].add(added)

    def batch(
        self,
        memory: Float[Array, "context state action successor"],
        key: PRNGKeyArray,
        beliefs: Float[Array, "trajectory context"],
        num_episodes: int,
    ) -> Batch:
        _, num_states, num_actions, width = memory.shape
        rows, actions, _ = np.indices((num_states, num_actions, width)).reshape(3, -1)
        visits = memory.sum(-1, keepdims=True)
        weights = (memory / (visits + 1)).reshape(len(memory), -1)
        next_rows = jnp.asarray(self.cmdp.successors).reshape(-1)
        simulated = Steps(jnp.asarray(rows), jnp.asarray(actions), next_rows, weights)
        observations, features = featurise(self.cmdp, jnp.arange(num_states))
        return Batch(observations, features, self._expert_steps(beliefs), simulated)

    def _expert_steps(self, beliefs: Float[Array, "trajectory context"]) -> Steps:
        shape = (beliefs.shape[1], self.cmdp.num_states, self.cmdp.num_actions)
        rows, actions, next_rows, next_actions = jnp.asarray(self.expert.steps)
        shares = (beliefs[jnp.asarray(self.expert.trajectories)].T) * jnp.asarray(self.expert.times)
        counts = jnp.zeros((shape[0], len(rows))).at[:, jnp.asarray(self.expert.kinds)].add(shares)
        # n(θ, s, a) of each step: summed into a table, and looked up again.
        visits = jnp.zeros(shape).at[:, rows, actions].add(counts)[:, rows, actions]
        return Steps(rows, actions, next_rows, counts / (visits + 1), next_actions)

    def expert_features(
        self,
        memory: Memory,
        network: SuccessorNetwork,
        reward_weights: Float[Array, " feature"],
        visited: State,
        key: PRNGKeyArray,
    ) -> tuple[Memory, Float[Array, "context visited action feature"]]:
        return memory, network(*featurise(self.cmdp, visited))

    def action_values(
        self, network: SuccessorNetwork, reward_weights: Float[Array, " feature"]
    ) -> ActionValues:
        observations, features = featurise(self.cmdp, jnp.arange(self.cmdp.num_states))
        table = network(observations, features) @ reward_weights
        return _TableValues(table)


def _expert_kinds(expert: Trajectories) -> _ExpertKinds:
    states, actions = np.asarray(expert.states), np.asarray(expert.actions)
    followed = np.asarray(expert.mask)[:, 2:]  # a last action is followed by no other
    trajectories = np.nonzero(followed)[0]
    rows = np.stack(
        [
            states[:, :-2][followed],
            actions[:, :-2][followed],
            states[:, 1:-1][followed],
            actions[:, 1:-1][followed],
            trajectories,
        ]
    )
    # Once by trajectory, for `times`, and then the steps without it.
    different, times = np.unique(rows, axis=1, return_counts=True)
    steps, kinds = np.unique(different[:4], axis=1, return_inverse=True)
    return _ExpertKinds(steps, kinds.ravel(), different[4], times.astype(np.float32))
