"""The replies of a stream: they come to be in any order, and go out in that of the requests."""

import asyncio
import collections
from typing import Any, final

from bigproto.v1 import policy_pb2 as wire

IN_FLIGHT = 1024
"""Requests of one stream that may be unanswered; a client that reads no replies waits there."""

Place = list[wire.ActReply]
"""Where a reply goes: empty until there is one."""


@final
class Replies:
    """Replies that are awaited on a stream, and one task that writes them.

    That task wakes once a reply, when the first of them can go out; a queue of futures would wake
    it twice.
    """

    def __init__(self, context: Any):
        self._context = context
        self._places: collections.deque[Place] = collections.deque()
        self._ended = False
        self._writer: asyncio.Future[None] | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether as many are awaited as may be."""
        return len(self._places) >= IN_FLIGHT

    def expect(self, place: Place) -> None:
        """Takes the place of the next reply, which may be there already."""
        self._places.append(place)
        if place:
            self._wake(place)

    def fill(self, place: Place, reply: wire.ActReply) -> None:
        """Puts a reply into its place."""
        place.append(reply)
        self._wake(place)

    def end(self) -> None:
        """Says that no more are to come; `write` ends after the last."""
        self._ended = True
        _finish(self._writer)

    async def make_room(self) -> None:
        """Waits until one more may be awaited."""
        while self.full:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    async def write(self) -> None:
        """Writes replies in their order, each when it is there."""
        places, write, loop = self._places, self._context.write, asyncio.get_running_loop()
        while True:
            while places and places[0]:
                await write(places[0][0])
                places.popleft()
                _finish(self._reader)
            if self._ended and not places:
                return
            self._writer = loop.create_future()
            await self._writer

    def _wake(self, place: Place) -> None:
        if self._places and self._places[0] is place:
            _finish(self._writer)


def _finish(wait: asyncio.Future[None] | None) -> None:
    """Ends a wait, unless it has ended or nobody waits."""
    if wait is not None and not wait.done():
        wait.set_result(None)
