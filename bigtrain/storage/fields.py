"""What is in a bundle, value by value: each is checked before it is handed out.

The readers of `Fields` have writers here beside them, where a value is not stored as it is.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, final

import numpy as np
from jaxtyping import Float, Shaped

from bigtrain.arrays import ArrayLike
from bigtrain.errors import (
    BundleLimitError,
    BundleShapeError,
    BundleStructureError,
    BundleValueError,
    BundleWriteError,
    CMDPError,
    ConfigError,
)
from bigtrain.problem import SUM_TOLERANCE
from bigtrain.storage.limits import MAX_NAME, MAX_NAMES, MAX_RANK, MAX_TEXT

DTYPES = tuple(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)
"""What an array in a bundle can be made of."""

INTEGERS = (-(1 << 63), (1 << 64) - 1)
"""The least and the greatest whole number that msgpack can hold."""

_GREATEST = float(np.finfo(np.float32).max)  # policies run in float32
_MISSING = object()

Shape = tuple[int | None, ...]
"""The lengths of an array's axes; None stands for any."""

T = TypeVar("T")


@contextlib.contextmanager
def refusing(path: str) -> Iterator[None]:
    """Says of what settings or a problem find wrong where in the bundle it is."""
    try:
        yield
    except (CMDPError, ConfigError) as error:
        why = " ".join(str(error).split())  # where it shows an array, that has several lines
        raise BundleValueError(f"`{path}` cannot be used: {why}") from error


def write_array(values: ArrayLike, dtype: str | None = None) -> dict[str, Any]:
    """An array of any shape, as `dtype` or as it is."""
    array = np.asarray(values, dtype)
    if array.dtype.name not in DTYPES:
        raise BundleWriteError(
            f"Arrays must be booleans, integers or floats to be stored, got {array.dtype}."
        )
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def write_names(names: Iterable[str]) -> str:
    """Names as one text, a line each."""
    names = tuple(names)
    for name in names:
        if not name.isprintable():
            raise BundleWriteError(f"Names must be printable to be stored, got {name!r}.")
    return "\n".join(names)


