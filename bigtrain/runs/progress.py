"""Events into what a person can watch: bars in a terminal, now and then a line in a log."""

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, final

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bigtrain.runs.events import Event, metric_values

_MOST_METRICS = 3  # what fits into a line


@final
class Progress:
    """A callback that shows each phase: how far it is, its metrics, time taken and time left.

    Use it as a context manager. `metrics` names those to show, by default the first three; where
    there are several seeds their mean is shown. Where the console is no terminal, a phase prints
    a line at most every `every_seconds`, and its last one.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        metrics: Sequence[str] | None = None,
        every_seconds: float = 5.0,
    ):
        self._console = console or Console()
        self._metrics = metrics
        self._every_seconds = every_seconds
        self._live = self._console.is_interactive or self._console.is_jupyter
        self._bars = rich.progress.Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[steps]}"),
            TextColumn("{task.fields[metrics]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=3_600,  # a step may well take longer than the usual 30 s
            disable=not self._live,
        )
        self._tasks: dict[str, rich.progress.Task] = {}
        self._printed: dict[str, tuple[int, float]] = {}  # by phase: the step, and when
        self._now = self._console.get_time()

    def __enter__(self) -> "Progress":
        self._now = self._console.get_time()
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()
        self._print_last()

    def __call__(self, event: Event) -> None:
        before, self._now = self._now, self._console.get_time()
        steps = f"{event.step:,}" + (f"/{event.total:,}" if event.total else "")
        fields: dict[str, Any] = {"steps": steps, "metrics": self._describe(event)}
        if event.phase in self._tasks:
            task = self._tasks[event.phase]
            self._bars.update(task.id, completed=event.step, total=event.total, **fields)
        else:
            self._print_last()
            self._bars.add_task(event.phase, completed=event.step, total=event.total, **fields)
            task = self._tasks[event.phase] = self._bars.tasks[-1]
            task.start_time = before  # the work for the first event counts too
        if not self._live:
            _, when = self._printed.get(event.phase, (None, -math.inf))
            if self._now - when >= self._every_seconds or event.step == event.total:
                self._print(event.phase)

    def _print_last(self) -> None:
        """The last line of phases that ended early."""
        for phase, task in self._tasks.items():
            if not self._live and self._printed[phase][0] != task.completed:
                self._print(phase)

    def _describe(self, event: Event) -> str:
        names = list(event.metrics)[:_MOST_METRICS] if self._metrics is None else self._metrics
        values = {n: metric_values(n, event.metrics[n]) for n in names if n in event.metrics}
        return "  ".join(f"{name} {value.mean():.4g}" for name, value in values.items())

    def _print(self, phase: str) -> None:
        task = self._tasks[phase]
        taken, left = task.elapsed, task.time_remaining
        times = f"{_clock(taken or 0)} taken" + (f", {_clock(left)} left" if left else "")
        parts = (phase, task.fields["steps"], task.fields["metrics"], times)
        line = "  ".join(part for part in parts if part)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._printed[phase] = (int(task.completed), self._now)


def _clock(seconds: int | float) -> str:
    return str(timedelta(seconds=round(seconds)))
