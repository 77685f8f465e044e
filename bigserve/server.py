"""A server's life: it loads, listens, serves, and ends well."""

import asyncio
import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import final

import grpc
import jax
from grpc_health.v1 import health_pb2

from bigproto.v1 import policy_pb2
from bigserve import connections, handover
from bigserve.bounds import Bounds
from bigserve.calls import Calls
from bigserve.config import ServerConfig, is_loopback
from bigserve.core import Core
from bigserve.errors import ConfigError
from bigserve.health import Health, Reflection
from bigserve.metrics import LoadedModel, Metrics
from bigserve.scrapes import MetricsServer
from bigserve.sealing import Sealer
from bigserve.security import Authenticator, Tokens, read_seal_key, server_credentials
from bigserve.service import AdminService, PolicyService

log = logging.getLogger("bigserve")

_POLICY, _ADMIN = (policy_pb2.DESCRIPTOR.services_by_name[name] for name in ("Policy", "Admin"))
_SWITCH = 1e-4
"""Seconds that a thread may go on while another wants the interpreter: a fiftieth of Python's own,
which an engine would wait for while the event loop writes replies."""

_SWEEP = 0.5
"""Seconds between looks at leases. Who asks for an episode is told at once all the same."""

_FAREWELL = 0.5
"""Seconds in which callers are told that the server goes. They stay away for twice as long: gRPC
drops the calls that come while it stops, as CANCELLED."""

_LAST_REPLIES = 1.0
"""Seconds for replies that are on their way when the server ends."""


def run(models: Mapping[str, Path], config: ServerConfig) -> None:
    """Serves until SIGTERM or SIGINT, and returns once all is done."""
    sys.setswitchinterval(_SWITCH)
    asyncio.run(_run(models, config))


async def _run(models: Mapping[str, Path], config: ServerConfig) -> None:
    loop, stopping, hurried = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (hurried if stopping.is_set() else stopping).set()  # a second signal ends it at once

    server = Server(models, config)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    await server.start()
    await stopping.wait()
    await server.stop(hurried)


@final
class Server:
    """A server on the running event loop, from `start` to `stop`."""

    def __init__(self, models: Mapping[str, Path], config: ServerConfig):
        self._files, self._config = models, config
        self._metrics = Metrics()
        self._tokens = None if config.tokens is None else Tokens(config.tokens)
        self._sweeping: asyncio.Task | None = None
        self._reloading: asyncio.Task | None = None
        self._outdated = False
        self.core = Core(config, self._metrics)
        self.address = ""

    async def start(self) -> None:
        """Loads and compiles everything, goes on with the last snapshot, and only then listens."""
        # A step is over in less time than it takes to hand parts of it to other threads.
        os.environ.setdefault("NPROC", "1")
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self._grpc = self._make_grpc()
        self._http = None
        if self._config.metrics_listen is not None:
            self._http = MetricsServer(self._metrics, self._config.metrics_listen)
        self._metrics.watch(self.core.live, lambda: self.core.steps.queued, self._list_models)
        for name, path in self._files.items():
            await self.core.models.load(name, path)
        if self._config.snapshot is not None:
            await handover.restore(self.core, self._config.snapshot)
        gc.collect()
        gc.freeze()  # what is there now stays; looking through it again would cost pauses
        self._sweeping = asyncio.create_task(self._sweep())
        await self._grpc.start()
        await self._say_health(health_pb2.HealthCheckResponse.SERVING)
        versions = {v.name: v.digest for v in self.core.models if v.current}
        extra = {"address": self.address, "models": versions}
        if self._http is not None:
            extra["metrics_port"] = self._http.port
        log.info("listening on %s", self.address, extra=extra)
        if self._outdated:
            self._reloading = asyncio.create_task(self._reload())

    async def stop(self, hurried: asyncio.Event | None = None) -> None:
        """Finishes what runs: until all episodes are in a snapshot, or closed, or grace is over.

        Raises if a snapshot was wanted, and could not be written while there were episodes.
        """
        log.info("shutting down", extra={"episodes": len(self.core.episodes)})
        self.core.draining = True
        await self._say_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        config = self._config
        failure = await handover.finish(
            self.core, config.snapshot, config.grace, hurried or asyncio.Event()
        )
        self.core.streams.end()
        await asyncio.sleep(_FAREWELL)
        await self._grpc.stop(_LAST_REPLIES)
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._reloading is not None:
            await self._reloading
        await self.core.models.close()
        if self._http is not None:
            self._http.close()
        log.info("stopped", extra={"episodes": len(self.core.episodes)})
        if failure is not None:
            raise failure

    def reload(self) -> None:
        """Reads models and tokens again, while serving goes on."""
        if self._tokens is not None:
            self._tokens.reload()
        self._outdated = True  # a file may have changed after it was read, so they are read again
        is_loading = self._sweeping is None
        if not is_loading and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.create_task(self._reload())

    # ── parts ────────────────────────────────────────────────────────────────────────────────────

    def _make_grpc(self) -> grpc.aio.Server:
        config = self._config
        authenticator = Authenticator(
            self._tokens, config.tls.client_roots is not None, is_loopback(config.listen)
        )
        key = None if config.seal_key is None else read_seal_key(config.seal_key)
        connections.reserve_descriptors(config.limits.max_connections)
        server = grpc.aio.server(options=connections.options(config.limits))
        calls = Calls(authenticator, Bounds(config.limits), self._metrics)
        release = metadata.version("big-imitation")
        policy = PolicyService(self.core, config, Sealer(key), self._metrics, release)
        calls.add(server, _POLICY, policy)
        services = [_POLICY, health_pb2.DESCRIPTOR.services_by_name["Health"]]
        if config.admin:
            folder = config.model_directory or next(iter(self._files.values())).parent
            announce = functools.partial(self._say_health, health_pb2.HealthCheckResponse.SERVING)
            calls.add(server, _ADMIN, AdminService(self.core, folder, announce))
            services.append(_ADMIN)
        self._health = Health(config.limits.message_timeout)
        calls.add(server, services[1], self._health, open_to_all=True)
        reflection = Reflection([service.full_name for service in services])
        calls.add(server, reflection.SERVICE, reflection, open_to_all=True)
        credentials = server_credentials(config.tls)
        try:
            if credentials is None:
                port = server.add_insecure_port(config.listen)
            else:
                port = server.add_secure_port(config.listen, credentials)
        except RuntimeError:
            raise ConfigError(
                f"`listen` must be an address that is free and ours, got {config.listen}."
            ) from None
        host, _, given = config.listen.rpartition(":")
        self.address = f"{host}:{port}" if given == "0" else config.listen
        return server

    async def _say_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", _POLICY.full_name, *(f"models/{n}" for n in self.core.models.names)):
            self._health.set(name, status)

    def _list_models(self) -> list[LoadedModel]:
        return [LoadedModel(v.name, v.digest, v.current) for v in self.core.models]

    async def _reload(self) -> None:
        while self._outdated and not self.core.draining:
            self._outdated = False
            await self.core.models.reload()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            while self.core.episodes.sweep():
                await asyncio.sleep(0)  # others first: there may be a hundred thousand
