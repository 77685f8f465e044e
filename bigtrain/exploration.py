"""Phase 2: the reward's scale, and what exploring may cost (section 4.3).

Inverse RL finds a reward up to scale and shift. It is stretched to [r_min, r_max], and where the
expert never had to explore, a prior over k says what exploring is worth: r = k · r_max there.
"""

import abc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bigtrain.arrays import ArrayLike
from bigtrain.cmdp import TabularCMDP
from bigtrain.errors import ConfigError
from bigtrain.irl import RewardPosterior

States = Sequence[int | str] | Callable[[int], bool]
"""States by index, by name, or as a predicate of the index."""


class KPrior(abc.ABC):
    """p(k): what exploring is worth, as a share of r_max. Fields may be arrays [state, action]."""

    @property
    @abc.abstractmethod
    def mean(self) -> Float[np.ndarray, "..."]:
        """E[k], all that the Bayes-optimal policy depends on."""

    @property
    @abc.abstractmethod
    def variance(self) -> Float[np.ndarray, "..."]: ...

    @property
    @abc.abstractmethod
    def support(self) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        """The least and the greatest k."""

    @abc.abstractmethod
    def quantile(self, probability: Float[Array, "..."]) -> Float[Array, "..."]:
        """The k below which `probability` of the prior lies; sampling goes through it."""


@final
@dataclass(frozen=True)
class Uniform(KPrior):
    """k is anywhere from `low` to `high`."""

    low: ArrayLike
    high: ArrayLike

    def __post_init__(self):
        try:
            np.broadcast_shapes(np.shape(self.low), np.shape(self.high))
        except ValueError:
            raise ConfigError(
                "`low` and `high` must fit each other, got the shapes "
                f"{np.shape(self.low)} and {np.shape(self.high)}."
            ) from None
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
            raise ConfigError(f"`low` must not exceed `high`, got {self.low} and {self.high}.")

    @property
    def mean(self) -> Float[np.ndarray, "..."]:
        low, high = self.support
        return np.asarray((low + high) / 2)

    @property
    def variance(self) -> Float[np.ndarray, "..."]:
        low, high = self.support
        return np.asarray((high - low) ** 2 / 12)

    @property
    def support(self) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        return np.asarray(self.low, float), np.asarray(self.high, float)

    def quantile(self, probability: Float[Array, "..."]) -> Float[Array, "..."]:
        low, high = map(jnp.asarray, self.support)
        return low + (high - low) * probability


