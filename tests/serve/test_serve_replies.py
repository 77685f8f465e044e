"""Replies of a stream go out in the order of their requests, and the engine's thread tells all."""

import asyncio
import os

from cores import run

from bigserve.bounds import Bounds
from bigserve.config import LimitsConfig
from bigserve.replies import Awaited, Replies
from bigserve.worker import Done, Worker


class Client:
    """Takes replies, once it is let."""

    def __init__(self):
        self.taken: list[int] = []
        self.takes = asyncio.Event()
        self.takes.set()

    async def write(self, data: bytes) -> None:
        await self.takes.wait()
        self.taken.append(int(data))


MOST = 16


def replies_to(client: Client, bounds: Bounds | None = None) -> Replies:
    bounds = bounds or Bounds(LimitsConfig())
    return Replies(client.write, bounds.enter("me", streams=True), MOST)


def expect(replies: Replies, count: int, size: int = 1) -> list[Awaited]:
    awaited = [Awaited(size) for _ in range(count)]
    for one in awaited:
        replies.expect(one)
    return awaited


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@run
async def test_replies_wait_for_those_before_them():
    client = Client()
    replies = replies_to(client)
    writer = asyncio.create_task(replies.write())
    awaited = expect(replies, 3)
    for number, want in ((2, []), (0, [0]), (1, [0, 1, 2])):
        replies.fill(awaited[number], b"%d" % number)
        await settle()
        assert client.taken == want
    replies.end()
    await asyncio.wait_for(writer, 5)


@run
async def test_a_reply_may_be_there_before_it_is_expected():
    client = Client()
    replies = replies_to(client)
    writer = asyncio.create_task(replies.write())
    await settle()
    one = Awaited(1)
    replies.fill(one, b"5")
    replies.expect(one)
    await settle()
    assert client.taken == [5]
    replies.end()
    await asyncio.wait_for(writer, 5)


@run
async def test_the_writer_ends_after_the_last_reply_and_not_before():
    client = Client()
    replies = replies_to(client)
    (one,) = expect(replies, 1)
    replies.end()
    writer = asyncio.create_task(replies.write())
    await settle()
    assert not writer.done()
    replies.fill(one, b"1")
    await asyncio.wait_for(writer, 5)
    assert client.taken == [1]


@run
async def test_there_is_room_again_once_one_is_written():
    client = Client()
    client.takes.clear()
    replies = replies_to(client)
    writer = asyncio.create_task(replies.write())
    for number, one in enumerate(expect(replies, MOST)):
        replies.fill(one, b"%d" % number)
    room = asyncio.create_task(replies.make_room())
    await settle()
    assert replies.is_full and not room.done()
    client.takes.set()
    await asyncio.wait_for(room, 5)
    replies.end()
    await asyncio.wait_for(writer, 5)
    assert client.taken == list(range(MOST))


@run
async def test_bytes_are_held_until_they_are_written():
    """Those of a request until its reply is there, then those of the reply."""
    client, bounds = Client(), Bounds(LimitsConfig())
    client.takes.clear()
    replies = replies_to(client, bounds)
    writer = asyncio.create_task(replies.write())
    first, second, third = expect(replies, 3, size=100)
    early = Awaited(100)
    replies.fill(early, b"7" * 9)
    replies.expect(early)
    assert bounds.held == 309
    replies.fill(first, b"1" * 10)
    replies.fill(second, b"2" * 20)
    await settle()
    assert bounds.held == 10 + 20 + 100 + 9
    client.takes.set()
    await settle()
    assert bounds.held == 109
    replies.fill(third, b"3" * 30)
    replies.end()
    await asyncio.wait_for(writer, 5)
    assert bounds.held == 0


@run
async def test_what_is_dropped_is_held_no_more_but_for_what_is_being_written():
    client, bounds = Client(), Bounds(LimitsConfig())
    client.takes.clear()
    replies = replies_to(client, bounds)
    writer = asyncio.create_task(replies.write())
    awaited = expect(replies, 5, size=100)
    replies.fill(awaited[0], b"1" * 10)
    await settle()
    replies.drop()
    replies.fill(awaited[3], b"1" * 1000)  # its step was under way
    assert bounds.held == 10
    writer.cancel()


@run
async def test_all_that_was_submitted_is_told_in_order_before_the_thread_ends():
    """Even what follows something that could not be told; and no file is left open."""
    before, told = len(os.listdir("/proc/self/fd")), list[int]()
    worker = Worker(asyncio.get_running_loop(), "engine")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def finish(done: Done) -> None:
        told.append(done.result)
        if done.result == 3:
            raise ValueError

    for number in range(200):
        worker.submit(lambda number=number: number, finish)
        if number % 50 == 0:
            await asyncio.sleep(0.001)
    while len(told) < 10:
        await asyncio.sleep(0.001)
    await worker.close()
    assert told == list(range(200))
    assert len(os.listdir("/proc/self/fd")) == before
