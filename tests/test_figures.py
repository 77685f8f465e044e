"""Figures show the numbers they are about, whatever the problem's size."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from problems import Hidden, Watchful, random_cmdp

from bigtrain import CostOfExploration, Fixed, Uniform, demonstrate, envs, figures, solve
from bigtrain.errors import ConfigError
from bigtrain.exploration import PredictiveReward
from bigtrain.figures import draw_beliefs, draw_learning, draw_reward, save_figures
from bigtrain.finite.cmdp import TabularCMDP, Task
from bigtrain.finite.policies import MemorylessPolicy
from bigtrain.result import FitResult
from bigtrain.runs import Event

ORANGE = "#d9822b"


@functools.cache
def problem(name: str = "tiger-treasure") -> tuple[TabularCMDP, Task]:
    env = envs.make(name)
    assert env.task is not None
    return env, env.task


@functools.cache
def solved(name: str = "tiger-treasure") -> FitResult:
    env, task = problem(name)
    demonstrations = demonstrate(env, task.reward, episodes=50, horizon=20)
    exploration = CostOfExploration(task.exploration_states, k=Uniform(0.0, 0.2))
    return solve(env, demonstrations, reward_range=task.reward_range, exploration=exploration)


def labels(axes: Any, axis: str) -> list[str]:
    return [label.get_text() for label in getattr(axes, f"get_{axis}ticklabels")()]


def draw(figure: Figure) -> Figure:
    """Lays it out and renders it, where bad values would raise or warn."""
    figure.canvas.draw()
    return figure


def bars(figure: Figure) -> list[Rectangle]:
    (axes,) = figure.axes
    return [bar for bar in axes.patches if isinstance(bar, Rectangle)]


@pytest.mark.parametrize("name", ["tiger-treasure", "tiger-maze"])
def test_bars_are_the_predictive_reward(name):
    (env, task), reward = problem(name), solved(name).reward
    figure = draw(draw_reward(reward))
    assert [bar.get_width() for bar in bars(figure)] == reward.table()[:, 0].tolist()
    assert labels(figure.axes[0], "y") == list(env.state_names)
    orange = [to_hex(bar.get_facecolor()) == ORANGE for bar in bars(figure)]
    assert tuple(np.flatnonzero(orange)) == task.exploration_states


def test_deviations_are_the_posteriors():
    reward = solved().reward
    (axes,) = draw_reward(reward).axes
    (whiskers,) = axes.collections
    assert isinstance(whiskers, LineCollection)
    lengths = [abs(np.diff(np.asarray(line)[:, 0]).item()) for line in whiskers.get_segments()]
    np.testing.assert_allclose(lengths, 2 * np.sqrt(reward.variance_table()[:, 0]), rtol=1e-9)
    # k is uniform over an interval of 0.2: its deviation is 0.2 / √12, times r_max = 10.
    assert labels(axes.child_axes[0], "y")[1] == "1.0 ± 0.6"


def test_where_actions_differ_every_pair_has_a_cell():
    listening = CostOfExploration(["T1", "T2"], actions=["listen"], k=Fixed(0.5))
    reward = dataclasses.replace(solved().reward, exploration=listening)
    (axes,) = draw(draw_reward(reward)).axes
    np.testing.assert_array_equal(axes.images[0].get_array(), reward.table())
    assert labels(axes, "x") == ["open-1", "open-2", "listen"]
    marks = np.asarray(axes.collections[0].get_offsets())
    np.testing.assert_array_equal(np.round(marks), [[2, 1], [2, 2]])  # listen, in T1 and in T2


def test_of_many_states_the_extremes_are_shown():
    cmdp = random_cmdp(0, num_states=figures.MOST_STATES + 5)
    weights = np.random.default_rng(0).normal(size=cmdp.num_states)
    reward = PredictiveReward(cmdp, weights, 0.0, np.eye(cmdp.num_states), 1.0, (-3.0, 3.0), None)
    (axes,) = draw(draw_reward(reward)).axes
    hidden = set(cmdp.state_names) - set(labels(axes, "y"))
    order = np.argsort(weights)
    half = figures.MOST_STATES // 2
    assert hidden == {cmdp.state_names[state] for state in order[half:-half]}
    assert f"of {cmdp.num_states}" in axes.get_title(loc="left")


def test_a_simulator_has_a_bar_for_each_feature():
    env, _ = problem()
    reward = dataclasses.replace(solved().reward, cmdp=Hidden(env), exploration=None)
    figure = draw(draw_reward(reward))
    np.testing.assert_array_equal([bar.get_width() for bar in bars(figure)], reward.weights)


def panels(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.axison}


def curve(axes: Axes, place: int = 0) -> tuple[list[float], list[float]]:
    line = axes.lines[place]
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


def test_phases_follow_each_other():
    history = [
        Event("features", 1, {"loss": 3.0, "accuracy/left": 0.5, "accuracy/right": 0.4}),
        Event("features", 2, {"loss": 2.0, "accuracy/left": 0.6, "accuracy/right": float("nan")}),
        Event("settling", 1, {"loss": 1.0, "lower": -2.0, "upper": 5.0}),
    ]
    shown = panels(draw(draw_learning(history)))
    assert list(shown) == ["loss", "accuracy", "bounds"]
    assert curve(shown["loss"]) == ([1, 2, 3], [3.0, 2.0, 1.0])
    assert labels(shown["loss"], "x") == ["features\n2", "settling\n1"]
    assert curve(shown["accuracy"], 0) == ([1, 2], [0.5, 0.6])
    assert curve(shown["accuracy"], 1) == ([1], [0.4])
    assert [curve(shown["bounds"], i) for i in (0, 1)] == [([3], [-2.0]), ([3], [5.0])]


def test_every_seed_has_a_line_whether_in_one_history_or_in_several():
    together = [Event("a", step, {"x": [step + 1.0, step + 2.0]}) for step in (1, 2, 3)]
    apart = [[Event("a", step, {"x": step + add}) for step in (1, 2, 3)] for add in (1.0, 2.0)]
    for figure in (draw_learning(together), draw_learning(*apart)):
        (axes,) = figure.axes
        assert [curve(axes, i)[1] for i in (0, 1)] == [[2, 3, 4], [3, 4, 5]]


def test_what_falls_by_orders_is_drawn_by_orders():
    fallen = [Event("a", step, {"x": 10.0 ** (3 - step), "y": 0.5}) for step in range(1, 8)]
    shown = panels(draw(draw_learning(fallen)))
    assert shown["x"].get_yscale() == "log" and shown["y"].get_yscale() == "linear"
    zeros = [*fallen, Event("a", 8, {"x": 0.0})]
    _, drawn = curve(panels(draw(draw_learning(zeros)))["x"])
    assert drawn[-1] == 1e-9 * 100 and drawn[:-1] == [event.metrics["x"] for event in fallen]


@pytest.mark.parametrize("history", [[], [Event("a", 1, {"x": float("nan")})]])
def test_nothing_to_draw_is_said(history: Sequence[Event]):
    with pytest.raises(ConfigError, match="finite metric"):
        draw_learning(history)


def columns(axes: Axes) -> np.ndarray:
    """What is believed of each context, by step."""
    containers = [c for c in axes.containers if c]
    return np.array([[bar.get_height() for bar in container] for container in containers]).T


def test_beliefs_follow_bayes_rule():
    """After one hearing 0.85, after two that agree 0.9698: both from p_hear alone."""
    env, _ = problem()
    always = np.tile(np.eye(3)[2], (6, 1))  # listen, whatever happens
    figure = draw(draw_beliefs(Watchful(env, always), env, episodes=3, horizon=6))
    hearing = 0.85 / 0.15
    possible = {round(hearing**n / (1 + hearing**n), 5) for n in range(-6, 7)}
    assert len(figure.axes) == 3 * 2
    for axes in figure.axes:
        believed = columns(axes)
        np.testing.assert_allclose(believed.sum(1), 1, atol=1e-6)
        assert believed[0, :2].tolist() == [0.5, 0.5]
        assert {round(float(p), 5) for p in believed[:, 0]} <= possible
        assert set(labels(axes, "x")) == {"listen"}


def test_an_episode_ends_with_what_changes():
    figure = draw_beliefs(solved().policy, solved().cmdp, episodes=2, horizon=30)
    for axes in figure.axes:
        taken = labels(axes, "x")
        opened = next(i for i, action in enumerate(taken) if action.startswith("open"))
        assert len(taken) == opened + 2  # through the door, and from there to the end
        assert set(taken[:opened]) <= {"listen"}


def test_of_many_contexts_the_likeliest_are_shown():
    base = random_cmdp(1, num_contexts=9)
    prior = np.array([1, 9, 2, 8, 3, 7, 4, 6, 5]) / 45
    cmdp = TabularCMDP(base.transitions, prior, base.initial, gamma=0.9)
    policy = MemorylessPolicy(cmdp, np.full((4, 2), 0.5))
    figure = draw(draw_beliefs(policy, cmdp, episodes=1, horizon=4))
    assert list(panels(figure)) == [f"context context-{c}" for c in (1, 3, 5, 7)]
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == [f"context-{c}" for c in (1, 3, 5, 7, 8, 6)] + ["others"]
    first = columns(figure.axes[0])[0]
    np.testing.assert_allclose(first, [*(np.array([9, 8, 7, 6, 5, 4]) / 45), 6 / 45], atol=1e-6)


def test_a_simulator_has_beliefs_too():
    env, _ = problem()
    figure = draw(draw_beliefs(solved().policy, Hidden(env), episodes=1, horizon=10))
    assert list(panels(figure)) == ["context context-0", "context context-1"]


def test_figures_are_saved_the_same_each_time(tmp_path: Path):
    before = dict(mpl.rcParams)
    first = save_figures(solved(), tmp_path / "a" / "b")
    second = save_figures(solved(), tmp_path / "c")
    names = [
        f"{name}.{kind}" for name in ("reward", "learning", "beliefs") for kind in ("png", "svg")
    ]
    assert [path.name for path in first] == names
    for path, again in zip(first, second, strict=True):
        start = path.read_bytes()[:8]
        assert start == (b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else b"<?xml ve")
        assert path.read_bytes() == again.read_bytes()
    assert dict(mpl.rcParams) == before
