"""The core of a server, in this process, with an engine that can be held up or made to fail."""

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import EXACT, resealed

from bigserve import models
from bigserve.acts import Act, Acted, Block
from bigserve.config import BatchingConfig, LimitsConfig, ServerConfig
from bigserve.core import Core
from bigserve.engine import Engine
from bigserve.episodes import Episode, Rule
from bigserve.metrics import Metrics
from bigserve.models import Version
from bigtrain.bundle import ArraySpec

SIZES = (32, 64)
NO_PROBLEM: dict[str, None] = dict.fromkeys(
    ("problem", "exploration", "successor", "expert", "certificate")
)
"""What the content of a simulator's bundle lacks."""

S0, T1, T2, TIGER, GOLD, END = np.eye(6, dtype=np.float32)
OPEN_1, OPEN_2, LISTEN = range(3)

_compiled: dict[ArraySpec, tuple[Engine, threading.Lock]] = {}


class HeldEngine:
    """A compiled engine with a gate before its steps, and an error to raise behind it."""

    def __init__(self, policy: Any, observation: ArraySpec, *, sizes: Sequence[int]):
        if observation not in _compiled:  # tests use one policy for each kind of observation
            _compiled[observation] = Engine(policy, observation, sizes=sizes), threading.Lock()
        self._engine, self._lock = _compiled[observation]
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.batches: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self, rows: np.ndarray) -> np.ndarray:
        self.gate.wait()
        self.batches.append(len(rows))
        if self.error is not None:
            raise self.error
        with self._lock:
            return self._engine.step(rows)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def settings(**limits: Any) -> ServerConfig:
    """Settings that compile little."""
    limits = {"max_items": 64, "max_episodes": 64, **limits}
    return ServerConfig(limits=LimitsConfig(**limits), batching=BatchingConfig(SIZES))


Serving = Callable[..., contextlib.AbstractAsyncContextManager[Core]]
"""Makes a core with limits of its own."""


def make_cores(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Serving:
    """Cores that serve tiger-treasure from `tiger.big` there, by a clock that stands still."""
    monkeypatch.setattr(models, "Engine", HeldEngine)
    path = folder / "tiger.big"
    path.write_bytes(EXACT)

    @contextlib.asynccontextmanager
    async def make(**limits: Any) -> AsyncIterator[Core]:
        core = Core(settings(**limits), Metrics())
        core.episodes.clock = Clock()
        await core.models.load("tiger", path)
        try:
            yield core
        finally:
            for version in core.models:
                held(version).gate.set()
            await core.models.close()

    return make


def held(version: Version) -> HeldEngine:
    """The engine of a version, as the test sees it."""
    assert isinstance(version.engine, HeldEngine)
    return version.engine


def clock_of(core: Core) -> Clock:
    assert isinstance(core.episodes.clock, Clock)
    return core.episodes.clock


def again(bundle: bytes, seed: int) -> bytes:
    """Another version of the same policy: only what is said of its training differs."""
    return resealed(bundle, lambda content: content["provenance"].update(seed=seed))


def start(core: Core, ids: Sequence[str] | int, owner: str = "me", **options: Any) -> list[Episode]:
    """Starts episodes of the only model."""
    given = {"model": "", "digest": "", "rule": Rule(), "seed": None, "lease": 60.0, **options}
    return core.start(owner, given.pop("model"), given.pop("digest"), ids, **given)[1]


def act(
    core: Core,
    ids: Sequence[str],
    steps: Sequence[int],
    seen: Sequence[np.ndarray],
    *,
    owner: str = "me",
    deadline: float = math.inf,
) -> "asyncio.Future[Acted]":
    """Submits an Act; what is delivered comes later."""
    future: asyncio.Future[Acted] = asyncio.get_running_loop().create_future()
    core.act(
        Act(owner, [*ids], [*steps], [block(seen)], deadline, time.monotonic(), future.set_result)
    )
    return future


def block(seen: Sequence[np.ndarray]) -> Block:
    """What some episodes see, as it comes."""
    stacked = np.stack(seen)
    return Block(stacked.dtype.name, stacked.shape, stacked.tobytes())


def assert_same_details(one: Acted, other: Acted) -> None:
    """Whether both say the same beside their actions."""
    assert one.details is not None and other.details is not None
    np.testing.assert_array_equal(one.details.table, other.details.table)


async def walk(core: Core, id: str, seen: Sequence[np.ndarray], owner: str = "me") -> list[int]:
    """The actions of an episode that sees these from its beginning."""
    found = [await act(core, [id], [n], [one], owner=owner) for n, one in enumerate(seen)]
    assert not any(acted.faults for acted in found), found
    return [int(acted.actions[0]) for acted in found]


def problems(acted: Acted) -> dict[int, str]:
    """What is wrong with the items of an Act, by place."""
    return {fault.place: fault.problem.name for fault in acted.faults}


def whole_state(core: Core) -> list[bytes]:
    """All that a step could change."""
    episodes, version = core.episodes, core.models[0]
    parts = (episodes.next_step, episodes.deadline, episodes.busy, version.rows, version.seen)
    return [part.tobytes() for part in parts]


def never(_: Acted) -> None:
    """Takes what must not be delivered."""
    pytest.fail("It was delivered.")


def count_steps(core: Core, result: str, model: str = "tiger") -> float:
    """How often the metrics say that a step came out like this."""
    labels = {"model": model, "result": result}
    value = core._metrics.registry.get_sample_value("bigserve_steps_total", labels)
    return value or 0.0


def run(test: Any) -> Any:
    """Lets a test be a coroutine function."""

    @functools.wraps(test)
    def plain(*args: Any, **options: Any) -> None:
        asyncio.run(test(*args, **options))

    return plain
