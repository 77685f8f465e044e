"""What a fake server can be told to do wrong, and the order in which it does."""

import dataclasses
import threading
from collections.abc import Collection
from typing import Literal

import grpc

# Stands for both methods that make steps.
STEPS = "Act or ActStream"

Kind = Literal["fail", "lose", "cut", "delay", "refuse", "hold"]


@dataclasses.dataclass
class Fault:
    """One fault, for the next `times` messages to `method`, or to any method."""

    kind: Kind
    times: int
    method: str = ""
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    pushback: str | None = None
    seconds: float = 0.0
    problem: str = ""
    rows: Collection[int] | None = None
    retry_after: float = 0.0


class Faults:
    """The faults to come, in the order in which they were asked for."""

    def __init__(self):
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Adds a fault after those asked for before."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Forgets the faults that have not come yet."""
        with self._lock:
            self._faults.clear()

    def take(self, method: str) -> Fault | None:
        """The fault for a message that came, if there is one."""
        with self._lock:
            for fault in self._faults:
                steps = fault.method == STEPS and method in ("Act", "ActStream")
                if steps or fault.method in ("", method):
                    fault.times -= 1
                    if fault.times == 0:
                        self._faults.remove(fault)
                    return fault
        return None
