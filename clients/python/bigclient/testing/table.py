"""The rules of the wire contract: what happens to episodes, call by call."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence

import grpc
import numpy as np

from bigproto.v1 import policy_pb2

from ..arrays import DTYPES, decode, encode
from ..description import ArraySpec, Limits
from .faults import Fault
from .models import FakeModel, ImpossibleObservation
from .records import Record, Row, duration, read_record, timestamp

Code = grpc.StatusCode
DETAILS = ("values", "belief", "entropy")


class Refusal(Exception):
    """A call fails as a whole."""

    def __init__(self, code: Code, message: str, **metadata: str):
        super().__init__(message)
        self.code = code
        self.metadata = tuple((name.replace("_", "-"), text) for name, text in metadata.items())


class Table:
    """All episodes of a server; not safe for threads by itself."""

    def __init__(self, models: Sequence[FakeModel], limits: Limits, key: bytes):
        self.limits = limits
        self.now = 1.7e9
        # Newest first; the first of a name is the current one.
        self.models = list(models)
        self.records: dict[tuple[str, str], Record] = {}
        # Problem, time and next step of what has closed; the latest last.
        self.tombstones: dict[tuple[str, str], tuple[str, float, int]] = {}
        self._key = key

    # ------------------------------------------------------------------------- life and death

    def sweep(self) -> None:
        """Closes what has expired, and forgets what closed long ago."""
        for (owner, id), record in list(self.records.items()):
            if self.now - record.touched > record.lease:
                self.close(owner, id, "EPISODE_EXPIRED", record.touched + record.lease)
        for name, (_, closed_at, _) in list(self.tombstones.items()):
            if self.now - closed_at > self.limits.tombstone_lifetime:
                del self.tombstones[name]

    def close(self, owner: str, id: str, problem: str, at: float | None = None) -> None:
        """Closes an episode, and leaves a tombstone."""
        record = self.records.pop((owner, id))
        at = self.now if at is None else at
        self.tombstones[owner, id] = (problem, at, len(record.history))
        own = [name for name in self.tombstones if name[0] == owner]
        if 0 < self.limits.max_tombstones_per_caller < len(own):
            del self.tombstones[own[0]]
        if record.model is not self._current(record.model.name):
            if all(other.model is not record.model for other in self.records.values()):
                self.models.remove(record.model)

    def _current(self, name: str) -> FakeModel | None:
        return next((model for model in self.models if model.name == name), None)

    def _error(self, index: int, problem: str, message: str, **fields) -> policy_pb2.ItemError:
        name = f"PROBLEM_{problem}"
        return policy_pb2.ItemError(index=index, problem=name, message=message, **fields)

    def _absent(self, index: int, owner: str, id: str) -> policy_pb2.ItemError:
        if (owner, id) not in self.tombstones:
            return self._error(
                index, "EPISODE_UNKNOWN", f"Episode {id!r} must be open here: start another."
            )
        problem, at, _ = self.tombstones[owner, id]
        how = problem.removeprefix("EPISODE_").lower()
        return self._error(
            index,
            problem,
            f"Episode {id!r} must be open, and {how} at {at:.0f}: start another.",
            closed_at=timestamp(at),
        )

    def _check_items(self, field: str, count: int) -> None:
        if count == 0:
            raise Refusal(Code.INVALID_ARGUMENT, f"`{field}` must have an entry at least.")
        if count > self.limits.max_items:
            raise Refusal(
                Code.RESOURCE_EXHAUSTED,
                f"A message must have at most {self.limits.max_items} items, got {count}.",
            )

    def _check_room(self, owner: str, count: int) -> None:
        own = sum(record.owner == owner for record in self.records.values())
        if (
            own + count > self.limits.max_episodes_per_caller
            or len(self.records) + count > self.limits.max_episodes
        ):
            raise Refusal(Code.RESOURCE_EXHAUSTED, "No more episodes can be open: end some.")

    # ------------------------------------------------------------------------ start and describe

    def describe(self, request: policy_pb2.DescribeRequest) -> policy_pb2.DescribeReply:
        """What is loaded."""
        models = [m for m in self.models if request.model in ("", m.name)]
        if not models:
            raise Refusal(Code.NOT_FOUND, f"There is no model `{request.model}`.")
        limits = self.limits
        return policy_pb2.DescribeReply(
            models=[model.describe(model is self._current(model.name)) for model in models],
            limits=policy_pb2.Limits(
                max_episodes=limits.max_episodes,
                max_episodes_per_caller=limits.max_episodes_per_caller,
                max_items=limits.max_items,
                max_message_bytes=limits.max_message_bytes,
                default_lease=duration(limits.default_lease),
                max_lease=duration(limits.max_lease),
                tombstone_lifetime=duration(limits.tombstone_lifetime),
                max_tombstones_per_caller=limits.max_tombstones_per_caller,
            ),
            server_version="fake",
        )

    def start(self, owner: str, request: policy_pb2.StartRequest) -> policy_pb2.StartReply:
        """Starts all episodes of a request, or none."""
        model = self._find_model(request.model, request.version)
        _check_rule(request.rule)
        ids = list(request.episode_ids)
        ids = ids or [secrets.token_urlsafe(16) for _ in range(request.num_episodes or 1)]
        self._check_items("episode_ids", len(ids))
        if len(set(ids)) < len(ids) or not all(1 <= len(id.encode()) <= 128 for id in ids):
            raise Refusal(
                Code.INVALID_ARGUMENT,
                "`episode_ids` must have 1 to 128 bytes each, and be all different.",
            )
        seconds = request.lease.ToTimedelta().total_seconds() or self.limits.default_lease
        lease = min(seconds, self.limits.max_lease)
        seed = request.seed if request.HasField("seed") else None
        rule = request.rule
        if rule.WhichOneof("rule") is None:
            rule = policy_pb2.ActionRule(greedy=policy_pb2.ActionRule.Greedy())
        drawn = secrets.randbits(64) if seed is None else seed
        new = []
        for stream, id in enumerate(ids):
            there = self.records.get((owner, id))
            if (owner, id) in self.tombstones:
                raise Refusal(Code.ALREADY_EXISTS, f"Episode {id!r} has closed: take another id.")
            if there is None:
                new.append(Record(id, owner, model, drawn, stream, rule, lease, self.now))
            elif (
                there.history
                or (there.model, there.rule) != (model, rule)
                or seed not in (None, there.seed)
            ):
                raise Refusal(Code.ALREADY_EXISTS, f"Episode id {id!r} is in use: take another.")
        self._check_room(owner, len(new))
        for record in new:
            self.records[owner, record.id] = record
        return policy_pb2.StartReply(
            episode_ids=ids, model=model.name, version=model.version, lease=duration(lease)
        )

    def _find_model(self, name: str, version: str) -> FakeModel:
        names = {model.name for model in self.models}
        if not name and len(names) > 1:
            raise Refusal(Code.INVALID_ARGUMENT, f"`model` must be one of {sorted(names)}.")
        for model in self.models:
            if name in ("", model.name) and version in ("", model.version):
                return model
        raise Refusal(Code.NOT_FOUND, f"There is no model `{name}` of version {version!r}.")

    def end(self, owner: str, request: policy_pb2.EndRequest) -> policy_pb2.EndReply:
        """Ends episodes; again is no error."""
        self._check_items("episode_ids", len(request.episode_ids))
        errors = []
        for index, id in enumerate(request.episode_ids):
            if (owner, id) in self.records:
                self.close(owner, id, "EPISODE_ENDED")
            elif self.tombstones.get((owner, id), ("",))[0] != "EPISODE_ENDED":
                errors.append(self._absent(index, owner, id))
        return policy_pb2.EndReply(errors=errors)

    # ------------------------------------------------------------------------------------- act

    def act(
        self, owner: str, request: policy_pb2.ActRequest, refusal: Fault | None = None
    ) -> policy_pb2.ActReply:
        """One step of each item, but of those that a fault refuses."""
        ids = list(request.episode_ids)
        self._check_items("episode_ids", len(ids))
        if len(request.steps) != len(ids):
            raise Refusal(
                Code.INVALID_ARGUMENT,
                f"`steps` must have {len(ids)} entries, as `episode_ids` has, got "
                f"{len(request.steps)}.",
            )
        records = [self.records.get((owner, id)) for id in ids]
        first = next((record for record in records if record is not None), None)
        columns = _read_columns(request, first.model.observation if first else None)
        reply = policy_pb2.ActReply(request_id=request.request_id)
        seen: set[str] = set()
        for index, (id, record) in enumerate(zip(ids, records, strict=True)):
            if refusal is not None and (refusal.rows is None or index in refusal.rows):
                wait = round(refusal.retry_after * 1000)
                message = "Refused, as the test wants it."
                error = self._error(index, refusal.problem, message, retry_after_milliseconds=wait)
            elif id in seen:
                error = self._error(index, "ITEM_INVALID", f"Episode {id!r} occurs twice.")
            elif record is None:
                error = self._absent(index, owner, id)
            elif first is not None and record.model.specs != first.model.specs:
                error = self._error(index, "ITEM_INVALID", f"Episode {id!r} differs in its specs.")
            else:
                row = tuple(column[index] for column in columns)
                error = self._step(index, record, request.steps[index], row, reply)
            seen.add(id)
            if error is not None:
                records[index] = None
                reply.errors.append(error)
        if first is not None:
            _fill(reply, records, request.details, first.model)
        return reply

    def _step(
        self, index: int, record: Record, step: int, row: Row, reply: policy_pb2.ActReply
    ) -> policy_pb2.ItemError | None:
        expected = len(record.history)
        if step == expected - 1 and record.repeats(row):
            reply.duplicates.append(index)
            record.touched = self.now
            return None
        if step != expected:
            problem = (
                "DIFFERS" if step == expected - 1 else "AHEAD" if step > expected else "BEHIND"
            )
            return self._error(
                index,
                f"STEP_{problem}",
                f"The step must be {expected}, got {step}, or the last one with the observation "
                "that it was made with.",
                expected_step=expected,
            )
        for spec, entry in zip(record.model.observation, row, strict=True):
            if not _is_valid(spec, entry):
                return self._error(
                    index, "OBSERVATION_INVALID", f"Observation `{spec.name}` is out of bounds."
                )
        try:
            record.apply(row)
        except ImpossibleObservation as error:
            return self._error(index, "OBSERVATION_IMPOSSIBLE", str(error) or "It cannot follow.")
        record.touched = self.now
        return None

    # -------------------------------------------------------------------- explain, export, import

    def explain(self, owner: str, request: policy_pb2.ExplainRequest) -> policy_pb2.ExplainReply:
        """The last step of an episode."""
        record = self.records.get((owner, request.episode_id))
        if record is None:
            error = self._absent(0, owner, request.episode_id)
            name = policy_pb2.Problem.Name(error.problem)
            code = Code.ABORTED if name.endswith("EVICTED") else Code.NOT_FOUND
            raise Refusal(code, error.message, big_problem=name)
        if not record.history:
            raise Refusal(Code.FAILED_PRECONDITION, "There is no step to explain yet: act first.")
        belief = decode(record.reply.belief) if record.model.contexts else np.zeros((1, 0))
        values = decode(record.reply.values)[0].tolist()
        return policy_pb2.ExplainReply(
            step=len(record.history) - 1,
            model=record.model.name,
            version=record.model.version,
            chosen=int(decode(record.reply.actions)[0]),
            actions=[
                policy_pb2.ActionExplanation(name=name, value=value)
                for name, value in zip(record.model.actions, values, strict=True)
            ],
            contexts=[
                policy_pb2.ContextExplanation(name=name, probability=probability)
                for name, probability in zip(record.model.contexts, belief[0].tolist(), strict=True)
            ],
            entropy=float(decode(record.reply.entropy)[0]) if record.model.contexts else 0.0,
        )

    def export(self, owner: str, request: policy_pb2.ExportRequest) -> policy_pb2.ExportReply:
        """Episodes, sealed."""
        self._check_items("episode_ids", len(request.episode_ids))
        reply = policy_pb2.ExportReply()
        for index, id in enumerate(request.episode_ids):
            record = self.records.get((owner, id))
            if record is None:
                reply.errors.append(self._absent(index, owner, id))
                continue
            state = record.export().SerializeToString(deterministic=True)
            reply.episodes.add(state=state, seal=self._seal(state))
            if request.close:
                self.close(owner, id, "EPISODE_EXPORTED")
        return reply

    def import_(self, owner: str, request: policy_pb2.ImportRequest) -> policy_pb2.ImportReply:
        """Goes on with exported episodes."""
        self._check_items("episodes", len(request.episodes))
        self._check_room(owner, len(request.episodes))
        reply = policy_pb2.ImportReply()
        for index, sealed in enumerate(request.episodes):
            problem = self._open(owner, sealed, reply)
            if problem:
                reply.errors.append(self._error(index, problem, f"Not imported: {problem}."))
        return reply

    def _open(
        self, owner: str, sealed: policy_pb2.SealedEpisode, reply: policy_pb2.ImportReply
    ) -> str | None:
        if not hmac.compare_digest(sealed.seal, self._seal(sealed.state)):
            return "SEAL_BROKEN"
        state = policy_pb2.EpisodeState.FromString(sealed.state)
        if state.owner != owner:
            return "EPISODE_UNKNOWN"
        versions = {(model.name, model.version): model for model in self.models}
        model = versions.get((state.model, state.version))
        if model is None:
            return "VERSION_MISSING"
        there = self.records.get((owner, state.episode_id))
        if there is not None and there.export() != state:
            return "EPISODE_EXISTS"
        why, _, left_at = self.tombstones.get((owner, state.episode_id), ("EPISODE_EXPORTED", 0, 0))
        if why != "EPISODE_EXPORTED" or state.next_step < left_at:
            return why
        if there is None:
            self.records[owner, state.episode_id] = read_record(state, model, self.now)
            self.tombstones.pop((owner, state.episode_id), None)
        reply.episode_ids.append(state.episode_id)
        return None

    def _seal(self, state: bytes) -> bytes:
        return hmac.new(self._key, state, hashlib.sha256).digest()


def _check_rule(rule: policy_pb2.ActionRule) -> None:
    kind = rule.WhichOneof("rule")
    if kind == "epsilon_greedy" and not 0 <= rule.epsilon_greedy.epsilon <= 1:
        raise Refusal(Code.INVALID_ARGUMENT, "`rule.epsilon_greedy.epsilon` must be in [0, 1].")
    if kind == "softmax" and not rule.softmax.temperature > 0:
        raise Refusal(Code.INVALID_ARGUMENT, "`rule.softmax.temperature` must be above 0.")


def _read_columns(
    request: policy_pb2.ActRequest, specs: tuple[ArraySpec, ...] | None
) -> list[np.ndarray]:
    """The arrays of a request; without specs, where no episode is open, just whether they fit."""
    n = len(request.episode_ids)
    wrong = Refusal(Code.INVALID_ARGUMENT, f"`observation` must be what {n} episodes can see.")
    if specs is not None and len(request.observation) != len(specs):
        raise wrong
    columns = []
    for i, array in enumerate(request.observation):
        shape = tuple(array.shape)
        dtype = DTYPES.get(array.dtype)
        if dtype is None or shape[:1] != (n,):
            raise wrong
        if len(array.data) != dtype.itemsize * int(np.prod(shape)):
            raise wrong
        if specs is not None and (dtype, shape[1:]) != (specs[i].dtype, specs[i].shape):
            raise wrong
        columns.append(decode(array))
    return columns


def _is_valid(spec: ArraySpec, entry: np.ndarray) -> bool:
    if not np.all(np.isfinite(entry)):
        return False
    low = spec.minimum is None or np.all(entry >= spec.minimum)
    return bool(low and (spec.maximum is None or np.all(entry <= spec.maximum)))


def _fill(
    reply: policy_pb2.ActReply,
    records: Iterable[Record | None],
    details: policy_pb2.Details,
    model: FakeModel,
) -> None:
    """Gathers the stored replies as columns, with zeros where there is none."""
    asked = [name for name in DETAILS if getattr(details, name)]
    if not model.contexts:
        asked = [name for name in asked if name == "values"]
    sizes = {"actions": (), "values": (len(model.actions),), "belief": (len(model.contexts),)}
    for name in ("actions", *asked):
        dtype = np.dtype("<i4" if name == "actions" else "<f4")
        zero = np.zeros((1, *sizes.get(name, ())), dtype).tobytes()
        rows = [zero if r is None else getattr(r.reply, name).data for r in records]
        column = np.frombuffer(b"".join(rows), dtype).reshape(len(rows), *sizes.get(name, ()))
        getattr(reply, name).CopyFrom(encode(column))
