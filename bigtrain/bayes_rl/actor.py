"""Who explores in phase 3: ε-greedy on Q(h, ·), and what the head of Q sees along trajectories.

    core_t = advance(core_{t−1}, o_t, b_t, a_{t−1})      what a GRU remembers, if there is one
    x_t    = hidden(o_t, b_t, core_t)                    what the head sees       [hidden]
    Q(h_t, a) = W_a·x_t                                                           [action]

Environment i of n explores with ε_i = min(1, 2 ε i / (n − 1)), which is ε on average (for ε ≤ ½):
the first follow the greedy policy to where it leads, the last leave it.

What bites: learning unrolls the same x_t from rows in which episodes lie end to end. The core must
begin anew where an episode does, and beliefs are taken from the actor's notes, not inferred again.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bigtrain.belief import Categorical, InferenceModel
from bigtrain.policy import ValueNetwork
from bigtrain.problem import NO_ACTION, Actor, Simulator, State, Trajectories, draw_index, explore


class ActorState(NamedTuple):
    """What the inference model and the network's core remember, and this environment's ε."""

    tracked: Any
    memory: Float[Array, " core"]
    epsilon: Float[Array, ""]
    mix: Float[Array, " action"] | None


@final
class ValueActor(Actor):
    """ε-greedy, with an ε for each environment: `encode` is the network's, of a state."""

    num_draws: ClassVar[int] = 1
    inference: InferenceModel
    identify: Callable[[State], Any]
    network: ValueNetwork
    encode: Callable[[State], Float[Array, " width"]]
    epsilons: Float[Array, " env"]
    mixes: Float[Array, "env action"] | None = None

    def init(self, env: Int[Array, ""], context: Int[Array, ""]) -> ActorState:
        mix = None if self.mixes is None else self.mixes[env]
        return ActorState(self.inference.init(), self.network.init(), self.epsilons[env], mix)

    def act(
        self,
        memory: ActorState,
        state: State,
        previous_action: Int[Array, ""],
        draws: Float[Array, "1"],
    ) -> tuple[ActorState, Int[Array, ""], Any]:
        network = self.network
        tracked, _ = self.inference.update(memory.tracked, self.identify(state), previous_action)
        belief, code = self.inference.belief(tracked), self.encode(state)
        core = network.advance(memory.memory, code, belief, previous_action)
        greedy = jnp.argmax(network.head @ network.hidden(code, belief, core))
        if memory.mix is None:
            action = explore(greedy, len(network.advantages), memory.epsilon, draws[0])
        else:
            anything = draw_index(memory.mix, draws[0] / jnp.maximum(memory.epsilon, 1e-9))
            action = jnp.where(draws[0] < memory.epsilon, anything, greedy).astype(jnp.int32)
        # The belief is the actor's note: learners read it from the trajectories.
        return memory._replace(tracked=tracked, memory=core), action, belief


def spread_epsilon(epsilon: Float[Array, ""] | float, num_envs: int) -> Float[Array, " env"]:
    """ε_i, from none to twice as much: some environments go where the greedy policy leads and on
    from there, others beside it. Hearings add up only where few actions are random."""
    return jnp.minimum(epsilon * jnp.linspace(0, 2, num_envs), 1)


def unroll(
    simulator: Simulator, network: ValueNetwork, trajectories: Trajectories
) -> Float[Array, "row time hidden"]:
    """x_t at every time of trajectories, with the beliefs noted there."""
    encode = simulator.encoder(network.encode, trajectories.actions.size)
    codes = jax.vmap(jax.vmap(encode))(trajectories.states)
    beliefs, previous = trajectories.notes, trajectories.previous_actions
    memories = jnp.zeros((*trajectories.actions.shape, 0))
    if network.core is not None:

        def row(*inputs):
            def advance(memory, step_inputs):
                # No previous action: another episode begins, and the core remembers nothing of
                # the one before it in the row.
                before = jnp.where(step_inputs[-1] == NO_ACTION, network.init(), memory)
                memory = network.advance(before, *step_inputs)
                return memory, memory

            return jax.lax.scan(advance, network.init(), inputs)[1]

        memories = jax.vmap(row)(codes, beliefs, previous)
    return jax.vmap(jax.vmap(network.hidden))(codes, beliefs, memories)


def hidden_of(
    simulator: Simulator,
    network: ValueNetwork,
    states: State,
    log_beliefs: Float[Array, "*batch context"],
) -> Float[Array, "*batch hidden"]:
    """x(s, b) of hyperstates, without a core: these have no history but the belief."""
    encode = simulator.encoder(network.encode, log_beliefs[..., 0].size)

    def one(state, log_belief):
        return network.hidden(encode(state), Categorical(log_belief), network.init())

    for _ in log_beliefs.shape[:-1]:
        one = jax.vmap(one)
    return one(states, log_beliefs)
