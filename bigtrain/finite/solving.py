"""BIG by the exact route: no network, no sampling, for finite problems (Algorithm 1's result).

    phase 1   N(ω*, Σ), the Laplace posterior of Theorem 4.1                    `map_reward`
    phase 2   r(s, a) = k* r_max where exploring, else ν(s, a)·ω̄ + bias         `predictive_reward`
    phase 3   max_π E[Σ γ^t r(s_t, a_t)], with lower and upper bounds           `solve_bayes`

ω̄ = scale · ω* stretches the reward to [r_min, r_max]. The expert's policy softmax(Q*/α) is given in
the stretched units as well: with values stretched, so must α be.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from scipy import special

from bigtrain.data import Demonstrations
from bigtrain.errors import ConfigError
from bigtrain.exploration import CostOfExploration, check_settings, predictive_reward
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.endless import warn_of_endless
from bigtrain.finite.exact.bayes import BayesConfig, BayesSolution, solve_bayes
from bigtrain.finite.exact.inverse import map_reward
from bigtrain.finite.exact.planning import plan
from bigtrain.provenance import trace
from bigtrain.result import FitResult
from bigtrain.reward import IRLConfig
from bigtrain.runs import Callback, Event


@dataclass(frozen=True)
class SolveConfig:
    """Settings of the exact route.

    `num_restarts` is how often the reward is climbed to again, and `tolerance` the mismatch at
    which a climb ends (see `map_reward`).
    """

    irl: IRLConfig = field(default_factory=IRLConfig)
    bayes: BayesConfig = field(default_factory=BayesConfig)
    num_restarts: int = 16
    tolerance: float = 1e-3

    def __post_init__(self):
        if self.num_restarts < 0:
            raise ConfigError(f"`num_restarts` must not be negative, got {self.num_restarts}.")
        if not 0 < self.tolerance < float("inf"):
            raise ConfigError(f"`tolerance` must be positive and finite, got {self.tolerance}.")


def solve(
    cmdp: TabularCMDP,
    demonstrations: Demonstrations,
    *,
    reward_range: tuple[float, float],
    exploration: CostOfExploration | None = None,
    config: SolveConfig = SolveConfig(),
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    inference_cmdp: TabularCMDP | None = None,
) -> FitResult[TabularCMDP, BayesSolution]:
    """Infers the reward, prices exploration, and finds the Bayes-optimal policy, all exactly.

    `seed` is accepted so that the exact route can take the learned one's place; nothing here is
    random. `inference_cmdp` is the problem as the inference sees it, where that differs (see
    `baselines.average_contexts`).
    """
    history: list[Event] = []

    def announce(phase: str, **metrics: float) -> None:
        step = sum(event.phase == phase for event in history) + 1
        history.append(Event(phase, step, metrics))
        for callback in callbacks:
            callback(history[-1])

    check_settings(cmdp, reward_range, exploration)
    demonstrations.check(cmdp)
    inferred = map_reward(
        inference_cmdp or cmdp,
        demonstrations,
        config.irl,
        tolerance=config.tolerance,
        num_restarts=config.num_restarts,
        report=lambda _, mismatch: announce("reward", mismatch=mismatch),
    )
    reward = predictive_reward(
        cmdp, inferred.posterior, reward_range=reward_range, exploration=exploration
    )
    warn_of_endless(reward)
    solution = solve_bayes(
        cmdp,
        reward.table(),
        config.bayes,
        report=lambda lower, upper, count: announce(
            "policy", lower=lower, upper=upper, hyperstates=float(count)
        ),
    )
    if not solution.closed:
        warnings.warn(
            f"The bounds on the Bayes-optimal value still differ: {solution.lower:.6g} to "
            f"{solution.upper:.6g} after {solution.num_hyperstates:,} hyperstates. The policy is "
            "worth at least the lower one; allow more with `BayesConfig`.",
            stacklevel=2,
        )
    # Q* of the stretched reward before the exploration prior; the bias is the same everywhere.
    temperature = config.irl.temperature * reward.scale
    values = plan(cmdp, reward.irl_table()).action_values
    return FitResult(
        cmdp,
        reward,
        solution.policy,
        solution,
        tuple(history),
        trace(
            "solve",
            cmdp,
            demonstrations,
            settings={"solve": config, "reward_range": reward_range},
            seed=seed,
        ),
        temperature,
        expert=special.softmax(values / temperature, axis=-1),
    )
