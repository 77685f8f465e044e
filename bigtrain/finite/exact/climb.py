"""Climbing to a maximum of the log posterior with Ψ recomputed: what all ways have in common.

ω* maximises log p(ω | demonstrations) with Ψ* the successor features of the plan optimal for ω
itself (Theorem 4.1). With Ψ fixed the log posterior is concave; its gradient is that with Ψ* moving
along as well, wherever the optimal plan is unique, since a small change of ω leaves the plan. So a
fixed point of

    ω_{i+1} = argmax_ω log p(ω | demonstrations; Ψ_i),        Ψ_{i+1} = Ψ* of ω_{i+1}

is a local maximum. Where plans tie at it there need be none: see `sparse_climb`.
"""

import abc
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import planning
from bigtrain.reward import ExpertData, IRLConfig, RewardPosterior

PLAIN_ROUNDS = 10
"""How many rounds follow the optimal plan wherever it jumps, before ties are seen to."""


class MAPResult(NamedTuple):
    """The Laplace posterior, and how well its maximum explains itself.

    `mismatch` is max |Q*(s, a, θ) − Ψ(s, a, θ)·ω*| / α over the states where experts were, with Q*
    the optimal action values for ω*, and Ψ what it was found with: the relative error that this
    makes in an expert's action probabilities.
    """

    posterior: RewardPosterior
    log_posterior: float
    mismatch: float
    num_rounds: int


class Rounds:
    """Counts the rounds of all climbs, tells of them, and knows when one is the last."""

    def __init__(self, tolerance: float, report: Callable[[int, float], None]):
        self._tolerance, self._report, self.count = tolerance, report, 0

    def settled(self, mismatch: float) -> bool:
        """Counts a round, and says whether it leaves a small enough mismatch."""
        self.count += 1  # over all climbs: restarts count as well
        self._report(self.count, mismatch)
        return mismatch <= self._tolerance


class Climber(abc.ABC):
    """Climbs to a maximum near where it is put."""

    def __init__(self, cmdp: TabularCMDP, data: ExpertData, config: IRLConfig, rounds: Rounds):
        self._cmdp, self._data, self._config, self._rounds = cmdp, data, config, rounds
        self._features = cmdp.feature_matrix()

    @abc.abstractmethod
    def climb(self, weights: Float[np.ndarray, " feature"], max_rounds: int) -> MAPResult | None:
        """The maximum, or None if it did not settle."""

    def _plan(self, weights: Float[np.ndarray, " feature"]) -> planning.Plan:
        shape = (self._cmdp.num_states, self._cmdp.num_actions)
        return planning.plan(self._cmdp, (self._features @ weights).reshape(shape))
