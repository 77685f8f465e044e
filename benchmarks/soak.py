"""A server under a steady load for a long time: what its memory, descriptors and answers do.

Loopback, one client process and one server process, and `bigclient` between them as a simulator
uses it. All episodes are live all the time, in groups that step together, and each makes a step
every twenty seconds. Beside them one robot steps for latency, ten times a second: it plays an
episode of 100 steps, ends it, and begins another. The load is paced and takes a small part of a
core, so that what is measured is the server's age and not the machine's.

A line a minute tells the past minute: the server's memory, descriptors and share of a core, the
steps it made, the times that robot and groups waited for an answer, and how many calls failed. At
the end it says whether memory is flat, answers are steady (if there are lines enough to tell) and
nothing failed, and ends with 1 if not. `--minutes 60` is what a release should stand.
"""

import argparse
import asyncio
import collections
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from serving import REST, Served, make_bundle, server

from bigclient import aio
from bigclient.errors import BigClientError

ROBOT_STEPS, ROBOT_SECONDS = 100, 0.1
"""The robot's steps in an episode, and from one to the next."""

LEASE = 120.0
"""Seconds that an episode may rest: six rounds."""

FLAT, STEADY = 1.05, 2.0
"""How much more memory, and how much slower the last third, may be than at first."""

ENOUGH = 9
"""Lines from which on the 99th percentiles tell something: their medians, by thirds."""

HEADS = ("minute", "MB", "files", "cores", "steps", "1 step, ms: p50", "p99", "group: p50", "p99")
WIDTHS = [max(len(head), 7) for head in (*HEADS, "errors")]


class Usage(NamedTuple):
    """What the server has taken so far, by its own metrics."""

    megabytes: float
    descriptors: float
    seconds: float
    steps: float


class Row(NamedTuple):
    """A minute: what it ended with, and quantiles of its answers in milliseconds."""

    usage: Usage
    robot: np.ndarray
    group: np.ndarray
    errors: int


class Load:
    """What steps the server, the seconds that answers took, and what failed."""

    def __init__(self, client: aio.Client):
        self._client = client
        self.robot, self.group = list[float](), list[float]()
        self.errors = collections.Counter[str]()

    async def start(self, episodes: int, message: int) -> list[aio.Episodes]:
        """Groups of live episodes."""
        sizes = [min(message, episodes - first) for first in range(0, episodes, message)]
        return [await self._client.episodes(size, lease=LEASE) for size in sizes]

    async def step_all(self, groups: list[aio.Episodes], seconds: float) -> None:
        """Steps all groups round by round, one after the other, for as long as it is let."""
        due, pause = time.monotonic(), seconds / len(groups)
        while True:
            for group in groups:
                due = await wait_until(due + pause)
                seen = np.tile(REST, (len(group), 1))
                await self._time(self.group, lambda group=group, seen=seen: group.act(seen))

    async def play(self) -> None:
        """Plays episode after episode as a robot does, for as long as it is let."""
        due = time.monotonic()
        while True:
            try:
                async with self._client.episode() as episode:
                    for _ in range(ROBOT_STEPS):
                        due = await wait_until(due + ROBOT_SECONDS)
                        await self._time(self.robot, lambda: episode.act(REST))
            except BigClientError as error:
                self.errors[type(error).__name__] += 1
                due = await wait_until(due + 1.0)

    async def _time(self, took: list[float], act: Callable[[], Awaitable[Any]]) -> None:
        began = time.perf_counter()
        try:
            await act()
        except BigClientError as error:
            self.errors[type(error).__name__] += 1
        took.append(time.perf_counter() - began)


async def wait_until(due: float) -> float:
    """Waits until then; the time then, or now where that is long past."""
    await asyncio.sleep(due - time.monotonic())
    return max(due, time.monotonic() - 1.0)  # what was missed is not made up for in a burst


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long, after the warm-up")
    parser.add_argument("--episodes", type=int, default=10_000, help="live at the same time")
    parser.add_argument("--message", type=int, default=64, help="episodes that step together")
    parser.add_argument("--round", type=float, default=20.0, help="seconds from step to step")
    parser.add_argument("--every", type=float, default=60.0, help="seconds from line to line")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "tiger.big"
        make_bundle(bundle)
        flags = ["-m", "bigserve", str(bundle), "--listen", "127.0.0.1:0", "--log-format", "json"]
        flags += ["--metrics-listen", "127.0.0.1:0"]
        for limit in ("max-episodes", "max-episodes-per-caller"):
            flags += [f"--limits.{limit}", str(asked.episodes + 8)]
        with server(flags) as served:
            return asyncio.run(soak(served, asked))


