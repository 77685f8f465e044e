"""How calls come in: authenticated, counted, read, decoded, answered, in that order.

gRPC would read and decode a message before anything here sees the call, and what cannot be decoded
would end in UNKNOWN and a traceback in the log. So every method is registered as one that takes a
stream of bytes, which on the wire is the same, and the message is read and decoded here.

Errors that are raised on purpose go out with their code. Anything else is logged, and the caller
gets the id it is logged under.
"""

import asyncio
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, final

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc.aio import EOF  # pyright: ignore[reportAttributeAccessIssue]: generated at run time

from bigserve.bounds import Bounds, Holding
from bigserve.errors import CallError, InvalidRequest, Late, LimitReached, Unauthenticated
from bigserve.logs import incident
from bigserve.metrics import Metrics
from bigserve.security import Authenticator, Caller

log = logging.getLogger("bigserve")

_LONGEST_TEXT = 2000
"""Bytes of an error; clients take 8 kB of metadata, and on the wire a byte may need three."""

M = TypeVar("M", bound=Message)


@final
class Call:
    """A call of somebody who is known and has room for it."""

    def __init__(
        self,
        context: grpc.aio.ServicerContext,
        caller: Caller,
        holding: Holding,
        authenticator: Authenticator,
        kind: type[Message],
        stall: float,
    ):
        self.context, self.caller, self.holding = context, caller, holding
        self._authenticator, self._seen = authenticator, authenticator.refresh()
        self._kind, self._stall = kind, stall

    @property
    def remaining(self) -> float:
        """Seconds until the caller's deadline."""
        remaining = self.context.time_remaining()
        return math.inf if remaining is None else remaining

    async def read(self) -> tuple[Any, int] | None:
        """The next message, decoded, and its bytes; None after the last."""
        data = await self.context.read()
        return None if data is EOF else (decode(self._kind, data), len(data))

    async def read_only(self, seconds: float) -> Any:
        """The message of a call that has one; it is held until the call is over."""
        try:
            async with asyncio.timeout(seconds):
                found = await self.read()
        except TimeoutError:
            raise Late(
                f"The message must come within {seconds:g} s of its call. Send it again."
            ) from None
        if found is None:
            raise InvalidRequest("The call must have a message, and has none.")
        request, size = found
        self.holding.hold(size)
        return request

    async def write(self, reply: Message) -> None:
        """Writes one of several replies, and waits until it is on its way."""
        data = reply.SerializeToString()
        await self.holding.room()
        self.holding.hold(len(data))
        try:
            async with asyncio.timeout(self._stall):
                await self.context.write(data)
        except TimeoutError:
            raise LimitReached(
                f"A reply must be read within {self._stall:g} s, and one was not. Call again."
            ) from None
        self.holding.hold(-len(data))

    def check_caller(self) -> None:
        """Raises if the caller is not known by the same credentials any more."""
        generation = self._authenticator.refresh()
        if self._seen != generation:
            self._seen = generation
            if self._authenticator.identify(self.context).name != self.caller.name:
                raise Unauthenticated("The token of this stream has become another caller's.")


@final
class Calls:
    """Registers services with a server so that their calls come in as is said above."""

    def __init__(self, authenticator: Authenticator, bounds: Bounds, metrics: Metrics):
        self._authenticator, self._bounds, self._metrics = authenticator, bounds, metrics
        # Apart, so that those whom nobody knows cannot take the place of those who are known.
        self._strangers = Bounds(bounds.limits)
        self.identify = authenticator.identify
        self._seconds = bounds.limits.message_timeout

    def add(
        self,
        server: grpc.aio.Server,
        service: Any,
        servicer: object,
        *,
        open_to_all: bool = False,
    ) -> None:
        """Offers those methods of a service, given by its descriptor, that the servicer has; if
        `open_to_all`, also to those whom nobody knows."""
        bounds = self._strangers if open_to_all else self._bounds
        identify = self._guess if open_to_all else self.identify
        handlers = {
            method.name: self.handler(method, getattr(servicer, method.name), identify, bounds)
            for method in service.methods
            if hasattr(servicer, method.name)
        }
        generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
        server.add_generic_rpc_handlers((generic,))

    def handler(
        self, method: Any, serve: Any, identify: Callable[[Any], Caller], bounds: Bounds
    ) -> grpc.RpcMethodHandler:
        """What gRPC is to do with calls of a method."""
        kind, name = GetMessageClass(method.input_type), method.name

        async def reply(call: Call) -> bytes:
            call.holding.check_room()
            request = await call.read_only(self._seconds)
            data = (await serve(request, call)).SerializeToString()
            call.holding.hold(len(data))  # until the call is over: until it is written
            return data

        async def converse(call: Call) -> None:
            # Now, since a write that is cancelled leaves gRPC unsure whether it has sent them, and
            # then no status can be sent.
            await call.context.send_initial_metadata(())
            await serve(call)

        async def answer_one(_: Any, context: Any) -> bytes:
            enter = functools.partial(bounds.enter, streams=False)
            return await self._answer(name, kind, identify, enter, reply, context)

        async def answer_all(_: Any, context: Any) -> None:
            enter = functools.partial(bounds.enter, streams=True)
            await self._answer(name, kind, identify, enter, converse, context)

        if method.client_streaming or method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(answer_all)
        return grpc.stream_unary_rpc_method_handler(answer_one)

    async def _answer(
        self,
        name: str,
        kind: type[Message],
        identify: Callable[[Any], Caller],
        enter: Callable[[str], Holding],
        work: Callable[[Call], Awaitable[Any]],
        context: Any,
    ) -> Any:
        """Times a call, and turns what it raises into a status."""
        began, code, text = time.monotonic(), grpc.StatusCode.OK, ""
        try:
            caller = identify(context)
            holding = enter(caller.name)
            context.add_done_callback(lambda _: holding.leave())
            stall = self._bounds.limits.stall_timeout
            return await work(Call(context, caller, holding, self._authenticator, kind, stall))
        except CallError as error:
            code, text = error.code, shorten(str(error))
            context.set_trailing_metadata(error.metadata)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            code = grpc.StatusCode.CANCELLED
            raise
        except grpc.aio.BaseError:  # the client is gone; if it is not, it shall know
            code, text = grpc.StatusCode.UNAVAILABLE, "The connection broke. Try again."
        except Exception as error:
            code, id = grpc.StatusCode.INTERNAL, incident()
            text = f"The server failed; its log has it as {id}."
            log.error("%s failed", name, exc_info=error, extra={"incident": id})
        finally:
            self._metrics.request(name, code.name, time.monotonic() - began)
        # Not while the error is handled: gRPC keeps what `abort` raises in a cycle, and with it
        # would stay the error, its frames and the message in them, until the next collection.
        try:
            await context.abort(code, text)
        except (grpc.aio.InternalError, grpc.aio.UsageError):  # nobody is there to take it
            raise asyncio.CancelledError from None

    def _guess(self, context: Any) -> Caller:
        """Who calls what needs no credentials: whoever is at that address."""
        return Caller(f"at {context.peer().rpartition(':')[0]}", operator=False)


def decode(kind: type[M], data: bytes) -> M:
    """A message from its bytes."""
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise InvalidRequest(
            f"The message must be a {name}, got {len(data)} other bytes."
        ) from None


def shorten(text: str) -> str:
    """A text that fits into a call's metadata."""
    data = text.encode()
    if len(data) <= _LONGEST_TEXT:
        return text
    return f"{data[:_LONGEST_TEXT].decode(errors='ignore')} …"
