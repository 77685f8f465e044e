"""The privileged expert: sees the context, plans in it, and shows the task (section 3).

    π*(a | s, θ) = (1 − ε) [a ∈ A*(s, θ)] / |A*(s, θ)| + ε / A,      A* = argmax_a Q*(s, a, θ)

What bites: ties are broken uniformly (design, point 3). An expert that always took the first of
equal actions in an absorbing state would show, 48 steps out of 50, a preference that it does not
have, and any error of a learned Ψ there outweighs the one step that tells something.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bigtrain.arrays import ArrayLike
from bigtrain.data import Demonstrations
from bigtrain.errors import ConfigError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact import planning
from bigtrain.finite.policies import PrivilegedPolicy
from bigtrain.problem import Trajectories


def plan_expert(
    cmdp: TabularCMDP, reward: ArrayLike, *, error_rate: float = 0.0
) -> PrivilegedPolicy:
    """The optimal plan of every context; among equally good actions, any with equal chance.

    `reward` is [state] or [state, action]. With the probability `error_rate` an action is any at
    all.
    """
    if not 0 <= error_rate <= 1:
        raise ConfigError(f"`error_rate` must be from 0 to 1, got {error_rate}.")
    plan = planning.plan(cmdp, reward).policy
    return PrivilegedPolicy(cmdp, (1 - error_rate) * plan + error_rate / cmdp.num_actions)


def anywhere(cmdp: TabularCMDP) -> Float[np.ndarray, " state"]:
    """First states, for `initial`: any but the task's exploration, goal and failure states.

    Where it takes certain actions to explore, one may be in an exploration state and not do so.
    """
    weights = np.ones(cmdp.num_states)
    if cmdp.task is not None:
        task = cmdp.task
        exploring = task.exploration_states if task.exploration_actions is None else ()
        weights[[*exploring, *task.goal_states, *task.failure_states]] = 0
    return weights


def demonstrate(
    cmdp: TabularCMDP,
    reward: ArrayLike,
    *,
    episodes: int,
    horizon: int,
    seed: int = 0,
    contexts: Sequence[int] | np.ndarray | None = None,
    initial: ArrayLike | None = None,
    error_rate: float = 0.0,
    reveal_contexts: bool = False,
) -> Demonstrations:
    """Episodes of the privileged expert, as state indices.

    `reward` is [state] or [state, action]. Contexts [episode] are drawn from the prior unless
    given, and kept out of the result unless `reveal_contexts`. `initial` [state] replaces the
    problem's distribution of first states. With the probability `error_rate` the expert takes any
    action at all.
    """
    for name, value in (("episodes", episodes), ("horizon", horizon)):
        if value < 1:
            raise ConfigError(f"`{name}` must be at least 1, got {value}.")
    key_contexts, key_first, key_episodes = jax.random.split(jax.random.key(seed), 3)
    if contexts is None:
        chosen = jax.vmap(cmdp.sample_context)(jax.random.split(key_contexts, episodes))
    else:
        chosen = _check_contexts(contexts, episodes, cmdp.num_contexts)
    start = cmdp.initial if initial is None else _check_initial(initial, cmdp.num_states)
    # log 0 = −∞ is a state that is never drawn.
    first = jax.random.categorical(key_first, jnp.log(jnp.asarray(start)), shape=(episodes,))
    expert = plan_expert(cmdp, reward, error_rate=error_rate)
    played = _play(
        cmdp, expert, key_episodes, jnp.asarray(chosen), first.astype(jnp.int32), horizon
    )
    return Demonstrations(
        observations=np.asarray(played.states).ravel(),
        actions=np.asarray(played.actions)[:, :-1].ravel(),
        lengths=np.full(episodes, horizon),
        contexts=np.asarray(chosen) if reveal_contexts else None,
    )


@eqx.filter_jit
def _play(
    cmdp: TabularCMDP,
    expert: PrivilegedPolicy,
    key: PRNGKeyArray,
    contexts: Int[Array, " episode"],
    first_states: Int[Array, " episode"],
    horizon: int,
) -> Trajectories:
    return cmdp.collect(
        expert,
        key,
        num_envs=len(contexts),
        horizon=horizon,
        restart=False,
        contexts=contexts,
        first_states=first_states,
    )


def _check_contexts(
    contexts: Sequence[int] | np.ndarray, episodes: int, num_contexts: int
) -> Int[np.ndarray, " episode"]:
    values = np.asarray(contexts)
    if values.shape != (episodes,) or not np.issubdtype(values.dtype, np.integer):
        raise ConfigError(
            f"`contexts` must be {episodes} integers, one an episode, "
            f"got {values.dtype} of the shape {values.shape}."
        )
    if values.min() < 0 or values.max() >= num_contexts:
        raise ConfigError(
            f"`contexts` must be from 0 to {num_contexts - 1}, "
            f"got {values.min()} to {values.max()}."
        )
    return values.astype(np.int32)


def _check_initial(initial: ArrayLike, num_states: int) -> Float[np.ndarray, " state"]:
    values = np.asarray(initial, np.float64)
    if values.shape != (num_states,) or not (values >= 0).all() or not 0 < values.sum() < np.inf:
        raise ConfigError(
            f"`initial` must be {num_states} weights, none negative and not all zero, "
            f"got the shape {values.shape}."
        )
    return values / values.sum()
