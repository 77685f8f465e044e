"""p(θ | history) as a network: for pictures, and for simulators that cannot be filtered exactly.

Bayes' rule adds the log-likelihood of each step to the log-belief. The network does the same with
a learned log-likelihood of what was seen before, what was done, and what is seen now, so that
evidence adds up over episodes of any length. Where what is seen does not tell the state, a
recurrent core remembers the rest.
"""

from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.arrays import ArrayLike
from bigtrain.belief.filter import Belief
from bigtrain.belief.tracker import BeliefTracker
from bigtrain.learning.networks import Encoder, NetworkConfig, Trunk
from bigtrain.problem import NO_ACTION

LEAST_LOG_PROB = -12.0
"""Beliefs are told apart down to this log-probability; what is less likely counts as this."""


class PosteriorState(NamedTuple):
    """What the next update needs: the last code, the core's memory, and the log-belief."""

    begun: Bool[Array, ""]
    code: Float[Array, " width"]
    memory: Float[Array, " core"]
    log_belief: Float[Array, " context"]


@final
class Posterior(BeliefTracker):
    """A learned log-likelihood of each step, added up."""

    encoder: Encoder
    entry: Trunk
    core: eqx.nn.GRUCell | None
    evidence: Trunk
    head: eqx.nn.Linear
    log_prior: Float[Array, " context"]

    def __init__(
        self,
        examples: Shaped[Array, "example ..."],
        *,
        context_prior: ArrayLike,
        num_actions: int,
        config: NetworkConfig,
        core_width: int | None,
        key: PRNGKeyArray,
    ):
        keys = jax.random.split(key, 5)
        width = config.width
        self.encoder = Encoder(examples, config, key=keys[0])
        self.entry = Trunk((self.encoder.size, width), key=keys[1])
        self.core = None
        if core_width is not None:
            self.core = eqx.nn.GRUCell(width + num_actions, core_width, key=keys[2])
        inputs = 2 * width + num_actions + (core_width or 0)
        self.evidence = Trunk((inputs, *[width] * config.depth), key=keys[3])
        prior = jnp.asarray(context_prior, jnp.float32)
        head = eqx.nn.Linear(width, len(prior), key=keys[4])
        self.head = eqx.tree_at(lambda h: h.weight, head, jnp.zeros_like(head.weight))
        self.log_prior = clip_log_belief(jnp.log(prior))

    def init(self) -> PosteriorState:
        width = self.entry.layers[-1].out_features
        memory = jnp.zeros(0 if self.core is None else self.core.hidden_size)
        return PosteriorState(jnp.asarray(False), jnp.zeros(int(width)), memory, self.log_prior)

    def update(
        self,
        memory: PosteriorState,
        observation: Shaped[Array, "..."],
        previous_action: Int[Array, ""],
    ) -> tuple[PosteriorState, Belief, Bool[Array, ""]]:
        after = self.advance(memory, self.encode(observation), previous_action)
        return after, Belief(after.log_belief), jnp.asarray(False)

    def encode(self, observation: Shaped[Array, "..."]) -> Float[Array, " width"]:
        """What is seen, as the rest of the network wants it."""
        return jax.nn.relu(self.entry(self.encoder(observation)))

    def advance(
        self,
        memory: PosteriorState,
        code: Float[Array, " width"],
        previous_action: Int[Array, ""],
    ) -> PosteriorState:
        """What is remembered after an observation with this code."""
        done = jax.nn.one_hot(previous_action, self._num_actions) * memory.begun
        remembered = self._remember(memory.memory, code, done)
        told = self._told(memory.code, code, done, remembered)
        log_belief = clip_log_belief(memory.log_belief + jnp.where(memory.begun, told, 0))
        return PosteriorState(jnp.asarray(True), code, remembered, log_belief)

    def unroll(
        self, codes: Float[Array, "moment width"], previous: Int[Array, " moment"]
    ) -> Float[Array, "moment context"]:
        """The log-beliefs of moments in a row; episodes begin where no action came before.

        The same as `advance` moment by moment, with all that can be done at once.
        """
        begins = previous == NO_ACTION
        done = jax.nn.one_hot(previous, self._num_actions)
        first = self.init()

        def remember(memory, moment):
            code, done, begins = moment
            memory = self._remember(jnp.where(begins, first.memory, memory), code, done)
            return memory, memory

        _, memories = jax.lax.scan(remember, first.memory, (codes, done, begins))
        before = jnp.roll(codes, 1, axis=0)
        return self.add_up(jax.vmap(self._told)(before, codes, done, memories), begins)

    def tell(
        self, before: Float[Array, " width"], code: Float[Array, " width"], action: Int[Array, ""]
    ) -> Float[Array, " context"]:
        """The learned log-likelihood of a step in every context, where there is no core."""
        return self._told(
            before, code, jax.nn.one_hot(action, self._num_actions), self.init().memory
        )

    def add_up(
        self, told: Float[Array, "moment context"], begins: Bool[Array, " moment"]
    ) -> Float[Array, "moment context"]:
        """The log-beliefs of moments in a row by what each step told."""

        def add(log_belief, moment):
            told, begins = moment
            log_belief = jnp.where(begins, self.log_prior, clip_log_belief(log_belief + told))
            return log_belief, log_belief

        return jax.lax.scan(add, self.log_prior, (told, begins))[1]

    def _remember(
        self,
        memory: Float[Array, " core"],
        code: Float[Array, " width"],
        done: Float[Array, " action"],
    ) -> Float[Array, " core"]:
        return memory if self.core is None else self.core(jnp.append(code, done), memory)

    def _told(
        self,
        before: Float[Array, " width"],
        code: Float[Array, " width"],
        done: Float[Array, " action"],
        memory: Float[Array, " core"],
    ) -> Float[Array, " context"]:
        """The learned log-likelihood of a step in every context."""
        inputs = jnp.concatenate([before, code, done, memory])
        return self.head(jax.nn.relu(self.evidence(inputs)))

    @property
    def _num_actions(self) -> int:
        width = int(self.entry.layers[-1].out_features)
        core = 0 if self.core is None else self.core.hidden_size
        return int(self.evidence.layers[0].in_features) - 2 * width - core


def clip_log_belief(log_belief: Float[Array, "*batch context"]) -> Float[Array, "*batch context"]:
    """The belief, normalised, with nothing less likely than can be told apart."""
    clipped = jnp.maximum(jax.nn.log_softmax(log_belief), LEAST_LOG_PROB)
    return jax.nn.log_softmax(clipped)
