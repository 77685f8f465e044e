"""`bigtrain reproduce`: the paper's experiments, and some beyond it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, final

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bigtrain.cli.command import Command, show
from bigtrain.errors import ConfigError
from bigtrain.runs import Progress

ALL = "all"
Names = Annotated[
    tuple[str, ...],
    tyro.conf.arg(metavar="EXPERIMENT [EXPERIMENT ...]", help_behavior_hint=""),
]
Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
Count = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]


@final
@dataclass(frozen=True)
class Reproduce(Command):
    """Run experiments of the paper, or all of them, each beside the exact answer.

    There are exploration-prior, context-inference, maze, temperature, baselines, neighbours,
    robustness and larger-mazes. Interrupted or killed, the same command goes on where it was.
    """

    experiments: tyro.conf.Positional[Names]
    """Names of these, or all."""

    preset: Literal["fast", "paper", "smoke"] = "fast"
    """The least time, the settings that the paper prints, or only enough to see it run."""

    seeds: Count = None
    """How many seeds, by default as many as the preset has."""

    out: Folder = Path("results")
    """Where results, figures, bundles and metrics go, a folder for each experiment."""

    tensorboard: bool = False
    """Write the metrics for TensorBoard too."""

    def perform(self) -> None:
        from bigtrain import experiments  # matplotlib takes long to import

        chosen = experiments.names() if self.experiments == (ALL,) else self.experiments
        every = [experiments.get(name) for name in chosen]
        if not every:
            raise ConfigError(f"Name an experiment, or all: {', '.join(experiments.names())}.")
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"`--seeds` must be at least 1, got {self.seeds}.")
        missed = 0
        try:
            for experiment in every:
                with Progress(Console(stderr=True)) as progress:
                    found = experiments.carry_out(
                        experiment,
                        self.out / experiment.name,
                        preset=self.preset,
                        seeds=self.seeds,
                        callbacks=[progress],
                        tensorboard=self.tensorboard,
                    )
                show(_render(experiment.title, found.claims))
                missed += sum(not claim.holds for claim in found.claims)
        except KeyboardInterrupt:
            kept = f"The same command goes on from `{self.out}`."
            raise KeyboardInterrupt(kept) from None
        folder = self.out if len(every) > 1 else self.out / every[0].name
        print(f"Everything is in {self.out}. See it by: bigtrain report {folder}")
        if missed:
            print(f"{missed} of what was to be shown does not hold.")


def _render(title: str, claims: Sequence) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    for claim in claims:
        mark = Text("holds" if claim.holds else "DOES NOT HOLD", "green" if claim.holds else "red")
        table.add_row(mark, Text(claim.statement).append(f"\n{claim.shown}", style="dim"))
    return table
