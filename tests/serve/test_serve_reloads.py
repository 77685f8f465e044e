"""Models that change while others are being read, and while episodes step."""

import asyncio
import contextlib
import dataclasses
import itertools
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from bundles import EXACT
from cores import S0, T1, T2, Serving, act, again, make_cores, run, settings, start

from bigserve.core import Core
from bigserve.errors import Problem
from bigserve.models import Models
from bigserve.server import Server
from bigtrain.storage.container import unseal


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serving:
    return make_cores(monkeypatch, tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tiger.big"


class Gate:
    """Holds compilations up, so that a test can do something meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.entered, self._open, self._compile = (
            threading.Event(),
            threading.Event(),
            Models._compile,
        )
        monkeypatch.setattr(Models, "_compile", lambda *given: self._hold(*given))

    def _hold(self, *given):
        self.entered.set()
        assert self._open.wait(60)
        return self._compile(*given)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """A block that begins once something is compiled, and lets that go on at its end."""
        assert await asyncio.to_thread(self.entered.wait, 60)
        yield
        self._open.set()


async def await_current(server: Server, data: bytes) -> None:
    digest, _ = unseal(data)
    async with asyncio.timeout(20):
        while digest not in [version.digest for version in server.core.models if version.current]:
            await asyncio.sleep(0.01)


def make_server(file: Path) -> Server:
    return Server({"tiger": file}, dataclasses.replace(settings(), listen="127.0.0.1:0", grace=0))


@run
async def test_a_signal_during_a_reload_is_not_lost(serving, file, monkeypatch):
    """The file may have changed after it was read."""
    async with serving():
        pass
    server = make_server(file)
    await server.start()
    gate = Gate(monkeypatch)
    file.write_bytes(again(EXACT, 5))
    server.reload()
    async with gate.held():
        file.write_bytes(newest := again(EXACT, 6))
        server.reload()
        server.reload()
    await await_current(server, newest)
    await server.stop()


@run
async def test_a_signal_during_the_start_is_not_lost(serving, file, monkeypatch):
    async with serving():
        pass
    server, gate = make_server(file), Gate(monkeypatch)
    starting = asyncio.create_task(server.start())
    async with gate.held():
        file.write_bytes(newest := again(EXACT, 6))
        server.reload()
    await starting
    await await_current(server, newest)
    await server.stop()


class Robot:
    """Steps several episodes in a message, over and over; some observations are bad."""

    def __init__(self, core: Core, number: int, size: int):
        self._core, self._size, self._number = core, size, number
        self._random = random.Random(number)
        self.refused: Counter[str] = Counter()
        self.bad = self.applied = 0

    async def run(self, stop: asyncio.Event) -> None:
        for turn in itertools.count():
            ids = [f"{self._number}-{turn}-{n}" for n in range(self._size)]
            start(self._core, ids[: self._size // 2])
            await asyncio.sleep(0)  # the others may get another version
            start(self._core, ids[self._size // 2 :])
            for step in range(6):
                await self._step(ids, step)
            assert await self._core.end("me", ids) == []
            if stop.is_set():
                return

    async def _step(self, ids: list[str], step: int) -> None:
        seen = [S0 if step == 0 else (T1, T2)[(step + n) % 2] for n in range(len(ids))]
        bad = self._random.sample(range(len(ids)), self._random.choice([0, 0, 1]))
        given = [np.full_like(one, np.nan) if n in bad else one for n, one in enumerate(seen)]
        acted = await act(self._core, ids, [step] * len(ids), given)
        assert [fault.place for fault in acted.faults] == bad
        self.refused.update(fault.problem.name for fault in acted.faults)
        if bad:  # again, as it was; the others are answered again
            acted = await act(self._core, ids, [step] * len(ids), seen)
            assert not acted.faults and len(acted.duplicates) == len(ids) - len(bad)
        self.bad += len(bad)
        self.applied += len(ids)


@run
async def test_reloads_under_load_refuse_no_step_but_for_its_observation(serving, file):
    async with serving(max_episodes=256, max_items=64) as core:
        # Who hears T1 and T2 in turn is never sure enough to open a door.
        robots = [Robot(core, number, size) for number, size in enumerate([2, 2, 3, 5, 8, 20])]
        stop = asyncio.Event()
        running = [asyncio.create_task(robot.run(stop)) for robot in robots]
        for turn in range(24):
            data = again(EXACT, 100 + turn)
            file.write_bytes(data[:-1] if turn % 4 == 3 else data)
            before = sum(robot.applied for robot in robots)
            await core.models.reload()
            while sum(robot.applied for robot in robots) < before + 60:
                await asyncio.sleep(0)
                assert not any(task.done() for task in running)
        stop.set()
        await asyncio.gather(*running)
        refused = sum((robot.refused for robot in robots), Counter())
        assert refused == {Problem.OBSERVATION_INVALID.name: sum(robot.bad for robot in robots)}
        assert refused.total() > 20
        # The versions before have gone with their last episodes.
        assert [version.number for version in core.models] == [18]
