"""What an experiment found: claims with the numbers that show them, tables, and pictures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from matplotlib.figure import Figure

from bigtrain.atomic import atomic_write
from bigtrain.errors import CheckpointError
from bigtrain.figures import save_figure

FILE = "findings.json"
Cell = str | int | float | None


@final
@dataclass(frozen=True)
class Claim:
    """Something that was to be shown, the number that shows it, and whether it does."""

    statement: str
    shown: str
    holds: bool


@final
@dataclass(frozen=True)
class Table:
    """Rows of numbers and words; None is what is not known or makes no sense."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@final
@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its caption; `name` is that of its files."""

    name: str
    caption: str
    figure: Figure


@final
@dataclass(frozen=True, eq=False)
class Findings:
    """All of it; `summary` says in plain words what it means."""

    summary: str
    claims: Sequence[Claim]
    tables: Sequence[Table]
    pictures: Sequence[Picture] = ()


def write(findings: Findings, directory: Path, about: Mapping[str, Any]) -> None:
    """Pictures as PNG and SVG into figures/, and all else, with `about`, into findings.json."""
    folder = directory / "figures"
    folder.mkdir(exist_ok=True)
    for picture in findings.pictures:
        save_figure(picture.figure, folder, picture.name)
    row = {
        **about,
        "summary": findings.summary,
        "claims": [vars(claim) for claim in findings.claims],
        "tables": [vars(table) for table in findings.tables],
        "figures": [{"name": p.name, "caption": p.caption} for p in findings.pictures],
    }
    with atomic_write(directory / FILE) as file:
        file.write(json.dumps(row, indent=2, ensure_ascii=False, default=_plain).encode())


def read(directory: Path) -> dict[str, Any]:
    """What `write` wrote."""
    path = directory / FILE
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(
            f"`{path}` must be JSON, but is damaged ({error}). Run the experiment again."
        ) from error


def _plain(value: Any) -> Any:
    return value.item()  # numpy's numbers
