"""Mutated calls by the thousand: the server answers each, stays as it was, and harms nobody."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from calls import Attacker
from launch import QUICK, TIGER, Server, serving
from progress import Progress
from subject import Subject
from walking import World, walk
from wire import Stream, channel_to

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

GOOD, BAD = "0123456789abcdef", "fedcba9876543210"
WARM_UP = 1000
# Each caller may have a part of what there is, as where callers share a server.
PARTS = {"limits.max-episodes-per-caller": 2048}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"good caller {GOOD}\nbad caller {BAD}\n")
    with serving(TIGER, **QUICK, tokens=tokens, **PARTS, **{"log-format": "json"}) as server:
        yield server


class Bystander(threading.Thread):
    """Plays the same episodes again and again, by calls and by streams, to the same last bit."""

    def __init__(self, address: str):
        super().__init__()
        self._address, self._stops = address, threading.Event()
        self.error: BaseException | None = None
        self.num_episodes, self.slowest = 0, 0.0

    def run(self) -> None:
        try:
            with channel_to(self._address, token=GOOD) as channel:
                self._play(policy_pb2_grpc.PolicyStub(channel))
        except BaseException as error:
            self.error = error

    def _play(self, stub: policy_pb2_grpc.PolicyStub) -> None:
        (model,) = stub.Describe(pb.DescribeRequest()).models
        subject, wanted = Subject(model), {}
        while not self._stops.is_set():
            seed, began = self.num_episodes % 8, time.monotonic()
            (episode,) = stub.Start(pb.StartRequest(seed=seed)).episode_ids
            if self.num_episodes % 2:
                with Stream(stub) as stream:
                    found = walk(stream.ask, subject, episode, world=World(seed))
            else:
                found = walk(stub.Act, subject, episode, world=World(seed))
            assert found == wanted.setdefault(seed, found)
            assert not stub.End(pb.EndRequest(episode_ids=[episode])).errors
            self.num_episodes += 1
            self.slowest = max(self.slowest, time.monotonic() - began)

    def stop(self) -> None:
        self._stops.set()
        self.join()


def resident(server: Server) -> int:
    """Kilobytes of memory that the server has."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


async def attack(
    attacker: Attacker, count: int, server: Server, before: int, bystander: Bystander
) -> None:
    """Makes so many calls, and says meanwhile how server and bystander are."""
    progress = Progress("calls", count)

    def tell() -> None:
        progress.tell(
            count - max(attacker.left, 0),
            server_MB=resident(server) // 1024,
            ratio=f"{resident(server) / before:.3f}",
            bystander_episodes=bystander.num_episodes,
            slowest=f"{bystander.slowest:.2f} s",
        )

    attacking = asyncio.create_task(attacker.attack(count))
    while not attacking.done():
        await asyncio.wait({attacking}, timeout=1.0)
        if progress.is_due:
            tell()
        if bystander.error is not None:
            attacking.cancel()
            break
    await asyncio.gather(attacking, return_exceptions=bystander.error is not None)
    tell()


def test_mutated_calls_are_answered_and_harm_nobody(server, num_calls):
    bystander = Bystander(server.address)
    bystander.start()
    attacker = Attacker(server.address, BAD, seed=0)
    try:
        asyncio.run(attacker.attack(WARM_UP))
        before = resident(server)
        asyncio.run(attack(attacker, num_calls, server, before, bystander))
        after = resident(server)
    finally:
        bystander.stop()
    assert bystander.error is None
    assert bystander.num_episodes >= 16, bystander.num_episodes
    assert after <= 1.2 * before, (before, after)
    # Much was tried, and some of it made sense.
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNAUTHENTICATED", "left", "frames"} <= set(
        attacker.ends
    )
    lines = [json.loads(line) for line in server.log.splitlines()]
    # grpcio logs metadata that it cannot decode, as bad input, at the rate that there is for that.
    odd = {line["logger"] for line in lines if line["level"] != "info"}
    assert odd <= {"grpc._cython.cygrpc"}, [line for line in lines if line["level"] != "info"]
    assert len(server.log) < 1_000_000
