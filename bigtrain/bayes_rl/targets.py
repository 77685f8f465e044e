"""Targets of values: what the network of Q(h, a) is taught (section 4.4).

    Q(h, a) = r̃(s, a) + γ E[max_a' Q(h', a')]

over hyperstates h = (s, b). Where the dynamics are known, all that may follow is swept (see
`bigtrain.finite`); in any other simulator what did follow is a sample of it. No episode ends: a
state that leads to itself for ever is worth the best reward there, for ever (design, point 1).
"""

import abc
from typing import Any, ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bigtrain.bayes_rl.actor import unroll
from bigtrain.bayes_rl.rewards import MemberParams, RewardModel
from bigtrain.policy import ValueNetwork
from bigtrain.problem import Simulator, Trajectories, flatten


class ValueLoss(NamedTuple):
    """What is made small, and the mean squared error of values, for people."""

    loss: Float[Array, ""]
    squared_error: Float[Array, ""]


class ValueTargets(eqx.Module):
    """What values are regressed on. Memories and lessons are pytrees of arrays.

    Where targets bootstrap from the network itself, a lagging copy of it is kept for them. Where
    they settle, the trajectories are replayed, and the head is solved for in a second stage.
    """

    bootstraps: ClassVar[bool]
    settles: ClassVar[bool]

    @abc.abstractmethod
    def init(self) -> Any:
        """The memory of no experience."""

    @abc.abstractmethod
    def prepare(
        self,
        memory: Any,
        member: MemberParams,
        network: ValueNetwork,
        trajectories: Trajectories,
        key: PRNGKeyArray,
    ) -> tuple[Any, Any]:
        """The memory with fresh trajectories, and what the updates of one iteration learn from."""

    @abc.abstractmethod
    def loss(
        self,
        network: ValueNetwork,
        lagging: ValueNetwork,
        member: MemberParams,
        lesson: Any,
        replayed: Trajectories | None,
        draw: Float[Array, ""],
    ) -> ValueLoss:
        """The loss of one update; `draw` is a uniform number, for choosing what to learn from."""


def value_of_resting(
    rewards: Float[Array, "*batch action"], gamma: float
) -> Float[Array, "*batch"]:
    """max_a r̃(s, a) / (1 − γ): what a state is worth where the best action repeats for ever."""
    return rewards.max(-1) / (1 - gamma)


def weigh_errors(errors: Float[Array, "row action"], advantage_weight: float) -> Float[Array, ""]:
    """The mean squared error, in which errors about how actions differ count for more.

    The choice hangs on the differences, and they are small where a step matters little.
    """
    return (errors.mean(-1) ** 2 + advantage_weight * errors.var(-1)).mean()


@final
class SampledTargets(ValueTargets):
    """r̃ + γ Q'(h', argmax Q(h', ·)) for the step that was made: double Q-learning."""

    bootstraps: ClassVar[bool] = True
    settles: ClassVar[bool] = True
    simulator: Simulator
    rewards: RewardModel

    def init(self) -> tuple[()]:
        return ()

    def prepare(
        self,
        memory: tuple[()],
        member: MemberParams,
        network: ValueNetwork,
        trajectories: Trajectories,
        key: PRNGKeyArray,
    ) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def loss(
        self,
        network: ValueNetwork,
        lagging: ValueNetwork,
        member: MemberParams,
        lesson: tuple[()],
        replayed: Trajectories | None,
        draw: Float[Array, ""],
    ) -> ValueLoss:
        assert replayed is not None
        squared = (self.td_errors(network, lagging, member, replayed) ** 2).mean()
        return ValueLoss(squared, squared)

    def td_errors(
        self,
        network: ValueNetwork,
        lagging: ValueNetwork,
        member: MemberParams,
        trajectories: Trajectories,
    ) -> Float[Array, "row step"]:
        """Q(h, a) minus its target, for every step."""
        values = unroll(self.simulator, network, trajectories) @ network.head.T
        lagged = unroll(self.simulator, lagging, trajectories) @ lagging.head.T
        rewards, absorbing = self._look_at(member, trajectories)
        best = jnp.argmax(values, -1, keepdims=True)
        ahead = jnp.take_along_axis(lagged, best, -1)[..., 0]
        resting = value_of_resting(rewards, self.simulator.gamma)
        ahead = jnp.where(absorbing, resting, ahead)
        # The moment after an absorbing one belongs to the next episode.
        ahead = jnp.where(absorbing[:, :-1], resting[:, :-1], ahead[:, 1:])
        actions = trajectories.actions[..., None]
        gained = jnp.take_along_axis(rewards, actions, -1)[:, :-1, 0]
        chosen = jnp.take_along_axis(values, actions, -1)[:, :-1, 0]
        return chosen - jax.lax.stop_gradient(gained + self.simulator.gamma * ahead)

    def equations(
        self, network: ValueNetwork, member: MemberParams, trajectories: Trajectories
    ) -> "Equations":
        """What a head must fulfil for the greedy policy: Σ x (r̃ + γ x'·head[a'] − x·head[a]) = 0.

        With x what the head sees and a' its own choice, that is linear in the head:
        Σ x (x − γ x')ᵀ head = Σ x r̃, a block for each action.
        """
        gamma, num_actions = self.simulator.gamma, len(network.advantages)
        hidden = unroll(self.simulator, network, trajectories)
        rewards, absorbing = self._look_at(member, trajectories)
        resting = value_of_resting(rewards, gamma)
        here, ahead = (flatten(part) for part in (hidden[:, :-1], hidden[:, 1:]))
        rests = flatten(absorbing[:, :-1] | absorbing[:, 1:])
        known = flatten(jnp.where(absorbing[:, :-1], resting[:, :-1], resting[:, 1:]))
        taken = jax.nn.one_hot(flatten(trajectories.actions[:, :-1]), num_actions)
        gained = (taken * flatten(rewards[:, :-1])).sum(-1) + gamma * jnp.where(rests, known, 0)
        best = jax.nn.one_hot(jnp.argmax(ahead @ network.head.T, -1), num_actions)
        follows = jnp.where(rests, 0.0, gamma)[:, None] * best

        def of_action(action):
            weighted = here * taken[:, action, None]
            gram = weighted.T @ here
            onward = (follows[..., None] * ahead[:, None]).reshape(len(ahead), -1)
            cross = -(weighted.T @ onward).reshape(here.shape[1], num_actions, here.shape[1])
            return gram, cross.at[:, action].add(gram), weighted.T @ gained

        grams, crosses, constants = jax.lax.map(of_action, jnp.arange(num_actions))
        gram = jnp.einsum("ahk,ab->ahbk", grams, jnp.eye(num_actions))
        size = num_actions * here.shape[1]
        return Equations(
            gram.reshape(size, size) / len(here),
            crosses.reshape(size, size) / len(here),
            constants.reshape(size, 1) / len(here),
        )

    def _look_at(
        self, member: MemberParams, trajectories: Trajectories
    ) -> tuple[Float[Array, "row moment action"], Bool[Array, "row moment"]]:
        """Rewards of all actions, and where nothing changes any more."""
        rewards = jax.vmap(jax.vmap(lambda state: self.rewards(member.reward, state)))
        absorbing = jax.vmap(jax.vmap(self.simulator.is_absorbing))
        return rewards(trajectories.states), absorbing(trajectories.states)


class Equations(NamedTuple):
    """`cross` @ head = `constant`, and the Gram matrix of the head's inputs.

    The head is laid out flat, actions first.
    """

    gram: Float[Array, "size size"]
    cross: Float[Array, "size size"]
    constant: Float[Array, "size 1"]
