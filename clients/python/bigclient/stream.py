"""The steps of all episodes of an asynchronous client, over one ActStream."""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from bigproto.v1 import policy_pb2

Open = Callable[[AsyncIterator[policy_pb2.ActRequest]], Any]


def failure(code: grpc.StatusCode, message: str) -> grpc.aio.AioRpcError:
    """A failure that the client finds by itself, in the form of one that gRPC reports."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), message)


class ActStream:
    """Sends requests and gives each its reply; opens the stream, and again after it broke."""

    def __init__(self, open: Open):
        self._open = open
        self._connection: _Connection | None = None
        self._request_ids = itertools.count(1)

    async def act(self, request: policy_pb2.ActRequest, timeout: float) -> policy_pb2.ActReply:
        """The reply to a request. If the stream breaks, whoever waits gets its error."""
        if self._connection is None or self._connection.broken:
            self._connection = _Connection(self._open)
        request.request_id = next(self._request_ids)
        # A stream has no deadline for one request, so the request says it.
        request.timeout_milliseconds = max(1, math.ceil(timeout * 1000))
        return await self._connection.ask(request, timeout)

    async def close(self) -> None:
        """Breaks the stream, and waits until nothing of it runs any more."""
        if self._connection is not None:
            await self._connection.close()


class _Connection:
    """One stream, until it breaks."""

    def __init__(self, open: Open):
        # Requests wait here, not in the task of their caller: to cancel that task while it writes
        # would break the stream for all.
        self._outbox: asyncio.Queue[tuple[int, policy_pb2.ActRequest] | None] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[policy_pb2.ActReply]] = {}
        self._num_replies = 0
        self._call = open(self._requests())
        self._reader = asyncio.create_task(self._read())
        self.broken = False

    async def ask(self, request: policy_pb2.ActRequest, timeout: float) -> policy_pb2.ActReply:
        reply = asyncio.get_running_loop().create_future()
        request_id, num_replies = request.request_id, self._num_replies
        self._waiting[request_id] = reply
        self._outbox.put_nowait((request_id, request))
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            late = failure(grpc.StatusCode.DEADLINE_EXCEEDED, f"No reply within {timeout:.3g} s.")
            if num_replies == self._num_replies:
                # Nobody else got one in that time either: the connection may be dead.
                self._break(late)
            raise late from None
        finally:
            self._waiting.pop(request_id, None)

    async def close(self) -> None:
        self._break(failure(grpc.StatusCode.CANCELLED, "The client is closed."))
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _requests(self) -> AsyncIterator[policy_pb2.ActRequest]:
        while (entry := await self._outbox.get()) is not None:
            request_id, request = entry
            # A caller that was cancelled may be using the message for its next request by now.
            if request_id in self._waiting:
                yield request

    async def _read(self) -> None:
        error = failure(grpc.StatusCode.UNAVAILABLE, "The server ended the stream.")
        try:
            async for reply in self._call:
                self._num_replies += 1
                waiting = self._waiting.get(reply.request_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        except grpc.aio.AioRpcError as raised:
            error = raised
        finally:
            self._break(error)

    def _break(self, error: grpc.aio.AioRpcError) -> None:
        if self.broken:
            return
        self.broken = True
        self._call.cancel()
        self._outbox.put_nowait(None)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
