"""The calls: each converts, calls the core, and converts back.

Errors that the core raises on purpose go out with their code. Anything else is logged, and the
caller gets the id it is logged under.
"""

import asyncio
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, final

import grpc
from grpc.aio import EOF  # pyright: ignore[reportAttributeAccessIssue]: generated at run time

from bigproto.v1 import policy_pb2 as wire
from bigproto.v1 import policy_pb2_grpc
from bigserve import convert
from bigserve.acts import Acted
from bigserve.config import NAME, ServerConfig
from bigserve.core import Core
from bigserve.errors import (
    CallError,
    Fault,
    InvalidRequest,
    Late,
    LimitReached,
    NotPermitted,
    Problem,
)
from bigserve.logs import incident
from bigserve.metrics import Metrics
from bigserve.replies import Place, Replies
from bigserve.sealing import Sealer
from bigserve.security import Authenticator

log = logging.getLogger("bigserve")

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


def answering(handler: Handler) -> Handler:
    """Times a call, and turns what it raises into a status."""
    method = handler.__name__

    @functools.wraps(handler)
    async def answer(self: Any, request: Any, context: grpc.aio.ServicerContext) -> Any:
        began, code = time.monotonic(), grpc.StatusCode.OK
        try:
            return await handler(self, request, context)
        except CallError as error:
            code = error.code
            context.set_trailing_metadata(error.metadata)
            await context.abort(code, str(error))
        except (asyncio.CancelledError, grpc.aio.AbortError):
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            code, id = grpc.StatusCode.INTERNAL, incident()
            log.error("%s failed", method, exc_info=error, extra={"incident": id})
            await context.abort(code, f"The server failed; its log has it as {id}.")
        finally:
            self.metrics.request(method, code.name, time.monotonic() - began)

    return cast(Handler, answer)


