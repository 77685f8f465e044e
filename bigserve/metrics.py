"""Metrics for Prometheus: tallies that the core feeds, made into metrics when they are asked for.

Every server has a registry of its own. The event loop feeds, once a batch or message, so that must
cost next to nothing: adding to plain numbers does, which another thread reads at the scrape.
"""

import bisect
import collections
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

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


@final
class _Histogram:
    """How often values up to each bound came, and their sum."""

    def __init__(self, bounds: list[float]):
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Counts a value in."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class _Batches(NamedTuple):
    """What every batch of one model feeds."""

    size: _Histogram
    queue: _Histogram
    compute: _Histogram


@final
class Metrics(Collector):
    """What a server counts and times. Only the event loop feeds it."""

    def __init__(self):
        self._started = collections.Counter[tuple[str, ...]]()
        self._closed = collections.Counter[tuple[str, ...]]()
        self._steps = collections.Counter[tuple[str, ...]]()
        self._padding = collections.Counter[tuple[str, ...]]()
        self._requests = collections.Counter[tuple[str, ...]]()
        self._batches: dict[str, _Batches] = {}
        self._seconds: dict[str, _Histogram] = {}
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def started(self, model: str, n: int) -> None:
        """Counts episodes that started."""
        self._started[model,] += n

    def closed(self, model: str, reason: str, n: int) -> None:
        """Counts episodes that closed, by reason: ended, expired, evicted or exported."""
        self._closed[model, reason] += n

    def steps(
        self, model: str, applied: int, duplicates: int, failed_by_problem: Mapping[str, int]
    ) -> None:
        """Counts steps that were applied, were answered again, or failed, by the problem's name."""
        if applied:
            self._steps[model, "applied"] += applied
        if duplicates:
            self._steps[model, "duplicate"] += duplicates
        for problem, n in failed_by_problem.items():
            self._steps[model, problem.lower()] += n

    def batch(
        self, model: str, size: int, padded: int, queue_seconds: float, compute_seconds: float
    ) -> None:
        """Records a batch of `size` steps that was filled up to `padded` rows."""
        series = self._batches.get(model)
        if series is None:
            series = self._batches[model] = _Batches(
                _Histogram(_SIZES), _Histogram(_SECONDS), _Histogram(_SECONDS)
            )
        series.size.observe(size)
        series.queue.observe(queue_seconds)
        series.compute.observe(compute_seconds)
        self._padding[model,] += padded - size

    def request(self, method: str, code: str, seconds: float) -> None:
        """Records a call that ended; `method` must be one of the server, not any a client names."""
        self._requests[method, code] += 1
        duration = self._seconds.get(method)
        if duration is None:
            duration = self._seconds[method] = _Histogram(_SECONDS)
        duration.observe(seconds)

    def watch(
        self,
        live: Callable[[], Mapping[str, int]],
        queued: Callable[[], int],
        models: Callable[[], Iterable[LoadedModel]],
    ) -> None:
        """Reads these when metrics are asked for: on another thread, so they must give copies."""
        self.registry.register(_Watch(live, queued, models))

    def collect(self) -> Iterable[Metric]:
        """All that was counted and timed so far, for the registry."""
        batches = list(self._batches.items())
        sizes, queues, computes = (
            {model: series[place] for model, series in batches} for place in range(3)
        )
        yield _count("episodes_started", "Episodes started.", self._started, "model")
        yield _count("episodes_closed", "Episodes closed.", self._closed, "model", "reason")
        yield _count("steps", "Steps answered or refused.", self._steps, "model", "result")
        yield _histogram("batch_size", "Steps in a batch.", sizes, "model")
        yield _count("batch_padding", "Rows computed in vain.", self._padding, "model")
        about = "Time from arrival to the start of the batch."
        yield _histogram("queue_seconds", about, queues, "model")
        yield _histogram("compute_seconds", "Time a batch took.", computes, "model")
        yield _count("requests", "Calls answered.", self._requests, "method", "code")
        yield _histogram("request_seconds", "Time a call took.", self._seconds, "method")


def _count(
    name: str, about: str, tallies: Mapping[tuple[str, ...], int], *labels: str
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"bigserve_{name}", about, labels=labels)
    for values, n in list(tallies.items()):  # a copy: the event loop goes on
        family.add_metric(values, n)
    return family


def _histogram(
    name: str, about: str, tallies: Mapping[str, _Histogram], label: str
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"bigserve_{name}", about, labels=[label])
    for value, tally in list(tallies.items()):
        ends = map(floatToGoString, [*tally.bounds, float("inf")])
        counts = itertools.accumulate(list(tally.counts))
        family.add_metric([value], list(zip(ends, counts, strict=True)), tally.total)
    return family


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
