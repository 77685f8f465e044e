"""What happened: the one container of experience, and who makes it.

Episodes lie end to end. A *moment* is a state and the action chosen in it; the last moment of a
row is there to look ahead to, so a row of T steps has T + 1 moments.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

NO_ACTION = -1
"""The previous action of an episode's first step."""

State = PyTree
"""What a simulator records of a moment: any pytree.

A simulator written in JAX records its state, a finite problem the number of its state, and a
simulator on the host what is seen.
"""


class Trajectories(NamedTuple):
    """Rows of moments.

    `first` says where an episode begins. `contexts` are what the simulator tells, -1 where it does
    not; learners of beliefs read them, policies never do. `notes` are the actor's own, as a rule
    its log-belief at each moment. Moments outside `mask` are padding.
    """

    states: State
    actions: Int[np.ndarray | Array, "*row moment"]
    first: Bool[np.ndarray | Array, "*row moment"]
    contexts: Int[np.ndarray | Array, "*row moment"]
    mask: Bool[np.ndarray | Array, "*row moment"]
    notes: Any = None

    @property
    def previous_actions(self) -> Int[Array, "*row moment"]:
        """The action before each moment, `NO_ACTION` where an episode begins."""
        return jnp.where(self.first, NO_ACTION, jnp.roll(self.actions, 1, axis=-1))


class Actor(eqx.Module):
    """Who acts in a simulator: a pure function of a moment, batched and compiled by whoever asks.

    All chance that it needs comes in as `num_draws` uniform numbers a moment, so that they can be
    drawn at once: inside a loop they would cost more than most actors do.
    """

    num_draws: ClassVar[int]

    @abc.abstractmethod
    def init(self, env: Int[Array, ""], context: Int[Array, ""]) -> Any:
        """The memory before an episode's first moment, in the environment numbered `env`.

        Only an expert looks at the context.
        """

    @abc.abstractmethod
    def act(
        self,
        memory: Any,
        state: State,
        previous_action: Int[Array, ""],
        draws: Float[Array, " draw"],
    ) -> tuple[Any, Int[Array, ""], Any]:
        """The memory afterwards, the action, and what to note."""


class UniformActor(Actor):
    """Any action, each as likely as any other."""

    num_draws: ClassVar[int] = 1
    num_actions: int = eqx.field(static=True)

    def init(self, env: Int[Array, ""], context: Int[Array, ""]) -> tuple[()]:
        return ()

    def act(
        self,
        memory: tuple[()],
        state: State,
        previous_action: Int[Array, ""],
        draws: Float[Array, " draw"],
    ) -> tuple[tuple[()], Int[Array, ""], None]:
        return (), jnp.floor(draws[0] * self.num_actions).astype(jnp.int32), None


class MixedActor(Actor):
    """Each environment with its own mix of actions."""

    num_draws: ClassVar[int] = 1
    mixes: Float[Array, "env action"]

    def init(self, env: Int[Array, ""], context: Int[Array, ""]) -> Float[Array, " action"]:
        return self.mixes[env]

    def act(
        self,
        memory: Float[Array, " action"],
        state: State,
        previous_action: Int[Array, ""],
        draws: Float[Array, "1"],
    ) -> tuple[Float[Array, " action"], Int[Array, ""], None]:
        return memory, draw_index(memory, draws[0]), None


_CONCENTRATION = 0.3
"""Of the mixes of actions: small, so that most have one or two favourites."""


def draw_mixes(key: PRNGKeyArray, num_actions: int, count: int) -> Float[Array, "mix action"]:
    """Probabilities of actions, for `MixedActor`: some do one thing for long, as few would by
    chance if every action were as likely as any other."""
    return jax.random.dirichlet(key, jnp.full(num_actions, _CONCENTRATION), (count,))


def draw_index(probs: Float[Array, " outcome"], draw: Float[Array, ""]) -> Int[Array, ""]:
    """An outcome by one uniform number: the first whose cumulative probability exceeds it."""
    cumulative = jnp.cumsum(probs)
    return jnp.argmax(draw * cumulative[-1] < cumulative).astype(jnp.int32)


def explore(
    action: Int[Array, ""],
    num_actions: int,
    epsilon: Float[Array, ""] | float,
    draw: Float[Array, ""],
) -> Int[Array, ""]:
    """ε-greedy by one uniform number, which below ε also tells which action it is."""
    anything = jnp.floor(draw / jnp.maximum(epsilon, 1e-9) * num_actions)
    return jnp.where(draw < epsilon, anything, action).astype(jnp.int32)


def flatten(rows: Any) -> Any:
    """[row, moment, ...] as [row · moment, ...], in every array."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), rows
    )
