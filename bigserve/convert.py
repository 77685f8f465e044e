"""Between the wire and the domain: with `describe`, the only file that knows both.

What comes in is checked here as far as a message can be checked by itself.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from bigproto.v1 import policy_pb2 as wire
from bigserve.acts import Act, Acted, Block
from bigserve.config import LimitsConfig
from bigserve.core import NO_DETAILS, NOTHING, Explained, Record
from bigserve.episodes import Episode, Rule
from bigserve.errors import Fault, InvalidRequest, LimitReached
from bigserve.layout import Details
from bigserve.models import Version
from bigserve.sealing import Sealer

_DTYPES = {
    wire.Array.DTYPE_BOOL: np.dtype("?"),
    wire.Array.DTYPE_UINT8: np.dtype("u1"),
    wire.Array.DTYPE_INT32: np.dtype("<i4"),
    wire.Array.DTYPE_INT64: np.dtype("<i8"),
    wire.Array.DTYPE_FLOAT32: np.dtype("<f4"),
    wire.Array.DTYPE_FLOAT64: np.dtype("<f8"),
}
NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_INT32, _FLOAT32 = wire.Array.DTYPE_INT32, wire.Array.DTYPE_FLOAT32

_MAX_ID = 128  # bytes
_LARGEST = float(np.finfo(np.float32).max)


class Start(NamedTuple):
    """What a StartRequest asks for; `ids` may be a count."""

    model: str
    version: str
    ids: Sequence[str] | int
    seed: int | None
    rule: Rule
    lease: float


# ── arrays ───────────────────────────────────────────────────────────────────────────────────────


def write_array(values: Shaped[np.ndarray, "..."]) -> wire.Array:
    """An array as the wire has it."""
    values = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return wire.Array(dtype=NUMBERS[values.dtype], shape=values.shape, data=values.tobytes())


def read_block(array: wire.Array) -> Block:
    """An array that is yet to be checked."""
    known = _DTYPES.get(array.dtype)
    dtype = str(array.dtype) if known is None else known.name
    return Block(dtype, tuple(array.shape), array.data)


def read_array(array: wire.Array) -> Shaped[np.ndarray, "..."]:
    """An array that `write_array` wrote."""
    return np.frombuffer(array.data, _DTYPES[array.dtype]).reshape(tuple(array.shape))


# ── start and end ────────────────────────────────────────────────────────────────────────────────


def read_start(request: wire.StartRequest, limits: LimitsConfig) -> Start:
    """What a StartRequest asks for."""
    ids = list(request.episode_ids)
    check_count("episode_ids", len(ids) or request.num_episodes, limits)
    check_ids(ids)
    if len(set(ids)) < len(ids):
        raise InvalidRequest("`episode_ids` must be all different.")
    lease = _read_seconds("lease", request.lease)
    return Start(
        request.model,
        request.version,
        ids or max(request.num_episodes, 1),
        request.seed if request.HasField("seed") else None,
        read_rule(request.rule),
        min(lease, limits.max_lease) if lease else limits.default_lease,
    )


def read_rule(rule: wire.ActionRule) -> Rule:
    """How actions are chosen."""
    match rule.WhichOneof("rule"):
        case "epsilon_greedy":
            epsilon = rule.epsilon_greedy.epsilon
            if not 0 <= epsilon <= 1:
                raise InvalidRequest(f"`epsilon` must be from 0 to 1, got {epsilon}.")
            return Rule(epsilon=epsilon)
        case "softmax":
            temperature = rule.softmax.temperature
            if not 0 < temperature <= _LARGEST or not np.float32(temperature):
                raise InvalidRequest(f"`temperature` must be above 0, got {temperature}.")
            return Rule(temperature=temperature)
    return Rule()


def write_rule(rule: Rule) -> wire.ActionRule:
    """How actions are chosen."""
    if rule.temperature:
        return wire.ActionRule(softmax=wire.ActionRule.Softmax(temperature=rule.temperature))
    if rule.epsilon:
        return wire.ActionRule(epsilon_greedy=wire.ActionRule.EpsilonGreedy(epsilon=rule.epsilon))
    return wire.ActionRule(greedy=wire.ActionRule.Greedy())


def check_count(name: str, count: int, limits: LimitsConfig) -> None:
    """Whether a message has no more items than it may."""
    if count > limits.max_items:
        raise LimitReached(
            f"`{name}` must have at most {limits.max_items} items, got {count}. Send several "
            "messages."
        )


def read_ids(ids: Sequence[str], limits: LimitsConfig) -> list[str]:
    """The ids in a message, if they can be ids and are not too many."""
    ids = list(ids)
    check_count("episode_ids", len(ids), limits)
    check_ids(ids)
    return ids


def check_ids(ids: Sequence[str]) -> None:
    """Whether ids can be ids."""
    lengths = list(map(len, ids))
    if not ids or (min(lengths) and max(lengths) * 4 <= _MAX_ID):
        return  # a character has at most 4 bytes
    for id in ids:
        if not 1 <= len(id.encode()) <= _MAX_ID:
            raise InvalidRequest(
                f"Each of `episode_ids` must have 1 to {_MAX_ID} bytes, got {len(id.encode())}."
            )


def write_started(version: Version, episodes: Sequence[Episode]) -> wire.StartReply:
    """The episodes that were started."""
    reply = wire.StartReply(
        episode_ids=[episode.id for episode in episodes],
        model=version.name,
        version=version.digest,
    )
    _write_seconds(episodes[0].lease, reply.lease)
    return reply


def write_ended(faults: Sequence[Fault]) -> wire.EndReply:
    """The episodes that could not be ended."""
    return wire.EndReply(errors=map(write_fault, faults))


def _write_seconds(seconds: float, duration: Any) -> None:
    duration.FromNanoseconds(round(seconds * 1e9))


def _read_seconds(name: str, duration: Any) -> float:
    seconds = duration.seconds + duration.nanos / 1e9  # rounds as it should, unlike * 1e-9
    if seconds < 0:
        raise InvalidRequest(f"`{name}` must not be negative, got {seconds:g} s.")
    return seconds


# ── act ──────────────────────────────────────────────────────────────────────────────────────────


def read_act(
    request: wire.ActRequest,
    owner: str,
    limits: LimitsConfig,
    now: float,
    deadline: float,
    deliver: Callable[[Acted], None],
) -> Act:
    """The steps in a message. The observations are looked at once their spec is known."""
    ids, steps = read_ids(request.episode_ids, limits), list(request.steps)
    count = len(ids)
    if not count:
        raise InvalidRequest("`episode_ids` must name at least one episode.")
    if len(steps) != count:
        raise InvalidRequest(f"`steps` must have an entry for each of {count}, got {len(steps)}.")

    if request.timeout_milliseconds:
        deadline = min(deadline, now + request.timeout_milliseconds / 1000)
    observation = list(map(read_block, request.observation))
    return Act(owner, ids, steps, observation, deadline, now, deliver)


def write_acted(request: wire.ActRequest, acted: Acted) -> wire.ActReply:
    """What came of them."""
    actions = acted.actions
    count = len(actions)
    reply = wire.ActReply(
        request_id=request.request_id,
        actions=wire.Array(dtype=_INT32, shape=(count,), data=actions.tobytes()),
    )
    if acted.duplicates:
        reply.duplicates.extend(acted.duplicates)
    if acted.faults:
        reply.errors.extend(map(write_fault, acted.faults))
    if request.HasField("details") and acted.details is not None:
        details, wanted = acted.details, request.details
        if wanted.values:
            reply.values.CopyFrom(_write_floats(details.values))
        if wanted.belief:
            reply.belief.CopyFrom(_write_floats(details.belief))
        if wanted.entropy:
            reply.entropy.CopyFrom(_write_floats(details.entropy))
    return reply


def _write_floats(values: Shaped[np.ndarray, "..."]) -> wire.Array:
    return wire.Array(dtype=_FLOAT32, shape=values.shape, data=values.tobytes())


def write_fault(fault: Fault) -> wire.ItemError:
    """What is wrong with one item."""
    error = wire.ItemError(
        index=fault.place,
        problem=fault.problem.value,  # pyright: ignore[reportArgumentType]
        message=fault.message,
        expected_step=fault.expected_step,
        retry_after_milliseconds=round(1000 * fault.retry_after),
    )
    if fault.closed_at is not None:
        error.closed_at.FromMilliseconds(round(1000 * fault.closed_at))
    return error


# ── explain ──────────────────────────────────────────────────────────────────────────────────────


def write_explained(explained: Explained) -> wire.ExplainReply:
    """An episode's present moment."""
    version, why = explained.version, explained.explanation
    bundle, details = version.bundle, explained.details
    reply = wire.ExplainReply(
        step=explained.step,
        model=version.name,
        version=version.digest,
        chosen=explained.action,
        entropy=float(details.entropy),
    )
    for index, name in enumerate(bundle.action_names):
        reply.actions.add(
            name=name,
            value=float(details.values[index]),
            reward_mean=math.nan if why is None else why.reward_mean[index],
            reward_deviation=math.nan if why is None else why.reward_deviation[index],
            explores=why is not None and bool(why.explores[index]),
        )
    for index, name in enumerate(bundle.context_names):
        expert = None if why is None or why.expert is None else why.expert[index]
        probability = float(details.belief[index])
        reply.contexts.add(name=name, probability=probability, expert=expert)
    return reply


