"""Episodes outlive restarts, new versions and moves, to the last bit."""

import asyncio
import concurrent.futures
import shutil
import signal
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest
from bundles import EXACT, resealed
from launch import QUICK, TIGER, serving
from subject import Subject
from walking import World, walk
from wire import Stream, act_request, channel_to, rows, unpack

import bigclient
from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc
from bigtrain.storage.container import unseal

RULE = pb.ActionRule(softmax=pb.ActionRule.Softmax(temperature=50))


@pytest.fixture(scope="module")
def undisturbed(own_server):
    """What 8 steps bring of an episode that draws, in the world of its seed."""
    with channel_to(own_server.address) as channel:
        stub = policy_pb2_grpc.PolicyStub(channel)
        subject = Subject(stub.Describe(pb.DescribeRequest()).models[0])

        def play(seed: int) -> list:
            (episode,) = stub.Start(pb.StartRequest(seed=seed, rule=RULE)).episode_ids
            return walk(stub.Act, subject, episode, world=World(seed))

        yield play


def test_a_snapshot_carries_episodes_over_a_restart(tmp_path, undisturbed):
    flags = {"snapshot": tmp_path / "episodes", **QUICK}
    worlds, got = {}, {}
    with serving(**flags) as server, channel_to(server.address) as channel:
        stub = policy_pb2_grpc.PolicyStub(channel)
        subject = Subject(stub.Describe(pb.DescribeRequest()).models[0])
        for seed in range(4):  # one that has made no step, and others that have made some
            (episode,) = stub.Start(pb.StartRequest(seed=seed, rule=RULE)).episode_ids
            worlds[episode] = world = World(seed)
            got[episode] = walk(stub.Act, subject, episode, world=world, steps=range(seed))
        (waiting,) = stub.Start(pb.StartRequest(seed=0, rule=RULE)).episode_ids
        last = act_request([waiting], [0], [subject.first()])
        with Stream(stub) as stream:  # an open stream does not hinder a shutdown
            before = stream.ask(last)
            assert server.stop() == 0
    with serving(**flags) as server, channel_to(server.address) as channel:
        stub = policy_pb2_grpc.PolicyStub(channel)
        for seed, (episode, world) in enumerate(worlds.items()):
            rest = walk(stub.Act, subject, episode, world=world, steps=range(seed, 8))
            assert got[episode] + rest == undisturbed(seed)
        after = stub.Act(last)
        assert list(after.duplicates) == [0] and rows(after) == rows(before)


class Robots:
    """Clients that play episode after episode: some that block, and some that share a stream."""

    def __init__(self, address: str):
        self._address, self._stops = address, threading.Event()
        self._options: Any = {"timeout": 30.0, "retry": bigclient.Retry(budget=200.0)}
        self.num_episodes = 0
        robots = [self._block, self._block, self._share]
        self._pool = concurrent.futures.ThreadPoolExecutor(len(robots))
        self._playing = [self._pool.submit(robot) for robot in robots]

    def _block(self) -> None:
        with bigclient.connect(self._address, **self._options) as client:
            subject = self._find_subject()
            while not self._stops.is_set():
                world = World(self.num_episodes)
                with client.episode() as episode:
                    for _ in range(8):
                        world.act(int(episode.act(*subject.see(world.state))))
                        time.sleep(0.002)
                self.num_episodes += 1

    def _share(self) -> None:
        async def play(client: Any, subject: Subject) -> None:
            while not self._stops.is_set():
                world = World(self.num_episodes)
                async with client.episode() as episode:
                    for _ in range(8):
                        world.act(int(await episode.act(*subject.see(world.state))))
                        await asyncio.sleep(0.002)
                self.num_episodes += 1

        async def play_all() -> None:
            subject = self._find_subject()
            async with bigclient.aio.connect(self._address, **self._options) as client:
                await asyncio.gather(*(play(client, subject) for _ in range(16)))

        asyncio.run(play_all())

    def _find_subject(self) -> Subject:
        with channel_to(self._address) as channel:
            stub = policy_pb2_grpc.PolicyStub(channel)
            return Subject(stub.Describe(pb.DescribeRequest()).models[0])

    def await_episodes(self, count: int) -> None:
        """Waits until so many more were played; raises what stopped a robot."""
        until = self.num_episodes + count
        while self.num_episodes < until:
            for one in self._playing:
                if one.done():
                    one.result()
            time.sleep(0.01)

    def stop(self) -> None:
        self._stops.set()
        for one in self._playing:
            one.result(120)
        self._pool.shutdown()


