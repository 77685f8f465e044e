"""A hundred thousand leases that run out together: nobody waits for all of them to be closed."""

import asyncio
import time

import numpy as np
from cores import Clock, run, settings

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
