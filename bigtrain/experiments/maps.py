"""Rewards on the map of a maze, and episodes as the agent sees them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from bigtrain.figures import COLOURS, PALE, styled
from bigtrain.finite import CELL_PIXELS, INDICATORS, Painter, TabularCMDP
from bigtrain.policy import Policy, PolicyActor
from bigtrain.policy import play as policy_play

_COLOUR_MAP = "cividis"
_MOST_LABELLED = 60


def cells(problem: TabularCMDP) -> Int[np.ndarray, "cell 2"]:
    """Row and column of every cell, in the order of states."""
    found = (re.fullmatch(r"\((\d+),(\d+)\)", name) for name in problem.state_names)
    return np.array([[int(one[1]), int(one[2])] for one in found if one])


@styled
def draw_rewards(problem: TabularCMDP, rewards: Sequence[float]) -> Figure:
    """The reward of every state: a map for each thing that may have been heard."""
    paint = problem.observer
    assert isinstance(paint, Painter)
    background = np.asarray(paint.background)[::CELL_PIXELS, ::CELL_PIXELS]
    values = np.asarray(rewards)
    places = cells(problem)
    # Without its outliers a map of nearly equal rewards would show nothing.
    norm = Normalize(*np.quantile(values[:-2], [0, 1]))
    figure = Figure(figsize=(7.4, 2.4))
    panels = figure.subplots(1, len(INDICATORS) + 1, width_ratios=[1, 1, 1, 0.45])
    for heard, (axes, name) in enumerate(zip(panels, INDICATORS, strict=False)):
        grid = np.full(background.shape[:2], np.nan)
        own = values[:-2].reshape(-1, len(INDICATORS))[:, heard]
        grid[tuple(places.T)] = own
        axes.imshow(background)
        axes.imshow(grid, cmap=_COLOUR_MAP, norm=norm)
        if len(places) <= _MOST_LABELLED:
            for (row, column), value in zip(places, own, strict=True):
                _write(axes, (column, row), value, norm)
        axes.set_title("heard nothing" if name == "none" else f"heard {name}")
    axes = panels[-1]
    axes.imshow(values[-2:, None], cmap=_COLOUR_MAP, norm=norm)
    for row, (name, value) in enumerate(zip(problem.state_names[-2:], values[-2:], strict=True)):
        _write(axes, (0, row), value, norm, name)
    axes.set_title("behind doors")
    for axes in panels:
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def _write(axes: Axes, place: tuple[Any, Any], value: Any, norm: Normalize, name: str = "") -> None:
    colour = "black" if norm(value) > 0.55 else "white"
    text = f"{name}\n{value:.2f}".strip()
    axes.text(*place, text, ha="center", va="center", color=colour, fontsize=6)


def play(policy: Policy, problem: TabularCMDP, *, horizon: int, seed: int) -> dict[str, Any]:
    """An episode as numbers: the context, and by step the state, the belief and the action."""
    actor = PolicyActor(problem, policy)
    episode = policy_play(problem, actor, jax.random.key(seed), episodes=1, horizon=horizon)
    parts = {
        "states": episode.states,
        "beliefs": episode.notes.probs,
        "actions": episode.actions,
    }
    steps = {name: np.asarray(part)[0, :-1].tolist() for name, part in parts.items()}
    return {"context": int(episode.contexts[0, 0]), **steps}


@styled
def draw_episode(problem: TabularCMDP, episode: Mapping[str, Any], *, steps: int = 9) -> Figure:
    """What was seen, step by step; below it what was believed, and what was done.

    Where there is no picture of a state, its name is written.
    """
    paint = problem.observer
    figure = Figure(figsize=(0.85 * steps + 0.6, 2.0 if isinstance(paint, Painter) else 1.4))
    heights = [3 if isinstance(paint, Painter) else 1, 1.2]
    grid = figure.subplots(2, steps, height_ratios=heights, squeeze=False)
    for step in range(steps):
        above, below = grid[:, step]
        state = episode["states"][step]
        if isinstance(paint, Painter):
            above.imshow(np.asarray(paint(jnp.asarray(state))))
        else:
            above.text(0.5, 0.5, problem.state_names[state], ha="center", va="center")
            above.spines[["left", "bottom"]].set_visible(False)
        above.set_xticks([])
        above.set_yticks([])
        left = 0.0
        for context, (share, colour) in enumerate(
            zip(episode["beliefs"][step], COLOURS, strict=False)
        ):
            name = problem.context_names[context] if step == 0 else None
            below.barh(0, share, left=left, color=colour, label=name)
            left += share
        below.barh(0, 1 - left, left=left, color=PALE)
        below.set_xlim(0, 1)
        below.set_yticks([])
        below.set_xticks([0.5], [problem.action_names[episode["actions"][step]]])
        below.tick_params(axis="x", length=0)
        below.spines[["left", "bottom"]].set_visible(False)
    handles, labels = grid[1, 0].get_legend_handles_labels()
    truth = problem.context_names[episode["context"]]
    figure.legend(
        handles,
        [f"believed {label}" + " (true)" * (label == truth) for label in labels],
        loc="outside lower left",
        ncols=len(labels),
    )
    return figure