async def soak(served: Served, asked: argparse.Namespace) -> int:
    """Loads the server for so long, prints a line a minute and the verdict; the exit code."""
    async with aio.connect(served.address) as client:
        load = Load(client)
        groups = await load.start(asked.episodes, asked.message)
        tasks = [
            asyncio.create_task(load.step_all(groups, asked.round)),
            asyncio.create_task(load.play()),
        ]
        print(
            f"{asked.episodes:,} live episodes, in groups of {asked.message}, warm up", flush=True
        )
        await asyncio.sleep(2 * asked.round)  # caches and arenas fill
        load.robot.clear()
        load.group.clear()
        print_cells(*HEADS, "errors")
        began, last, rows = time.monotonic(), await scrape(served), list[Row]()
        count = max(round(60 * asked.minutes / asked.every), 1)
        for number in range(1, count + 1):
            await asyncio.sleep(began + number * asked.every - time.monotonic())
            for task in tasks:
                if task.done():
                    task.result()  # raises what ended it
            usage = await scrape(served)
            rows.append(
                Row(usage, quantiles(load.robot), quantiles(load.group), load.errors.total())
            )
            print_row((time.monotonic() - began) / 60, rows[-1], last, asked.every)
            last = usage
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return judge(rows, load.errors)


def judge(rows: list[Row], errors: collections.Counter[str]) -> int:
    """Prints whether memory is flat, answers are steady and nothing failed; the exit code."""
    third = max(len(rows) // 3, 1)
    first, end = rows[:third], rows[-third:]
    grown = end[-1].usage.megabytes / first[-1].usage.megabytes
    files = end[-1].usage.descriptors - first[-1].usage.descriptors
    slower = {
        name: float(np.median([pick(row) for row in end]) / np.median([pick(row) for row in first]))
        for name, pick in (
            ("1 step", lambda row: row.robot[1]),
            ("group", lambda row: row.group[1]),
        )
    }
    print(
        f"\nMemory at the end by that after the first third: {grown:.3f}, descriptors {files:+.0f}"
    )
    print("p99 of the last third by that of the first:", end=" ")
    print(", ".join(f"{name} {ratio:.2f}" for name, ratio in slower.items()))
    print("Errors:", ", ".join(f"{name} {n}" for name, n in errors.items()) or "none")
    fine = {"memory is flat": grown <= FLAT and files <= 4, "nothing failed": not errors}
    if len(rows) >= ENOUGH:
        fine["answers are steady"] = max(slower.values()) <= STEADY
    print("; ".join(f"{what}: {'yes' if holds else 'NO'}" for what, holds in fine.items()))
    return 0 if all(fine.values()) else 1


async def scrape(served: Served) -> Usage:
    """What the server says of itself."""
    url = f"http://127.0.0.1:{served.metrics_port}/metrics"

    def read() -> str:
        with urllib.request.urlopen(url) as page:
            return page.read().decode()

    text = await asyncio.to_thread(read)

    def value(name: str, labels: str = "[^}]*") -> float:
        return sum(map(float, re.findall(rf"^{name}(?:{{{labels}}})? (\S+)$", text, re.MULTILINE)))

    return Usage(
        value("process_resident_memory_bytes") / 1e6,
        value("process_open_fds"),
        value("process_cpu_seconds_total"),
        value("bigserve_steps_total", '[^}]*result="applied"[^}]*'),
    )


def quantiles(times: list[float]) -> np.ndarray:
    """The median and the 99th percentile in milliseconds; then it begins anew."""
    found = 1e3 * np.quantile(times, (0.5, 0.99)) if times else np.full(2, np.nan)
    times.clear()
    return found


def print_row(minutes: float, row: Row, last: Usage, seconds: float) -> None:
    """A line of the table."""
    usage = row.usage
    print_cells(
        f"{minutes:.1f}",
        f"{usage.megabytes:.1f}",
        f"{usage.descriptors:.0f}",
        f"{(usage.seconds - last.seconds) / seconds:.3f}",
        f"{usage.steps - last.steps:,.0f}",
        *(f"{value:.2f}" for value in (*row.robot, *row.group)),
        f"{row.errors}",
    )


def print_cells(*cells: str) -> None:
    """Cells below each other."""
    print("  ".join(f"{cell:>{w}}" for cell, w in zip(cells, WIDTHS, strict=True)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
