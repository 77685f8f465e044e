"""Experience for phase 1: demonstrations and simulated episodes, as batches to learn Ψ from.

Simulated episodes come from Algorithm 1's explorer: with probability 1 − ε, for θ̃ ~ p(θ | h_t),

    a_t = argmax_a Ψ(s_t, a, θ̃)·ω,

and any action otherwise. θ̃ is drawn anew at every step. Steps then count by p(θ | τ_i), the belief
at the end of their episode, which has seen all of its evidence: weights [context, step].

What bites: whole episodes are kept, since their context can only be inferred from all of their
steps; and a row of T steps has T + 1 states, of which SARSA's targets can use T − 1 steps only, for
the last is followed by no action of the expert's.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.belief import InferenceModel
from bigtrain.data import Replay, replay
from bigtrain.problem import Actor, Simulator, State, Trajectories, explore, flatten, row_like
from bigtrain.reward.successor import Batch, Steps, SuccessorNetwork

ActionValues = Callable[[State, Int[Array, ""]], Float[Array, " action"]]
"""Q(s, ·, θ) = Ψ(s, ·, θ)·ω: a pytree that can be called."""


@final
class SampledContextActor(Actor):
    """ε-greedy for a context that is drawn from the present belief (Algorithm 1), at every step."""

    num_draws: ClassVar[int] = 2
    inference: InferenceModel
    encode: Callable[[State], Any]
    values: ActionValues
    num_actions: int = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    def init(self, env: Int[Array, ""], context: Int[Array, ""]) -> Any:
        return self.inference.init()

    def act(
        self, memory: Any, state: State, previous_action: Int[Array, ""], draws: Float[Array, "2"]
    ) -> tuple[Any, Int[Array, ""], Any]:
        memory, _ = self.inference.update(memory, self.encode(state), previous_action)
        belief = self.inference.belief(memory)
        greedy = jnp.argmax(self.values(state, belief.sample(draws[0])))
        return memory, explore(greedy, self.num_actions, self.epsilon, draws[1]), belief


Memory = Any
"""What an `Experience` remembers of simulated episodes: a pytree of arrays."""


class Experience(eqx.Module):
    """Demonstrations and simulated episodes, as batches that `successor` learns from."""

    @abc.abstractmethod
    def init(self) -> Memory:
        """The memory of no episode."""

    @abc.abstractmethod
    def add(self, memory: Memory, episodes: Trajectories) -> Memory:
        """With more episodes, one a row; what their actor believed in the end is noted."""

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

    @abc.abstractmethod
    def expert_features(
        self,
        memory: Memory,
        network: SuccessorNetwork,
        reward_weights: Float[Array, " feature"],
        visited: State,
        key: PRNGKeyArray,
    ) -> tuple[Memory, Float[Array, "context visited action feature"]]:
        """Ψ where experts were, for the likelihood, and the memory of what was found out on the
        way."""


def featurise(
    simulator: Simulator, states: State
) -> tuple[Shaped[Array, "row ..."], Float[Array, "row action feature"]]:
    """Observations of states, drawn now, and their features ν(s, ·)."""
    actions = jnp.arange(simulator.num_actions)
    features = jax.vmap(jax.vmap(simulator.features, (None, 0)), (0, None))(states, actions)
    return jax.vmap(simulator.observe)(states), features.astype(jnp.float32)


@final
class NetworkValues(eqx.Module):
    """Ψ·ω as the network has it."""

    simulator: Simulator
    network: SuccessorNetwork
    reward_weights: Float[Array, " feature"]

    def __call__(self, state: State, context: Int[Array, ""]) -> Float[Array, " action"]:
        one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], state)
        # All contexts at once, since the encoder is shared; one of them is looked at.
        psi = self.network(*featurise(self.simulator, one))
        return psi[context, 0] @ self.reward_weights


@final
class ReplayedExperience(Experience):
    """The latest simulated episodes of any problem, and the demonstrations, sampled."""

    simulator: Simulator
    expert: Trajectories
    capacity: int = eqx.field(static=True)
    horizon: int = eqx.field(static=True)

    def init(self) -> Replay:
        # Of beliefs the last one alone is kept.
        row = row_like(self.simulator, self.horizon)._replace(
            first=None,
            contexts=None,
            mask=None,
            notes=jax.ShapeDtypeStruct((self.simulator.num_contexts,), jnp.float32),
        )
        return replay.init(row, self.capacity)

    def add(self, memory: Replay, episodes: Trajectories) -> Replay:
        kept = episodes._replace(
            first=None, contexts=None, mask=None, notes=episodes.notes.log_probs[:, -1]
        )
        return replay.add(memory, kept)

    def batch(
        self,
        memory: Replay,
        key: PRNGKeyArray,
        beliefs: Float[Array, "trajectory context"],
        num_episodes: int,
    ) -> Batch:
        key_expert, key_simulated = jax.random.split(key)
        num_trajectories, num_times = self.expert.actions.shape
        num_expert = min(num_episodes, num_trajectories)
        # With replacement, each trajectory as likely as any other.
        chosen = jax.random.randint(key_expert, (num_expert,), 0, num_trajectories)
        replayed = replay.sample(memory, key_simulated, num_episodes)
        # Demonstrations first, then the replay, [row] end to end: `offset` says where these begin.
        shown = jax.tree.map(
            lambda own, simulated: jnp.concatenate([own, simulated]),
            flatten(jax.tree.map(lambda leaf: jnp.asarray(leaf)[chosen], self.expert.states)),
            flatten(replayed.states),
        )
        observations, features = featurise(self.simulator, shown)
        actions, mask = (
            jnp.asarray(part)[chosen] for part in (self.expert.actions, self.expert.mask)
        )
        own = _steps(actions, beliefs[chosen], mask, offset=0)
        simulated = _steps(
            replayed.actions,
            jnp.exp(replayed.notes),
            jnp.ones(replayed.actions.shape, bool),
            offset=num_expert * num_times,
        )
        return Batch(observations, features, _followed(own, mask), simulated)

    def expert_features(
        self,
        memory: Memory,
        network: SuccessorNetwork,
        reward_weights: Float[Array, " feature"],
        visited: State,
        key: PRNGKeyArray,
    ) -> tuple[Memory, Float[Array, "context visited action feature"]]:
        return memory, network(*featurise(self.simulator, visited))

    def action_values(
        self, network: SuccessorNetwork, reward_weights: Float[Array, " feature"]
    ) -> ActionValues:
        return NetworkValues(self.simulator, network, reward_weights)


def _steps(
    actions: Int[Array, "episode time"],
    beliefs: Float[Array, "episode context"],
    mask: Bool[Array, "episode time"],
    *,
    offset: int,
) -> Steps:
    """The steps of episodes whose states stand end to end in a batch, from `offset` on."""
    count, num_times = actions.shape
    rows = offset + jnp.arange(count)[:, None] * num_times + jnp.arange(num_times - 1)
    # A step counts if what it leads to is not padding.
    weights = beliefs.T[:, :, None] * mask[:, 1:]
    return Steps(
        rows.ravel(), actions[:, :-1].ravel(), rows.ravel() + 1, weights.reshape(len(weights), -1)
    )


def _followed(steps: Steps, mask: Bool[Array, "episode time"]) -> Steps:
    """Only the steps that another action follows, with that action: SARSA's, on the expert."""
    count, num_times = mask.shape
    actions = steps.actions.reshape(count, num_times - 1)
    # The last column is only there to keep the shape: its weight is 0.
    next_actions = jnp.concatenate([actions[:, 1:], actions[:, :1]], axis=1)
    followed = jnp.concatenate([mask[:, 2:], jnp.zeros((count, 1), bool)], axis=1)
    return Steps(
        steps.rows,
        steps.actions,
        steps.next_rows,
        steps.weights * followed.ravel(),
        next_actions.ravel(),
    )
