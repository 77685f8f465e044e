"""The maximum a posteriori reward with Ψ* recomputed as ω moves (Theorem 1), exactly.

For fixed Ψ the maximum is found by Newton's method; Ψ is that of the plan optimal for ω. The two
alternate until ω explains itself, as a rule within five rounds. Where two plans tie at the maximum,
the optimal plan jumps from one side of the tie to the other; Ψ then becomes an average over the
rounds, which is the Ψ of a plan that mixes the tied ones and is optimal as well.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bigtrain import irl
from bigtrain.cmdp import TabularCMDP
from bigtrain.demos import Demonstrations
from bigtrain.errors import PlanningError
from bigtrain.exact import planning
from bigtrain.irl import IRLConfig, RewardPosterior

_PLAIN_ROUNDS = 10
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
    report: Callable[[int, float], None] = lambda num_rounds, mismatch: None,
) -> MAPResult:
    """N(ω*, Σ) for the experts of `demonstrations`.

    Stops when the mismatch is below `tolerance`. `report` hears of every round.
    """
    data = irl.expert_data(cmdp, demonstrations)
    features = cmdp.feature_matrix()

    def optimal_successor_features(weights):
        reward = (features @ weights).reshape(cmdp.num_states, cmdp.num_actions)
        return planning.successor_features(cmdp, planning.plan(cmdp, reward).policy, data.visited)

    weights = np.full(cmdp.num_features, float(config.prior_mean))
    successor_features = optimal_successor_features(weights)
    mismatch = np.inf
    with jax.enable_x64(True):
        for num_rounds in range(1, _MAX_ROUNDS + 1):
            found, info = irl.map_estimate(
                jnp.asarray(successor_features), data, config, jnp.asarray(weights)
            )
            weights = np.asarray(found)
            difference = optimal_successor_features(weights) - successor_features
            mismatch = float(np.abs(difference @ weights).max() / config.temperature)
            report(num_rounds, mismatch)
            if mismatch <= tolerance:
                covariance = irl.laplace_covariance(
                    found, jnp.asarray(successor_features), data, config
                )
                posterior = RewardPosterior(weights, np.asarray(covariance))
                return MAPResult(posterior, float(info.log_posterior), mismatch, num_rounds)
            share = 1.0 if num_rounds <= _PLAIN_ROUNDS else 2 / (num_rounds - _PLAIN_ROUNDS + 2)
            successor_features = successor_features + share * difference
    raise PlanningError(
        f"The reward did not settle within {_MAX_ROUNDS} rounds: its mismatch must be at most "
        f"{tolerance:g}, got {mismatch:.2g}. Allow more with `tolerance`, or a higher temperature."
    )
