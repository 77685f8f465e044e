"""Small helpers over the generated stub: channels, arrays, requests, streams.

They need grpcio, protobuf and numpy alone, so that the tests of the contract can be pointed at any
server.
"""

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from google.protobuf.duration_pb2 import Duration

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

CALL_SECONDS = 60.0
"""Deadline of every call: so long that only a server that hangs exceeds it."""

ALL_DETAILS = pb.Details(values=True, belief=True, entropy=True)

GREEDY = pb.ActionRule(greedy=pb.ActionRule.Greedy())

Observation = tuple[np.ndarray, ...]
"""What one episode sees at one step: an array for each entry of `Model.observation`."""

DTYPES = {
    pb.Array.DTYPE_BOOL: np.dtype("?"),
    pb.Array.DTYPE_UINT8: np.dtype("u1"),
    pb.Array.DTYPE_INT32: np.dtype("<i4"),
    pb.Array.DTYPE_INT64: np.dtype("<i8"),
    pb.Array.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.Array.DTYPE_FLOAT64: np.dtype("<f8"),
}


class _Details(
    NamedTuple(
        "_Details",
        [
            ("method", str),
            ("timeout", float | None),
            ("metadata", Any),
            ("credentials", Any),
            ("wait_for_ready", Any),
            ("compression", Any),
        ],
    ),
    grpc.ClientCallDetails,
):
    """How a call is made, in the form that interceptors hand on."""


class _Caller(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Gives every call a deadline, and the caller's token."""

    def __init__(self, token: str | None):
        self._metadata = [("authorization", f"Bearer {token}")] if token else []

    def _with(self, details: Any) -> _Details:
        metadata = [*(details.metadata or ()), *self._metadata]
        timeout = CALL_SECONDS if details.timeout is None else details.timeout
        return _Details(details.method, timeout, metadata, details.credentials, None, None)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any):
        return continuation(self._with(client_call_details), request)

    def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ):
        return continuation(self._with(client_call_details), request_iterator)


@contextlib.contextmanager
def channel_to(
    address: str, *, token: str | None = None, roots: Path | None = None
) -> Iterator[grpc.Channel]:
    """A channel whose calls carry the token; with `roots`, over TLS."""
    if roots is None:
        channel = grpc.insecure_channel(address)
    else:
        credentials = grpc.ssl_channel_credentials(roots.read_bytes())
        channel = grpc.secure_channel(address, credentials)
    with channel:
        yield grpc.intercept_channel(channel, _Caller(token))


def failure(code: grpc.StatusCode, call: Callable[[Any], Any], request: Any) -> Any:
    """Makes a call that must fail as a whole, with that code; the error."""
    try:
        call(request)
    except grpc.RpcError as caught:
        error: Any = caught  # errors of this API are calls too, and only as such tell their code
        assert error.code() == code, f"{error.code()}: {error.details()}"
        assert error.details(), "A failure must say what is wrong."
        assert "Traceback" not in error.details()
        return error
    raise AssertionError(f"The call must fail with {code.name}, and did not fail.")


def pack(array: np.ndarray) -> pb.Array:
    """An array as it travels."""
    (dtype,) = [code for code, numpy in DTYPES.items() if numpy == array.dtype]
    little = np.ascontiguousarray(array, DTYPES[dtype])
    return pb.Array(dtype=dtype, shape=array.shape, data=little.tobytes())


def unpack(array: pb.Array) -> np.ndarray:
    """An array that has travelled; raises ValueError where its parts disagree."""
    return np.frombuffer(array.data, DTYPES[array.dtype]).reshape(tuple(array.shape))


def seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def duration(value: float) -> Duration:
    return Duration(seconds=int(value), nanos=round(value % 1 * 1e9))


def act_request(
    episode_ids: Sequence[str],
    steps: Sequence[int],
    observations: Sequence[Observation],
    *,
    details: pb.Details = ALL_DETAILS,
    **fields: int,
) -> pb.ActRequest:
    """A step of some episodes: their observations become columns."""
    columns = [pack(np.stack(entry)) for entry in zip(*observations, strict=True)]
    return pb.ActRequest(
        episode_ids=episode_ids, steps=steps, observation=columns, details=details, **fields
    )


class Row(NamedTuple):
    """What a reply says of one item, as bytes: two rows are equal if every bit of them is."""

    action: bytes
    values: bytes
    belief: bytes
    entropy: bytes


def rows(reply: pb.ActReply) -> list[Row]:
    """The rows of a reply; what did not come is empty."""
    actions = unpack(reply.actions)
    columns = [[action.tobytes() for action in actions]]
    for name in Row._fields[1:]:
        there = reply.HasField(name)
        column = unpack(getattr(reply, name)) if there else np.empty((len(actions), 0))
        columns.append([entry.tobytes() for entry in column])
    return [Row(*row) for row in zip(*columns, strict=True)]


class Stream:
    """An open ActStream, of which each end can be used when it suits."""

    def __init__(self, stub: policy_pb2_grpc.PolicyStub):
        self._requests: queue.SimpleQueue[pb.ActRequest | None] = queue.SimpleQueue()
        self._call = stub.ActStream(iter(self._requests.get, None))

    def send(self, request: pb.ActRequest) -> None:
        self._requests.put(request)

    def receive(self) -> pb.ActReply:
        return next(self._call)

    def ask(self, request: pb.ActRequest) -> pb.ActReply:
        self.send(request)
        return self.receive()

    def cut(self) -> None:
        """Gives the stream up in the midst of things."""
        self._call.cancel()
        self._requests.put(None)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
