"""The thread of an engine: what it is given it does in order, and hands back to the event loop.

The event loop never runs the engine, and the thread never touches what the loop owns.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, final

T = TypeVar("T")

Finish = Callable[["Done"], None]


class Done(NamedTuple):
    """What came of some work, or what it raised; and when, by the monotonic clock, it was done."""

    result: Any
    error: Exception | None
    began: float
    ended: float


@final
class Worker:
    """A thread that works for an event loop, from birth until `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str):
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Finish] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[], Any], finish: Finish) -> None:
        """Runs something on the thread, and then `finish` on the loop."""
        self._work.put((run, finish))

    async def call(self, run: Callable[[], T]) -> T:
        """What `run` returns, on the thread, after what was submitted before."""
        future: asyncio.Future[T] = self._loop.create_future()

        def finish(done: Done) -> None:
            if future.done():  # whoever asked has gone
                return
            if done.error is not None:
                future.set_exception(done.error)
            else:
                future.set_result(done.result)

        self.submit(run, finish)
        return await future

    async def close(self) -> None:
        """Ends the thread once it has done what was submitted."""
        self._work.put(None)
        # What it has handed back comes before this does: the loop keeps to the order.
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            run, finish = work
            began, result, error = time.monotonic(), None, None
            try:
                result = run()
            except Exception as caught:
                error = caught
            done = Done(result, error, began, time.monotonic())
            self._loop.call_soon_threadsafe(finish, done)