@final
class PolicyService(policy_pb2_grpc.PolicyServicer):
    """What a robot or a simulator calls."""

    def __init__(
        self,
        core: Core,
        config: ServerConfig,
        authenticator: Authenticator,
        sealer: Sealer,
        metrics: Metrics,
        release: str,
    ):
        self._core = core
        self._limits = config.limits
        self._identify = authenticator.identify
        self._sealer = sealer
        self._release = release
        self.metrics = metrics

    @answering
    async def Describe(self, request: wire.DescribeRequest, context: Any) -> wire.DescribeReply:
        self._identify(context)
        if request.model:
            self._core.models.choose(request.model, "")
        return wire.DescribeReply(
            models=[
                convert.write_model(version)
                for version in self._core.models
                if request.model in ("", version.name)
            ],
            limits=convert.write_limits(self._limits),
            server_version=self._release,
        )

    @answering
    async def Start(self, request: wire.StartRequest, context: Any) -> wire.StartReply:
        caller = self._identify(context)
        asked = convert.read_start(request, self._limits)
        version, episodes = self._core.start(
            caller.name,
            asked.model,
            asked.version,
            asked.ids,
            rule=asked.rule,
            seed=asked.seed,
            lease=asked.lease,
        )
        return convert.write_started(version, episodes)

    @answering
    async def End(self, request: wire.EndRequest, context: Any) -> wire.EndReply:
        caller, ids = self._identify(context), self._read_ids(request.episode_ids)
        return convert.write_ended(await self._core.end(caller.name, ids))

    @answering
    async def Act(self, request: wire.ActRequest, context: Any) -> wire.ActReply:
        caller, remaining = self._identify(context), context.time_remaining()
        if remaining is not None and remaining <= 0:
            raise Late("The deadline passed before the server began.")
        future: asyncio.Future[Acted] = asyncio.get_running_loop().create_future()

        def deliver(acted: Acted) -> None:
            if not future.done():  # else the caller is gone, and its episodes have moved on
                future.set_result(acted)

        now = time.monotonic()
        deadline = math.inf if remaining is None else now + remaining
        act = convert.read_act(request, caller.name, self._limits, now, deadline, deliver)
        self._core.act(act)
        return convert.write_acted(request, await future)

    @answering
    async def ActStream(self, request_iterator: Any, context: Any) -> None:
        """Takes requests in while others are under way, and answers each when it is done."""
        owner, replies = self._identify(context).name, Replies(context)
        writer, failure = asyncio.create_task(replies.write()), None
        try:
            try:
                with self._core.streams.reading():
                    while (request := await context.read()) is not EOF:
                        self._take(request, owner, replies)
                        if replies.full:
                            await replies.make_room()
            except CallError as error:
                failure = error  # of the last request; the others get their replies
            replies.end()
            await asyncio.wait({writer})
        finally:
            writer.cancel()
        if failure is not None:
            raise failure

    def _take(self, request: wire.ActRequest, owner: str, replies: Replies) -> None:
        place, now = Place(), time.monotonic()

        def deliver(acted: Acted) -> None:
            replies.fill(place, convert.write_acted(request, acted))
            self.metrics.request("ActStream.message", "OK", time.monotonic() - now)

        self._core.act(convert.read_act(request, owner, self._limits, now, math.inf, deliver))
        replies.expect(place)  # only now: there is none where that has raised

    @answering
    async def Explain(self, request: wire.ExplainRequest, context: Any) -> wire.ExplainReply:
        caller = self._identify(context)
        return convert.write_explained(await self._core.explain(caller.name, request.episode_id))

    @answering
    async def Export(self, request: wire.ExportRequest, context: Any) -> wire.ExportReply:
        caller, ids = self._identify(context), self._read_ids(request.episode_ids)
        records, faults = await self._core.export(caller.name, ids, close=request.close)
        states = map(convert.write_record, records)
        return wire.ExportReply(
            episodes=[wire.SealedEpisode(state=s, seal=self._sealer.seal(s)) for s in states],
            errors=map(convert.write_fault, faults),
        )

    @answering
    async def Import(self, request: wire.ImportRequest, context: Any) -> wire.ImportReply:
        caller, reply = self._identify(context), wire.ImportReply()
        convert.check_count("episodes", len(request.episodes), self._limits)
        for index, sealed in enumerate(request.episodes):
            if not self._sealer.holds(sealed.state, sealed.seal):
                message = "The seal must be that of this state, by the key of this server."
                fault = Fault(index, Problem.SEAL_BROKEN, message)
            else:
                record = convert.read_record(sealed.state)
                try:
                    fault = await self._core.import_(caller.name, record)
                except LimitReached as error:
                    wait = error.retry_after or 0.0
                    overloaded = Problem.ITEM_OVERLOADED
                    fault = Fault(index, overloaded, str(error), retry_after=wait)
                if fault is None:
                    reply.episode_ids.append(record.id)
                    continue
            reply.errors.append(convert.write_fault(fault._replace(place=index)))
        return reply

    def _read_ids(self, ids: Sequence[str]) -> list[str]:
        convert.check_count("episode_ids", len(ids), self._limits)
        return list(ids)


@final
class AdminService(policy_pb2_grpc.AdminServicer):
    """What an operator calls."""

    def __init__(
        self,
        core: Core,
        folder: Path,
        authenticator: Authenticator,
        metrics: Metrics,
        announce: Callable[[], Awaitable[None]],
    ):
        self._core = core
        self._folder = folder.resolve()
        self._identify = authenticator.identify
        self.metrics = metrics
        self._announce = announce

    @answering
    async def LoadModel(self, request: wire.LoadModelRequest, context: Any) -> wire.LoadModelReply:
        caller = self._identify(context)
        if not caller.operator:
            raise NotPermitted(f"{caller.name!r} must be an operator to load models.")
        if not NAME.fullmatch(request.model):
            raise InvalidRequest(
                f"`model` must be up to 64 letters, digits and `._-`, got {request.model[:80]!r}."
            )
        if request.path:
            path = (self._folder / request.path).resolve()
            if not path.is_relative_to(self._folder):
                raise InvalidRequest("`path` must be below the server's model directory.")
        else:
            path = self._core.models.choose(request.model, "").path
        version = await self._core.models.load(request.model, path)
        if not self._core.draining:
            await self._announce()
        return wire.LoadModelReply(model=convert.write_model(version))
