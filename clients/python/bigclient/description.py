"""What a server serves: the reply to Describe, as plain frozen data."""

import dataclasses
import datetime
from collections.abc import Mapping

import numpy as np

from bigproto.v1 import policy_pb2

from .arrays import DTYPES

_METHODS: dict[int, str] = {
    policy_pb2.Training.METHOD_LEARNED: "learned",
    policy_pb2.Training.METHOD_EXACT: "exact",
}


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """What one entry of an observation, or an action, looks like for one episode."""

    dtype: np.dtype
    shape: tuple[int, ...] = ()
    name: str = ""
    minimum: float | None = None
    maximum: float | None = None
    value_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ExplorationCost:
    """Where the agent was said to explore; an empty `action` is every action of `state`."""

    state: str
    action: str
    k_low: float
    k_high: float


@dataclasses.dataclass(frozen=True)
class Training:
    """How a policy came about; `method` is `learned`, `exact` or empty."""

    method: str
    finished_at: datetime.datetime
    seed: int
    num_demonstrations: int
    discount: float
    trainer_version: str
    settings: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Regret:
    """What a policy loses against the best one; without `num_episodes` it was computed exactly."""

    value: float
    standard_error: float
    normalised: float | None
    num_episodes: int


@dataclasses.dataclass(frozen=True)
class Model:
    """One version of a policy. `contexts` has their prior probabilities, by name."""

    name: str
    version: str
    current: bool
    loaded_at: datetime.datetime
    observation: tuple[ArraySpec, ...]
    action: ArraySpec
    contexts: Mapping[str, float]
    reward_range: tuple[float, float]
    exploration: tuple[ExplorationCost, ...]
    training: Training
    regret: Regret | None

    def speaks_like(self, other: "Model") -> bool:
        """Whether steps of both may be in one message."""
        return (self.observation, self.action, list(self.contexts)) == (
            other.observation,
            other.action,
            list(other.contexts),
        )


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a server takes; durations are in seconds."""

    max_episodes: int
    max_episodes_per_caller: int
    max_items: int
    max_message_bytes: int
    default_lease: float
    max_lease: float
    tombstone_lifetime: float
    # Closed episodes of one caller that are remembered; 0 where the server does not say.
    max_tombstones_per_caller: int = 0


@dataclasses.dataclass(frozen=True)
class Description:
    """The models that are loaded, newest version first, and the limits of the server."""

    models: tuple[Model, ...]
    limits: Limits
    server_version: str

    def find(self, name: str, version: str) -> Model | None:
        """A version of a model; the newest current one for an empty version, if there is one."""
        for model in self.models:
            if name in ("", model.name) and (model.version == version or not version):
                if version or model.current:
                    return model
        return None


def read_description(reply: policy_pb2.DescribeReply) -> Description:
    """The description in a reply to Describe."""
    limits = reply.limits
    return Description(
        models=tuple(_read_model(model) for model in reply.models),
        limits=Limits(
            max_episodes=limits.max_episodes,
            max_episodes_per_caller=limits.max_episodes_per_caller,
            max_items=limits.max_items,
            max_message_bytes=limits.max_message_bytes,
            default_lease=limits.default_lease.ToTimedelta().total_seconds(),
            max_lease=limits.max_lease.ToTimedelta().total_seconds(),
            tombstone_lifetime=limits.tombstone_lifetime.ToTimedelta().total_seconds(),
            max_tombstones_per_caller=limits.max_tombstones_per_caller,
        ),
        server_version=reply.server_version,
    )


def _read_model(model: policy_pb2.Model) -> Model:
    training, regret = model.training, model.regret
    return Model(
        name=model.name,
        version=model.version,
        current=model.current,
        loaded_at=model.loaded_at.ToDatetime(datetime.UTC),
        observation=tuple(_read_spec(spec) for spec in model.observation),
        action=_read_spec(model.action),
        contexts={context.name: context.prior for context in model.contexts},
        reward_range=(model.reward_minimum, model.reward_maximum),
        exploration=tuple(
            ExplorationCost(cost.state, cost.action, cost.k_low, cost.k_high)
            for cost in model.exploration
        ),
        training=Training(
            method=_METHODS.get(training.method, ""),
            finished_at=training.finished_at.ToDatetime(datetime.UTC),
            seed=training.seed,
            num_demonstrations=training.num_demonstrations,
            discount=training.discount,
            trainer_version=training.trainer_version,
            settings=dict(training.settings),
        ),
        regret=Regret(
            value=regret.value,
            standard_error=regret.standard_error,
            normalised=regret.normalised if regret.HasField("normalised") else None,
            num_episodes=regret.num_episodes,
        )
        if model.HasField("regret")
        else None,
    )


def _read_spec(spec: policy_pb2.ArraySpec) -> ArraySpec:
    return ArraySpec(
        dtype=DTYPES[spec.dtype],
        shape=tuple(spec.shape),
        name=spec.name,
        minimum=spec.minimum if spec.HasField("minimum") else None,
        maximum=spec.maximum if spec.HasField("maximum") else None,
        value_names=tuple(spec.value_names),
    )
