"""What is believed of the context: p(θ | h_t) (section 4.4), in log space.

    log_probs [*batch, context],  probs = exp(log_probs),  entropy = −Σ_θ p log p in nats
    encode = (2p − 1, max(log p, −12) / 4)                            [*batch, 2 · context]

What bites: near certainty probabilities all round to 1, while log-odds go on by the same amount
with every hearing. And log 0 = −∞ is a belief like any other to Bayes' rule, but not to a network.
"""

import abc
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bigtrain.problem import draw_index

LEAST_LOG_PROB = -12.0
"""Beliefs are told apart down to this log-probability, 6e-6; what is less likely counts as this."""


class Belief(eqx.Module):
    """A distribution over contexts."""

    @abc.abstractmethod
    def nodes(self) -> tuple[Any, Float[Array, "*batch node"]]:
        """Contexts to average over, and their weights, which sum to one."""

    @property
    @abc.abstractmethod
    def probs(self) -> Float[Array, "*batch node"]:
        """The weights of the nodes, for people."""

    @property
    @abc.abstractmethod
    def entropy(self) -> Float[Array, "*batch"]:
        """How unsure the belief is, in nats."""

    @abc.abstractmethod
    def encode(self) -> Float[Array, "*batch code"]:
        """What a network of values is given."""

    @abc.abstractmethod
    def encode_briefly(self) -> Float[Array, "*batch code"]:
        """What a recurrent core is given, which adds up over steps by itself."""

    @abc.abstractmethod
    def sample(self, draw: Float[Array, ""]) -> Any:
        """A context, by one uniform number."""


@final
class Categorical(Belief):
    """Over numbered contexts: log p(θ | history), normalised.

    Networks get probabilities, in which the values of fixed plans are linear, and log-probabilities
    clipped at `LEAST_LOG_PROB`, in which beliefs near certainty can be told apart: after 3 and 4
    net hearings of the tiger the probabilities are 0.9945 and 0.9990, and the choice between two
    thresholds hangs on the difference (design, point 11).
    """

    log_probs: Float[Array, "*batch context"]

    @property
    def probs(self) -> Float[Array, "*batch context"]:
        return jnp.exp(self.log_probs)

    @property
    def entropy(self) -> Float[Array, "*batch"]:
        # 0 · −∞ is 0 here.
        return -jnp.where(self.probs > 0, self.probs * self.log_probs, 0).sum(-1)

    def nodes(self) -> tuple[Int[Array, " context"], Float[Array, "*batch context"]]:
        return jnp.arange(self.log_probs.shape[-1]), self.probs

    def encode(self) -> Float[Array, "*batch code"]:
        return jnp.concatenate([2 * self.probs - 1, self.encode_briefly()], axis=-1)

    def encode_briefly(self) -> Float[Array, "*batch context"]:
        return jnp.maximum(self.log_probs, LEAST_LOG_PROB) / 4  # from −3 to 0: of unit size

    def sample(self, draw: Float[Array, ""]) -> Int[Array, ""]:
        return draw_index(self.probs, draw)


def clip_log_belief(log_belief: Float[Array, "*batch context"]) -> Float[Array, "*batch context"]:
    """The belief, normalised, with nothing less likely than can be told apart."""
    # Twice, since clipping adds mass.
    clipped = jnp.maximum(jax.nn.log_softmax(log_belief), LEAST_LOG_PROB)
    return jax.nn.log_softmax(clipped)
