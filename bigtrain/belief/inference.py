"""Inference models: from what is seen and done to p(θ | history), a step at a time (section 4.4).

    memory_t, info_t = update(memory_{t−1}, encode(o_t), a_{t−1}),     p(θ | h_t) = belief(memory_t)

One model serves all: it infers which context each expert was in, tells the learners' actors what to
believe while they explore, and goes into the policy that robots are served.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.belief.beliefs import Belief, Categorical
from bigtrain.errors import DemonstrationError
from bigtrain.problem import Simulator, State, Trajectories


class BeliefInfo(NamedTuple):
    """What the last step said: its log-probability before it came, and whether it could come.

    The first is NaN where a model cannot tell.
    """

    log_evidence: Float[Array, ""]
    impossible: Bool[Array, ""]


UNKNOWN = BeliefInfo(np.float32(np.nan), np.asarray(False))  # type: ignore[arg-type]
"""What a model says that cannot tell how likely a step was."""


class InferenceModel(eqx.Module):
    """Keeps the belief of an episode up to date.

    What of an update depends on the observation alone may be put into `encode`, which is then
    computed once for each state of a finite problem; as it stands, that is nothing.
    """

    @abc.abstractmethod
    def init(self) -> Any:
        """The memory before the first observation."""

    def encode(self, observation: Shaped[Array, "..."]) -> Any:
        """What `update` takes of an observation."""
        return observation

    def state_encoder(self, simulator: Simulator, num_uses: int) -> Callable[[State], Any]:
        """`encode` of what a simulator's states look like, for about so many of them."""
        return simulator.encoder(self.encode, num_uses)

    @abc.abstractmethod
    def update(
        self, memory: Any, code: Any, previous_action: Int[Array, ""]
    ) -> tuple[Any, BeliefInfo]:
        """The memory after an encoded observation, and what it said.

        `previous_action` is `NO_ACTION` at an episode's first observation. One that no context
        explains leaves the belief as it was, and says so; what to do about it is the caller's
        choice.
        """

    @abc.abstractmethod
    def belief(self, memory: Any) -> Belief:
        """What is believed."""

    def loss(
        self, simulator: Simulator, trajectories: Trajectories, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """What training makes small: 0 where there is nothing to learn, or −log q(θ | h)."""
        return jnp.zeros(())

    @property
    def learns(self) -> bool:
        """Whether `loss` has something to say."""
        return type(self).loss is not InferenceModel.loss

    def unroll(self, simulator: Simulator, trajectories: Trajectories) -> tuple[Any, BeliefInfo]:
        """The memories after every observation of rows of trajectories, and what each said.

        Padding, outside the mask, changes nothing and says nothing.
        """
        encode = self.state_encoder(simulator, trajectories.actions.size)

        def advance(memory, step):
            state, previous, first, real = step
            before = jax.tree.map(lambda new, old: jnp.where(first, new, old), self.init(), memory)
            after, info = self.update(before, encode(state), previous)
            # Rows of different lengths are padded at the end.
            after = jax.tree.map(lambda new, old: jnp.where(real, new, old), after, memory)
            log_evidence = jnp.where(real, info.log_evidence, 0)
            return after, (after, BeliefInfo(log_evidence, info.impossible & real))

        def row(*steps):
            return jax.lax.scan(advance, self.init(), steps)[1]

        previous = trajectories.previous_actions
        return jax.vmap(row)(trajectories.states, previous, trajectories.first, trajectories.mask)

    def infer_contexts(
        self, simulator: Simulator, trajectories: Trajectories
    ) -> Float[np.ndarray, "row context"]:
        """log p(θ | all of a row), for rows of one episode each, such as demonstrations."""
        beliefs, impossible = _last_beliefs(self, simulator, trajectories)
        wrong = np.argwhere(np.asarray(impossible))
        if len(wrong):
            raise DemonstrationError(
                "Demonstrations must be possible in some context, but no context explains step "
                f"{wrong[0][1] - 1} of trajectory {wrong[0][0]} after the steps before it."
            )
        return np.asarray(beliefs, np.float64)  # normalised, which is as good up to a constant


@eqx.filter_jit
def _last_beliefs(
    model: InferenceModel, simulator: Simulator, trajectories: Trajectories
) -> tuple[Float[Array, "row context"], Bool[Array, "row time"]]:
    memories, info = model.unroll(simulator, trajectories)
    last = jax.vmap(model.belief)(jax.tree.map(lambda leaf: leaf[:, -1], memories))
    assert isinstance(last, Categorical)
    return last.log_probs, info.impossible
