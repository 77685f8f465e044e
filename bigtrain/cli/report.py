"""`bigtrain report`: from what experiments left behind to a page to read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

import tyro

from bigtrain.atomic import atomic_write
from bigtrain.cli.command import Command, OptionalFile
from bigtrain.errors import ConfigError

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]


@final
@dataclass(frozen=True)
class Report(Command):
    """Make one HTML file, which needs nothing else, of what experiments found."""

    directory: tyro.conf.Positional[Folder]
    """The directory of an experiment, or a directory of such directories."""

    out: OptionalFile = None
    """Where to write the page; by default report.html in that directory, made anew each time."""

    force: bool = False
    """Overwrite the file that --out names if there is one."""

    def perform(self) -> None:
        from bigtrain.experiments import compose, names  # matplotlib takes long to import

        own = self.directory / "report.html"  # made of the directory, so it may be made again
        path = self.out or own
        if path.resolve() != own.resolve():
            _check_free(path, self.force)
        page = compose(self.directory, order=names())
        with atomic_write(path) as file:
            file.write(page.encode())
        print(f"Written to {path}")


def _check_free(path: Path, force: bool) -> None:
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"`--out` must be a file in a directory that exists, got {path}.")
    if path.exists() and not force:
        raise ConfigError(f"`{path}` exists. Overwrite it by `--force`, or choose another name.")
