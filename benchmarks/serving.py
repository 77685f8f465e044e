"""What a policy server costs beside a bare echo of the same messages.

Loopback, one client process and one server process. The policy is a GRU of 64 units on an encoder
of 16, with the exact belief, as for a fleet of tiger-treasure robots. The echo is grpc.aio without
protobuf on its side: it takes bytes and returns bytes of the right length. Both are measured in
turn, several times; the ratios are medians over the turns.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from bigproto.v1 import policy_pb2 as wire
from bigproto.v1 import policy_pb2_grpc
from bigtrain import demonstrate, envs, solve
from bigtrain.bundle import save_bundle
from bigtrain.finite import FiniteInference
from bigtrain.learning import NetworkConfig
from bigtrain.policy import NetworkPolicy, PolicyConfig, ValueNetwork

UNITS = 64
REST = np.eye(6, dtype=np.float32)[5]
"""The last state: whatever is done there, it is what comes next."""


class Served(NamedTuple):
    """A server that runs."""

    address: str
    metrics_port: int | None

    def scrape(self) -> dict[str, float]:
        """Sums and counts of what it times, for messages of streams alone."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url) as page:
            lines = page.read().decode().splitlines()
        found = {}
        for line in lines:
            match = re.fullmatch(r"(\w+_seconds_(?:sum|count))\{(.*)\} (\S+)", line)
            if match and ("method" not in match[2] or "ActStream.message" in match[2]):
                found[match[1]] = float(match[3])
        return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--echo", action="store_true", help="be the echo server")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=5, help="of each measurement")
    asked = parser.parse_args()
    if asked.echo:
        asyncio.run(serve_echo())
        return
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "tiger.big"
        make_bundle(bundle)
        served = ["-m", "bigserve", str(bundle), "--listen", "127.0.0.1:0"]
        served += ["--metrics-listen", "127.0.0.1:0", "--log-format", "json"]
        with server([__file__, "--echo"]) as echo, server(served) as policy:
            asyncio.run(compare(echo, policy, asked.seconds, asked.turns))


async def compare(echo: Served, policy: Served, seconds: float, turns: int) -> None:
    """Measures one against the other, in turn, and prints."""
    ratios = Table(title=f"bigserve beside a bare grpc.aio echo: medians of {turns} turns")
    for column in ("what", "echo", "bigserve", "ratio", "aim"):
        ratios.add_column(column, justify="left" if column == "what" else "right")
    parts = Table(title="where the time of a message goes in bigserve, µs, means")
    for column in ("what", "waits for the engine", "engine", "waits for the loop", "in all"):
        parts.add_column(column, justify="left" if column == "what" else "right")
    for case in CASES:
        pairs = []
        before = policy.scrape()
        for _ in range(turns):
            pairs.append(
                (await case.drive(echo.address, seconds), await case.drive(policy.address, seconds))
            )
        parts.add_row(case.name, *split_time(before, policy.scrape()))
        found = [served / echoed for echoed, served in pairs]
        medians = (statistics.median(column) * case.scale for column in zip(*pairs, strict=True))
        spread = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        ratios.add_row(case.name, *(f"{v:,.0f} {case.unit}" for v in medians), spread, case.aim)
    console = Console(width=120)
    console.print(ratios)
    console.print(parts)


