"""A page to read, one HTML file that needs nothing else, from what experiments left behind."""

from pathlib import Path

from bigtrain.experiments import names
from bigtrain.experiments.report.gather import gather
from bigtrain.experiments.report.page import render

__all__ = ["compose"]


def compose(directory: Path) -> str:
    """The page of an experiment's directory, or of a directory of such directories."""
    return render(gather(directory, order=names()))
