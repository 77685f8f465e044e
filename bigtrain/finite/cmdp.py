"""Finite problems: contextual MDPs written as arrays (eq. (1)).

    M(θ) = ⟨S, A, p(s' | s, a, θ), p(s_0), r(s, a), γ⟩,        θ ~ p(θ) once an episode

Arrays are float64 NumPy until `jit` carries them, and float32 after: solve first, compile after.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped
from scipy import sparse

from bigtrain.arrays import ArrayLike
from bigtrain.errors import CMDPError, ConfigError, PlanningError
from bigtrain.finite import transitions as transitions_lib
from bigtrain.finite.demonstrations import Names, check_transitions, find_states
from bigtrain.finite.task import Task
from bigtrain.finite.transitions import Transitions
from bigtrain.problem import CMDP, Discrete, State, Trajectories, Where, spaces

MOST_EXAMPLES = 1_024
"""How many states tell networks what observations are like."""


@final
class TabularCMDP(CMDP):
    """A finite contextual MDP. States, actions and contexts are indices, with names for people.

    `transitions` is an array [context, state, action, next state], or `Transitions` where that
    would be too large. `features` default to a one-hot of the state; so do `observations`, which
    may also be a function of the state (a picture that is drawn when it is looked at).
    """

    successors: Int[np.ndarray | Array, "state action successor"]
    probabilities: Float[np.ndarray | Array, "context state action successor"]
    context_prior: Float[np.ndarray | Array, " context"]
    initial: Float[np.ndarray | Array, " state"]
    feature_table: Float[np.ndarray | Array, "state action feature"] | None
    observer: Shaped[np.ndarray | Array, "state ..."] | Callable[[Array], Array] | None
    gamma: float = eqx.field(static=True)
    _state_names: tuple[str, ...] = eqx.field(static=True)
    _actions: Discrete
    _context_names: tuple[str, ...] = eqx.field(static=True)
    _task: Task | None = eqx.field(static=True)

    def __init__(
        self,
        transitions: ArrayLike | Transitions,
        context_prior: ArrayLike,
        initial: ArrayLike,
        *,
        gamma: float,
        features: ArrayLike | None = None,
        observations: ArrayLike | Callable[[Array], Array] | None = None,
        state_names: Sequence[str] | None = None,
        action_names: Sequence[str] | None = None,
        context_names: Sequence[str] | None = None,
        task: Task | None = None,
    ):
        dynamics = transitions_lib.convert(transitions)
        num_contexts, num_states, num_actions, _ = dynamics.probabilities.shape
        self._state_names = spaces.name("state_names", state_names, "s", num_states)
        self._actions = Discrete(spaces.name("action_names", action_names, "a", num_actions))
        self._context_names = spaces.name("context_names", context_names, "context-", num_contexts)
        self.successors, self.probabilities = transitions_lib.check(
            dynamics, name_row=self._name_row
        )
        self.context_prior = spaces.check_distribution(
            "context_prior", context_prior, self.context_names
        )
        self.initial = spaces.check_distribution("initial", initial, self.state_names)
        if not 0 <= gamma < 1:
            raise CMDPError(f"`gamma` must be at least 0 and below 1, got {gamma}.")
        self.gamma = float(gamma)
        self.feature_table = _check_features(features, num_states, num_actions)
        self.observer = _check_observations(observations, num_states)
        self._task = task

    def _name_row(self, row: tuple[int, ...]) -> str:
        context, state, action = row
        return (
            f"the row of context {self.context_names[context]!r}, state "
            f"{self.state_names[state]!r}, action {self.action_names[action]!r}"
        )

    @property
    def observation_bounds(self) -> tuple[float, float, tuple[str, ...]]:
        if self.observer is None:
            return 0.0, 1.0, ()
        table = self.observation_array()
        numbered = table.dtype.kind in "iu" and np.array_equal(table, np.arange(len(table)))
        names = self.state_names if numbered else ()
        return float(table.min()), float(table.max()), names

    @property
    def is_finite(self) -> bool:
        return True

    @property
    def num_states(self) -> int:
        return self.successors.shape[0]

    @property
    def num_actions(self) -> int:
        return self.successors.shape[1]

    @property
    def state_names(self) -> tuple[str, ...]:
        return self._state_names

    @property
    def actions(self) -> Discrete:
        return self._actions

    @property
    def task(self) -> Task | None:
        return self._task

    @property
    def context_names(self) -> tuple[str, ...]:
        return self._context_names

    @property
    def num_features(self) -> int:
        return self.num_states if self.feature_table is None else self.feature_table.shape[-1]

    @property
    def transitions(self) -> Transitions:
        """The dynamics as numpy arrays, for exact computations."""
        return Transitions(np.asarray(self.successors), np.asarray(self.probabilities))

    def reset(self, key: PRNGKeyArray, context: Int[Array, ""]) -> Int[Array, ""]:
        return jax.random.categorical(key, jnp.log(self.initial)).astype(jnp.int32)

    def step(
        self,
        key: PRNGKeyArray,
        state: Int[Array, ""],
        action: Int[Array, ""],
        context: Int[Array, ""],
    ) -> Int[Array, ""]:
        logits = jnp.log(jnp.asarray(self.probabilities)[context, state, action])
        outcome = jax.random.categorical(key, logits)
        return jnp.asarray(self.successors)[state, action, outcome].astype(jnp.int32)

    def observe(self, state: Int[Array, ""]) -> Shaped[Array, "..."]:
        if self.observer is None:
            return jax.nn.one_hot(state, self.num_states)
        if callable(self.observer):
            return self.observer(state)
        return jnp.asarray(self.observer)[state]

    def features(self, state: Int[Array, ""], action: Int[Array, ""]) -> Float[Array, " feature"]:
        if self.feature_table is None:
            return jax.nn.one_hot(state, self.num_states)
        return jnp.asarray(self.feature_table)[state, action]

    def is_absorbing(self, state: Int[Array, ""]) -> Bool[Array, ""]:
        same = jnp.asarray(self.successors)[state] == state
        staying = jnp.where(same, jnp.asarray(self.probabilities)[:, state], 0).sum(-1)
        possible = jnp.asarray(self.context_prior) > 0
        return jnp.all((staying >= 1) | ~possible[:, None])

    def transition_log_prob(
        self,
        state: Int[Array, ""],
        action: Int[Array, ""],
        next_state: Int[Array, ""],
        context: Int[Array, ""],
    ) -> Float[Array, ""]:
        return self.context_log_likelihood(state, action, next_state)[context]

    def context_log_likelihood(
        self, state: Int[Array, ""], action: Int[Array, ""], next_state: Int[Array, ""]
    ) -> Float[Array, " context"]:
        follows = jnp.asarray(self.successors)[state, action] == next_state
        row = jnp.asarray(self.probabilities)[:, state, action]
        return jnp.log(jnp.where(follows, row, 0).sum(-1))

    def identify(self, observation: Shaped[Array, "..."]) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        """The state that looks like `observation`, and whether there is one."""
        expected = jax.eval_shape(self.observe, jnp.zeros((), jnp.int32)).shape
        if jnp.shape(observation) != expected:
            raise CMDPError(
                f"An observation must have the shape {expected}, got {jnp.shape(observation)}."
            )
        if self.observer is None:
            state = jnp.argmax(observation).astype(jnp.int32)
            return state, jnp.all(observation == self.observe(state))
        table = self.observer
        if callable(table):
            table = jax.vmap(table)(jnp.arange(self.num_states))
        matches = (jnp.asarray(table) == observation).reshape(self.num_states, -1).all(-1)
        return jnp.argmax(matches).astype(jnp.int32), matches.any()

    def encoder(self, encode: Callable[[Array], Any], num_uses: int) -> Callable[[Array], Any]:
        if self.num_states > num_uses:
            return super().encoder(encode, num_uses)
        every = jnp.arange(self.num_states)
        return Lookup(jax.vmap(lambda state: encode(self.observe(state)))(every))

    def map_steps(
        self,
        encode: Callable[[Array], Any],
        function: Callable[[Any, Int[Array, ""], Any], Array],
        trajectories: Trajectories,
    ) -> Float[Array, "row time ..."]:
        if self.successors.size > trajectories.actions.size:
            return super().map_steps(encode, function, trajectories)
        codes = self.encoder(encode, self.num_states)(jnp.arange(self.num_states))
        successors, actions = jnp.asarray(self.successors), jnp.arange(self.num_actions)
        each = jax.vmap(function, (None, None, 0))  # outcomes, then actions, then states
        each = jax.vmap(jax.vmap(each, (None, 0, 0)), (0, None, 0))
        table = each(codes, actions, jax.tree.map(lambda leaf: leaf[successors], codes))
        before = jnp.roll(trajectories.states, 1, axis=1)
        taken = jnp.maximum(trajectories.previous_actions, 0)
        reached = successors[before, taken] == trajectories.states[..., None]
        return table[before, taken, jnp.argmax(reached, -1)]

    def sample_states(self, key: PRNGKeyArray) -> Int[Array, " state"]:
        """All states, or some of them where there are very many."""
        states = jnp.arange(self.num_states)
        if self.num_states > MOST_EXAMPLES:
            states = jax.random.choice(key, states, (MOST_EXAMPLES,), replace=False)
        return states

    def read_states(
        self, observations: Shaped[np.ndarray, "row ..."], where: Where
    ) -> Int[np.ndarray, " row"]:
        """The state behind each observation; integer scalars are states already."""
        return find_states(
            observations, self.observation_array, self.num_states, self.state_names, where
        )

    def check_steps(
        self,
        states: Int[np.ndarray, " time"],
        actions: Int[np.ndarray, " step"],
        lengths: Int[np.ndarray, " trajectory"],
        contexts: Int[np.ndarray, " trajectory"] | None,
        where: Where,
    ) -> None:
        """Raises where a trajectory is possible in no context, or not in its own."""
        # T actions have T + 1 states: each trajectory before a step moves it on by one.
        left = np.arange(len(actions)) + np.repeat(np.arange(len(lengths)), lengths)
        check_transitions(
            self.transitions,
            np.asarray(self.context_prior) > 0,
            Names(self.state_names, self.action_names, self.context_names),
            states=states[left],
            actions=actions,
            next_states=states[left + 1],
            first_steps=np.cumsum(lengths) - lengths,
            contexts=contexts,
            where=where,
        )

    def tabulate(self, reward: Any) -> "Lookup":
        return Lookup(self.reward_table(reward))

    def reward_table(self, reward: ArrayLike) -> Float[np.ndarray, "state action"]:
        """`reward` as an array [state, action]; one value a state is enough."""
        table = np.asarray(reward, np.float64)
        if table.shape == (self.num_states,):
            table = np.repeat(table[:, None], self.num_actions, axis=1)
        if table.shape != (self.num_states, self.num_actions) or not np.isfinite(table).all():
            raise PlanningError(
                f"`reward` must be finite, with the shape ({self.num_states},) or "
                f"({self.num_states}, {self.num_actions}), got the shape {table.shape}"
                + ("." if np.isfinite(table).all() else " with NaN or infinity in it.")
            )
        return table

    def mark(self, states: Any) -> Any:
        if callable(states):
            return states
        if not len(states):
            return None
        mask = np.zeros(self.num_states, bool)
        mask[list(self.state_indices(states))] = True
        return Lookup(mask)

    def observation_array(self) -> Shaped[np.ndarray, "state ..."]:
        """What every state looks like."""
        if self.observer is None or callable(self.observer):
            return np.asarray(jax.jit(jax.vmap(self.observe))(jnp.arange(self.num_states)))
        return np.asarray(self.observer)

    def feature_matrix(self) -> sparse.csr_matrix:
        """ν as a sparse matrix with a row for each (state, action), states first."""
        if self.feature_table is None:
            same = np.repeat(np.arange(self.num_states), self.num_actions)
            return sparse.csr_matrix((np.ones(len(same)), same, np.arange(len(same) + 1)))
        return sparse.csr_matrix(np.asarray(self.feature_table).reshape(-1, self.num_features))

    def occurring_features(self, states: State | None) -> tuple[Any, Bool[np.ndarray, " state"]]:
        """Of all states, as a sparse matrix: a finite problem knows which can occur."""
        if states is not None:
            raise ConfigError("`states` must be left out: a finite problem knows which can occur.")
        return self.feature_matrix(), self.occurring_states()

    def state_indices(
        self, states: Iterable[int | np.integer | str] | Callable[[int], Any]
    ) -> tuple[int, ...]:
        if callable(states):
            return tuple(state for state in range(self.num_states) if states(state))
        return tuple(spaces.find("state", state, self.state_names) for state in states)

    def occurring_states(self) -> Bool[np.ndarray, " state"]:
        """Which states can occur: in some context of the prior, after some actions."""
        any_action = np.ones((self.num_states, self.num_actions))
        found = np.zeros(self.num_states, bool)
        for context in np.flatnonzero(np.asarray(self.context_prior)):
            forward = self.transitions.matrix(int(context), any_action).T
            reached = np.asarray(self.initial) > 0
            while (grown := reached | (forward @ reached > 0)).sum() > reached.sum():
                reached = grown
            found |= reached
        return found


@final
class Lookup(eqx.Module):
    """A table as a function of indices: arrays whose first axes these are."""

    table: PyTree

    def __call__(self, *indices: Int[Array, "..."]) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], self.table)


def _check_features(
    given: ArrayLike | None, num_states: int, num_actions: int
) -> Float[np.ndarray, "state action feature"] | None:
    if given is None:
        return None
    values = np.array(given, np.float64)
    if values.ndim != 3 or values.shape[:2] != (num_states, num_actions):
        raise CMDPError(
            f"`features` must have the shape ({num_states}, {num_actions}, feature), as "
            f"`transitions` has it, got {values.shape}."
        )
    if not np.isfinite(values).all():
        state, action, feature = np.argwhere(~np.isfinite(values))[0]
        raise CMDPError(
            f"`features` must be finite, but state {state}, action {action} has "
            f"{values[state, action, feature]} as feature {feature}."
        )
    return values


def _as_pytree(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`function` as something that passes through `jit`."""
    if issubclass(type(function), eqx.Module):
        return function
    return jax.tree_util.Partial(function)


def _check_observations(
    given: ArrayLike | Callable[[Array], Array] | None, num_states: int
) -> Shaped[np.ndarray, "state ..."] | Callable[[Array], Array] | None:
    if given is None:
        return None
    if callable(given):
        return _as_pytree(given)
    values = np.asarray(given)
    if values.ndim < 1 or len(values) != num_states:
        raise CMDPError(
            f"`observations` must have {num_states} entries, one for each state, "
            f"got the shape {values.shape}."
        )
    if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
        state = np.argwhere(~np.isfinite(values))[0][0]
        raise CMDPError(f"`observations` must be finite, but state {state} has NaN or infinity.")
    carried = values.astype(jax.dtypes.canonicalize_dtype(values.dtype))
    if not np.issubdtype(values.dtype, np.inexact) and (carried != values).any():
        state = np.argwhere(carried != values)[0][0]
        raise CMDPError(f"`observations` must fit {carried.dtype}, but state {state} does not.")
    return carried
