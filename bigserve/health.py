"""Health and reflection: what probes and tools ask, whoever they are."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, final

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from bigserve.calls import Call
from bigserve.errors import NotFound, quoted

Status = health_pb2.HealthCheckResponse.ServingStatus


@final
class Health:
    """The status of the server and of each model, as `grpc.health.v1` has it.

    grpcio's own holds a lock while it writes to a client that watches: one that reads nothing
    would keep all others, and the end of the server, waiting.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._statuses: dict[str, Status] = {}
        self._changed = asyncio.Event()

    def set(self, name: str, status: Status) -> None:
        """Says how a service is, and tells those who watch."""
        self._statuses[name] = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, _: Call
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            raise NotFound(f"There is no service {quoted(request.service)} here.")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, call: Call) -> None:
        request, told = await call.read_only(self._seconds), None
        unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        while True:
            changed, status = self._changed, self._statuses.get(request.service, unknown)
            if status != told:
                await call.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            else:
                await changed.wait()


@final
class Reflection:
    """What services there are, and their messages."""

    SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

    def __init__(self, services: Sequence[str]):
        names = [*services, self.SERVICE.full_name]
        self._servicer: Any = reflection.aio.ReflectionServicer(names)

    async def ServerReflectionInfo(self, call: Call) -> None:
        async def requests() -> AsyncIterator[Any]:
            while (found := await call.read()) is not None:
                yield found[0]

        async for reply in self._servicer.ServerReflectionInfo(requests(), call.context):
            await call.write(reply)
