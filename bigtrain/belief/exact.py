"""Bayes' rule with known dynamics (section 4.4).

    log p(θ | h, a, s') = log p(θ | h) + log p(s' | s, a, θ) − log Σ_θ p(θ | h) p(s' | s, a, θ)

in log space, since the probability of a long history underflows. All are [context]; the last term,
`log_evidence`, is log p(s' | h, a), how likely the step was before it came. For s' that no context
explains it is −∞, and the belief stays: −∞ − (−∞) would be NaN for the rest of the episode.

In rows of trajectories the previous action says where an episode begins; s_0 is no evidence, since
p(s_0) does not depend on θ.
"""

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from bigtrain.belief.beliefs import Categorical
from bigtrain.belief.inference import BeliefInfo, InferenceModel
from bigtrain.problem import CMDP, NO_ACTION, State


def bayes_update(
    log_belief: Float[Array, " context"], log_likelihood: Float[Array, " context"]
) -> tuple[Float[Array, " context"], BeliefInfo]:
    """The belief after a step of this likelihood; as it was where no context explains the step."""
    joint = log_belief + log_likelihood
    log_evidence = jax.nn.logsumexp(joint)
    impossible = jnp.isneginf(log_evidence)
    after = jnp.where(impossible, log_belief, joint - log_evidence)
    return after, BeliefInfo(log_evidence, impossible)


class BeliefState(NamedTuple):
    """An episode as the exact filter knows it: where it stands, and p(θ | history)."""

    last: State
    log_belief: Float[Array, " context"]


@final
class ExactInference(InferenceModel):
    """The exact filter of a simulator written in JAX whose observations tell its states."""

    cmdp: CMDP

    def init(self) -> BeliefState:
        # Any state of the right shape: at an episode's first step nothing of it is used.
        nowhere = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.cmdp.state_like)
        return BeliefState(nowhere, jnp.log(jnp.asarray(self.cmdp.context_prior)))

    def encode(self, observation: Shaped[Array, "..."]) -> tuple[State, Bool[Array, ""]]:
        return self.cmdp.identify(observation)

    def update(
        self,
        memory: BeliefState,
        code: tuple[State, Bool[Array, ""]],
        previous_action: Int[Array, ""],
    ) -> tuple[BeliefState, BeliefInfo]:
        state, known = code
        begins = previous_action == NO_ACTION
        likelihood = self.cmdp.context_log_likelihood(memory.last, previous_action, state)
        updated, info = bayes_update(memory.log_belief, likelihood)
        log_belief = jnp.where(begins | ~known, memory.log_belief, updated)
        last = jax.tree.map(lambda new, old: jnp.where(known, new, old), state, memory.last)
        log_evidence = jnp.where(begins, 0.0, info.log_evidence)
        impossible = ~known | (~begins & info.impossible)
        return BeliefState(last, log_belief), BeliefInfo(log_evidence, impossible)

    def belief(self, memory: BeliefState) -> Categorical:
        return Categorical(memory.log_belief)
