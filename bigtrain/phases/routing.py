"""Which members take the places at the seam: the only choice by kind of problem.

`route(simulator)` is the general way, and good for any simulator. A kind of problem that knows more
registers its own: see `bigtrain.finite.route`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bigtrain.arrays import ArrayLike
from bigtrain.bayes_rl import (
    BayesRLConfig,
    Learner,
    LookAheadTargets,
    MemberParams,
    RewardModel,
    SampledTargets,
    SettlingStage,
    ValuesStage,
    look_ahead,
    normalise,
    prepare_linear,
)
from bigtrain.belief import ExactInference, InferenceModel
from bigtrain.errors import ConfigError
from bigtrain.evaluate import Regret
from bigtrain.exploration import PredictiveReward
from bigtrain.learning import Stage
from bigtrain.phases.judging import Measure, PolicyJudge, ReturnJudge
from bigtrain.policy import Policy, PolicyConfig
from bigtrain.problem import CMDP, Simulator, State, Trajectories
from bigtrain.reward import (
    Experience,
    ExpertData,
    FeaturesStage,
    InferenceConfig,
    PlannedExperience,
    PlannedSettlingStage,
    ReplayedExperience,
    plan_experience,
)
from bigtrain.reward import Learner as RewardLearner
from bigtrain.reward import SettlingStage as RewardSettlingStage


class Route:
    """The members for one simulator, as any has them."""

    def __init__(self, simulator: Simulator):
        self.simulator = simulator

    def exact_inference(self) -> InferenceModel | None:
        """Bayes' rule, where the likelihood is known; None where beliefs must be learned."""
        cmdp = self.simulator
        return ExactInference(cmdp) if isinstance(cmdp, CMDP) and cmdp.knows_likelihood else None

    def experience(
        self, expert: Trajectories, data: ExpertData, config: InferenceConfig
    ) -> Experience:
        """What phase 1 learns Ψ from; `data` are the same demonstrations, each state once."""
        settings = config.rollout
        if config.plans:
            self._check_looking("plans")
            return plan_experience(self.simulator, expert, data, settings.replay_size)
        return ReplayedExperience(self.simulator, expert, settings.replay_size, settings.horizon)

    def reward_stages(self, learner: RewardLearner) -> tuple[Stage, ...]:
        """Phase 1's stages."""
        if isinstance(learner.experience, PlannedExperience):
            return FeaturesStage(learner), PlannedSettlingStage(learner)
        return FeaturesStage(learner), RewardSettlingStage(learner)

    def occurring_states(self, expert: Trajectories) -> State | None:
        """States known to occur: where experts were, and where random walks lead. None where the
        problem knows itself which can."""
        walked = self.simulator.sample_states(jax.random.key(0))
        mask = np.asarray(expert.mask)
        return jax.tree.map(
            lambda own, met: jnp.concatenate([jnp.asarray(np.asarray(own)[mask]), met]),
            expert.states,
            walked,
        )

    def rewards(
        self,
        rewards: Sequence[PredictiveReward | ArrayLike],
        learning_rates: Sequence[float],
        baselines: Sequence[float] | None,
    ) -> tuple[RewardModel, MemberParams]:
        """The rewards of phase 3, and the numbers of its members.

        Of finite problems a reward may be a table [state] or [state, action].
        """
        return prepare_linear(self.simulator, rewards, learning_rates, baselines)

    def distils(self, inference: InferenceModel, config: PolicyConfig) -> bool:
        """Whether robots get a network that learned to believe what `inference` does.

        It can act by itself where it needs nothing but what is seen. The exact one of a simulator
        needs the simulator.
        """
        if config.belief == "exact":
            raise ConfigError(
                "`belief` can be 'exact' only where the problem is finite and what is seen tells "
                "its states apart. Let it be 'learned'."
            )
        return isinstance(inference, ExactInference)

    def learner(
        self,
        inference: InferenceModel,
        rewards: RewardModel,
        config: BayesRLConfig,
    ) -> tuple[Learner, tuple[Stage, ...]]:
        """Phase 3's learner, and its stages."""
        distils = self.distils(inference, config.model)
        if config.looks:
            self._check_looking("looks")
            targets = look_ahead(self.simulator, inference, rewards, config)
            learner = Learner(self.simulator, inference, rewards, targets, config, distils)
            return learner, (ValuesStage(learner),)
        targets = SampledTargets(self.simulator, rewards)
        learner = Learner(self.simulator, inference, rewards, targets, config, distils)
        return learner, (ValuesStage(learner), SettlingStage(learner, targets))

    def normalise(self, learner: Learner, members: MemberParams) -> MemberParams:
        """Members whose values have a size that suits the learner's targets."""
        if isinstance(learner.targets, LookAheadTargets):
            return normalise(learner, members)
        return members

    def _check_looking(self, setting: str) -> None:
        if not self.simulator.can_look:
            raise ConfigError(
                f"`{setting}` must be False: `{type(self.simulator).__name__}` can be reset and "
                "stepped, but not stepped from any state in any context (`look`)."
            )

    def judge(
        self,
        learner: Learner,
        members: MemberParams,
        rewards: Sequence[PredictiveReward | ArrayLike],
        *,
        measure: Measure | None,
        certificate: Any,
        exploration_states: Sequence[int | str] | None,
        exploration_actions: Sequence[int | str] | None,
    ) -> PolicyJudge:
        """Who says how good policies are, by rewards that may be tables [state, action]."""
        return ReturnJudge(learner, members, measure)

    def warn_of_endless(self, reward: PredictiveReward) -> None:
        """Says so where it is known that the best policy never stops exploring."""

    def regret(self, policy: Policy, reward: PredictiveReward, certificate: Any) -> Regret:
        """The policy's regret; `certificate` is what is known of the best one."""
        raise ConfigError("Regret is known of finite problems only. Compare returns by `evaluate`.")


@functools.singledispatch
def route(simulator: Simulator) -> Route:
    """The members for a simulator, by its kind."""
    return Route(simulator)
