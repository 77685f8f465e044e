"""Acts: what a message asks for, while it waits, and what came of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from bigserve.errors import Fault, InvalidRequest
from bigserve.layout import Details
from bigtrain.bundle import ArraySpec


class Block(NamedTuple):
    """Numbers as they came: little-endian, and not yet known to be what was asked for.

    `dtype` is one of numpy's names, or how else the sender calls it.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def check(self, name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
        """The bytes, if they are numbers of that dtype and shape."""
        if self.dtype != dtype:
            raise InvalidRequest(f"`{name}` must have the dtype {dtype}, got {self.dtype}.")
        if self.shape != shape:
            raise InvalidRequest(f"`{name}` must have the shape {shape}, got {self.shape}.")
        length = math.prod(shape) * np.dtype(dtype).itemsize
        if len(self.data) != length:
            raise InvalidRequest(
                f"`{name}.data` must have {length} bytes for its shape, got {len(self.data)}."
            )
        if dtype == "bool" and self.data.strip(b"\0\1"):
            raise InvalidRequest(f"`{name}` must have a 0 or a 1 for each truth value.")
        return self.data


class Act(NamedTuple):
    """Steps of some episodes, and whom to tell what came of them.

    `observation` has a block for each entry of an observation; `deadline` and `arrived` are by the
    monotonic clock.
    """

    owner: str
    ids: list[str]
    steps: list[int]
    observation: list[Block]
    deadline: float
    arrived: float
    deliver: Callable[["Acted"], None]

    def observe(self, spec: ArraySpec) -> bytes:
        """The bytes of the observations, if they are as the spec wants them."""
        if len(self.observation) != 1:
            raise InvalidRequest(f"`observation` must be one array, got {len(self.observation)}.")
        return self.observation[0].check("observation", spec.dtype, (len(self.ids), *spec.shape))


class Acted(NamedTuple):
    """What came of them. Rows of items with a fault are 0; details may be None where all are."""

    actions: Int[np.ndarray, " item"]
    details: Details | None
    faults: list[Fault]
    duplicates: list[int]


@dataclass(eq=False, slots=True)
class Answer:
    """What is known so far of what came of an Act, until it is delivered.

    `duplicates` are the rows of items that are answered again, by place; `queued` is how many of
    the steps that wait are its own.
    """

    act: Act
    faults: list[Fault] = field(default_factory=list)
    duplicates: dict[int, Int[np.ndarray, " word"]] = field(default_factory=dict)
    queued: int = 0
    delivered: bool = False


class Waiting(NamedTuple):
    """An Act that waits, with its episodes looked up and its observations checked."""

    answer: Answer
    tickets: list[int]
    data: bytes

    @property
    def act(self) -> Act:
        return self.answer.act


class Merged:
    """Puts together what comes of the items of each version in an Act that has several."""

    def __init__(self, act: Act, nothing: Acted, num_parts: int):
        self._act, self._whole, self._outstanding = act, nothing, num_parts

    def add(self, places: list[int], part: Acted) -> None:
        """Takes in a part, whose items have these places; the last one is delivered with all."""
        whole = self._whole
        whole.actions[places] = part.actions
        if part.details is not None and whole.details is not None:
            whole.details.put(places, part.details)
        whole.faults.extend(fault._replace(place=places[fault.place]) for fault in part.faults)
        whole.duplicates.extend(places[place] for place in part.duplicates)
        self._outstanding -= 1
        if not self._outstanding:
            whole.faults.sort()
            whole.duplicates.sort()
            self._act.deliver(whole)
