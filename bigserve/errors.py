"""The exceptions of `bigserve`, one tree, and what can be wrong with one item of a message.

ServeError
├── ConfigError           a setting outside what it may be; the server does not start
├── SnapshotError         a snapshot that cannot be read or written
└── CallError             fails one call, and changes nothing
    ├── InvalidRequest        INVALID_ARGUMENT: the message does not make sense
    ├── Unauthenticated       UNAUTHENTICATED: no credentials, or unknown ones
    ├── NotPermitted          PERMISSION_DENIED: known credentials, that may not do this
    ├── NotFound              NOT_FOUND: no such model, version or file
    ├── AlreadyExists         ALREADY_EXISTS: an id that is in use
    ├── NotBegun              FAILED_PRECONDITION: an episode without a step has nothing to explain
    ├── BundleRefused         FAILED_PRECONDITION: a file that is no sound bundle
    ├── LimitReached          RESOURCE_EXHAUSTED: perhaps with a hint when to try again
    ├── Late                  DEADLINE_EXCEEDED: the deadline passed before the server began
    ├── Unavailable           UNAVAILABLE: shutting down; with a hint when to try again
    └── EpisodeFault          an episode's `Problem`, where the call is about that episode alone

A message is a sentence: what must hold, what came, what to do. It may be sent to a client as it
is; what is not a `ServeError` never is.
"""

import enum
from typing import NamedTuple

import grpc


class Problem(enum.IntEnum):
    """What can be wrong with one item. Numbers and names are those of the wire."""

    EPISODE_UNKNOWN = 1
    EPISODE_EXPIRED = 2
    EPISODE_ENDED = 3
    EPISODE_EVICTED = 4
    EPISODE_EXPORTED = 5
    EPISODE_EXISTS = 6
    STEP_DIFFERS = 7
    STEP_AHEAD = 8
    STEP_BEHIND = 9
    OBSERVATION_INVALID = 10
    OBSERVATION_IMPOSSIBLE = 11
    ITEM_INVALID = 12
    ITEM_TOO_LATE = 13
    ITEM_OVERLOADED = 14
    SEAL_BROKEN = 15
    VERSION_MISSING = 16
    INTERNAL = 17


_CODES = {
    Problem.EPISODE_EVICTED: grpc.StatusCode.ABORTED,
    Problem.INTERNAL: grpc.StatusCode.INTERNAL,
}


_LONGEST_QUOTE = 64
"""Characters; an id has up to 128."""


class Fault(NamedTuple):
    """What is wrong with the item at a place of a message. It changed nothing."""

    place: int
    problem: Problem
    message: str
    expected_step: int = 0
    closed_at: float | None = None
    retry_after: float = 0.0


def quoted(text: str) -> str:
    """What somebody sent, as part of a sentence: no line break in it, and not more than fits."""
    shown = repr(text[:_LONGEST_QUOTE])
    return shown if len(text) <= _LONGEST_QUOTE else f"{shown} and so on"


class ServeError(Exception):
    """Base of everything that `bigserve` raises on purpose."""


class ConfigError(ServeError, ValueError):
    """A setting is outside what it may be."""


class SnapshotError(ServeError):
    """A snapshot cannot be read or written."""


class CallError(ServeError):
    """Fails one call with `code`."""

    code = grpc.StatusCode.INTERNAL

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with it as trailing metadata."""
        return ()


class InvalidRequest(CallError):
    """The message does not make sense."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class Unauthenticated(CallError):
    """There are no credentials, or unknown ones."""

    code = grpc.StatusCode.UNAUTHENTICATED


class NotPermitted(CallError):
    """The caller is known, and may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class NotFound(CallError):
    """There is no such model, version or file."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(CallError):
    """An id is in use."""

    code = grpc.StatusCode.ALREADY_EXISTS


class NotBegun(CallError):
    """An episode that has made no step has nothing to explain."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class BundleRefused(CallError):
    """The file is not a whole, sound bundle, or not one that can be served."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class LimitReached(CallError):
    """A limit of the server is reached. `retry_after` is in seconds, where waiting helps."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        if self.retry_after is None:
            return ()
        return (("grpc-retry-pushback-ms", str(round(1000 * self.retry_after))),)


class Late(CallError):
    """The deadline passed before the server began."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Unavailable(CallError):
    """The server is shutting down, and says when to come back: not before it has gone."""

    code = grpc.StatusCode.UNAVAILABLE

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("grpc-retry-pushback-ms", "1000"),)


class EpisodeFault(CallError):
    """What is wrong with the one episode that a call is about."""

    def __init__(self, fault: Fault):
        super().__init__(fault.message)
        self.fault = fault
        self.code = _CODES.get(fault.problem, grpc.StatusCode.NOT_FOUND)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("big-problem", f"PROBLEM_{self.fault.problem.name}"),)
