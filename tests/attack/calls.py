"""A caller whose every call is mutated: single calls, streams, and what is no HTTP/2."""

import asyncio
import collections
import contextlib
import socket
from typing import Any

import grpc.aio
import http2
import numpy as np
from mutations import mutate
from wire import ALL_DETAILS, pack

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

ANSWERED = {
    grpc.StatusCode[name]
    for name in (
        "OK",
        "INVALID_ARGUMENT",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "RESOURCE_EXHAUSTED",
        "ABORTED",
    )
}
"""How a call may end, whatever was in it: neither by a fault of the server nor by our deadline."""

SECONDS = 60.0
NUM_TASKS = 16
ROUND = 5000
"""Calls until what was started is ended, and there are new episodes to make calls about."""
_START, _STREAM = "/bigproto.v1.Policy/Start", "/bigproto.v1.Policy/ActStream"


class Attacker:
    """Makes calls to a server, and counts how they end."""

    def __init__(self, address: str, token: str, seed: int):
        self._address, self._token = address, token
        self._rng = np.random.default_rng(seed)
        self._left = 0
        self._started = list[str]()
        self.ends = collections.Counter[str]()

    @property
    def left(self) -> int:
        """How many calls are still to be made."""
        return self._left

    async def attack(self, count: int) -> None:
        """Makes so many calls, several at once."""
        self._left = count
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._address, options=options) as channel:
            stub = policy_pb2_grpc.PolicyStub(channel)
            while self._left > 0:
                until = max(self._left - ROUND, 0)
                self._requests = await self._find_requests(stub)
                async with asyncio.TaskGroup() as group:
                    for _ in range(NUM_TASKS):
                        group.create_task(self._work(channel, until))
                await self._end_all(stub)

    async def _find_requests(self, stub: policy_pb2_grpc.PolicyStub) -> dict[str, list[bytes]]:
        """Requests that make sense, of every kind, by the path of their method."""
        metadata = self._metadata()
        start: Any = pb.StartRequest(num_episodes=8, seed=1)
        ids = (await stub.Start(start, metadata=metadata)).episode_ids
        self._started += ids
        own = pb.StartRequest(
            model="tiger", episode_ids=["own-1", "own-2"], rule={"softmax": {"temperature": 2.0}}
        )
        seen = pack(np.tile(np.eye(6, dtype=np.float32)[0], (len(ids), 1)))
        act = pb.ActRequest(
            episode_ids=ids, steps=[0] * len(ids), observation=[seen], details=ALL_DETAILS
        )
        one = pb.ActRequest(
            episode_ids=ids[:1], steps=[0], observation=[pack(np.eye(6, dtype=np.float32)[:1])]
        )
        await stub.Act(act, metadata=metadata)
        export = pb.ExportRequest(episode_ids=ids)
        sealed = (await stub.Export(export, metadata=metadata)).episodes
        policy = {
            "Describe": [pb.DescribeRequest(model="tiger")],
            "Start": [start, own],
            "End": [pb.EndRequest(episode_ids=ids[-2:])],
            "Act": [act, one],
            "Explain": [pb.ExplainRequest(episode_id=ids[0])],
            "Export": [export],
            "Import": [pb.ImportRequest(episodes=sealed)],
            "ActStream": [act, one],
        }
        found = {f"/bigproto.v1.Policy/{name}": made for name, made in policy.items()}
        found["/bigproto.v1.Admin/LoadModel"] = [pb.LoadModelRequest(model="tiger")]
        return {path: [one.SerializeToString() for one in made] for path, made in found.items()}

    async def _end_all(self, stub: policy_pb2_grpc.PolicyStub) -> None:
        """Ends what was started, or else no more could be after a while."""
        while self._started:
            ids, self._started = self._started[:64], self._started[64:]
            await stub.End(pb.EndRequest(episode_ids=ids), metadata=self._metadata())

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),)

    async def _work(self, channel: grpc.aio.Channel, until: int) -> None:
        paths = list(self._requests)
        while self._left > until:
            self._left -= 1
            path, kind = paths[self._rng.integers(len(paths))], self._rng.integers(50)
            if kind == 0:
                await asyncio.to_thread(self._send_frames, self._rng.bytes(16), self._mutant(path))
            elif path == _STREAM:
                await self._stream(channel)
            else:
                await self._call(channel, path)

    def _mutant(self, path: str) -> bytes:
        own = self._requests[path]
        others = [data for made in self._requests.values() for data in made]
        return mutate(self._rng, own[self._rng.integers(len(own))], others)

    async def _call(self, channel: grpc.aio.Channel, path: str) -> None:
        known = self._rng.integers(20) > 0
        metadata = self._metadata() if known else (("authorization", "Bearer nobody-knows-this"),)
        call = channel.unary_unary(path)(self._mutant(path), metadata=metadata, timeout=SECONDS)
        await self._count(path, call)
        if path == _START and await call.code() == grpc.StatusCode.OK:
            self._started += pb.StartReply.FromString(await call).episode_ids

    async def _stream(self, channel: grpc.aio.Channel) -> None:
        """Some requests; then it waits for the end, goes away, or has read nothing at all."""
        call = channel.stream_stream(_STREAM)(metadata=self._metadata(), timeout=SECONDS)
        reads, leaves = self._rng.integers(4) > 0, self._rng.integers(3) == 0
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for _ in range(int(self._rng.integers(1, 8))):
                await call.write(self._mutant(_STREAM))
                self._left -= 1
            if not leaves:
                await call.done_writing()
            if reads and not leaves:
                while await call.read() is not grpc.aio.EOF:  # pyright: ignore
                    pass
        if leaves or not reads:
            call.cancel()
            self.ends["left"] += 1
        else:
            await self._count(_STREAM, call)

    def _send_frames(self, noise: bytes, data: bytes) -> None:
        """A connection that begins well, or not, and then talks nonsense."""
        starts = (b"", http2.PREFACE, http2.PREFACE + http2.window(0))
        path = list(self._requests)[noise[0] % len(self._requests)]
        frames = http2.headers(1, http2.call(path, self._token)) + http2.message(1, data)
        cut = frames[: len(frames) * noise[2] // 255]
        with contextlib.suppress(OSError), http2.connected(self._address) as connection:
            connection.sendall(starts[noise[1] % 3] + cut + noise)
            connection.shutdown(socket.SHUT_WR)
        self.ends["frames"] += 1

    async def _count(self, path: str, call: Any) -> None:
        code, text = await call.code(), await call.details()
        if text == "Internal error from Core":  # grpc.aio's, where a write meets the call's end
            self.ends["unsure"] += 1
            return
        assert code in ANSWERED, (path, code, text)
        self.ends[code.name] += 1
