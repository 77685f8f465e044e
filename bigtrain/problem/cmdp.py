"""Simulators written in JAX: contextual MDPs as pure functions of one episode.

A context θ is drawn once an episode and stays hidden from the agent; it changes the dynamics,
never the reward. Contexts are numbered: θ is an index into `context_prior`.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from bigtrain.devices import shard
from bigtrain.errors import DemonstrationError, UnknownDynamicsError
from bigtrain.problem.simulator import Simulator, Where
from bigtrain.problem.trajectories import NO_ACTION, Actor, State, Trajectories


class CMDP(Simulator):
    """A contextual MDP as pure functions of one episode, which take an action's number.

    Batch them with `jax.vmap` and compile them with `eqx.filter_jit`.
    """

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

    def transition_log_prob(
        self, state: State, action: Int[Array, ""], next_state: State, context: Int[Array, ""]
    ) -> Float[Array, ""]:
        """log p(s' | s, a, θ). Simulators that know it override this."""
        raise UnknownDynamicsError(
            f"`{type(self).__name__}` does not know the probability of a transition. Override "
            "`transition_log_prob`, or let the belief be learned."
        )

    def context_log_likelihood(
        self, state: State, action: Int[Array, ""], next_state: State
    ) -> Float[Array, " context"]:
        """log p(s' | s, a, θ) for every θ."""
        contexts = jnp.arange(self.num_contexts)
        return jax.vmap(lambda c: self.transition_log_prob(state, action, next_state, c))(contexts)

    @property
    def state_like(self) -> State:
        return jax.eval_shape(self.reset, jax.random.key(0), jnp.asarray(0))

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return jax.eval_shape(self.observe, self.state_like)

    @property
    def is_traceable(self) -> bool:
        return True

    @property
    def can_look(self) -> bool:
        return True

    def look(
        self, key: PRNGKeyArray, state: State, action: Int[Array, ""], context: Int[Array, ""]
    ) -> State:
        return self.step(key, state, action, context)

    @property
    def knows_likelihood(self) -> bool:
        state = self.state_like
        try:
            jax.eval_shape(self.context_log_likelihood, state, jnp.asarray(0), state)
        except UnknownDynamicsError:
            return False
        return True

    def read_states(self, observations: Shaped[np.ndarray, "row ..."], where: Where) -> State:
        seen, state = self.observation, self.state_like
        if observations.shape[1:] == seen.shape:
            told, _ = jax.eval_shape(self.identify, seen)
            if jax.tree.map(jnp.shape, told) != jax.tree.map(jnp.shape, state):
                raise DemonstrationError(
                    f"A state must be told from its observation, but "
                    f"`{type(self).__name__}.identify` gives {told} where states are {state}. "
                    "Override it."
                )
        return super().read_states(observations, where)

    def collect(
        self,
        actor: Actor,
        key: PRNGKeyArray,
        *,
        num_envs: int,
        horizon: int,
        restart: bool,
        contexts: Int[Array, " env"] | None = None,
        first_states: State | None = None,
    ) -> Trajectories:
        """As in every simulator; contexts and first states are drawn unless given."""
        key_contexts, key_resets, key_steps, key_draws = jax.random.split(key, 4)
        # All that restarts may need is drawn at once, a row for every moment: episodes begin again
        # at different moments in different rows, and few large draws cost less than many small.
        num_rows = horizon + 1 if restart else 1
        shape = (num_rows, num_envs)
        fresh_contexts = jax.vmap(jax.vmap(self.sample_context))(
            jax.random.split(key_contexts, shape)
        )
        if contexts is not None:
            fresh_contexts = jnp.broadcast_to(contexts, shape)
        fresh_states = jax.vmap(jax.vmap(self.reset))(
            jax.random.split(key_resets, shape), fresh_contexts
        )
        if first_states is not None:
            fresh_states = jax.tree.map(
                lambda drawn, given: jnp.broadcast_to(given, drawn.shape),
                fresh_states,
                first_states,
            )
        draws = jax.random.uniform(key_draws, (horizon + 1, num_envs, actor.num_draws))

        def advance(row, inputs):
            env, state, memory, previous, context = row
            key_step, draw, fresh = inputs
            memory, action, notes = actor.act(memory, state, previous, draw)
            following = self.step(key_step, state, action, context)
            moment = Trajectories(
                state, action, previous == NO_ACTION, context, jnp.asarray(True), notes
            )
            after = (following, memory, action, context)
            if fresh is not None:
                fresh_state, fresh_context = fresh
                begun = (fresh_state, actor.init(env, fresh_context), _NONE, fresh_context)
                ended = self.is_absorbing(state)
                after = jax.tree.map(lambda new, old: jnp.where(ended, new, old), begun, after)
            return (env, *after), moment

        def play(env, state, context, inputs):
            row = (env, state, actor.init(env, context), _NONE, context)
            return jax.lax.scan(advance, row, inputs)[1]

        envs, states, begins = shard(
            (jnp.arange(num_envs), *jax.tree.map(lambda x: x[-1], (fresh_states, fresh_contexts)))
        )
        keys = jax.random.split(key_steps, (horizon + 1, num_envs))
        fresh = (fresh_states, fresh_contexts) if restart else None
        return jax.vmap(play, (0, 0, 0, 1))(
            envs, states, begins, shard((keys, draws, fresh), axis=1)
        )


_NONE: Any = np.int32(NO_ACTION)
