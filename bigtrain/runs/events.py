"""What a learner says of its work as it goes, and who hears it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from bigtrain.errors import ConfigError

Number = int | float | np.number
Metric = Number | Sequence[Number] | np.ndarray | jax.Array
"""A number, or one for each seed."""


class Event(NamedTuple):
    """A moment of the work: its phase, a count within the phase, and what was measured.

    `total` is how far the phase will count at most, where that is known.
    """

    phase: str
    step: int
    metrics: Mapping[str, Metric]
    total: int | None = None


Callback = Callable[[Event], None]
"""Hears of every event as it happens."""


def metric_values(name: str, metric: Metric) -> Float[np.ndarray, " *seed"]:
    """The metric as float64: no axis, or one of seeds."""
    values = np.asarray(metric, np.float64)
    if values.ndim > 1:
        raise ConfigError(
            f"`{name}` must be a number or one for each seed, got the shape {values.shape}."
        )
    return values
