"""Climbing to a maximum of the log posterior with Ψ recomputed: what all ways have in common."""

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

    `mismatch` is the largest error of Ψ·ω* as optimal action values where experts were, in units
    of the temperature: the relative error that it makes in an expert's action probabilities.
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
        self.count += 1
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
