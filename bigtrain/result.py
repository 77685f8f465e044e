"""What comes out of the three phases, whichever way they were gone through."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, final

import numpy as np
from jaxtyping import Float

from bigtrain.evaluate import Evaluation, Regret, Reward, evaluate
from bigtrain.exploration import PredictiveReward
from bigtrain.phases import route
from bigtrain.policy import Policy
from bigtrain.problem import Simulator
from bigtrain.provenance import Provenance
from bigtrain.reward import SuccessorNetwork
from bigtrain.runs import Event

Problem = TypeVar("Problem", bound=Simulator)
Proof = TypeVar("Proof")


class Measured(NamedTuple):
    """What the policy was seen to do: `episodes` of `horizon` steps each, and its regret.

    Returns are by the task's true reward where the problem has one, otherwise by the inferred one.
    """

    evaluation: Evaluation
    episodes: int
    horizon: int
    regret: Regret | None


@final
@dataclass(frozen=True, eq=False)
class FitResult(Generic[Problem, Proof]):
    """The inferred reward, the policy for it, and how they came about.

    `certificate` bounds the Bayes-optimal value for that reward; there is one of finite problems.
    What an expert would do in each context is told by the network `successor` where Ψ was learned,
    and by the table `expert`, the Boltzmann policies of the exact Ψ, where it was computed.
    `temperature` is α in units of the rescaled reward.
    """

    cmdp: Problem
    reward: PredictiveReward
    policy: Policy
    certificate: Proof
    history: tuple[Event, ...]
    provenance: Provenance
    temperature: float
    successor: SuccessorNetwork | None = None
    expert: Float[np.ndarray, "context state action"] | None = None
    measured: Measured | None = None

    def with_measured(self, measured: Measured) -> "FitResult":
        """The same result, with what was measured."""
        return dataclasses.replace(self, measured=measured)

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
        """The policy's regret under the inferred reward, or under another; finite problems only."""
        known = self.certificate if reward is None else None
        return route(self.cmdp).regret(self.policy, reward or self.reward, known)

    def save(self, path: str | os.PathLike) -> None:
        """Writes a bundle: all that a server needs, in one file."""
        from bigtrain.bundle import save_bundle  # which knows this class

        save_bundle(self, path)
