"""How much may be under way at once: calls, streams, and the bytes that they hold.

Bytes are those of requests that are not answered yet, and of replies that are not written yet; a
client that reads no replies holds them. They are counted for each stream or single call, for its
caller and for the server. Beyond any of the three a stream is read from no more until there is
room, and other calls are refused. Lest anybody come to a standstill by what others hold, a stream
that holds nothing goes on as long as the server has room, and a caller that holds nothing goes on
in any case, by one message.
"""

import asyncio
import collections
from typing import final

from bigserve.config import LimitsConfig
from bigserve.errors import LimitReached

_PATIENCE = 1.0
"""Seconds after which to come again."""


@final
class _Share:
    """What one caller, or all together, has under way."""

    def __init__(self, most: int):
        self._most = most
        self.held = self.calls = self.streams = 0
        self.waiting: set[asyncio.Future[None]] = set()

    @property
    def is_full(self) -> bool:
        return self.held >= self._most

    def hold(self, count: int) -> None:
        """Counts bytes in or, below 0, out; who waits for room then looks again."""
        was_full = self.is_full
        self.held += count
        if self.waiting and (not self.held or (was_full and not self.is_full)):
            for one in self.waiting:
                wake(one)


@final
class Holding:
    """A call that is under way, and the bytes that it holds."""

    def __init__(self, bounds: "Bounds", caller: str, own: _Share, server: _Share, streams: bool):
        self._bounds, self._name, self._streams = bounds, caller, streams
        self._shares = self._caller, self._server = own, server
        self._most = bounds.limits.max_held_bytes_per_stream
        self._waiting: asyncio.Future[None] | None = None
        self._has_left = False
        self.held = 0
        self._count(1)

    @property
    def has_room(self) -> bool:
        """Whether one more message may be taken in."""
        if not self._caller.held:
            return True
        if self._server.is_full:
            return False
        if self._streams and not self.held:
            return True
        return self.held < self._most and not self._caller.is_full

    def hold(self, count: int) -> None:
        """Counts bytes in or, below 0, out; for a call that is over it does nothing."""
        if self._has_left:
            return
        self.held += count
        for share in self._shares:
            share.hold(count)
        if count < 0:
            wake(self._waiting)

    async def room(self) -> None:
        """Waits until one more message may be taken in."""
        while not self.has_room:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                for share in self._shares:
                    share.waiting.add(self._waiting)
                await self._waiting
            finally:
                for share in self._shares:
                    share.waiting.discard(self._waiting)

    def check_room(self) -> None:
        """Raises unless one more message may be taken in at once."""
        if not self.has_room:
            limits, server = self._bounds.limits, self._server.is_full
            most = limits.max_held_bytes if server else limits.max_held_bytes_per_caller
            raise LimitReached(
                f"What {'all callers' if server else 'one caller'} asked for and have not read "
                f"must have less than {most} bytes before the server takes in more. Read replies, "
                "or try again.",
                retry_after=_PATIENCE,
            )

    def leave(self) -> None:
        """Ends the call: it holds nothing any more."""
        if not self._has_left:
            self.hold(-self.held)
            self._has_left = True
            self._count(-1)
            if not (self._caller.calls or self._caller.streams):
                self._bounds.forget(self._name)

    def _count(self, change: int) -> None:
        for share in self._shares:
            if self._streams:
                share.streams += change
            else:
                share.calls += change


@final
class Bounds:
    """What is under way, of all callers."""

    def __init__(self, limits: LimitsConfig):
        self.limits = limits
        self._server = _Share(limits.max_held_bytes)
        self._callers: collections.defaultdict[str, _Share] = collections.defaultdict(
            lambda: _Share(limits.max_held_bytes_per_caller)
        )

    @property
    def held(self) -> int:
        """The bytes that are held."""
        return self._server.held

    def enter(self, caller: str, *, streams: bool) -> Holding:
        """Counts a call in, until it leaves; raises where there are too many."""
        own, server, limits = self._callers[caller], self._server, self.limits
        if streams:
            _check("streams", server.streams, limits.max_streams, "all callers")
            _check("streams", own.streams, limits.max_streams_per_caller, "one caller")
        else:
            _check("calls", server.calls, limits.max_calls, "all callers")
            _check("calls", own.calls, limits.max_calls_per_caller, "one caller")
        return Holding(self, caller, own, server, streams)

    def forget(self, caller: str) -> None:
        """Lets go of a caller that has nothing under way."""
        self._callers.pop(caller, None)


def wake(waiting: asyncio.Future[None] | None) -> None:
    """Ends a wait, unless it has ended or nobody waits."""
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _check(what: str, count: int, most: int, whose: str) -> None:
    if count >= most:
        raise LimitReached(
            f"At most {most} {what} of {whose} may be open at once, and so many are. End one, or "
            "try again.",
            retry_after=_PATIENCE,
        )
