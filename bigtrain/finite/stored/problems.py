"""Finite problems and exploration priors, to and from the fields of a bundle."""

import itertools
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, Shaped

from bigtrain.errors import (
    BundleShapeError,
    BundleStructureError,
    BundleValueError,
    BundleWriteError,
)
from bigtrain.exploration import (
    CostOfExploration,
    Fixed,
    KPrior,
    MaximumEntropy,
    Uniform,
    check_settings,
)
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.transitions import Transitions
from bigtrain.problem import Simulator
from bigtrain.storage import Fields, refusing, write_array, write_names

StoredProblem = TabularCMDP
"""The kind of problem that a bundle can hold."""

_K_PRIORS: dict[str, tuple[type[KPrior], tuple[str, ...]]] = {
    "uniform": (Uniform, ("low", "high")),
    "fixed": (Fixed, ("value",)),
    "maximum-entropy": (MaximumEntropy, ("expected", "low", "high")),
}


class Names(NamedTuple):
    """What actions and contexts are called."""

    actions: tuple[str, ...]
    contexts: tuple[str, ...]


def write_problem(cmdp: TabularCMDP) -> dict[str, Any]:
    """A finite problem, but for what the bundle says of any: actions, contexts and discount."""
    features, observations = cmdp.feature_table, cmdp.observer
    successors, probabilities = cmdp.transitions
    return {
        "state_names": write_names(cmdp.state_names),
        "initial": write_array(cmdp.initial, "float64"),
        "successors": write_array(successors, "int32"),
        "probabilities": write_array(probabilities, "float64"),
        "features": None if features is None else write_array(features, "float64"),
        "observations": None if observations is None else write_array(cmdp.observation_array()),
    }


def read_problem(
    fields: Fields, names: Names, context_prior: Float[np.ndarray, " context"], gamma: float
) -> TabularCMDP:
    """The problem, with its tables to the last bit as they were."""
    num_actions, num_contexts = len(names.actions), len(names.contexts)
    successors = fields.array("successors", "int32", (None, num_actions, None))
    num_states, _, width = successors.shape
    shape = (num_contexts, num_states, num_actions, width)
    probabilities = fields.probabilities("probabilities", shape)
    if successors.min() < 0 or successors.max() >= num_states:
        raise BundleValueError(
            f"`{fields.path('successors')}` must be states from 0 to {num_states - 1}, got "
            f"values from {successors.min()} to {successors.max()}."
        )
    initial = fields.probabilities("initial", (num_states,))
    # Everything but the transitions is checked by the problem itself. These are put in afterwards:
    # to normalise them once more could change their last bits.
    stay = Transitions(np.zeros((*successors.shape[:2], 1), int), np.ones((*shape[:3], 1)))
    with refusing(fields.where):
        problem = TabularCMDP(
            stay,
            context_prior,
            initial,
            gamma=gamma,
            features=fields.optional(
                "features",
                lambda name: fields.array(name, "float64", (num_states, num_actions, None)),
            ),
            observations=fields.optional("observations", fields.array),
            state_names=fields.names("state_names", num_states),
            action_names=names.actions,
            context_names=names.contexts,
        )
    return eqx.tree_at(
        lambda p: (p.successors, p.probabilities, p.context_prior, p.initial),
        problem,
        (successors, probabilities, context_prior, initial),
    )


def require_problem(problem: TabularCMDP | None, path: str) -> TabularCMDP:
    """The problem, where something at `path` makes sense with one only."""
    if problem is None:
        raise BundleStructureError(
            f"`{path}` belongs to a finite problem, but the bundle has no `problem`."
        )
    return problem


def same_problem(one: Simulator, other: Simulator) -> bool:
    """Whether policies decide the same in both: whether they are equal in float32."""
    if one is other:
        return True
    if not (isinstance(one, TabularCMDP) and isinstance(other, TabularCMDP)):
        return False

    def tables(cmdp: TabularCMDP) -> list[Shaped[np.ndarray, "..."]]:
        parts = [cmdp.context_prior, cmdp.initial, *cmdp.transitions]
        parts += [] if cmdp.observer is None else [cmdp.observation_array()]
        return [np.asarray(part, np.float32) for part in parts]

    pairs = list(itertools.zip_longest(tables(one), tables(other)))
    return one.gamma == other.gamma and all(np.array_equal(*pair) for pair in pairs)


def write_exploration(exploration: CostOfExploration, cmdp: TabularCMDP) -> dict[str, Any]:
    """The exploration set by indices, and p(k)."""
    states, actions = exploration.indices(cmdp)
    kind, (_, parts) = _find_prior(exploration.k)
    return {
        "states": write_array(states, "int32"),
        "actions": write_array(actions, "int32"),
        "kind": kind,
        "k": {part: write_array(getattr(exploration.k, part), "float64") for part in parts},
    }


def read_exploration(
    fields: Fields, problem: TabularCMDP | None, reward_range: tuple[float, float]
) -> CostOfExploration:
    """The exploration prior of a finite problem."""
    problem = require_problem(problem, fields.where)
    states = _read_indices(fields, "states", problem.num_states)
    actions = _read_indices(fields, "actions", problem.num_actions)
    kind, parts = _K_PRIORS[fields.choice("kind", _K_PRIORS)]
    stored = fields.fields("k")
    values = [_read_k(stored, part, (len(states), len(actions))) for part in parts]
    with refusing(fields.path("k")):
        exploration = CostOfExploration(states, actions, kind(*values))
        check_settings(problem, reward_range, exploration)
    return exploration


def note_exploration(exploration: CostOfExploration | None, cmdp: Simulator) -> str:
    """What can be told of an exploration set that is a predicate, and so code."""
    if exploration is None or cmdp.is_finite:
        return ""
    kind, _ = _find_prior(exploration.k)
    (low, high), mean = exploration.k.support, exploration.k.mean
    acts = "any action" if exploration.actions is None else f"actions {[*exploration.actions]}"
    return (
        f"Where a predicate of the simulator holds, with {acts}: k {kind}, from {np.min(low):g} "
        f"to {np.max(high):g}, {np.mean(mean):g} in the mean."
    )


def _find_prior(k: KPrior) -> tuple[str, tuple[type[KPrior], tuple[str, ...]]]:
    for name, (kind, parts) in _K_PRIORS.items():
        if type(k) is kind:
            return name, (kind, parts)
    known = ", ".join(kind.__name__ for kind, _ in _K_PRIORS.values())
    raise BundleWriteError(
        f"`k` must be one of {known} to be stored, got {type(k).__name__}. Where its mean and "
        "support are all that matters, `MaximumEntropy` says it."
    )


def _read_indices(fields: Fields, name: str, count: int) -> tuple[int, ...]:
    values = fields.array(name, "int32", (None,))
    if values.min() < 0 or values.max() >= count or len(np.unique(values)) < len(values):
        raise BundleValueError(
            f"`{fields.path(name)}` must be different numbers from 0 to {count - 1}."
        )
    return tuple(values.tolist())


def _read_k(fields: Fields, name: str, shape: tuple[int, int]) -> float | Float[np.ndarray, "..."]:
    values = fields.array(name, "float64")
    # Before anything is broadcast: a row and a column of many entries make a huge table.
    padded = (1, 1, *values.shape)[-2:] if values.ndim <= 2 else values.shape
    if len(padded) > 2 or any(n not in (1, m) for n, m in zip(padded, shape, strict=True)):
        raise BundleShapeError(
            f"`{fields.path(name)}` must fit the {shape[0]} states and {shape[1]} actions of the "
            f"exploration set, got the shape {values.shape}."
        )
    return float(values) if values.ndim == 0 else values
