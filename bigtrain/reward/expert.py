"""Demonstrations as the likelihood wants them: each visited state once, and who was where.

Σ_i Σ_j log p(a_j | s_j, θ_i, ω) needs of every step i, j

    rows [step], its state among `visited`,  actions [step],  trajectories [step], its i,

and of every trajectory, up to a constant of its own,

    log_evidence [trajectory, context] = log p(θ) + Σ_j log p(s_{j+1} | s_j, a_j, θ).

Ψ is evaluated at each visited state once: of 5,000 steps in tiger-treasure there are 3 or 4.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from bigtrain.belief import InferenceModel
from bigtrain.problem import Simulator, State, Trajectories


class ExpertData(eqx.Module):
    """Demonstrations with each visited state listed once.

    `rows` says for each step where its state stands in `visited`. States of finite problems are
    indices; any others are a pytree with `visited` as the leading axis.
    """

    visited: State
    rows: Int[np.ndarray | Array, " step"]
    actions: Int[np.ndarray | Array, " step"]
    trajectories: Int[np.ndarray | Array, " step"]
    log_evidence: Float[np.ndarray | Array, "trajectory context"]

    @property
    def num_visited(self) -> int:
        return len(jax.tree.leaves(self.visited)[0])


def expert_data(
    simulator: Simulator, trajectories: Trajectories, inference: InferenceModel
) -> ExpertData:
    """The data of `Demonstrations.trajectories`, with p(θ | transitions) inferred."""
    steps = np.asarray(trajectories.mask)[:, 1:]
    left = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :-1][steps], trajectories.states)
    visited, rows = _unique(left)
    return ExpertData(
        visited,
        rows,
        np.asarray(trajectories.actions)[:, :-1][steps],
        np.nonzero(steps)[0],
        inference.infer_contexts(simulator, trajectories),
    )


def _unique(states: State) -> tuple[State, Int[np.ndarray, " row"]]:
    """The different ones among states, and which of them each is."""
    leaves, structure = jax.tree.flatten(states)
    if len(leaves) == 1 and leaves[0].ndim == 1:
        visited, rows = np.unique(leaves[0], return_inverse=True)
        return jax.tree.unflatten(structure, [visited]), rows
    # Pytrees of arrays have no order: by the bytes of their leaves, numbered as they come.
    numbers: dict[tuple[bytes, ...], int] = {}
    keys = (tuple(part.tobytes() for part in one) for one in zip(*leaves, strict=True))
    rows = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    first = np.unique(rows, return_index=True)[1]
    return jax.tree.map(lambda leaf: leaf[first], states), rows
