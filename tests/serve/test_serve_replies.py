"""Replies of a stream go out in the order of their requests, and the engine's thread tells all."""

import asyncio
import os

from cores import run

from bigproto.v1 import policy_pb2 as wire
from bigserve.replies import IN_FLIGHT, Place, Replies
from bigserve.worker import Done, Worker


class Client:
    """Takes replies, once it is let."""

    def __init__(self):
        self.taken: list[int] = []
        self.takes = asyncio.Event()
        self.takes.set()

    async def write(self, reply: wire.ActReply) -> None:
        await self.takes.wait()
        self.taken.append(reply.request_id)


def expect(replies: Replies, count: int) -> list[Place]:
    places = [Place() for _ in range(count)]
    for place in places:
        replies.expect(place)
    return places


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@run
async def test_replies_wait_for_those_before_them():
    client = Client()
    replies = Replies(client)
    writer = asyncio.create_task(replies.write())
    places = expect(replies, 3)
    for number, want in ((2, []), (0, [0]), (1, [0, 1, 2])):
        replies.fill(places[number], wire.ActReply(request_id=number))
        await settle()
        assert client.taken == want
    replies.end()
    await asyncio.wait_for(writer, 5)


@run
async def test_a_reply_may_be_there_before_it_is_expected():
    client = Client()
    replies = Replies(client)
    writer = asyncio.create_task(replies.write())
    await settle()
    place = Place()
    replies.fill(place, wire.ActReply(request_id=5))
    replies.expect(place)
    await settle()
    assert client.taken == [5]
    replies.end()
    await asyncio.wait_for(writer, 5)


@run
async def test_the_writer_ends_after_the_last_reply_and_not_before():
    client = Client()
    replies = Replies(client)
    (place,) = expect(replies, 1)
    replies.end()
    writer = asyncio.create_task(replies.write())
    await settle()
    assert not writer.done()
    replies.fill(place, wire.ActReply(request_id=1))
    await asyncio.wait_for(writer, 5)
    assert client.taken == [1]


@run
async def test_there_is_room_again_once_one_is_written():
    client = Client()
    client.takes.clear()
    replies = Replies(client)
    writer = asyncio.create_task(replies.write())
    for number, place in enumerate(expect(replies, IN_FLIGHT)):
        replies.fill(place, wire.ActReply(request_id=number))
    room = asyncio.create_task(replies.make_room())
    await settle()
    assert replies.full and not room.done()
    client.takes.set()
    await asyncio.wait_for(room, 5)
    replies.end()
    await asyncio.wait_for(writer, 5)
    assert client.taken == list(range(IN_FLIGHT))


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
