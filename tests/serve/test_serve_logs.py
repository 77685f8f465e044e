"""The log: a line an event, fields kept, secrets and observations left out."""

import json
import logging
import re
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from bigserve import logs

logger = logging.getLogger("bigserve.engine")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Puts back what `configure` changes for the whole process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), logs.logger.level
    yield
    root.handlers[:] = handlers
    logs.logger.setLevel(level)
    logging.captureWarnings(False)


def fail() -> None:
    raise ValueError("too odd")


def test_json_is_an_object_a_line_with_the_fields(capsys):
    logs.configure("info", "json")
    logger.info("A %s\nof text.", "line", extra={"model": "tiger", "size": 3, "ids": ["a", "é"]})
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {
        "level": "info",
        "logger": "bigserve.engine",
        "message": "A line\nof text.",
        "model": "tiger",
        "size": 3,
        "ids": ["a", "é"],
    }


def test_text_shows_message_and_fields(capsys):
    logs.configure("info", "text")
    logger.warning("Odd.", extra={"model": "tiger", "size": 3})
    assert re.fullmatch(r"\S+Z WARNING Odd\. model=tiger size=3\n", capsys.readouterr().err)


def test_times_are_utc():
    record = logging.makeLogRecord({"created": 86400.25, "levelname": "INFO", "msg": "x"})
    assert json.loads(logs.JSONLines().format(record))["time"] == "1970-01-02T00:00:00.250Z"


def test_a_callers_text_starts_no_line_and_steers_no_terminal(capsys):
    logs.configure("info", "text")
    logger.info("Got %s.", "a\n2026 ERROR forged\r\x1b[2J", extra={"id": "b\nc\x9b"})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r"Got a\x0a2026 ERROR forged\x0d\x1b[2J. id=b\x0ac\x9b")


@pytest.mark.parametrize("format", ["json", "text"])
def test_secrets_and_observations_stay_out(capsys, format):
    logs.configure("info", format)
    fields = {"header": "bearer abcdef~123=", "array": np.full(3, 77), "raw": [b"77"]}
    logger.info("authorization: Bearer 0123456789abcdef", extra=fields)
    line = capsys.readouterr().err
    assert "0123456789abcdef" not in line and "abcdef~123" not in line and "77" not in line
    assert "Bearer [hidden]" in line and "ndarray" in line and "bytes" in line
    if format == "json":
        assert json.loads(line)["header"] == "bearer [hidden]"


def test_an_incident_ties_the_exception_to_what_the_client_is_told(capsys):
    logs.configure("info", "json")
    name = logs.incident()
    try:
        fail()
    except ValueError:
        logger.exception("A call failed.", extra={"incident": name})
    found = json.loads(capsys.readouterr().err)
    assert found["incident"] == name
    assert re.search(r"in fail\n.*ValueError: too odd$", found["exception"], re.DOTALL)
    assert re.fullmatch("[0-9a-f]{8}", name)
    assert len({logs.incident() for _ in range(100)}) == 100


def test_text_shows_the_exception_below(capsys):
    logs.configure("info", "text")
    try:
        fail()
    except ValueError:
        logger.exception("A call failed.")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("A call failed.")
    assert lines[-1] == "    ValueError: too odd"


def test_what_an_exception_quotes_starts_no_line_either(capsys):
    logs.configure("info", "text")
    try:
        raise ValueError("got a\n2026-01-01T00:00:00Z ERROR forged\x1b[2J")
    except ValueError:
        logger.exception("A call failed.")
    _, *below = capsys.readouterr().err.splitlines()
    assert all(line.startswith("    ") for line in below)
    assert below[-1].endswith(r"ERROR forged\x1b[2J")


def test_levels_are_ours_and_others_only_warn(capsys):
    logs.configure("debug", "text")
    logger.debug("ours")
    logging.getLogger("jax").info("theirs")
    logging.getLogger("jax").warning("beware")
    logs.configure("error", "text")  # in place of the first: nothing comes twice
    logger.warning("hushed")
    logger.error("broken")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == ["ours", "beware", "broken"]


def test_warnings_are_logged(capsys):
    logs.configure("info", "json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)  # which `catch_warnings` took back
        warnings.warn("worn out", stacklevel=1)
    assert "worn out" in json.loads(capsys.readouterr().err)["message"]


def test_the_rate_that_was_asked_for_holds(capsys):
    logs.configure("info", "text", 3)
    for _ in range(20):
        logger.warning("bad input")
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_place_logs_so_many_lines_a_minute_and_says_how_many_it_left_out(capsys):
    logs.configure("info", "json")
    now = [0.0]
    (handler,) = [h for h in logging.getLogger().handlers if h.name == "bigserve"]
    handler.filters[:] = [logs.Rate(3, clock=lambda: now[0])]
    for number in range(11):
        now[0] = 61.0 if number == 10 else 0.0
        logger.warning("bad input")
    logger.warning("something else")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("left_out") for line in lines] == [None, None, None, 7, None]
