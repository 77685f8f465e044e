"""Results as pictures: the reward, how learning went, and what the policy came to believe.

Every function returns a matplotlib `Figure` of its own, so nothing needs a display and nothing is
left behind; `save_figures` writes them all.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bigtrain.errors import ConfigError
from bigtrain.exploration import PredictiveReward
from bigtrain.policy import Policy, PolicyActor
from bigtrain.problem import Simulator
from bigtrain.result import FitResult
from bigtrain.runs import Event, metric_values

MOST_STATES = 60
"""How many states a figure shows; of more, those with the highest and the lowest reward."""

BLUE, ORANGE, GREY, PALE = "#3b6ea5", "#d9822b", "#6b7680", "#d5dade"
COLOURS = (BLUE, "#e3b261", "#6a994e", "#a4508b", "#52a7a0", "#bc4749")

_MOST_CONTEXTS = 4
_PANELS = {"lower": "bounds/lower", "upper": "bounds/upper"}
_LEAST_SHARE = 1e-9
"""What is less than this share of the largest is drawn there on a logarithmic axis."""

_STYLE: Any = {
    "axes.edgecolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "bigtrain",  # the same figure gives the same file
    "xtick.color": GREY,
    "xtick.labelcolor": "black",
    "ytick.color": GREY,
    "ytick.labelcolor": "black",
}
styled = mpl.rc_context(_STYLE)  # every function that it decorates runs within it


@styled
def save_figures(result: FitResult, directory: str | os.PathLike) -> list[Path]:
    """Writes all figures of a result, each as PNG and as SVG, and says where they are."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "reward": draw_reward(result.reward),
        "learning": draw_learning(result.history),
        "beliefs": draw_beliefs(result.policy, result.cmdp),
    }
    paths = []
    for name, figure in figures.items():
        paths += save_figure(figure, folder, name)
    return paths


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes one figure as PNG and as SVG."""
    paths = []
    for suffix, metadata in ((".png", {}), (".svg", {"Date": None})):
        paths.append(folder / f"{name}{suffix}")
        figure.savefig(paths[-1], dpi=160, metadata=metadata)
    return paths


@styled
def draw_reward(reward: PredictiveReward) -> Figure:
    """The predictive mean and deviation of every state, those of the exploration set marked.

    Where actions differ there is a cell for each pair in place of a bar for each state; where the
    problem is not finite, there is a bar for the weight of each feature.
    """
    cmdp = reward.cmdp
    if not cmdp.is_finite:
        weights = np.asarray(reward.weights)
        names = [f"feature {index}" for index in range(len(weights))]
        variance, marked = np.diagonal(np.asarray(reward.covariance)), np.zeros(len(weights), bool)
        span = min(weights.min(), 0.0), max(weights.max(), 0.0)
        return _draw_bars("weight of every feature", names, weights, variance, marked, span)
    table, variance = reward.table(), reward.variance_table()
    marked = np.zeros(table.shape, bool)
    if reward.exploration is not None:
        marked = reward.exploration.mask(cmdp)
    if np.ptp(table, axis=1).max() > 1e-9 * np.ptp(table):
        return _draw_cells(cmdp, table, marked)
    names, title = cmdp.state_names, "predictive reward of every state"
    span = reward.reward_range
    return _draw_bars(title, names, table[:, 0], variance[:, 0], marked[:, 0], span)


@styled
def draw_learning(*histories: Sequence[Event]) -> Figure:
    """Every metric over the steps of all phases, a panel each and a thin line for each seed.

    Metrics called `group/name` share a panel, and so do the bounds `lower` and `upper`. A history
    has numbers, or one for each seed (`read_metrics` of a run with several of them).
    """
    lengths: dict[str, int] = {}
    for event in itertools.chain(*histories):
        lengths[event.phase] = max(event.step, lengths.get(event.phase, 0))
    begins = dict(zip(lengths, itertools.accumulate(lengths.values(), initial=0), strict=False))
    panels = _collect(histories, begins)
    if not panels:
        raise ConfigError("Histories must have an event with a finite metric, got none.")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.7 * columns, 1.8 * rows))
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, panel) in zip(grid, panels.items(), strict=False):
        _draw_curves(axes, panel.lines)
        axes.set_title(title.replace("_", " "))
        middles = [begins[phase] + (1 + lengths[phase]) / 2 for phase in panel.phases]
        axes.set_xticks(middles, [f"{phase}\n{lengths[phase]:,}" for phase in panel.phases])
        for phase in panel.phases[1:]:
            axes.axvline(begins[phase] + 0.5, color=PALE, linewidth=0.8, zorder=0)
    return figure


@styled
def draw_beliefs(
    policy: Policy, cmdp: Simulator, *, episodes: int = 2, horizon: int = 20, seed: int = 0
) -> Figure:
    """What the policy believes and does in some episodes of each of the likeliest contexts.

    A column is a step: the belief by which the action below it was chosen. Steps after the last
    change of what is seen are left out.
    """
    order = np.argsort(-np.asarray(cmdp.context_prior), kind="stable")[: len(COLOURS)].tolist()
    shown = order[:_MOST_CONTEXTS]
    contexts, actions = cmdp.context_names, cmdp.action_names
    figure = Figure(figsize=(0.8 + 2.9 * len(shown), 0.6 + 1.5 * episodes))
    grid = figure.subplots(episodes, len(shown), squeeze=False, sharey=True)
    traces = _play(cmdp, policy, shown, episodes, horizon, seed)
    width = 1 + max(np.nonzero(traces.changed)[-1], default=0)
    for column, context in enumerate(shown):
        grid[0, column].set_title(f"context {contexts[context]}")
        for row, axes in enumerate(grid[:, column]):
            trace = _Trace(*(part[column, row] for part in traces))
            _draw_trace(axes, trace, order, actions)
            axes.set_xlim(-0.6, width - 0.4)
    for axes in grid[:, 0]:
        axes.set_ylabel("belief")
    handles = [Patch(color=colour) for colour in COLOURS[: len(order)]]
    labels = [contexts[context] for context in order]
    if cmdp.num_contexts > len(order):
        handles, labels = [*handles, Patch(color=PALE)], [*labels, "others"]
    figure.legend(handles, labels, loc="outside lower left", ncols=len(labels))
    return figure


def _draw_bars(
    title: str,
    names: Sequence[str],
    means: Float[np.ndarray, " row"],
    variances: Float[np.ndarray, " row"],
    marked: Bool[np.ndarray, " row"],
    span: tuple[float, float],
) -> Figure:
    """Bars and deviations; the axis is as long as the range, which deviations may well exceed."""
    chosen, note = _choose(means)
    rows, deviations = np.arange(len(chosen)), np.sqrt(np.maximum(variances[chosen], 0))
    figure = Figure(figsize=(5.5, 0.8 + 0.19 * len(chosen)))
    axes = figure.subplots()
    colours = np.where(marked[chosen], ORANGE, BLUE)
    axes.barh(rows, means[chosen], height=0.72, color=colours)
    axes.errorbar(
        means[chosen], rows, xerr=deviations, fmt="none", ecolor=GREY, elinewidth=0.8, alpha=0.6
    )
    axes.axvline(0, color=GREY, linewidth=0.8)
    margin = 0.2 * (span[1] - span[0])
    axes.set_xlim(min(span[0], 0) - margin, max(span[1], 0) + margin)
    digits = max(0, 3 - math.floor(math.log10(span[1] - span[0])))
    values = [
        f"{mean:.{digits}f} ± {deviation:.{digits}f}"
        for mean, deviation in zip(means[chosen], deviations, strict=True)
    ]
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(rows, values)
    beside.tick_params(length=0, labelcolor=GREY)
    beside.spines.right.set_visible(False)
    _name_rows(axes, [names[index] for index in chosen])
    axes.set_title(title + note)
    _mark(figure, marked)
    return figure


def _draw_cells(
    cmdp: Simulator,
    table: Float[np.ndarray, "state action"],
    marked: Bool[np.ndarray, "state action"],
) -> Figure:
    chosen, note = _choose(table.mean(1))
    cells = table[chosen]
    figure = Figure(figsize=(2 + 0.7 * cmdp.num_actions, 0.9 + 0.22 * len(chosen)))
    axes = figure.subplots()
    # Twice the range, so that colours stay pale enough for numbers in black.
    norm = TwoSlopeNorm(0, 2 * min(cells.min(), -1e-9), 2 * max(cells.max(), 1e-9))
    axes.imshow(cells, cmap="RdBu", norm=norm, aspect="auto")
    rows, columns = np.nonzero(marked[chosen])
    axes.scatter(columns - 0.42, rows, s=8, color=ORANGE)
    for (row, column), value in np.ndenumerate(cells):
        axes.text(column, row, f"{value:.3g}", ha="center", va="center")
    axes.set_xticks(range(cmdp.num_actions), cmdp.action_names)
    _name_rows(axes, [cmdp.state_names[state] for state in chosen])
    axes.set_title("predictive reward of every state and action" + note)
    _mark(figure, marked)
    return figure


def _choose(values: Float[np.ndarray, " row"]) -> tuple[list[int], str]:
    """All rows in their order; of too many the highest and the lowest, and a note of that."""
    if len(values) <= MOST_STATES:
        return list(range(len(values))), ""
    order, half = np.argsort(-values, kind="stable").tolist(), MOST_STATES // 2
    note = f", the {half} highest and the {half} lowest of {len(values):,}"
    return [*order[:half], *order[-half:]], note


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _mark(figure: Figure, marked: Bool[np.ndarray, "..."]) -> None:
    """Says what the orange is, where there is some."""
    if marked.any():
        label = "exploration set, worth k · r_max"
        figure.legend([Patch(color=ORANGE)], [label], loc="outside lower left")


class _Panel(NamedTuple):
    """Lines by name, then by history and seed: where and what; and the phases they go through."""

    lines: dict[str, dict[tuple[int, int], list[tuple[int, float]]]]
    phases: list[str]


def _collect(histories: Sequence[Sequence[Event]], begins: Mapping[str, int]) -> dict[str, _Panel]:
    """The finite numbers of all histories, phases end to end, by panel."""
    panels: dict[str, _Panel] = {}
    for place, history in enumerate(histories):
        for event, (metric, given) in ((e, item) for e in history for item in e.metrics.items()):
            group, _, name = _PANELS.get(metric, metric).partition("/")
            for seed, value in enumerate(metric_values(metric, given).ravel().tolist()):
                if np.isfinite(value):
                    panel = panels.setdefault(group, _Panel({}, []))
                    line = panel.lines.setdefault(name, {}).setdefault((place, seed), [])
                    line.append((begins[event.phase] + event.step, value))
                    if event.phase not in panel.phases:
                        panel.phases.append(event.phase)
    return panels


def _draw_curves(
    axes: Axes, lines: Mapping[str, Mapping[Any, Sequence[tuple[int, float]]]]
) -> None:
    values = np.array([v for group in lines.values() for line in group.values() for _, v in line])
    least = -np.inf
    if values.min() >= 0 and values.max() > 100 * np.median(values):
        axes.set_yscale("log")
        least = _LEAST_SHARE * values.max()
    for (name, group), colour in zip(lines.items(), itertools.cycle(COLOURS), strict=False):
        width = 1.5 if len(group) == 1 else 0.7
        for number, line in enumerate(group.values()):
            steps, values = np.transpose(line)
            style = {"color": colour, "linewidth": width, "marker": "." if len(line) == 1 else ""}
            label = name if number == 0 else ""
            axes.plot(steps, np.maximum(values, least), label=label, **style)
    axes.tick_params(axis="x", length=0)
    if any(lines):
        axes.legend(labelcolor="linecolor", handlelength=0)


class _Trace(NamedTuple):
    """What happened in an episode, or in many, step by step."""

    beliefs: Float[np.ndarray, "*batch step context"]
    actions: Int[np.ndarray, "*batch step"]
    changed: Bool[np.ndarray, "*batch step"]


def _play(
    simulator: Simulator,
    policy: Policy,
    contexts: Sequence[int],
    episodes: int,
    horizon: int,
    seed: int,
) -> _Trace:
    """So many episodes in each context."""
    told = jnp.repeat(jnp.asarray(contexts, jnp.int32), episodes)
    played = simulator.collect(
        PolicyActor(simulator, policy),
        jax.random.key(seed),
        num_envs=len(told),
        horizon=horizon,
        restart=False,
        contexts=told,
    )
    seen = np.asarray(jax.jit(jax.vmap(jax.vmap(simulator.observe)))(played.states))
    changed = (seen[:, 1:] != seen[:, :-1]).reshape(len(told), horizon, -1).any(-1)
    parts = np.asarray(played.notes.probs)[:, :-1], np.asarray(played.actions)[:, :-1], changed
    shape = (len(contexts), episodes)
    return _Trace(*(part.reshape(*shape, *part.shape[1:]) for part in parts))


def _draw_trace(axes: Axes, trace: _Trace, order: Sequence[int], actions: Sequence[str]) -> None:
    num_steps = 1 + max(np.flatnonzero(trace.changed), default=0)
    steps, bottom = np.arange(num_steps), np.zeros(num_steps)
    beliefs = trace.beliefs[:num_steps]
    for context, colour in zip(order, COLOURS, strict=False):
        axes.bar(steps, beliefs[:, context], 0.94, bottom, color=colour)
        bottom = bottom + beliefs[:, context]
    axes.bar(steps, 1 - bottom, 0.94, bottom, color=PALE)
    taken = [actions[int(action)] for action in trace.actions[:num_steps]]
    axes.set_xticks(steps, taken, rotation=90)
    axes.tick_params(axis="x", length=0)
    axes.set_yticks([0, 0.5, 1])
    axes.set_ylim(0, 1)