# ── export and import ────────────────────────────────────────────────────────────────────────────


def write_record(record: Record) -> bytes:
    """An episode's state, to be sealed or put into a snapshot."""
    state = wire.EpisodeState(
        episode_id=record.id,
        owner=record.owner,
        model=record.model,
        version=record.version,
        next_step=record.next_step,
        rule=write_rule(record.rule),
        random_key=record.key,
        policy_state={path: write_array(leaf) for path, leaf in record.state.items()},
    )
    _write_seconds(record.lease, state.lease)
    if record.seed is not None:
        state.seed = record.seed
    if record.next_step:
        state.last_observation.append(write_array(record.observation[None]))
        details = record.details.select(None)
        parts = {
            "actions": np.array([record.action], np.int32),
            "entropy": details.entropy,
            "values": details.values,
            "belief": details.belief,
        }
        for name, values in parts.items():
            getattr(state.last_reply, name).CopyFrom(write_array(values))
    return state.SerializeToString(deterministic=True)


def read_sealed(sealed: wire.SealedEpisode, sealer: Sealer) -> Record | None:
    """An episode that was sealed with our key, or None."""
    return read_record(sealed.state) if sealer.holds(sealed.state, sealed.seal) else None


def write_exported(
    records: Sequence[Record], faults: Sequence[Fault], sealer: Sealer
) -> wire.ExportReply:
    """Episodes as they stand, sealed, and those that could not be exported."""
    states = map(write_record, records)
    return wire.ExportReply(
        episodes=[wire.SealedEpisode(state=s, seal=sealer.seal(s)) for s in states],
        errors=map(write_fault, faults),
    )


def read_record(data: bytes) -> Record:
    """An episode's state that `write_record` wrote; the caller has made sure of that."""
    state = wire.EpisodeState.FromString(data)

    reply = state.last_reply
    observation, action, details = NOTHING, 0, NO_DETAILS
    if state.next_step:
        observation, action = (
            read_array(state.last_observation[0])[0],
            int(read_array(reply.actions)[0]),
        )
        parts = (reply.entropy, reply.values, reply.belief)
        details = Details.join(*(read_array(part).reshape(-1) for part in parts))
    return Record(
        state.episode_id,
        state.owner,
        state.model,
        state.version,
        state.next_step,
        read_rule(state.rule),
        _read_seconds("lease", state.lease),
        state.random_key,
        {path: read_array(array) for path, array in state.policy_state.items()},
        observation,
        action,
        details,
        state.seed if state.HasField("seed") else None,
    )
