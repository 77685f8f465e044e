"""A page to read, one HTML file that needs nothing else, from what experiments left behind."""

from collections.abc import Sequence
from pathlib import Path

from bigtrain.experiments.report.gather import gather
from bigtrain.experiments.report.page import render

__all__ = ["compose"]


def compose(directory: Path, *, order: Sequence[str]) -> str:
    """The page of an experiment's directory, or of a directory of such directories.

    Experiments come in the `order` of their names.
    """
    return render(gather(directory, order=order))
