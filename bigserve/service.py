"""The calls: each converts, calls the core, and converts back."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, final

from bigproto.v1 import policy_pb2 as wire
from bigserve import convert, describe
from bigserve.acts import Acted
from bigserve.calls import Call
from bigserve.config import NAME, ServerConfig
from bigserve.core import Core
from bigserve.errors import (
    CallError,
    InvalidRequest,
    Late,
    LimitReached,
    NotPermitted,
    Unavailable,
    quoted,
)
from bigserve.metrics import Metrics
from bigserve.replies import Awaited, Replies
from bigserve.sealing import Sealer


@final
class PolicyService:
    """What a robot or a simulator calls."""

    def __init__(
        self, core: Core, config: ServerConfig, sealer: Sealer, metrics: Metrics, release: str
    ):
        self._core = core
        self._limits = config.limits
        self._sealer = sealer
        self._metrics = metrics
        self._release = release

    async def Describe(self, request: wire.DescribeRequest, _: Call) -> wire.DescribeReply:
        if request.model:
            self._core.models.choose(request.model, "")
        return wire.DescribeReply(
            models=[
                describe.write_model(version)
                for version in self._core.models
                if request.model in ("", version.name)
            ],
            limits=describe.write_limits(self._limits),
            server_version=self._release,
        )

    async def Start(self, request: wire.StartRequest, call: Call) -> wire.StartReply:
        asked = convert.read_start(request, self._limits)
        version, episodes = self._core.start(
            call.caller.name,
            asked.model,
            asked.version,
            asked.ids,
            rule=asked.rule,
            seed=asked.seed,
            lease=asked.lease,
        )
        return convert.write_started(version, episodes)

    async def End(self, request: wire.EndRequest, call: Call) -> wire.EndReply:
        ids = convert.read_ids(request.episode_ids, self._limits)
        return convert.write_ended(await self._core.end(call.caller.name, ids))

    async def Act(self, request: wire.ActRequest, call: Call) -> wire.ActReply:
        if call.remaining <= 0:
            raise Late("The deadline passed before the server began.")
        future: asyncio.Future[Acted] = asyncio.get_running_loop().create_future()

        def deliver(acted: Acted) -> None:
            if not future.done():  # else the caller is gone, and its episodes have moved on
                future.set_result(acted)

        now = time.monotonic()
        deadline = now + call.remaining
        act = convert.read_act(request, call.caller.name, self._limits, now, deadline, deliver)
        self._core.act(act)
        return convert.write_acted(request, await future)

    async def ActStream(self, call: Call) -> None:
        """Takes requests in while others are under way, and answers each when it is done."""
        replies = Replies(call.context.write, call.holding, self._limits.max_unanswered)
        reader = asyncio.create_task(self._take_all(call, replies))
        writer = asyncio.create_task(replies.write())
        try:
            leaving = None
            try:
                with self._core.streams.reading():
                    await self._watch(replies, reader, writer)
            except Unavailable as error:  # what was asked for before is answered first
                reader.cancel()
                leaving = error
            replies.end()
            await self._watch(replies, writer)
            failure = leaving or (reader.result() if reader.done() else None)
            if failure is not None:
                raise failure
        finally:
            reader.cancel()
            writer.cancel()
            replies.drop()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _take_all(self, call: Call, replies: Replies) -> CallError | None:
        """Takes in all requests; what is wrong with the last one, if anything is."""
        try:
            while True:
                if replies.is_full:
                    await replies.make_room()
                found = await call.read()
                if found is None:
                    return None
                call.check_caller()
                self._take(*found, call, replies)
        except CallError as error:
            return error.with_traceback(None)  # whose frames would keep the request

    def _take(self, request: wire.ActRequest, size: int, call: Call, replies: Replies) -> None:
        reply, now = Awaited(size), time.monotonic()

        def deliver(acted: Acted) -> None:
            replies.fill(reply, convert.write_acted(request, acted).SerializeToString())
            self._metrics.request("ActStream.message", "OK", time.monotonic() - now)

        owner = call.caller.name
        self._core.act(convert.read_act(request, owner, self._limits, now, math.inf, deliver))
        replies.expect(reply)  # only now: there is none where that has raised

    async def _watch(self, replies: Replies, *tasks: asyncio.Task[Any]) -> None:
        """Waits until one of the tasks is done; raises where the client reads no replies."""
        most = self._limits.stall_timeout
        while not any(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=most / 4, return_when=asyncio.FIRST_COMPLETED)
            if replies.stalled_for > most:
                raise LimitReached(
                    f"A reply must be read within {most:g} s, and one was not. Open another stream "
                    "and send again what has no reply.",
                    retry_after=0.0,
                )

    async def Explain(self, request: wire.ExplainRequest, call: Call) -> wire.ExplainReply:
        (id,) = convert.read_ids([request.episode_id], self._limits)
        return convert.write_explained(await self._core.explain(call.caller.name, id))

    async def Export(self, request: wire.ExportRequest, call: Call) -> wire.ExportReply:
        ids = convert.read_ids(request.episode_ids, self._limits)
        records, faults = await self._core.export(call.caller.name, ids, close=request.close)
        return convert.write_exported(records, faults, self._sealer)

    async def Import(self, request: wire.ImportRequest, call: Call) -> wire.ImportReply:
        convert.check_count("episodes", len(request.episodes), self._limits)
        records = [convert.read_sealed(sealed, self._sealer) for sealed in request.episodes]
        ids, faults = await self._core.import_all(call.caller.name, records)
        return wire.ImportReply(episode_ids=ids, errors=map(convert.write_fault, faults))


@final
class AdminService:
    """What an operator calls."""

    def __init__(self, core: Core, folder: Path, announce: Callable[[], Awaitable[None]]):
        self._core = core
        self._folder = folder
        self._announce = announce

    async def LoadModel(self, request: wire.LoadModelRequest, call: Call) -> wire.LoadModelReply:
        if not call.caller.operator:
            raise NotPermitted(f"{quoted(call.caller.name)} must be an operator to load models.")
        if not NAME.fullmatch(request.model):
            raise InvalidRequest(
                f"`model` must be up to 64 letters, digits and `._-`, got {quoted(request.model)}."
            )
        if request.path:
            path = find_below(self._folder, request.path)
        else:
            path = self._core.models.choose(request.model, "").path
        version = await self._core.models.load(request.model, path)
        if not self._core.draining:
            await self._announce()
        return wire.LoadModelReply(model=describe.write_model(version))


def find_below(folder: Path, name: str) -> Path:
    """The path of that name below a folder, wherever symbolic links may lead."""
    folder = folder.resolve()
    try:
        path = (folder / name).resolve()
        with contextlib.suppress(FileNotFoundError):  # whoever reads it will say so
            path.stat()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL, too long a name
        raise InvalidRequest(f"`path` must be that of a file, got {quoted(name)}.") from None
    if not path.is_relative_to(folder):
        raise InvalidRequest("`path` must be below the server's model directory.")
    return path
