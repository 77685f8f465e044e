"""The hyperstates (s, b) of a finite problem that were met, each listed once.

The dynamics tell what may follow a hyperstate, so how often it was met says nothing more about it:
every one weighs alike, once it has been met a few times, as in phase 1. Sizes are fixed, so that
all of it compiles: rows that were met 0 times are free.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bigtrain.belief import LEAST_LOG_PROB
from bigtrain.devices import shard
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.problem import Trajectories

_RESOLUTION = 1e-3
"""Log-beliefs that round to the same multiples of this are one."""

_NO_STATE = -1


class HyperstateTable(NamedTuple):
    """Hyperstates, how often each was met, and its value as far as is known."""

    states: Int[Array, " row"]
    log_beliefs: Float[Array, "row context"]
    times: Float[Array, " row"]
    values: Float[Array, " row"]


def empty(num_rows: int, num_contexts: int) -> HyperstateTable:
    """Room for hyperstates."""
    return HyperstateTable(
        jnp.full(num_rows, _NO_STATE, jnp.int32),
        jnp.full((num_rows, num_contexts), -jnp.log(num_contexts), jnp.float32),
        jnp.zeros(num_rows),
        jnp.zeros(num_rows),
    )


def add(
    table: HyperstateTable,
    states: Int[Array, " more"],
    log_beliefs: Float[Array, "more context"],
    times: Float[Array, " more"],
    informed_values: Float[Array, "context state"],
) -> HyperstateTable:
    """With more of them. Where there are too many, the ones met most often stay.

    New ones begin at Σ_θ b(θ) V_θ(s), what an agent who is told the context would get: no belief
    is worth more, and value iteration from above never takes a guess for a find.
    """
    guessed = (jnp.exp(log_beliefs) * informed_values.T[states]).sum(-1)
    values = jnp.append(table.values, guessed)
    states = jnp.concatenate([table.states, states])
    log_beliefs = jnp.concatenate([table.log_beliefs, log_beliefs])
    times = jnp.concatenate([table.times, times])
    keys = _keys(states, log_beliefs)
    # The first of equals: those that were in the table keep what is known of them.
    _, first, group = jnp.unique(
        keys, axis=0, return_index=True, return_inverse=True, size=len(keys)
    )
    totals = jnp.zeros(len(keys)).at[group].add(times)
    totals, most = jax.lax.top_k(totals, len(table.times))
    kept = first[most]
    return HyperstateTable(states[kept], log_beliefs[kept], totals, values[kept])


def _keys(
    states: Int[Array, " row"], log_beliefs: Float[Array, "row context"]
) -> Int[Array, "row key"]:
    """Equal for hyperstates that are one."""
    rounded = jnp.round(jnp.maximum(log_beliefs, LEAST_LOG_PROB) / _RESOLUTION).astype(jnp.int32)
    return jnp.concatenate([states[:, None], rounded], axis=1)


def add_trajectories(
    table: HyperstateTable,
    trajectories: Trajectories,
    informed_values: Float[Array, "context state"],
) -> HyperstateTable:
    """With the hyperstates of trajectories, by what their actor believed."""
    log_beliefs = trajectories.notes.log_probs.reshape(-1, table.log_beliefs.shape[-1])
    times = jnp.ones(trajectories.states.size)
    return add(table, trajectories.states.ravel(), log_beliefs, times, informed_values)


def weigh(table: HyperstateTable) -> Float[Array, " row"]:
    """How much each counts: more if met often, but not in proportion."""
    return jnp.sqrt(table.times)


def sample(
    table: HyperstateTable, offset: Float[Array, ""] | float, count: int
) -> Int[Array, " chosen"]:
    """Some of their rows, drawn by weight: evenly, from a random `offset` between 0 and 1.

    So each comes as often as its weight says, give or take one; free rows, the last, never.
    """
    cumulative = jnp.cumsum(weigh(table))
    draws = (jnp.arange(count) + offset) / count * cumulative[-1]
    return shard(jnp.searchsorted(cumulative, draws))


class Successors(NamedTuple):
    """What may follow each hyperstate by each action, and its probability."""

    states: Int[Array, "row action outcome"]
    log_beliefs: Float[Array, "row action outcome context"]
    probs: Float[Array, "row action outcome"]


def successors_of(cmdp: TabularCMDP, table: HyperstateTable) -> Successors:
    """By the dynamics and Bayes' rule (section 4.4).

    p(s' | h, a) = Σ_θ b(θ) p(s' | s, a, θ), and b'(θ) ∝ b(θ) p(s' | s, a, θ).
    """
    states = jnp.asarray(cmdp.successors)[table.states]
    log_probs = jnp.log(jnp.moveaxis(jnp.asarray(cmdp.probabilities), 0, -1))[table.states]
    joint = table.log_beliefs[:, None, None] + log_probs
    log_evidence = jax.nn.logsumexp(joint, -1)
    possible = ~jnp.isneginf(log_evidence)[..., None]
    log_beliefs = joint - jnp.where(possible, log_evidence[..., None], 0)
    log_beliefs = jnp.where(possible, log_beliefs, table.log_beliefs[:, None, None])
    return Successors(states, log_beliefs, jnp.exp(log_evidence))


def find(table: HyperstateTable, successors: Successors) -> Int[Array, "row action outcome"]:
    """The rows of successors, -1 where they have not been met."""
    followers = _keys(
        successors.states.ravel(),
        successors.log_beliefs.reshape(-1, table.log_beliefs.shape[-1]),
    )
    keys = jnp.concatenate([_keys(table.states, table.log_beliefs), followers])
    _, group = jnp.unique(keys, axis=0, return_inverse=True, size=len(keys))
    count = len(table.times)
    rows = jnp.where(table.times > 0, jnp.arange(count), -1)
    row_of = jnp.full(len(keys), -1).at[group[:count]].max(rows)
    return row_of[group[count:]].reshape(successors.states.shape)


def add_successors(
    table: HyperstateTable, successors: Successors, informed_values: Float[Array, "context state"]
) -> HyperstateTable:
    """With those a step ahead, which count little: a value that was never learned is a guess."""
    times = (table.times > 0)[:, None, None] * successors.probs / 10
    log_beliefs = successors.log_beliefs.reshape(-1, table.log_beliefs.shape[-1])
    return add(table, successors.states.ravel(), log_beliefs, times.ravel(), informed_values)
