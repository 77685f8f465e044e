"""Clients that mean harm, or fail oddly, against a real server; others beside them see nothing."""

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import http2
import pytest
from cores import run
from grpc_reflection.v1alpha import reflection_pb2
from hostile import HOSTILE, LEAVER, ROBOT, STREAM, call_raw, end_of, raw_stream, resident
from launch import QUICK, TIGER, Server, serving
from wire import channel_to, failure

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

GARBAGE = b"\xff" * 10
UNARY = [
    f"/bigproto.v1.{service}/{method}"
    for service, methods in (
        ("Policy", ("Describe", "Start", "End", "Act", "Explain", "Export", "Import")),
        ("Admin", ("LoadModel",)),
    )
    for method in methods
]
FORGED = b'\n{"level":"error","message":"forged"}\n'
LIMITS: dict[str, object] = {
    "max-connections": 40,
    "max-streams": 12,
    "max-streams-per-caller": 8,
    "max-calls-per-caller": 8,
    "handshake-timeout": 1.5,
    "idle-timeout": 5,
    "message-timeout": 2,
    "stall-timeout": 2,
    "max-message-bytes": 16_000_000,
    "max-held-bytes": 4_000_000,
    "max-held-bytes-per-caller": 2_000_000,
    "max-held-bytes-per-stream": 500_000,
}


def write_tokens(path: Path, *lines: str) -> Path:
    path.touch(mode=0o600)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "tiger.big").write_bytes(TIGER.read_bytes())
    (folder / "loop").symlink_to("loop")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    robot, hostile = f"robot operator {ROBOT}", f"hostile caller {HOSTILE}"
    tokens = write_tokens(folder / "tokens", robot, hostile, f"leaver caller {LEAVER}")
    flags = {f"limits.{name}": value for name, value in LIMITS.items()}
    more = {"tokens": tokens, "log-format": "json"}
    with serving(folder / "tiger.big", **QUICK, **more, **flags) as server:
        yield server


@pytest.fixture
def robot(server: Server) -> Iterator[policy_pb2_grpc.PolicyStub]:
    """A well-behaved client."""
    with channel_to(server.address, token=ROBOT) as channel:
        yield policy_pb2_grpc.PolicyStub(channel)


# ── what cannot be decoded ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", UNARY)
def test_undecodable_messages_are_invalid_for_those_who_are_known(server, path):
    stranger = call_raw(server, path, GARBAGE, token=None)
    assert stranger.code() == grpc.StatusCode.UNAUTHENTICATED
    known = call_raw(server, path, GARBAGE)
    assert known.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "got 10 other bytes" in known.details()


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"])
def test_undecodable_probes_are_invalid(server, path):
    assert call_raw(server, path, GARBAGE, None).code() == grpc.StatusCode.INVALID_ARGUMENT


