"""The command `bigtrain` (docs/commands.md): a command, its flags, and what becomes of errors."""

import contextlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated

import tyro

from bigtrain.cli.command import Command
from bigtrain.cli.evaluate import Evaluate
from bigtrain.cli.fit import Fit
from bigtrain.cli.listing import Envs, Inspect
from bigtrain.cli.report import Report
from bigtrain.cli.reproduce import Reproduce
from bigtrain.errors import BigTrainError, CMDPError, ConfigError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

_COMMANDS = (
    Annotated[Fit, tyro.conf.subcommand("fit")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[Envs, tyro.conf.subcommand("envs")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)
_ABOUT = "BIG: learn from an expert who saw more than you ever will."


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the arguments ask for, and returns the exit code.

    An error is one line on standard error: 1 for what failed, 2 for what was asked wrongly.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            parse(given).perform()
            sys.stdout.flush()
    except SystemExit as end:  # of help and of misused flags, by tyro; of a closed pipe, by rich
        return int(end.code or 0)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt as interrupt:
        _complain(f"interrupted. {interrupt}")
        return INTERRUPTED
    except Exception as error:
        if "--debug" in given or os.environ.get("BIGTRAIN_DEBUG", "0") != "0":
            traceback.print_exc()
        _complain(_describe(error))
        return MISUSED if isinstance(error, CMDPError | ConfigError) else FAILED
    return 0


def parse(arguments: Sequence[str]) -> Command:
    """The command that the arguments name, with its flags."""
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            return tyro.cli(
                _COMMANDS,
                prog="bigtrain",
                description=_ABOUT,
                args=arguments,
                config=(
                    tyro.conf.DisallowNone,
                    tyro.conf.FlagCreatePairsOff,
                    tyro.conf.OmitSubcommandPrefixes,
                ),
            )
    except SystemExit as end:
        error: BaseException | None = end
        while error is not None:  # tyro draws a box round what a setting says of its value
            if isinstance(error, BigTrainError):
                raise error from None
            error = error.__context__
        print(complaints.getvalue(), end="", file=sys.stderr)
        raise


def _describe(error: Exception) -> str:
    if isinstance(error, BigTrainError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"`{error.filename}` cannot be used: {error.strerror}."
    return f"{type(error).__name__}: {error}. With `--debug` you see where."


def _complain(message: str) -> None:
    print("bigtrain:", *message.split(), file=sys.stderr)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _complain(f"warning: {message}")
