"""Policies written in Python, and the models that a `FakeServer` makes of them."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bigproto.v1 import policy_pb2

from ..arrays import NUMBERS
from ..description import ArraySpec


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a policy makes of a history: a value for each action, a probability for each context."""

    values: Sequence[float]
    belief: Sequence[float] = ()


class ImpossibleObservation(Exception):
    """For a policy to raise: the last observation cannot follow what was before."""


# Gets all observations of the episode so far, each an array, or a mapping of arrays by name.
Policy = Callable[[Sequence[Any]], Decision | int]

SILENCE, HEARD_LEFT, HEARD_RIGHT = range(3)


def hearing(history: Sequence[np.ndarray]) -> Decision:
    """Listens until it is 95 % sure behind which door the tiger is, then opens the other.

    What it hears, numbers of the shape [], is right with probability 0.85.
    """
    heard = [int(observation) for observation in history]
    net = heard.count(HEARD_LEFT) - heard.count(HEARD_RIGHT)
    left = 1 / (1 + (0.15 / 0.85) ** net)
    # A closed door is worth 0, gold 1 and the tiger -19: so 0.95 is where opening begins to pay.
    return Decision([1 - 20 * left, 20 * left - 19, 0.0], [left, 1 - left])


@dataclasses.dataclass(frozen=True)
class FakeModel:
    """A model around a policy. A policy that gives a number gives its action, and no belief."""

    name: str = "hearing"
    policy: Policy = hearing
    observation: tuple[ArraySpec, ...] = (
        ArraySpec(
            np.dtype(np.int32),
            minimum=0,
            maximum=2,
            value_names=("silence", "heard-left", "heard-right"),
        ),
    )
    actions: tuple[str, ...] = ("open-left", "open-right", "listen")
    contexts: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"tiger-left": 0.5, "tiger-right": 0.5}
    )
    # Another text makes another version.
    revision: str = ""

    @property
    def version(self) -> str:
        """A digest, as a bundle would have."""
        parts = (self.name, self.observation, self.actions, dict(self.contexts), self.revision)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def specs(self) -> tuple[Any, ...]:
        """What must be the same for steps in one message."""
        return self.observation, self.actions, tuple(self.contexts)

    def decide(self, history: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, np.ndarray]:
        """Values [action] and the belief [context], after steps of arrays of the model's shapes."""
        if len(self.observation) == 1:
            decision = self.policy([entries[0] for entries in history])
        else:
            names = [spec.name for spec in self.observation]
            decision = self.policy([dict(zip(names, e, strict=True)) for e in history])
        if not isinstance(decision, Decision):
            values = np.zeros(len(self.actions))
            values[decision] = 1.0
            decision = Decision(list(values), list(self.contexts.values()))
        return np.asarray(decision.values, "<f4"), np.asarray(decision.belief, "<f4")

    def describe(self, current: bool) -> policy_pb2.Model:
        """The entry of a reply to Describe."""
        return policy_pb2.Model(
            name=self.name,
            version=self.version,
            current=current,
            observation=[_spec(spec) for spec in self.observation],
            action=_spec(
                ArraySpec(
                    np.dtype(np.int32),
                    minimum=0,
                    maximum=len(self.actions) - 1,
                    value_names=self.actions,
                )
            ),
            contexts=[policy_pb2.Context(name=n, prior=p) for n, p in self.contexts.items()],
        )


def _spec(spec: ArraySpec) -> policy_pb2.ArraySpec:
    return policy_pb2.ArraySpec(
        name=spec.name,
        dtype=NUMBERS[spec.dtype],
        shape=spec.shape,
        minimum=spec.minimum,
        maximum=spec.maximum,
        value_names=spec.value_names,
    )
