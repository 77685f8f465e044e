"""From one run of a server to the next: all episodes go into a snapshot, and come out of it.

Where the snapshot cannot be written, for a full disk say, that is no reason to lose them at once:
steps go on as they would without one, until all episodes have closed or the time for that is over,
and now and then it is tried again.
"""

import asyncio
import logging
import time
from pathlib import Path

from bigserve import convert, snapshot
from bigserve.core import Core, Record
from bigserve.errors import LimitReached, Problem, SnapshotError
from bigserve.snapshot import Grave, Snapshot

log = logging.getLogger("bigserve")

_GLANCE = 0.05
"""Seconds between looks at whether all episodes are closed."""

_AGAIN = 2.0
"""Seconds until a snapshot that could not be written is tried again."""

_AT_ONCE = 256
"""Episodes written down, or closed, before others may run: a few milliseconds."""


async def finish(
    core: Core, path: Path | None, grace: float, hurried: asyncio.Event
) -> SnapshotError | None:
    """Ends all steps: once the episodes are in a snapshot, or all have closed, or grace is over.

    What is returned says why the snapshot could not be written, and what is lost by that.
    """
    until, failure = time.monotonic() + grace, None
    while True:
        if path is not None:
            core.stopped = True
            failure = await _try_to_save(core, path)
            if failure is None:
                return None
            core.stopped = False
        over = time.monotonic() >= until or hurried.is_set()
        if over or not await _wait(core, min(until, _next_try(path)), hurried):
            break
    core.stopped = True
    lost = len(core.episodes)
    if failure is None or not lost:
        return None
    return SnapshotError(f"{failure} Episodes lost by that: {lost}.")


async def restore(core: Core, path: Path) -> None:
    """Goes on with the episodes of the last run; those that cannot be leave a tombstone."""
    found = await asyncio.to_thread(snapshot.load, path)
    if found is None:
        return
    records = [_read(path, data) for data in found.states]  # all, before anything begins
    for owner, id, reason, closed_at, next_step in found.graves:
        core.episodes.tombstones.add(owner, id, reason, closed_at, next_step)
    for record in records:
        try:
            fault = await core.import_(None, record)
            why = "" if fault is None else fault.message
        except LimitReached as error:
            why = str(error)
        if why:
            log.warning("an episode is lost", extra={"episode": record.id, "why": why})
            core.episodes.tombstones.add(
                record.owner, record.id, Problem.EPISODE_EVICTED, time.time(), record.next_step
            )
    path.unlink()
    log.info("went on from a snapshot", extra={"episodes": len(core.episodes)})


async def _try_to_save(core: Core, path: Path) -> SnapshotError | None:
    try:
        await _save(core, path)
    except SnapshotError as error:
        extra = {"path": str(path), "episodes": len(core.episodes), "why": str(error)}
        log.error("a snapshot cannot be written; episodes go on meanwhile", extra=extra)
        return error
    return None


async def _save(core: Core, path: Path) -> None:
    records = await core.export_all()
    states: list[bytes] = []
    for start in range(0, len(records), _AT_ONCE):
        states += map(convert.write_record, records[start : start + _AT_ONCE])
        await asyncio.sleep(0)  # whoever asks meanwhile is told to come back
    graves = [
        Grave(owner, id, tombstone.reason, tombstone.closed_at, tombstone.next_step)
        for owner, id, tombstone in core.episodes.tombstones
    ]
    await asyncio.to_thread(snapshot.save, path, Snapshot(states, graves))
    log.info("saved a snapshot", extra={"path": str(path), "episodes": len(states)})


def _next_try(path: Path | None) -> float:
    return float("inf") if path is None else time.monotonic() + _AGAIN


async def _wait(core: Core, until: float, hurried: asyncio.Event) -> bool:
    """Waits for episodes to close; whether some are still open, and nobody is in a hurry."""
    while len(core.episodes) and time.monotonic() < until and not hurried.is_set():
        await asyncio.sleep(_GLANCE)
    return len(core.episodes) > 0 and not hurried.is_set()


def _read(path: Path, data: bytes) -> Record:
    try:
        return convert.read_record(data)
    except Exception as error:  # whatever is made of bytes that we did not write
        raise SnapshotError(
            f"{path} must hold episodes that this release can read, and one is not. Start the "
            "release that wrote it, or move the file away to start without the episodes in it."
        ) from error
