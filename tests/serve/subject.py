"""A model as Describe tells of it, and observations that it takes."""

from dataclasses import dataclass

import numpy as np
import tiger
from wire import DTYPES, Observation

from bigproto.v1 import policy_pb2 as pb


@dataclass(frozen=True)
class Subject:
    """The model that is tested."""

    model: pb.Model

    @property
    def is_tiger(self) -> bool:
        """Whether this is tiger-treasure, of which the tests know what can follow what."""
        contexts = tuple(context.name for context in self.model.contexts)
        return (
            tuple(self.model.action.value_names) == tiger.ACTIONS
            and contexts == tiger.CONTEXTS
            and len(self.model.observation) == 1
            and self._seen_as() != "something else"
        )

    def first(self) -> Observation:
        """An observation that fits the specs: where tiger-treasure begins, or the least values."""
        if self.is_tiger:
            return self.see("S0")
        return tuple(
            np.full(spec.shape, spec.minimum if spec.HasField("minimum") else 0, DTYPES[spec.dtype])
            for spec in self.model.observation
        )

    def see(self, state: str) -> Observation:
        """A state of tiger-treasure, as the agent sees it."""
        (spec,) = self.model.observation
        if self._seen_as() == "one-hot":
            one_hot = np.eye(len(tiger.STATES), dtype=DTYPES[spec.dtype])
            return (one_hot[tiger.STATES.index(state)],)
        return (np.asarray(list(spec.value_names).index(state), DTYPES[spec.dtype]),)

    def _seen_as(self) -> str:
        (spec,) = self.model.observation
        if list(spec.shape) == [len(tiger.STATES)]:
            return "one-hot"
        if not spec.shape and set(spec.value_names) == set(tiger.STATES):
            return "number"
        return "something else"
