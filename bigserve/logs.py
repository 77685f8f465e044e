"""The log: standard logging, a line an event, as text or JSON, with fields given by `extra`.

What one place in the code logs again and again is cut to so many lines a minute, lest whoever can
provoke it fill the disk. No secret and no observation gets in: what follows the word Bearer is
blotted out, and a field that is no text, number or list of these (an array, bytes) appears as the
name of its type.
"""

import datetime
import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any, final

from bigserve.config import LogFormat, LogLevel

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BEARER = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]+")
# A caller's text must not start a line of its own, nor steer a terminal.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}

_MINUTE = 60.0

logger = logging.getLogger("bigserve")


def configure(level: LogLevel, format: LogFormat, rate: int = 60) -> None:
    """Logs `bigserve` from `level` up, and warnings of all else, to standard error.

    Called again, it replaces what it did before.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines() if format == "json" else TextLines())
    handler.addFilter(Rate(rate))
    handler.set_name("bigserve")
    root = logging.getLogger()
    for former in [h for h in root.handlers if h.name == "bigserve"]:
        root.removeHandler(former)
    root.addHandler(handler)
    logger.setLevel(level.upper())
    logging.captureWarnings(True)


def incident() -> str:
    """A short random id, that a client's INTERNAL error and the log's `incident` field share."""
    return secrets.token_hex(4)


@final
class Rate(logging.Filter):
    """Lets so many lines a minute through from each place in the code.

    The first line after those that were left out says how many they were, in the field `left_out`.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self._most, self._clock = most, clock
        self._windows: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place, now = (record.pathname, record.lineno, record.levelname), self._clock()
        since, count = self._windows.get(place, (now, 0))
        if now - since >= _MINUTE:
            if count > self._most:
                record.left_out = count - self._most
            since, count = now, 0
        self._windows[place] = since, count + 1
        return count < self._most


@final
class JSONLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the extra fields, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _blot(json.dumps(line, ensure_ascii=False, default=_type))


@final
class TextLines(logging.Formatter):
    """Time, level, message and the extra fields; below it, set in, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [
            f"{name}={value if isinstance(value, str) else json.dumps(value, default=_type)}"
            for name, value in _fields(record).items()
        ]
        line = " ".join([_time(record), f"{record.levelname:7}", record.getMessage(), *fields])
        line = line.translate(_VISIBLE)
        if record.exc_info:
            lines = self.formatException(record.exc_info).splitlines()
            line = "\n".join([line, *(f"    {one.translate(_VISIBLE)}" for one in lines)])
        return _blot(line)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _time(record: logging.LogRecord) -> str:
    time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _blot(line: str) -> str:
    return _BEARER.sub(r"\1[hidden]", line)


def _type(value: object) -> str:
    return type(value).__name__
