"""The maximum a posteriori reward with Ψ* recomputed as ω moves (Theorem 4.1), exactly.

    ω* = argmax_ω Σ_i E_{θ ~ p(θ | τ_i)} Σ_j log p(a_j | s_j, θ, ω) − ‖ω − ω₀‖² / (2 α ς₀²)
    log p(a | s, θ, ω) = Ψ*(s, a, θ)·ω / α − log z,      Ψ* of the plan optimal for ω     (eq. (2))
    Σ = (−∇² log p(ω* | demonstrations))⁻¹                 [feature, feature]

For fixed Ψ the maximum is found by Newton's method; Ψ is that of the plan optimal for ω. The two
alternate until ω explains itself (`climb`), as a rule within five rounds. Where plans tie at the
maximum, the optimal plan jumps from one side of the tie to the other; a plan that mixes the tied
ones is then sought by way of soft action values (`sparse_climb`). A large Ψ is never written down.

What bites (design, points 5 and 6):
- With Ψ recomputed there can be several maxima, one a set of plans. So the climb is repeated from
  points spread over the first one's posterior, and the highest maximum counts.
- The theorem prints Σ as the Hessian itself; it is the inverse of minus that.
- The prior counts once, though the appendix's sum has it once a demonstration.
"""

from collections.abc import Callable

import numpy as np

from bigtrain.data import Demonstrations
from bigtrain.errors import PlanningError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact.climb import MAPResult, Rounds
from bigtrain.finite.exact.dense_climb import DenseClimber
from bigtrain.finite.exact.sparse_climb import SparseClimber
from bigtrain.finite.inference import FiniteInference
from bigtrain.reward import IRLConfig, expert_data

_RESTART_ROUNDS = 50
_MAX_ROUNDS = 2_000
_DENSE_ENTRIES = 500_000
"""The largest Ψ that is kept as an array; beyond, going without it is quicker too."""


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
    data = expert_data(cmdp, demonstrations.trajectories(cmdp), FiniteInference(cmdp))
    # Both kinds find the same; only room and time differ.
    num_entries = cmdp.num_contexts * data.num_visited * cmdp.num_actions * cmdp.num_features
    kind = DenseClimber if num_entries <= _DENSE_ENTRIES else SparseClimber
    rounds = Rounds(tolerance, report)
    climber = kind(cmdp, data, config, rounds)
    best = climber.climb(config.prior_weights(cmdp.num_features), _MAX_ROUNDS)
    if best is None:
        raise PlanningError(
            f"The reward did not settle within {rounds.count} rounds: its mismatch must be "
            f"at most {tolerance:g}. Allow more with `tolerance`, or a higher temperature."
        )
    # Draws of N(ω*, Σ): directions in which the demonstrations leave ω open are searched most. From
    # a fixed seed, since an exact answer should not depend on one.
    spread = np.linalg.cholesky(best.posterior.covariance)
    for direction in np.random.default_rng(0).normal(size=(num_restarts, cmdp.num_features)):
        found = climber.climb(best.posterior.mean + spread @ direction, _RESTART_ROUNDS)
        if found is not None and found.log_posterior > best.log_posterior:
            best = found
    return best._replace(num_rounds=rounds.count)
