"""One episode as the fake server keeps it: its history is its state."""

import dataclasses
import datetime
import math

import numpy as np
from google.protobuf import duration_pb2, timestamp_pb2

from bigproto.v1 import policy_pb2

from ..arrays import decode, encode
from .models import FakeModel

Row = tuple[np.ndarray, ...]


@dataclasses.dataclass
class Record:
    """An open episode."""

    id: str
    owner: str
    model: FakeModel
    seed: int
    stream: int
    rule: policy_pb2.ActionRule
    lease: float
    touched: float
    history: list[Row] = dataclasses.field(default_factory=list)
    # The reply to the last step, with all details.
    reply: policy_pb2.ActReply = dataclasses.field(default_factory=policy_pb2.ActReply)

    def apply(self, row: Row) -> None:
        """Makes a step; raises what the policy raises, and then changes nothing."""
        values, belief = self.model.decide([*self.history, row])
        positive = belief[belief > 0]
        action = self._choose(values.astype(np.float64))
        self.history.append(row)
        self.reply = policy_pb2.ActReply(
            actions=encode(np.array([action], "<i4")), values=encode(values[None])
        )
        if self.model.contexts:
            self.reply.belief.CopyFrom(encode(belief[None]))
            entropy = -np.sum(positive * np.log(positive))
            self.reply.entropy.CopyFrom(encode(np.array([entropy], "<f4")))

    def repeats(self, row: Row) -> bool:
        """Whether this is the observation of the last step."""
        return all(map(np.array_equal, self.history[-1], row))

    def _choose(self, values: np.ndarray) -> int:
        # A stream for each step: where it stands is known without keeping it.
        rng = np.random.default_rng([self.seed, self.stream, len(self.history)])
        match self.rule.WhichOneof("rule"):
            case "epsilon_greedy" if rng.random() < self.rule.epsilon_greedy.epsilon:
                return int(rng.integers(len(values)))
            case "softmax":
                weights = np.exp((values - values.max()) / self.rule.softmax.temperature)
                return int(rng.choice(len(values), p=weights / weights.sum()))
        return int(np.argmax(values))

    def export(self) -> policy_pb2.EpisodeState:
        """All that the next step needs."""
        return policy_pb2.EpisodeState(
            episode_id=self.id,
            owner=self.owner,
            model=self.model.name,
            version=self.model.version,
            next_step=len(self.history),
            rule=self.rule,
            lease=duration(self.lease),
            random_key=self.seed.to_bytes(8, "little") + self.stream.to_bytes(8, "little"),
            policy_state={
                str(i): encode(np.stack(column))
                for i, column in enumerate(zip(*self.history, strict=True))
            },
            last_observation=[encode(entry[None]) for entry in self.history[-1]]
            if self.history
            else [],
            last_reply=self.reply if self.history else None,
        )


def read_record(state: policy_pb2.EpisodeState, model: FakeModel, now: float) -> Record:
    """The episode that was exported."""
    columns = [decode(state.policy_state[str(i)]) for i in range(len(state.policy_state))]
    return Record(
        id=state.episode_id,
        owner=state.owner,
        model=model,
        seed=int.from_bytes(state.random_key[:8], "little"),
        stream=int.from_bytes(state.random_key[8:], "little"),
        rule=state.rule,
        lease=state.lease.ToTimedelta().total_seconds(),
        touched=now,
        history=list(zip(*columns, strict=True)),
        reply=state.last_reply,
    )


def duration(seconds: float) -> duration_pb2.Duration:
    """Seconds as a message."""
    fraction, whole = math.modf(seconds)
    return duration_pb2.Duration(seconds=int(whole), nanos=round(fraction * 1e9))


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """A time of the fake clock as a message."""
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(datetime.datetime.fromtimestamp(seconds, datetime.UTC))
    return message
