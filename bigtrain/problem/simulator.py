"""What learners ask of a simulator, whoever wrote it and wherever it runs.

A simulator *collects* trajectories for an actor; all else that it says is a pure function of the
states that it records, and compiles. No episode ends: where a task is over the state leads to
itself for ever, and learners are told so by `is_absorbing` (design, points 1 and 9: rewards belong
to the state being left).
"""

import abc
from collections.abc import Callable, Iterable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.errors import ConfigError, DemonstrationError, SimulatorError
from bigtrain.problem.spaces import ActionSpace, Discrete, find, name
from bigtrain.problem.trajectories import Actor, State, Trajectories, UniformActor, flatten

Where = Callable[[int], str]
"""Words the place of a flat index, for errors."""

NUM_WALKS, WALK_STEPS = 64, 16


class Simulator(eqx.Module):
    """Where episodes are played, in a context that is drawn once an episode and stays hidden."""

    context_prior: eqx.AbstractVar[Any]
    gamma: eqx.AbstractVar[float]

    @property
    @abc.abstractmethod
    def num_actions(self) -> int:
        """How many actions there are to choose among, numbered from 0."""

    @property
    def actions(self) -> ActionSpace:
        """What each number stands for; as it stands, itself."""
        return Discrete(self.num_actions)

    @property
    def num_contexts(self) -> int:
        return len(self.context_prior)

    @property
    def state_like(self) -> State:
        """Shapes and dtypes of a state."""
        return jax.eval_shape(self.identify, self.observation)[0]

    @property
    def num_features(self) -> int:
        return jax.eval_shape(self.features, self.state_like, jnp.asarray(0)).shape[0]

    @property
    def action_names(self) -> tuple[str, ...]:
        return self.actions.names

    @property
    def context_names(self) -> tuple[str, ...]:
        return name("context_names", None, "context-", self.num_contexts)

    @property
    def task(self) -> Any:
        """What the designer knows and learners never see, if anybody wrote it down."""
        return None

    @property
    def observation_bounds(self) -> tuple[float | None, float | None, tuple[str, ...]]:
        """The least and the greatest number that is seen, where that is known; and the names of 0,
        1, 2, ... where an observation is the number of a state."""
        return None, None, ()

    @property
    def is_finite(self) -> bool:
        """Whether states are numbered, so that whatever depends on them can be a table."""
        return False

    @property
    def num_states(self) -> int:
        raise self._not_finite("states that are numbered")

    @property
    def state_names(self) -> tuple[str, ...]:
        raise self._not_finite("names of states")

    def state_indices(self, states: Any) -> tuple[int, ...]:
        """The numbers of states given by number, by name or by a predicate."""
        raise self._not_finite("states that are numbered")

    def action_indices(self, actions: Iterable[int | np.integer | str]) -> tuple[int, ...]:
        """The numbers of actions given by number or by name."""
        return tuple(find("action", action, self.action_names) for action in actions)

    def feature_matrix(self) -> Any:
        """ν as a sparse matrix with a row for each (state, action), states first."""
        raise self._not_finite("tables")

    def occurring_features(
        self, states: State | None
    ) -> tuple[Float[np.ndarray, "pair feature"], Bool[np.ndarray, " state"]]:
        """ν of every action in states that may occur, states first, and which of them can.

        `states` is a batch of states known to occur.
        """
        sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(states)}
        if len(sizes) != 1 or sizes & {(), (0,)}:
            raise ConfigError(
                "`states` must be a batch of states known to occur, since this problem is not "
                "finite: a pytree whose leaves share a leading axis, got "
                + ("none." if states is None else f"leading axes {sorted(sizes)}.")
            )
        actions = jnp.arange(self.num_actions)
        each = jax.vmap(jax.vmap(self.features, (None, 0)), (0, None))
        features = np.asarray(jax.jit(each)(states, actions), np.float64)
        if not np.isfinite(features).all():
            state, action, feature = np.argwhere(~np.isfinite(features))[0]
            raise ConfigError(
                f"Features must be finite, but state {state} of `states` has "
                f"{features[state, action, feature]} as feature {feature} of action {action}."
            )
        return features.reshape(-1, features.shape[-1]), np.ones(len(features), bool)

    def _not_finite(self, what: str) -> ConfigError:
        return ConfigError(
            f"There are {what} of finite problems only, and `{type(self).__name__}` is none. "
            "Ask about one state and action."
        )

    @property
    @abc.abstractmethod
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of what is seen."""

    @abc.abstractmethod
    def observe(self, state: State) -> Shaped[Array, "..."]:
        """What the agent sees of a state."""

    def identify(self, observation: Shaped[Array, "..."]) -> tuple[State, Bool[Array, ""]]:
        """The state that looks like `observation`, and whether there is one.

        As it stands an observation is the state itself; override it where `observe` is more.
        """
        return observation, jnp.asarray(True)

    @abc.abstractmethod
    def features(self, state: State, action: Int[Array, ""]) -> Float[Array, " feature"]:
        """ν(s, a): the reward is linear in these (Assumption 3.1)."""

    def is_absorbing(self, state: State) -> Bool[Array, ""]:
        """Whether a state leads to itself for ever, whatever is done and in every context.

        Learners spend no time in such states. As it stands there are none; override it where a
        task has an end.
        """
        return jnp.asarray(False)

    @abc.abstractmethod
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
        """`num_envs` rows of `horizon` steps, each episode in a context drawn for it, unless told.

        With `restart` an absorbing state lasts one step, so that the value of being there is
        learned, and then another episode begins: steps that cannot matter are never computed.
        Without, each row is one episode that rests where it ends.
        """

    @property
    def is_traceable(self) -> bool:
        """Whether `collect` compiles, so that whole loops of learning can."""
        return False

    @property
    def can_look(self) -> bool:
        """Whether `look` steps from any state in any context, and compiles."""
        return False

    def look(
        self, key: PRNGKeyArray, state: State, action: Int[Array, ""], context: Int[Array, ""]
    ) -> State:
        """Draws the state that would follow, in a context of the caller's choice."""
        raise SimulatorError(
            f"`{type(self).__name__}` can only be reset and stepped, not stepped from anywhere."
        )

    @property
    def knows_likelihood(self) -> bool:
        """Whether Bayes' rule can be applied exactly: see `bigtrain.belief.ExactInference`."""
        return False

    def encoder(
        self, encode: Callable[[Shaped[Array, "..."]], Any], num_uses: int
    ) -> Callable[[State], Any]:
        """`encode` of what a state looks like, for about so many states.

        Finite problems with fewer states than uses encode each of them once.
        """
        return ObservationEncoder(self, encode)

    def map_steps(
        self,
        encode: Callable[[Shaped[Array, "..."]], Any],
        function: Callable[[Any, Int[Array, ""], Any], Float[Array, "..."]],
        trajectories: Trajectories,
    ) -> Float[Array, "row moment ..."]:
        """`function(code, action, next code)` of the step that led to each moment.

        Where an episode begins no step did, and the result means nothing. Finite problems with
        fewer steps that can occur than moments look at each of them once.
        """
        each = self.encoder(encode, trajectories.actions.size)
        codes = jax.vmap(jax.vmap(each))(trajectories.states)
        before = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=1), codes)
        actions = jnp.maximum(trajectories.previous_actions, 0)
        return jax.vmap(jax.vmap(function))(before, actions, codes)

    def sample_states(self, key: PRNGKeyArray) -> State:
        """States such as will come: those met on random walks."""
        walks = self.collect(
            UniformActor(self.num_actions),
            key,
            num_envs=NUM_WALKS,
            horizon=WALK_STEPS - 1,
            restart=True,
        )
        return flatten(walks.states)

    def read_states(self, observations: Shaped[np.ndarray, "row ..."], where: Where) -> State:
        """The state behind each observation of demonstrations, checked."""
        seen = self.observation
        if observations.shape[1:] != seen.shape:
            raise DemonstrationError(
                f"`observations` must have the shape {seen.shape} of the problem's "
                f"observations, got {observations.shape[1:]}."
            )
        if not np.can_cast(observations.dtype, seen.dtype, "same_kind"):
            raise DemonstrationError(
                f"`observations` must be {seen.dtype}, as the problem's observations are, "
                f"got {observations.dtype}."
            )
        states, known = jax.jit(jax.vmap(self.identify))(jnp.asarray(observations, seen.dtype))
        unknown = np.flatnonzero(~np.asarray(known))
        if len(unknown):
            raise DemonstrationError(
                "`observations` must be of the problem's states, but "
                f"{where(int(unknown[0]))} looks like none."
            )
        return states

    def check_steps(
        self,
        states: State,
        actions: Int[np.ndarray, " step"],
        lengths: Int[np.ndarray, " trajectory"],
        contexts: Int[np.ndarray, " trajectory"] | None,
        where: Where,
    ) -> None:
        """Raises where a trajectory cannot be, as far as a simulator can tell: here it cannot."""

    def tabulate(self, reward: Any) -> Callable[[State, Int[Array, ""]], Float[Array, ""]]:
        """A reward given as an array as a function of state and action; finite problems only."""
        raise ConfigError(
            "`reward` must be a function of state and action: this problem is not finite."
        )

    def mark(self, states: Any) -> Any:
        """States as a predicate; finite problems take indices and names too. None for no state."""
        if callable(states):
            return states
        raise ConfigError("States must be given by a predicate: this problem is not finite.")


@eqx.filter_jit
def observe_all(simulator: Simulator, states: State) -> Shaped[Array, "state ..."]:
    """What each of a batch of states looks like."""
    return jax.vmap(simulator.observe)(states)


def row_like(simulator: Simulator, horizon: int, notes: Any = None) -> Trajectories:
    """Shapes and dtypes of one row of trajectories; `notes` are those of one moment."""

    def moments(leaf):
        return jax.ShapeDtypeStruct((horizon + 1, *leaf.shape), leaf.dtype)

    numbers, flags = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.bool))
    moment: Any = (simulator.state_like, numbers, flags, numbers, flags, notes)
    return Trajectories(*jax.tree.map(moments, moment))


@final
class ObservationEncoder(eqx.Module):
    """Encodes what a state looks like, when it is asked."""

    simulator: Simulator
    encode: Callable[[Shaped[Array, "..."]], Any]

    def __call__(self, state: State) -> Any:
        return self.encode(self.simulator.observe(state))
