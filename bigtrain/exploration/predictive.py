"""The Bayesian reward distribution: the posterior rescaled, with p(k) where exploring is done
(section 4.3).

    p^{IRL+COE}(r | s, a): r = k r_max, k ~ p(k), in S_COE × A_COE,          (eq. (4))
                           r ~ N(ν(s, a)·ω̄ + bias, νᵀΣ̄ν) elsewhere;
    r^{IRL+COE}(s, a)      = r_max E[k] in S_COE × A_COE,                    (eq:predictive_reward)
                           = ν(s, a)·ω̄ + bias elsewhere,

with the posterior N(ω*, Σ) of phase 1 stretched to the range,

    ω̄ = scale · ω*,   Σ̄ = scale² Σ,   scale = (r_max − r_min) / (max ν·ω* − min ν·ω*),
    bias = r_min − scale · min ν·ω*            over the state-actions that can occur

The Bayes-optimal policy depends on the mean alone (appendix F.1). The paper's aleatoric σ² is left
out: it is the same for every policy.

What bites (design, points 1, 2 and 8):
- Rescaling is affine. The bias is no ω unless features sum to one, and it leaves the best policy
  as it was only because no episode ends.
- The range is over what can occur. A state that no context leads to has the prior's reward, and
  would set the scale of all others.
- k is measured in r_max, so an error in the inferred maximum is one in what exploring pays.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bigtrain.errors import ConfigError
from bigtrain.exploration.cost import CostOfExploration
from bigtrain.problem import Simulator, State
from bigtrain.reward import RewardPosterior

FLOAT32_TOLERANCE = 1e-4
"""What rounding may take from the predictive mean in compiled code, as a share of the range."""


class Rescaling(NamedTuple):
    """r ↦ scale · r + shift."""

    scale: float
    shift: float


def rescale(
    reward: Float[np.ndarray, "state action"],
    occurring: Bool[np.ndarray, " state"],
    reward_range: tuple[float, float],
) -> Rescaling:
    """What stretches the reward of the states that can occur to exactly [r_min, r_max]."""
    r_min, r_max = reward_range
    low, high = reward[occurring].min(), reward[occurring].max()
    if not high > low:
        raise ConfigError(
            f"The inferred reward is {low:g} wherever the agent can be, so it has no scale. "
            "The demonstrations show no preference; check them, and the prior."
        )
    scale = (r_max - r_min) / (high - low)  # `low` goes to r_min, `high` to r_max
    return Rescaling(float(scale), float(r_min - scale * low))


class PredictiveReward(eqx.Module):
    """p^{IRL+COE}(r | s, a), the Bayesian reward distribution (eq. (4)).

    Outside the exploration set r = ν·ω̄ + bias with ω̄ ~ N(`weights`, `covariance`); inside it
    r = k · r_max. The range was set by the posterior mean, and counts as known; `scale` is what
    stretched ω to ω̄. Methods of one pair compile for any problem; tables are of finite ones.
    """

    cmdp: Simulator
    weights: Float[np.ndarray | Array, " feature"]
    bias: float
    covariance: Float[np.ndarray | Array, "feature feature"]
    scale: float
    reward_range: tuple[float, float] = eqx.field(static=True)
    exploration: CostOfExploration | None = eqx.field(static=True)

    def mean(self, state: State, action: Int[Array, ""]) -> Float[Array, ""]:
        """The predictive mean of one pair; compiles."""
        inferred = self._inferred_mean(state, action)
        if self.exploration is None:
            return inferred
        paid = self.exploration.k.mean * self.reward_range[1]
        return self._where_exploring(state, action, jnp.asarray(paid), inferred)

    def variance(self, state: State, action: Int[Array, ""]) -> Float[Array, ""]:
        """The predictive variance of one pair; compiles."""
        inferred = self._inferred_variance(state, action)
        if self.exploration is None:
            return inferred
        spread = self.exploration.k.variance * self.reward_range[1] ** 2
        return self._where_exploring(state, action, jnp.asarray(spread), inferred)

    def sample(self, key: PRNGKeyArray, state: State, action: Int[Array, ""]) -> Float[Array, ""]:
        """One reward of one pair drawn from the distribution, apart from all others; compiles."""
        key_inferred, key_k = jax.random.split(key)
        deviation = jnp.sqrt(self._inferred_variance(state, action))
        inferred = self._inferred_mean(state, action) + deviation * jax.random.normal(key_inferred)
        if self.exploration is None:
            return inferred
        k = self.exploration.k
        # One uniform number for all pairs: one k by its quantile, as far as its fields agree.
        drawn = k.quantile(jnp.full(np.shape(k.mean), jax.random.uniform(key_k)))
        return self._where_exploring(state, action, drawn * self.reward_range[1], inferred)

    def is_exploring(self, state: State, action: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether one pair is in the exploration set; compiles."""
        if self.exploration is None:
            return jnp.asarray(False)
        return self.exploration.contains(self.cmdp, state, action)

    def table(self) -> Float[np.ndarray, "state action"]:
        """The predictive mean of every (state, action), in float64."""
        mean, cmdp = self.irl_table(), self.cmdp
        if self.exploration is None:
            return mean
        paid = self.exploration.spread(cmdp, self.exploration.k.mean * self.reward_range[1])
        return np.where(self.exploration.mask(cmdp), paid, mean)

    def as_function(self) -> Callable[[State, Int[Array, ""]], Float[Array, ""]]:
        """The predictive mean, as `evaluate` wants a reward: from tables in finite problems."""
        return self.cmdp.tabulate(self.table()) if self.cmdp.is_finite else self.mean

    def irl_table(self) -> Float[np.ndarray, "state action"]:
        """The same before the exploration prior."""
        cmdp = self.cmdp
        mean = cmdp.feature_matrix() @ np.asarray(self.weights) + self.bias
        return mean.reshape(cmdp.num_states, cmdp.num_actions)

    def variance_table(self) -> Float[np.ndarray, "state action"]:
        """The predictive variance of every (state, action)."""
        cmdp = self.cmdp
        features = cmdp.feature_matrix()
        # νᵀΣ̄ν row by row, without [pair, pair].
        spread = np.asarray(features.multiply(features @ np.asarray(self.covariance)).sum(-1))
        spread = spread.reshape(cmdp.num_states, cmdp.num_actions)
        if self.exploration is None:
            return spread
        r_max = self.reward_range[1]
        prior = self.exploration.spread(cmdp, self.exploration.k.variance * r_max**2)
        return np.where(self.exploration.mask(cmdp), prior, spread)

    def sample_tables(
        self, key: PRNGKeyArray, num_samples: int
    ) -> Float[Array, "sample state action"]:
        """Whole reward functions drawn from the distribution."""
        cmdp = self.cmdp
        key_weights, key_k = jax.random.split(key)
        posterior = RewardPosterior(np.asarray(self.weights), np.asarray(self.covariance))
        weights = posterior.sample(key_weights, num_samples)
        shape = (num_samples, cmdp.num_states, cmdp.num_actions)
        drawn = jnp.asarray((cmdp.feature_matrix() @ np.asarray(weights).T).T).reshape(shape)
        drawn = drawn + self.bias
        if self.exploration is None:
            return drawn
        states, actions = (np.asarray(part) for part in self.exploration.indices(cmdp))
        uniform = jax.random.uniform(key_k, (num_samples, len(states), len(actions)))
        paid = self.exploration.k.quantile(uniform) * self.reward_range[1]
        return drawn.at[:, states[:, None], actions].set(paid)

    def _inferred_mean(self, state: State, action: Int[Array, ""]) -> Float[Array, ""]:
        features = self.cmdp.features(state, action)
        # Terms may cancel (see the warning of `predictive_reward`): no TF32 on GPUs.
        return jnp.dot(features, jnp.asarray(self.weights), precision="highest") + self.bias

    def _inferred_variance(self, state: State, action: Int[Array, ""]) -> Float[Array, ""]:
        features = self.cmdp.features(state, action)
        spread = jnp.dot(features, jnp.asarray(self.covariance), precision="highest")
        # Positive but for rounding, and a square root follows.
        return jnp.maximum(jnp.dot(spread, features, precision="highest"), 0)

    def _where_exploring(
        self,
        state: State,
        action: Int[Array, ""],
        inside: Float[Array, "..."],
        outside: Float[Array, ""],
    ) -> Float[Array, ""]:
        assert self.exploration is not None
        inside = self.exploration.pick(self.cmdp, inside, state, action)
        return jnp.where(self.is_exploring(state, action), inside, outside)


