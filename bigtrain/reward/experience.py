"""Experience for phase 1: demonstrations and simulated episodes, as batches to learn Ψ from.

Whole episodes are kept, since which context they were in can only be told from all of their steps.
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
"""What each action is worth in a state and a context: a pytree that can be called."""


@final
class SampledContextActor(Actor):
    """ε-greedy for a context that is drawn from the present belief (Algorithm 1)."""

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

    def expert_features(
        self,
        simulator: Simulator,
        network: SuccessorNetwork,
        reward_weights: Float[Array, " feature"],
        visited: State,
    ) -> Float[Array, "context visited action feature"]:
        """Ψ where experts were, for the likelihood: the network's own, if nothing better is."""
        return network(*featurise(simulator, visited))


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
        num_trajectories, num_moments = self.expert.actions.shape
        num_expert = min(num_episodes, num_trajectories)
        chosen = jax.random.randint(key_expert, (num_expert,), 0, num_trajectories)
        replayed = replay.sample(memory, key_simulated, num_episodes)
        shown = jax.tree.map(
            lambda own, met: jnp.concatenate([own, met]),
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
            offset=num_expert * num_moments,
        )
        return Batch(observations, features, _followed(own, mask), simulated)

    def action_values(
        self, network: SuccessorNetwork, reward_weights: Float[Array, " feature"]
    ) -> ActionValues:
        return NetworkValues(self.simulator, network, reward_weights)


def _steps(
    actions: Int[Array, "episode moment"],
    beliefs: Float[Array, "episode context"],
    mask: Bool[Array, "episode moment"],
    *,
    offset: int,
) -> Steps:
    """The steps of episodes whose moments stand end to end from `offset` on."""
    count, num_moments = actions.shape
    rows = offset + jnp.arange(count)[:, None] * num_moments + jnp.arange(num_moments - 1)
    weights = beliefs.T[:, :, None] * mask[:, 1:]
    return Steps(
        rows.ravel(), actions[:, :-1].ravel(), rows.ravel() + 1, weights.reshape(len(weights), -1)
    )


def _followed(steps: Steps, mask: Bool[Array, "episode moment"]) -> Steps:
    """Only the steps that another action follows, with that action: SARSA's, on the expert."""
    count, num_moments = mask.shape
    actions = steps.actions.reshape(count, num_moments - 1)
    next_actions = jnp.concatenate([actions[:, 1:], actions[:, :1]], axis=1)
    followed = jnp.concatenate([mask[:, 2:], jnp.zeros((count, 1), bool)], axis=1)
    return Steps(
        steps.rows,
        steps.actions,
        steps.next_rows,
        steps.weights * followed.ravel(),
        next_actions.ravel(),
    )
