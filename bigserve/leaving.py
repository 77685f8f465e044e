"""How a server takes its leave: streams end with a status that says to come back.

When gRPC itself stops, it cancels whatever is open, and drops calls that arrive meanwhile: their
callers see CANCELLED, and cannot tell that from a cancellation of their own. So streams are ended
before, and whoever is refused is told to stay away for longer than gRPC takes to stop.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import final

from bigserve.errors import Unavailable


@final
class Streams:
    """The streams that are read; from `end` on none is."""

    def __init__(self):
        self._readers: set[asyncio.Task] = set()
        self._ended = False

    def end(self) -> None:
        """Interrupts all that are read, and any that comes later."""
        self._ended = True
        for reader in self._readers:
            reader.cancel()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A block in which the current task reads a stream; raises `Unavailable` at the end."""
        task = asyncio.current_task()
        assert task is not None
        self._check()
        self._readers.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._ended or task.uncancel():  # the caller has gone
                raise
            self._check()
        finally:
            self._readers.discard(task)

    def _check(self) -> None:
        if self._ended:
            raise Unavailable("The server is shutting down. Open the stream again in a while.")
