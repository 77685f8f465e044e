"""Small contextual MDPs with known answers, and ways to say the same problem differently.

Every route (exact, learned, served) is run on these.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped
from numpy.typing import ArrayLike, NDArray

from bigtrain.belief import BeliefState
from bigtrain.data import Demonstrations
from bigtrain.finite.cmdp import TabularCMDP, Task
from bigtrain.finite.inference import FiniteInference
from bigtrain.finite.transitions import Transitions
from bigtrain.policy import Decision, Policy
from bigtrain.problem import CMDP
from bigtrain.reward.expert import ExpertData, expert_data

KAELBLING_VALUE = 3.770189
"""The Bayes-optimal value of `kaelbling_tiger` from its start, to 6 decimals."""


def dense(cmdp: TabularCMDP) -> NDArray[np.float64]:
    """p(s' | s, a, θ) as a full table [context, state, action, next state]."""
    successors, probabilities = cmdp.transitions
    table = np.zeros((*probabilities.shape[:3], cmdp.num_states))
    for place in np.ndindex(probabilities.shape):
        context, state, action, k = place
        table[context, state, action, successors[state, action, k]] += probabilities[place]
    return table


def random_table(
    rng: np.random.Generator, shape: Sequence[int], num_outcomes: int, sparsity: float = 0.0
) -> NDArray[np.float64]:
    """Dirichlet distributions over `num_outcomes`, of which about a share `sparsity` is 0."""
    table = rng.dirichlet(np.ones(num_outcomes), tuple(shape))
    kept = rng.random(table.shape) >= sparsity
    certain = rng.integers(num_outcomes, size=tuple(shape))  # something must follow
    np.put_along_axis(kept, certain[..., None], True, axis=-1)
    table = np.where(kept, table, 0)
    return table / table.sum(-1, keepdims=True)


def random_cmdp(
    seed: int,
    num_contexts: int = 2,
    num_states: int = 4,
    num_actions: int = 2,
    gamma: float = 0.9,
    *,
    sparsity: float = 0.0,
) -> TabularCMDP:
    """Random transitions, initial distribution and prior.

    With `sparsity` about that share of the transitions and of the initial states is impossible,
    other ones in each context; the arrays then depend on the seed in their shapes too.
    """
    rng = np.random.default_rng(seed)
    return TabularCMDP(
        random_table(rng, (num_contexts, num_states, num_actions), num_states, sparsity),
        random_table(rng, (), num_contexts),
        random_table(rng, (), num_states, sparsity),
        gamma=gamma,
    )


def kaelbling_tiger() -> tuple[TabularCMDP, NDArray[np.float64], float]:
    """The tiger of Kaelbling et al. (1998), one shot, with its reward [s, a] and value.

    There rewards come with the action: −1 for listening, −100 and +10 for opening. Here they belong
    to the state being left, a step later for a door, hence the division by γ.
    """
    gamma, p_hear = 0.95, 0.85
    s0, t1, t2, tiger, gold, end = range(6)
    table = np.zeros((2, 6, 3, 6))
    table[:, [tiger, gold, end], :, end] = 1
    for context in range(2):
        for waiting in (s0, t1, t2):
            table[context, waiting, context, tiger] = 1
            table[context, waiting, 1 - context, gold] = 1
            table[context, waiting, 2, [t1, t2][context]] = p_hear
            table[context, waiting, 2, [t1, t2][1 - context]] = 1 - p_hear
    reward = np.zeros((6, 3))
    reward[gold], reward[tiger] = 10 / gamma, -100 / gamma
    reward[[s0, t1, t2], 2] = -1
    cmdp = TabularCMDP(
        table,
        [0.5, 0.5],
        np.eye(6)[s0],
        gamma=gamma,
        state_names=["S0", "T1", "T2", "Tiger", "Gold", "ST"],
        action_names=["open-1", "open-2", "listen"],
        context_names=["tiger-1", "tiger-2"],
    )
    return cmdp, reward, KAELBLING_VALUE


def permute_states(cmdp: TabularCMDP, order: ArrayLike) -> TabularCMDP:
    """The same problem with its states in another order: the new state i is the old `order[i]`."""
    old = _check_order(order, cmdp.num_states)
    successors, probabilities = cmdp.transitions
    new_number = np.argsort(old)
    features = cmdp.feature_table
    return _rebuild(
        cmdp,
        transitions=Transitions(new_number[successors[old]], probabilities[:, old]),
        initial=np.asarray(cmdp.initial)[old],
        features=None if features is None else np.asarray(features)[old],
        observations=None if cmdp.observer is None else cmdp.observation_array()[old],
        state_names=[cmdp.state_names[state] for state in old],
        task=None if cmdp.task is None else _permute_task(cmdp.task, old),
    )


def relabel_contexts(cmdp: TabularCMDP, order: ArrayLike) -> TabularCMDP:
    """The same problem with its contexts in another order: the new θ = i is the old `order[i]`."""
    old = _check_order(order, cmdp.num_contexts)
    successors, probabilities = cmdp.transitions
    return _rebuild(
        cmdp,
        transitions=Transitions(successors, probabilities[old]),
        context_prior=np.asarray(cmdp.context_prior)[old],
        context_names=[cmdp.context_names[context] for context in old],
    )


def _check_order(order: ArrayLike, count: int) -> NDArray[np.int64]:
    order = np.asarray(order)
    assert sorted(order.tolist()) == list(range(count)), f"not an order of {count}: {order}"
    return order


def _permute_task(task: Task, order: NDArray[np.int64]) -> Task:
    new_number = np.argsort(order)

    def moved(states: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(new_number[list(states)].tolist()))

    return dataclasses.replace(
        task,
        reward=task.reward[order],
        exploration_states=moved(task.exploration_states),
        goal_states=moved(task.goal_states),
        failure_states=moved(task.failure_states),
    )


def _rebuild(cmdp: TabularCMDP, **changes) -> TabularCMDP:
    fields = {
        "transitions": cmdp.transitions,
        "context_prior": cmdp.context_prior,
        "initial": cmdp.initial,
        "gamma": cmdp.gamma,
        "features": cmdp.feature_table,
        "observations": cmdp.observer,
        "state_names": cmdp.state_names,
        "action_names": cmdp.action_names,
        "context_names": cmdp.context_names,
        "task": cmdp.task,
    }
    return TabularCMDP(**{**fields, **changes})


@final
class Hidden(CMDP):
    """A finite problem of which learners cannot tell that it is one: states are dictionaries.

    A mute one does not know the probabilities of its transitions either.
    """

    inner: TabularCMDP
    context_prior: Any
    gamma: float = eqx.field(static=True)
    mute: bool = eqx.field(static=True)

    def __init__(self, inner: TabularCMDP, *, mute: bool = False):
        self.inner, self.context_prior, self.gamma = inner, inner.context_prior, inner.gamma
        self.mute = mute

    @property
    def num_actions(self) -> int:
        return self.inner.num_actions

    def reset(self, key: PRNGKeyArray, context: Int[Array, ""]) -> Any:
        return {"place": self.inner.reset(key, context)}

    def step(
        self, key: PRNGKeyArray, state: Any, action: Int[Array, ""], context: Int[Array, ""]
    ) -> Any:
        return {"place": self.inner.step(key, state["place"], action, context)}

    def observe(self, state: Any) -> Shaped[Array, "..."]:
        return self.inner.observe(state["place"])

    def identify(self, observation: Shaped[Array, "..."]) -> tuple[Any, Bool[Array, ""]]:
        place, known = self.inner.identify(observation)
        return {"place": place}, known

    def features(self, state: Any, action: Int[Array, ""]) -> Float[Array, " feature"]:
        return self.inner.features(state["place"], action)

    def transition_log_prob(
        self, state: Any, action: Int[Array, ""], next_state: Any, context: Int[Array, ""]
    ) -> Float[Array, ""]:
        if self.mute:
            return super().transition_log_prob(state, action, next_state, context)
        places = state["place"], action, next_state["place"], context
        return self.inner.transition_log_prob(*places)


@final
class Watchful(Policy):
    """Acts on the state alone, by a table, but knows what the exact filter believes."""

    cmdp: TabularCMDP
    table: Float[np.ndarray | Array, "state action"]

    def init(self) -> BeliefState:
        return FiniteInference(self.cmdp).init()

    def step(
        self, state: BeliefState, observation: Shaped[Array, "..."], previous_action: Int[Array, ""]
    ) -> tuple[BeliefState, Decision]:
        inference = FiniteInference(self.cmdp)
        state, info = inference.update(state, inference.encode(observation), previous_action)
        probs = jnp.asarray(self.table)[state.last]
        return state, Decision(probs, 0 * probs, inference.belief(state), info.impossible)


def expert_data_of(cmdp: TabularCMDP, demonstrations: Demonstrations) -> ExpertData:
    """The demonstrations as the likelihood wants them, with contexts inferred exactly."""
    return expert_data(cmdp, demonstrations.trajectories(cmdp), FiniteInference(cmdp))


def as_seen(cmdp: TabularCMDP, demonstrations: Demonstrations) -> Demonstrations:
    """The demonstrations with what was seen in place of the states."""
    observations = cmdp.observation_array()[demonstrations.observations]
    return Demonstrations(observations, demonstrations.actions, demonstrations.lengths)
