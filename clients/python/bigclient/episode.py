"""One episode as its client knows it: its step, its last reply, and the operations on it."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from bigproto.v1 import policy_pb2

from .arrays import NUMBERS, decode
from .calls import Operation, Sleep, attempt
from .description import Model
from .errors import (
    BigClientError,
    ConfigError,
    DetailMissing,
    EpisodeBusy,
    EpisodeExported,
    from_item,
)
from .explanation import Explanation, read_explanation
from .exports import SealedEpisode
from .observations import Observation, ObservationSpec
from .session import Session
from .settings import Detail

# Seconds to end an episode whose block was left by an error, which should not have to wait.
HURRIED = 1.0


class AbstractEpisode:
    """What the blocking and the asynchronous episode have in common."""

    def __init__(
        self,
        session: Session,
        run: Callable[[Operation[Any]], Any],
        model: Model,
        id: str,
        details: tuple[Detail, ...] = (),
        step: int = 0,
    ):
        self._session = session
        self._run = run
        self._model = model
        self._id = id
        self._step = step
        self._details = details
        self._spec = ObservationSpec(model)
        # One message for all steps: each changes its step and its data only.
        self._request = act_request(model, [id], details)
        self._request.steps.append(step)
        self._reply: policy_pb2.ActReply | None = None
        self._closed = False
        self._turn = Turn()

    @property
    def id(self) -> str:
        """The id of the episode, which nobody can guess unless you chose it."""
        return self._id

    @property
    def model(self) -> Model:
        """The version of the model that the episode is on until it closes."""
        return self._model

    @property
    def step(self) -> int:
        """The step to make next, which is the number of steps made."""
        return self._step

    @property
    def values(self) -> np.ndarray:
        """The value of each action at the last step, [actions]."""
        return self._detail("values")

    @property
    def belief(self) -> np.ndarray:
        """The probability of each context given all that the episode has seen, [contexts]."""
        return self._detail("belief")

    @property
    def entropy(self) -> float:
        """The entropy of that belief, in nats."""
        return float(self._detail("entropy"))

    def _detail(self, name: Detail) -> np.ndarray:
        return read_detail(name, self._details, self._reply)[0]

    def _act(self, observation: Observation, budget: float | None) -> Operation[int]:
        with self._turn:
            columns = self._spec.columns(observation, ())
            for array, column in zip(self._request.observation, columns, strict=True):
                array.data = column.tobytes()
            step = self._request.steps[0] = self._step
            attempts = self._session.attempts(budget)
            while (reply := (yield from attempt("Act", self._request, attempts))).errors:
                failure = from_item(reply.errors[0])
                wait = attempts.wait_after(failure)
                if wait is None:
                    raise failure
                yield Sleep(wait)
            # Only now: whoever is interrupted before sends the same step again.
            self._reply, self._step = reply, step + 1
            return int(decode(reply.actions)[0])

    def _explain(self) -> Operation[Explanation]:
        request = policy_pb2.ExplainRequest(episode_id=self._id)
        return read_explanation((yield from self._session.call("Explain", request)))

    def _export(self, close: bool) -> Operation[SealedEpisode]:
        sealed = yield from self._session.export(self._id, close=False)
        if close:
            # In two calls: if the reply to the second is lost, the state is not lost with it.
            try:
                sealed = yield from self._session.export(self._id, close=True)
            except EpisodeExported:
                pass
            self._closed = True
        return sealed

    def _end(self) -> Operation[None]:
        request = policy_pb2.EndRequest(episode_ids=[self._id])
        reply = yield from self._session.call("End", request)
        self._closed = True
        if reply.errors:
            raise from_item(reply.errors[0])

    def _leave(self, error: BaseException | None) -> Operation[None]:
        if not self._closed:
            request = policy_pb2.EndRequest(episode_ids=[self._id])
            yield from leave(self._session, request, error)
            self._closed = True


class Turn:
    """Lets one step of an episode be under way at a time."""

    def __init__(self):
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise EpisodeBusy(
                "An episode makes one step at a time, and another is under way: wait for its "
                "action, or start an episode for each thread or task."
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def check_details(details: tuple[Detail, ...], model: Model) -> None:
    """Raises if something is asked for that there is not."""
    for name in details:
        if name not in ("values", "belief", "entropy"):
            raise ConfigError(
                f"`details` must be among 'values', 'belief' and 'entropy', got {name!r}."
            )
        if name != "values" and not model.contexts:
            raise ConfigError(
                f"`details` must not have {name!r} for model `{model.name}`, whose contexts are "
                "not finitely many: leave it out."
            )


def act_request(model: Model, ids: list[str], details: tuple[Detail, ...]) -> policy_pb2.ActRequest:
    """The request for steps of episodes, without steps and data."""
    return policy_pb2.ActRequest(
        episode_ids=ids,
        observation=[
            policy_pb2.Array(dtype=NUMBERS[spec.dtype], shape=[len(ids), *spec.shape])
            for spec in model.observation
        ],
        details=policy_pb2.Details(**dict.fromkeys(details, True)) if details else None,
    )


def read_detail(
    name: Detail, details: tuple[Detail, ...], reply: policy_pb2.ActReply | None
) -> np.ndarray:
    """A detail of the last reply [episode, ...], if it was asked for."""
    if name not in details:
        asked = ", ".join(repr(detail) for detail in (*details, name))
        raise DetailMissing(
            f"`{name}` is sent only where it was asked for: give `details=({asked},)` when you "
            "start or import the episode."
        )
    if reply is None or not reply.HasField(name):
        raise DetailMissing(f"`{name}` is that of the last step, and there was none yet.")
    return decode(getattr(reply, name))


def leave(
    session: Session, request: policy_pb2.EndRequest, error: BaseException | None
) -> Operation[None]:
    """Ends episodes whose block is left, perhaps by an error, which stays the one raised."""
    try:
        # What the reply says of episodes that have closed already does not matter here.
        yield from session.call("End", request, None if error is None else HURRIED)
    except BigClientError as failure:
        if error is None:
            raise
        error.add_note(f"The episode could not be ended, and expires with its lease: {failure}")
