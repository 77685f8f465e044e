"""What a user hands over, turned into arrays that can be relied on.

Indices become int32; everything is in native byte order, contiguous and read-only. A flaw is
reported with its place: `where` words the place of a flat index.
"""

from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from bigtrain.arrays import ArrayLike
from bigtrain.errors import DemonstrationError
from bigtrain.problem import Where

OBSERVATION_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)


def clean_observations(given: ArrayLike, where: Where) -> Shaped[np.ndarray, "observation ..."]:
    """Observations as numbers without NaN; integer scalars as state indices."""
    values = _as_array("observations", given)
    if values.dtype.name not in OBSERVATION_DTYPES:
        raise DemonstrationError(
            f"`observations` must be booleans, integers or floats of at most 64 bits, "
            f"got {values.dtype}. Encode them as numbers first."
        )
    if values.ndim == 0 or 0 in values.shape[1:]:
        raise DemonstrationError(
            "`observations` must have a first axis for the steps, and at least one number for "
            f"each, got the shape {values.shape}."
        )
    if is_state_indices(values):
        return clean_indices("observations", values, where)
    if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
        place = int(np.argwhere(~finite)[0][0])
        raise DemonstrationError(
            f"`observations` must be finite, but {where(place)} holds NaN or infinity."
        )
    return freeze(values)


def clean_indices(field: str, given: ArrayLike, where: Where) -> Int[np.ndarray, " entry"]:
    """Indices (actions, states, contexts) as int32."""
    values = _as_array(field, given)
    if values.dtype.kind not in "iu":
        raise DemonstrationError(f"`{field}` must be integers, got {values.dtype}.")
    if values.ndim != 1:
        raise DemonstrationError(f"`{field}` must have one axis, got the shape {values.shape}.")
    wrong = np.flatnonzero((values < 0) | (values > np.iinfo(np.int32).max))
    if len(wrong):
        place = int(wrong[0])
        raise DemonstrationError(
            f"`{field}` must be indices from 0 to {np.iinfo(np.int32).max}, "
            f"but {where(place)} has {values[place]}."
        )
    return freeze(values.astype(np.int32, copy=False))


def check_below(
    field: str, values: Int[np.ndarray, " entry"], limit: int, noun: str, where: Where
) -> Int[np.ndarray, " entry"]:
    """`values`, all of them below `limit`."""
    wrong = np.flatnonzero(values >= limit)
    if len(wrong):
        place = int(wrong[0])
        raise DemonstrationError(
            f"`{field}` must be below {limit}, the number of {noun}, "
            f"but {where(place)} has {values[place]}."
        )
    return values


def is_state_indices(observations: Shaped[np.ndarray, "observation ..."]) -> bool:
    """Whether observations are integer scalars, that is, states of a finite problem."""
    return observations.ndim == 1 and observations.dtype.kind in "iu"


def freeze(values: np.ndarray) -> np.ndarray:
    """A native, contiguous, read-only view, copied only where needed."""
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    view = np.ascontiguousarray(native).view()
    view.flags.writeable = False
    return view


def _as_array(field: str, given: Any) -> np.ndarray:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise DemonstrationError(
            f"`{field}` must be one array, got nested sequences of different lengths."
        ) from error
