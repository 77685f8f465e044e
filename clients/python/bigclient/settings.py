"""What a user can choose: how to connect, how long to try, how actions are drawn, what to tell."""

import dataclasses
from typing import Literal

from bigproto.v1 import policy_pb2

from .errors import ConfigError

Detail = Literal["values", "belief", "entropy"]


@dataclasses.dataclass(frozen=True)
class TLS:
    """An encrypted connection. Every part is PEM, as bytes; without `roots`, gRPC's own hold.

    `certificate` and `key`, always together, say who the client is, where the server asks.
    `server_name` is the name in the server's certificate, where the address has another.
    """

    roots: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = dataclasses.field(default=None, repr=False)
    server_name: str | None = None

    def __post_init__(self):
        if (self.certificate is None) != (self.key is None):
            given, absent = ("key", "certificate") if self.key else ("certificate", "key")
            raise ConfigError(
                f"`certificate` and `key` must be given together, got `{given}` alone: give "
                f"`{absent}` as well."
            )


@dataclasses.dataclass(frozen=True)
class Retry:
    """When to try again, and when to give up.

    The waits between attempts grow from `first_wait` to `longest_wait`, doubling, each cut at
    random by up to a half so that clients do not come back in step. A server that says how long
    to wait is waited for as long at the least.
    """

    # Seconds that an operation may take in all, with every attempt and every wait.
    budget: float = 30.0

    # The most attempts; 1 never tries again. None: as many as the budget allows.
    attempts: int | None = None

    first_wait: float = 0.05
    longest_wait: float = 2.0

    def __post_init__(self):
        if not self.budget > 0:
            raise ConfigError(f"`budget` must be above 0 seconds, got {self.budget}.")
        if self.attempts is not None and self.attempts < 1:
            raise ConfigError(f"`attempts` must be at least 1, or None, got {self.attempts}.")
        if not 0 < self.first_wait <= self.longest_wait:
            raise ConfigError(
                "`first_wait` must be above 0 seconds and at most `longest_wait`, got "
                f"{self.first_wait} and {self.longest_wait}."
            )


@dataclasses.dataclass(frozen=True)
class Greedy:
    """The action of highest value, the first of them on a tie."""

    def to_wire(self) -> policy_pb2.ActionRule:
        """The rule as a message."""
        return policy_pb2.ActionRule(greedy=policy_pb2.ActionRule.Greedy())


@dataclasses.dataclass(frozen=True)
class EpsilonGreedy:
    """The same, but with probability `epsilon` an action drawn uniformly."""

    epsilon: float

    def __post_init__(self):
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(f"`epsilon` must be in [0, 1], got {self.epsilon}.")

    def to_wire(self) -> policy_pb2.ActionRule:
        """The rule as a message."""
        rule = policy_pb2.ActionRule.EpsilonGreedy(epsilon=self.epsilon)
        return policy_pb2.ActionRule(epsilon_greedy=rule)


@dataclasses.dataclass(frozen=True)
class Softmax:
    """An action drawn with probability proportional to exp(value / temperature)."""

    temperature: float

    def __post_init__(self):
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(
                f"`temperature` must be above 0 and finite, got {self.temperature}; for the action "
                "of highest value take `Greedy()`."
            )

    def to_wire(self) -> policy_pb2.ActionRule:
        """The rule as a message."""
        rule = policy_pb2.ActionRule.Softmax(temperature=self.temperature)
        return policy_pb2.ActionRule(softmax=rule)


Rule = Greedy | EpsilonGreedy | Softmax
