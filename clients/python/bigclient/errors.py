"""The exceptions of `bigclient`, one tree.

BigClientError
├── ConfigError               a setting outside what it may be
├── ClientClosed              the client was closed before, or during, the call
├── EpisodeBusy               a second step of an episode while the first is still under way
├── DetailMissing             a belief, value or entropy that was not asked for, or not yet there
├── RowErrors                 some rows of a vectorised step failed; has the others' actions
├── CallError                 a call failed as a whole, and changed nothing
│   ├── Unavailable               nobody answers, or the server starts, stops or broke off
│   ├── DeadlineExceeded          no answer in time
│   ├── Unauthenticated           no credentials, or unknown ones
│   ├── PermissionDenied          known credentials, that may not do this
│   ├── InvalidArgument           a message that does not make sense
│   ├── NotFound                  no such model or version
│   ├── ResourceExhausted         a limit of the server is reached
│   ├── FailedPrecondition        not possible yet, such as `explain` before the first step
│   ├── Unimplemented             the server does not offer this
│   └── InternalError             a fault of the server
└── ProblemError              what is wrong with one episode
    ├── EpisodeClosed             it is not open (any more)
    │   ├── EpisodeUnknown            never started here, forgotten, or somebody else's
    │   ├── EpisodeExpired            its lease ran out
    │   ├── EpisodeEnded              it was ended
    │   ├── EpisodeEvicted            the server closed it
    │   └── EpisodeExported           it was exported, and closed here
    ├── EpisodeExists             an episode of that id is open already
    ├── StepError                 somebody else drives the episode, or an observation was changed
    │   ├── StepDiffers               the step was applied with another observation
    │   ├── StepAhead                 one or more steps are missing
    │   └── StepBehind                the step was made long ago
    ├── ObservationInvalid        of another shape or dtype, NaN, infinite or out of bounds
    ├── ObservationImpossible     cannot follow the last action in any context
    ├── ItemInvalid               the episode does not fit the others of the message
    ├── TooLate                   its time ran out before the server began it
    ├── Overloaded                too many steps are waiting
    ├── SealBroken                an export that was altered, or sealed with another key
    ├── VersionMissing            the version that an export needs is not loaded
    └── ServerFault               a fault of the server, with this episode only

Every message is a sentence: what must hold, what came, and where it helps, what to do. What came
from a server has the `code` that the wire contract gives it.
"""

import datetime
from collections.abc import Mapping

import grpc
import numpy as np

from bigproto.v1 import policy_pb2


class BigClientError(Exception):
    """Base of everything that `bigclient` raises on purpose."""

    # Whether trying again may help; if it does, after how many seconds at the least.
    retryable: bool = False
    retry_after: float = 0.0


class ConfigError(BigClientError, ValueError):
    """A setting is outside what it may be."""


class ClientClosed(BigClientError):
    """The client was closed before, or during, the call."""


class EpisodeBusy(BigClientError):
    """An episode takes one step at a time, and one is under way."""


class DetailMissing(BigClientError, AttributeError):
    """A belief, value or entropy was not asked for, or there has been no step yet."""


class RowErrors(BigClientError):
    """Some rows of a vectorised step failed. The others were applied: use their actions.

    `errors` says why, by row; `rows` [failed] lists the failed rows; `actions` [episode, ...] mean
    nothing where the row failed. The failed rows can be sent again, or be replaced by
    fresh episodes with `done`.
    """

    def __init__(self, errors: Mapping[int, BigClientError], actions: np.ndarray):
        self.errors = dict(sorted(errors.items()))
        self.actions = actions
        row, error = next(iter(self.errors.items()))
        super().__init__(
            f"{len(self.errors)} of {len(actions)} rows failed, the first of them row {row}: "
            f"{error} `error.errors` has all of them, `error.actions` what the others should do."
        )

    @property
    def rows(self) -> np.ndarray:
        """The places of the rows that failed."""
        return np.fromiter(self.errors, dtype=np.int64)


# --------------------------------------------------------------------- failures of a whole call


class CallError(BigClientError):
    """A call failed as a whole, and changed nothing."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN


class Unavailable(CallError):
    """Nobody answers, or the server is starting or shutting down, or broke the call off."""

    code = grpc.StatusCode.UNAVAILABLE
    retryable = True


class DeadlineExceeded(CallError):
    """There was no answer in time."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    retryable = True


class Unauthenticated(CallError):
    """The server wants credentials, or knows none like these."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(CallError):
    """The credentials are known, and may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class InvalidArgument(CallError):
    """The message does not make sense to the server."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(CallError):
    """There is no such model or version."""

    code = grpc.StatusCode.NOT_FOUND


class ResourceExhausted(CallError):
    """A limit of the server is reached. Retried only where the server says how long to wait."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(CallError):
    """This is not possible yet."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unimplemented(CallError):
    """The server does not offer this: perhaps it is no `bigserve`."""

    code = grpc.StatusCode.UNIMPLEMENTED


class InternalError(CallError):
    """A fault of the server, in its log under the id that the message gives."""

    code = grpc.StatusCode.INTERNAL


# --------------------------------------------------------------------- failures of one episode


class ProblemError(BigClientError):
    """Something is wrong with one episode, and with no other."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        expected_step: int | None = None,
        closed_at: datetime.datetime | None = None,
        retry_after: float = 0.0,
    ):
        super().__init__(message)
        self.expected_step = expected_step
        self.closed_at = closed_at
        self.retry_after = retry_after


