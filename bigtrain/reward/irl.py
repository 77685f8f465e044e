"""Phase 1, the inference: what reward made the experts act as they did (section 4.2, Theorem 4.1).

Given Ψ [context, visited, action, feature] at the states where experts were, and ω [feature],

    p(a | s, θ, ω) = exp(Ψ(s, a, θ)·ω / α) / z(s, θ, ω)                                    (eq. (2))
    n(θ, s, a) = Σ_i ρ_iθ #{j: (s_j, a_j) = (s, a) in τ_i}         [context, visited, action]
    log p(ω | D) = Σ n(θ, s, a) log p(a | s, θ, ω) − ‖ω − ω₀‖² / (2 σ₀²) + const                 (a)
    ∇ = 1/α Σ (n(θ, s, a) − n(θ, s) p(a | s, θ, ω)) Ψ(s, a, θ) − (ω − ω₀) / σ₀²    (eq. (3) / α)
    −∇² = 1/α² Σ_θ,s n(θ, s) Cov_{a ~ p}(Ψ(s, a, θ)) + I / σ₀²          [feature, feature]
    p(ω | D) ≈ N(ω*, Σ),    ω* = argmax (a),    Σ = (−∇² at ω*)⁻¹                      (Laplace)

(by Lemma 4.1, ∇ log z = E_{a ~ p}[Ψ] / α). ρ_iθ is the probability of context θ for expert i, never
read from the data: p(θ | transitions), or Theorem 4.1's p(θ | ω, τ_i) with actions as evidence as
well. In the latter case the likelihood is Σ_i log Σ_θ p(τ_i, θ | ω), whose gradient is ∇ above at
the present ρ (expectation maximisation), and whose Hessian has a term more.

What bites (design, points 5 to 7):
- For fixed Ψ (a) is concave, strictly so by its prior: Newton's method is exact and has one answer.
- Σ is the inverse of minus the Hessian; the theorem prints the Hessian itself.
- The prior counts once; the appendix's sum has it once a demonstration. Eq. (3) is multiplied by α,
  so ς₀² = σ₀²/α is the setting, and σ₀² = α ς₀² the variance.
- Experts are nearly certain: n − n p and p (1 − p) cancel, and are computed otherwise.

Everything here is a pure function of arrays that `jit` compiles, in the precision it is given.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bigtrain.errors import ConfigError
from bigtrain.reward.expert import ExpertData

Evidence = Literal["transitions", "transitions-and-actions"]
"""What tells an expert's context: p(θ | transitions), or Theorem 4.1's p(θ | ω, τ)."""


_NO_GRADIENT = 1e-9
"""What a gradient, in units of the prior's deviation, must exceed to be followed."""


