"""What may be given where an array is meant."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

ArrayLike = np.ndarray | jax.Array | Sequence[Any] | float | int
"""An array, nested sequences of numbers, or a number.

numpy's own `ArrayLike` is a protocol that run-time checkers take too literally: they refuse tuples
and floats.
"""
