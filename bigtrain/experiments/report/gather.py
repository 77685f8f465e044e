"""From directories to what a report tells: findings, pictures, and the names of policies."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bigtrain.errors import CheckpointError, ConfigError
from bigtrain.experiments import findings
from bigtrain.experiments.findings import Claim, Table

_KINDS = {".svg": "image/svg+xml", ".png": "image/png"}  # the better one first


@final
@dataclass(frozen=True)
class Image:
    """A picture as the bytes of its file."""

    caption: str
    kind: str
    data: bytes


@final
@dataclass(frozen=True)
class PolicyFile:
    """A bundle, its path seen from the report's directory."""

    path: str
    num_bytes: int


@final
@dataclass(frozen=True)
class Finished:
    """An experiment that was carried out."""

    name: str
    title: str
    preset: str
    seconds: float
    summary: str
    claims: Sequence[Claim]
    tables: Sequence[Table]
    images: Sequence[Image]
    policies: Sequence[PolicyFile]
    settings: Mapping[str, str]
    versions: Mapping[str, str]


@final
@dataclass(frozen=True)
class Unfinished:
    """An experiment that was begun; `num_pieces` of its pieces are done."""

    name: str
    num_pieces: int


@final
@dataclass(frozen=True)
class Gathered:
    """All that a report tells."""

    finished: Sequence[Finished]
    unfinished: Sequence[Unfinished]


def gather(directory: Path, *, order: Sequence[str]) -> Gathered:
    """Reads an experiment's directory, or all those in a directory.

    Experiments come in the `order` of their names, those that it does not have after these.
    """
    if not directory.is_dir():
        raise ConfigError(
            f"A report must be made of a directory that exists, got `{directory}`. Give one that "
            "an experiment left, or a directory of such directories."
        )
    folders = [directory]
    if not _is_begun(directory):
        folders = sorted(path for path in directory.iterdir() if path.is_dir())
    begun = [folder for folder in folders if _is_begun(folder)]
    done = [folder for folder in begun if (folder / findings.FILE).exists()]
    finished = [_read_finished(folder, directory) for folder in done]
    unfinished = [_read_unfinished(folder) for folder in begun if folder not in done]
    if not finished:
        got = f"only unfinished ones: {_list(unfinished)}" if unfinished else "none"
        raise ConfigError(
            f"`{directory}` must be the directory of an experiment that is finished (one with "
            f"{findings.FILE}), or hold such directories, but has {got}. Carry an experiment out "
            "in it first, to the end."
        )

    def place(one: Finished | Unfinished) -> tuple[int, str]:
        return (order.index(one.name), "") if one.name in order else (len(order), one.name)

    return Gathered(sorted(finished, key=place), sorted(unfinished, key=place))


def _is_begun(folder: Path) -> bool:
    """Whether an experiment was begun here; what learned a single policy has settings too."""
    if (folder / findings.FILE).exists():
        return True
    return (folder / "settings.json").exists() and _read_name(folder) is not None


def _read_name(folder: Path) -> str | None:
    """The experiment that the settings name; that of the folder, where they are damaged."""
    try:
        row = json.loads((folder / "settings.json").read_text())
    except ValueError:
        return folder.resolve().name
    settings = row.get("settings") if isinstance(row, dict) else None
    name = settings.get("experiment") if isinstance(settings, dict) else None
    return name if isinstance(name, str) else None


def _read_unfinished(folder: Path) -> Unfinished:
    name = _read_name(folder) or folder.resolve().name
    return Unfinished(name, len(list((folder / "results").glob("*.json"))))


def _read_finished(folder: Path, directory: Path) -> Finished:
    row = findings.read(folder)
    try:
        return Finished(
            name=str(row["experiment"]),
            title=str(row["title"]),
            preset=str(row["preset"]),
            seconds=float(row["seconds"]),
            summary=str(row["summary"]),
            claims=[_claim(**claim) for claim in row["claims"]],
            tables=[_table(**table) for table in row["tables"]],
            images=[_read_image(folder, **figure) for figure in row["figures"]],
            policies=[
                PolicyFile(str(path.relative_to(directory)), path.stat().st_size)
                for path in sorted((folder / "bundles").rglob("*.big"))
            ],
            settings={str(name): str(value) for name, value in row["settings"].items()},
            versions={str(name): str(value) for name, value in row["versions"].items()},
        )
    except CheckpointError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"`{folder / findings.FILE}` must be what an experiment wrote, but is not "
            f"({type(error).__name__}: {error}). Run the experiment again."
        ) from error


def _claim(statement: Any, shown: Any, holds: Any) -> Claim:
    return Claim(str(statement), str(shown), holds is True)


def _table(title: Any, columns: Any, rows: Any, note: Any = "") -> Table:
    cells = [[c if c is None or isinstance(c, int | float) else str(c) for c in r] for r in rows]
    return Table(str(title), [str(column) for column in columns], cells, str(note))


def _read_image(folder: Path, name: Any, caption: Any) -> Image:
    for suffix, kind in _KINDS.items():
        path = folder / "figures" / f"{name}{suffix}"
        # A name with a slash could lead to any file of this machine.
        if path.parent == folder / "figures" and path.is_file():
            return Image(str(caption), kind, path.read_bytes())
    raise CheckpointError(
        f"`{folder / 'figures'}` must hold {name}.svg or {name}.png, but has neither. Run the "
        "experiment again: what is done is not done again, and pictures are redrawn."
    )


def _list(unfinished: Sequence[Unfinished]) -> str:
    return ", ".join(one.name for one in unfinished)
