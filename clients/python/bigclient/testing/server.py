"""The fake server: gRPC on this machine, around the rules of `table`, with faults on request."""

import collections
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager

import grpc
import numpy as np

from bigproto.v1 import policy_pb2_grpc

from ..description import Limits
from .faults import STEPS, Fault, Faults
from .models import FakeModel
from .servicer import Servicer
from .table import Table

LIMITS = Limits(
    max_episodes=10_000,
    max_episodes_per_caller=10_000,
    max_items=1024,
    max_message_bytes=4 * 2**20,
    default_lease=300.0,
    max_lease=3600.0,
    tombstone_lifetime=3600.0,
    max_tombstones_per_caller=40_000,
)


class FakeServer:
    """A server on a free port of this machine, for as long as its block lasts.

    Its clock stands still: `advance` lets time pass, for leases and tombstones. `tokens` maps those
    it knows to their owners; without, everybody is let in. Servers of the same `key` take each
    other's exports. `credentials` make it speak TLS.
    """

    def __init__(
        self,
        *models: FakeModel,
        tokens: Mapping[str, str] | None = None,
        limits: Limits = LIMITS,
        key: bytes = b"fake",
        credentials: grpc.ServerCredentials | None = None,
    ):
        self._table = Table(models or (FakeModel(),), limits, key)
        self._lock = threading.Lock()
        self._tokens = tokens
        self._credentials = credentials
        self._faults = Faults()
        self._port = 0
        self._server: grpc.Server | None = None
        # Messages that came, by method; those on a stream count for ActStream.
        self.calls: collections.Counter[str] = collections.Counter()

    @property
    def address(self) -> str:
        """What `connect` takes."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> "FakeServer":
        """Listens, on the same port as before if it did so before; episodes are still there."""
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
        servicer = Servicer(self._table, self._lock, self._faults, self._tokens, self.calls)
        policy_pb2_grpc.add_PolicyServicer_to_server(servicer, self._server)
        where = f"127.0.0.1:{self._port}"
        if self._credentials is None:
            self._port = self._server.add_insecure_port(where)
        else:
            self._port = self._server.add_secure_port(where, self._credentials)
        self._server.start()
        return self

    def stop(self) -> None:
        """Stops listening, and breaks all calls and streams."""
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None

    def __enter__(self) -> "FakeServer":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    @contextmanager
    def down(self) -> Iterator[None]:
        """A block during which nobody answers."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    # ------------------------------------------------------------------------ looks and pushes

    @property
    def open_episodes(self) -> list[str]:
        """The ids of the episodes that are open."""
        with self._lock:
            self._table.sweep()
            return [id for _, id in self._table.records]

    def history(self, id: str, owner: str = "") -> list[tuple[np.ndarray, ...]]:
        """The observations that were applied to an open episode: the entries of each step.

        They have the shapes that the model asks for.
        """
        with self._lock:
            return list(self._table.records[owner, id].history)

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        with self._lock:
            self._table.now += seconds

    def evict(self, id: str, owner: str = "") -> None:
        """Closes an episode as an operator would."""
        with self._lock:
            self._table.close(owner, id, "EPISODE_EVICTED")

    def load(self, model: FakeModel) -> None:
        """Makes a version current. One before it goes when its last episode closes."""
        with self._lock:
            used = [record.model for record in self._table.records.values()]
            kept = [m for m in self._table.models if m.name != model.name or m in used]
            self._table.models = [model, *kept]

    # ---------------------------------------------------------------------------------- faults

    def heal(self) -> None:
        """Forgets the faults that have not come yet."""
        self._faults.clear()

    def fail(
        self,
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
        *,
        method: str = "",
        times: int = 1,
        pushback: str | None = None,
    ) -> None:
        """Fails the next messages and applies nothing; on a stream, ends it."""
        self._faults.add(Fault("fail", times, method, code, pushback))

    def lose_replies(self, times: int = 1, *, method: str = "") -> None:
        """Applies the next messages; a call then fails, a stream just says nothing."""
        self._faults.add(Fault("lose", times, method))

    def cut_stream(self, times: int = 1) -> None:
        """Applies the next messages of streams, and ends the streams instead of replying."""
        self._faults.add(Fault("cut", times, "ActStream"))

    def hold_reply(self, times: int = 1) -> None:
        """Sends the replies to the next messages of a stream after the reply to a later one."""
        self._faults.add(Fault("hold", times, "ActStream"))

    def delay(self, seconds: float, *, method: str = "", times: int = 1) -> None:
        """Lets the next messages wait; what runs out of time by that is not applied."""
        self._faults.add(Fault("delay", times, method, seconds=seconds))

    def refuse(
        self,
        problem: str,
        *,
        rows: Collection[int] | None = None,
        times: int = 1,
        retry_after: float = 0.0,
    ) -> None:
        """Fails rows, or all, of the next steps with a `Problem`, such as ITEM_OVERLOADED."""
        fault = Fault("refuse", times, STEPS, problem=problem, rows=rows, retry_after=retry_after)
        self._faults.add(fault)
