"""Beyond the paper: mazes of up to 31 × 31 cells.

The reward is inferred exactly, a weight for every state as in the paper, and the policy is
Bayes-optimal for it; for the mazes in `learned` the policy is learned as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from bigtrain import envs
from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.experiments import drawing, learning
from bigtrain.experiments.comparison import swept
from bigtrain.experiments.experiment import Experiment, Piece, Preset, Workplace
from bigtrain.experiments.findings import Claim, Findings, Picture, Table
from bigtrain.experiments.learning import label, regret_of, task_of
from bigtrain.experiments.statistics import estimate
from bigtrain.finite import (
    TabularCMDP,
    anywhere,
    demonstrate,
    map_reward,
    policy_value,
    solve_bayes,
)
from bigtrain.reward import IRLConfig
from bigtrain.runs import Event

TRUE = "true reward"


@final
@dataclass(frozen=True)
class Settings:
    """Widths of mazes, and of those in which policies are learned; all odd."""

    widths: tuple[int, ...] = (3, 7, 11, 15, 21, 31)
    learned: tuple[int, ...] = (7, 15, 31)
    ks: tuple[float | None, ...] = (0.01, None)
    p_hear: float = 0.85
    num_demonstrations: int = 2_000
    num_seeds: int = 3
    num_restarts: int = 0
    temperature: float = 0.01
    prior_variance: float = 0.01
    policy: BayesRLConfig = field(
        default_factory=lambda: swept(4_096, horizon=80, target_regret=1e-2)
    )


def settings(preset: Preset, seeds: int | None) -> Settings:
    """What a preset stands for."""
    if preset == "smoke":
        return Settings(widths=(3, 5), learned=(), num_demonstrations=200, num_seeds=seeds or 1)
    return Settings(num_seeds=seeds or 3)


def pieces(settings: Settings) -> Mapping[str, Piece]:
    """What is to be done."""
    return {
        f"{width}x{width}": lambda place, width=width: explore(settings, width, place)
        for width in settings.widths
    }


def draw_map(width: int) -> tuple[str, ...]:
    """A square floor with doors at both ends of its middle row."""
    middle = width // 2
    rows = [["#"] + ["."] * width + ["#"] for _ in range(width)]
    rows[middle][0], rows[middle][-1] = "L", "R"
    rows[middle][1 + middle] = "S"
    rows[middle + 1][1 + middle] = "x"
    wall = "#" * (width + 2)
    return (wall, *map("".join, rows), wall)


def horizon(width: int) -> int:
    """Steps for about ten rounds, as 40 are in the maze of 3 × 3."""
    return 10 * (width // 2 + 3)


def explore(settings: Settings, width: int, place: Workplace) -> dict[str, Any]:
    """One maze: exact answers, and learned ones where these are asked for."""
    problem = envs.make("tiger-maze", map=draw_map(width), p_hear=settings.p_hear)
    task = task_of(problem)
    shown = demonstrate(
        problem,
        task.reward,
        episodes=settings.num_demonstrations,
        horizon=2 * width,
        initial=anywhere(problem),
    )
    irl = IRLConfig(temperature=settings.temperature, prior_variance=settings.prior_variance)
    steps = horizon(width)
    found: dict[str, Any] = {
        "states": problem.num_states,
        TRUE: describe(problem, solve_bayes(problem, np.asarray(task.reward)).policy, steps),
    }
    rewards = {}
    posterior = map_reward(
        problem,
        shown,
        irl,
        num_restarts=settings.num_restarts,
        report=lambda number, mismatch: _announce(place, number, mismatch),
    ).posterior
    for k in settings.ks:
        reward = learning.predict(problem, posterior, k)
        best = solve_bayes(problem, reward.table()).policy
        found[label(k)] = describe(problem, best, steps)
        rewards[label(k)] = [reward] * settings.num_seeds
    if width in settings.learned:
        seeds = range(settings.num_seeds)
        learned = learning.learn(place, problem, rewards, settings.policy, seeds)
        found["learned"] = {
            name: [learning.describe(one, problem, horizon=steps) for one in own]
            for name, own in learned.items()
        }
    return found


def _announce(place: Workplace, number: int, mismatch: float) -> None:
    for callback in place.callbacks:
        callback(Event("reward", number, {"mismatch": mismatch}))


def describe(problem: TabularCMDP, policy: Any, steps: int) -> dict[str, Any]:
    """What a policy brings, and its value: the true discounted return without end."""
    found = learning.describe_policy(policy, problem, horizon=steps)
    value, _ = policy_value(policy, problem, reward=np.asarray(task_of(problem).reward))
    return {**found, "value": value}


def conclude(settings: Settings, found: Mapping[str, Any]) -> Findings:
    """What follows."""
    names = [TRUE, *map(label, settings.ks)]
    rows = []
    for width in settings.widths:
        own = found[f"{width}x{width}"]
        learned = own.get("learned", {})
        cells: list[Any] = [f"{width} × {width}", own["states"], horizon(width)]
        for name in names:
            cells.append(f"{own[name]['return']:.3f} ({own[name]['exploring']:.3g})")
        for name in names[1:]:
            told = [one["return"] for one in learned.get(name, [])]
            cells.append(str(estimate(told)) if told else None)
        regrets = [regret_of(one) for own in learned.values() for one in own]
        cells.append(f"{max(regrets):.2%}" if regrets else None)
        rows.append(tuple(cells))
    shares = {
        name: [
            (float(width), [_share(found[f"{width}x{width}"], name)]) for width in settings.widths
        ]
        for name in names[1:]
    }
    priced = label(settings.ks[0])
    least = min(_share(found[f"{width}x{width}"], priced) for width in settings.widths)
    learned = [
        one
        for width in settings.widths
        for own in found[f"{width}x{width}"].get("learned", {}).values()
        for one in own
    ]
    claims = [
        Claim(
            f"In every maze BIG, k* = {settings.ks[0]:g}, does as well as with the true reward.",
            f"{least:.2%} of its discounted return at the least",
            least > 0.99,
        )
    ]
    if learned:
        good = [regret_of(one) <= 0.01 for one in learned]
        claims.append(
            Claim(
                "Learned policies have a regret of at most 1% in at least 9 of 10 cases.",
                f"{sum(good)} of {len(good)}",
                sum(good) >= 0.9 * len(good),
            )
        )
    return Findings(
        "Larger mazes have more states to weigh and longer ways to go, but not more to find out: "
        "one step of listening still decides. Their rewards are inferred a weight a state, nearly "
        "three thousand of them in the largest.",
        claims,
        (
            Table(
                "True return (listens) by size",
                (
                    "maze",
                    "states",
                    "steps",
                    *(f"{name}, exact" for name in names),
                    *(f"{name}, learned" for name in names[1:]),
                    "worst regret",
                ),
                rows,
                "Exact: the Bayes-optimal policy for the exact MAP reward. Learned: the policy is "
                "learned for that reward; mean and standard error over seeds.",
            ),
        ),
        (
            Picture(
                "larger-mazes",
                "True discounted return as a share of what the best policy for the true reward "
                "brings; the policies are Bayes-optimal for the exact MAP reward.",
                drawing.draw_series(shares, title="share of the best value", label="width"),
            ),
        ),
    )


def _share(own: Mapping[str, Any], name: str) -> float:
    return own[name]["value"] / own[TRUE]["value"]


EXPERIMENT = Experiment("larger-mazes", "Larger mazes", settings, pieces, conclude)
