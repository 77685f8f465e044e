"""The hyperstates h = (s, b) of a finite problem that were visited, each listed once.

    states [row], log_beliefs [row, context], times n [row], values V [row]

What may follow a hyperstate is known, by the dynamics and Bayes' rule (section 4.4):

    p(s' | h, a) = Σ_θ b(θ) p(s' | s, a, θ)                          [row, action, outcome]
    b'(θ) = b(θ) p(s' | s, a, θ) / p(s' | h, a)                      [row, action, outcome, context]

so how often h was visited says nothing more about it, and updates draw rows by √n, not by n.

What bites:
- New rows begin at the informed value Σ_θ b(θ) V*_θ(s), which no policy exceeds: the maximum is
  inside the expectation. Value iteration from above corrects what is too high; what is too low
  and unvisited it would never try.
- Beliefs are floats, so two paths to one hyperstate end in different last bits. Rows are one where
  their log-beliefs round alike; without that the table fills with copies.
- Sizes are fixed, so that all of it compiles: rows visited 0 times are free, and come last.
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
"""Log-beliefs that round to the same multiples of this are one: far below the differences of
about 1.7 that one hearing makes, far above float32's rounding of a sum of them."""

_NO_STATE = -1


class HyperstateTable(NamedTuple):
    """Hyperstates, how often each was visited, and its value as far as is known."""

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
    """With more of them. Where there are too many, the ones visited most often stay.

    New ones begin at their informed value Σ_θ b(θ) V*_θ(s), an upper bound.
    """
    informed = (jnp.exp(log_beliefs) * informed_values.T[states]).sum(-1)
    values = jnp.append(table.values, informed)
    states = jnp.concatenate([table.states, states])
    log_beliefs = jnp.concatenate([table.log_beliefs, log_beliefs])
    times = jnp.concatenate([table.times, times])
    keys = _keys(states, log_beliefs)
    # `return_index` gives the first of equals, and the table's rows stand first: those that were in
    # it keep what is known of their values.
    _, first, group = jnp.unique(
        keys, axis=0, return_index=True, return_inverse=True, size=len(keys)
    )
    totals = jnp.zeros(len(keys)).at[group].add(times)
    # Free rows are all one group, of 0 visits, and so are the slots that `unique` fills up with:
    # both sort last.
    totals, most = jax.lax.top_k(totals, len(table.times))
    kept = first[most]
    return HyperstateTable(states[kept], log_beliefs[kept], totals, values[kept])


def _keys(
    states: Int[Array, " row"], log_beliefs: Float[Array, "row context"]
) -> Int[Array, "row key"]:
    """Rows of integers that are equal for hyperstates that are one."""
    # Clipped first: what no network can tell apart need not be kept apart, and −∞ has no integer.
    rounded = jnp.round(jnp.maximum(log_beliefs, LEAST_LOG_PROB) / _RESOLUTION).astype(jnp.int32)
    return jnp.concatenate([states[:, None], rounded], axis=1)


def add_trajectories(
    table: HyperstateTable,
    trajectories: Trajectories,
    informed_values: Float[Array, "context state"],
) -> HyperstateTable:
    """With the hyperstates of trajectories, by what their actor believed: [row, time] of each."""
    log_beliefs = trajectories.notes.log_probs.reshape(-1, table.log_beliefs.shape[-1])
    times = jnp.ones(trajectories.states.size)
    return add(table, trajectories.states.ravel(), log_beliefs, times, informed_values)


def weigh(table: HyperstateTable) -> Float[Array, " row"]:
    """√n: rare hyperstates near certainty decide between thresholds, and must not drown."""
    return jnp.sqrt(table.times)


def sample(
    table: HyperstateTable, offset: Float[Array, ""] | float, count: int
) -> Int[Array, " chosen"]:
    """Some of their rows, drawn by weight: systematic sampling, from an `offset` between 0 and 1.

    Draw i is the row at (i + offset) / count of the cumulative weight, so each comes as often as
    its weight says, give or take one; free rows, the last, never.
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
    """p(s' | h, a) and b', as above."""
    states = jnp.asarray(cmdp.successors)[table.states]
    log_probs = jnp.log(jnp.moveaxis(jnp.asarray(cmdp.probabilities), 0, -1))[table.states]
    # `probabilities` have the context first; here it comes last, beside that of beliefs.
    joint = table.log_beliefs[:, None, None] + log_probs
    log_evidence = jax.nn.logsumexp(joint, -1)
    # Unused outcomes have probability 0 in every context: −∞ − (−∞) would be NaN, and NaN times
    # their probability 0 is NaN too. They keep the old belief instead.
    possible = ~jnp.isneginf(log_evidence)[..., None]
    log_beliefs = joint - jnp.where(possible, log_evidence[..., None], 0)
    log_beliefs = jnp.where(possible, log_beliefs, table.log_beliefs[:, None, None])
    return Successors(states, log_beliefs, jnp.exp(log_evidence))


def find(table: HyperstateTable, successors: Successors) -> Int[Array, "row action outcome"]:
    """The rows of successors, -1 where they are not in the table: a join by equal keys."""
    followers = _keys(
        successors.states.ravel(),
        successors.log_beliefs.reshape(-1, table.log_beliefs.shape[-1]),
    )
    keys = jnp.concatenate([_keys(table.states, table.log_beliefs), followers])
    _, group = jnp.unique(keys, axis=0, return_inverse=True, size=len(keys))
    count = len(table.times)
    # Free rows hold no hyperstate, whatever stands in them: they are nobody's row.
    rows = jnp.where(table.times > 0, jnp.arange(count), -1)
    row_of = jnp.full(len(keys), -1).at[group[:count]].max(rows)
    return row_of[group[count:]].reshape(successors.states.shape)


def add_successors(
    table: HyperstateTable, successors: Successors, informed_values: Float[Array, "context state"]
) -> HyperstateTable:
    """With those one step further, a tenth of a visit each by their probability.

    They count little: the first to make way, and rarely drawn, since their values are bounds only.
    """
    times = (table.times > 0)[:, None, None] * successors.probs / 10
    log_beliefs = successors.log_beliefs.reshape(-1, table.log_beliefs.shape[-1])
    return add(table, successors.states.ravel(), log_beliefs, times.ravel(), informed_values)
