"""Climbing where Ψ would be too large to write down, and ties are many.

The first rounds are those of the dense way (`climb`): Newton's method for the Ψ of one plan, then
the plan that is optimal for what was found. On a large map the maximum lies where hundreds of
choices tie, and no plan without mixing explains it. Then the maximum over actions becomes soft:

    Q(s, a, θ) = r(s, a) + γ Σ_s' p(s' | s, a, θ) V(s', θ),   V = τ log Σ_a exp(Q / τ),      (a)
    π(a | s, θ) = exp((Q − V) / τ),        ∂Q/∂ω = Ψ_π, the Ψ of the policy π,

    f(ω) = Σ counts · log softmax(Q / α) − ‖ω − ω₀‖² / (2σ₀²)                                (b)

is smooth in ω. As τ → 0, Q → Q* and f becomes the log posterior of Theorem 4.1 with Ψ* recomputed.
Newton's method follows the maximum while τ falls, until the mixture π is optimal within the
tolerance. Minus the Hessian of f is

    Ψᵀ W Ψ + I/σ₀²,    W_s = counts_s (diag p − p pᵀ) / α² − f_s (diag π − π πᵀ) / τ,        (c)

p the expert's policy in s, and f_s the slope in a bonus on V(s) of `sparse_newton.pull_back`: as
ω moves, π shifts towards what is better, and V bends by the variance of Q over it.

What bites:
- The second term of (c) has either sign. Where f_s < 0 it is a ridge, along which the maximum lies,
  as steep as 1/τ; without it steps are far too long. Where f_s > 0 it could make (c) indefinite,
  and is left out: a direction of ascent is all that backtracking needs.
- From one τ to the next the maximum moves along ties, so τ shrinks by no more than 4 at once.
- π enters Ψ and the prior's entropy enters V. At the end the plain maximum for the Ψ of the last
  mixture is taken, which has neither.

Newton's method is by hand, since its steps go through SciPy's sparse factors, where `optimistix`
wants JAX arrays, and its line search needs an allowance for the rounding of f.
"""

from collections.abc import Callable
from typing import NamedTuple, final

import jax
import numpy as np
from jaxtyping import Float
from scipy import special

from bigtrain.errors import PlanningError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import sparse_newton
from bigtrain.finite.exact.climb import PLAIN_ROUNDS, Climber, MAPResult, Rounds
from bigtrain.finite.exact.explaining import Experts, Explanation, spread
from bigtrain.finite.exact.sparse_newton import FullSystem, PolicyFactors, SparseSystem
from bigtrain.reward import ExpertData, IRLConfig, RewardPosterior

_MAX_STEPS = 200
_STEP_TOLERANCE = 1e-7
"""The last Newton step is the first to be shorter than this many posterior deviations."""

_SOFT_STEPS = 20  # enough for the next softness to begin from; the last ones need few
_SOFT_STEP_TOLERANCE = 1e-5
_SOFT_PLANS = 1_000

_FIRST_SOFTNESS, _LEAST_SOFTNESS, _SHRINK = 1e-2, 1e-8, 0.25
"""Where τ starts and where it must end, in units of the temperature, and what a round leaves."""


class _Point(NamedTuple):
    """ω, a policy for it with its factors, and Q = Ψ·ω (with softness, the soft one of (a))."""

    weights: Float[np.ndarray, " feature"]
    factored: PolicyFactors
    values: Float[np.ndarray, "context state action"]


