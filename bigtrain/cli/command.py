"""What all commands share: what a flag may say of itself, and how text and JSON are printed."""

import abc
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console, RenderableType

Env = Annotated[str, tyro.conf.arg(metavar="ENV")]
File = Annotated[Path, tyro.conf.arg(metavar="FILE")]
OptionalEnv = Annotated[str | None, tyro.conf.arg(metavar="[ENV]", help_behavior_hint="")]
OptionalFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
OptionalFolder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
OptionalNumber = Annotated[float | None, tyro.conf.arg(help_behavior_hint="")]
Options = tyro.conf.UseAppendAction[
    Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE", help_behavior_hint="")]
]


@dataclass(frozen=True, kw_only=True)
class Command(abc.ABC):
    """A command with its flags; the docstrings are its help."""

    debug: bool = False
    """Show where an error comes from; so does BIGTRAIN_DEBUG=1."""

    @abc.abstractmethod
    def perform(self) -> None:
        """Does what was asked for. Results go to standard output, all else to standard error."""


def show(result: RenderableType) -> None:
    """Prints a result for a person."""
    Console().print(result)


def show_json(result: Any) -> None:
    """Prints a result for a program."""
    print(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False))
