"""Numbers over seeds, and how they are told."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bigtrain.evaluate import Estimate


def estimate(values: Sequence[float] | np.ndarray) -> Estimate:
    """The mean, and its standard error over seeds; 0 where there is only one."""
    array = np.asarray(values, np.float64)
    stderr = array.std(ddof=1) / np.sqrt(len(array)) if len(array) > 1 else 0.0
    if stderr <= 1e-9 * np.abs(array).max(initial=0):  # rounding
        stderr = 0.0
    return Estimate(float(array.mean()), float(stderr))


def span(results: Sequence[Mapping[str, Any]], name: str) -> str:
    """From the least to the greatest."""
    values = [result[name] for result in results]
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def share(holds: Sequence[bool]) -> str:
    """How many of how many."""
    return f"{sum(holds)} of {len(holds)} seeds"
