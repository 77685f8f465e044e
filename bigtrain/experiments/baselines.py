"""What one would do without BIG, beside BIG, on every problem of the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from bigtrain.experiments import comparison, drawing
from bigtrain.experiments.comparison import Contest
from bigtrain.experiments.experiment import Experiment, Piece, Preset
from bigtrain.experiments.findings import Claim, Findings, Picture, Table
from bigtrain.experiments.statistics import estimate

CONTESTS = (
    Contest("tiger-treasure", k=0.9, num_demonstrations=100),
    Contest("detour", demonstration_horizon=40),
    Contest(
        "tiger-maze",
        (("p_hear", 0.85),),
        k=0.1,
        horizon=40,
        num_demonstrations=1_000,
        demonstration_horizon=40,
        anywhere=True,
        prior_variance=0.01,
    ),
    Contest("three-state"),
    Contest("crossroads"),
)


@final
@dataclass(frozen=True)
class Settings:
    """The problems, and how often each is learned."""

    contests: tuple[Contest, ...] = CONTESTS
    num_seeds: int = 3


def settings(preset: Preset, seeds: int | None) -> Settings:
    """What a preset stands for; the paper compares with IRL alone and prints no settings."""
    if preset == "smoke":
        return Settings((comparison.hurry(CONTESTS[1]),), seeds or 1)
    return Settings(num_seeds=seeds or (10 if preset == "paper" else 3))


def pieces(settings: Settings) -> Mapping[str, Piece]:
    """What is to be done."""
    return {
        contest.env: lambda place, contest=contest: comparison.hold(
            contest, place, settings.num_seeds
        )
        for contest in settings.contests
    }


def tell(found: Mapping[str, Sequence[Mapping[str, Any]]], what: str) -> dict[str, str | None]:
    """A number of every method, in words; None where the problem does not define it."""
    return {
        name: None
        if found[name][0][what] is None
        else str(estimate([own[what] for own in found[name]]))
        for name in comparison.METHODS
    }


def mean(results: Sequence[Mapping[str, Any]], what: str = "return") -> float:
    """The mean over seeds."""
    return float(np.mean([own[what] for own in results]))


def conclude(settings: Settings, found: Mapping[str, Any]) -> Findings:
    """What follows."""
    names = [contest.env for contest in settings.contests]
    returns = {name: tell(found[name], "return") for name in names}
    explored = [name for name in names if found[name][comparison.TRUE][0]["exploring"] is not None]
    tables = [
        Table(
            "True return",
            ("method", *(f"{c.env}, {c.horizon} steps" for c in settings.contests)),
            [(method, *(returns[n][method] for n in names)) for method in comparison.METHODS],
            "Mean and standard error over seeds where something is learned; copies by networks are "
            "played, the same episodes for every seed. Where a problem has nothing to explore, BIG "
            "and IRL without a prior are the same. Where averaging contexts leaves no preference, "
            "any action is taken.",
        ),
        *(
            Table(
                title,
                ("method", *explored),
                [
                    (method, *(tell(found[name], what)[method] for name in explored))
                    for method in comparison.METHODS
                ],
            )
            for what, title in (("success", "Success"), ("exploring", "Steps of exploring"))
            if explored
        ),
    ]
    panels = [
        drawing.Panel(
            name,
            comparison.METHODS,
            [[own["return"] for own in found[name][method]] for method in comparison.METHODS],
            {},
        )
        for name in names
    ]
    return Findings(
        "Copying experts fails wherever what they saw decides what they did: a copy does not know "
        "it, and no memory helps, for nothing in the demonstrations shows how to find out. "
        "Inferring what experts wanted, and in which context each was, and pricing exploration, "
        "does as well as if the reward were known.",
        [_claim(contest, found[contest.env]) for contest in settings.contests],
        tables,
        (
            Picture(
                "baselines",
                "True return of every method on every problem, mean over seeds with standard "
                "errors where something is learned.",
                drawing.draw_rows(panels),
            ),
        ),
    )


def _claim(contest: Contest, found: Mapping[str, Any]) -> Claim:
    best = mean(found[comparison.TRUE])
    ours = mean(found[comparison.BIG_LEARNED])
    copies = (comparison.COPIED, comparison.COPIED_NETWORK, comparison.COPIED_RECURRENT)
    copy = max(copies, key=lambda name: mean(found[name]))
    copied, error = mean(found[copy]), found[copy][0].get("stderr", 0.0)
    prior = "" if contest.k is None else f", k* = {contest.k:g},"
    return Claim(
        f"{contest.env}: BIG{prior} does as well as if the reward were known, and no copy does "
        "better.",
        f"BIG {ours:.4g}, with the reward {best:.4g}, the best copy {estimate([copied])}"
        + (f" ± {error:.2g} over episodes" if error else ""),
        abs(ours - best) <= 0.01 * abs(best) + 1e-9 and copied <= ours + 4 * error + 1e-9,
    )


EXPERIMENT = Experiment("baselines", "What one would do without BIG", settings, pieces, conclude)
