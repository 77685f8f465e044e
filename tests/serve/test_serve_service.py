"""The calls, without a network: statuses, streams that stay within bounds, nothing let slip."""

import asyncio
import gc
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from bundles import EXACT
from cores import S0, T1, Serving, again, held, make_cores, run, settings, start
from google.protobuf.message_factory import GetMessageClass
from grpc.aio import EOF  # pyright: ignore[reportAttributeAccessIssue]: generated at run time

from bigproto.v1 import policy_pb2 as wire
from bigserve.bounds import Bounds
from bigserve.calls import Calls
from bigserve.convert import write_array
from bigserve.core import Core
from bigserve.errors import InvalidRequest
from bigserve.metrics import Metrics
from bigserve.sealing import Sealer
from bigserve.security import Authenticator
from bigserve.service import AdminService, PolicyService

IN_FLIGHT = 1024


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serving:
    return make_cores(monkeypatch, tmp_path)


class Context:
    """What gRPC hands to a call: requests to read, a client that takes replies or does not."""

    def __init__(self, requests: Iterable[Any] = (), remaining: float | None = None):
        self.requests = iter(requests)
        self._remaining = remaining
        self._done: list[Any] = []
        self.num_read = 0
        self.replies: list[wire.ActReply] = []
        self.takes_replies = asyncio.Event()
        self.takes_replies.set()
        self.status: tuple[grpc.StatusCode, str] | None = None
        self.trailing: tuple = ()

    def invocation_metadata(self) -> tuple:
        return ()

    def time_remaining(self) -> float | None:
        return self._remaining

    def set_trailing_metadata(self, metadata: tuple) -> None:
        self.trailing = metadata

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.status = code, details
        raise grpc.aio.AbortError

    async def read(self) -> Any:
        await asyncio.sleep(0)
        request = next(self.requests, EOF)
        self.num_read += request is not EOF
        return request if request is EOF else request.SerializeToString()

    async def send_initial_metadata(self, _: tuple) -> None:
        pass

    async def write(self, data: bytes) -> None:
        await self.takes_replies.wait()
        self.replies.append(wire.ActReply.FromString(data))

    def add_done_callback(self, callback: Any) -> None:
        self._done.append(callback)

    def finish(self) -> None:
        """Tells that the call is over, as gRPC does."""
        for callback in self._done:
            callback(self)


class Offered:
    """The methods of a service as gRPC has them, but for messages in place of bytes."""

    def __init__(self, name: str, servicer: Any, *, trusted: bool = True, **limits: Any):
        bounds = Bounds(settings(**limits).limits)
        self._calls = Calls(Authenticator(None, False, trusted), bounds, Metrics())
        self._service = wire.DESCRIPTOR.services_by_name[name]
        self._servicer = servicer

    def __getattr__(self, name: str) -> Any:
        method = self._service.methods_by_name[name]
        serve = getattr(self._servicer, name)
        handler: Any = self._calls.handler(method, serve, self._calls.identify, self._calls._bounds)

        async def call(request: Any, context: Context) -> Any:
            try:
                if method.client_streaming:
                    return await handler.stream_stream(None, context)
                context.requests = iter([request])
                data = await handler.stream_unary(None, context)
                return GetMessageClass(method.output_type).FromString(data)
            finally:
                context.finish()

        return call


def service_of(core: Core, *, trusted: bool = True, **limits: Any) -> Any:
    service = PolicyService(core, settings(**limits), Sealer(b"k" * 32), Metrics(), "1.2")
    return Offered("Policy", service, trusted=trusted, **limits)


async def fail(call: Any, request: Any, context: Context | None = None) -> tuple:
    """Code, text and trailing metadata of a call that fails."""
    context = context or Context()
    with pytest.raises(grpc.aio.AbortError):
        await call(request, context)
    assert context.status is not None
    return *context.status, context.trailing


def one_step(id: str, step: int, seen: Any = S0, request_id: int = 0) -> wire.ActRequest:
    return wire.ActRequest(
        request_id=request_id, episode_ids=[id], steps=[step], observation=[write_array(seen[None])]
    )


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_client_that_reads_no_replies_is_read_from_no_more(serving):
    async with serving() as core:
        total = IN_FLIGHT + 500
        context = Context(one_step("nobody", 0, request_id=n) for n in range(total))
        context.takes_replies.clear()
        streaming = asyncio.ensure_future(service_of(core).ActStream(None, context))
        while context.num_read < IN_FLIGHT:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert context.num_read == IN_FLIGHT
        context.takes_replies.set()
        await streaming
        assert [reply.request_id for reply in context.replies] == list(range(total))