@final
@dataclass(frozen=True)
class Fixed(KPrior):
    """k is known."""

    value: ArrayLike

    @property
    def mean(self) -> Float[np.ndarray, "..."]:
        return np.asarray(self.value, float)

    @property
    def variance(self) -> Float[np.ndarray, "..."]:
        return np.zeros_like(self.mean)

    @property
    def support(self) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        return self.mean, self.mean

    def quantile(self, probability: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.broadcast_to(jnp.asarray(self.mean), probability.shape)


@final
@dataclass(frozen=True, eq=False)
class CostOfExploration:
    """Where exploring can be done, and p(k) there.

    `actions` are all of them unless given. The fields of `k` may differ between pairs: they are
    broadcast to [state, action] over the states and actions named here.
    """

    states: States
    actions: Sequence[int | str] | None = None
    k: KPrior = Uniform(0.0, 1.0)

    def mask(self, cmdp: TabularCMDP) -> Bool[np.ndarray, "state action"]:
        """Which (state, action) the prior speaks of."""
        mask = np.zeros((cmdp.num_states, cmdp.num_actions), bool)
        mask[np.ix_(*self._indices(cmdp))] = True
        return mask

    def spread(self, cmdp: TabularCMDP, values: ArrayLike) -> Float[np.ndarray, "state action"]:
        """`values` for the named pairs laid out over all of them, 0 elsewhere."""
        states, actions = self._indices(cmdp)
        table = np.zeros((cmdp.num_states, cmdp.num_actions))
        try:
            table[np.ix_(states, actions)] = values
        except ValueError:
            raise ConfigError(
                f"`k` must be a number, or fit the {len(states)} states and {len(actions)} "
                f"actions of the exploration set, got the shape {np.shape(values)}."
            ) from None
        return table

    def check_support(self, reward_range: tuple[float, float]) -> None:
        """Raises unless k · r_max stays within the range."""
        r_min, r_max = reward_range
        low, high = self.k.support
        if r_max <= 0:
            raise ConfigError(
                "A cost of exploration is a share of `r_max`, so `r_max` must be positive, "
                f"got the range ({r_min}, {r_max}). Shift the range."
            )
        if not (np.all(low >= r_min / r_max) and np.all(high <= 1)):
            raise ConfigError(
                f"`k` must lie from r_min/r_max = {r_min / r_max:g} to 1, "
                f"got {np.min(low):g} to {np.max(high):g}."
            )

    def _indices(self, cmdp: TabularCMDP) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if callable(self.states):
            states = tuple(s for s in range(cmdp.num_states) if self.states(s))
        else:
            states = cmdp.state_indices(self.states)
        actions = (
            tuple(range(cmdp.num_actions))
            if self.actions is None
            else cmdp.action_indices(self.actions)
        )
        if not states or not actions:
            raise ConfigError(
                "The exploration set must not be empty, got "
                f"{len(states)} states and {len(actions)} actions. For no exploration prior, "
                "leave `exploration` out."
            )
        return states, actions


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
    scale = (r_max - r_min) / (high - low)
    return Rescaling(float(scale), float(r_min - scale * low))


class PredictiveReward(eqx.Module):
    """p^{IRL+COE}(r | s, a), the Bayesian reward distribution of a finite problem (eq. 5).

    Outside the exploration set r = ν·ω̄ + bias with ω̄ ~ N(`weights`, `covariance`); inside it
    r = k · r_max. The range was set by the posterior mean, and counts as known.
    """

    cmdp: TabularCMDP
    weights: Float[np.ndarray | Array, " feature"]
    bias: float
    covariance: Float[np.ndarray | Array, "feature feature"]
    reward_range: tuple[float, float] = eqx.field(static=True)
    exploration: CostOfExploration | None = eqx.field(static=True)

    def table(self) -> Float[np.ndarray, "state action"]:
        """The predictive mean of every (state, action), in float64."""
        mean = self.irl_table()
        if self.exploration is None:
            return mean
        worth = self.exploration.spread(self.cmdp, self.exploration.k.mean * self.reward_range[1])
        return np.where(self.exploration.mask(self.cmdp), worth, mean)

    def irl_table(self) -> Float[np.ndarray, "state action"]:
        """The same before the exploration prior."""
        mean = self.cmdp.feature_matrix() @ np.asarray(self.weights) + self.bias
        return mean.reshape(self.cmdp.num_states, self.cmdp.num_actions)

    def variance_table(self) -> Float[np.ndarray, "state action"]:
        """The predictive variance of every (state, action)."""
        features = self.cmdp.feature_matrix()
        spread = np.asarray(features.multiply(features @ np.asarray(self.covariance)).sum(-1))
        spread = spread.reshape(self.cmdp.num_states, self.cmdp.num_actions)
        if self.exploration is None:
            return spread
        r_max = self.reward_range[1]
        prior = self.exploration.spread(self.cmdp, self.exploration.k.variance * r_max**2)
        return np.where(self.exploration.mask(self.cmdp), prior, spread)

    def mean(self, state: Int[Array, ""], action: Int[Array, ""]) -> Float[Array, ""]:
        """The predictive mean of one pair; compiles."""
        inferred = self.cmdp.features(state, action) @ jnp.asarray(self.weights) + self.bias
        if self.exploration is None:
            return inferred
        worth = self.exploration.k.mean * self.reward_range[1]
        return self._where_exploring(state, action, worth, inferred)

    def variance(self, state: Int[Array, ""], action: Int[Array, ""]) -> Float[Array, ""]:
        """The predictive variance of one pair; compiles."""
        features = self.cmdp.features(state, action)
        inferred = features @ jnp.asarray(self.covariance) @ features
        if self.exploration is None:
            return inferred
        spread = self.exploration.k.variance * self.reward_range[1] ** 2
        return self._where_exploring(state, action, spread, inferred)

    def _where_exploring(
        self,
        state: Int[Array, ""],
        action: Int[Array, ""],
        inside: ArrayLike,
        outside: Float[Array, ""],
    ) -> Float[Array, ""]:
        assert self.exploration is not None
        explores = jnp.asarray(self.exploration.mask(self.cmdp))[state, action]
        laid_out = jnp.asarray(self.exploration.spread(self.cmdp, inside))
        return jnp.where(explores, laid_out[state, action], outside)

    def sample_tables(
        self, key: PRNGKeyArray, num_samples: int
    ) -> Float[Array, "sample state action"]:
        """Whole reward functions drawn from the distribution."""
        key_weights, key_k = jax.random.split(key)
        posterior = RewardPosterior(np.asarray(self.weights), np.asarray(self.covariance))
        weights = posterior.sample(key_weights, num_samples)
        shape = (num_samples, self.cmdp.num_states, self.cmdp.num_actions)
        drawn = jnp.asarray((self.cmdp.feature_matrix() @ np.asarray(weights).T).T).reshape(shape)
        drawn = drawn + self.bias
        if self.exploration is None:
            return drawn
        states, actions = (np.asarray(part) for part in self.exploration._indices(self.cmdp))
        uniform = jax.random.uniform(key_k, (num_samples, len(states), len(actions)))
        worth = self.exploration.k.quantile(uniform) * self.reward_range[1]
        return drawn.at[:, states[:, None], actions].set(worth)


def check_settings(
    cmdp: TabularCMDP, reward_range: tuple[float, float], exploration: CostOfExploration | None
) -> None:
    """Raises where phase 2 could not be done, so that it is known before phase 1."""
    if not (np.isfinite(reward_range).all() and reward_range[0] < reward_range[1]):
        raise ConfigError(
            f"`reward_range` must be (r_min, r_max) with r_min < r_max, got {reward_range}."
        )
    if exploration is not None:
        exploration.spread(cmdp, exploration.k.mean)
        exploration.check_support(reward_range)


def predictive_reward(
    cmdp: TabularCMDP,
    posterior: RewardPosterior,
    *,
    reward_range: tuple[float, float],
    exploration: CostOfExploration | None = None,
) -> PredictiveReward:
    """Phase 2 as a whole: rescales the posterior and lays the exploration prior over it."""
    check_settings(cmdp, reward_range, exploration)
    if exploration is not None and np.any(exploration.k.mean >= 1):
        warnings.warn(
            "With k = 1 exploring is worth as much as the best there is: the agent may never stop "
            "exploring.",
            stacklevel=2,
        )
    mean = (cmdp.feature_matrix() @ posterior.mean).reshape(cmdp.num_states, cmdp.num_actions)
    scale, shift = rescale(mean, cmdp.occurring_states(), reward_range)
    return PredictiveReward(
        cmdp,
        scale * posterior.mean,
        shift,
        scale**2 * posterior.covariance,
        reward_range,
        exploration,
    )
