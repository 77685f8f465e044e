"""The command `bigserve` (docs/serving.md): its flags, and what becomes of errors."""

import contextlib
import importlib.metadata
import io
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

import tyro

from bigserve import logs
from bigserve.config import NAME, ServerConfig, is_loopback
from bigserve.errors import ConfigError, ServeError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

_MODEL = re.compile(r"(?:(?P<name>[^/=]*)=)?(?P<path>.+)", re.DOTALL)
Files = Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=]FILE ...", help_behavior_hint="")]


@final
@dataclass(frozen=True)
class Serve:
    """Serve policies over gRPC, with one belief for every episode.

    SIGHUP reads models and tokens again; SIGTERM finishes what has begun, and ends.
    """

    files: tyro.conf.Positional[Files] = ()
    """The models: bundles, each served under its NAME, by default the file's without suffix."""

    version: bool = False
    """Print the version, and end."""

    config: Annotated[ServerConfig, tyro.conf.arg(name="")] = ServerConfig()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves as the arguments ask until told to end, and returns the exit code.

    An error is one line on standard error: 1 for what failed, 2 for what was asked wrongly.
    """
    debug = False
    try:
        asked = parse(sys.argv[1:] if arguments is None else arguments)
        if asked.version:
            print("bigserve", importlib.metadata.version("big-imitation"))
            return 0
        models, config = parse_models(asked.files), asked.config
        debug = config.log_level == "debug"
        logs.configure(config.log_level, config.log_format, config.log_rate)
        if not (config.tokens or config.tls.client_roots or is_loopback(config.listen)):
            logs.logger.warning(
                "Anybody who reaches %s may call: there are neither tokens nor client roots.",
                config.listen,
            )
        with _ignoring_hangups():
            from bigserve.server import run  # brings JAX, which takes long to import

            run(models, config)
    except SystemExit as end:  # of help and of misused flags, by tyro
        return int(end.code or 0)
    except KeyboardInterrupt:
        _complain("interrupted.")
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        _complain(_describe(error))
        return MISUSED if isinstance(error, ConfigError) else FAILED
    return 0


def parse(arguments: Sequence[str]) -> Serve:
    """What the arguments ask for."""
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            return tyro.cli(
                Serve,
                prog="bigserve",
                args=arguments,
                config=(tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff),
            )
    except SystemExit as end:
        error: BaseException | None = end
        while error is not None:  # tyro draws a box round what a setting says of its value
            if isinstance(error, ConfigError):
                raise error from None
            error = error.__context__
        print(complaints.getvalue(), end="", file=sys.stderr)
        raise


def parse_models(files: Sequence[str]) -> dict[str, Path]:
    """The bundles by the name they are served under: each of `files` is PATH or NAME=PATH."""
    if not files:
        raise ConfigError("There must be at least one file to serve, as in `bigserve tiger.big`.")
    models: dict[str, Path] = {}
    for file in files:
        match = _MODEL.fullmatch(file)
        if match is None:
            raise ConfigError(f"A model must be FILE or NAME=FILE, got {file!r}.")
        path = Path(match["path"])
        name = path.stem if match["name"] is None else match["name"]
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"A model's name must be up to 64 letters, digits and `._-`, got {name!r}. "
                f"Choose one by NAME={path}."
            )
        if name in models:
            raise ConfigError(
                f"Models must have names that differ, got `{name}` for {models[name]} and {path}. "
                f"Choose another by NAME={path}."
            )
        models[name] = path
    return models


@contextlib.contextmanager
def _ignoring_hangups() -> Iterator[None]:
    """A block in which SIGHUP does not end the process before the server listens for it.

    What it asks to be read again is not read until then.
    """
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, former)


def _describe(error: Exception) -> str:
    if isinstance(error, ServeError):
        return str(error)
    from bigtrain.errors import BigTrainError  # brings JAX, which takes long to import

    if isinstance(error, BigTrainError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"`{error.filename}` cannot be used: {error.strerror}."
    return f"{type(error).__name__}: {error}. With `--log-level debug` you see where."


def _complain(message: str) -> None:
    print("bigserve:", *message.split(), file=sys.stderr)