@pytest.mark.parametrize("whose", ["_per_stream", "_per_caller", ""])
@run
async def test_bytes_that_a_client_does_not_read_are_bounded(serving, whose):
    """Those of one stream, those of its caller and those of all; then nothing is lost."""
    async with serving() as core:
        most, count = 20_000, 400
        limits: dict[str, Any] = {f"max_held_bytes{whose}": most}
        service = service_of(core, **limits)
        contexts = [
            Context(one_step("nobody", 0, request_id=n) for n in range(count)) for _ in range(2)
        ]
        for context in contexts:
            context.takes_replies.clear()
        streams = [asyncio.ensure_future(service.ActStream(None, one)) for one in contexts]
        for _ in range(4 * count):
            await asyncio.sleep(0)
        size = service._calls._bounds.held / sum(one.num_read for one in contexts)
        assert size > 100  # each reply says what is wrong
        for context in contexts:
            assert context.num_read <= most / size + 1
        if whose != "_per_stream":
            assert sum(one.num_read for one in contexts) <= most / size + 2
        for context in contexts:
            context.takes_replies.set()
        await asyncio.gather(*streams)
        for context in contexts:
            assert [reply.request_id for reply in context.replies] == list(range(count))
        assert service._calls._bounds.held == 0


@run
async def test_a_bad_request_ends_a_stream_after_the_replies_to_those_before_it(serving):
    async with serving() as core:
        start(core, ["a", "b"], owner="anonymous")
        held(core.models[0]).gate.clear()
        bad = wire.ActRequest(request_id=9)
        context = Context([one_step("a", 0, S0, 7), one_step("b", 0, S0, 8), bad])
        streaming = asyncio.ensure_future(service_of(core).ActStream(None, context))
        while context.num_read < 3:
            await asyncio.sleep(0)
        assert not context.replies
        held(core.models[0]).gate.set()
        with pytest.raises(grpc.aio.AbortError):
            await streaming
        assert [reply.request_id for reply in context.replies] == [7, 8]
        assert context.status is not None
        assert context.status[0] == grpc.StatusCode.INVALID_ARGUMENT
        reply = await service_of(core).Act(one_step("a", 1, T1), Context())
        assert not reply.errors  # the episodes live on


@run
async def test_a_stream_to_a_client_that_is_gone_ends_quietly(serving, monkeypatch, caplog):
    async with serving() as core:
        context = Context(one_step("nobody", 0) for _ in range(3))

        async def write(_: Any) -> None:
            raise grpc.aio.UsageError("gone")

        monkeypatch.setattr(context, "write", write)
        await service_of(core).ActStream(None, context)
    gc.collect()  # tasks say at their end that nobody asked for their error
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


# ── statuses ─────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_fault_of_ours_is_told_by_its_id_alone(serving, monkeypatch, caplog):
    async with serving() as core:

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("secret")

        monkeypatch.setattr(core.episodes, "start", broken)
        with caplog.at_level(logging.ERROR):
            code, text, _ = await fail(service_of(core).Start, wire.StartRequest())
        assert code == grpc.StatusCode.INTERNAL
        found = re.fullmatch(r"The server failed; its log has it as ([0-9a-f]{8})\.", text)
        assert found is not None
        (record,) = [record for record in caplog.records if record.exc_info]
        assert (record.incident, "secret" in caplog.text) == (found[1], True)


@run
async def test_a_stream_that_fails_by_our_fault_tells_no_more(serving, monkeypatch):
    async with serving() as core:

        def broken(*_: Any) -> Any:
            raise RuntimeError("secret")

        monkeypatch.setattr(core.steps, "submit", broken)
        code, text, _ = await fail(service_of(core).ActStream, None, Context([one_step("a", 0)]))
        assert code == grpc.StatusCode.INTERNAL and "secret" not in text


@run
async def test_what_the_core_refuses_has_its_code_and_metadata(serving):
    async with serving(max_episodes=2) as core:
        service = service_of(core)
        assert (await fail(service.Start, wire.StartRequest(model="x")))[0] == (
            grpc.StatusCode.NOT_FOUND
        )
        code, _, trailing = await fail(service.Start, wire.StartRequest(num_episodes=3))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailing == (("grpc-retry-pushback-ms", "1000"),)
        code, _, trailing = await fail(service.Explain, wire.ExplainRequest(episode_id="x"))
        assert code == grpc.StatusCode.NOT_FOUND
        assert trailing == (("big-problem", "PROBLEM_EPISODE_UNKNOWN"),)
        start(core, ["a"], owner="anonymous")
        late = await fail(service.Act, one_step("a", 0), Context(remaining=0.0))
        assert late[0] == grpc.StatusCode.DEADLINE_EXCEEDED
        core.draining = True
        assert (await fail(service.Start, wire.StartRequest()))[0] == grpc.StatusCode.UNAVAILABLE
        reply = await service.Act(one_step("a", 0), Context(remaining=60.0))
        assert not reply.errors


