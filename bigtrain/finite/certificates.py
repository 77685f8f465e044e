"""Policies of finite problems judged by their regret, which is certain.

    score = (U − L(π)) / (U − J_never),    or where that has no denominator    (U − L(π)) / Δr

U is the upper bound on the Bayes-optimal value (`bayes`), L(π) the lower one on the policy's
(`Controller`), J_never the best that never explores, Δr the range of the reward.

What bites: following a policy whose beliefs a network tracks can take minutes, a bad one above all,
since such beliefs never return to where they were. So a coarse resolution comes first there, and
only what looks good at that is followed at the fine one (docs/decisions/0012).
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Float

from bigtrain.arrays import ArrayLike
from bigtrain.bayes_rl import Learner, MemberParams, Networks
from bigtrain.evaluate import Regret
from bigtrain.exploration import PredictiveReward
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.evaluation import (
    exploration_pairs,
    never_exploring_value,
    policy_value,
    table_of,
)
from bigtrain.finite.exact.bayes import BayesConfig, BayesSolution, solve_bayes
from bigtrain.finite.exact.controller import SAME_MEMORY
from bigtrain.learning import Stage
from bigtrain.phases import Known, Measure, PolicyJudge, Verdict
from bigtrain.policy import NetworkPolicy
from bigtrain.runs import Event

_VALUE_TOLERANCE = 1e-7
"""Nodes with a smaller share of discounted visits are not followed when a policy is valued."""

COARSE = 1e-2
"""Beliefs that a network tracks drift, and some policies meet endlessly many: until a policy looks
good, and where there are too many, beliefs that differ by less than this are taken as one."""


@final
class RegretJudge(PolicyJudge):
    """By the normalised regret; where exploring brings nothing to divide by, by what is lost as a
    share of the reward's range."""

    def __init__(
        self,
        learner: Learner,
        members: MemberParams,
        measure: Measure | None,
        *,
        cmdp: TabularCMDP,
        rewards: Sequence[PredictiveReward | ArrayLike],
        config: BayesConfig,
        exploration_states: Sequence[int | str] | None,
        exploration_actions: Sequence[int | str] | None,
    ):
        super().__init__(learner, members, measure)
        self._cmdp = cmdp
        solved: dict[bytes, tuple[BayesSolution, float | None]] = {}
        self._known: list[tuple[Float[np.ndarray, "s a"], BayesSolution, float | None]] = []
        for reward in rewards:
            table = table_of(cmdp, reward)
            pairs = exploration_pairs(cmdp, reward, exploration_states, exploration_actions)
            key = table.tobytes() + pairs.tobytes()
            if key not in solved:
                # By far the slowest part, and the same for all seeds of a reward.
                never = never_exploring_value(cmdp, table, pairs, config)
                solved[key] = (solve_bayes(cmdp, table, config), never)
            self._known.append((table, *solved[key]))

    def score(
        self, networks: Networks, verdict: Verdict
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Who has reached the target stays there: no better policy is looked for."""
        target = self.learner.config.target_regret
        scores = np.array(verdict.score, np.float64)
        for place in np.flatnonzero(~(scores <= target)).tolist():
            policy = self.policy(networks, place)
            if self.learner.drifts:
                scores[place] = self._score(policy, place, (COARSE,))
            if not self.learner.drifts or scores[place] <= target:
                scores[place] = self._score(policy, place, self._resolutions)
        return scores, {"regret": scores}

    def enough(self, stage: Stage, states: Any, verdict: Verdict) -> bool:
        return bool((verdict.score <= self.learner.config.target_regret).all())

    def conclude(self, policy: NetworkPolicy, place: int, history: Sequence[Event]) -> Known:
        _, optimum, _ = self._known[place]
        return Known(self._regret(policy, place, self._resolutions), optimum, None)

    @property
    def _resolutions(self) -> tuple[float, ...]:
        return (SAME_MEMORY, COARSE) if self.learner.drifts else (SAME_MEMORY,)

    def _score(self, policy: NetworkPolicy, place: int, resolutions: Sequence[float]) -> float:
        found = self._regret(policy, place, resolutions)
        if found.normalised is None or np.isinf(found.normalised):
            return found.absolute / np.ptp(self._known[place][0])
        return found.normalised

    def _regret(self, policy: NetworkPolicy, place: int, resolutions: Sequence[float]) -> Regret:
        """By the first of the resolutions at which all that matters could be followed."""
        table, optimum, never = self._known[place]
        most = np.ptp(table) / (1 - self._cmdp.gamma)  # the range of values
        value = -np.inf
        for resolution in resolutions:
            lower, upper = policy_value(
                policy,
                self._cmdp,
                reward=table,
                tolerance=_VALUE_TOLERANCE,
                resolution=resolution,
            )
            value = max(value, lower)  # each of them is a bound
            if upper - lower <= 10 * _VALUE_TOLERANCE * most:
                break
        return Regret(value, optimum.upper, never)
