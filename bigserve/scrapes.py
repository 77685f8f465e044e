"""Where Prometheus asks for metrics: plain HTTP, on a thread of its own.

Whoever reaches the address may connect and say nothing. So there are few connections at a time, and
each is given little time to ask; else they would take threads and descriptors from the callers.
"""

import logging
import socket
import socketserver
import threading
import wsgiref.simple_server
from typing import Any, final

from prometheus_client import make_wsgi_app

from bigserve.config import split_address
from bigserve.errors import ConfigError
from bigserve.metrics import Metrics

log = logging.getLogger("bigserve")

MOST = 16
"""Connections at a time; more are closed at once."""

_PATIENCE = 10.0
"""Seconds that a connection may be silent."""


@final
class MetricsServer:
    """Answers Prometheus at /metrics, from birth until `close`."""

    def __init__(self, metrics: Metrics, listen: str, patience: float = _PATIENCE):
        host, port = split_address("metrics_listen", listen)
        try:
            self._server = _Server(host, port, patience)
        except OSError as error:
            raise ConfigError(
                f"`metrics_listen` must be an address that is free, got {listen}: {error.strerror}."
            ) from None
        self._server.set_app(make_wsgi_app(metrics.registry))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on: the one asked for, or for 0 the one it got."""
        return self._server.server_port

    def close(self) -> None:
        """Stops answering, and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: what is asked is anybody's text."""


@final
class _Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64  # with the 5 of the library, who connects may wait for a second

    def __init__(self, host: str, port: int, patience: float):
        self.address_family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._patience, self._room = patience, threading.Semaphore(MOST)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            request.settimeout(self._patience)
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs a line, where the library would print a traceback past the log."""
        log.warning("metrics were not sent", exc_info=log.isEnabledFor(logging.DEBUG))
