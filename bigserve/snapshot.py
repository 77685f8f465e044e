"""Snapshots: all episodes of a server in one file, from which the next start goes on.

A line of text that says what it is, the SHA-256 of the rest, and the rest in msgpack: the states
of the open episodes, and the tombstones. The file is for this machine, and readable by its owner
alone; episodes that travel are sealed instead.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from bigserve.errors import Problem, SnapshotError
from bigtrain.atomic import atomic_write

_MAGIC = b"bigserve snapshot 1\n"
_DIGEST = 32


class Grave(NamedTuple):
    """A closed episode."""

    owner: str
    id: str
    reason: Problem
    closed_at: float
    next_step: int = 0


class Snapshot(NamedTuple):
    """The states of open episodes, each as bytes, and the closed ones."""

    states: Sequence[bytes]
    graves: Sequence[Grave]


def save(path: Path, snapshot: Snapshot) -> None:
    """Writes a snapshot, whole or not at all."""
    graves = [[owner, id, int(reason), at] for owner, id, reason, at, _ in snapshot.graves]
    steps = [grave.next_step for grave in snapshot.graves]  # apart: older releases ignore it
    content = msgpack.packb({"states": list(snapshot.states), "graves": graves, "steps": steps})
    assert content is not None
    try:
        with atomic_write(path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(_MAGIC + hashlib.sha256(content).digest() + content)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be written: {error.strerror}.") from error


def load(path: Path) -> Snapshot | None:
    """Reads a snapshot; None where there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}.") from error
    if not data.startswith(_MAGIC):
        raise _refusal(path, "it is empty" if not data else "it begins otherwise")
    digest, content = data[len(_MAGIC) :][:_DIGEST], data[len(_MAGIC) + _DIGEST :]
    if hashlib.sha256(content).digest() != digest:
        raise _refusal(path, "it ends early, or was altered: its digest does not fit")
    try:
        return _read(msgpack.unpackb(content))
    except (ValueError, TypeError, AttributeError, LookupError, msgpack.UnpackException) as error:
        raise _refusal(path, "its content is something else") from error


def _read(found: Any) -> Snapshot:
    # Files from before tombstones had steps hold none.
    steps = found.get("steps") or [0] * len(found["graves"])
    graves = [
        Grave(owner, id, Problem(reason), at, step)
        for (owner, id, reason, at), step in zip(found["graves"], steps, strict=True)
    ]
    return Snapshot(found["states"], graves)


def _refusal(path: Path, why: str) -> SnapshotError:
    return SnapshotError(
        f"{path} must be a whole snapshot of this format, and is not: {why}. Put back the file "
        "that the last shutdown wrote, or move this one away to start without the episodes in it."
    )
