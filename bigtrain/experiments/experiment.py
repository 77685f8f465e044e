"""What an experiment is: settings, pieces of work, and what follows from their results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from bigtrain.experiments.findings import Findings
from bigtrain.runs import Callback

Preset = Literal["fast", "paper", "smoke"]
"""`fast` takes the least time, `paper` has the paper's settings, `smoke` shows that it runs."""


@final
@dataclass(frozen=True, eq=False)
class Workplace:
    """Where a piece of work is done: a directory of its own, and one for all its bundles."""

    directory: Path
    bundles: Path
    callbacks: Sequence[Callback] = ()
    tensorboard: bool = False


Piece = Callable[[Workplace], Any]
"""Does a piece of the work. What it finds is numbers and words that JSON can hold."""


@final
@dataclass(frozen=True, eq=False)
class Experiment:
    """An experiment by name. All of its functions are given the settings of a preset.

    `pieces` are done in their order, each once, and what they found goes to `conclude`.
    """

    name: str
    title: str
    settings: Callable[[Preset, int | None], Any]
    pieces: Callable[[Any], Mapping[str, Piece]]
    conclude: Callable[[Any, Mapping[str, Any]], Findings]
