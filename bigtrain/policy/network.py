"""The learned Bayes policy: values of actions from what is seen and what is believed (section 4.4).

    x_1 = E enc(o) + B code(b) + C m                       [width]     observation, belief, core
    x_{l+1} = W_l relu(x_l) + c_l                          [width]     `layers`
    x = (relu(x_L), 1) / √width                            [hidden]    hidden = width + 1
    Q(h, a) = (v + A_a − mean_a' A_a')·x                   [action]    dueling (Wang et al., 2016)
    m_t = GRU(m_{t−1}; relu(E enc(o_t)), log b_t, one-hot a_{t−1})     [core]

code(b) = (2b − 1, max(log b, −12) / 4), twice as long as the contexts. The policy is an argmax over
Q; a robot's values are ρ Q + c / (1 − γ), in units of the predictive reward (`bayes_rl.rewards`).

What bites:
- Beliefs must reach the network in log space too (design, point 11): thresholds of 3 and 4 net
  hearings differ by 0.9945 and 0.9990.
- 1 / √width keeps x of unit size, so one learning rate and one `ridge` serve every width; the
  constant entry lets the head's bias be solved for with it.
- Under a head that starts at 0 the first values are all 0, and the greedy action is the first one.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.belief import Belief, InferenceModel
from bigtrain.errors import ConfigError
from bigtrain.learning import Encoder, NetworkConfig, linear
from bigtrain.policy.base import Decision, Policy
from bigtrain.problem import NO_ACTION

Core = Literal["none", "gru"]
"""What remembers beside the belief."""

BeliefKind = Literal["auto", "exact", "learned"]


@dataclass(frozen=True)
class PolicyConfig:
    """What the policy is made of.

    `core` is what remembers beside the belief: nothing, which is enough where what is seen tells
    the state, or a GRU of `core_width` units. `belief` is the exact filter, which needs a finite
    problem whose observations tell its states apart, or learned; "auto" takes the exact one where
    it can, but not for pictures, so that a robot's camera is all that the policy needs.
    """

    network: NetworkConfig = NetworkConfig(width=256, depth=2)
    core: Core = "none"
    core_width: int = 64
    belief: BeliefKind = "auto"

    def __post_init__(self):
        if self.core not in ("none", "gru"):
            raise ConfigError(f"`core` must be 'none' or 'gru', got {self.core!r}.")
        if self.core_width < 1:
            raise ConfigError(f"`core_width` must be at least 1, got {self.core_width}.")
        if self.belief not in ("auto", "exact", "learned"):
            raise ConfigError(
                f"`belief` must be 'auto', 'exact' or 'learned', got {self.belief!r}."
            )


@final
class ValueNetwork(eqx.Module):
    """Q(history, ·) from an observation, a belief, and what a core remembers.

    A dueling head: the mean over actions, and what each adds to it. Beliefs enter as they encode
    themselves. The first layer is a sum of parts, `entry` for the observation, `belief_entry` and
    `core_entry`, so that in finite problems the part of the observation is computed once a state.
    """

    encoder: Encoder
    entry: eqx.nn.Linear
    belief_entry: eqx.nn.Linear
    core: eqx.nn.GRUCell | None
    core_entry: eqx.nn.Linear | None
    layers: tuple[eqx.nn.Linear, ...]
    value: Float[Array, " hidden"]
    advantages: Float[Array, "action hidden"]

    def __init__(
        self,
        examples: Shaped[Array, "example ..."],
        *,
        num_contexts: int,
        num_actions: int,
        config: PolicyConfig,
        key: PRNGKeyArray,
    ):
        keys = jax.random.split(key, 5)
        width = config.network.width
        self.encoder = Encoder(examples, config.network, key=keys[0])
        self.entry = linear(self.encoder.size, width, key=keys[1])
        # One bias is enough for a sum of parts.
        self.belief_entry = linear(2 * num_contexts, width, use_bias=False, key=keys[2])
        self.core = self.core_entry = None
        if config.core == "gru":
            key_core, key_entry = jax.random.split(keys[3])
            # Log-probabilities alone: a core adds up over steps by itself.
            inputs = width + num_contexts + num_actions
            self.core = eqx.nn.GRUCell(inputs, config.core_width, key=key_core)
            self.core_entry = linear(config.core_width, width, use_bias=False, key=key_entry)
        self.layers = tuple(
            linear(width, width, key=key_layer)
            for key_layer in jax.random.split(keys[4], config.network.depth - 1)
        )
        # At 0, about where normalised values lie.
        self.value = jnp.zeros(width + 1)
        self.advantages = jnp.zeros((num_actions, width + 1))

    def init(self) -> Float[Array, " core"]:
        """What the core remembers before the first observation; empty without a core."""
        return jnp.zeros(0 if self.core is None else self.core.hidden_size)

    def encode(self, observation: Shaped[Array, "..."]) -> Float[Array, " width"]:
        """The part of the first layer that depends on the observation alone."""
        return self.entry(self.encoder(observation))

    def advance(
        self,
        memory: Float[Array, " core"],
        code: Float[Array, " width"],
        belief: Belief,
        previous_action: Int[Array, ""],
    ) -> Float[Array, " core"]:
        """m_t after an observation with this code."""
        if self.core is None:
            return memory
        done = jax.nn.one_hot(previous_action, len(self.advantages))
        return self.core(_together(jax.nn.relu(code), belief.encode_briefly(), done), memory)

    def hidden(
        self,
        code: Float[Array, " width"],
        belief: Belief,
        memory: Float[Array, " core"],
    ) -> Float[Array, " hidden"]:
        """x, what the head sees, with a constant at the end."""
        values = code + self.belief_entry(_together(belief.encode()))
        if self.core_entry is not None:
            values = values + self.core_entry(memory)
        for layer in self.layers:
            values = layer(jax.nn.relu(values))
        return jnp.append(jax.nn.relu(values), 1) / jnp.sqrt(len(values))

    @property
    def head(self) -> Float[Array, "action hidden"]:
        """Value and advantages as one matrix W: row a is v + A_a − mean A."""
        return self.value + self.advantages - self.advantages.mean(0)

    def with_head(self, head: Float[Array, "action hidden"]) -> "ValueNetwork":
        """The same network with another head."""
        mean = head.mean(0)  # any split gives this head back; this one has advantages of mean 0
        return eqx.tree_at(lambda n: (n.value, n.advantages), self, (mean, head - mean))


def _together(*parts: Float[Array, " _"]) -> Float[Array, " whole"]:
    """One after another, and left so: XLA would split the product that follows into several small
    ones, which on a CPU take half as long again."""
    return jax.lax.optimization_barrier(jnp.concatenate(parts))


class EpisodeState(NamedTuple):
    """An episode as a learned policy knows it: the inference model's memory and the core's."""

    begun: Bool[Array, ""]
    tracked: Any
    memory: Float[Array, " core"]


@final
class NetworkPolicy(Policy):
    """The learned Bayes policy.

    The network's values are relative to `baseline` a step and in units of `scale`; the decision's
    are those of the predictive reward.
    """

    inference: InferenceModel
    network: ValueNetwork
    baseline: Float[Array, ""] | float
    scale: Float[Array, ""] | float
    gamma: float = eqx.field(static=True)

    def init(self) -> EpisodeState:
        return EpisodeState(jnp.asarray(False), self.inference.init(), self.network.init())

    def step(
        self,
        state: EpisodeState,
        observation: Shaped[Array, "..."],
        previous_action: Int[Array, ""],
    ) -> tuple[EpisodeState, Decision]:
        # Whatever a caller sends with the first observation of an episode does not count.
        previous = jnp.where(state.begun, previous_action, NO_ACTION)
        seen = self.inference.encode(observation)
        tracked, info = self.inference.update(state.tracked, seen, previous)
        belief = self.inference.belief(tracked)
        code = self.network.encode(observation)
        memory = self.network.advance(state.memory, code, belief, previous)
        values = self.network.head @ self.network.hidden(code, belief, memory)
        probs = jax.nn.one_hot(jnp.argmax(values), len(values))
        # After the argmax, which would tie in float32 where values are large.
        values = values * self.scale + self.baseline / (1 - self.gamma)
        after = EpisodeState(jnp.asarray(True), tracked, memory)
        return after, Decision(probs, values, belief, info.impossible)
