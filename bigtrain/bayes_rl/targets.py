"""Targets of values: what the network of Q(h, a) is taught (section 4.4).

Over hyperstates h = (s, b), with b(θ) = p(θ | h_t), the Bayes-adaptive MDP has the Bellman equation

    Q(h, a) = r̃(s, a) + γ E[max_a' Q(h', a')],                                             (a)

where s' ~ Σ_θ b(θ) p(s' | s, a, θ) and b' is b after Bayes' rule. r̃ is the predictive reward,
normalised (`rewards`). Where the dynamics are known, the expectation is swept (`finite.swept`). In
any other simulator the h_{t+1} that followed is a sample of it, and with a lagging copy Q' of the
network the error of double Q-learning (van Hasselt et al., 2016; the paper has DQN) is

    δ_t = Q(h_t, a_t) − [r̃(s_t, a_t) + γ Q'(h_{t+1}, argmax_a Q(h_{t+1}, a))].              (b)

Only the head W of Q(h, a) = W_a·x(h) is linear. With x and the greedy a' held, Σ_t x_t δ_t = 0 for
every action is a linear system in it, which the settling stage solves:

    Σ_{t: a_t = a} x_t (W_a·x_t − γ W_{a'_t}·x_{t+1}) = Σ_{t: a_t = a} x_t r̃_t.              (c)

What bites:
- No episode ends (design, point 1). An absorbing s has V(s) = max_a r̃(s, a) / (1 − γ), exactly, and
  that replaces Q' wherever s_t or s_{t+1} is one. A value of 0 would say that being done pays
  the average reward, and where exploring pays more than that, the agent would explore for ever.
- Episodes lie end to end: after an absorbing s_t, h_{t+1} belongs to another one.
- A row of T steps has T + 1 times: values are `[row, time, action]`, errors `[row, step]`.
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
    they settle, the trajectories are replayed, and the head is solved for in a second stage. Where
    it does not matter how often an action was tried, random ones come in mixes (`draw_mixes`).
    """

    bootstraps: ClassVar[bool]
    settles: ClassVar[bool]
    mixes_actions: ClassVar[bool] = False

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
    """max_a r̃(s, a) / (1 − γ): the value of a state where the best action repeats for ever."""
    return rewards.max(-1) / (1 - gamma)


def weigh_errors(errors: Float[Array, "row action"], advantage_weight: float) -> Float[Array, ""]:
    """The mean squared error, in which errors about how actions differ count w times.

    With e the errors of one row, mean_a e² = (mean_a e)² + var_a e; here the variance is
    multiplied by w = `advantage_weight`, so w = 1 is the plain mean. The choice of an action hangs
    on the differences alone, and they are small where a step matters little: for tiger-treasure
    0.8 where values are near 900.
    """
    return (errors.mean(-1) ** 2 + advantage_weight * errors.var(-1)).mean()


@final
class SampledTargets(ValueTargets):
    """r̃ + γ Q'(h', argmax Q(h', ·)) for the step that was made: double Q-learning, (b)."""

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
        """δ_t of (b), for every step."""
        values = unroll(self.simulator, network, trajectories) @ network.head.T
        lagged = unroll(self.simulator, lagging, trajectories) @ lagging.head.T
        rewards, absorbing = self._look_at(member, trajectories)
        # One network chooses and the other values, or the maximum of noisy values is too high.
        best = jnp.argmax(values, -1, keepdims=True)
        bootstrap = jnp.take_along_axis(lagged, best, -1)[..., 0]
        resting = value_of_resting(rewards, self.simulator.gamma)
        bootstrap = jnp.where(absorbing, resting, bootstrap)
        # The time after an absorbing state belongs to the next episode: the state's own value
        # stands in for what would have followed.
        bootstrap = jnp.where(absorbing[:, :-1], resting[:, :-1], bootstrap[:, 1:])
        actions = trajectories.actions[..., None]
        # Rewards belong to the state being left (design, point 9).
        reward = jnp.take_along_axis(rewards, actions, -1)[:, :-1, 0]
        chosen = jnp.take_along_axis(values, actions, -1)[:, :-1, 0]
        # A semi-gradient, also where somebody passes the network itself as `lagging`.
        return chosen - jax.lax.stop_gradient(reward + self.simulator.gamma * bootstrap)

    def equations(
        self, network: ValueNetwork, member: MemberParams, trajectories: Trajectories
    ) -> "Equations":
        """(c), which the head must fulfil for the policy that is greedy for the present one.

        Flat, W has the index a · H + i for the input i of H. Then `gram` is block diagonal with
        Σ_{t: a_t = a} x xᵀ; `cross` has the rows of `gram` minus γ x_t x_{t+1}ᵀ in the columns of
        a'_t; and `constant` is Σ x r̃, where a known value of what follows counts as reward.
        """
        gamma, num_actions = self.simulator.gamma, len(network.advantages)
        hidden = unroll(self.simulator, network, trajectories)
        rewards, absorbing = self._look_at(member, trajectories)
        resting = value_of_resting(rewards, gamma)
        inputs, next_inputs = (flatten(part) for part in (hidden[:, :-1], hidden[:, 1:]))
        # As in `td_errors`, after an absorbing state its own value, at one that state's.
        rests = flatten(absorbing[:, :-1] | absorbing[:, 1:])
        known = flatten(jnp.where(absorbing[:, :-1], resting[:, :-1], resting[:, 1:]))
        taken = jax.nn.one_hot(flatten(trajectories.actions[:, :-1]), num_actions)
        reward = (taken * flatten(rewards[:, :-1])).sum(-1) + gamma * jnp.where(rests, known, 0)
        greedy = jax.nn.one_hot(jnp.argmax(next_inputs @ network.head.T, -1), num_actions)
        discounts = jnp.where(rests, 0.0, gamma)[:, None] * greedy

        def of_action(action):
            weighted = inputs * taken[:, action, None]
            gram = weighted.T @ inputs
            # γ x_{t+1} in the block of a'_t, 0 in the others: [step, action · hidden].
            bootstrap = (discounts[..., None] * next_inputs[:, None]).reshape(len(next_inputs), -1)
            cross = -(weighted.T @ bootstrap).reshape(inputs.shape[1], num_actions, inputs.shape[1])
            return gram, cross.at[:, action].add(gram), weighted.T @ reward

        # One action after another: at once the weighted inputs would take A times the room.
        grams, crosses, constants = jax.lax.map(of_action, jnp.arange(num_actions))
        gram = jnp.einsum("ahk,ab->ahbk", grams, jnp.eye(num_actions))
        size = num_actions * inputs.shape[1]
        # Means, so that `ridge` and `proximity` mean the same whatever the batch.
        return Equations(
            gram.reshape(size, size) / len(inputs),
            crosses.reshape(size, size) / len(inputs),
            constants.reshape(size, 1) / len(inputs),
        )

    def _look_at(
        self, member: MemberParams, trajectories: Trajectories
    ) -> tuple[Float[Array, "row time action"], Bool[Array, "row time"]]:
        """r̃(s_t, ·), and whether s_t is absorbing."""
        rewards = jax.vmap(jax.vmap(lambda state: self.rewards(member.reward, state)))
        absorbing = jax.vmap(jax.vmap(self.simulator.is_absorbing))
        return rewards(trajectories.states), absorbing(trajectories.states)


class Equations(NamedTuple):
    """(c) as `cross` @ head = `constant`, and the Gram matrix of the head's inputs.

    The head is laid out flat, actions first: size = action · hidden.
    """

    gram: Float[Array, "size size"]
    cross: Float[Array, "size size"]
    constant: Float[Array, "size 1"]
