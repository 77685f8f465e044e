"""The replies of a stream: they come to be in any order, and go out in that of the requests."""

import asyncio
import collections
from collections.abc import Awaitable, Callable
from typing import final

from bigserve.bounds import Holding, wake


@final
class Awaited:
    """A reply that is awaited: what it holds until it is there, and then its bytes."""

    __slots__ = ("data", "is_expected", "size")

    def __init__(self, request_size: int):
        self.size = request_size
        self.data: bytes | None = None
        self.is_expected = False


@final
class Replies:
    """Replies that are awaited on a stream, and one task that writes them.

    That task wakes once a reply, when the first of them can go out; a queue of futures would wake
    it twice. `most` is how many may be awaited; a client that reads no replies waits there, or
    where what they hold is bounded.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]], holding: Holding, most: int):
        self._write, self._holding, self._most = write, holding, most
        self._awaited: collections.deque[Awaited] = collections.deque()
        self._ended = False
        self._writer: asyncio.Future[None] | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writing_since: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether as many are awaited as may be."""
        return len(self._awaited) >= self._most or not self._holding.has_room

    @property
    def stalled_for(self) -> float:
        """Seconds for which the client has not taken the reply that is being written."""
        since = self._writing_since
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def expect(self, reply: Awaited) -> None:
        """Takes the next reply into the order; it may be there already."""
        reply.is_expected = True
        self._awaited.append(reply)
        self._holding.hold(reply.size)
        if reply.data is not None:
            self._wake_for(reply)

    def fill(self, reply: Awaited, data: bytes) -> None:
        """Says what a reply is; from now on it holds its own bytes, and not the request's."""
        if reply.is_expected:
            self._holding.hold(len(data) - reply.size)
        reply.data, reply.size = data, len(data)
        self._wake_for(reply)

    def end(self) -> None:
        """Says that no more are to come; `write` ends after the last."""
        self._ended = True
        wake(self._writer)

    def drop(self) -> None:
        """Lets go of all that has not been begun to be written."""
        self.end()
        while len(self._awaited) > 1:
            reply = self._awaited.pop()
            self._holding.hold(-reply.size)
            reply.is_expected = False

    async def make_room(self) -> None:
        """Waits until one more may be awaited."""
        while len(self._awaited) >= self._most:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        await self._holding.room()

    async def write(self) -> None:
        """Writes replies in their order, each when it is there."""
        awaited, write, loop = self._awaited, self._write, asyncio.get_running_loop()
        while True:
            while awaited and awaited[0].data is not None:
                self._writing_since = loop.time()
                await write(awaited[0].data)
                self._writing_since = None
                self._holding.hold(-awaited.popleft().size)
                wake(self._reader)
            if self._ended and not awaited:
                return
            self._writer = loop.create_future()
            await self._writer

    def _wake_for(self, reply: Awaited) -> None:
        if self._awaited and self._awaited[0] is reply:
            wake(self._writer)
