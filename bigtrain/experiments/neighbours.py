"""Two problems of the neighbouring literature, beside the figures published for them.

PoisonedDoors and 2D-Lighthouse, and all published figures, are from Weihs et al., "Bridging the
Imitation Gap by Adaptive Insubordination". Their best methods see the reward; BIG does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from bigtrain.experiments import comparison
from bigtrain.experiments.baselines import mean, tell
from bigtrain.experiments.comparison import Contest, swept
from bigtrain.experiments.experiment import Experiment, Piece, Preset
from bigtrain.experiments.findings import Claim, Findings, Table
from bigtrain.experiments.statistics import estimate
from bigtrain.reward import InferenceConfig

DOORS = Contest(
    "poisoned-doors",
    k=0.99,
    num_demonstrations=300,
    # Random play seldom enters the code, so successor features take longer to learn.
    inference=InferenceConfig(num_iterations=100),
    policy=swept(512, horizon=20),
)
LIGHTHOUSE = Contest(
    "lighthouse",
    num_demonstrations=200,
    demonstration_horizon=60,
    horizon=1_000,
    num_episodes=250,
    learn_reward=False,
    policy=swept(8_192, horizon=120, num_iterations=200),
)
PUBLISHED = {
    "poisoned-doors": {
        "PPO*": 0.0,
        "behaviour cloning": -0.60,
        "DAgger": -0.59,
        "behaviour cloning, then PPO*": -0.17,
        "GAIL": -0.09,
        "ADVISOR*": 1.00,
    },
    "lighthouse": {
        "PPO*": 323.8,
        "behaviour cloning": 454.9,
        "DAgger": 485.5,
        "behaviour cloning, then PPO*": 104.6,
        "ADVISOR*": 86.7,
    },
}
BEST_LENGTH = 72.0


@final
@dataclass(frozen=True)
class Settings:
    """The problems, and how often each is learned."""

    contests: tuple[Contest, ...] = (DOORS, LIGHTHOUSE)
    num_seeds: int = 3


def settings(preset: Preset, seeds: int | None) -> Settings:
    """What a preset stands for."""
    if preset == "smoke":
        return Settings((comparison.hurry(DOORS),), seeds or 1)
    return Settings(num_seeds=seeds or 3)


def pieces(settings: Settings) -> Mapping[str, Piece]:
    """What is to be done."""
    return {
        contest.env: lambda place, contest=contest: comparison.hold(
            contest, place, settings.num_seeds
        )
        for contest in settings.contests
    }


def length(result: Mapping[str, Any]) -> float:
    """Steps to the goal of lighthouse: a step costs 0.01, and the goal pays 1."""
    return 100 * (result["success"] - result["return"])


def conclude(settings: Settings, found: Mapping[str, Any]) -> Findings:
    """What follows."""
    tables, claims = [], []
    if DOORS.env in found:
        doors = found[DOORS.env]
        rows = [(name, cell, "ours") for name, cell in tell(doors, "return").items()]
        rows += [(name, v, "published") for name, v in PUBLISHED[DOORS.env].items()]
        tables.append(
            Table(
                "PoisonedDoors: return",
                ("method", "return", ""),
                rows,
                f"BIG's prior has k* = {DOORS.k:g}. Methods with * see the reward. No "
                "demonstration tells the code's end from a wrong symbol, so the prior must say "
                "that entering a code is nearly as good as a good door.",
            )
        )
        ours = mean(doors[comparison.BIG_LEARNED])
        claims.append(
            Claim(
                "PoisonedDoors: without the reward BIG reaches what the best method reaches with "
                "it, 1.00.",
                f"{ours:.4g}; behaviour cloning {mean(doors[comparison.COPIED]):.3f}, "
                "published −0.60",
                ours >= 0.99,
            )
        )
    if LIGHTHOUSE.env in found:
        house = found[LIGHTHOUSE.env]
        rows = [
            (name, str(estimate([length(own) for own in house[name]])), "ours")
            for name in comparison.METHODS
        ]
        rows += [(name, v, "published") for name, v in PUBLISHED[LIGHTHOUSE.env].items()]
        rows.append(("best there is, by formula", BEST_LENGTH, "published"))
        tables.append(
            Table(
                "2D-Lighthouse: steps to the goal",
                ("method", "steps", ""),
                rows,
                f"At most {LIGHTHOUSE.horizon:,} steps. No prior is needed here: looking into a "
                "corner costs no more than the way. Methods with * see the reward.",
            )
        )
        lengths = [length(own) for own in house[comparison.BIG_LEARNED]]
        claims.append(
            Claim(
                "2D-Lighthouse: without the reward BIG is faster than the best published method, "
                "86.7 steps, which sees it.",
                f"{estimate(lengths)} steps; the best there is takes {BEST_LENGTH:g}",
                max(lengths) < PUBLISHED[LIGHTHOUSE.env]["ADVISOR*"],
            )
        )
    return Findings(
        "In both problems the expert knows what the agent must find out, and never shows how. "
        "Methods that only imitate guess; those that do well do so by trying for themselves what "
        "pays. BIG infers what pays from the same demonstrations, and then knows by itself that "
        "it must enter the code, or look into the corners one after another.",
        claims,
        tables,
    )


EXPERIMENT = Experiment(
    "neighbours", "Problems of the neighbouring literature", settings, pieces, conclude
)
