"""The hyperstates that lanes have met, each listed once.

A finite problem's dynamics tell what may follow a hyperstate, so how often it was met says nothing
more about it: every one weighs alike, once it has been met a few times, as in phase 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bigtrain.bayes_rl.lanes import Lanes
from bigtrain.belief.amortised import LEAST_LOG_PROB
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.learning.devices import spread

_RESOLUTION = 1e-3
"""Log-beliefs that round to the same multiples of this are one."""


class Met(NamedTuple):
    """Hyperstates, how often each was met, and what it is worth as far as is known.

    A place that was met 0 times is free.
    """

    states: Int[Array, " place"]
    log_beliefs: Float[Array, "place context"]
    times: Float[Array, " place"]
    worth: Float[Array, " place"]


def nothing(num_places: int, num_contexts: int) -> Met:
    """Room for hyperstates."""
    return Met(
        jnp.full(num_places, -1, jnp.int32),  # like no state
        jnp.full((num_places, num_contexts), -jnp.log(num_contexts), jnp.float32),
        jnp.zeros(num_places),
        jnp.zeros(num_places),
    )


def add(
    met: Met,
    states: Int[Array, " more"],
    log_beliefs: Float[Array, "more context"],
    times: Float[Array, " more"],
    informed: Float[Array, "context state"],
) -> Met:
    """With more of them. Where there are too many, the ones met most often stay.

    Those that are new are worth what an agent who is told the context would get: at most that.
    """
    worth = jnp.append(met.worth, (jnp.exp(log_beliefs) * informed.T[states]).sum(-1))
    states = jnp.concatenate([met.states, states])
    log_beliefs = jnp.concatenate([met.log_beliefs, log_beliefs])
    times = jnp.concatenate([met.times, times])
    keys = _keys(states, log_beliefs)
    _, first, group = jnp.unique(
        keys, axis=0, return_index=True, return_inverse=True, size=len(keys)
    )
    totals = jnp.zeros(len(keys)).at[group].add(times)
    totals, most = jax.lax.top_k(totals, len(met.times))
    kept = first[most]
    return Met(states[kept], log_beliefs[kept], totals, worth[kept])


def _keys(
    states: Int[Array, " place"], log_beliefs: Float[Array, "place context"]
) -> Int[Array, "place key"]:
    """Equal for hyperstates that are one."""
    rounded = jnp.round(jnp.maximum(log_beliefs, LEAST_LOG_PROB) / _RESOLUTION).astype(jnp.int32)
    return jnp.concatenate([states[:, None], rounded], axis=1)


def add_lanes(met: Met, lanes: Lanes, informed: Float[Array, "context state"]) -> Met:
    """With those of lanes."""
    log_beliefs = lanes.log_beliefs.reshape(-1, met.log_beliefs.shape[-1])
    return add(met, lanes.states.ravel(), log_beliefs, jnp.ones(lanes.states.size), informed)


def weigh(met: Met) -> Float[Array, " place"]:
    """How much each counts: more if met often, but not in proportion."""
    return jnp.sqrt(met.times)


def sample(met: Met, offset: Float[Array, ""] | float, count: int) -> Int[Array, " chosen"]:
    """Some of their places, drawn by weight: evenly, from a random `offset` between 0 and 1.

    So each comes as often as its weight says, give or take one; free places, the last, never.
    """
    cumulative = jnp.cumsum(weigh(met))
    draws = (jnp.arange(count) + offset) / count * cumulative[-1]
    return spread(jnp.searchsorted(cumulative, draws))


class Ahead(NamedTuple):
    """What may follow each hyperstate by each action, and its probability."""

    states: Int[Array, "place action outcome"]
    log_beliefs: Float[Array, "place action outcome context"]
    probs: Float[Array, "place action outcome"]


def look_ahead(cmdp: TabularCMDP, met: Met) -> Ahead:
    """What may follow, by the dynamics and the belief (section 4.4)."""
    successors = jnp.asarray(cmdp.successors)[met.states]
    log_probs = jnp.log(jnp.moveaxis(jnp.asarray(cmdp.probabilities), 0, -1))[met.states]
    joint = met.log_beliefs[:, None, None] + log_probs
    log_evidence = jax.nn.logsumexp(joint, -1)
    possible = ~jnp.isneginf(log_evidence)[..., None]
    log_beliefs = joint - jnp.where(possible, log_evidence[..., None], 0)
    log_beliefs = jnp.where(possible, log_beliefs, met.log_beliefs[:, None, None])
    return Ahead(successors, log_beliefs, jnp.exp(log_evidence))


def find(met: Met, ahead: Ahead) -> Int[Array, "place action outcome"]:
    """The places of what may follow, -1 where it has not been met."""
    followers = _keys(
        ahead.states.ravel(), ahead.log_beliefs.reshape(-1, met.log_beliefs.shape[-1])
    )
    keys = jnp.concatenate([_keys(met.states, met.log_beliefs), followers])
    _, group = jnp.unique(keys, axis=0, return_inverse=True, size=len(keys))
    count = len(met.times)
    places = jnp.where(met.times > 0, jnp.arange(count), -1)
    place_of = jnp.full(len(keys), -1).at[group[:count]].max(places)
    return place_of[group[count:]].reshape(ahead.states.shape)


def add_ahead(met: Met, ahead: Ahead, informed: Float[Array, "context state"]) -> Met:
    """With those a step ahead, which count little: a value that was never learned is a guess."""
    weights = (met.times > 0)[:, None, None] * ahead.probs / 10
    log_beliefs = ahead.log_beliefs.reshape(-1, met.log_beliefs.shape[-1])
    return add(met, ahead.states.ravel(), log_beliefs, weights.ravel(), informed)
