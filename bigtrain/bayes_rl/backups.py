"""Looking a step ahead: targets for gradients, and the linear equations that a head must fulfil.

No episode ends. What a state that leads to itself for ever is worth is known: the best reward
there, for ever (design, point 1).
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bigtrain.bayes_rl.lanes import Lanes, look
from bigtrain.bayes_rl.rewards import Numbers
from bigtrain.finite.hyperstate_table import Ahead, Met, find
from bigtrain.policy import ValueNetwork
from bigtrain.problem import CMDP, NO_ACTION, State

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


def sampled_errors(
    learner: "Learner",
    network: ValueNetwork,
    target: ValueNetwork,
    numbers: Numbers,
    lanes: Lanes,
) -> Float[Array, "lane step"]:
    """Q(h, a) − r − γ Q'(h', argmax Q(h', ·)) of every step: double Q-learning."""
    gamma = learner.cmdp.gamma
    values = unroll(learner.cmdp, network, lanes) @ network.head.T
    lagged = unroll(learner.cmdp, target, lanes) @ target.head.T
    rewards = jax.vmap(jax.vmap(lambda state: learner.rewards(numbers, state)))(lanes.states)
    best = jnp.argmax(values, -1, keepdims=True)
    ahead = jnp.take_along_axis(lagged, best, -1)[..., 0]
    known = _forever(rewards, gamma)
    ahead = jnp.where(lanes.absorbing, known, ahead)
    ahead = jnp.where(lanes.absorbing[:, :-1], known[:, :-1], ahead[:, 1:])
    gained = jnp.take_along_axis(rewards, lanes.actions[..., None], -1)[:, :-1, 0]
    chosen = jnp.take_along_axis(values, lanes.actions[..., None], -1)[:, :-1, 0]
    return chosen - jax.lax.stop_gradient(gained + gamma * ahead)


def sweep(
    learner: "Learner", network: ValueNetwork, numbers: Numbers, met: Met, ahead: Ahead
) -> tuple[Met, Float[Array, "place action"]]:
    """Q of the hyperstates met in a finite problem, by sweeps over all of them at once.

    There is no noise in what follows. What has not been met is worth what the network makes of
    it, and no more than to one who is told the context.
    """
    cmdp = learner.cmdp
    assert numbers.informed is not None
    places = find(met, ahead)
    guessed = (hidden_of(cmdp, network, ahead.states, ahead.log_beliefs) @ network.head.T).max(-1)
    told = (jnp.exp(ahead.log_beliefs) * numbers.informed.T[ahead.states]).sum(-1)
    worth, ends = _worth_of_ends(learner, numbers, met.states, ahead.states)
    outside = jnp.where(ends, worth, jnp.where(places < 0, jnp.minimum(guessed, told), 0))
    rewards = jax.vmap(lambda state: learner.rewards(numbers, state))(met.states)
    gained = rewards + cmdp.gamma * (ahead.probs * outside).sum(-1)
    inside = cmdp.gamma * jnp.where(ends | (places < 0), 0, ahead.probs)

    def look_on(worth):
        return gained + (inside * worth[places]).sum(-1)

    worth = jax.lax.fori_loop(
        0, learner.config.num_sweeps, lambda _, worth: look_on(worth).max(-1), met.worth
    )
    return met._replace(worth=worth), look_on(worth)


def hidden_of(
    cmdp: CMDP,
    network: ValueNetwork,
    states: State,
    log_beliefs: Float[Array, "*place context"],
) -> Float[Array, "*place hidden"]:
    """What the head sees in hyperstates, without a core."""
    encode = look(cmdp, network.encode, states.size)

    def one(state, log_belief):
        return network.hidden(encode(state), log_belief, network.init())

    for _ in range(states.ndim):
        one = jax.vmap(one)
    return one(states, log_beliefs)


def _worth_of_ends(
    learner: "Learner", numbers: Numbers, states: State, next_states: State
) -> tuple[Float[Array, "moment action outcome"], Bool[Array, "moment action outcome"]]:
    """What is known of the worth of what follows, and where: where a state leads to itself."""
    cmdp = learner.cmdp
    each = jax.vmap(lambda state: _forever(learner.rewards(numbers, state), cmdp.gamma))
    ended = jax.vmap(cmdp.is_absorbing)(states)[:, None, None]
    ends = jax.vmap(jax.vmap(jax.vmap(cmdp.is_absorbing)))(next_states)
    worth = jnp.where(ended, each(states)[:, None, None], jax.vmap(jax.vmap(each))(next_states))
    return worth, ended | ends


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
    rewards = jax.vmap(lambda state: learner.rewards(numbers, state))(outcomes.states)
    worth, ends = _worth_of_ends(learner, numbers, outcomes.states, outcomes.next_states)
    gained = rewards + gamma * (outcomes.probs * jnp.where(ends, worth, 0)).sum(-1)
    onward = jnp.where(ends, 0, outcomes.probs)
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
