"""p(k): what exploring pays, as a share of r_max (section 4.3).

    Uniform           E[k] = (low + high) / 2,     Var[k] = (high − low)² / 12
    Fixed             E[k] = value,                Var[k] = 0
    MaximumEntropy    p(k) ∝ exp(λ t), t = (k − low) / (high − low), λ such that E[k] is given

For λ = −β < 0, E[t] = 1/β − e^{−β} / (1 − e^{−β}), Var[t] = 1/β² − e^{−β} / (1 − e^{−β})², and the
quantile u is at t = −log(1 − u (1 − e^{−β})) / β; λ > 0 is its mirror image.

What bites: for small β both moments are differences of terms like 1/β², and have a series instead;
for large β everything is computed from the end where the density is greatest, or it overflows.
"""

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bigtrain.arrays import ArrayLike
from bigtrain.errors import ConfigError


class KPrior(abc.ABC):
    """p(k): what exploring pays, as a share of r_max. Fields may be arrays [state, action]."""

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
        _check_shapes(low=self.low, high=self.high)
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
@dataclass(frozen=True, init=False)
class MaximumEntropy(KPrior):
    """k is known by its mean and its support, and by nothing else.

    Of all distributions with that mean on [`low`, `high`] this has the greatest entropy, so it
    claims the least beyond what was said: a density ∝ exp(rate · k), uniform where the mean is
    midway. Only a point mass has its mean at an end; that is allowed where `low` = `high`. Where
    more is known of k, subclass `KPrior`.
    """

    expected: ArrayLike
    low: ArrayLike
    high: ArrayLike

    # By hand, since a field called `mean` would stand in the way of the property.
    def __init__(self, mean: ArrayLike, low: ArrayLike, high: ArrayLike):
        vars(self).update(expected=mean, low=low, high=high)
        Uniform(low, high)  # refuses a support that is none
        _check_shapes(mean=mean, low=low, high=high)
        least, greatest = self.support
        if not np.isfinite(greatest - least).all():
            raise ConfigError(f"`low` and `high` must be finite, got {low} and {high}.")
        inside = (least < self.mean) & (self.mean < greatest)
        if not np.all(inside | ((least == self.mean) & (self.mean == greatest))):
            raise ConfigError(
                "`mean` must lie between `low` and `high`, and at an end only where these are "
                f"equal, got {mean} for {low} to {high}. Where k is known, use `Fixed`."
            )

    @property
    def mean(self) -> Float[np.ndarray, "..."]:
        shape = np.broadcast_shapes(*map(np.shape, (self.expected, self.low, self.high)))
        return np.broadcast_to(np.asarray(self.expected, float), shape)

    @property
    def variance(self) -> Float[np.ndarray, "..."]:
        low, high = self.support
        _, variance = _exponential_moments(self._rate)
        return np.asarray((high - low) ** 2 * variance)

    @property
    def support(self) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        return np.asarray(self.low, float), np.asarray(self.high, float)

    def quantile(self, probability: Float[Array, "..."]) -> Float[Array, "..."]:
        # Measured from the end where the density is greatest, nothing overflows or cancels.
        low, high = map(jnp.asarray, self.support)
        rising = jnp.asarray(self._rate > 0)
        rate = jnp.abs(jnp.asarray(self._rate))
        nearer = jnp.where(rising, 1 - probability, probability)
        distance = -jnp.log1p(nearer * jnp.expm1(-rate)) / jnp.where(rate > 0, rate, 1)
        distance = jnp.where(rate > 0, jnp.minimum(distance, 1), nearer) * (high - low)
        return jnp.where(rising, high - distance, low + distance)

    @cached_property
    def _rate(self) -> Float[np.ndarray, "..."]:
        """Of the density over (k − low) / (high − low)."""
        low, high = self.support
        width = np.where(high > low, high - low, 1)
        share = np.minimum(self.mean - low, high - self.mean) / width
        rate = _exponential_rate(np.where(high > low, share, 0.5))
        return np.where(self.mean - low > high - self.mean, rate, -rate)


def _check_shapes(**fields: ArrayLike) -> None:
    shapes = [np.shape(value) for value in fields.values()]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        *names, last = (f"`{name}`" for name in fields)
        raise ConfigError(
            f"{', '.join(names)} and {last} must fit each other, got the shapes "
            f"{', '.join(map(str, shapes[:-1]))} and {shapes[-1]}."
        ) from None


def _exponential_moments(
    rate: Float[np.ndarray, "..."],
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Mean and variance of the density ∝ exp(−|rate| · t) on [0, 1]."""
    rate = np.abs(rate)
    small = rate < 0.1  # where the closed forms cancel; the series are good to 1e-15 there
    # Each branch gets harmless numbers where the other one counts: NaN would pass through `where`.
    near, square = np.where(small, rate, 0), np.where(small, rate, 0) ** 2
    far = np.where(small, 1, rate)
    tail = -np.exp(-far) / np.expm1(-far)
    mean = 1 / 2 - near * (1 / 12 - square * (1 / 720 - square * (1 / 30240 - square / 1209600)))
    variance = 1 / 12 - square * (1 / 240 - square * (1 / 6048 - square / 172800))
    return (
        np.where(small, mean, 1 / far - tail),
        np.where(small, variance, 1 / far**2 - tail * (1 + tail)),
    )


def _exponential_rate(mean: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The rate at which that density has this mean, which is at most 1/2.

    Newton's method from Cohen's approximation of the inverse Langevin function, which is within 5%.
    """
    mean = np.maximum(mean, 1e-30)  # the rate, some 1 / mean, must fit float32
    offset = 1 - 2 * mean
    rate = offset * (3 - offset**2) / (2 * mean * (1 - mean))
    for _ in range(5):  # convergence is quadratic
        # dE[t]/dβ = −Var[t]
        found, variance = _exponential_moments(np.asarray(rate))
        rate = rate + (found - mean) / variance
    return np.asarray(rate)
