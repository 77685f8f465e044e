"""Policies of finite problems: tables, experts, and the exact Bayes-optimal policy."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.tracker import BeliefState, FilterTracker
from bigtrain.policy.base import Decision, Policy


@final
class MemorylessPolicy(Policy):
    """Acts on the present state alone, by a table. Keeps a belief all the same, for onlookers."""

    cmdp: TabularCMDP
    table: Float[np.ndarray | Array, "state action"]

    def init(self) -> BeliefState:
        return FilterTracker(self.cmdp).init()

    def step(
        self,
        state: BeliefState,
        observation: Shaped[Array, "..."],
        previous_action: Int[Array, ""],
    ) -> tuple[BeliefState, Decision]:
        tracker = FilterTracker(self.cmdp)
        state, belief, surprised = tracker.update(state, observation, previous_action)
        probs = jnp.asarray(self.table)[state.last]
        return state, Decision(probs, probs, belief, surprised)


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
        return FilterTracker(self.cmdp).init()

    def step(
        self,
        state: BeliefState,
        observation: Shaped[Array, "..."],
        previous_action: Int[Array, ""],
    ) -> tuple[BeliefState, Decision]:
        tracker = FilterTracker(self.cmdp)
        state, belief, surprised = tracker.update(state, observation, previous_action)
        values = self.action_values(state.last, jnp.exp(state.log_belief))
        probs = jax.nn.one_hot(jnp.argmax(values), self.cmdp.num_actions)
        values = values + self.baseline / (1 - self.cmdp.gamma)
        return state, Decision(probs, values, belief, surprised)

    def action_values(
        self, state: Int[Array, ""], belief: Float[Array, " context"]
    ) -> Float[Array, " action"]:
        """Q(s, belief, ·), relative to the baseline."""
        joint = jnp.einsum("c,cak->akc", belief, jnp.asarray(self.cmdp.probabilities)[:, state])
        plans = jnp.asarray(self.plans)[jnp.asarray(self.cmdp.successors)[state]]
        onward = jnp.einsum("akc,akmc->akm", joint, plans).max(-1).sum(-1)
        return jnp.asarray(self.reward)[state] + self.cmdp.gamma * onward
