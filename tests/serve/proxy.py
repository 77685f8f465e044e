"""Two bad networks between a client and a server, to show that no step is lost or made twice.

`Proxy` knows calls, not what is in them: it loses requests and replies, delays, sends twice, and
ends streams. `Relay` knows bytes alone, and cuts connections. Both run on a thread of their own.
"""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from bigproto.v1 import policy_pb2 as pb


@dataclass(frozen=True)
class Faults:
    """How often each thing goes wrong, of 1, and how long a message may take."""

    lose_request: float = 0.05
    lose_reply: float = 0.05
    never_answer: float = 0.01
    send_twice: float = 0.1
    end_stream: float = 0.05
    delay_seconds: float = 0.005


class Proxy(grpc.GenericRpcHandler):
    """Passes calls on to `target`, unless it does not. `happened` counts what went wrong."""

    def __init__(self, target: str, faults: Faults, seed: int):
        self._target = target
        self._faults = faults
        self._random = random.Random(seed)
        self.happened: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its address."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([self])
        port = server.add_insecure_port("127.0.0.1:0")
        async with grpc.aio.insecure_channel(self._target) as self._channel:
            await server.start()
            yield f"127.0.0.1:{port}"
            await server.stop(None)

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        if method.endswith("Stream"):
            return grpc.stream_stream_rpc_method_handler(self._stream(method))
        return grpc.unary_unary_rpc_method_handler(self._unary(method))

    def _unary(self, method: str) -> Callable[..., Coroutine[Any, Any, bytes]]:
        async def handle(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            await self._delay()
            if self._happens("never_answer"):
                await asyncio.Event().wait()
            if self._happens("lose_request"):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "The request was lost.")
            calls = [
                self._channel.unary_unary(method)(
                    request, timeout=context.time_remaining(), metadata=_metadata(context)
                )
                for _ in range(1 + self._happens("send_twice"))
            ]
            try:
                replies = await asyncio.gather(*calls)
            except grpc.aio.AioRpcError as error:
                context.set_trailing_metadata(tuple(error.trailing_metadata()))
                await context.abort(error.code(), error.details() or "")
                raise
            if self._happens("lose_reply"):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "The reply was lost.")
            await self._delay()
            return self._random.choice(replies)

        return handle

    def _stream(self, method: str) -> Callable[..., AsyncIterator[bytes]]:
        async def handle(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> AsyncIterator[bytes]:
            sent_twice: Counter[int] = Counter()

            async def passed_on() -> AsyncIterator[bytes]:
                async for request in requests:
                    await self._delay()
                    yield request
                    if self._happens("send_twice"):
                        sent_twice[pb.ActRequest.FromString(request).request_id] += 1
                        yield request

            call = self._channel.stream_stream(method)(passed_on(), metadata=_metadata(context))
            try:
                async for reply in call:
                    await self._delay()
                    request_id = pb.ActReply.FromString(reply).request_id
                    if sent_twice[request_id]:  # whoever sent it once expects one reply
                        sent_twice[request_id] -= 1
                        continue
                    if self._happens("end_stream"):
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "The stream was lost.")
                    yield reply
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            finally:
                call.cancel()

        return handle

    async def _delay(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self._faults.delay_seconds))

    def _happens(self, fault: str) -> bool:
        happens = self._random.random() < getattr(self._faults, fault)
        self.happened[fault] += happens
        return happens


def _metadata(context: grpc.aio.ServicerContext) -> tuple[tuple[str, Any], ...]:
    """What the caller sent beside the request, without what the transport adds."""
    sent = context.invocation_metadata() or ()
    return tuple((key, value) for key, value in sent if key == "authorization")


class Relay:
    """Passes bytes on to `target`, and cuts each connection after some of them."""

    def __init__(self, target: str, seed: int):
        self._host, _, self._port = target.rpartition(":")
        self._random = random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()
        self.num_cut = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its address."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        yield f"127.0.0.1:{port}"
        server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        ends = {writer, there_writer}
        self._open |= ends
        # Enough for a greeting and a call or two, of some hundred bytes each.
        left = self._random.randint(1_000, 5_000)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal left
            while (data := await source.read(2**16)) and left > 0:
                sink.write(data[:left])  # the last of it may be half a message
                left -= len(data)
            for end in ends:
                end.transport.abort()

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))
        self.num_cut += left <= 0
        self._open -= ends


@contextlib.contextmanager
def in_background(network: Proxy | Relay) -> Iterator[str]:
    """Runs one on a thread of its own, for clients that block; its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = network.running()
    address = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
    try:
        yield address
    finally:
        leave = context.__aexit__(None, None, None)
        asyncio.run_coroutine_threadsafe(leave, loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
