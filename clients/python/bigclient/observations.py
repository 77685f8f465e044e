"""Observations → columns of a message, checked against the model before anything is sent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .description import ArraySpec, Model
from .errors import ObservationInvalid

# One array, or for a model with several entries a mapping by name, or a sequence in their order.
Observation = npt.ArrayLike | Mapping[str, npt.ArrayLike] | Sequence[npt.ArrayLike]


class ObservationSpec:
    """What a model takes as observations."""

    def __init__(self, model: Model):
        self._specs = model.observation
        self._names = [spec.name for spec in model.observation]

    @property
    def row_bytes(self) -> int:
        """The size of one observation in a message."""
        return sum(spec.dtype.itemsize * int(np.prod(spec.shape)) for spec in self._specs)

    def columns(self, observation: Observation, rows: tuple[int, ...]) -> list[np.ndarray]:
        """An array for each entry of the model, of its dtype and of shape `rows` + its shape."""
        entries = zip(self._specs, self._entries(observation), strict=True)
        return [_column(spec, entry, rows) for spec, entry in entries]

    def num_rows(self, observation: Observation) -> int | None:
        """The rows of a batch of observations; None for a single one."""
        shape = np.shape(self._entries(observation)[0])
        return shape[0] if len(shape) == len(self._specs[0].shape) + 1 else None

    def _entries(self, observation: Observation) -> Sequence[Any]:
        """The entries of an observation, in the model's order."""
        if isinstance(observation, Mapping):
            if sorted(observation) != sorted(self._names):
                raise ObservationInvalid(
                    f"An observation must have the entries {self._names}, got "
                    f"{sorted(observation)}: see `observation` in `client.describe()`."
                )
            return [observation[name] for name in self._names]
        if len(self._specs) == 1:
            return [observation]
        if not isinstance(observation, tuple | list) or len(observation) != len(self._specs):
            raise ObservationInvalid(
                f"An observation must be a mapping with the entries {self._names}, or a tuple of "
                f"them in that order, got a {type(observation).__name__}."
            )
        return observation


def _column(spec: ArraySpec, entry: Any, rows: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(entry)
    if array.dtype != spec.dtype:
        array = _cast(spec, array)
    if array.shape != (shape := rows + spec.shape):
        meaning = f": {rows[0]} episodes, each {spec.shape}" if rows else ""
        raise ObservationInvalid(
            f"{_title(spec)} must have shape {shape}{meaning}, got {array.shape}."
        )
    return array


def _cast(spec: ArraySpec, array: np.ndarray) -> np.ndarray:
    """The array in the dtype of the model, if no number changes but by the rounding of floats."""
    if np.can_cast(array.dtype, spec.dtype, "safe"):
        return array.astype(spec.dtype)
    both_whole = array.dtype.kind in "iu" and spec.dtype.kind in "iu"
    if not both_whole and not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        raise ObservationInvalid(
            f"{_title(spec)} must be {spec.dtype.name}, got {array.dtype.name}: convert it "
            f"yourself, as with `.astype(numpy.{spec.dtype.name})`, if nothing is lost by it."
        )
    with np.errstate(over="ignore"):  # A float that is too large shows below, as infinite.
        cast = array.astype(spec.dtype)
    rounded = array.dtype.kind == "f"
    kept = np.isfinite(cast) | ~np.isfinite(array) if rounded else cast.astype(array.dtype) == array
    if not np.all(kept):
        raise ObservationInvalid(
            f"{_title(spec)} must be {spec.dtype.name}, got {array.dtype.name} with the value "
            f"{array[~kept].flat[0]}, which {spec.dtype.name} cannot hold."
        )
    return cast


def _title(spec: ArraySpec) -> str:
    return f"Observation `{spec.name}`" if spec.name else "An observation"
