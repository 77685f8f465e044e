"""Episodes end to end in lanes, from which phase 3 learns.

A lane plays for a fixed number of steps. Where it reaches a state that leads to itself for ever, it
stays for one step, so that the value of being there is learned, and begins another episode: steps
that cannot matter are never computed.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bigtrain.belief import Filter
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.learning.devices import spread
from bigtrain.policy import ValueNetwork
from bigtrain.problem import CMDP, NO_ACTION, State


class Lanes(NamedTuple):
    """The moments of lanes: what is so, what is believed, and what is done.

    `previous` is the action before, `NO_ACTION` where an episode begins. The moment after an
    absorbing one belongs to the next episode. The last moment is there to look ahead to.
    """

    states: State
    log_beliefs: Float[Array, "*lane moment context"]
    actions: Int[Array, "*lane moment"]
    previous: Int[Array, "*lane moment"]
    absorbing: Bool[Array, "*lane moment"]
    contexts: Int[Array, "*lane moment"]


Look = Callable[[State], Float[Array, " width"]]
"""What a network makes of a state by its looks."""


def look(cmdp: CMDP, encode: Callable[[Array], Float[Array, " width"]], num_looks: int) -> Look:
    """`encode` of what a state looks like.

    Where a finite problem has fewer states than there will be looks, each is encoded once.
    """
    if isinstance(cmdp, TabularCMDP) and cmdp.num_states <= num_looks:
        table = jax.vmap(lambda state: encode(cmdp.observe(state)))(jnp.arange(cmdp.num_states))
        return lambda state: table[state]
    return lambda state: encode(cmdp.observe(state))


_MOST_STATES, _NUM_WALKS = 1_024, 64


def wander(cmdp: CMDP, key: PRNGKeyArray) -> State:
    """States such as will come: a finite problem's, or those met on random walks."""
    key_states, key_contexts, key_resets, key_steps = jax.random.split(key, 4)
    if isinstance(cmdp, TabularCMDP):
        states = jnp.arange(cmdp.num_states)
        if cmdp.num_states > _MOST_STATES:
            states = jax.random.choice(key_states, states, (_MOST_STATES,), replace=False)
        return states
    contexts = jax.vmap(cmdp.sample_context)(jax.random.split(key_contexts, _NUM_WALKS))
    firsts = jax.vmap(cmdp.reset)(jax.random.split(key_resets, _NUM_WALKS), contexts)

    def walk(states, key_step):
        key_actions, key_next = jax.random.split(key_step)
        actions = jax.random.randint(key_actions, (_NUM_WALKS,), 0, cmdp.num_actions)
        keys = jax.random.split(key_next, _NUM_WALKS)
        states = jax.vmap(cmdp.step)(keys, states, actions, contexts)
        return states, states

    keys = jax.random.split(key_steps, _MOST_STATES // _NUM_WALKS - 1)
    _, later = jax.lax.scan(walk, firsts, keys)
    met = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), firsts, later)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), met)


def roll_out(
    cmdp: CMDP,
    filter: Filter,
    network: ValueNetwork,
    key: PRNGKeyArray,
    *,
    num_lanes: int,
    horizon: int,
    epsilon: Float[Array, ""] | float,
) -> Lanes:
    """ε-greedy lanes; each episode in a context drawn for it.

    Lanes differ in how much they explore, evenly from not at all to twice `epsilon`: some go where
    the greedy policy leads and on from there, others beside it.
    """
    key_choices, key_draws = jax.random.split(key)
    shape = (horizon + 1, num_lanes)
    keys_contexts, keys_resets, keys_steps = jax.random.split(key_draws, (3, *shape))
    contexts = jax.vmap(jax.vmap(cmdp.sample_context))(keys_contexts)
    firsts = jax.vmap(jax.vmap(cmdp.reset))(keys_resets, contexts)
    choices = jax.random.uniform(key_choices, shape)  # few draws: they cost the most
    epsilons = jnp.minimum(epsilon * jnp.linspace(0, 2, num_lanes), 1)
    encode = look(cmdp, network.encode, shape[0] * num_lanes)
    unaware = filter.init()

    def advance(lane, inputs):
        state, belief, memory, previous, context = lane
        key_step, (choice, epsilon), fresh_context, first = inputs
        code = encode(state)
        before = jnp.where(previous == NO_ACTION, network.init(), memory)
        memory = network.advance(before, code, belief.log_probs, previous)
        values = network.head @ network.hidden(code, belief.log_probs, memory)
        anything = jnp.floor(choice / jnp.maximum(epsilon, 1e-9) * cmdp.num_actions)
        action = jnp.where(choice < epsilon, anything, jnp.argmax(values)).astype(jnp.int32)
        following = cmdp.step(key_step, state, action, context)
        after, _ = filter.update(belief, state, action, following)
        ended = cmdp.is_absorbing(state)
        moment = Lanes(state, belief.log_probs, action, previous, ended, context)

        def renew(new, old):
            return jax.tree.map(lambda a, b: jnp.where(ended, a, b), new, old)

        begun = renew(
            (first, unaware, jnp.asarray(NO_ACTION, jnp.int32), fresh_context),
            (following, after, action, context),
        )
        return (*begun[:2], memory, *begun[2:]), moment

    def one(first, context, inputs):
        lane = (first, unaware, network.init(), jnp.asarray(NO_ACTION, jnp.int32), context)
        return jax.lax.scan(advance, lane, inputs)[1]

    draws = jnp.stack([choices, jnp.broadcast_to(epsilons, shape)], axis=-1)
    first, context = spread(jax.tree.map(lambda leaf: leaf[-1], (firsts, contexts)))
    inputs = spread((keys_steps, draws, contexts, firsts), axis=1)
    return jax.vmap(one, (0, 0, 1))(first, context, inputs)
