"""The maximum a posteriori reward with Ψ* recomputed as ω moves (Theorem 1), exactly.

For fixed Ψ the maximum is found by Newton's method; Ψ is that of the plan optimal for ω. The two
alternate until ω explains itself, as a rule within five rounds. Where two plans tie at the maximum,
the optimal plan jumps from one side of the tie to the other; Ψ then becomes an average over the
rounds, which is the Ψ of a plan that mixes the tied ones and is optimal as well.

With Ψ recomputed there can be several maxima, one a set of plans. So the climb is repeated from
points spread over the first one's posterior, and the highest maximum counts.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bigtrain import irl
from bigtrain.cmdp import TabularCMDP
from bigtrain.demos import Demonstrations
from bigtrain.errors import PlanningError
from bigtrain.exact import planning
from bigtrain.irl import ExpertData, IRLConfig, RewardPosterior

_PLAIN_ROUNDS = 10
_RESTART_ROUNDS = 50
_MAX_ROUNDS = 2_000


class MAPResult(NamedTuple):
    """The Laplace posterior, and how well its maximum explains itself.

    `mismatch` is the largest error of Ψ·ω* as optimal action values where experts were, in units
    of the temperature: the relative error that it makes in an expert's action probabilities.
    """

    posterior: RewardPosterior
    log_posterior: float
    mismatch: float
    num_rounds: int


def map_reward(
    cmdp: TabularCMDP,
    demonstrations: Demonstrations,
    config: IRLConfig = IRLConfig(),
    *,
    tolerance: float = 1e-3,
    num_restarts: int = 16,
    report: Callable[[int, float], None] = lambda num_rounds, mismatch: None,
) -> MAPResult:
    """N(ω*, Σ) for the experts of `demonstrations`.

    A climb ends when the mismatch is below `tolerance`. `report` hears of every round.
    """
    climber = _Climber(cmdp, irl.expert_data(cmdp, demonstrations), config, tolerance, report)
    best = climber.climb(config.prior_weights(cmdp.num_features), _MAX_ROUNDS)
    if best is None:
        raise PlanningError(
            f"The reward did not settle within {_MAX_ROUNDS} rounds: its mismatch must be at most "
            f"{tolerance:g}. Allow more with `tolerance`, or a higher temperature."
        )
    spread = np.linalg.cholesky(best.posterior.covariance)
    for direction in np.random.default_rng(0).normal(size=(num_restarts, cmdp.num_features)):
        found = climber.climb(best.posterior.mean + spread @ direction, _RESTART_ROUNDS)
        if found is not None and found.log_posterior > best.log_posterior:
            best = found
    return best._replace(num_rounds=climber.num_rounds)


class _Climber:
    """Climbs to a maximum near where it is put."""

    def __init__(
        self,
        cmdp: TabularCMDP,
        data: ExpertData,
        config: IRLConfig,
        tolerance: float,
        report: Callable[[int, float], None],
    ):
        self._cmdp, self._data, self._config = cmdp, data, config
        self._tolerance, self._report = tolerance, report
        self._features = cmdp.feature_matrix()
        self.num_rounds = 0

    def climb(self, weights: Float[np.ndarray, " feature"], max_rounds: int) -> MAPResult | None:
        """The maximum, or None if it did not settle."""
        data, config = self._data, self._config
        successor_features = self._optimal_successor_features(weights)
        with jax.enable_x64(True):
            for step in range(1, max_rounds + 1):
                found, info = irl.map_estimate(
                    jnp.asarray(successor_features), data, config, jnp.asarray(weights)
                )
                weights = np.asarray(found)
                difference = self._optimal_successor_features(weights) - successor_features
                mismatch = float(np.abs(difference @ weights).max() / config.temperature)
                self.num_rounds += 1
                self._report(self.num_rounds, mismatch)
                if mismatch <= self._tolerance:
                    covariance = irl.laplace_covariance(
                        found, jnp.asarray(successor_features), data, config
                    )
                    posterior = RewardPosterior(weights, np.asarray(covariance))
                    return MAPResult(posterior, float(info.log_posterior), mismatch, step)
                share = 1.0 if step <= _PLAIN_ROUNDS else 2 / (step - _PLAIN_ROUNDS + 2)
                successor_features = successor_features + share * difference
        return None

    def _optimal_successor_features(
        self, weights: Float[np.ndarray, " feature"]
    ) -> Float[np.ndarray, "context visited action feature"]:
        shape = (self._cmdp.num_states, self._cmdp.num_actions)
        plan = planning.plan(self._cmdp, (self._features @ weights).reshape(shape))
        return planning.successor_features(self._cmdp, plan.policy, self._data.visited)
