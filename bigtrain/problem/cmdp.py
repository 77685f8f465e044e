"""Simulators written in JAX: contextual MDPs as pure functions of one episode.

A context θ is drawn once an episode and stays hidden from the agent; it changes the dynamics,
never the reward. Contexts are numbered: θ is an index into `context_prior`. No episode ends:
states that end a task lead to themselves for ever.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.errors import UnknownDynamicsError

NO_ACTION = -1
"""The previous action of an episode's first step."""

State = Any
"""What a simulator calls its state: any pytree. Finite problems use an index."""


class CMDP(eqx.Module):
    """A contextual MDP as pure functions of one episode.

    Batch them with `jax.vmap` and compile them with `eqx.filter_jit`.
    """

    context_prior: eqx.AbstractVar[Any]
    gamma: eqx.AbstractVar[float]

    @property
    @abc.abstractmethod
    def num_actions(self) -> int:
        """How many actions there are, numbered from 0."""

    @property
    def num_contexts(self) -> int:
        return len(self.context_prior)

    def sample_context(self, key: PRNGKeyArray) -> Int[Array, ""]:
        """Draws θ from the prior."""
        return jax.random.categorical(key, jnp.log(self.context_prior)).astype(jnp.int32)

    @abc.abstractmethod
    def reset(self, key: PRNGKeyArray, context: Int[Array, ""]) -> State:
        """Draws the first state of an episode."""

    @abc.abstractmethod
    def step(
        self, key: PRNGKeyArray, state: State, action: Int[Array, ""], context: Int[Array, ""]
    ) -> State:
        """Draws the state that follows."""

    @abc.abstractmethod
    def observe(self, state: State) -> Shaped[Array, "..."]:
        """What the agent sees of a state."""

    def identify(self, observation: Shaped[Array, "..."]) -> tuple[State, Bool[Array, ""]]:
        """The state that looks like `observation`, and whether there is one.

        As it stands an observation is the state itself; override it where `observe` is more.
        """
        return observation, jnp.asarray(True)

    @abc.abstractmethod
    def features(self, state: State, action: Int[Array, ""]) -> Float[Array, " feature"]:
        """ν(s, a): the reward is linear in these (Assumption 3.1)."""

    def is_absorbing(self, state: State) -> Bool[Array, ""]:
        """Whether a state leads to itself for ever, whatever is done and in every context.

        Learners spend no time in such states. As it stands there are none; override it where a
        task has an end.
        """
        return jnp.asarray(False)

    def transition_log_prob(
        self, state: State, action: Int[Array, ""], next_state: State, context: Int[Array, ""]
    ) -> Float[Array, ""]:
        """log p(s' | s, a, θ). Simulators that know it override this."""
        raise UnknownDynamicsError(
            f"`{type(self).__name__}` does not know the probability of a transition. Override "
            "`transition_log_prob`, or use a learned belief in place of the exact filter."
        )

    def context_log_likelihood(
        self, state: State, action: Int[Array, ""], next_state: State
    ) -> Float[Array, " context"]:
        """log p(s' | s, a, θ) for every θ."""
        contexts = jnp.arange(self.num_contexts)
        return jax.vmap(lambda c: self.transition_log_prob(state, action, next_state, c))(contexts)
