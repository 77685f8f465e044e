"""Policies of finite problems: tables, experts, and the exact Bayes-optimal policy."""

from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from bigtrain.belief import BeliefState, Categorical
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.inference import FiniteInference
from bigtrain.policy import Decision, Policy
from bigtrain.problem import Actor, State, draw_index


@final
class MemorylessPolicy(Policy):
    """Acts on the present state alone, by a table π(a | s): it knows no values, and learns nothing
    of the context, so what it believes is the prior."""

    cmdp: TabularCMDP
    table: Float[np.ndarray | Array, "state action"]

    def init(self) -> tuple[()]:
        return ()

    def step(
        self, state: tuple[()], observation: Shaped[Array, "..."], previous_action: Int[Array, ""]
    ) -> tuple[tuple[()], Decision]:
        seen, known = self.cmdp.identify(observation)
        probs = jnp.asarray(self.table)[seen]
        belief = Categorical(jnp.log(jnp.asarray(self.cmdp.context_prior)))
        return (), Decision(probs, jnp.full(probs.shape, jnp.nan), belief, ~known)


@final
class PrivilegedPolicy(Actor):
    """Acts on the state and on the context, by π(a | s, θ), which only an expert can."""

    num_draws: ClassVar[int] = 1
    cmdp: TabularCMDP
    table: Float[np.ndarray | Array, "context state action"]

    def in_context(self, context: Int[Array, ""]) -> MemorylessPolicy:
        """The policy of an expert in one context, as one that looks at the state alone."""
        return MemorylessPolicy(self.cmdp, jnp.asarray(self.table)[context])

    def init(self, env: Int[Array, ""], context: Int[Array, ""]) -> Int[Array, ""]:
        return context

    def act(
        self,
        memory: Int[Array, ""],
        state: State,
        previous_action: Int[Array, ""],
        draws: Float[Array, "1"],
    ) -> tuple[Int[Array, ""], Int[Array, ""], Any]:
        return memory, draw_index(jnp.asarray(self.table)[memory, state], draws[0]), None


@final
class BayesPolicy(Policy):
    """Acts optimally on the belief, by looking one step ahead (section 4.4).

    `plans[s, m, θ]` are the α-vectors of POMDPs: the value of following plan m from state s in
    context θ, so that V(s, b) = max_m Σ_θ b(θ) α_m(s, θ) and

        Q(s, b, a) = r(s, a) + γ Σ_s' max_m Σ_θ b(θ) p(s' | s, a, θ) α_m(s', θ).

    b(θ) p(s' | s, a, θ) is b' times p(s' | s, b, a): in this product the normaliser of Bayes' rule
    cancels, and with it the division by 0 where s' is impossible.

    Rewards and plans are relative to `baseline` a step, which keeps their differences within reach
    of float32.
    """

    cmdp: TabularCMDP
    reward: Float[np.ndarray | Array, "state action"]
    plans: Float[np.ndarray | Array, "state plan context"]
    baseline: float

    def init(self) -> BeliefState:
        return FiniteInference(self.cmdp).init()

    def step(
        self,
        state: BeliefState,
        observation: Shaped[Array, "..."],
        previous_action: Int[Array, ""],
    ) -> tuple[BeliefState, Decision]:
        inference = FiniteInference(self.cmdp)
        # Where nothing explains an observation the belief stays, and `surprised` says so.
        state, info = inference.update(state, inference.encode(observation), previous_action)
        belief = inference.belief(state)
        values = self.action_values(state.last, belief.probs)
        probs = jax.nn.one_hot(jnp.argmax(values), self.cmdp.num_actions)
        # After the argmax, which would tie in float32 where values are large.
        values = values + self.baseline / (1 - self.cmdp.gamma)
        return state, Decision(probs, values, belief, info.impossible)

    def action_values(
        self, state: Int[Array, ""], belief: Float[Array, " context"]
    ) -> Float[Array, " action"]:
        """Q(s, belief, ·), relative to the baseline."""
        # [action, successor, context], then the α-vectors [action, successor, plan, context].
        joint = jnp.einsum("c,cak->akc", belief, jnp.asarray(self.cmdp.probabilities)[:, state])
        plans = jnp.asarray(self.plans)[jnp.asarray(self.cmdp.successors)[state]]
        expected = jnp.einsum("akc,akmc->akm", joint, plans).max(-1).sum(-1)
        return jnp.asarray(self.reward)[state] + self.cmdp.gamma * expected
