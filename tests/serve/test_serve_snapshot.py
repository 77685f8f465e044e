"""Snapshots: read as they were written, or refused by name."""

import dataclasses
import stat
from pathlib import Path

import msgpack
import pytest
from cores import S0, make_cores, run, settings, start, walk

from bigserve import convert, handover, snapshot
from bigserve.errors import Problem, SnapshotError
from bigserve.server import Server
from bigserve.snapshot import Grave, Snapshot

SNAPSHOT = Snapshot(
    [b"", b"\x00\xff" * 100],
    [
        Grave("you", "a", Problem.EPISODE_ENDED, 1.25),
        Grave("Ω", "b", Problem.EPISODE_EVICTED, 2e9 + 0.1),
    ],
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "episodes"
    snapshot.save(path, SNAPSHOT)
    return path


def test_a_snapshot_is_read_as_it_was_written(file):
    found = snapshot.load(file)
    assert found == SNAPSHOT
    assert found is not None and found.graves[0].reason is Problem.EPISODE_ENDED


def test_a_snapshot_is_for_its_owner_alone(file):
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_where_there_is_none_there_is_none(tmp_path):
    assert snapshot.load(tmp_path / "nothing") is None


def test_a_snapshot_is_replaced_whole(file):
    snapshot.save(file, Snapshot([b"new"], []))
    assert snapshot.load(file) == Snapshot([b"new"], [])
    assert list(file.parent.iterdir()) == [file]


def test_every_flipped_bit_and_every_shorter_file_is_refused(file):
    data = file.read_bytes()
    damaged = [data[:length] for length in range(len(data))]
    damaged += [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(len(data))]
    damaged += [data + b"\0", b"PK\x03\x04" + data, msgpack.packb({"states": [], "graves": []})]
    for bad in damaged:
        file.write_bytes(bad)
        with pytest.raises(SnapshotError, match="must be a whole snapshot of this format"):
            snapshot.load(file)


def test_a_place_that_cannot_be_read_or_written_is_named(tmp_path):
    with pytest.raises(SnapshotError, match=r"cannot be read: Is a directory\."):
        snapshot.load(tmp_path)
    with pytest.raises(SnapshotError, match=r"episodes cannot be written: No such file"):
        snapshot.save(tmp_path / "missing" / "episodes", SNAPSHOT)


@run
async def test_episodes_that_no_longer_fit_leave_a_tombstone(monkeypatch, tmp_path):
    """And the server starts all the same."""
    path = tmp_path / "episodes"
    async with make_cores(monkeypatch, tmp_path)() as core:
        start(core, ["a", "b"])
        await walk(core, "a", [S0])
        states = [convert.write_record(record) for record in await core.export_all()]
    snapshot.save(path, Snapshot(states, SNAPSHOT.graves))
    config = dataclasses.replace(settings(max_episodes=1), snapshot=path)
    server = Server({}, config)
    episodes = server.core.episodes
    await server.core.models.load("tiger", tmp_path / "tiger.big")
    await handover.restore(server.core, path)
    assert [(one.id, episodes.next_step[one.slot]) for one in episodes] == [("a", 1)]
    assert episodes.explain_absence("me", "b").problem == Problem.EPISODE_EVICTED
    assert episodes.explain_absence("Ω", "b").closed_at == 2e9 + 0.1
    assert not path.exists()
    await server.core.models.close()
