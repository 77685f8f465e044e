"""A server under a steady load for a long time: what its memory, descriptors and answers do.

Loopback, one client process and one server process. All episodes are live all the time, and each
makes a step every twenty seconds or so, in messages of 64. Beside them one robot steps for
latency, ten times a second: it plays an episode of 100 steps on a stream of its own, ends it, and
begins another. The load is paced and takes a small part of a core, so that what is measured is the
server's age and not the machine's. `--minutes 60` is what a release should stand.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from serving import REST, Served, make_bundle, server, stub

from bigproto.v1 import policy_pb2 as wire
from bigproto.v1 import policy_pb2_grpc

MESSAGE = 64
"""Steps in a message."""

ROUND = 20.0
"""Seconds in which every episode makes a step."""

ROBOT_STEPS, ROBOT_SECONDS = 100, 0.1
"""The robot's steps in an episode, and from one to the next."""

PARTS = 10


class Usage(NamedTuple):
    """What the server has taken so far, by its own metrics."""

    megabytes: float
    descriptors: float
    seconds: float
    steps: float


class Times(NamedTuple):
    """How long answers took, in seconds."""

    one: list[float]
    many: list[float]

    def forget(self) -> None:
        """Begins anew."""
        self.one.clear()
        self.many.clear()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long, after the start")
    parser.add_argument("--episodes", type=int, default=10_000, help="live at the same time")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "tiger.big"
        make_bundle(bundle)
        flags = ["-m", "bigserve", str(bundle), "--listen", "127.0.0.1:0", "--log-format", "json"]
        flags += ["--metrics-listen", "127.0.0.1:0", "--limits.default-lease", "120"]
        for limit in ("max-episodes", "max-episodes-per-caller"):
            flags += [f"--limits.{limit}", str(asked.episodes + 1)]
        with server(flags) as served:
            asyncio.run(soak(served, asked.episodes, 60 * asked.minutes))


async def soak(served: Served, episodes: int, seconds: float) -> None:
    """Loads the server for so long, and prints what each tenth of that time was like."""
    table = Table(title=f"{episodes:,} live episodes for {seconds / 60:g} min, by tenths of it")
    for column in ("minutes", "steps/s", "cores", "MB", "files"):
        table.add_column(column, justify="right")
    for column in ("one step, ms: p50", "p99", f"{MESSAGE} steps, ms: p50", "p99"):
        table.add_column(column, justify="right")
    times = Times([], [])
    async with stub(served.address) as policy, asyncio.TaskGroup() as group:
        ids = await start(policy, episodes)
        tasks = [
            group.create_task(step_all(policy, ids, times.many)),
            group.create_task(play(policy, times.one)),
        ]
        await asyncio.sleep(min(2 * ROUND, seconds / PARTS))  # caches and arenas fill
        times.forget()
        began, usages = time.monotonic(), [await scrape(served)]
        for part in range(1, PARTS + 1):
            await asyncio.sleep(began + part * seconds / PARTS - time.monotonic())
            usages.append(await scrape(served))
            spent, row = time.monotonic() - began, usages[-1]
            took = seconds / PARTS
            table.add_row(
                f"{spent / 60:.1f}",
                f"{(row.steps - usages[-2].steps) / took:.0f}",
                f"{(row.seconds - usages[-2].seconds) / took:.3f}",
                f"{row.megabytes:.1f}",
                f"{row.descriptors:.0f}",
                *(f"{1e3 * q:.2f}" for t in times for q in np.quantile(t, (0.5, 0.99))),
            )
            times.forget()
            left = (seconds - spent) / 60
            print(f"{part} of {PARTS} parts are over, {left:.1f} min left", file=sys.stderr)
        for task in tasks:
            task.cancel()
        grown = usages[-1].megabytes / usages[1].megabytes
    console = Console(width=120)
    console.print(table)
    console.print(f"Memory at the end, by that after the first tenth: {grown:.3f}")


async def scrape(served: Served) -> Usage:
    """What the server says of itself."""
    url = f"http://127.0.0.1:{served.metrics_port}/metrics"

    def read() -> str:
        with urllib.request.urlopen(url) as page:
            return page.read().decode()

    text = await asyncio.to_thread(read)

    def value(name: str) -> float:
        return sum(map(float, re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)))

    return Usage(
        value("process_resident_memory_bytes") / 1e6,
        value("process_open_fds"),
        value("process_cpu_seconds_total"),
        value("bigserve_steps_total"),
    )


# ── the load ─────────────────────────────────────────────────────────────────────────────────────


async def start(policy: policy_pb2_grpc.PolicyStub, episodes: int) -> list[list[str]]:
    """The ids of episodes that were started, by the message that they will be in."""
    found = []
    for first in range(0, episodes, MESSAGE):
        count = min(MESSAGE, episodes - first)
        reply = await policy.Start(wire.StartRequest(num_episodes=count))
        found.append(list(reply.episode_ids))
    return found


async def step_all(
    policy: policy_pb2_grpc.PolicyStub, ids: list[list[str]], took: list[float]
) -> None:
    """Steps all episodes round by round, message by message, for as long as it is let."""
    stream = policy.ActStream()
    due, pause = time.monotonic(), ROUND / len(ids)
    step = 0
    while True:
        for some in ids:
            due += pause
            await asyncio.sleep(due - time.monotonic())
            took.append(await ask(stream, some, step))
        step += 1


async def play(policy: policy_pb2_grpc.PolicyStub, took: list[float]) -> None:
    """Plays episode after episode as a robot does, for as long as it is let."""
    due = time.monotonic()
    while True:
        reply = await policy.Start(wire.StartRequest())
        stream = policy.ActStream()
        for step in range(ROBOT_STEPS):
            due += ROBOT_SECONDS
            await asyncio.sleep(due - time.monotonic())
            took.append(await ask(stream, list(reply.episode_ids), step))
        await stream.done_writing()
        await policy.End(wire.EndRequest(episode_ids=reply.episode_ids))


async def ask(stream, ids: list[str], step: int) -> float:
    """One step of these episodes, and the seconds that it took."""
    seen = np.tile(REST, (len(ids), 1))
    array = wire.Array(dtype=wire.Array.DTYPE_FLOAT32, shape=seen.shape, data=seen.tobytes())
    request = wire.ActRequest(episode_ids=ids, steps=[step] * len(ids), observation=[array])
    began = time.perf_counter()
    await stream.write(request)
    reply = await stream.read()
    took = time.perf_counter() - began
    if reply.errors or len(reply.actions.data) != 4 * len(ids):
        raise RuntimeError(f"A step failed: {reply.errors}")
    return took


if __name__ == "__main__":
    main()
