"""From observations to a belief over contexts, an episode at a time: the policy's half of it.

A `bigtrain.belief.Filter` sees states. Policies see observations, so they track.
"""

from typing import NamedTuple, final

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from bigtrain.belief import Belief, BeliefTracker, ExactFilter
from bigtrain.finite.cmdp import TabularCMDP


class BeliefState(NamedTuple):
    """An episode as the exact filter knows it: where it stands, and p(θ | history)."""

    last: Int[Array, ""]
    log_belief: Float[Array, " context"]


_NOWHERE = -1


@final
class FilterTracker(BeliefTracker):
    """The exact filter of a finite problem whose observations tell its states apart."""

    cmdp: TabularCMDP

    def init(self) -> BeliefState:
        first = ExactFilter(self.cmdp).init()
        return BeliefState(jnp.asarray(_NOWHERE, jnp.int32), first.log_probs)

    def update(
        self,
        memory: BeliefState,
        observation: Shaped[Array, "..."],
        previous_action: Int[Array, ""],
    ) -> tuple[BeliefState, Belief, Bool[Array, ""]]:
        seen, known = self.cmdp.identify(observation)
        begins = memory.last == _NOWHERE
        before = Belief(memory.log_belief)
        after, info = ExactFilter(self.cmdp).update(before, memory.last, previous_action, seen)
        log_belief = jnp.where(begins | ~known, before.log_probs, after.log_probs)
        surprised = ~known | (~begins & info.impossible)
        memory = BeliefState(jnp.where(known, seen, memory.last), log_belief)
        return memory, Belief(log_belief), surprised
