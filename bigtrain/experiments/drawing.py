"""Pictures that experiments share: bars over settings, curves over training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bigtrain.experiments.statistics import estimate
from bigtrain.figures import BLUE, COLOURS, GREY, ORANGE, PALE, styled

_MARKS = (("D", 14, "black"), ("_", 90, ORANGE))


@final
@dataclass(frozen=True)
class Panel:
    """A bar for each name, from the values of all seeds; None is infinite.

    `references` are drawn as marks, by what they are. `infinite` is written where a bar has no end.
    """

    title: str
    names: Sequence[str]
    values: Sequence[Sequence[float] | None]
    references: Mapping[str, Sequence[float | None]]
    infinite: str = "∞"


@styled
def draw_bars(panels: Sequence[Panel], label: str) -> Figure:
    """Means over seeds with standard errors, panel by panel."""
    widest = max(len(panel.names) for panel in panels)
    figure = Figure(figsize=(len(panels) * (1.2 + 0.24 * widest), 2.9))
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel)
        axes.set_xlabel(label)
    handles, labels = grid[0].get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower left", ncols=len(labels))
    return figure


@styled
def draw_rows(panels: Sequence[Panel]) -> Figure:
    """The same lying down, for long names that all panels share."""
    figure = Figure(figsize=(2.6 + 1.3 * len(panels), 0.9 + 0.22 * len(panels[0].names)))
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    rows = np.arange(len(panels[0].names))
    for axes, panel in zip(grid, panels, strict=True):
        estimates = [estimate(own or ()) for own in panel.values]
        means, errors = [e.mean for e in estimates], [e.stderr for e in estimates]
        axes.barh(rows, means, xerr=errors, color=BLUE, ecolor=GREY, error_kw={"linewidth": 0.8})
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set_title(panel.title)
        axes.tick_params(axis="y", length=0)
    grid[0].set_yticks(rows, panels[0].names)
    grid[0].invert_yaxis()
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    finite = [v for own in panel.values if own is not None for v in own]
    finite += [
        v
        for marks in panel.references.values()
        for v, own in zip(marks, panel.values, strict=True)
        if v is not None and own is not None
    ]
    top = max(finite, default=1.0) or 1.0
    for place, own in enumerate(panel.values):
        if own is None:
            axes.bar(place, top, color=PALE)
            many = len(panel.infinite) > 1
            style = {"ha": "center", "va": "top" if many else "bottom", "rotation": 90 * many}
            axes.text(place, top * (0.96 if many else 1), panel.infinite, **style)
            continue
        mean, stderr = estimate(own)
        axes.bar(place, mean, color=ORANGE if "no prior" in panel.names[place] else BLUE)
        axes.errorbar(place, mean, stderr, color=GREY, linewidth=0.8, capsize=2)
    for (name, marks), (mark, size, colour) in zip(panel.references.items(), _MARKS, strict=False):
        shown = [
            (place, value)
            for place, (value, own) in enumerate(zip(marks, panel.values, strict=True))
            if value is not None and own is not None
        ]
        if shown:
            places, values = np.transpose(shown)
            axes.scatter(places, values, s=size, marker=mark, color=colour, label=name, zorder=3)
    axes.set_xticks(range(len(panel.names)), panel.names, rotation=90)
    axes.set_title(panel.title)


@styled
def draw_curves(
    curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    *,
    title: str,
    label: str,
    references: Mapping[str, float] | None = None,
) -> Figure:
    """Means over seeds with a shade of one standard error, a colour for each setting."""
    figure = Figure(figsize=(4.6, 2.8))
    axes = figure.subplots()
    for (name, lines), colour in zip(curves.items(), COLOURS, strict=False):
        steps = np.array([step for step, _ in lines[0]])
        values = np.array([[value for _, value in line] for line in lines])
        errors = [estimate(column).stderr for column in values.T]
        mean = values.mean(0)
        axes.plot(steps, mean, color=colour, label=name)
        axes.fill_between(steps, mean - errors, mean + errors, color=colour, alpha=0.25, lw=0)
    _refer(axes, references or {})
    axes.set_xlabel(label)
    axes.set_title(title)
    axes.legend()
    return figure


@styled
def draw_groups(
    groups: Mapping[str, Sequence[Sequence[float]]], names: Sequence[str], title: str
) -> Figure:
    """Bars side by side: for each name one of every group, a mean over seeds with its error."""
    figure = Figure(figsize=(1.5 + 0.22 * len(groups) * len(names), 2.8))
    axes = figure.subplots()
    width = 0.8 / len(groups)
    for place, ((group, values), colour) in enumerate(zip(groups.items(), COLOURS, strict=False)):
        estimates = [estimate(own) for own in values]
        where = np.arange(len(names)) + (place - (len(groups) - 1) / 2) * width
        means, errors = [e.mean for e in estimates], [e.stderr for e in estimates]
        axes.bar(where, means, width, color=colour, label=group)
        axes.errorbar(where, means, errors, fmt="none", ecolor=GREY, elinewidth=0.8)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xticks(range(len(names)), names)
    axes.set_title(title)
    axes.legend()
    return figure


@styled
def draw_lines(
    lines: Mapping[str, np.ndarray],
    points: Mapping[str, np.ndarray],
    *,
    title: str,
    label: str,
    references: Mapping[str, float] | None = None,
    logarithmic: bool = True,
) -> Figure:
    """Lines and points, each [place, (x, y)]; both axes logarithmic unless told otherwise."""
    figure = Figure(figsize=(4.6, 2.8))
    axes = figure.subplots()
    for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
        axes.plot(*values.T, color=colour, label=name)
    for (name, values), mark in zip(points.items(), ("o", "x"), strict=False):
        axes.plot(*values.T, mark, markersize=4, color="black", fillstyle="none", label=name)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
    _refer(axes, references or {})
    axes.set_xlabel(label)
    axes.set_title(title)
    axes.legend()
    return figure


def _refer(axes: Axes, references: Mapping[str, float]) -> None:
    for name, value in references.items():
        axes.axhline(value, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
        where = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        axes.annotate(name, (1, value), color=GREY, **where)


@styled
def draw_series(
    series: Mapping[str, Sequence[tuple[float, Sequence[float]]]],
    *,
    title: str,
    label: str,
    logarithmic: bool = False,
) -> Figure:
    """Means with standard errors over what was varied, a colour for each series."""
    figure = Figure(figsize=(4.6, 2.8))
    axes = figure.subplots()
    for (name, points), colour in zip(series.items(), COLOURS, strict=False):
        estimates = [estimate(own) for _, own in points]
        axes.errorbar(
            [place for place, _ in points],
            [e.mean for e in estimates],
            [e.stderr for e in estimates],
            color=colour,
            label=name,
            marker="o",
            markersize=3,
            capsize=2,
        )
    if logarithmic:
        axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.set_title(title)
    axes.legend()
    return figure
