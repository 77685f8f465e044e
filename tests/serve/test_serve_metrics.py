"""Metrics: what is fed is what is scraped."""

import contextlib
import re
import socket
import struct
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bigserve import scrapes
from bigserve.errors import ConfigError
from bigserve.metrics import LoadedModel, Metrics
from bigserve.scrapes import MetricsServer


def test_episodes_and_steps_are_counted():
    metrics = Metrics()
    metrics.started("tiger", 3)
    metrics.started("maze", 1)
    metrics.closed("tiger", "ended", 2)
    metrics.closed("tiger", "expired", 1)
    for _ in range(2):
        metrics.steps("tiger", 5, 1, {"STEP_AHEAD": 2})
    get = metrics.registry.get_sample_value
    assert get("bigserve_episodes_started_total", {"model": "tiger"}) == 3
    assert get("bigserve_episodes_started_total", {"model": "maze"}) == 1
    assert get("bigserve_episodes_closed_total", {"model": "tiger", "reason": "ended"}) == 2
    assert get("bigserve_episodes_closed_total", {"model": "tiger", "reason": "expired"}) == 1
    for result, want in {"applied": 10, "duplicate": 2, "step_ahead": 4}.items():
        assert get("bigserve_steps_total", {"model": "tiger", "result": result}) == want


def test_batches_are_measured():
    metrics = Metrics()
    metrics.batch("tiger", 5, 8, 0.0015, 0.00004)
    metrics.batch("tiger", 64, 64, 0.5, 20.0)

    def get(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"bigserve_{name}", {"model": "tiger", **labels})

    assert get("batch_padding_total") == 3
    assert get("batch_size_sum") == 69
    assert get("batch_size_bucket", le="4.0") == 0
    assert get("batch_size_bucket", le="8.0") == 1
    assert get("batch_size_bucket", le="64.0") == 2
    assert get("queue_seconds_sum") == pytest.approx(0.5015)
    assert get("queue_seconds_bucket", le="0.001") == 0
    assert get("queue_seconds_bucket", le="0.002") == 1
    assert get("compute_seconds_bucket", le="5e-05") == 1
    assert get("compute_seconds_bucket", le="10.0") == 1
    assert get("compute_seconds_bucket", le="+Inf") == 2


def test_calls_are_counted_by_code_and_timed_by_method():
    metrics = Metrics()
    metrics.request("Act", "OK", 0.01)
    metrics.request("Act", "OK", 0.02)
    metrics.request("Act", "UNAVAILABLE", 0.03)
    get = metrics.registry.get_sample_value
    assert get("bigserve_requests_total", {"method": "Act", "code": "OK"}) == 2
    assert get("bigserve_requests_total", {"method": "Act", "code": "UNAVAILABLE"}) == 1
    assert get("bigserve_request_seconds_count", {"method": "Act"}) == 3
    assert get("bigserve_request_seconds_sum", {"method": "Act"}) == pytest.approx(0.06)


def test_two_servers_do_not_mix():
    one, other = Metrics(), Metrics()
    one.started("tiger", 1)
    sample = "bigserve_episodes_started_total", {"model": "tiger"}
    assert one.registry.get_sample_value(*sample) == 1
    assert other.registry.get_sample_value(*sample) is None


def scrape(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_gauges_are_read_at_the_scrape():
    metrics, live, queue = Metrics(), {"tiger": 1}, []
    loaded = [LoadedModel("tiger", "aa", False), LoadedModel("tiger", "bb", True)]
    metrics.watch(lambda: dict(live), lambda: len(queue), lambda: loaded)
    server = MetricsServer(metrics, "127.0.0.1:0")
    try:
        live["tiger"] = 7
        queue += [1, 2]
        found = scrape(server.port)
    finally:
        server.close()
    tiger = ("model", "tiger")
    assert found["bigserve_episodes_live", frozenset([tiger])] == 7
    assert found["bigserve_steps_queued", frozenset()] == 2
    for version, current in (("aa", "false"), ("bb", "true")):
        labels = frozenset([tiger, ("version", version), ("current", current)])
        assert found["bigserve_model_info", labels] == 1
    assert found["process_resident_memory_bytes", frozenset()] > 0


def test_a_closed_endpoint_frees_its_port():
    server = MetricsServer(Metrics(), "127.0.0.1:0")
    with pytest.raises(ConfigError, match=r"`metrics_listen` must .* free, got 127\.0\.0\.1"):
        MetricsServer(Metrics(), f"127.0.0.1:{server.port}")
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=10)
    MetricsServer(Metrics(), f"127.0.0.1:{server.port}").close()


def test_silent_connections_take_neither_the_endpoint_nor_its_threads_away(caplog):
    metrics = Metrics()
    server = MetricsServer(metrics, "127.0.0.1:0", patience=1.0)
    threads = threading.active_count()
    with contextlib.ExitStack() as silent:
        for _ in range(3 * scrapes.MOST):
            one = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            silent.enter_context(one)
        time.sleep(0.5)
        assert threading.active_count() <= threads + scrapes.MOST
        time.sleep(1.5)
        assert scrape(server.port)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as rude:
        rude.sendall(b"\xff\n{forged}\n\n")
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.2)
    server.close()
    assert "forged" not in caplog.text


def test_names_follow_the_conventions_and_the_document():
    """A prefix, seconds where time is measured, a sentence of help; and docs/serving.md has all."""
    metrics = Metrics()
    metrics.watch(dict, lambda: 0, list)
    families = [f for f in metrics.registry.collect() if not f.name.startswith("process_")]
    for family in families:
        assert family.name.startswith("bigserve_")
        assert family.documentation.endswith(".")
        assert family.type != "histogram" or family.name.endswith(("_seconds", "_size"))
    document = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `(bigserve_\w+)` \|", document, re.MULTILINE)
    exposed = [f.name + "_total" * (f.type == "counter") for f in families]
    assert sorted(explained) == sorted(exposed)
