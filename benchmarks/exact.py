"""What exact answers cost, as ratios to a plain way of getting the same, taken in one run."""

import time
from collections.abc import Callable, Mapping

import numpy as np
from rich.console import Console
from rich.table import Table

from bigtrain import TabularCMDP, envs, exact
from bigtrain.finite import transitions

SIDE = 100


def main() -> None:
    """Measures and prints."""
    table = Table(title="exact answers")
    for column in ("what", "seconds", "ratio", "to"):
        table.add_column(column, justify="right" if column in ("seconds", "ratio") else "left")
    for name, problem in ((f"{SIDE} × {SIDE} grid", grid()), ("random graph", random_graph())):
        reward = np.random.default_rng(0).normal(size=problem.num_states)
        planned = clock(lambda p=problem, r=reward: exact.plan(p, r))
        swept = clock(lambda p=problem, r=reward: value_iteration(p, r))
        what = f"plan, {name}, {problem.num_states:,} states, 2 contexts"
        table.add_row(what, f"{planned:.2f}", f"{planned / swept:.2f}", "value iteration to 1e-6")
        policy = exact.plan(problem, reward).policy
        visited = np.arange(50)
        found = clock(lambda p=problem, q=policy, v=visited: exact.successor_features(p, q, v))
        table.add_row(
            f"Ψ of 50 states, {name}", f"{found:.2f}", f"{found / planned:.2f}", "its plan"
        )
    for size in (3, 31):
        maze = square_maze(size)
        assert maze.task is not None
        reward = maze.task.reward
        planned = clock(lambda m=maze, r=reward: exact.plan(m, r))
        solved = clock(lambda m=maze, r=reward: exact.solve_bayes(m, r))
        what = f"Bayes-optimal policy, {size} × {size} maze, hearing with 0.85"
        table.add_row(
            what, f"{solved:.2f}", f"{solved / planned:.1f}", "its plan, told the context"
        )
    Console().print(table)


def clock(work: Callable[[], object]) -> float:
    """Seconds that `work` takes, after one run to warm up."""
    work()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def value_iteration(problem: TabularCMDP, reward: np.ndarray) -> np.ndarray:
    """Plain sweeps until they change nothing by more than 1e-6."""
    successors, probabilities = problem.transitions
    values = np.zeros((problem.num_contexts, problem.num_states))
    while True:
        onward = (probabilities * values[:, successors]).sum(-1)
        swept = (reward[:, None] + problem.gamma * onward).max(-1)
        if np.abs(swept - values).max() < 1e-6:
            return swept
        values = swept


def grid() -> TabularCMDP:
    """A square in which steps slip; its goal depends on the context."""

    def outcomes(context: int, state: int, action: int) -> Mapping[int, float]:
        row, column = divmod(state, SIDE)
        step_row, step_column = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
        row = min(max(row + step_row, 0), SIDE - 1)
        column = min(max(column + step_column, 0), SIDE - 1)
        slip = (0.1, 0.3)[context]
        return (
            {state: 1.0}
            if SIDE * row + column == state
            else {SIDE * row + column: 1 - slip, state: slip}
        )

    dynamics = transitions.from_function(
        outcomes, num_contexts=2, num_states=SIDE**2, num_actions=4
    )
    return TabularCMDP(dynamics, [0.5, 0.5], np.eye(1, SIDE**2)[0], gamma=0.99)


def random_graph() -> TabularCMDP:
    """Three random successors for each state and action."""
    rng = np.random.default_rng(0)
    dynamics = transitions.Transitions(
        rng.integers(0, SIDE**2, (SIDE**2, 4, 3)), rng.dirichlet(np.ones(3), (2, SIDE**2, 4))
    )
    return TabularCMDP(dynamics, [0.5, 0.5], np.eye(1, SIDE**2)[0], gamma=0.99)


def square_maze(size: int) -> TabularCMDP:
    """tiger-maze with a larger floor."""
    half = size // 2
    floor = "#" + "." * size + "#"
    marked = "." * half
    rows = [floor] * (half - 1) if size > 3 else []
    drawing = [
        "#" * (size + 2),
        floor,
        *rows,
        f"L{marked}S{marked}R",
        *rows,
        f"#{marked}x{marked}#",
    ]
    return envs.make("tiger-maze", map=[*drawing, "#" * (size + 2)], p_hear=0.85)


if __name__ == "__main__":
    main()
