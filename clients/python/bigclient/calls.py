"""What a client does, without doing it: operations yield calls and sleeps, and get replies back.

An operation is a generator. Whoever drives it, blocking or with `await`, carries out what it yields
and sends the outcome back in, or throws the error in. All decisions are made here and in the
operations of `session` and `episode`; the drivers in `client` and `aio` decide nothing.
"""

import random
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from .errors import BigClientError, from_rpc
from .settings import Retry


class Call(NamedTuple):
    """Send `request` to the method of that name, and give back its reply within `timeout`."""

    method: str
    request: Message
    timeout: float


class Sleep(NamedTuple):
    """Do nothing for a while."""

    seconds: float


T = TypeVar("T")
Operation = Generator[Call | Sleep, Any, T]


class Attempts:
    """The attempts of one operation: how long the next may take, and when it may be made."""

    def __init__(
        self, retry: Retry, timeout: float, budget: float | None, clock: Callable[[], float]
    ):
        self._retry = retry
        self._timeout = timeout
        self._clock = clock
        self._made = 0
        self._begun = clock()
        self._deadline = self._begun + (retry.budget if budget is None else budget)

    @property
    def timeout(self) -> float:
        """Seconds for the next attempt."""
        return min(self._timeout, self._deadline - self._clock())

    def wait_after(self, failure: BigClientError) -> float | None:
        """Seconds to wait after a failure, or None to give up."""
        self._made += 1
        if not failure.retryable:
            return None
        retry = self._retry
        wait = min(retry.longest_wait, retry.first_wait * 2.0 ** min(self._made - 1, 62))
        wait = max(failure.retry_after, wait * random.uniform(0.5, 1.0))
        now = self._clock()
        if self._made == retry.attempts or now + wait >= self._deadline:
            failure.add_note(f"Tried {self._made} times in {now - self._begun:.1f} s.")
            return None
        return wait


def attempt(method: str, request: Message, attempts: Attempts) -> Operation[Any]:
    """Calls a method until it succeeds, fails for good, or the attempts are used up."""
    while True:
        try:
            return (yield Call(method, request, attempts.timeout))
        except grpc.RpcError as error:
            failure = from_rpc(error)
        wait = attempts.wait_after(failure)
        if wait is None:
            # gRPC's own error says nothing more, at great length.
            raise failure from None
        yield Sleep(wait)
