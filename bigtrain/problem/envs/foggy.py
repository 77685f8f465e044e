"""Two doors in fog: listening gives a number, whose mean tells which one hides the tiger.

    s' | S0 or heard, listen, θ  ~  heard, with a number from N(−1, 1) where the tiger is left
                                    and from N(+1, 1) where it is right

It is tiger-treasure with evidence that is a number. A door leads to gold or to the tiger, and both
to where nothing happens any more.
"""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bigtrain.problem.cmdp import CMDP
from bigtrain.problem.spaces import Discrete
from bigtrain.problem.task import SimulatedTask

S0, HEARD, GOLD, TIGER, OVER = range(5)
LEFT, RIGHT, LISTEN = range(3)
NUMBER = 5
"""Where in an observation the number stands that was heard."""

Seen = Float[Array, "6"]
"""One-hot of where one is, and the number that was heard, 0 where none was."""


@final
class Foggy(CMDP):
    """Find out behind which door the tiger is, from numbers that fog makes uncertain.

    A `blind` one does not tell the probability of what is heard: beliefs must be learned.
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
        return Discrete(["open-left", "open-right", "listen"])

    @property
    def context_names(self) -> tuple[str, ...]:
        return "tiger-left", "tiger-right"

    @property
    def task(self) -> SimulatedTask:
        return SimulatedTask(
            reward=lambda seen, action: jnp.asarray([0.0, 0.0, 10.0, -100.0, 0.0]) @ seen[:NUMBER],
            reward_range=(-100.0, 10.0),
            expert=lambda seen, context: jnp.where(
                (seen[S0] + seen[HEARD]) > 0, jnp.arange(3) == 1 - context, True
            ),
            exploration_states=lambda seen: seen[HEARD] > 0,
            goal_states=lambda seen: seen[GOLD] > 0,
            failure_states=lambda seen: seen[TIGER] > 0,
        )

    def reset(self, key: PRNGKeyArray, context: Int[Array, ""]) -> Seen:
        return _seen(jnp.asarray(S0))

    def step(
        self, key: PRNGKeyArray, state: Seen, action: Int[Array, ""], context: Int[Array, ""]
    ) -> Seen:
        chooses = (state[S0] + state[HEARD]) > 0
        opened = jnp.where(action == context, TIGER, GOLD)
        kind = jnp.where(chooses, jnp.where(action == LISTEN, HEARD, opened), OVER)
        number = jnp.where(kind == HEARD, 2 * context - 1 + jax.random.normal(key), 0)
        return _seen(kind, number)

    def transition_log_prob(
        self, state: Seen, action: Int[Array, ""], next_state: Seen, context: Int[Array, ""]
    ) -> Float[Array, ""]:
        if self.blind:
            return super().transition_log_prob(state, action, next_state, context)
        listens = ((state[S0] + state[HEARD]) > 0) & (action == LISTEN)
        density = jax.scipy.stats.norm.logpdf(next_state[NUMBER], 2 * context - 1)
        without = self.step(jax.random.key(0), state, action, context)
        followed = jnp.where((without[:NUMBER] == next_state[:NUMBER]).all(), 0.0, -jnp.inf)
        return jnp.where(listens, density, 0.0) + followed

    def observe(self, state: Seen) -> Seen:
        return state

    def features(self, state: Seen, action: Int[Array, ""]) -> Float[Array, "5"]:
        return state[:NUMBER]

    def is_absorbing(self, state: Seen) -> Bool[Array, ""]:
        return state[OVER] > 0


def _seen(kind: Int[Array, ""], number: Any = 0.0) -> Seen:
    return jnp.append(jax.nn.one_hot(kind, NUMBER), number)


def foggy(*, blind: bool = False) -> Foggy:
    """Two doors in fog: listening gives a number whose mean tells where the tiger is."""
    return Foggy(blind=blind)
