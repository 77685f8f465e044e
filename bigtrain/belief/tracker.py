"""From observations to a belief over contexts, an episode at a time."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Bool, Int, Shaped

from bigtrain.belief.filter import Belief


class BeliefTracker(eqx.Module):
    """Keeps the belief of an episode up to date with what is seen and done."""

    @abc.abstractmethod
    def init(self) -> Any:
        """What is remembered before the first observation."""

    @abc.abstractmethod
    def update(
        self, memory: Any, observation: Shaped[Array, "..."], previous_action: Int[Array, ""]
    ) -> tuple[Any, Belief, Bool[Array, ""]]:
        """Memory and belief after an observation, and whether no context explains it.

        `previous_action` is ignored on the first update.
        """
