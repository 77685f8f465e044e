"""What the client's tests share: a fake server, and both clients behind the same `await`."""

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import bigclient
from bigclient import aio
from bigclient.testing import FakeServer


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs tests that are coroutines, each in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


class Awaited:
    """A blocking client or episode, with `await` in front of its methods."""

    def __init__(self, blocking: Any):
        self.blocking = blocking

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.blocking, name)
        return awaited(value) if callable(value) else value

    def __len__(self) -> int:
        return len(self.blocking)

    async def __aenter__(self) -> "Awaited":
        self.blocking.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.blocking.__exit__(*error)


def awaited(function: Any) -> Any:
    """A blocking function as one that `await` and `async with` can take."""

    async def call(*args: Any, **options: Any) -> Any:
        args = tuple(a.blocking if isinstance(a, Awaited) else a for a in args)
        options = {k: v.blocking if isinstance(v, Awaited) else v for k, v in options.items()}
        return wrap(function(*args, **options))

    return lambda *args, **options: aio.Opening(call(*args, **options))


def wrap(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(wrap(part) for part in result)
    kinds = (bigclient.Client, bigclient.Episode, bigclient.Episodes)
    return Awaited(result) if isinstance(result, kinds) else result


class Driver:
    """One of the two ways to use the client."""

    def __init__(self, name: str):
        self.name = name
        self.connect: Any = aio.connect if name == "aio" else awaited(bigclient.connect)
        self.play: Any = aio.play if name == "aio" else awaited(bigclient.play)
        # The method by which steps are made.
        self.steps_by = "ActStream" if name == "aio" else "Act"


@pytest.fixture(params=["blocking", "aio"])
def driver(request: pytest.FixtureRequest) -> Driver:
    return Driver(request.param)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server