@dataclass(frozen=True)
class IRLConfig:
    """The model of the expert, and the prior over ω.

    `prior_variance` is the paper's ς₀² = σ₀² / α: the Gaussian prior has the variance
    `temperature * prior_variance`. `prior_mean` is one number for all weights, or one for each.
    """

    temperature: float = 0.01
    prior_mean: float | tuple[float, ...] = 0.0
    prior_variance: float = 100.0
    evidence: Evidence = "transitions"

    def __post_init__(self):
        for name in ("temperature", "prior_variance"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must be positive, got {getattr(self, name)}.")
        if not np.isfinite(self.prior_mean).all():
            raise ConfigError(f"`prior_mean` must be finite, got {self.prior_mean}.")
        if self.evidence not in ("transitions", "transitions-and-actions"):
            raise ConfigError(
                "`evidence` must be 'transitions' or 'transitions-and-actions', "
                f"got {self.evidence!r}."
            )

    @property
    def weight_variance(self) -> float:
        """σ₀², the variance of the prior over ω."""
        return self.temperature * self.prior_variance

    def prior_weights(self, num_features: int) -> Float[np.ndarray, " feature"]:
        """ω₀, the mean of the prior over ω."""
        mean = np.asarray(self.prior_mean, np.float64)
        if mean.shape not in ((), (num_features,)):
            raise ConfigError(
                f"`prior_mean` must be one number or {num_features}, one for each feature, "
                f"got {mean.size}."
            )
        return np.broadcast_to(mean, (num_features,)).copy()


class RewardPosterior(NamedTuple):
    """N(ω*, Σ), the Laplace approximation of p(ω | demonstrations)."""

    mean: Float[np.ndarray, " feature"]
    covariance: Float[np.ndarray, "feature feature"]

    def sample(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "sample feature"]:
        return jax.random.multivariate_normal(
            key, jnp.asarray(self.mean), jnp.asarray(self.covariance), (num_samples,), method="svd"
        )

    def predict(
        self, features: Float[np.ndarray, "*batch feature"]
    ) -> tuple[Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"]]:
        """Mean and variance of the reward ν·ω where the features are ν."""
        variance = np.einsum("...i,ij,...j->...", features, self.covariance, features)
        return features @ self.mean, variance


class MAPInfo(NamedTuple):
    """How the search for the maximum went."""

    log_posterior: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    num_steps: Int[Array, ""]
    converged: Bool[Array, ""]


def log_policy(
    successor_features: Float[Array, "context visited action feature"],
    reward_weights: Float[Array, " feature"],
    temperature: float | Float[Array, ""],
) -> Float[Array, "context visited action"]:
    """log p(a | s, θ, ω), the Boltzmann model of the expert (eq. (2))."""
    return jax.nn.log_softmax(successor_features @ reward_weights / temperature, axis=-1)


def context_log_joint(
    data: ExpertData,
    log_policies: Float[Array, "context visited action"],
    evidence: Evidence,
) -> Float[Array, "trajectory context"]:
    """log p(τ_i, θ) up to a constant, from transitions alone or from actions too.

    log p(θ) + Σ_j log p(s_{j+1} | s_j, a_j, θ) [+ Σ_j log p(a_j | s_j, θ, ω)].
    """
    log_evidence = jnp.asarray(data.log_evidence)
    if evidence == "transitions":
        return log_evidence
    per_step = log_policies[:, data.rows, data.actions].T
    return log_evidence + jax.ops.segment_sum(
        per_step, jnp.asarray(data.trajectories), num_segments=len(log_evidence)
    )


def visit_counts(
    data: ExpertData,
    responsibilities: Float[Array, "trajectory context"],
    num_actions: int,
) -> Float[Array, "context visited action"]:
    """n(θ, s, a): how often each action was taken in each state and context, weighed by ρ."""
    shape = (responsibilities.shape[1], data.num_visited, num_actions)
    per_step = responsibilities[jnp.asarray(data.trajectories)].T
    return jnp.zeros(shape, per_step.dtype).at[:, data.rows, data.actions].add(per_step)


def log_posterior(
    reward_weights: Float[Array, " feature"],
    successor_features: Float[Array, "context visited action feature"],
    data: ExpertData,
    config: IRLConfig,
    *,
    counts: Float[Array, "context visited action"] | None = None,
) -> Float[Array, ""]:
    """log p(ω | demonstrations) up to a constant, (a); the prior counts once.

    With evidence from transitions the contexts' probabilities do not depend on ω and the
    expected log-likelihood under them takes the place of the marginal one, as in the theorem.
    `counts`, from `known_counts`, saves counting again.
    """
    log_policies = log_policy(successor_features, reward_weights, config.temperature)
    if counts is None:
        counts = known_counts(data, config, log_policies.shape[-1])
    deviation = reward_weights - jnp.asarray(config.prior_mean)
    return log_likelihood(log_policies, data, config, counts) - (
        (deviation**2).sum() / (2 * config.weight_variance)
    )


def log_likelihood(
    log_policies: Float[Array, "context visited action"],
    data: ExpertData,
    config: IRLConfig,
    counts: Float[Array, "context visited action"] | None,
) -> Float[Array, ""]:
    """The part of the log posterior that demonstrations speak of; `counts` from `known_counts`."""
    if counts is not None:
        return (counts * log_policies).sum()
    return jax.nn.logsumexp(context_log_joint(data, log_policies, config.evidence), axis=-1).sum()


def known_counts(
    data: ExpertData, config: IRLConfig, num_actions: int
) -> Float[Array, "context visited action"] | None:
    """The visit counts, where the evidence does not wait for ω; otherwise None."""
    if config.evidence != "transitions":
        return None
    return visit_counts(data, jax.nn.softmax(jnp.asarray(data.log_evidence)), num_actions)


def log_posterior_derivatives(
    reward_weights: Float[Array, " feature"],
    successor_features: Float[Array, "context visited action feature"],
    data: ExpertData,
    config: IRLConfig,
    *,
    counts: Float[Array, "context visited action"] | None = None,
) -> tuple[Float[Array, " feature"], Float[Array, "feature feature"]]:
    """The gradient of the log posterior (eq. (3), over α), and minus its Hessian.

    The Hessian is that for the contexts' present probabilities, which is all there is to it when
    these come from transitions. `counts` may be those of a sample, scaled up.
    """
    alpha, variance = config.temperature, config.weight_variance
    log_policies = log_policy(successor_features, reward_weights, alpha)
    policies = jnp.exp(log_policies)
    if counts is None:
        log_joint = context_log_joint(data, log_policies, config.evidence)
        counts = visit_counts(data, jax.nn.softmax(log_joint), policies.shape[-1])
    totals = counts.sum(-1, keepdims=True)
    slopes = residual_counts(counts, policies) / alpha
    gradient = jnp.einsum("cva,cvad->d", slopes, successor_features)
    gradient -= (reward_weights - jnp.asarray(config.prior_mean)) / variance
    # Σ n p (Ψ − Ψ̄)(Ψ − Ψ̄)ᵀ as a product of rows √(n p) (Ψ − Ψ̄), which cannot turn indefinite.
    mean = jnp.einsum("cva,cvad->cvd", policies, successor_features)
    spread = jnp.sqrt(totals * policies)[..., None] * (successor_features - mean[..., None, :])
    spread = spread.reshape(-1, spread.shape[-1]) / alpha
    return gradient, spread.T @ spread + jnp.eye(len(reward_weights)) / variance


def residual_counts(
    counts: Float[Array, "context visited action"],
    policies: Float[Array, "context visited action"],
) -> Float[Array, "context visited action"]:
    """n(θ, s, a) − n(θ, s) p(a | s, θ): how much more often than expected each action was taken."""
    # Without cancelling where experts are nearly certain: n_a − p_a Σ n = n_a (1 − p_a) −
    # p_a Σ_{a' ≠ a} n_a', and 1 − p_a is what the other ones have.
    others = 1 - jnp.eye(policies.shape[-1])
    return counts * (policies @ others) - policies * (counts @ others)


def sampled_gradient(
    key: PRNGKeyArray,
    reward_weights: Float[Array, " feature"],
    successor_features: Float[Array, "context visited action feature"],
    data: ExpertData,
    config: IRLConfig,
    num_trajectories: int,
) -> Float[Array, " feature"]:
    """The direction of the paper's stochastic update of ω (eq. (3)), from a few trajectories.

    It is α times the gradient of the log posterior, with the prior counted once and the
    likelihood of the sample scaled up to that of all demonstrations.
    """
    total = len(data.log_evidence)
    chosen = jax.random.randint(key, (num_trajectories,), 0, total)
    # N_Expert / (sample) times how often each was drawn, with replacement: unbiased.
    shares = jnp.zeros(total).at[chosen].add(total / num_trajectories)
    log_policies = log_policy(successor_features, reward_weights, config.temperature)
    beliefs = jax.nn.softmax(context_log_joint(data, log_policies, config.evidence))
    counts = visit_counts(data, shares[:, None] * beliefs, successor_features.shape[2])
    gradient, _ = log_posterior_derivatives(
        reward_weights, successor_features, data, config, counts=counts
    )
    return config.temperature * gradient


@eqx.filter_jit
def map_estimate(
    successor_features: Float[Array, "context visited action feature"],
    data: ExpertData,
    config: IRLConfig,
    reward_weights: Float[Array, " feature"],
    *,
    max_steps: int = 200,
    tolerance: float = 1e-9,
) -> tuple[Float[Array, " feature"], MAPInfo]:
    """ω that maximises the log posterior for fixed Ψ, from `reward_weights` on.

    Newton's method with backtracking. With evidence from actions each step maximises the
    expected log posterior under the present p(θ | ω, τ) (expectation maximisation), whose
    gradient is that of the log posterior itself. The last step is the first to be shorter than
    `tolerance` posterior deviations.

    By hand, since `optimistix` would be a dependency more, and its searches have neither an
    allowance for rounding nor EM's matrix in place of the Hessian.
    """
    counts = known_counts(data, config, successor_features.shape[2])

    def objective(weights):
        return log_posterior(weights, successor_features, data, config, counts=counts)

    def derivatives(weights):
        return log_posterior_derivatives(weights, successor_features, data, config, counts=counts)

    # In units of the prior's deviation, whatever the scale of ω.
    def scaled_norm(gradient):
        return jnp.abs(gradient).max() * jnp.sqrt(config.weight_variance)

    def newton(carry):
        weights, gradient, precision, _, step = carry
        # In single precision rounding can make the matrix indefinite, and Cholesky fail.
        kind = "pos" if precision.dtype == jnp.float64 else "gen"
        direction = jax.scipy.linalg.solve(precision, gradient, assume_a=kind)
        slope = gradient @ direction  # the step's squared length in posterior deviations
        start = objective(weights)
        # What the objective cannot tell: without the allowance the last steps, which gain less
        # than it rounds by, would be refused.
        rounding = 16 * jnp.finfo(start.dtype).eps * jnp.abs(start)

        def too_far(scale):
            gain = objective(weights + scale * direction) - start + rounding
            # Armijo's condition; negated, so that NaN counts as too far.
            return ~(gain >= 1e-4 * scale * slope) & (scale > 1e-10)

        scale = jax.lax.while_loop(too_far, lambda scale: scale / 2, jnp.ones_like(slope))
        stuck = (scale <= 1e-10) | ~(slope > tolerance**2)
        # The last step is made as well, unless the matrix gave no direction of ascent.
        moved = jnp.where(stuck & ~(slope > 0), weights, weights + scale * direction)
        return moved, *derivatives(moved), stuck, step + 1

    def unfinished(carry):
        _, gradient, _, stuck, step = carry
        return (scaled_norm(gradient) > _NO_GRADIENT) & ~stuck & (step < max_steps)

    begin = (reward_weights, *derivatives(reward_weights), jnp.asarray(False), jnp.asarray(0))
    weights, gradient, _, _, step = jax.lax.while_loop(unfinished, newton, begin)
    norm = scaled_norm(gradient)
    return weights, MAPInfo(objective(weights), norm, step, norm <= 1e3 * tolerance)


@eqx.filter_jit
def laplace_covariance(
    reward_weights: Float[Array, " feature"],
    successor_features: Float[Array, "context visited action feature"],
    data: ExpertData,
    config: IRLConfig,
) -> Float[Array, "feature feature"]:
    """Σ, the inverse of minus the Hessian of the log posterior (design, point 5)."""
    if config.evidence == "transitions":
        _, precision = log_posterior_derivatives(reward_weights, successor_features, data, config)
    else:
        precision = -jax.hessian(log_posterior)(reward_weights, successor_features, data, config)
    return jnp.linalg.inv(precision)
