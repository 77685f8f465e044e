"""p(θ | history): the exact filter over contexts, in log space (section 4.4).

A history that no context explains leaves the belief as it was and says so in `BeliefInfo`; what to
do about it is the caller's choice.
"""

import abc
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bigtrain.problem import CMDP, State


class Belief(NamedTuple):
    """log p(θ | history), normalised."""

    log_probs: Float[Array, "*batch context"]

    @property
    def probs(self) -> Float[Array, "*batch context"]:
        return jnp.exp(self.log_probs)

    @property
    def entropy(self) -> Float[Array, "*batch"]:
        """In nats."""
        return -jnp.where(self.probs > 0, self.probs * self.log_probs, 0).sum(-1)


class BeliefInfo(NamedTuple):
    """What the last step said: its log-probability before it came, and whether it could come."""

    log_evidence: Float[Array, ""]
    impossible: Bool[Array, ""]


class Filter(eqx.Module):
    """Turns a history into a belief, a step at a time. Learned posteriors fit in here too."""

    @abc.abstractmethod
    def init(self) -> Any:
        """The belief before the first step."""

    @abc.abstractmethod
    def update(
        self, belief: Any, state: State, action: Int[Array, ""], next_state: State
    ) -> tuple[Any, BeliefInfo]:
        """The belief after (s, a, s')."""


@final
class ExactFilter(Filter):
    """Bayes' rule with the known dynamics of a CMDP."""

    cmdp: CMDP

    def init(self) -> Belief:
        return Belief(jnp.log(jnp.asarray(self.cmdp.context_prior)))

    def update(
        self, belief: Belief, state: State, action: Int[Array, ""], next_state: State
    ) -> tuple[Belief, BeliefInfo]:
        joint = belief.log_probs + self.cmdp.context_log_likelihood(state, action, next_state)
        log_evidence = jax.nn.logsumexp(joint)
        impossible = jnp.isneginf(log_evidence)
        after = jnp.where(impossible, belief.log_probs, joint - log_evidence)
        return Belief(after), BeliefInfo(log_evidence, impossible)


def filter_trajectory(
    filter: Filter,
    states: State,
    actions: Int[Array, " step"],
    mask: Bool[Array, " step"] | None = None,
) -> tuple[Any, BeliefInfo]:
    """The beliefs before every step and after the last, and what each step said.

    `states` has one entry more than `actions`. Steps outside `mask` (padding) change nothing.
    """
    mask = jnp.ones(actions.shape, bool) if mask is None else mask

    def advance(belief, step):
        state, action, next_state, real = step
        after, info = filter.update(belief, state, action, next_state)
        after = jax.tree.map(lambda new, old: jnp.where(real, new, old), after, belief)
        info = BeliefInfo(jnp.where(real, info.log_evidence, 0), info.impossible & real)
        return after, (after, info)

    first = filter.init()
    before = jax.tree.map(lambda leaf: leaf[:-1], states)
    after = jax.tree.map(lambda leaf: leaf[1:], states)
    _, (beliefs, infos) = jax.lax.scan(advance, first, (before, actions, after, mask))
    beliefs = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, beliefs)
    return beliefs, infos
