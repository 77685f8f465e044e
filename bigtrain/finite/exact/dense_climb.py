"""Climbing where Ψ fits in memory: each round is one compiled search with Ψ as an array.

    Ψ [context, visited, action, feature], for the states where experts were alone: others have no
    part in the likelihood.

In double precision: at α = 0.01 values of some 100 are divided by it, and float32 has 7 digits.
"""

from functools import cached_property
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bigtrain.finite.exact import planning
from bigtrain.finite.exact.climb import PLAIN_ROUNDS, Climber, MAPResult
from bigtrain.finite.exact.sparse_climb import SparseClimber
from bigtrain.reward import RewardPosterior, irl


@final
class DenseClimber(Climber):
    """Follows the optimal plan with Ψ written down, and leaves ties to the sparse way."""

    def climb(self, weights: Float[np.ndarray, " feature"], max_rounds: int) -> MAPResult | None:
        data, config = self._data, self._config
        psi = self._optimal_successor_features(weights)
        for step in range(1, min(max_rounds, PLAIN_ROUNDS) + 1):
            with jax.enable_x64(True):
                found, info = irl.map_estimate(jnp.asarray(psi), data, config, jnp.asarray(weights))
                weights = np.asarray(found)
                optimal = self._optimal_successor_features(weights)
                # `psi` is of the last plan, `optimal` of the one for ω: the same at a fixed point.
                mismatch = float(np.abs((optimal - psi) @ weights).max() / config.temperature)
                if self._rounds.settled(mismatch):
                    covariance = irl.laplace_covariance(found, jnp.asarray(psi), data, config)
                    posterior = RewardPosterior(weights, np.asarray(covariance))
                    return MAPResult(posterior, float(info.log_posterior), mismatch, step)
            psi = optimal
        return self._sparse.climb_ties(weights, max_rounds)

    @cached_property
    def _sparse(self) -> SparseClimber:
        return SparseClimber(self._cmdp, self._data, self._config, self._rounds)

    def _optimal_successor_features(
        self, weights: Float[np.ndarray, " feature"]
    ) -> Float[np.ndarray, "context visited action feature"]:
        policy = self._plan(weights).policy
        return planning.successor_features(self._cmdp, policy, self._data.visited)
