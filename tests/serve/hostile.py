"""Who calls a server with what it should not have to bear, and how that ends."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from launch import Server
from wire import channel_to

ROBOT, HOSTILE, LEAVER = (f"{name}-0123456789abcdef" for name in ("robot", "hostile", "leaver"))
STREAM = "/bigproto.v1.Policy/ActStream"


def call_raw(server: Server, path: str, data: bytes, token: str | None = ROBOT) -> Any:
    """The error that a call with these bytes ends in."""
    with channel_to(server.address, token=token) as channel, pytest.raises(grpc.RpcError) as got:
        channel.unary_unary(path)(data, timeout=10)
    return got.value


@contextlib.asynccontextmanager
async def raw_stream(server: Server, token: str) -> AsyncIterator[Any]:
    """An ActStream of bytes, on a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        metadata = (("authorization", f"Bearer {token}"),)
        yield channel.stream_stream(STREAM)(metadata=metadata, timeout=30)


def resident(server: Server) -> int:
    """Bytes of memory that the server has."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def end_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a stream ends, after the replies that still come."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
            pass
    return await call.code(), await call.details()