class EpisodeClosed(ProblemError):
    """The episode is not open (any more). Its belief is gone: start another."""

    code = grpc.StatusCode.NOT_FOUND


class EpisodeUnknown(EpisodeClosed):
    """Never started here, closed so long ago that it is forgotten, or somebody else's."""


class EpisodeExpired(EpisodeClosed):
    """Its lease ran out: there was no step for longer than `lease`."""


class EpisodeEnded(EpisodeClosed):
    """It was ended."""


class EpisodeEvicted(EpisodeClosed):
    """The server closed it: an operator asked for it, or its state could not be kept."""

    code = grpc.StatusCode.ABORTED


class EpisodeExported(EpisodeClosed):
    """It was exported, and closed here."""


class EpisodeExists(ProblemError):
    """An episode of that id is open already."""

    code = grpc.StatusCode.ALREADY_EXISTS


class StepError(ProblemError):
    """The server is at another step: somebody else drives the episode, or state was lost."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class StepDiffers(StepError):
    """The step was applied with another observation, perhaps before an interruption."""


class StepAhead(StepError):
    """One or more steps are missing on the server."""


class StepBehind(StepError):
    """The step was made long ago."""


class ObservationInvalid(ProblemError, ValueError):
    """An observation of another shape or dtype, with NaN or infinity, or out of bounds."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class ObservationImpossible(ProblemError):
    """Cannot follow the last action in any context. Send another, if this one was wrong."""

    code = grpc.StatusCode.OUT_OF_RANGE


class ItemInvalid(ProblemError):
    """The episode occurs twice in the message, or its model differs from the others'."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class TooLate(ProblemError):
    """Its time ran out before the server began it."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    retryable = True


class Overloaded(ProblemError):
    """Too many steps are waiting."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    retryable = True


class SealBroken(ProblemError):
    """The export was altered, or sealed with another key."""

    code = grpc.StatusCode.DATA_LOSS


class VersionMissing(ProblemError):
    """The version that the export needs is not loaded on this server."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class ServerFault(ProblemError):
    """A fault of the server, in its log under the id that the message gives."""

    code = grpc.StatusCode.INTERNAL


# ------------------------------------------------------------------------------- from the wire

_BY_CODE: dict[grpc.StatusCode, type[CallError]] = {
    kind.code: kind for kind in CallError.__subclasses__()
}
_BY_PROBLEM: dict[str, type[ProblemError]] = {
    "EPISODE_UNKNOWN": EpisodeUnknown,
    "EPISODE_EXPIRED": EpisodeExpired,
    "EPISODE_ENDED": EpisodeEnded,
    "EPISODE_EVICTED": EpisodeEvicted,
    "EPISODE_EXPORTED": EpisodeExported,
    "EPISODE_EXISTS": EpisodeExists,
    "STEP_DIFFERS": StepDiffers,
    "STEP_AHEAD": StepAhead,
    "STEP_BEHIND": StepBehind,
    "OBSERVATION_INVALID": ObservationInvalid,
    "OBSERVATION_IMPOSSIBLE": ObservationImpossible,
    "ITEM_INVALID": ItemInvalid,
    "ITEM_TOO_LATE": TooLate,
    "ITEM_OVERLOADED": Overloaded,
    "SEAL_BROKEN": SealBroken,
    "VERSION_MISSING": VersionMissing,
    "INTERNAL": ServerFault,
}


def problem_class(name: str) -> type[ProblemError]:
    """The exception for a `Problem` of the wire contract, by its name."""
    # A problem that was added to the contract after this release still has its sentence.
    return _BY_PROBLEM.get(name.removeprefix("PROBLEM_"), ProblemError)


def from_item(item: policy_pb2.ItemError) -> ProblemError:
    """The exception for an error of one item."""
    number = item.problem
    known = number in policy_pb2.Problem.values()
    kind = problem_class(policy_pb2.Problem.Name(number)) if known else ProblemError
    closed_at = item.closed_at.ToDatetime(datetime.UTC) if item.HasField("closed_at") else None
    return kind(
        item.message,
        expected_step=item.expected_step if issubclass(kind, StepError) else None,
        closed_at=closed_at,
        retry_after=item.retry_after_milliseconds / 1000,
    )


def from_rpc(error: grpc.RpcError) -> CallError | ProblemError:
    """The exception for a call that failed as a whole."""
    # Both kinds of call, blocking and not, raise an error that is a `grpc.Call` as well.
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    code, message = error.code(), error.details() or "The server gave no reason."
    # Pairs, one by one: older grpcio has `keys` on them, which `dict` would go by, and wrongly.
    metadata = dict(iter(error.trailing_metadata() or ()))
    if "big-problem" in metadata:
        return problem_class(str(metadata["big-problem"]))(message)
    if code is grpc.StatusCode.ALREADY_EXISTS:
        return EpisodeExists(message)
    kind = _BY_CODE.get(code, CallError)
    if code is grpc.StatusCode.CANCELLED:
        # What we cancel ourselves never comes here. gRPC cancels what is open when a server stops.
        kind, message = Unavailable, f"The call was broken off on its way: {message}"
    elif kind is CallError:
        message = f"{code.name}: {message}"
    failure = kind(message)
    pushback = str(metadata.get("grpc-retry-pushback-ms", ""))
    # Anything but a whole number means: do not try again.
    if pushback.isdecimal():
        failure.retry_after = int(pushback) / 1000
        failure.retryable = failure.retryable or kind is ResourceExhausted
    elif pushback:
        failure.retryable = False
    return failure
