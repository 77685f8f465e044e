"""Events into files: lines of JSON, which are read back and continued, and TensorBoard's."""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, final

import numpy as np

from bigtrain.errors import CheckpointError, ConfigError
from bigtrain.runs.events import Event, metric_values


@final
class JsonLines:
    """A callback that appends each event to a file: one JSON object a line.

    A line has `phase`, `step`, and the metrics by name: a number, or a list with one for each
    seed. What is not finite is `null`. `num_events` is how many lines the file has.
    """

    num_events: int

    def __init__(self, path: str | os.PathLike):
        self._path = Path(path)
        self._file = open(self._path, "ab+")
        self._cut(None)

    def __call__(self, event: Event) -> None:
        row = {"phase": event.phase, "step": int(event.step)}
        for name, metric in event.metrics.items():
            if name in row:
                raise ConfigError(f"A metric must not be called `{name}`; give it another name.")
            values = metric_values(name, metric)
            row[name] = np.where(np.isfinite(values), values, np.array(None)).tolist()
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.num_events += 1

    def rewind(self, num_events: int) -> None:
        """Forgets all but the first `num_events`: those before the checkpoint to go on from."""
        self._cut(num_events)
        if self.num_events < num_events:
            warnings.warn(
                f"`{self._path}` should hold the {num_events} events before the checkpoint, but "
                f"has {self.num_events}. The run goes on without the others.",
                stacklevel=2,
            )

    def sync(self) -> None:
        """Returns when all events so far would survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _cut(self, most: int | None) -> None:
        end = self.num_events = 0
        for line in _whole_lines(self._file):
            if self.num_events == most:
                break
            self.num_events += 1
            end += len(line)
        self._file.truncate(end)


def read_metrics(path: str | os.PathLike) -> list[Event]:
    """The events of a file of JSON lines, `null` as NaN; a half-written last line is left out."""
    with open(path, "rb") as file:
        return [_parse(path, i, line) for i, line in enumerate(_whole_lines(file), start=1)]


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    return (line for line in file if line.endswith(b"\n"))  # only the last one may not


def _parse(path: str | os.PathLike, number: int, line: bytes) -> Event:
    try:
        row = json.loads(line)
        phase, step = str(row.pop("phase")), int(row.pop("step"))
        values = {name: np.array(value, np.float64).tolist() for name, value in row.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"`{path}` must hold events, an object of JSON a line, but line {number} is none."
        ) from error
    return Event(phase, step, values)


@final
class TensorBoard:
    """A callback that writes scalars for TensorBoard, with the tag `phase/metric`.

    A metric with one number for each seed has the tags `phase/metric/seed-0` and so on. What is
    not finite is left out; a character that no tag may have becomes `_`.
    """

    def __init__(self, directory: str | os.PathLike):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "To write for TensorBoard the package `tensorboardX` must be installed: "
                "`pip install big-imitation[tensorboard]`."
            ) from error
        self._writer = SummaryWriter(os.fspath(directory), flush_secs=10)

    def __call__(self, event: Event) -> None:
        for name, metric in event.metrics.items():
            values = metric_values(name, metric)
            for seed, value in enumerate(values.ravel().tolist()):
                tag = f"{event.phase}/{name}" + (f"/seed-{seed}" if values.ndim else "")
                if np.isfinite(value):
                    self._writer.add_scalar(tag, value, int(event.step))

    def close(self) -> None:
        """Writes what is still waiting, and closes the file."""
        self._writer.close()