@run
async def test_undecodable_bytes_on_a_stream_end_it_after_the_replies(server):
    """At once, or after a request, whose reply is written or not as they come."""
    request = pb.ActRequest(episode_ids=["x"], steps=[0], request_id=7).SerializeToString()
    for index in range(40):
        async with raw_stream(server, HOSTILE) as call:
            before = index % 4
            for _ in range(before):
                await call.write(request)
            await call.write(GARBAGE)
            replies = [pb.ActReply.FromString(await call.read()) for _ in range(before)]
            assert [reply.request_id for reply in replies] == [7] * before
            assert (await end_of(call))[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_a_call_without_its_message_ends(server, robot):
    """It takes no place for longer than `message-timeout`."""
    with http2.connected(server.address) as connection:
        connection.sendall(http2.PREFACE + http2.window(65535))
        for stream in range(1, 17, 2):
            fields = http2.call("/bigproto.v1.Policy/Describe", HOSTILE)
            connection.sendall(http2.headers(stream, fields))
        time.sleep(0.5)
        error = call_raw(server, UNARY[0], b"", token=HOSTILE)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "8 calls of one caller" in error.details()
        assert robot.Describe(pb.DescribeRequest()).models  # somebody else's are counted apart
        time.sleep(3)
        with channel_to(server.address, token=HOSTILE) as channel:
            assert policy_pb2_grpc.PolicyStub(channel).Describe(pb.DescribeRequest()).models


# ── replies that nobody reads ────────────────────────────────────────────────────────────────────


@run
async def test_ids_that_are_none_are_not_kept(server):
    """Requests of 8 MB, in an id, would be kept and told again fourfold."""
    request = pb.ActRequest(episode_ids=["\0" * 8_000_000], steps=[0]).SerializeToString()
    async with raw_stream(server, HOSTILE) as call:
        await call.write(request)
        code, text = await end_of(call)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "1 to 128 bytes, got 8000000" in text


@pytest.mark.parametrize("fields", [{"episode_ids": [""]}, {"episode_ids": ["x" * 129]}])
def test_ids_are_checked_by_every_call(robot, fields):
    act = pb.ActRequest(steps=[0], **fields)
    explain = pb.ExplainRequest(episode_id=fields["episode_ids"][0])
    for call, request in (
        (robot.Act, act),
        (robot.End, pb.EndRequest(**fields)),
        (robot.Export, pb.ExportRequest(**fields)),
        (robot.Explain, explain),
    ):
        error = failure(grpc.StatusCode.INVALID_ARGUMENT, call, request)
        assert "`episode_ids` must have 1 to 128 bytes" in error.details()


def test_messages_that_are_refused_are_not_kept(server, robot):
    """40 of 8 MB by calls and 40 by streams; one of them may be on its way."""
    data = pb.ActRequest(episode_ids=["\0" * 8_000_000], steps=[0]).SerializeToString()
    call_raw(server, UNARY[3], data)
    before = resident(server)
    with channel_to(server.address, token=ROBOT) as channel:
        for method in (channel.unary_unary(UNARY[3]), None):
            for _ in range(40):
                with pytest.raises(grpc.RpcError) as got:
                    if method is not None:
                        method(data, timeout=10)
                    else:
                        next(channel.stream_stream(STREAM)(iter([data]), timeout=10))
                error: Any = got.value
                assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert resident(server) - before < 100_000_000


def test_what_is_compressed_may_unpack_to_no_more_than_any_message(server):
    """200 MB of zeros, which come as 0.2 MB."""
    data, before = bytes(200_000_000), resident(server)
    with channel_to(server.address, token=HOSTILE) as channel:
        with pytest.raises(grpc.RpcError) as got:
            call = channel.unary_unary(UNARY[3])
            call(data, timeout=30, compression=grpc.Compression.Gzip)
    error: Any = got.value
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert resident(server) - before < 100_000_000


async def flood(server: Server, num_streams: int, seconds: float) -> None:
    """Asks for episodes that there are not, on streams of which it reads nothing."""
    ids = [f"{index}" for index in range(64)]
    request = pb.ActRequest(episode_ids=ids, steps=[0] * 64).SerializeToString()

    async def send() -> None:
        while True:
            async with raw_stream(server, HOSTILE) as call:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    while True:
                        await call.write(request)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for _ in range(num_streams):
                group.create_task(send())


def test_a_client_that_reads_no_replies_is_bounded_and_harms_nobody(server, robot):
    """Replies of some 8 kB to requests of 0.4 kB, on 8 streams."""
    robot.Describe(pb.DescribeRequest())
    before, most, slowest = resident(server), 0, 0.0
    attack = threading.Thread(target=lambda: asyncio.run(flood(server, 8, 4.0)))
    attack.start()
    while attack.is_alive():
        began = time.monotonic()
        robot.Describe(pb.DescribeRequest(), timeout=5)
        slowest = max(slowest, time.monotonic() - began)
        most = max(most, resident(server))
        time.sleep(0.02)
    attack.join()
    assert most - before < 30_000_000, most - before
    assert slowest < 2.0, slowest


@run
async def test_a_stream_whose_replies_are_not_read_ends(server):
    """And what it held is free for others of the same caller."""
    ids = [f"{index:0120}" for index in range(64)]
    request = pb.ActRequest(episode_ids=ids, steps=[0] * 64).SerializeToString()
    async with raw_stream(server, HOSTILE) as call:
        for _ in range(3000):
            writing = asyncio.ensure_future(call.write(request))
            if not (await asyncio.wait({writing}, timeout=1.0))[0]:
                break
        else:
            pytest.fail("It must be read from no more.")
        await asyncio.sleep(4)
        code, text = await end_of(call)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED, text
    assert "must be read within 2 s" in text


def test_a_stream_of_which_nothing_at_all_is_read_ends(server):
    """The write that is given up is the first. Its status cannot be sent past it either: the call
    is over all the same, and so the connection is closed for having none."""
    request = pb.ActRequest(episode_ids=["x"], steps=[0]).SerializeToString()
    with http2.connected(server.address) as connection:
        connection.sendall(http2.PREFACE + http2.window(0))
        connection.sendall(http2.headers(1, http2.call(STREAM, HOSTILE)))
        connection.sendall(http2.message(1, request))
        assert http2.ends_stream(connection, 1, 40)


def test_streams_are_counted_by_caller(server, robot):
    with http2.connected(server.address) as connection:
        connection.sendall(http2.PREFACE + http2.window(65535))
        for stream in range(1, 17, 2):
            connection.sendall(http2.headers(stream, http2.call(STREAM, HOSTILE)))
        time.sleep(0.5)
        with channel_to(server.address, token=HOSTILE) as channel:
            with pytest.raises(grpc.RpcError) as got:
                next(channel.stream_stream(STREAM)(iter([b""]), timeout=10))
        error: Any = got.value
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "8 streams of one caller" in error.details()
        assert list(robot.ActStream(iter([]), timeout=10)) == []


def test_those_whom_nobody_knows_take_no_place_of_those_who_are_known(server, robot):
    """They may watch health; from two addresses they have more streams than there may be."""
    watch = http2.call("/grpc.health.v1.Health/Watch")
    with contextlib.ExitStack() as strangers:
        for address in ("127.0.0.1", "127.0.0.2"):
            connection = socket.create_connection(
                ("127.0.0.1", int(server.address.rpartition(":")[2])), 10, (address, 0)
            )
            strangers.enter_context(connection)
            connection.sendall(http2.PREFACE + http2.window(65535))
            for stream in range(1, 17, 2):
                connection.sendall(http2.headers(stream, watch) + http2.message(stream, b""))
        time.sleep(0.5)
        assert list(robot.ActStream(iter([]), timeout=10)) == []


def test_one_who_reads_no_answers_of_reflection_is_not_waited_for(server):
    """It repeats what it was asked, however long that was."""
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    request = reflection_pb2.ServerReflectionRequest(file_by_filename="x" * 30_000)
    with http2.connected(server.address) as connection:
        connection.sendall(http2.PREFACE + http2.window(0))
        connection.sendall(http2.headers(1, http2.call(path)))
        connection.sendall(http2.message(1, request.SerializeToString()))
        assert http2.ends_stream(connection, 1, 40)


# ── connections ──────────────────────────────────────────────────────────────────────────────────


def test_silent_connections_are_closed_and_leave_room(server, robot):
    with contextlib.ExitStack() as silent:
        many = [silent.enter_context(http2.connected(server.address)) for _ in range(60)]
        time.sleep(0.3)
        refused = sum(http2.is_closed(one, 0.01) for one in many)
        assert 60 - LIMITS["max-connections"] <= refused < 60  # pyright: ignore
        time.sleep(3)  # long before they are closed for having no calls
        assert all(http2.is_closed(one, 0.01) for one in many)
        with channel_to(server.address, token=ROBOT) as channel:
            stub = policy_pb2_grpc.PolicyStub(channel)
            assert stub.Describe(pb.DescribeRequest(), wait_for_ready=True).models


def test_connections_without_calls_are_closed_unseen_by_clients(server, robot):
    with http2.connected(server.address) as idle:
        idle.sendall(http2.PREFACE + http2.window(65535))
        assert robot.Describe(pb.DescribeRequest()).models
        assert http2.is_closed(idle, 12)
        assert robot.Describe(pb.DescribeRequest()).models  # on another connection


def test_a_connection_is_told_how_many_calls_it_may_have(server):
    with http2.connected(server.address) as connection:
        connection.sendall(http2.PREFACE + http2.window(65535))
        first = connection.recv(65536)
        assert first[3] == http2.SETTINGS
        length = int.from_bytes(first[:3], "big")
        settings = dict(struct.iter_unpack(">HI", first[9 : 9 + length]))
        assert settings[3] == 256  # SETTINGS_MAX_CONCURRENT_STREAMS


# ── texts, paths, tokens, the log ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["x" * 20_000, "\n" * 20_000, "é" * 20_000, "𝔵" * 20_000])
def test_long_names_are_told_in_short(robot, name):
    for request in (pb.StartRequest(model=name), pb.StartRequest(model="tiger", version=name)):
        error = failure(grpc.StatusCode.NOT_FOUND, robot.Start, request)
        assert len(error.details()) < 600
    failure(grpc.StatusCode.NOT_FOUND, robot.Describe, pb.DescribeRequest(model=name))


@pytest.mark.parametrize("path", ["a\0b", "loop", "loop/x", "x" * 5000])
def test_paths_that_cannot_be_are_refused(server, path):
    with channel_to(server.address, token=ROBOT) as channel:
        load = policy_pb2_grpc.AdminStub(channel).LoadModel
        request = pb.LoadModelRequest(model="tiger", path=path)
        failure(grpc.StatusCode.INVALID_ARGUMENT, load, request)


@run
async def test_a_stream_ends_once_its_token_is_removed(server, folder):
    request = pb.ActRequest(episode_ids=["x"], steps=[0]).SerializeToString()
    async with raw_stream(server, LEAVER) as call:
        await call.write(request)
        assert await call.read()
        robot, hostile = f"robot operator {ROBOT}", f"hostile caller {HOSTILE}"
        write_tokens(folder / "new", robot, hostile).rename(folder / "tokens")
        await asyncio.sleep(1.2)
        await call.write(request)
        assert (await end_of(call))[0] == grpc.StatusCode.UNAUTHENTICATED


def test_nothing_that_was_sent_can_forge_a_line_of_the_log(server, robot):
    for name in (b"te", b"grpc-timeout", b"grpc-status", FORGED + b"-bin", b"user-agent"):
        with http2.connected(server.address) as connection:
            fields = [*http2.call(UNARY[0]), (name, FORGED)]
            connection.sendall(http2.PREFACE + http2.window(0) + http2.headers(1, fields))
            time.sleep(0.1)
    assert robot.Describe(pb.DescribeRequest()).models
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert not [line for line in lines if line["message"] == "forged" or "exception" in line]
