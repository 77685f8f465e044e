"""Steps to learn successor features from: simulated episodes, and demonstrations.

Whole episodes are kept, since which context they were in can only be told from all of their steps.
A finite problem needs their steps' counts and nothing else; any other keeps the latest episodes.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.belief import Filter
from bigtrain.data import Demonstrations, replay
from bigtrain.data.replay import Ring
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.problem import CMDP, State
from bigtrain.reward.successor import Batch, Steps, SuccessorNetwork

ActionValues = Callable[[State, Int[Array, ""]], Float[Array, " action"]]
"""What each action is worth in a state and a context."""


class Episodes(NamedTuple):
    """Simulated episodes, one state more than actions each, and log p(θ | all of its steps)."""

    states: State
    actions: Int[Array, "*episode step"]
    log_belief: Float[Array, "*episode context"]


def simulate(
    cmdp: CMDP,
    filter: Filter,
    action_values: ActionValues,
    key: PRNGKeyArray,
    *,
    horizon: int,
    epsilon: float,
) -> Episodes:
    """One ε-greedy episode (Algorithm 1): greedy for a context drawn from the present belief."""
    key_context, key_reset, key_choices, key_steps = jax.random.split(key, 4)
    context = cmdp.sample_context(key_context)
    first = cmdp.reset(key_reset, context)
    choices = jax.random.uniform(key_choices, (horizon, 2))  # few draws: they cost the most

    def advance(carry, inputs):
        state, belief = carry
        key_step, (choice_context, choice_action) = inputs
        cumulative = jnp.cumsum(jnp.exp(belief.log_probs))
        guess = jnp.argmax(choice_context * cumulative[-1] < cumulative)
        greedy = jnp.argmax(action_values(state, guess))
        anything = jnp.floor(choice_action / max(epsilon, 1e-9) * cmdp.num_actions)
        action = jnp.where(choice_action < epsilon, anything, greedy).astype(jnp.int32)
        following = cmdp.step(key_step, state, action, context)
        belief, _ = filter.update(belief, state, action, following)
        return (following, belief), (following, action)

    keys = jax.random.split(key_steps, horizon)
    (_, belief), (later, actions) = jax.lax.scan(advance, (first, filter.init()), (keys, choices))
    states = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)
    return Episodes(states, actions, belief.log_probs)


Memory = Any
"""What an `Experience` remembers of simulated episodes: a pytree of arrays."""


class Experience(eqx.Module):
    """Demonstrations and simulated episodes, as batches that `successor` learns from."""

    @abc.abstractmethod
    def init(self) -> Memory:
        """The memory of no episode."""

    @abc.abstractmethod
    def add(self, memory: Memory, episodes: Episodes) -> Memory:
        """With more episodes, one a leading index."""

    @abc.abstractmethod
    def batch(
        self,
        memory: Memory,
        key: PRNGKeyArray,
        beliefs: Float[Array, "trajectory context"],
        num_episodes: int,
    ) -> Batch:
        """Steps to learn from, of `num_episodes` where they are sampled.

        `beliefs` say which context each expert was in.
        """

    @abc.abstractmethod
    def action_values(
        self, network: SuccessorNetwork, reward_weights: Float[Array, " feature"]
    ) -> ActionValues:
        """Ψ·ω, as quick as the problem allows."""


def show(
    cmdp: CMDP, states: State
) -> tuple[Shaped[Array, "row ..."], Float[Array, "row action feature"]]:
    """Observations of states, drawn now, and their features ν(s, ·)."""
    actions = jnp.arange(cmdp.num_actions)
    features = jax.vmap(jax.vmap(cmdp.features, (None, 0)), (0, None))(states, actions)
    return jax.vmap(cmdp.observe)(states), features.astype(jnp.float32)


class _ExpertKinds(eqx.Module):
    """The steps of a finite problem's demonstrations, each kind (s, a, s', a') once.

    `kinds[i]` were met in `trajectories[i]`, `times[i]` times.
    """

    steps: Int[np.ndarray | Array, "part kind"]
    kinds: Int[np.ndarray | Array, " meeting"]
    trajectories: Int[np.ndarray | Array, " meeting"]
    times: Float[np.ndarray | Array, " meeting"]


@final
class CountedExperience(Experience):
    """How often each step of a finite problem was made, in each context as far as one can tell.

    Every (state, action) weighs alike, once it has been met: n/(n+1) for n meetings. Where an
    episode is spent in one absorbing state, the few steps that led there would otherwise drown.
    """

    cmdp: TabularCMDP
    expert: _ExpertKinds

    def __init__(self, cmdp: TabularCMDP, demonstrations: Demonstrations):
        self.cmdp = cmdp
        self.expert = _expert_kinds(cmdp, demonstrations)

    def init(self) -> Float[Array, "context state action successor"]:
        return jnp.zeros(np.shape(self.cmdp.probabilities))

    def add(
        self, memory: Float[Array, "context state action successor"], episodes: Episodes
    ) -> Float[Array, "context state action successor"]:
        states, actions = episodes.states[:, :-1], episodes.actions
        reached = jnp.asarray(self.cmdp.successors)[states, actions] == episodes.states[:, 1:, None]
        place = (states, actions, jnp.argmax(reached, axis=-1))
        added = jnp.exp(episodes.log_belief).T[..., None]
        return memory.at[(slice(None), *place)].add(added)

    def batch(
        self,
        memory: Float[Array, "context state action successor"],
        key: PRNGKeyArray,
        beliefs: Float[Array, "trajectory context"],
        num_episodes: int,
    ) -> Batch:
        _, num_states, num_actions, width = memory.shape
        rows, actions, _ = np.indices((num_states, num_actions, width)).reshape(3, -1)
        met = memory.sum(-1, keepdims=True)
        weights = (memory / (met + 1)).reshape(len(memory), -1)
        next_rows = jnp.asarray(self.cmdp.successors).reshape(-1)
        simulated = Steps(jnp.asarray(rows), jnp.asarray(actions), next_rows, weights)
        observations, features = show(self.cmdp, jnp.arange(num_states))
        return Batch(observations, features, self._expert_steps(beliefs), simulated)

    def _expert_steps(self, beliefs: Float[Array, "trajectory context"]) -> Steps:
        shape = (beliefs.shape[1], self.cmdp.num_states, self.cmdp.num_actions)
        rows, actions, next_rows, next_actions = jnp.asarray(self.expert.steps)
        shares = (beliefs[jnp.asarray(self.expert.trajectories)].T) * jnp.asarray(self.expert.times)
        counts = jnp.zeros((shape[0], len(rows))).at[:, jnp.asarray(self.expert.kinds)].add(shares)
        met = jnp.zeros(shape).at[:, rows, actions].add(counts)[:, rows, actions]
        return Steps(rows, actions, next_rows, counts / (met + 1), next_actions)

    def action_values(
        self, network: SuccessorNetwork, reward_weights: Float[Array, " feature"]
    ) -> ActionValues:
        observations, features = show(self.cmdp, jnp.arange(self.cmdp.num_states))
        table = network(observations, features) @ reward_weights
        return lambda state, context: table[context, state]


def _expert_kinds(cmdp: TabularCMDP, demonstrations: Demonstrations) -> _ExpertKinds:
    states = demonstrations.states(cmdp)
    lengths = demonstrations.lengths
    trajectories = np.repeat(np.arange(len(lengths)), lengths)
    follows = np.ones(len(trajectories), bool)
    follows[np.cumsum(lengths) - 1] = False  # a last action is followed by no other
    step = np.flatnonzero(follows)
    left = step + trajectories[step]  # one observation more than actions each
    actions = demonstrations.actions
    rows = np.stack(
        [states[left], actions[step], states[left + 1], actions[step + 1], trajectories[step]]
    )
    met, times = np.unique(rows, axis=1, return_counts=True)
    steps, kinds = np.unique(met[:4], axis=1, return_inverse=True)
    return _ExpertKinds(steps, kinds.ravel(), met[4], times.astype(np.float32))


@final
class ReplayedExperience(Experience):
    """The latest simulated episodes of any problem, and the demonstrations, sampled."""

    cmdp: CMDP
    expert_states: State
    expert_actions: Int[np.ndarray | Array, "trajectory step"]
    expert_mask: Bool[np.ndarray | Array, "trajectory step"]
    capacity: int = eqx.field(static=True)
    horizon: int = eqx.field(static=True)

    def __init__(
        self,
        cmdp: CMDP,
        demonstrations: Demonstrations,
        *,
        capacity: int,
        horizon: int,
    ):
        padded = demonstrations.padded()
        self.cmdp = cmdp
        observations = jnp.asarray(padded.observations)
        self.expert_states, _ = jax.vmap(jax.vmap(cmdp.identify))(observations)
        self.expert_actions, self.expert_mask = padded.actions, padded.mask
        self.capacity, self.horizon = capacity, horizon

    def init(self) -> Ring:
        state = jax.eval_shape(self.cmdp.reset, jax.random.key(0), jnp.asarray(0))
        like = jax.eval_shape(
            lambda: Episodes(
                jax.tree.map(
                    lambda leaf: jnp.zeros((self.horizon + 1, *leaf.shape), leaf.dtype), state
                ),
                jnp.zeros(self.horizon, jnp.int32),
                jnp.zeros(self.cmdp.num_contexts),
            )
        )
        return replay.empty(like, self.capacity)

    def add(self, memory: Ring, episodes: Episodes) -> Ring:
        return replay.push(memory, episodes)

    def batch(
        self,
        memory: Ring,
        key: PRNGKeyArray,
        beliefs: Float[Array, "trajectory context"],
        num_episodes: int,
    ) -> Batch:
        key_expert, key_simulated = jax.random.split(key)
        num_expert = min(num_episodes, len(self.expert_actions))
        expert = jax.random.randint(key_expert, (num_expert,), 0, len(self.expert_actions))
        replayed = replay.sample(memory, key_simulated, num_episodes)
        shown = jax.tree.map(
            lambda a, b: jnp.concatenate([_flat(a[expert]), _flat(b)]),
            self.expert_states,
            replayed.states,
        )
        observations, features = show(self.cmdp, shown)
        mask = jnp.asarray(self.expert_mask)[expert]
        own = _steps(jnp.asarray(self.expert_actions)[expert], beliefs[expert], mask, offset=0)
        simulated = _steps(
            replayed.actions,
            jnp.exp(replayed.log_belief),
            jnp.ones(replayed.actions.shape, bool),
            offset=num_expert * (self.expert_actions.shape[1] + 1),
        )
        return Batch(observations, features, _followed(own, mask), simulated)

    def action_values(
        self, network: SuccessorNetwork, reward_weights: Float[Array, " feature"]
    ) -> ActionValues:
        def values(state, context):
            one = jax.tree.map(lambda leaf: leaf[None], state)
            return network(*show(self.cmdp, one))[context, 0] @ reward_weights

        return values


def _flat(values: Shaped[Array, "episode step ..."]) -> Shaped[Array, "row ..."]:
    return values.reshape(-1, *values.shape[2:])


def _steps(
    actions: Int[Array, "episode step"],
    beliefs: Float[Array, "episode context"],
    mask: Bool[Array, "episode step"],
    *,
    offset: int,
) -> Steps:
    """The steps of episodes whose states stand end to end from `offset` on."""
    count, horizon = actions.shape
    rows = offset + jnp.arange(count)[:, None] * (horizon + 1) + jnp.arange(horizon)
    weights = beliefs.T[:, :, None] * mask
    return Steps(rows.ravel(), actions.ravel(), rows.ravel() + 1, weights.reshape(len(weights), -1))


def _followed(steps: Steps, mask: Bool[Array, "episode step"]) -> Steps:
    """Only the steps that another action follows, with that action."""
    count, horizon = mask.shape
    actions = steps.actions.reshape(count, horizon)
    next_actions = jnp.concatenate([actions[:, 1:], actions[:, :1]], axis=1)
    last = jnp.concatenate([mask[:, 1:], jnp.zeros((count, 1), bool)], axis=1)
    return Steps(
        steps.rows,
        steps.actions,
        steps.next_rows,
        steps.weights * last.ravel(),
        next_actions.ravel(),
    )