def test_robots_notice_nothing_of_restarts(tmp_path):
    """They play on all the time: in the midst of steps, of starts and of ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = {"listen": f"127.0.0.1:{port}", "snapshot": tmp_path / "episodes", **QUICK}
    robots = None
    for run in range(3):
        with serving(**flags) as server:
            robots = robots or Robots(server.address)
            robots.await_episodes(50)
            if run == 2:
                robots.stop()
            assert server.stop() == 0


def raise_values(content):
    """Another version: it acts as before, and its values are 100 higher."""
    content["policy"]["baseline"] += 1.0


class Reloading:
    """A server whose file changes under it."""

    def __init__(self, server, stub, file):
        self.server, self.stub, self.file = server, stub, file

    def versions(self) -> list[tuple[str, bool]]:
        models = self.stub.Describe(pb.DescribeRequest()).models
        return [(model.version, model.current) for model in models]

    def reload(self, data: bytes) -> None:
        """Replaces the file, and waits until the server has said something of it."""
        self.file.write_bytes(data)
        lines = self.server.log.count("\n")
        self.server.send(signal.SIGHUP)
        self.server.await_log(r"\n", count=lines + 1)


@pytest.fixture(scope="module")
def reloading(tmp_path_factory, seal_key):
    file = tmp_path_factory.mktemp("models") / "tiger.big"
    shutil.copy(TIGER, file)
    with serving(file, **{"seal-key": seal_key}, **QUICK) as server:
        with channel_to(server.address) as channel:
            yield Reloading(server, policy_pb2_grpc.PolicyStub(channel), file)


def await_versions(reloading: Reloading, want) -> None:
    until = time.monotonic() + 60
    while reloading.versions() != want:
        assert time.monotonic() < until, (reloading.versions(), want)
        time.sleep(0.05)


# Moves


def test_an_episode_moves_to_another_server_with_the_same_key(own_server, reloading, undisturbed):
    here = reloading.stub
    subject = Subject(here.Describe(pb.DescribeRequest()).models[0])
    (episode,) = here.Start(pb.StartRequest(seed=2, rule=RULE)).episode_ids
    world = World(2)
    got = walk(here.Act, subject, episode, world=world, steps=range(4))
    sealed = here.Export(pb.ExportRequest(episode_ids=[episode], close=True)).episodes
    with channel_to(own_server.address) as channel:
        there = policy_pb2_grpc.PolicyStub(channel)
        assert list(there.Import(pb.ImportRequest(episodes=sealed)).episode_ids) == [episode]
        got += walk(there.Act, subject, episode, world=world, steps=range(4, 8))
    assert got == undisturbed(2)


# New versions


def test_a_new_version_comes_in_and_the_old_one_leaves_with_its_last_episode(
    reloading, undisturbed, own_server
):
    stub = reloading.stub
    ((old, _),) = reloading.versions()
    subject = Subject(stub.Describe(pb.DescribeRequest()).models[0])
    (running,) = stub.Start(pb.StartRequest(seed=1, rule=RULE)).episode_ids
    world = World(1)
    got = walk(stub.Act, subject, running, world=world, steps=range(3))

    # A broken file keeps what is served.
    for broken in (EXACT[:-1], b"", b"no bundle at all"):
        reloading.reload(broken)
        assert reloading.versions() == [(old, True)]

    raised = resealed(EXACT, raise_values)
    new, _ = unseal(raised)
    reloading.reload(raised)
    await_versions(reloading, [(new, True), (old, False)])

    # New episodes take the new version, unless they ask for the old one; messages may mix them.
    (newer,) = stub.Start(pb.StartRequest(seed=1, rule=RULE)).episode_ids
    older_reply = stub.Start(pb.StartRequest(seed=1, rule=RULE, version=old))
    assert older_reply.version == old
    (older,) = older_reply.episode_ids
    reply = stub.Act(act_request([newer, older], [0, 0], [subject.first()] * 2))
    assert not reply.errors
    new_values, old_values = unpack(reply.values)
    # Values of 900 in float32 have a rounding of 2^-14, and several add up.
    np.testing.assert_allclose(new_values - old_values, 100, atol=1e-3)

    # The running episode stays on its version.
    got += walk(stub.Act, subject, running, world=world, steps=range(3, 8))
    assert got == undisturbed(1)
    explained = stub.Explain(pb.ExplainRequest(episode_id=running))
    assert explained.version == old

    # An episode cannot move to where its version is not loaded.
    sealed = stub.Export(pb.ExportRequest(episode_ids=[newer])).episodes
    with channel_to(own_server.address) as channel:
        elsewhere = policy_pb2_grpc.PolicyStub(channel)
        (error,) = elsewhere.Import(pb.ImportRequest(episodes=sealed)).errors
    assert error.problem == pb.PROBLEM_VERSION_MISSING

    # The last episode of the old version closes, and with it the version.
    stub.End(pb.EndRequest(episode_ids=[running]))
    assert reloading.versions() == [(new, True), (old, False)]
    stub.End(pb.EndRequest(episode_ids=[older]))
    await_versions(reloading, [(new, True)])
    (error,) = stub.Act(act_request([running], [8], [subject.first()])).errors
    assert error.problem == pb.PROBLEM_EPISODE_ENDED
