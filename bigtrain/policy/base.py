"""What every policy offers: (memory, o_t, a_{t−1}) ↦ memory', π(· | h_t), Q(h_t, ·), p(θ | h_t).

A policy is a pytree and its step a pure function, so that what holds for one episode holds for a
batch, a file and a server. `previous_action` is ignored on the first step of an episode.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int, Shaped

from bigtrain.belief import Belief


class Decision(NamedTuple):
    """What a policy does at one time: π(a | h), Q(h, a) and p(θ | h).

    `values` are NaN where a policy knows none. `surprised` says that no context explains the
    observation; the belief is then the last one.
    """

    probs: Float[Array, " action"]
    values: Float[Array, " action"]
    belief: Belief
    surprised: Bool[Array, ""]


class Policy(eqx.Module):
    """How to act on what has been seen so far."""

    @abc.abstractmethod
    def init(self) -> Any:
        """The state of an episode before its first observation."""

    @abc.abstractmethod
    def step(
        self, state: Any, observation: Shaped[Array, "..."], previous_action: Int[Array, ""]
    ) -> tuple[Any, Decision]:
        """Takes in an observation and decides."""