def split_time(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """From two scrapes: until the engine begins, in it, until the reply is made, and in all."""

    def mean(name: str) -> float:
        total, count = (
            after[f"{name}_{k}"] - before.get(f"{name}_{k}", 0) for k in ("sum", "count")
        )
        return 1e6 * total / count

    waits, computes = mean("bigserve_queue_seconds"), mean("bigserve_compute_seconds")
    total = mean("bigserve_request_seconds")
    return [f"{value:,.0f}" for value in (waits, computes, total - waits - computes, total)]


# ── what is measured ─────────────────────────────────────────────────────────────────────────────


async def latency(address: str, seconds: float) -> float:
    """The median time of a step of one episode, each sent when the one before is answered."""
    async with stub(address) as policy:
        took = await drive_stream(policy, seconds, 1)
    return statistics.median(took)


async def steps(address: str, seconds: float, episodes: int) -> float:
    """Steps a second of so many episodes, each on a stream of its own."""
    async with stub(address) as policy:
        began = time.perf_counter()
        all_took = await asyncio.gather(
            *(drive_stream(policy, seconds, 1) for _ in range(episodes))
        )
        return sum(map(len, all_took)) / (time.perf_counter() - began)


async def rows(address: str, seconds: float, episodes: int) -> float:
    """Steps a second of a simulator that sends the steps of so many episodes in one message."""
    async with stub(address) as policy:
        took = await drive_stream(policy, seconds, episodes)
    return episodes * len(took) / sum(took)


class Case(NamedTuple):
    """Something to measure."""

    name: str
    drive: Callable[[str, float], Awaitable[float]]
    unit: str
    scale: float
    aim: str


CASES = (
    Case("latency, 1 episode on a stream", latency, "µs", 1e6, "≤ 1.3"),
    Case("steps, 16 episodes", functools.partial(steps, episodes=16), "/s", 1, ""),
    Case("steps, 64 episodes", functools.partial(steps, episodes=64), "/s", 1, "≥ 0.85"),
    Case("steps, 256 a message", functools.partial(rows, episodes=256), "/s", 1, "≥ 0.6"),
)


async def drive_stream(
    policy: policy_pb2_grpc.PolicyStub, seconds: float, episodes: int
) -> list[float]:
    """Times of the messages of one stream, each sent when the one before is answered."""
    started = await policy.Start(wire.StartRequest(num_episodes=episodes))
    ids = list(started.episode_ids)
    seen = np.tile(REST, (episodes, 1))
    array = wire.Array(dtype=wire.Array.DTYPE_FLOAT32, shape=seen.shape, data=seen.tobytes())
    stream = policy.ActStream()
    took: list[float] = []
    end, step = time.perf_counter() + seconds, 0
    while (began := time.perf_counter()) < end:
        await stream.write(
            wire.ActRequest(episode_ids=ids, steps=[step] * episodes, observation=[array])
        )
        reply = await stream.read()
        took.append(time.perf_counter() - began)
        if reply.errors or len(reply.actions.data) != 4 * episodes:
            sys.exit(f"A step failed: {reply.errors}")
        step += 1
    await stream.done_writing()
    await policy.End(wire.EndRequest(episode_ids=ids))
    return took[len(took) // 10 :]  # without the first, which warm up


@contextlib.asynccontextmanager
async def stub(address: str):
    """A connection of its own."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield policy_pb2_grpc.PolicyStub(channel)


# ── servers ──────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def server(arguments: list[str]) -> Iterator[Served]:
    """A server as a process of its own."""
    process = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"listening on ([\d.:]+)", line):
                port = re.search(r'"metrics_port": (\d+)', line)
                yield Served(found[1], int(port[1]) if port else None)
                return
        sys.exit("The server did not start.")
    finally:
        process.terminate()
        process.wait()


async def serve_echo() -> None:
    """Answers every request with a constant of the length that a reply would have."""
    replies: dict[int, bytes] = {}

    async def act(requests, context):
        async for request in requests:
            reply = replies.get(len(request))
            if reply is None:  # the first of its length: an ActReply for as many episodes
                count = len(wire.ActRequest.FromString(request).episode_ids)
                actions = wire.Array(
                    dtype=wire.Array.DTYPE_INT32, shape=[count], data=bytes(4 * count)
                )
                reply = replies[len(request)] = wire.ActReply(actions=actions).SerializeToString()
            yield reply

    async def start(request, context):
        count = wire.StartRequest.FromString(request).num_episodes
        return wire.StartReply(episode_ids=[f"{i:022}" for i in range(count)]).SerializeToString()

    async def end(request, context):
        return b""

    handlers = {
        "ActStream": grpc.stream_stream_rpc_method_handler(act),
        "Start": grpc.unary_unary_rpc_method_handler(start),
        "End": grpc.unary_unary_rpc_method_handler(end),
    }
    echo = grpc.aio.server()
    echo.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("bigproto.v1.Policy", handlers)]
    )
    port = echo.add_insecure_port("127.0.0.1:0")
    await echo.start()
    print(f"listening on 127.0.0.1:{port}", file=sys.stderr, flush=True)
    await echo.wait_for_termination()


def make_bundle(path: Path) -> None:
    """A policy with a GRU; what it does is of no interest here, so it is not trained."""
    cmdp = envs.make("tiger-treasure")
    assert cmdp.task is not None
    result = solve(
        cmdp,
        demonstrate(cmdp, cmdp.task.reward, episodes=20, horizon=20),
        reward_range=cmdp.task.reward_range,
    )
    network = ValueNetwork(
        jnp.asarray(cmdp.observation_array()),
        num_contexts=cmdp.num_contexts,
        num_actions=cmdp.num_actions,
        config=PolicyConfig(NetworkConfig(width=16, depth=1), core="gru", core_width=UNITS),
        key=jax.random.key(0),
    )
    policy = NetworkPolicy(FiniteInference(cmdp), network, 0.0, 1.0, cmdp.gamma)
    save_bundle(dataclasses.replace(result, policy=policy), path)


if __name__ == "__main__":
    main()