@pytest.mark.parametrize("letter", ["x", "é", "𝔵"])
@run
async def test_what_is_said_of_an_error_fits_into_metadata(serving, monkeypatch, letter):
    """Whatever it quotes: clients take 8 kB, in which a byte may take three."""
    async with serving() as core:

        def refuse(*_: Any) -> None:
            raise InvalidRequest(20_000 * letter)

        monkeypatch.setattr(core.models, "choose", refuse)
        service = service_of(core)
        code, text, _ = await fail(service.Describe, wire.DescribeRequest(model="x"))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert letter in text and 1900 < len(text.encode()) < 2100


@run
async def test_a_caller_that_goes_away_leaves_its_step_made(serving):
    async with serving() as core:
        start(core, ["a"], owner="anonymous")
        held(core.models[0]).gate.clear()
        acting = asyncio.ensure_future(service_of(core).Act(one_step("a", 0), Context()))
        await asyncio.sleep(0.01)
        acting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acting
        held(core.models[0]).gate.set()
        reply = await service_of(core).Act(one_step("a", 0), Context())
        assert list(reply.duplicates) == [0]


# ── seals ────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_only_what_was_sealed_here_is_let_in(serving):
    async with serving() as core:
        service = service_of(core)
        start(core, ["a", "b"], owner="anonymous")
        await service.Act(one_step("a", 0), Context())
        request = wire.ExportRequest(episode_ids=["a", "b"], close=True)
        sealed = (await service.Export(request, Context())).episodes
        altered = sealed[0].state[:-1] + bytes([sealed[0].state[-1] ^ 1])
        forged = wire.SealedEpisode(state=altered, seal=sealed[0].seal)
        given = wire.ImportRequest(episodes=[forged, sealed[1], sealed[0]])
        reply = await service.Import(given, Context())
        assert list(reply.episode_ids) == ["b", "a"]
        assert [(e.index, e.problem) for e in reply.errors] == [(0, wire.PROBLEM_SEAL_BROKEN)]
        assert not (await service.Act(one_step("a", 1, T1), Context())).errors


# ── admin ────────────────────────────────────────────────────────────────────────────────────────


def load(core: Core, folder: Path, told: list[list[str]], *, trusted: bool = True) -> Any:
    """LoadModel; `told` gets the models that there are each time it announces them."""

    async def announce() -> None:
        told.append(core.models.names)

    return Offered("Admin", AdminService(core, folder, announce), trusted=trusted).LoadModel


@run
async def test_an_operator_loads_from_the_directory_alone(serving, tmp_path):
    async with serving() as core:
        (tmp_path / "new.big").write_bytes(again(EXACT, 5))
        told: list[list[str]] = []
        call = load(core, tmp_path, told)
        reply = await call(wire.LoadModelRequest(model="cat", path="new.big"), Context())
        assert (reply.model.name, reply.model.current) == ("cat", True)
        (tmp_path / "inner").mkdir()
        outside = load(core, tmp_path / "inner", told)
        for path in ("../new.big", str(tmp_path / "new.big"), "x/../../new.big"):
            request = wire.LoadModelRequest(model="cat", path=path)
            assert (await fail(outside, request))[0] == grpc.StatusCode.INVALID_ARGUMENT
        request = wire.LoadModelRequest(model="dog")
        assert (await fail(call, request))[0] == grpc.StatusCode.NOT_FOUND
        request = wire.LoadModelRequest(model="../cat")
        assert (await fail(call, request))[0] == grpc.StatusCode.INVALID_ARGUMENT
        (tmp_path / "new.big").write_bytes(b"broken")
        request = wire.LoadModelRequest(model="cat")  # from where it was loaded last
        assert (await fail(call, request))[0] == grpc.StatusCode.FAILED_PRECONDITION
        request = wire.LoadModelRequest(model="tiger")
        caller = load(core, tmp_path, told, trusted=False)
        assert (await fail(caller, request))[0] == grpc.StatusCode.PERMISSION_DENIED
        assert told == [["cat", "tiger"]]