@final
class Fields:
    """A map of a bundle. Fields that are not asked for are ignored."""

    def __init__(self, values: Any, where: str = ""):
        if type(values) is not dict:
            raise BundleStructureError(
                f"`{where or 'content'}` must be a map, got {_kind(values)}."
            )
        self._values = values
        self.where = where

    def path(self, name: str) -> str:
        """Where a field is, for messages."""
        return f"{self.where}.{name}" if self.where else name

    def keys(self) -> set[str]:
        """The names of all fields."""
        return set(self._values)

    def is_map(self, name: str) -> bool:
        """Whether a field is a map, where it may also be something else."""
        return type(self._values.get(name)) is dict

    def fields(self, name: str) -> "Fields":
        return Fields(self._take(name, dict), self.path(name))

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """What `read` makes of the field, or None where it is nil. It must be there."""
        return None if self._values.get(name, _MISSING) is None else read(name)

    def flag(self, name: str) -> bool:
        return self._take(name, bool)

    def number(self, name: str, *, low: float = -_GREATEST, high: float = _GREATEST) -> float:
        """A float from `low` to `high`."""
        value = self._take(name, float)
        if not low <= value <= high:
            raise BundleValueError(
                f"`{self.path(name)}` must be from {low:g} to {high:g}, got {value:g}."
            )
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        return self._check_integer(name, self._take(name, int), low, high)

    def integers(self, name: str, low: int, high: int, *, most: int) -> tuple[int, ...]:
        """A list of at most so many whole numbers from `low` to `high`."""
        values = self._take(name, list)
        if len(values) > most:
            raise BundleLimitError(
                f"`{self.path(name)}` must have at most {most} entries, got {len(values)}."
            )
        return tuple(self._check_integer(name, value, low, high) for value in values)

    def text(self, name: str, limit: int = MAX_TEXT) -> str:
        """Printable text of at most `limit` characters."""
        return self._check_text(name, self._take(name, str), limit)

    def choice(self, name: str, options: Iterable[str]) -> str:
        """One of a few words."""
        value, known = self.text(name, MAX_NAME), tuple(options)
        if value not in known:
            raise BundleValueError(
                f"`{self.path(name)}` must be one of {', '.join(known)}, got {value!r}."
            )
        return value

    def names(self, name: str, count: int | None = None) -> tuple[str, ...]:
        """Names, all different; as many as `count` where it is given."""
        text = self._take(name, str)
        found = text.count("\n") + 1
        if found > MAX_NAMES:
            raise BundleLimitError(
                f"`{self.path(name)}` must be at most {MAX_NAMES:,} names, got {found:,}."
            )
        if count is not None and found != count:
            raise BundleShapeError(f"`{self.path(name)}` must be {count} names, got {found}.")
        names = tuple(self._check_text(name, line, MAX_NAME) for line in text.split("\n"))
        if len(set(names)) < len(names):
            raise BundleValueError(f"`{self.path(name)}` must differ from each other.")
        return names

    def texts(self, name: str) -> dict[str, str]:
        """A map from name to text."""
        inner = self.fields(name)
        return {self._check_text(name, k, MAX_NAME): inner.text(k) for k in sorted(inner.keys())}

    def array(
        self, name: str, dtype: str | None = None, shape: Shape | None = None
    ) -> Shaped[np.ndarray, "..."]:
        """An array of finite numbers, read-only, of this dtype and shape where they are given."""
        path, record = self.path(name), self.fields(name)
        stored = record.choice("dtype", DTYPES)
        axes = record.integers("shape", 1, INTEGERS[1], most=MAX_RANK)
        data = record._take("data", bytes)
        needed = math.prod(axes) * np.dtype(stored).itemsize
        if len(data) != needed:
            raise BundleShapeError(
                f"`{path}` of the shape {axes} and dtype {stored} must have {needed} bytes, "
                f"got {len(data)}."
            )
        if dtype not in (None, stored):
            raise BundleShapeError(f"`{path}` must have the dtype {dtype}, got {stored}.")
        if shape is not None and not _fits(axes, shape):
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            raise BundleShapeError(f"`{path}` must have the shape ({wanted}), got {axes}.")
        values = np.frombuffer(data, np.dtype(stored).newbyteorder("<"))
        if stored == "bool" and values.view(np.uint8).max() > 1:
            raise BundleValueError(f"`{path}` must be booleans, each a byte of 0 or 1.")
        if values.dtype.kind == "f" and not (np.abs(values) <= _GREATEST).all():
            raise BundleValueError(f"`{path}` must be finite, but holds NaN, infinity or the like.")
        return values.astype(stored, copy=False).reshape(axes)

    def probabilities(self, name: str, shape: Shape) -> Float[np.ndarray, "..."]:
        """An array of distributions over its last axis, in float64."""
        values = self.array(name, "float64", shape)
        sums = values.sum(-1)
        if (values < 0).any() or (np.abs(sums - 1) > SUM_TOLERANCE).any():
            raise BundleValueError(
                f"`{self.path(name)}` must be probabilities: not negative, and with the sum 1, "
                f"got {values.min():g} as the least, and sums from {sums.min():g} to "
                f"{sums.max():g}."
            )
        return values

    def _take(self, name: str, kind: type[T]) -> T:
        value = self._values.get(name, _MISSING)
        if value is _MISSING:
            raise BundleStructureError(f"`{self.path(name)}` is missing.")
        if type(value) is not kind:
            raise BundleStructureError(
                f"`{self.path(name)}` must be {_KINDS[kind]}, got {_kind(value)}."
            )
        return value

    def _check_integer(self, name: str, value: Any, low: int, high: int) -> int:
        if type(value) is not int:
            raise BundleStructureError(
                f"`{self.path(name)}` must be of whole numbers, got {_kind(value)}."
            )
        if not low <= value <= high:
            raise BundleLimitError(
                f"`{self.path(name)}` must be from {low} to {high}, got {value}."
            )
        return value

    def _check_text(self, name: str, value: str, limit: int) -> str:
        if len(value) > limit:
            raise BundleLimitError(
                f"`{self.path(name)}` must have at most {limit} characters, got {len(value)}."
            )
        if not value.isprintable():
            raise BundleValueError(f"`{self.path(name)}` must be printable text.")
        return value


_KINDS: dict[type, str] = {
    bool: "true or false",
    bytes: "bytes",
    dict: "a map",
    float: "a float",
    int: "a whole number",
    list: "a list",
    str: "text",
    type(None): "nil",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _fits(axes: tuple[int, ...], shape: Shape) -> bool:
    return len(axes) == len(shape) and all(
        wanted in (None, length) for length, wanted in zip(axes, shape, strict=True)
    )
