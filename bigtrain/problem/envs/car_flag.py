"""A car on a line: heaven is at one end, hell at the other, and a flag shows which.

    v' = clip(v + .02 u, ±.07),   x' = x + v',   u ∈ {−1, 0, 1}

The task is over at |x| ≥ 1. Which end is heaven is shown where |x − .5| < .1, and nowhere else:
half of the time that is out of the way (Nguyen et al., Belief-grounded networks).
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bigtrain.problem.cmdp import CMDP
from bigtrain.problem.spaces import Discrete
from bigtrain.problem.task import SimulatedTask

X, V, FLAG, HEAVEN, HELL = range(5)
PUSH, TOP_SPEED = 0.02, 0.07
FLAG_AT, FLAG_WIDTH = 0.5, 0.1
START = 0.2

Seen = Float[Array, "5"]
"""Place, speed, the flag (−1 or 1 where it shows the side of heaven, else 0), heaven, hell."""


@final
class CarFlag(CMDP):
    """Drive to heaven, which is left or right, as a flag on the right shows.

    A `blind` one does not tell the probability of what is seen: beliefs must be learned.
    """

    context_prior: Float[np.ndarray | Array, " context"]
    gamma: float = eqx.field(static=True)
    blind: bool = eqx.field(static=True)

    def __init__(self, *, blind: bool = False):
        self.context_prior, self.gamma, self.blind = np.full(2, 0.5), 0.99, blind

    @property
    def num_actions(self) -> int:
        return 3

    @property
    def actions(self) -> Discrete:
        return Discrete(["left", "coast", "right"])

    @property
    def context_names(self) -> tuple[str, ...]:
        return "heaven-left", "heaven-right"

    @property
    def task(self) -> SimulatedTask:
        return SimulatedTask(
            reward=lambda seen, action: self.features(seen, action) @ jnp.array([-1.0, 1.0, -1.0]),
            reward_range=(-1.0, 1.0),
            expert=lambda seen, context: jnp.where(
                seen[HEAVEN] + seen[HELL] > 0, True, jnp.arange(3) == 2 * context
            ),
            goal_states=lambda seen: seen[HEAVEN] > 0,
            failure_states=lambda seen: seen[HELL] > 0,
        )

    def reset(self, key: PRNGKeyArray, context: Int[Array, ""]) -> Seen:
        return jnp.zeros(5).at[X].set(jax.random.uniform(key, (), jnp.float32, -START, START))

    def step(
        self, key: PRNGKeyArray, state: Seen, action: Int[Array, ""], context: Int[Array, ""]
    ) -> Seen:
        side = 2 * context - 1
        speed = jnp.clip(state[V] + PUSH * (action - 1), -TOP_SPEED, TOP_SPEED)
        place = jnp.clip(state[X] + speed, -1, 1)
        ends = jnp.abs(place) >= 1
        right = ends & (jnp.sign(place) == side)
        flag = jnp.where(jnp.abs(place - FLAG_AT) < FLAG_WIDTH, side, 0)
        there = jnp.where(ends, 0, jnp.stack([place, speed]))  # over is over, wherever it was
        after = jnp.stack([*there, flag, right, ends & ~right])
        return jnp.where(self.is_absorbing(state), state, after.astype(jnp.float32))

    def transition_log_prob(
        self, state: Seen, action: Int[Array, ""], next_state: Seen, context: Int[Array, ""]
    ) -> Float[Array, ""]:
        if self.blind:
            return super().transition_log_prob(state, action, next_state, context)
        expected = self.step(jax.random.key(0), state, action, context)
        return jnp.where(jnp.allclose(expected, next_state, atol=1e-5), 0.0, -jnp.inf)

    def observe(self, state: Seen) -> Seen:
        return state

    def features(self, state: Seen, action: Int[Array, ""]) -> Float[Array, "3"]:
        """Driving where no flag is seen, being in heaven, being in hell."""
        drives = (state[HEAVEN] + state[HELL] == 0) & (state[FLAG] == 0)
        return jnp.stack([drives.astype(jnp.float32), state[HEAVEN], state[HELL]])

    def is_absorbing(self, state: Seen) -> Bool[Array, ""]:
        return state[HEAVEN] + state[HELL] > 0


def car_flag(*, blind: bool = False) -> CarFlag:
    """A car that must look at a flag on the right to know at which end heaven is."""
    return CarFlag(blind=blind)
