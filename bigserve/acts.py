"""Acts: what a message asks for, while it waits, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from bigserve.errors import Fault
from bigtrain.bundle import ArraySpec


class Act(NamedTuple):
    """Steps of some episodes, and whom to tell what came of them.

    `observe` gives the bytes of the observations, if they are as the spec wants them; `deadline`
    and `arrived` are by the monotonic clock.
    """

    owner: str
    ids: list[str]
    steps: list[int]
    observe: Callable[[ArraySpec], bytes]
    deadline: float
    arrived: float
    deliver: Callable[["Acted"], None]


class Acted(NamedTuple):
    """What came of them. Rows of items with a fault are 0; details may be None where all have one.

    Details are the belief's entropy, the value of each action, and the belief.
    """

    actions: Int[np.ndarray, " item"]
    details: Float[np.ndarray, "item detail"] | None
    num_actions: int
    faults: list[Fault]
    duplicates: list[int]


@dataclass(eq=False, slots=True)
class Answer:
    """What is known so far of what came of an Act, until it is told.

    `duplicates` are the rows of items that are answered again, by place; `queued` is how many of
    the steps that wait are its own.
    """

    act: Act
    faults: list[Fault] = field(default_factory=list)
    duplicates: dict[int, Int[np.ndarray, " word"]] = field(default_factory=dict)
    queued: int = 0
    told: bool = False


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
            whole.details[places] = part.details
        whole.faults.extend(fault._replace(place=places[fault.place]) for fault in part.faults)
        whole.duplicates.extend(places[place] for place in part.duplicates)
        self._outstanding -= 1
        if not self._outstanding:
            whole.faults.sort()
            whole.duplicates.sort()
            self._act.deliver(whole)
