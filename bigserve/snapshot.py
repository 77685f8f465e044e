"""Snapshots: all episodes of a server in one file, from which the next start goes on.

A line of text that says what it is, the SHA-256 of the rest, and the rest in msgpack: the states
of the open episodes, and the tombstones. The file is for this machine, and readable by its owner
alone; episodes that travel are sealed instead.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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


class Snapshot(NamedTuple):
    """The states of open episodes, each as bytes, and the closed ones."""

    states: Sequence[bytes]
    graves: Sequence[Grave]


def save(path: Path, snapshot: Snapshot) -> None:
    """Writes a snapshot, whole or not at all."""
    graves = [[owner, id, int(reason), at] for owner, id, reason, at in snapshot.graves]
    content = msgpack.packb({"states": list(snapshot.states), "graves": graves})
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
    digest, content = data[len(_MAGIC) :][:_DIGEST], data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or hashlib.sha256(content).digest() != digest:
        raise SnapshotError(
            f"{path} must be a whole snapshot of this format, and is not. Move it away to start "
            "without the episodes in it."
        )
    found = msgpack.unpackb(content)
    graves = [Grave(owner, id, Problem(reason), at) for owner, id, reason, at in found["graves"]]
    return Snapshot(found["states"], graves)
