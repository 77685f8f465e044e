"""A hundred thousand leases that run out together: nobody waits for all of them to be closed."""

import asyncio
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from cores import Clock, run, settings
from launch import serving
from subject import Subject
from wire import act_request, channel_to, duration, failure

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc
from bigserve import episodes as module
from bigserve.episodes import Episodes, Rule
from bigserve.errors import Problem

COUNT = 100_000
LIFETIME = 30.0


def full_table() -> Episodes:
    limits = settings(
        max_episodes=COUNT, max_episodes_per_caller=COUNT, tombstone_lifetime=LIFETIME
    ).limits
    table = Episodes(limits, opened=lambda *_: None, closed=lambda *_: None, clock=Clock())
    for owner in range(10):
        ids = [str(n) for n in range(COUNT // 10)]
        table.start(str(owner), ids, version=0, acceptable=[0], rule=Rule(), seed=1, lease=10.0)
    return table


@run
async def test_a_hundred_thousand_leases_run_out_and_nobody_stalls():
    table = full_table()
    clock = table.clock
    assert isinstance(clock, Clock)
    turns: list[float] = []

    async def others() -> None:
        """What else the event loop has to do: one that asks for its episode on every turn."""
        while len(table):
            turns.append(time.perf_counter())
            fault = table.explain_absence("9", "9999")
            if table.get("9", "9999") is None:
                fault = table.explain_absence("9", "9999")
                assert fault.problem == Problem.EPISODE_EXPIRED
            await asyncio.sleep(0)

    clock.now += 10
    other = asyncio.create_task(others())
    before, ticks = len(table), 0
    while table.sweep():
        assert 0 < before - len(table) <= module._AT_ONCE + 1  # one that was asked for
        before, ticks = len(table), ticks + 1
        await asyncio.sleep(0)
    await other
    assert len(table) == 0 and ticks >= COUNT // module._AT_ONCE - 1
    # Others had a turn after each part. A part takes some milliseconds; a busy machine adds to it.
    assert len(turns) >= ticks
    assert float(np.median(np.diff(turns))) < 0.05
    assert sum(1 for _ in table.tombstones) == COUNT

    clock.now += LIFETIME
    ticks = 0
    while table.sweep():
        ticks += 1
    assert ticks >= COUNT // module._AT_ONCE - 1
    assert not list(table.tombstones)


def test_to_forget_takes_as_long_for_the_last_as_for_the_first():
    """It is not the time of a dictionary that looks past all that were deleted before."""
    table = full_table()
    clock = table.clock
    assert isinstance(clock, Clock)
    clock.now += 10
    while table.sweep():
        pass
    clock.now += LIFETIME
    began = time.perf_counter()
    while table.sweep():
        pass
    assert time.perf_counter() - began < 5  # 0.1 s, where looking past them would take minutes


@pytest.mark.slow
def test_a_server_whose_hundred_thousand_leases_run_out_answers_meanwhile():
    """They do so within a second or two; one who steps beside them waits for none of it."""
    flags: dict[str, object] = {
        "limits.max-episodes": COUNT + 1,
        "limits.max-episodes-per-caller": COUNT + 1,
        "limits.max-items": 1000,
        "batching.sizes": 1024,
    }
    with serving(**flags) as server, channel_to(server.address) as channel:
        stub = policy_pb2_grpc.PolicyStub(channel)
        subject = Subject(stub.Describe(pb.DescribeRequest()).models[0])
        (mine,) = stub.Start(pb.StartRequest(lease=duration(600))).episode_ids
        began, some = time.monotonic(), ""
        for _ in range(COUNT // 1000):
            left = 60 + began - time.monotonic()  # all of them run out together
            request = pb.StartRequest(num_episodes=1000, lease=duration(left))
            some = stub.Start(request).episode_ids[0]
        failure(grpc.StatusCode.RESOURCE_EXHAUSTED, stub.Start, pb.StartRequest())
        step = act_request([mine], [0], [subject.first()])
        stub.Act(step)
        slowest, until = 0.0, began + 120
        while True:
            asked = time.monotonic()
            assert not stub.Act(step).errors  # answered again
            slowest = max(slowest, time.monotonic() - asked)
            (closed,) = stub.End(pb.EndRequest(episode_ids=["none"])).errors
            assert closed.problem == pb.PROBLEM_EPISODE_UNKNOWN
            if asked > began + 62 and stub.Start(pb.StartRequest(num_episodes=1000)).episode_ids:
                break
            assert asked < until
            time.sleep(0.005)
        assert slowest < 1.0, slowest
        (error,) = stub.Act(act_request([some], [0], [subject.first()])).errors
        assert error.problem == pb.PROBLEM_EPISODE_EXPIRED
        for _ in range(COUNT // 1000 - 1):  # every slot is free again
            stub.Start(pb.StartRequest(num_episodes=1000))
        # A tombstone takes 0.3 kB, and an episode less than 2 kB.
        pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
        assert pages * 4096 < 1_000_000_000
