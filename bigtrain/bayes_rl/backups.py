"""Looking a step ahead: targets for gradients, and the linear equations that a head must fulfil.

No episode ends. What a state that leads to itself for ever is worth is known: the best reward
there, for ever (design, point 1).
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bigtrain.bayes_rl.lanes import Lanes, look
from bigtrain.bayes_rl.met import Ahead, Met
from bigtrain.bayes_rl.rewards import Numbers
from bigtrain.cmdp import CMDP, State
from bigtrain.policy import NO_ACTION, ValueNetwork

if TYPE_CHECKING:
    from bigtrain.bayes_rl.learner import Learner


def unroll(cmdp: CMDP, network: ValueNetwork, lanes: Lanes) -> Float[Array, "lane moment hidden"]:
    """What the head sees at every moment."""
    encode = look(cmdp, network.encode, lanes.actions.size)
    codes = jax.vmap(jax.vmap(encode))(lanes.states)
    memories = jnp.zeros((*lanes.actions.shape, 0))
    if network.core is not None:
        memories = jax.vmap(lambda *lane: _remember(network, *lane))(
            codes, lanes.log_beliefs, lanes.previous
        )
    return jax.vmap(jax.vmap(network.hidden))(codes, lanes.log_beliefs, memories)


def _remember(
    network: ValueNetwork,
    codes: Float[Array, "moment width"],
    log_beliefs: Float[Array, "moment context"],
    previous: Int[Array, " moment"],
) -> Float[Array, "moment core"]:
    def advance(memory, moment):
        before = jnp.where(moment[-1] == NO_ACTION, network.init(), memory)
        memory = network.advance(before, *moment)
        return memory, memory

    return jax.lax.scan(advance, network.init(), (codes, log_beliefs, previous))[1]


def _forever(rewards: Float[Array, "*place action"], gamma: float) -> Float[Array, "*place"]:
    """What the best action is worth where it can be repeated for ever."""
    return rewards.max(-1) / (1 - gamma)


def targets(
    learner: "Learner",
    numbers: Numbers,
    lanes: Lanes,
    values: Float[Array, "lane moment action"],
    lagged: Float[Array, "lane moment action"],
) -> Float[Array, "lane step"]:
    """r + γ Q'(h', argmax Q(h', ·)) of every step: double Q-learning."""
    gamma = learner.cmdp.gamma
    rewards = jax.vmap(jax.vmap(lambda state: learner.rewards(numbers, state)))(lanes.states)
    best = jnp.argmax(values, -1, keepdims=True)
    ahead = jnp.take_along_axis(lagged, best, -1)[..., 0]
    known = _forever(rewards, gamma)
    ahead = jnp.where(lanes.absorbing, known, ahead)
    ahead = jnp.where(lanes.absorbing[:, :-1], known[:, :-1], ahead[:, 1:])
    gained = jnp.take_along_axis(rewards, lanes.actions[..., None], -1)[:, :-1, 0]
    return gained + gamma * ahead


class Equations(NamedTuple):
    """What a head must fulfil: `cross` @ head = `constant`; and the Gram matrix of its inputs.

    The head is laid out flat, actions first.
    """

    gram: Float[Array, "size size"]
    cross: Float[Array, "size size"]
    constant: Float[Array, "size 1"]


class _Outcomes(NamedTuple):
    """Moments, and what may follow each by each action, with its probability.

    `weights` say how much the action counts at that moment.
    """

    states: State
    hidden: Float[Array, "moment hidden"]
    weights: Float[Array, "moment action"]
    next_states: State
    next_hidden: Float[Array, "moment action outcome hidden"]
    probs: Float[Array, "moment action outcome"]


def expected_equations(
    learner: "Learner", network: ValueNetwork, numbers: Numbers, met: Met, ahead: Ahead
) -> Equations:
    """The equations of a finite problem: all actions, and all that may follow."""
    cmdp = learner.cmdp
    encode = look(cmdp, network.encode, ahead.states.size)

    def hidden(state, log_belief):
        return network.hidden(encode(state), log_belief, network.init())

    weights = (met.times / (met.times + 1))[:, None]
    outcomes = _Outcomes(
        met.states,
        jax.vmap(hidden)(met.states, met.log_beliefs),
        jnp.broadcast_to(weights, (len(weights), cmdp.num_actions)),
        ahead.states,
        jax.vmap(jax.vmap(jax.vmap(hidden)))(ahead.states, ahead.log_beliefs),
        ahead.probs,
    )
    return _equations(learner, network, numbers, outcomes)


def sampled_equations(
    learner: "Learner", network: ValueNetwork, numbers: Numbers, lanes: Lanes
) -> Equations:
    """The equations of any problem: the actions taken, and what followed."""
    num_actions = learner.cmdp.num_actions
    hidden = unroll(learner.cmdp, network, lanes)
    taken = jax.nn.one_hot(_flat(lanes.actions[:, :-1]), num_actions)

    def alike(values):  # the same for every action: only the one taken counts
        followed = _flat(values[:, 1:])[:, None, None]
        return jnp.broadcast_to(followed, (len(taken), num_actions, 1, *followed.shape[3:]))

    outcomes = _Outcomes(
        jax.tree.map(lambda leaf: _flat(leaf[:, :-1]), lanes.states),
        _flat(hidden[:, :-1]),
        taken,
        jax.tree.map(alike, lanes.states),
        alike(hidden),
        jnp.ones((len(taken), num_actions, 1)),
    )
    return _equations(learner, network, numbers, outcomes)


def _equations(
    learner: "Learner", network: ValueNetwork, numbers: Numbers, outcomes: _Outcomes
) -> Equations:
    """Σ w x (x − γ E[x'])ᵀ and Σ w x E[r̃] over moments and actions, for the greedy policy."""
    cmdp = learner.cmdp
    gamma, num_actions, here = cmdp.gamma, cmdp.num_actions, outcomes.hidden
    size = here.shape[-1]
    each_reward = jax.vmap(lambda state: learner.rewards(numbers, state))
    rewards = each_reward(outcomes.states)
    ended = jax.vmap(cmdp.is_absorbing)(outcomes.states)[:, None, None]
    ends = jax.vmap(jax.vmap(jax.vmap(cmdp.is_absorbing)))(outcomes.next_states)
    known = _forever(jax.vmap(jax.vmap(each_reward))(outcomes.next_states), gamma)
    known = jnp.where(ended, _forever(rewards, gamma)[:, None, None], known)
    gained = rewards + gamma * (outcomes.probs * jnp.where(ended | ends, known, 0)).sum(-1)
    onward = jnp.where(ended | ends, 0, outcomes.probs)
    best = jax.nn.one_hot(jnp.argmax(outcomes.next_hidden @ network.head.T, -1), num_actions)

    def of_action(action):
        weighted = here * outcomes.weights[:, action, None]
        ahead = jnp.einsum(
            "nk,nkb,nkh->nbh", onward[:, action], best[:, action], outcomes.next_hidden[:, action]
        )
        gram = weighted.T @ here
        cross = -gamma * weighted.T @ ahead.reshape(len(ahead), -1)
        cross = cross.reshape(size, num_actions, size).at[:, action].add(gram)
        return gram, cross, weighted.T @ gained[:, action]

    grams, crosses, constants = jax.lax.map(of_action, jnp.arange(num_actions))
    total = outcomes.weights.sum()
    gram = jnp.einsum("ahk,ab->ahbk", grams, jnp.eye(num_actions))
    full = num_actions * size
    return Equations(
        gram.reshape(full, full) / total,
        crosses.reshape(full, full) / total,
        constants.reshape(full, 1) / total,
    )


def _flat(values: Array) -> Array:
    return values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])
