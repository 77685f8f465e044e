"""One expert episode."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Int, Shaped

from bigtrain.arrays import ArrayLike
from bigtrain.data.arrays import clean_indices, clean_observations
from bigtrain.errors import DemonstrationError


@final
@dataclass(frozen=True, eq=False, repr=False, init=False)
class Trajectory:
    """One expert episode: T actions and the T + 1 observations around them.

    Integer scalars as observations are state indices of a finite problem. `context` is the θ that
    the expert saw, or None where nobody wrote it down.
    """

    observations: Shaped[np.ndarray, "observation ..."]
    actions: Int[np.ndarray, " step"]
    context: int | None

    def __init__(self, observations: ArrayLike, actions: ArrayLike, context: int | None = None):
        seen = clean_observations(observations, "step {}".format)
        done = clean_indices("actions", actions, "step {}".format)
        if len(done) == 0:
            raise DemonstrationError("A trajectory must have at least one action, got none.")
        if len(seen) != len(done) + 1:
            raise DemonstrationError(
                "A trajectory must have one observation more than actions, the last one being "
                f"what the last action led to, got {len(seen)} observations and "
                f"{len(done)} actions."
            )
        if context is not None:
            context = int(clean_indices("context", np.atleast_1d(context), lambda _: "it")[0])
        object.__setattr__(self, "observations", seen)
        object.__setattr__(self, "actions", done)
        object.__setattr__(self, "context", context)

    def __len__(self) -> int:
        """The number of actions."""
        return len(self.actions)

    def __repr__(self) -> str:
        context = "unknown" if self.context is None else self.context
        shape, dtype = self.observations.shape[1:], self.observations.dtype
        return f"Trajectory({len(self)} steps, observations {shape} {dtype}, context {context})"
