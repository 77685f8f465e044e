"""Policies: one step from (episode state, observation, previous action) to a decision.

A policy is a pytree and its step a pure function, so that what holds for one episode holds for a
batch, a file and a server. `previous_action` is ignored on the first step of an episode.
"""

import abc
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from bigtrain.belief import Belief, ExactFilter
from bigtrain.cmdp import TabularCMDP

NO_ACTION = -1
"""The previous action of an episode's first step."""


class Decision(NamedTuple):
    """What a policy makes of the present moment.

    `surprised` says that no context explains the observation; the belief is then the last one.
    """

    probs: Float[Array, " action"]
    values: Float[Array, " action"]
    belief: Belief
    surprised: Bool[Array, ""]


class Policy(eqx.Module):
    """How to act on what has been seen so far."""

    @abc.abstractmethod
    def init(self) -> Any:
        """The state of an episode before its first observation."""

    @abc.abstractmethod
    def step(
        self, state: Any, observation: Shaped[Array, "..."], previous_action: Int[Array, ""]
    ) -> tuple[Any, Decision]:
        """Takes in an observation and decides."""


class BeliefState(NamedTuple):
    """An episode as the exact filter knows it: where it stands, and p(θ | history)."""

    last: Int[Array, ""]
    log_belief: Float[Array, " context"]


_NOWHERE = -1


def _filter_observation(
    cmdp: TabularCMDP,
    state: BeliefState,
    observation: Shaped[Array, "..."],
    previous_action: Int[Array, ""],
) -> tuple[BeliefState, Bool[Array, ""]]:
    """Identifies the state seen and updates the belief; also whether nothing explains it."""
    seen, known = cmdp.identify(observation)
    begins = state.last == _NOWHERE
    before = Belief(state.log_belief)
    after, info = ExactFilter(cmdp).update(before, state.last, previous_action, seen)
    log_belief = jnp.where(begins | ~known, before.log_probs, after.log_probs)
    surprised = ~known | (~begins & info.impossible)
    return BeliefState(jnp.where(known, seen, state.last), log_belief), surprised


def _initial_belief_state(cmdp: TabularCMDP) -> BeliefState:
    return BeliefState(jnp.asarray(_NOWHERE, jnp.int32), ExactFilter(cmdp).init().log_probs)


@final
class MemorylessPolicy(Policy):
    """Acts on the present state alone, by a table. Keeps a belief all the same, for onlookers."""

    cmdp: TabularCMDP
    table: Float[np.ndarray | Array, "state action"]

    def init(self) -> BeliefState:
        return _initial_belief_state(self.cmdp)

    def step(
        self,
        state: BeliefState,
        observation: Shaped[Array, "..."],
        previous_action: Int[Array, ""],
    ) -> tuple[BeliefState, Decision]:
        state, surprised = _filter_observation(self.cmdp, state, observation, previous_action)
        probs = jnp.asarray(self.table)[state.last]
        return state, Decision(probs, probs, Belief(state.log_belief), surprised)


@final
class PrivilegedPolicy(eqx.Module):
    """Acts on the state and on the context, which only an expert sees."""

    cmdp: TabularCMDP
    table: Float[np.ndarray | Array, "context state action"]

    def in_context(self, context: Int[Array, ""]) -> MemorylessPolicy:
        """The policy of one who was told the context."""
        return MemorylessPolicy(self.cmdp, jnp.asarray(self.table)[context])


@final
class BayesPolicy(Policy):
    """Acts optimally on the belief, by looking one step ahead.

    `plans[s, m, θ]` is what following plan m from state s is worth in context θ, so the value of
    a belief is the best plan's mean. Rewards and plans are relative to `baseline` a step, which
    keeps their differences within reach of float32.
    """

    cmdp: TabularCMDP
    reward: Float[np.ndarray | Array, "state action"]
    plans: Float[np.ndarray | Array, "state plan context"]
    baseline: float

    def init(self) -> BeliefState:
        return _initial_belief_state(self.cmdp)

    def step(
        self,
        state: BeliefState,
        observation: Shaped[Array, "..."],
        previous_action: Int[Array, ""],
    ) -> tuple[BeliefState, Decision]:
        state, surprised = _filter_observation(self.cmdp, state, observation, previous_action)
        values = self.action_values(state.last, jnp.exp(state.log_belief))
        probs = jax.nn.one_hot(jnp.argmax(values), self.cmdp.num_actions)
        values = values + self.baseline / (1 - self.cmdp.gamma)
        return state, Decision(probs, values, Belief(state.log_belief), surprised)

    def action_values(
        self, state: Int[Array, ""], belief: Float[Array, " context"]
    ) -> Float[Array, " action"]:
        """Q(s, belief, ·), relative to the baseline."""
        joint = jnp.einsum("c,cak->akc", belief, jnp.asarray(self.cmdp.probabilities)[:, state])
        plans = jnp.asarray(self.plans)[jnp.asarray(self.cmdp.successors)[state]]
        onward = jnp.einsum("akc,akmc->akm", joint, plans).max(-1).sum(-1)
        return jnp.asarray(self.reward)[state] + self.cmdp.gamma * onward
