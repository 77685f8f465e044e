"""Policies that are networks trained to copy: from what is seen, or from the whole history.

π(a | o_t) = softmax(head(e_t)),  e_t = relu(trunk(enc(o_t)))           without a core  [action]
π(a | h_t) = softmax(head(m_t)),  m_t = GRU(m_{t−1}; e_t, one-hot a_{t−1})      with one [action]
"""

from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.belief import Categorical
from bigtrain.learning import Encoder, NetworkConfig, Trunk
from bigtrain.policy import Decision, Policy
from bigtrain.problem import NO_ACTION


@final
class CloneNetwork(eqx.Module):
    """An observation to logits; with a core, what was seen and done before counts as well."""

    encoder: Encoder
    trunk: Trunk
    core: eqx.nn.GRUCell | None
    head: eqx.nn.Linear

    def __init__(
        self,
        examples: Shaped[Array, "example ..."],
        num_actions: int,
        config: NetworkConfig,
        core_width: int | None,
        *,
        key: PRNGKeyArray,
    ):
        key_encoder, key_trunk, key_core, key_head = jax.random.split(key, 4)
        self.encoder = Encoder(examples, config, key=key_encoder)
        self.trunk = Trunk((self.encoder.size, *[config.width] * config.depth), key=key_trunk)
        self.core = None
        if core_width is not None:
            self.core = eqx.nn.GRUCell(config.width + num_actions, core_width, key=key_core)
        self.head = eqx.nn.Linear(core_width or config.width, num_actions, key=key_head)

    def init(self) -> Float[Array, " core"]:
        """The memory before the first step; empty without a core."""
        return jnp.zeros(0 if self.core is None else self.core.hidden_size)

    def embed(self, observation: Shaped[Array, "..."]) -> Float[Array, " width"]:
        """What is seen, as the core or the head wants it."""
        return jax.nn.relu(self.trunk(self.encoder(observation)))

    def step(
        self,
        memory: Float[Array, " core"],
        embedding: Float[Array, " width"],
        previous_action: Int[Array, ""],
    ) -> tuple[Float[Array, " core"], Float[Array, " action"]]:
        """The memory after a step, and the logits. Without a core, only what is seen counts."""
        if self.core is None:
            return memory, self.head(embedding)
        done = jax.nn.one_hot(previous_action, len(self.head.weight))
        memory = self.core(jnp.append(embedding, done), memory)
        return memory, self.head(memory)


class CloneState(NamedTuple):
    """An episode as a cloned policy knows it."""

    begun: Bool[Array, ""]
    memory: Float[Array, " core"]


@final
class ClonedPolicy(Policy):
    """Does what a network takes experts to have done.

    It knows no values, and nothing of the context: what it believes is the prior.

    A recurrent one remembers every history differently, so `evaluate_exactly` has as many to walk
    as there are: keep its horizon short.
    """

    context_prior: Float[np.ndarray | Array, " context"]
    network: CloneNetwork

    def init(self) -> CloneState:
        return CloneState(jnp.asarray(False), self.network.init())

    def step(
        self, state: CloneState, observation: Shaped[Array, "..."], previous_action: Int[Array, ""]
    ) -> tuple[CloneState, Decision]:
        # Whatever a caller sends with the first observation of an episode does not count.
        previous = jnp.where(state.begun, previous_action, NO_ACTION)
        embedding = self.network.embed(observation)
        memory, logits = self.network.step(state.memory, embedding, previous)
        probs = jax.nn.softmax(logits)
        belief = Categorical(jnp.log(jnp.asarray(self.context_prior)))
        decision = Decision(probs, jnp.full(probs.shape, jnp.nan), belief, jnp.asarray(False))
        return CloneState(jnp.asarray(True), memory), decision
