"""How well action values explain the experts, and how that bends: phase 1 without Ψ.

What `irl` says of Ψ and ω is said here of Q = Ψ·ω [context, state, action], so that Ψ need not be
known. With p = softmax(Q / α) (eq. (2)), n(θ, s, a) the visit counts, n(θ, s) their sum over
actions, and ℓ the log-likelihood,

    ∂ℓ/∂Q = (n(θ, s, a) − n(θ, s) p(a | s, θ)) / α                           `slopes`
    −∂²ℓ/∂Q² = n(θ, s) (diag p − p pᵀ) / α²        a block for each (θ, s)     `blocks`

so that Ψᵀ·slopes is the likelihood's part of eq. (3) over α, and ΨᵀWΨ of minus its Hessian.

Where actions tell contexts as well (Theorem 4.1's p(θ | ω, τ)), ℓ = Σ_i log Σ_θ p(θ) p(τ_i | θ, ω),
and the counts depend on ω. By Fisher's and Louis' (1982) identities, with g_iθ the gradient that
trajectory i would have in θ and ρ_iθ = p(θ | ω, τ_i),

    ∇ℓ = Σ_i Σ_θ ρ_iθ g_iθ                                      (so counts by ρ give the gradient)
    −∇²ℓ = Σ_i Σ_θ ρ_iθ (−∇²ℓ_iθ) − Σ_i Cov_{θ ~ ρ_i}(g_iθ).                                 (a)

What bites: experts are nearly certain, so p is close to 0 or 1, and both n − n p and p (1 − p)
cancel. They are computed from what the other actions have.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import sparse, special

from bigtrain.finite.exact.sparse_newton import PolicyFactors, SparseProblem
from bigtrain.reward import ExpertData, IRLConfig, irl

_SETTLED = 1e-18
"""A trajectory whose other contexts are together less likely than this has no covariance."""

_TRAJECTORIES = 500
"""How many trajectories' gradients are kept at once, [context, trajectory, feature]."""

Table = Float[np.ndarray, "context state action"]


class Explanation(NamedTuple):
    """The log-likelihood's slopes in Q, and minus its curvature with contexts held as they are."""

    slopes: Float[np.ndarray, "context state action"]
    blocks: Float[np.ndarray, "context state action action"]