def check_settings(
    cmdp: Simulator, reward_range: tuple[float, float], exploration: CostOfExploration | None
) -> None:
    """Raises where phase 2 could not be done, so that it is known before phase 1.

    Whether a predicate holds of any state can be told of a finite problem only.
    """
    if not (np.isfinite(reward_range).all() and reward_range[0] < reward_range[1]):
        raise ConfigError(
            f"`reward_range` must be (r_min, r_max) with r_min < r_max, got {reward_range}."
        )
    if exploration is not None:
        exploration.check_set(cmdp)
        exploration.check_support(reward_range)


def predictive_reward(
    cmdp: Simulator,
    posterior: RewardPosterior,
    *,
    reward_range: tuple[float, float],
    exploration: CostOfExploration | None = None,
    states: State | None = None,
) -> PredictiveReward:
    """Phase 2 as a whole: rescales the posterior and lays the exploration prior over it.

    The range is that over the states that can occur. A finite problem knows them, and `states` is
    refused; for any other it must be a batch of states known to occur, from simulation and
    demonstrations: a pytree with the batch as the leading axis of every leaf.
    """
    check_settings(cmdp, reward_range, exploration)
    features, occurring = cmdp.occurring_features(states)
    if exploration is not None and states is not None:
        exploration.check_occurring(states)
    # [state, action], of all states that are given or that there are.
    mean = (features @ posterior.mean).reshape(-1, cmdp.num_actions)
    scale, shift = rescale(mean, occurring, reward_range)
    weights = scale * posterior.mean
    # What float32 loses goes with the largest sum of absolute terms, not with the result.
    terms = (abs(features) @ np.abs(weights)).reshape(mean.shape)[occurring].max() + abs(shift)
    lost = np.finfo(np.float32).eps * terms / (reward_range[1] - reward_range[0])
    if lost > FLOAT32_TOLERANCE:
        warnings.warn(
            f"In float32 the predictive mean may be off by {lost:.2g} of the reward range: large "
            "terms cancel in it. Take out of the features what they have in common.",
            stacklevel=2,
        )
    reward = PredictiveReward(
        cmdp, weights, shift, scale**2 * posterior.covariance, scale, reward_range, exploration
    )
    if exploration is None:
        return reward
    if np.any(exploration.k.mean >= 1):
        warnings.warn(
            "With k = 1 exploring is worth as much as the best there is: the agent may never stop "
            "exploring.",
            stacklevel=2,
        )
    elif states is not None:  # finite problems have a sharper test, run by who solves them
        _warn_of_endless(reward, scale * mean + shift, states)
    return reward


def _warn_of_endless(
    reward: PredictiveReward, mean: Float[np.ndarray, "state action"], states: State
) -> None:
    """Says so where nothing in any of `states` pays more than exploring does.

    Of finite problems more is known: see `bigtrain.finite.endless`.
    """
    assert reward.exploration is not None
    actions = jnp.arange(mean.shape[-1])
    exploring = jax.vmap(jax.vmap(reward.is_exploring, (None, 0)), (0, None))(states, actions)
    k, best = float(np.max(reward.exploration.k.mean)), mean[~np.asarray(exploring)]
    paid = k * reward.reward_range[1]
    if paid >= best.max(initial=-np.inf):
        ending = best.max(initial=reward.reward_range[0]) / reward.reward_range[1]
        warnings.warn(
            f"The best policy may explore for ever: with k = {k:.3g} exploring pays {paid:.4g} a "
            f"step, and nothing else pays more than {best.max(initial=-np.inf):.4g} in any state "
            f"met. A k of less than {ending:.3g} lets something else pay more.",
            stacklevel=3,
        )
