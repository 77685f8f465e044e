"""Simulators on the host, which JAX cannot trace: Python in a loop, with a compiled actor.

What is recorded of a moment is what is seen. Environments step one by one in this process; what
plays them decides for all of them at once.
"""

from collections.abc import Callable
from typing import Any, Protocol, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.errors import SimulatorError
from bigtrain.problem.simulator import Simulator
from bigtrain.problem.spaces import ActionSpace, Contexts
from bigtrain.problem.trajectories import NO_ACTION, Actor, State, Trajectories


class Environment(Protocol):
    """One environment as the host has it. `seed` decides all chance of the episode that begins."""

    def reset(self, context: int, seed: int) -> Shaped[np.ndarray, "..."]:
        """Begins an episode in this context; what is seen."""
        ...

    def step(self, action: Any) -> Shaped[np.ndarray, "..."]:
        """What is seen after an action."""
        ...


@final
class HostSimulator(Simulator):
    """Environments that `make` makes, and what learners must know of what is seen in them.

    `features(observation, action)` and `is_absorbing(observation)` are written with `jax.numpy`;
    the environments may be anything. The likelihood is not known, so beliefs are learned, unless an
    inference model is given.
    """

    context_prior: Float[np.ndarray | Array, " context"]
    gamma: float = eqx.field(static=True)
    _make: Callable[[], Environment] = eqx.field(static=True)
    _features: Callable[[Array, Array], Array] = eqx.field(static=True)
    _is_absorbing: Callable[[Shaped[Array, "..."]], Bool[Array, ""]] | None = eqx.field(static=True)
    _actions: ActionSpace
    _context_names: tuple[str, ...] = eqx.field(static=True)
    _shape: tuple[int, ...] = eqx.field(static=True)
    _dtype: np.dtype = eqx.field(static=True)

    def __init__(
        self,
        make: Callable[[], Environment],
        *,
        observation: jax.ShapeDtypeStruct,
        actions: ActionSpace,
        contexts: Contexts,
        gamma: float,
        features: Callable[[Shaped[Array, "..."], Int[Array, ""]], Float[Array, " feature"]],
        is_absorbing: Callable[[Shaped[Array, "..."]], Bool[Array, ""]] | None = None,
    ):
        if not 0 <= gamma < 1:
            raise SimulatorError(f"`gamma` must be at least 0 and below 1, got {gamma}.")
        self._make, self._features, self._is_absorbing = make, features, is_absorbing
        self._actions, self.gamma = actions, float(gamma)
        self.context_prior, self._context_names = contexts.prior, contexts.names
        self._shape = tuple(observation.shape)
        self._dtype = np.dtype(jax.dtypes.canonicalize_dtype(observation.dtype))

    @property
    def num_actions(self) -> int:
        return self._actions.size

    @property
    def actions(self) -> ActionSpace:
        return self._actions

    @property
    def context_names(self) -> tuple[str, ...]:
        return self._context_names

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self._shape, self._dtype)

    def observe(self, state: State) -> Shaped[Array, "..."]:
        return state

    def features(self, state: State, action: Int[Array, ""]) -> Float[Array, " feature"]:
        return self._features(state, action)

    def is_absorbing(self, state: State) -> Bool[Array, ""]:
        return jnp.asarray(False) if self._is_absorbing is None else self._is_absorbing(state)

    def collect(
        self,
        actor: Actor,
        key: PRNGKeyArray,
        *,
        num_envs: int,
        horizon: int,
        restart: bool,
        contexts: Int[Array, " env"] | None = None,
    ) -> Trajectories:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
        environments = [self._make() for _ in range(num_envs)]
        draws = rng.random((horizon + 1, num_envs, actor.num_draws), np.float32)
        draws = np.minimum(draws, np.float32(1 - 2**-24))
        seen = np.zeros((num_envs, *self._shape), self._dtype)
        prior, first = np.asarray(self.context_prior), np.ones(num_envs, bool)
        drawn = np.zeros(num_envs, np.int32)
        previous, memory, moments = np.full(num_envs, NO_ACTION, np.int32), None, []
        for moment in range(horizon + 1):
            for env in np.flatnonzero(first):
                drawn[env] = rng.choice(len(prior), p=prior) if contexts is None else contexts[env]
                seed = int(rng.integers(2**31))
                seen[env] = self._check(environments[env].reset(int(drawn[env]), seed))
            previous[first] = NO_ACTION
            memory, actions, notes, rests = _act(
                self, actor, memory, seen, previous, first, drawn, draws[moment]
            )
            actions, rests = np.asarray(actions), np.asarray(rests)
            moments.append((seen.copy(), actions, first, drawn.copy(), notes))
            for env in np.flatnonzero(~rests) if moment < horizon else ():
                action = self._actions.action(int(actions[env]))
                seen[env] = self._check(environments[env].step(action))
            previous, first = actions.copy(), rests & restart
        states, actions, first, told, notes = jax.tree.map(
            lambda *parts: jnp.stack(parts, axis=1), *moments
        )
        mask = jnp.ones(first.shape, bool)
        return Trajectories(states, actions, first, told, mask, notes)

    def _check(self, seen: Any) -> np.ndarray:
        """What an environment shows, as it was said to be."""
        values = np.asarray(seen)
        if values.shape != self._shape or not np.can_cast(values.dtype, self._dtype, "same_kind"):
            raise SimulatorError(
                f"An observation must be {self._dtype} of the shape {self._shape}, as "
                f"`observation` says, got {values.dtype} of the shape {values.shape}."
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise SimulatorError("An observation must be finite, but the environment showed NaN.")
        return values


@eqx.filter_jit
def _act(
    simulator: HostSimulator,
    actor: Actor,
    memory: Any,
    seen: Shaped[np.ndarray | Array, "env ..."],
    previous: Int[np.ndarray | Array, " env"],
    first: Bool[np.ndarray | Array, " env"],
    contexts: Int[np.ndarray | Array, " env"],
    draws: Float[np.ndarray | Array, "env draw"],
) -> tuple[Any, Int[Array, " env"], Any, Bool[Array, " env"]]:
    """A moment of all environments: memories, actions, notes, and which of them rest for ever."""

    def one(env, memory, seen, previous, first, context, draw):
        begun = actor.init(env, context)
        if memory is not None:
            begun = jax.tree.map(lambda new, old: jnp.where(first, new, old), begun, memory)
        memory, action, notes = actor.act(begun, seen, previous, draw)
        return memory, action, notes, simulator.is_absorbing(seen)

    given = (jnp.arange(len(seen)), memory, seen, previous, first, contexts, draws)
    return jax.vmap(one)(*given)
