"""The stream by itself, against a call that reads and replies when the test says so."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from bigclient.stream import ActStream, failure
from bigproto.v1 import policy_pb2


class FakeCall:
    """The other end of a stream."""

    def __init__(self, requests: AsyncIterator[policy_pb2.ActRequest]):
        self.requests = requests
        self.replies: asyncio.Queue[policy_pb2.ActReply | Exception] = asyncio.Queue()

    async def read(self) -> int:
        """The id of the next request."""
        return (await anext(self.requests)).request_id

    def reply(self, request_id: int) -> None:
        self.replies.put_nowait(policy_pb2.ActReply(request_id=request_id))

    def cancel(self) -> None:
        self.replies.put_nowait(asyncio.CancelledError())  # type: ignore[arg-type]

    async def __aiter__(self) -> AsyncIterator[policy_pb2.ActReply]:
        while True:
            reply = await self.replies.get()
            if isinstance(reply, BaseException):
                raise reply
            yield reply


class Opened:
    """A stream whose calls are fake, and the calls that it has opened."""

    def __init__(self):
        self.calls: list[FakeCall] = []
        self.stream = ActStream(self.open)

    def open(self, requests: AsyncIterator[policy_pb2.ActRequest]) -> FakeCall:
        self.calls.append(FakeCall(requests))
        return self.calls[-1]

    def act(self, request: policy_pb2.ActRequest, timeout: float = 60.0) -> asyncio.Task:
        return asyncio.create_task(self.stream.act(request, timeout))


async def test_replies_go_to_whom_they_belong():
    opened = Opened()
    tasks = [opened.act(policy_pb2.ActRequest()) for _ in range(3)]
    await asyncio.sleep(0)
    (call,) = opened.calls
    ids = [await call.read() for _ in tasks]
    for request_id in reversed(ids):
        call.reply(request_id)
    assert [(await task).request_id for task in tasks] == ids
    await opened.stream.close()


async def test_a_request_tells_how_long_it_may_wait():
    opened = Opened()
    request = policy_pb2.ActRequest()
    task = opened.act(request, 0.2501)
    await asyncio.sleep(0)
    assert request.timeout_milliseconds == 251
    opened.calls[0].reply(await opened.calls[0].read())
    await task
    await opened.stream.close()


async def test_what_was_cancelled_before_it_was_sent_is_not_sent():
    opened = Opened()
    request = policy_pb2.ActRequest()
    first = opened.act(request)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    # The same message again, as an episode has only one.
    second, third = opened.act(request), opened.act(policy_pb2.ActRequest())
    await asyncio.sleep(0)
    (call,) = opened.calls
    ids = [await call.read(), await call.read()]
    assert len(set(ids)) == 2
    for request_id in ids:
        call.reply(request_id)
    assert [(await task).request_id for task in (second, third)] == ids
    await opened.stream.close()


async def test_a_reply_that_nobody_waits_for_is_dropped():
    opened = Opened()
    late, other = opened.act(policy_pb2.ActRequest()), opened.act(policy_pb2.ActRequest())
    await asyncio.sleep(0)
    (call,) = opened.calls
    ids = [await call.read(), await call.read()]
    late.cancel()
    await asyncio.wait([late])
    for request_id in ids:
        call.reply(request_id)
    assert (await other).request_id == ids[1]
    await opened.stream.close()


async def test_a_stream_on_which_nothing_comes_is_replaced():
    opened = Opened()
    other = opened.act(policy_pb2.ActRequest())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await opened.stream.act(policy_pb2.ActRequest(), 0.01)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # Whoever else waited is told at once, to send again on the next stream.
    with pytest.raises(grpc.aio.AioRpcError):
        await other
    task = opened.act(policy_pb2.ActRequest())
    await asyncio.sleep(0)
    _, call = opened.calls
    call.reply(await call.read())
    await task
    await opened.stream.close()


async def test_a_stream_on_which_others_got_replies_is_kept():
    opened = Opened()
    slow, quick = opened.act(policy_pb2.ActRequest(), 0.05), opened.act(policy_pb2.ActRequest())
    await asyncio.sleep(0)
    (call,) = opened.calls
    await call.read()
    call.reply(await call.read())
    await quick
    with pytest.raises(grpc.aio.AioRpcError):
        await slow
    last = opened.act(policy_pb2.ActRequest())
    await asyncio.sleep(0)
    assert len(opened.calls) == 1
    call.reply(await call.read())
    await last
    await opened.stream.close()


async def test_a_broken_stream_fails_all_who_wait_and_stops_sending():
    opened = Opened()
    tasks = [opened.act(policy_pb2.ActRequest()) for _ in range(3)]
    await asyncio.sleep(0)
    (call,) = opened.calls
    for _ in tasks:
        await call.read()
    reading = asyncio.create_task(call.read())
    call.replies.put_nowait(failure(grpc.StatusCode.UNAVAILABLE, "gone"))
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, grpc.aio.AioRpcError)
        assert outcome.code() is grpc.StatusCode.UNAVAILABLE
    # gRPC's own task, which takes requests, must not wait for ever.
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(reading, 5)