class Experts:
    """The demonstrations as a function of action values. Calls are made in double precision."""

    def __init__(self, data: ExpertData, config: IRLConfig, num_actions: int, num_features: int):
        self._data, self._config = data, config
        self._counts = irl.known_counts(data, config, num_actions)
        self._prior_mean = config.prior_weights(num_features)

    def log_posterior(self, weights: Float[np.ndarray, " feature"], values: Table) -> float:
        """log p(ω | demonstrations) up to a constant, as in `irl.log_posterior`."""
        likelihood = irl.log_likelihood(
            self._log_policies(values), self._data, self._config, self._counts
        )
        deviation = weights - self._prior_mean
        return float(likelihood) - float(deviation @ deviation) / (2 * self._config.weight_variance)

    def prior_slopes(self, weights: Float[np.ndarray, " feature"]) -> Float[np.ndarray, " feature"]:
        """The gradient of the log prior."""
        return (self._prior_mean - weights) / self._config.weight_variance

    def explain(self, values: Table) -> Explanation:
        """The derivatives with respect to the action values."""
        visited, alpha = self._data.visited, self._config.temperature
        log_policies = self._log_policies(values)
        counts = self._counts
        if counts is None:  # ρ: the E step of expectation maximisation
            shares = jnp.asarray(self._responsibilities(log_policies))
            counts = irl.visit_counts(self._data, shares, values.shape[-1])
        policies = np.exp(log_policies)
        slopes, blocks = np.zeros(values.shape), np.zeros((*values.shape, values.shape[-1]))
        slopes[:, visited] = irl.residual_counts(counts, jnp.asarray(policies)) / alpha
        totals = np.asarray(counts).sum(-1)[..., None, None]
        blocks[:, visited] = totals / alpha**2 * spread(policies)
        return Explanation(slopes, blocks)

    def correct(
        self,
        covariance: Float[np.ndarray, "feature feature"],
        problem: SparseProblem,
        factored: PolicyFactors,
        values: Table,
    ) -> Float[np.ndarray, "feature feature"]:
        """Σ when actions are evidence of contexts: these change with ω, which leaves more open.

        (a): of minus the Hessian with contexts held as they are, each trajectory takes away the
        covariance over its contexts of the gradient that it would have in each.
        """
        if self._counts is not None:
            return covariance
        log_policies = self._log_policies(values)
        shares = self._responsibilities(log_policies)
        unsettled = np.flatnonzero(1 - shares.max(-1) > _SETTLED)
        if not len(unsettled):
            return covariance
        # Σ_i Cov(g_i), the information that is missing as long as contexts are not known.
        missing = np.zeros_like(covariance)
        for some in np.array_split(unsettled, -(-len(unsettled) // _TRAJECTORIES)):
            gradients = np.stack(
                [
                    self._trajectory_gradients(some, context, problem, factored, log_policies)
                    for context in range(problem.shape[0])
                ]
            )
            # Σ_θ ρ (g − ḡ)(g − ḡ)ᵀ as a product of rows √ρ (g − ḡ), which cannot turn negative.
            weight = shares[some].T[..., None]
            gradients -= (weight * gradients).sum(0)
            rows = (np.sqrt(weight) * gradients).reshape(-1, len(covariance))
            missing += rows.T @ rows
        return np.linalg.inv(np.linalg.inv(covariance) - missing)  # information adds up, Σ does not

    def _trajectory_gradients(
        self,
        chosen: np.ndarray,
        context: int,
        problem: SparseProblem,
        factored: PolicyFactors,
        log_policies: Float[Array, "context visited action"],
    ) -> Float[np.ndarray, "chosen feature"]:
        """∇ log p(actions | ω, θ) of some trajectories."""
        data, num_actions = self._data, problem.num_actions
        position = np.full(len(data.log_evidence), -1)
        position[chosen] = np.arange(len(chosen))
        steps = np.flatnonzero(position[data.trajectories] >= 0)
        owner, rows = position[data.trajectories[steps]], np.asarray(data.rows)[steps]
        # ∂ log p(a | s) / ∂Q(s, ·) = ([a] − p(· | s)) / α for each step, added up by trajectory.
        residuals = -np.exp(np.asarray(log_policies[context])[rows])
        residuals[np.arange(len(steps)), np.asarray(data.actions)[steps]] += 1
        residuals /= self._config.temperature
        pairs = data.visited[rows][:, None] * num_actions + np.arange(num_actions)
        entries = (residuals.ravel(), (pairs.ravel(), np.repeat(owner, num_actions)))
        size = (problem.num_states * num_actions, len(chosen))
        slopes = sparse.csr_matrix(entries, shape=size)
        # Ψᵀ of it, as in `sparse_newton.pull_back`, with a column for each trajectory.
        onward, choice = problem.onward[context], factored.choices[context]
        flow = factored.factors[context].solve(
            sparse.csr_matrix(onward.T @ slopes).toarray(), trans="T"
        )
        total = slopes.toarray() + choice.T @ flow
        return (problem.features.T @ total).T

    def _responsibilities(
        self, log_policies: Float[Array, "context visited action"]
    ) -> Float[np.ndarray, "trajectory context"]:
        joint = irl.context_log_joint(self._data, log_policies, self._config.evidence)
        return np.asarray(jax.nn.softmax(joint))

    def _log_policies(self, values: Table) -> Float[Array, "context visited action"]:
        logits = values[:, self._data.visited] / self._config.temperature
        return jnp.asarray(special.log_softmax(logits, axis=-1))


def spread(
    policies: Float[np.ndarray, "*state action"],
) -> Float[np.ndarray, "*state action action"]:
    """diag p − p pᵀ, the covariance of an action's one-hot.

    Its diagonal p (1 − p) is p times what the others have, without cancelling where p is near 1.
    """
    rest = policies @ (1 - np.eye(policies.shape[-1]))
    result = -policies[..., :, None] * policies[..., None, :]
    index = np.arange(policies.shape[-1])
    result[..., index, index] = policies * rest
    return result
