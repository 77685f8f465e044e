"""Metrics for Prometheus: counters that the core feeds, gauges read when they are asked for.

Every server has a registry of its own. Feeding happens once a batch or call, so the time series of
each model and method are looked up once and kept.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bigserve.config import split_address
from bigserve.errors import ConfigError

# 50 microseconds to 10 seconds, in steps of 1, 2, 5.
_SECONDS = [
    5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0
]  # fmt: skip
_SIZES = [2**power for power in range(13)]


class LoadedModel(NamedTuple):
    """A version of a model, and whether new episodes take it."""

    name: str
    version: str
    current: bool


class _Batches(NamedTuple):
    """The series of one model that every batch feeds."""

    size: Histogram
    padding: Counter
    queue: Histogram
    compute: Histogram


@final
class Metrics:
    """What a server counts and times. Safe to feed from any thread."""

    def __init__(self):
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"bigserve_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: list, *labels: str) -> Histogram:
            return Histogram(f"bigserve_{name}", text, labels, registry=registry, buckets=buckets)

        self._started = counter("episodes_started_total", "Episodes started.", "model")
        self._closed = counter("episodes_closed_total", "Episodes closed.", "model", "reason")
        self._steps = counter("steps_total", "Steps answered or refused.", "model", "result")
        self._sizes = histogram("batch_size", "Steps in a batch.", _SIZES, "model")
        self._padding = counter("batch_padding_total", "Rows computed in vain.", "model")
        self._queue = histogram(
            "queue_seconds", "Time from arrival to the start of the batch.", _SECONDS, "model"
        )
        self._compute = histogram("compute_seconds", "Time a batch took.", _SECONDS, "model")
        self._requests = counter("requests_total", "Calls answered.", "method", "code")
        self._seconds = histogram("request_seconds", "Time a call took.", _SECONDS, "method")

        self._batches: dict[str, _Batches] = {}
        self._results: dict[tuple[str, str], Counter] = {}
        self._codes: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def started(self, model: str, n: int) -> None:
        """Counts episodes that started."""
        self._started.labels(model).inc(n)

    def closed(self, model: str, reason: str, n: int) -> None:
        """Counts episodes that closed, by reason: ended, expired, evicted or exported."""
        self._closed.labels(model, reason).inc(n)

    def steps(
        self, model: str, applied: int, duplicates: int, failed_by_problem: Mapping[str, int]
    ) -> None:
        """Counts steps that were applied, were answered again, or failed, by the problem's name."""
        if applied:
            self._result(model, "applied").inc(applied)
        if duplicates:
            self._result(model, "duplicate").inc(duplicates)
        for problem, n in failed_by_problem.items():
            self._result(model, problem).inc(n)

    def batch(
        self, model: str, size: int, padded: int, queue_seconds: float, compute_seconds: float
    ) -> None:
        """Records a batch of `size` steps that was filled up to `padded` rows."""
        series = self._batches.get(model)
        if series is None:
            series = self._batches[model] = _Batches(
                self._sizes.labels(model),
                self._padding.labels(model),
                self._queue.labels(model),
                self._compute.labels(model),
            )
        series.size.observe(size)
        series.padding.inc(padded - size)
        series.queue.observe(queue_seconds)
        series.compute.observe(compute_seconds)

    def request(self, method: str, code: str, seconds: float) -> None:
        """Records a call that ended; `method` must be one of the server, not any a client names."""
        series = self._codes.get((method, code))
        if series is None:
            series = self._requests.labels(method, code), self._seconds.labels(method)
            self._codes[method, code] = series
        count, duration = series
        count.inc()
        duration.observe(seconds)

    def watch(
        self,
        live: Callable[[], Mapping[str, int]],
        queued: Callable[[], int],
        models: Callable[[], Iterable[LoadedModel]],
    ) -> None:
        """Reads these when metrics are asked for: on another thread, so they must give copies."""
        self.registry.register(_Watch(live, queued, models))

    def _result(self, model: str, result: str) -> Counter:
        series = self._results.get((model, result))
        if series is None:
            series = self._results[model, result] = self._steps.labels(model, result.lower())
        return series


@final
@dataclass(frozen=True, eq=False)
class _Watch(Collector):
    live: Callable[[], Mapping[str, int]]
    queued: Callable[[], int]
    models: Callable[[], Iterable[LoadedModel]]

    def describe(self) -> Iterable[Metric]:
        return ()  # else registering would ask a server that is not up yet

    def collect(self) -> Iterable[Metric]:
        live = GaugeMetricFamily("bigserve_episodes_live", "Open episodes.", labels=["model"])
        for model, n in self.live().items():
            live.add_metric([model], n)
        yield live
        yield GaugeMetricFamily("bigserve_steps_queued", "Steps waiting.", self.queued())
        models = GaugeMetricFamily(
            "bigserve_model_info", "Versions loaded.", labels=["model", "version", "current"]
        )
        for model in self.models():
            models.add_metric([model.name, model.version, str(model.current).lower()], 1)
        yield models


@final
class MetricsServer:
    """Answers Prometheus over HTTP, on a thread of its own, from birth until `close`."""

    def __init__(self, metrics: Metrics, listen: str):
        host, port = split_address("metrics_listen", listen)
        try:
            self._server, self._thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            raise ConfigError(
                f"`metrics_listen` must be an address that is free, got {listen}: {error.strerror}."
            ) from None

    @property
    def port(self) -> int:
        """The port it listens on: the one asked for, or for 0 the one it got."""
        return self._server.server_port

    def close(self) -> None:
        """Stops answering, and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
