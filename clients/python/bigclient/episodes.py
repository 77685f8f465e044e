"""Many episodes that step together, one for each environment of a vectorised simulator."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bigproto.v1 import policy_pb2

from .arrays import decode, encode
from .calls import Attempts, Operation, Sleep, attempt
from .description import Model
from .episode import Turn, act_request, leave, read_detail
from .errors import BigClientError, CallError, ConfigError, RowErrors, from_item
from .observations import Observation, ObservationSpec
from .session import EpisodeOptions, Session, derive_seed, new_ids
from .settings import Detail


class AbstractEpisodes:
    """What the blocking and the asynchronous group of episodes have in common."""

    def __init__(
        self,
        session: Session,
        run: Callable[[Operation[Any]], Any],
        model: Model,
        ids: list[str],
        details: tuple[Detail, ...],
        options: EpisodeOptions,
    ):
        self._session = session
        self._run = run
        self._model = model
        self._options = options
        self._details = details
        self._spec = ObservationSpec(model)
        self._ids = ids
        self._steps = np.zeros(len(ids), np.int64)
        # Rows that have sent nothing yet, and so need not be replaced.
        self._fresh = np.ones(len(ids), np.bool_)
        # One message for all steps: each changes its steps and its data only.
        self._request = act_request(model, ids, details)
        self._reply: policy_pb2.ActReply | None = None
        self._renewals = 0
        self._turn = Turn()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> tuple[str, ...]:
        """The id of the episode in each row now."""
        return tuple(self._ids)

    @property
    def model(self) -> Model:
        """The version of the model that the episodes started last are on."""
        return self._model

    @property
    def steps(self) -> np.ndarray:
        """The step that each row makes next, [n]."""
        return self._steps.copy()

    @property
    def values(self) -> np.ndarray:
        """The value of each action at the last step, [n, actions]."""
        return read_detail("values", self._details, self._reply)

    @property
    def beliefs(self) -> np.ndarray:
        """The probability of each context at the last step, [n, contexts]."""
        return read_detail("belief", self._details, self._reply)

    @property
    def entropies(self) -> np.ndarray:
        """The entropies of these beliefs in nats, [n]."""
        return read_detail("entropy", self._details, self._reply)

    def _act(
        self, observations: Observation, done: npt.ArrayLike | None, budget: float | None
    ) -> Operation[np.ndarray]:
        with self._turn:
            columns = self._spec.columns(observations, (len(self._ids),))
            attempts = self._session.attempts(budget)
            if done is not None:
                yield from self._renew(self._check_done(done), attempts)
            for array, column in zip(self._request.observation, columns, strict=True):
                array.data = column.tobytes()
            del self._request.steps[:]
            self._request.steps.extend(self._steps.tolist())
            reply = yield from attempt("Act", self._request, attempts)
            errors: dict[int, BigClientError] = {}
            if reply.errors:
                errors = yield from self._try_again(columns, reply, attempts)
            # Only now: whoever is interrupted before sends the same steps again.
            self._reply = reply
            self._fresh[:] = False
            self._steps += 1
            if not errors:
                return decode(reply.actions)
            # A server need not send arrays where all rows failed.
            answered = reply.HasField("actions")
            actions = decode(reply.actions) if answered else np.zeros(len(self._ids), np.int32)
            failure = RowErrors(errors, actions)
            self._steps[failure.rows] -= 1
            raise failure

    def _try_again(
        self, columns: list[np.ndarray], reply: policy_pb2.ActReply, attempts: Attempts
    ) -> Operation[dict[int, BigClientError]]:
        """Sends again the rows for which it may help, and merges the answers into `reply`."""
        errors: dict[int, BigClientError] = {}
        rows, part = np.arange(len(self._ids)), reply
        while True:
            failed = {int(rows[item.index]): from_item(item) for item in part.errors}
            errors |= failed
            again = [row for row, failure in failed.items() if failure.retryable]
            if not again:
                return errors
            wait = attempts.wait_after(max((failed[row] for row in again), key=_hint))
            if wait is None:
                return errors
            yield Sleep(wait)
            rows = np.array(again)
            request = act_request(self._model, [self._ids[row] for row in again], self._details)
            request.steps.extend(self._steps[rows].tolist())
            for array, column in zip(request.observation, columns, strict=True):
                array.data = column[rows].tobytes()
            try:
                part = yield from attempt("Act", request, attempts)
            except CallError as failure:
                # The other rows have their actions, which must not be lost with these.
                return errors | dict.fromkeys(again, failure)
            for row in again:
                del errors[row]
            _merge(reply, part, rows, len(self._ids))

    def _check_done(self, done: npt.ArrayLike) -> np.ndarray:
        mask = np.asarray(done)
        if mask.shape != (len(self._ids),) or mask.dtype != np.bool_:
            raise ConfigError(
                f"`done` must be {len(self._ids)} booleans, one for each row, got {mask.dtype} of "
                f"shape {mask.shape}."
            )
        return mask

    def _renew(self, done: np.ndarray, attempts: Attempts) -> Operation[None]:
        """Ends the episodes of the rows that are done, and starts others in their place."""
        rows = np.flatnonzero(done & ~self._fresh).tolist()
        if not rows:
            return
        # Ended first, so that a server that is full has room. What the reply says of episodes that
        # have closed already does not matter here.
        request = policy_pb2.EndRequest(episode_ids=[self._ids[row] for row in rows])
        yield from attempt("End", request, attempts)
        options = self._options
        if options.seed is not None:
            options = dataclasses.replace(
                options, seed=derive_seed(options.seed, self._renewals + 1)
            )
        ids = new_ids(len(rows))
        model = yield from self._session.start(ids, options, attempts)
        if not model.speaks_like(self._model):
            raise ConfigError(
                f"Version {model.version} of model `{model.name}`, which is current now, has other "
                "observations, actions or contexts than the version of this group: open another."
            )
        self._model = model
        self._renewals += 1
        for row, id in zip(rows, ids, strict=True):
            self._ids[row] = id
        self._steps[rows] = 0
        self._fresh[rows] = True
        self._request = act_request(model, self._ids, self._details)

    def _end(self) -> Operation[None]:
        yield from self._leave(None)

    def _leave(self, error: BaseException | None) -> Operation[None]:
        yield from leave(self._session, policy_pb2.EndRequest(episode_ids=self._ids), error)


def _hint(failure: BigClientError) -> float:
    return failure.retry_after


def _merge(
    reply: policy_pb2.ActReply, part: policy_pb2.ActReply, rows: np.ndarray, num_rows: int
) -> None:
    """Puts the answers for some rows in their places."""
    for name in ("actions", "values", "belief", "entropy"):
        if part.HasField(name):
            answers = decode(getattr(part, name))
            # A server need not send arrays where all rows failed.
            whole = np.zeros((num_rows, *answers.shape[1:]), answers.dtype)
            if reply.HasField(name):
                whole = decode(getattr(reply, name))
            whole[rows] = answers
            getattr(reply, name).CopyFrom(encode(whole))
