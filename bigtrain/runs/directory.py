"""A directory that holds all of a run: what was asked, what was measured, where it can go on.

    settings.json     the settings, and the fingerprint of what is learned from
    metrics.jsonl     the events, one a line
    checkpoints/      the latest states of each phase
    tensorboard/      the events again, for TensorBoard, where that was asked for
    lock              held by the process at work

A process that is killed leaves a directory from which the same call goes on: the state comes from
the latest checkpoint, and the metrics are cut back to what had been measured by then.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, final

from bigtrain.errors import ConfigError
from bigtrain.runs.checkpoints import Checkpoints
from bigtrain.runs.events import Event
from bigtrain.runs.metrics import JsonLines, TensorBoard, read_metrics
from bigtrain.runs.settings import keep_settings

State = TypeVar("State")


@final
class Run:
    """A run in a directory, begun or gone on with; with None for a directory it leaves no trace.

    `settings` are frozen dataclasses, or a dictionary of them. `fingerprint` stands for what is no
    setting and must stay the same too, such as a digest of the demonstrations.
    """

    def __init__(
        self,
        directory: str | os.PathLike | None,
        settings: Any,
        *,
        fingerprint: str | Mapping[str, str],
        tensorboard: bool = False,
        checkpoint_seconds: float = 30.0,
        keep: int = 2,
    ):
        self.directory = None if directory is None else Path(directory)
        self._checkpoint_seconds = checkpoint_seconds
        self._due = time.monotonic() + checkpoint_seconds
        self._keep = keep
        self._phases: dict[str, Checkpoints] = {}
        self._tensorboard: TensorBoard | None = None
        self._open = ExitStack()
        if self.directory is not None:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                self._open.enter_context(lock(self.directory))
                keep_settings(self.directory, settings, fingerprint)
                self._metrics = self._rewound_metrics(self.directory / "metrics.jsonl")
                if tensorboard:
                    self._tensorboard = self._refilled_tensorboard(self.directory / "tensorboard")
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all files and lets others at the directory."""
        self._open.close()

    def resume(self, like: State, *, phase: str = "train") -> tuple[int, State] | None:
        """Step and state of the phase's latest checkpoint; None where it is to begin anew.

        `like` is a state of the same structure, for instance the initial one.
        """
        return None if self.directory is None else self._checkpoints(phase).latest(like)

    def events(self) -> list[Event]:
        """What has been recorded so far, by the processes before this one too."""
        if self.directory is None:
            return []
        return read_metrics(self.directory / "metrics.jsonl")

    def record(self, event: Event) -> None:
        """Writes an event down; `run.record` is a callback."""
        if self.directory is not None:
            self._metrics(event)
        if self._tensorboard is not None:
            self._tensorboard(event)

    def checkpoint(
        self, step: int, state: Any, force: bool = False, *, phase: str = "train"
    ) -> bool:
        """Saves the state if it is time to, or by `force`, and says whether it is saved.

        A run that is resumed from here keeps the events recorded so far. Force it at the end of a
        phase, or some of the phase will be done again.
        """
        if self.directory is None or (time.monotonic() < self._due and not force):
            return False
        checkpoints = self._checkpoints(phase)
        if step != checkpoints.latest_step():
            self._metrics.sync()
            checkpoints.save(step, state, {"num_events": self._metrics.num_events})
            self._due = time.monotonic() + self._checkpoint_seconds
        return True

    def _checkpoints(self, phase: str) -> Checkpoints:
        assert self.directory is not None
        if phase not in self._phases:
            if not re.fullmatch(r"\w[\w.-]*", phase):
                raise ConfigError(f"`phase` must do as the name of a folder, got {phase!r}.")
            opened = Checkpoints(self.directory / "checkpoints" / phase, self._keep)
            self._open.callback(opened.close)
            self._phases[phase] = opened
        return self._phases[phase]

    def _rewound_metrics(self, path: Path) -> JsonLines:
        """The events up to the newest checkpoint, of whichever phase."""
        metrics = JsonLines(path)
        self._open.callback(metrics.close)
        phases = [folder.name for folder in path.parent.glob("checkpoints/*/")]
        notes = [self._checkpoints(phase).notes() for phase in phases]
        metrics.rewind(max((note.get("num_events", 0) for note in notes), default=0))
        return metrics

    def _refilled_tensorboard(self, folder: Path) -> TensorBoard:
        """TensorBoard's files cannot be cut, so they are written again from the metrics."""
        shutil.rmtree(folder, ignore_errors=True)
        tensorboard = TensorBoard(folder)
        self._open.callback(tensorboard.close)
        for event in self.events():
            tensorboard(event)
        return tensorboard


def lock(directory: Path) -> BinaryIO:
    """The lock file, held until it is closed, be it by the end of the process."""
    file = open(directory / "lock", "ab")
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ConfigError(
                f"Only one process at a time may work in `{directory}`, and another one does. "
                "Wait for it, or choose another directory."
            ) from error
    return file
