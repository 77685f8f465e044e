"""Episodes of a policy in a CMDP, compiled; experts may look at the context."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from bigtrain.finite.policies import PrivilegedPolicy
from bigtrain.policy import Policy
from bigtrain.problem import CMDP, NO_ACTION, State


class Rollout(NamedTuple):
    """One episode: the states met, one more than the actions taken."""

    context: Int[Array, ""]
    states: State
    actions: Int[Array, " step"]


def rollout(
    cmdp: CMDP,
    policy: Policy | PrivilegedPolicy,
    key: PRNGKeyArray,
    *,
    horizon: int,
    context: Int[Array, ""] | None = None,
    first_state: State | None = None,
) -> Rollout:
    """Plays `horizon` steps. Context and first state are drawn unless given."""
    key_context, key_reset, key_steps = jax.random.split(key, 3)
    context = cmdp.sample_context(key_context) if context is None else context
    first = cmdp.reset(key_reset, context) if first_state is None else first_state
    actor = policy.in_context(context) if isinstance(policy, PrivilegedPolicy) else policy

    def advance(carry, key_step):
        state, memory, action = carry
        key_action, key_next = jax.random.split(key_step)
        memory, decision = actor.step(memory, cmdp.observe(state), action)
        action = jax.random.categorical(key_action, jnp.log(decision.probs)).astype(jnp.int32)
        following = cmdp.step(key_next, state, action, context)
        return (following, memory, action), (following, action)

    begin = (first, actor.init(), jnp.asarray(NO_ACTION, jnp.int32))
    _, (later, actions) = jax.lax.scan(advance, begin, jax.random.split(key_steps, horizon))
    states = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)
    return Rollout(context, states, actions)
