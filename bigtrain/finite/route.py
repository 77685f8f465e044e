"""The members that finite problems have at the seam: what tables make exact.

belief        Bayes' rule on the table                        `FiniteInference`
phase 1       counts in place of a replay                     `CountedExperience`
phase 3       value iteration over hyperstates, not samples   `SweptTargets`
judging       certified regret, not a return                  `RegretJudge`
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from bigtrain.arrays import ArrayLike
from bigtrain.bayes_rl import BayesRLConfig, Learner, MemberParams, RewardModel, ValuesStage
from bigtrain.belief import InferenceModel
from bigtrain.errors import ConfigError
from bigtrain.evaluate import Regret
from bigtrain.exploration import PredictiveReward
from bigtrain.finite.certificates import RegretJudge
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.endless import warn_of_endless
from bigtrain.finite.evaluation import regret
from bigtrain.finite.exact import BayesConfig, BayesSolution
from bigtrain.finite.experience import CountedExperience
from bigtrain.finite.inference import FiniteInference
from bigtrain.finite.swept import SweptTargets, prepare_tables
from bigtrain.learning import Stage
from bigtrain.phases import Measure, Route, route
from bigtrain.policy import Policy, PolicyConfig
from bigtrain.problem import Trajectories
from bigtrain.provenance import digest
from bigtrain.reward import Experience, ExpertData, InferenceConfig


@final
class FiniteRoute(Route):
    """Counted steps, swept values, certified regret, and the exact filter."""

    def __init__(self, cmdp: TabularCMDP):
        super().__init__(cmdp)
        self.cmdp = cmdp

    def exact_inference(self) -> InferenceModel:
        return FiniteInference(self.cmdp)

    def experience(
        self, expert: Trajectories, data: ExpertData, config: InferenceConfig
    ) -> Experience:
        return CountedExperience(self.cmdp, expert)

    def occurring_states(self, expert: Trajectories) -> None:
        return None

    def rewards(
        self,
        rewards: Sequence[PredictiveReward | ArrayLike],
        learning_rates: Sequence[float],
        baselines: Sequence[float] | None,
    ) -> tuple[RewardModel, MemberParams]:
        return prepare_tables(self.cmdp, rewards, learning_rates)

    def distils(self, inference: InferenceModel, config: PolicyConfig) -> bool:
        """Not where what is seen tells the state, but for pictures: a robot's camera should be all
        that its policy needs. A model that was given serves as it is."""
        if not isinstance(inference, FiniteInference):
            return False
        identified = self._tells_states_apart()
        if config.belief == "exact" and not identified:
            raise ConfigError(
                "`belief` can be 'exact' only where the problem is finite and what is seen tells "
                "its states apart. Let it be 'learned'."
            )
        if config.belief != "auto":
            return config.belief == "learned"
        return not identified or len(self.cmdp.observation.shape) >= 3

    def learner(
        self, inference: InferenceModel, rewards: RewardModel, config: BayesRLConfig
    ) -> tuple[Learner, tuple[Stage, ...]]:
        """Swept, unless it is the history that counts: with a core, or with another belief."""
        exact = isinstance(inference, FiniteInference) and _same(inference.cmdp, self.cmdp)
        if not (config.sweep and exact and config.model.core == "none"):
            return super().learner(inference, rewards, config)
        targets = SweptTargets(
            self.cmdp,
            config.num_hyperstates,
            config.num_sweeps,
            config.rollout.hyperstate_batch_size,
            config.advantage_weight,
        )
        distils = self.distils(inference, config.model)
        learner = Learner(self.cmdp, inference, rewards, targets, config, distils)
        return learner, (ValuesStage(learner),)

    def judge(
        self,
        learner: Learner,
        members: MemberParams,
        rewards: Sequence[PredictiveReward | ArrayLike],
        *,
        measure: Measure | None,
        certificate: BayesConfig | None,
        exploration_states: Sequence[int | str] | None,
        exploration_actions: Sequence[int | str] | None,
    ) -> RegretJudge:
        return RegretJudge(
            learner,
            members,
            measure,
            cmdp=self.cmdp,
            rewards=rewards,
            config=certificate or BayesConfig(),
            exploration_states=exploration_states,
            exploration_actions=exploration_actions,
        )

    def warn_of_endless(self, reward: PredictiveReward) -> None:
        warn_of_endless(reward)

    def regret(
        self, policy: Policy, reward: PredictiveReward, certificate: BayesSolution | None
    ) -> Regret:
        return regret(policy, self.cmdp, reward=reward, optimal=certificate)

    def _tells_states_apart(self) -> bool:
        seen = np.asarray(self.cmdp.observation_array()).reshape(self.cmdp.num_states, -1)
        return len(np.unique(seen, axis=0)) == self.cmdp.num_states


def _same(one: TabularCMDP, other: TabularCMDP) -> bool:
    """Whether sweeping one foresees the beliefs that the exact filter of the other has."""
    return one is other or digest(one) == digest(other)


@route.register
def _(cmdp: TabularCMDP) -> FiniteRoute:
    return FiniteRoute(cmdp)