@final
class SparseClimber(Climber):
    """Keeps factors of sparse matrices in place of Ψ."""

    def __init__(self, cmdp: TabularCMDP, data: ExpertData, config: IRLConfig, rounds: Rounds):
        super().__init__(cmdp, data, config, rounds)
        self._problem = sparse_newton.lay_out(cmdp)
        self._system = SparseSystem if sparse_newton.stays_sparse(self._problem) else FullSystem
        with jax.enable_x64(True):
            self._experts = Experts(data, config, cmdp.num_actions, cmdp.num_features)

    def climb(self, weights: Float[np.ndarray, " feature"], max_rounds: int) -> MAPResult | None:
        with jax.enable_x64(True):
            policy = self._plan(weights).policy
            for step in range(1, min(max_rounds, PLAIN_ROUNDS) + 1):
                found = self._maximise(weights, self._factor(policy))
                plan = self._plan(found.weights)
                mismatch = self._mismatch(found, plan.action_values)
                if self._rounds.settled(mismatch):
                    return self._result(found, mismatch, step)
                weights, policy = found.weights, plan.policy
        return self.climb_ties(weights, max_rounds)

    def climb_ties(
        self, weights: Float[np.ndarray, " feature"], max_rounds: int
    ) -> MAPResult | None:
        """The rounds after the plain ones."""
        with jax.enable_x64(True):
            # In units of α, on which the likelihood depends: Q matters to it to about that much.
            softness, guess = _FIRST_SOFTNESS, self._plan(weights).action_values
            for step in range(PLAIN_ROUNDS + 1, max_rounds + 1):
                soft = self._maximise_soft(weights, softness * self._config.temperature, guess)
                # What counts is the plain posterior, for the Ψ of the mixture that τ has found.
                found = self._maximise(soft.weights, soft.factored)
                mismatch = self._mismatch(found, self._plan(found.weights).action_values)
                if self._rounds.settled(mismatch):
                    return self._result(found, mismatch, step)
                weights, guess = soft.weights, soft.values
                softness *= _SHRINK
                if softness < _LEAST_SOFTNESS:
                    break
        return None

    def _maximise(self, weights: Float[np.ndarray, " feature"], factored: PolicyFactors) -> _Point:
        """ω that maximises the log posterior for the Ψ of one policy, as `irl.map_estimate`."""

        def evaluate(weights, guess):
            reward = self._features @ weights
            return _Point(
                weights, factored, sparse_newton.action_values(self._problem, factored, reward)
            )

        def curvature(point, explained, flow):
            return explained.blocks

        return self._ascend(
            evaluate(weights, None), evaluate, curvature, _MAX_STEPS, _STEP_TOLERANCE
        )

    def _maximise_soft(
        self,
        weights: Float[np.ndarray, " feature"],
        softness: float,
        guess: Float[np.ndarray, "context state action"],
    ) -> _Point:
        """The same for soft action values, (b), which bend with ω where choices nearly tie."""

        def evaluate(weights, guess):
            return self._soften(weights, softness, guess)

        def curvature(point, explained, flow):
            # (c): where more value would hurt, a tie is a ridge. Elsewhere it is a valley, whose
            # curvature has the wrong sign for a maximum and is left out.
            ridges = np.maximum(-flow, 0)[..., None, None] / softness
            return explained.blocks + ridges * spread(point.factored.policy)

        return self._ascend(
            evaluate(weights, guess), evaluate, curvature, _SOFT_STEPS, _SOFT_STEP_TOLERANCE
        )

    def _ascend(
        self,
        point: _Point,
        evaluate: Callable[[Float[np.ndarray, " feature"], np.ndarray], _Point],
        curvature: Callable[[_Point, Explanation, np.ndarray], np.ndarray],
        max_steps: int,
        tolerance: float,
    ) -> _Point:
        """Newton's method with backtracking; `evaluate` says what comes with weights."""
        experts, precision = self._experts, 1 / self._config.weight_variance
        objective = experts.log_posterior(point.weights, point.values)
        for _ in range(max_steps):
            explained = experts.explain(point.values)
            gradient, flow = sparse_newton.pull_back(
                self._problem, point.factored, explained.slopes
            )
            gradient = gradient + experts.prior_slopes(point.weights)
            blocks = curvature(point, explained, flow)
            try:
                system = self._system(self._problem, point.factored, blocks, precision)
            except (RuntimeError, np.linalg.LinAlgError):
                return point  # singular but for rounding: ridges are as steep as can be told
            direction = system.solve(gradient)
            slope = float(gradient @ direction)  # the squared length in posterior deviations
            # Near the maximum gains are below the rounding of f itself: without an allowance for
            # it the last steps, which are right, would be refused.
            rounding, scale = 16 * np.finfo(np.float64).eps * abs(objective), 1.0
            while True:
                candidate = evaluate(point.weights + scale * direction, point.values)
                reached = experts.log_posterior(candidate.weights, candidate.values)
                if reached - objective + rounding >= 1e-4 * scale * slope:  # Armijo's condition
                    point, objective = candidate, reached
                    break
                scale /= 2
                if scale <= 1e-10:
                    return point  # as high as arithmetic can tell
            if not slope > tolerance**2:
                break
        return point

    def _soften(
        self,
        weights: Float[np.ndarray, " feature"],
        softness: float,
        guess: Float[np.ndarray, "context state action"],
    ) -> _Point:
        """Solves (a) by policy iteration, which is Newton's method.

        V is linear in Q and π, V = Σ_a π (Q − τ log π), for the π = softmax(Q / τ) of the last
        round: the soft values of a fixed π are a linear solve with τ · entropy as a bonus.
        """
        reward = self._features @ weights
        rounding = 8 * np.finfo(np.float64).eps / (1 - self._cmdp.gamma)  # of the solves
        for _ in range(_SOFT_PLANS):
            log_policy = special.log_softmax(guess / softness, axis=-1)
            # τ · entropy. Of the logarithms, which are exact where exp underflows to 0.
            bonus = -softness * (np.exp(log_policy) * log_policy).sum(-1)
            factored = self._factor(np.exp(log_policy))
            values = sparse_newton.action_values(self._problem, factored, reward, bonus)
            error = np.abs(values - guess).max()
            if error <= max(1e-8 * softness, rounding * np.abs(values).max()):
                return _Point(weights, factored, values)
            guess = values
        raise PlanningError(
            f"Soft action values did not settle within {_SOFT_PLANS} rounds on "
            f"{self._cmdp.num_states} states; allow a higher temperature."
        )

    def _factor(self, policy: Float[np.ndarray, "context state action"]) -> PolicyFactors:
        return sparse_newton.factor_policy(self._problem, policy)

    def _mismatch(self, point: _Point, optimal: Float[np.ndarray, "context state action"]) -> float:
        error = (optimal - point.values)[:, self._data.visited]
        return float(np.abs(error).max() / self._config.temperature)

    def _result(self, point: _Point, mismatch: float, step: int) -> MAPResult:
        experts, precision = self._experts, 1 / self._config.weight_variance
        blocks = experts.explain(point.values).blocks
        covariance = self._system(self._problem, point.factored, blocks, precision).inverse()
        covariance = experts.correct(covariance, self._problem, point.factored, point.values)
        return MAPResult(
            RewardPosterior(point.weights, covariance),
            experts.log_posterior(point.weights, point.values),
            mismatch,
            step,
        )
