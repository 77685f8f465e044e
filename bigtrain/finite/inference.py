"""The exact filter of finite problems: Bayes' rule on the numbers of states (section 4.4).

    log b_{t+1}(θ) = log b_t(θ) + log p(s_{t+1} | s_t, a_t, θ) − log p(s_{t+1} | h_t, a_t)
    log p(τ_i, θ)  = log p(θ) + Σ_j log p(s_{j+1} | s_j, a_j, θ)            [trajectory, context]

The likelihoods are one row of the table, [context, successor]. Demonstrations need the second
alone, a sum over steps in any order: in float64, since thousands of steps add up.

What bites: the first observation of an episode is no evidence, since p(s_0) does not depend on θ.
What no context explains leaves the belief as it was: 0 / 0 would stay NaN for ever.
"""

from collections.abc import Callable
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from bigtrain.belief import BeliefInfo, BeliefState, Categorical, InferenceModel, bayes_update
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.problem import NO_ACTION, Simulator, Trajectories

_NOWHERE = -1

Code = tuple[Int[Array, ""], Bool[Array, ""]]
"""The state that an observation shows, and whether there is one."""


@final
class FiniteInference(InferenceModel):
    """The exact filter, for what is seen as well as for states that are known."""

    cmdp: TabularCMDP

    def init(self) -> BeliefState:
        log_prior = jnp.log(jnp.asarray(self.cmdp.context_prior))
        return BeliefState(jnp.asarray(_NOWHERE, jnp.int32), log_prior)

    def encode(self, observation: Shaped[Array, "..."]) -> Code:
        return self.cmdp.identify(observation)

    def state_encoder(self, simulator: Simulator, num_uses: int) -> Callable[[Any], Any]:
        if isinstance(simulator, TabularCMDP):  # whose states need not be told from their looks
            return _known
        return super().state_encoder(simulator, num_uses)

    def update(
        self, memory: BeliefState, code: Code, previous_action: Int[Array, ""]
    ) -> tuple[BeliefState, BeliefInfo]:
        state, known = code
        # Where an episode begins the look-up reads the last row (−1), and `where` discards it.
        begins = (memory.last == _NOWHERE) | (previous_action == NO_ACTION)
        likelihood = self.cmdp.context_log_likelihood(memory.last, previous_action, state)
        updated, info = bayes_update(memory.log_belief, likelihood)
        log_belief = jnp.where(begins | ~known, memory.log_belief, updated)
        impossible = ~known | (~begins & info.impossible)
        log_evidence = jnp.where(begins, 0.0, info.log_evidence)
        after = BeliefState(jnp.where(known, state, memory.last), log_belief)
        return after, BeliefInfo(log_evidence, impossible)

    def belief(self, memory: BeliefState) -> Categorical:
        return Categorical(memory.log_belief)

    def infer_contexts(
        self, simulator: Simulator, trajectories: Trajectories
    ) -> Float[np.ndarray, "row context"]:
        """log p(θ) + Σ log p(s' | s, a, θ) in float64, all steps at once."""
        steps = np.asarray(trajectories.mask)[:, 1:]
        states, actions = np.asarray(trajectories.states), np.asarray(trajectories.actions)
        return trajectory_log_evidence(
            self.cmdp,
            states[:, :-1][steps],
            actions[:, :-1][steps],
            states[:, 1:][steps],
            np.nonzero(steps)[0],
            len(steps),
        )


def _known(state: Int[Array, ""]) -> Code:
    return state, jnp.asarray(True)


def trajectory_log_evidence(
    cmdp: TabularCMDP,
    states: Int[np.ndarray, " step"],
    actions: Int[np.ndarray, " step"],
    next_states: Int[np.ndarray, " step"],
    trajectories: Int[np.ndarray, " step"],
    num_trajectories: int,
) -> Float[np.ndarray, "trajectory context"]:
    """The same for steps in any order, each with the trajectory that it belongs to."""
    successors, probabilities = cmdp.transitions
    follows = successors[states, actions] == next_states[:, None]
    likelihood = np.where(follows, probabilities[:, states, actions], 0).sum(-1)
    with np.errstate(divide="ignore"):  # log 0 = −∞: impossible in that context
        result = np.tile(np.log(np.asarray(cmdp.context_prior)), (num_trajectories, 1))
        np.add.at(result, trajectories, np.log(likelihood).T)
    return result
