"""From one run to the next: full disks, snapshots that are none, and streams that must end."""

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import msgpack
import numpy as np
import pytest
from cores import S0, T1, Serving, act, make_cores, run, settings, start, walk
from wire import act_request

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc
from bigserve import convert, handover, snapshot
from bigserve.core import Core
from bigserve.episodes import Rule
from bigserve.errors import ConfigError, Problem, SnapshotError
from bigserve.server import Server
from bigserve.snapshot import Grave, Snapshot


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serving:
    monkeypatch.setattr(handover, "_AGAIN", 0.05)
    return make_cores(monkeypatch, tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "episodes"


class Disk:
    """A disk that is full for the first writes, or for all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, full_for: float):
        self.writes, self._full_for, self._writing = 0, full_for, snapshot.atomic_write
        monkeypatch.setattr(snapshot, "atomic_write", self._write)

    def _write(self, path: Path):
        self.writes += 1
        if self.writes <= self._full_for:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._writing(path)


# ── full disks ───────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_snapshot_that_cannot_be_written_is_tried_again_and_steps_go_on(
    serving, path, monkeypatch, caplog
):
    disk = Disk(monkeypatch, full_for=3)
    async with serving() as core:
        start(core, ["a"])
        await walk(core, "a", [S0])
        core.draining = True
        finishing = asyncio.create_task(handover.finish(core, path, 30.0, asyncio.Event()))
        while disk.writes < 2 or core.stopped:
            assert not finishing.done()
            await asyncio.sleep(0.001)
        assert not (await act(core, ["a"], [1], [T1])).faults
        assert await finishing is None
        assert core.stopped and disk.writes == 4
    (record,) = map(convert.read_record, (snapshot.load(path) or Snapshot([], [])).states)
    assert (record.id, record.next_step) == ("a", 2)
    assert {r.episodes for r in caplog.records if "cannot be written" in r.message} == {1}


@run
async def test_a_disk_that_stays_full_costs_the_episodes_after_grace_and_that_is_said(
    serving, path, monkeypatch
):
    Disk(monkeypatch, full_for=np.inf)
    async with serving() as core:
        start(core, ["a", "b"])
        core.draining = True
        began = asyncio.get_running_loop().time()
        failure = await handover.finish(core, path, 0.3, asyncio.Event())
        assert asyncio.get_running_loop().time() - began >= 0.3
        assert core.stopped
        assert str(failure) == (
            f"{path} cannot be written: No space left on device. Episodes lost by that: 2."
        )


@run
async def test_nothing_is_waited_for_once_all_have_closed_or_a_second_signal_came(
    serving, path, monkeypatch
):
    Disk(monkeypatch, full_for=np.inf)
    for hurry in (False, True):
        async with serving() as core:
            start(core, ["a"])
            hurried = asyncio.Event()
            finishing = asyncio.create_task(handover.finish(core, path, 600.0, hurried))
            await asyncio.sleep(0.2)
            assert not finishing.done()
            hurried.set() if hurry else await core.end("me", ["a"])
            failure = await asyncio.wait_for(finishing, 10)
            assert (failure is not None) == hurry


# ── snapshots that are none ──────────────────────────────────────────────────────────────────────


async def write_snapshot(core: Core, path: Path) -> bytes:
    start(core, ["a", "b"], seed=5, rule=Rule(temperature=1.0))
    start(core, ["ended"])
    await walk(core, "a", [S0, T1])
    await core.end("me", ["ended"])
    assert await handover.finish(core, path, 1.0, asyncio.Event()) is None
    return path.read_bytes()


def with_digest(content: bytes) -> bytes:
    return b"bigserve snapshot 1\n" + hashlib.sha256(content).digest() + content


@run
async def test_what_is_no_snapshot_is_refused_by_a_sentence_and_stays(serving, path):
    async with serving() as core:
        data = await write_snapshot(core, path)
    content = data[52:]
    bad_state = {**msgpack.unpackb(content), "states": [b"\xff" * 40]}
    half = {**msgpack.unpackb(content)}
    half["states"] = [half["states"][0], half["states"][1][:-9]]
    cases = {
        b"": "it is empty",
        b"\0" * 200: "it begins otherwise",
        b"bigserve snapshot 2\n" + data[20:]: "it begins otherwise",
        data[: len(data) // 2]: "it ends early, or was altered: its digest does not fit",
        data[:30]: "it ends early, or was altered",
        with_digest(msgpack.packb(["states"]) or b""): "its content is something else",
        with_digest(msgpack.packb({"states": []}) or b""): "its content is something else",
        with_digest(b"\xc1"): "its content is something else",
        with_digest(msgpack.packb(bad_state) or b""): "must hold episodes that this release can",
        with_digest(msgpack.packb(half) or b""): "must hold episodes that this release can",
    }
    for bad, why in cases.items():
        path.write_bytes(bad)
        async with serving() as core:
            with pytest.raises(SnapshotError) as refused:
                await handover.restore(core, path)
            assert why in str(refused.value)
            assert "ove " in str(refused.value) and str(path) in str(refused.value)  # what to do
            assert len(core.episodes) == 0 and not list(core.episodes.tombstones)
        assert path.read_bytes() == bad


@run
async def test_a_snapshot_of_an_older_release_is_read(serving, path):
    """It had neither the steps of closed episodes nor the seeds of open ones."""
    async with serving() as core:
        data = await write_snapshot(core, path)
    content = msgpack.unpackb(data[52:])
    del content["steps"]
    states = [pb.EpisodeState.FromString(state) for state in content["states"]]
    for state in states:
        assert state.seed == 5
        state.ClearField("seed")
    content["states"] = [state.SerializeToString(deterministic=True) for state in states]
    path.write_bytes(with_digest(msgpack.packb(content) or b""))
    async with serving() as core:
        await handover.restore(core, path)
        assert {one.id: int(core.episodes.next_step[one.slot]) for one in core.episodes} == {
            "a": 2,
            "b": 0,
        }
        assert core.episodes.explain_absence("me", "ended").problem == Problem.EPISODE_ENDED
        assert (await act(core, ["a"], [1], [T1])).duplicates == [0]
        assert not path.exists()


@run
async def test_a_start_can_be_sent_again_after_a_restart(serving, path):
    async with serving() as core:
        await write_snapshot(core, path)
    async with serving() as core:
        await handover.restore(core, path)
        before = core.models[0].rows.copy()
        (again,) = start(core, ["b"], seed=5, rule=Rule(temperature=1.0))
        assert again.id == "b" and len(core.episodes) == 2
        np.testing.assert_array_equal(core.models[0].rows, before)


def test_older_releases_read_our_snapshots(path):
    """They take four entries of each closed episode, and no others."""
    snapshot.save(path, Snapshot([], [Grave("me", "a", Problem.EPISODE_EXPORTED, 1.5, 7)]))
    content = msgpack.unpackb(path.read_bytes()[52:])
    assert content["graves"] == [["me", "a", 5, 1.5]] and content["steps"] == [7]
    assert snapshot.load(path) == Snapshot([], [Grave("me", "a", Problem.EPISODE_EXPORTED, 1.5, 7)])


@run
async def test_a_server_that_cannot_have_its_descriptors_does_not_start(monkeypatch):
    """It asks for them before it loads anything."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 100))
    server = Server({}, dataclasses.replace(settings(), listen="127.0.0.1:0", admin=False))
    with pytest.raises(ConfigError, match="128 of the process's descriptors"):
        await server.start()


# ── leaving ──────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def listening(tmp_path: Path, **changes: object) -> AsyncIterator[Server]:
    """A server of its own on this event loop, which the test stops."""
    config = dataclasses.replace(settings(), listen="127.0.0.1:0", **changes)
    server = Server({"tiger": tmp_path / "tiger.big"}, config)
    await server.start()
    yield server


@run
async def test_streams_end_with_a_status_that_says_to_come_back(serving, tmp_path, path):
    async with serving():
        pass  # has put the bundle there
    async with listening(tmp_path, snapshot=path) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = policy_pb2_grpc.PolicyStub(channel)
            ids = (await stub.Start(pb.StartRequest())).episode_ids
            idle, used = stub.ActStream(), stub.ActStream()
            await used.write(act_request(ids, [0], [(S0,)]))
            assert not (await used.read()).errors
            await idle.wait_for_connection()
            stopping = asyncio.create_task(server.stop())
            for stream in (idle, used):
                with pytest.raises(grpc.aio.AioRpcError) as told:
                    await stream.read()
                assert told.value.code() == grpc.StatusCode.UNAVAILABLE
                assert told.value.trailing_metadata()["grpc-retry-pushback-ms"] == "1000"
            with pytest.raises(grpc.aio.AioRpcError) as told:  # who calls now is told as well
                await stub.End(pb.EndRequest(episode_ids=ids), timeout=5)
            assert told.value.trailing_metadata()["grpc-retry-pushback-ms"] == "1000"
            while not stopping.done():  # all who call meanwhile hear the same
                with pytest.raises(grpc.aio.AioRpcError) as told:
                    await stub.End(pb.EndRequest(episode_ids=ids), timeout=5)
                    await asyncio.sleep(0)
                assert told.value.code() == grpc.StatusCode.UNAVAILABLE
                await asyncio.sleep(0.2)
            await stopping
    assert path.exists()


@run
async def test_a_server_that_lost_episodes_says_so_at_its_end(serving, tmp_path, monkeypatch, path):
    Disk(monkeypatch, full_for=np.inf)
    async with serving():
        pass
    async with listening(tmp_path, snapshot=path, grace=0.1) as server:
        start(server.core, ["a"])
        with pytest.raises(
            SnapshotError, match=r"No space left on device\. Episodes lost by that: 1\."
        ):
            await server.stop()
    assert not path.exists()
