"""What comes out of the three phases, whichever way they were gone through."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from bigtrain.cmdp import TabularCMDP
from bigtrain.evaluate import Evaluation, Regret, Reward, evaluate, regret
from bigtrain.exact.bayes import BayesSolution
from bigtrain.exploration import PredictiveReward
from bigtrain.policy import Policy
from bigtrain.runs.events import Callback, Event

__all__ = ["Callback", "Event", "FitResult"]


@final
@dataclass(frozen=True, eq=False)
class FitResult:
    """The inferred reward, the policy for it, and how they came about.

    `certificate` bounds the Bayes-optimal value for that reward.
    """

    cmdp: TabularCMDP
    reward: PredictiveReward
    policy: Policy
    certificate: BayesSolution
    history: tuple[Event, ...]

    def evaluate(
        self,
        *,
        reward: Reward | None = None,
        episodes: int = 1_000,
        horizon: int = 100,
        seed: int | Sequence[int] = 0,
    ) -> Evaluation:
        """Plays the policy. The reward is the task's true one, or else the inferred one."""
        if reward is None and self.cmdp.task is None:
            reward = self.reward
        return evaluate(
            self.policy, self.cmdp, reward=reward, episodes=episodes, horizon=horizon, seed=seed
        )

    def regret(self, reward: PredictiveReward | None = None) -> Regret:
        """The policy's regret under the inferred reward, or under another."""
        exploration = self.reward.exploration
        explored = None
        if exploration is not None:
            explored = np.flatnonzero(exploration.mask(self.cmdp).any(-1)).tolist()
        return regret(
            self.policy,
            self.cmdp,
            reward=reward or self.reward,
            exploration_states=explored,
            optimal=self.certificate if reward is None else None,
        )
