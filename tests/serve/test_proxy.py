"""Bad networks lose no step and repeat none: episodes go as they do on a good one."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from proxy import Faults, Proxy, Relay, in_background
from subject import Subject
from walking import World, walk
from wire import Row, Stream, channel_to, unpack

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

NUM_EPISODES = 16

RULE = pb.ActionRule(softmax=pb.ActionRule.Softmax(temperature=50))


@pytest.fixture(scope="module")
def good_stub(own_server):
    with channel_to(own_server.address) as channel:
        yield policy_pb2_grpc.PolicyStub(channel)


@pytest.fixture(scope="module")
def subject(good_stub) -> Subject:
    return Subject(good_stub.Describe(pb.DescribeRequest()).models[0])


@contextlib.contextmanager
def bad_network(kind: str, target: str) -> Iterator[str]:
    """A network on the way to the server; afterwards, that it was bad indeed."""
    if kind == "relay":
        network = Relay(target, seed=0)
        with in_background(network) as address:
            yield address
        assert network.num_cut > 5
    else:
        network = Proxy(target, Faults(), seed=0)
        with in_background(network) as address:
            yield address
        assert sum(network.happened.values()) > 10, network.happened


class Stubborn:
    """Repeats a call until it succeeds, knowing nothing of what arrived."""

    def __init__(self, stub: policy_pb2_grpc.PolicyStub, *, streams: bool):
        self._stub = stub
        self._streams = streams
        self._stream: Stream | None = None

    def start(self, request: pb.StartRequest) -> None:
        self._insist(lambda: self._stub.Start(request, timeout=1))

    def act(self, request: pb.ActRequest) -> pb.ActReply:
        return self._insist(lambda: self._ask(request))

    def _ask(self, request: pb.ActRequest) -> pb.ActReply:
        if not self._streams:
            return self._stub.Act(request, timeout=1)
        self._stream = self._stream or Stream(self._stub)
        return self._stream.ask(request)

    def _insist(self, call: Any) -> Any:
        for _ in range(200):
            try:
                return call()
            except grpc.RpcError as error:
                assert isinstance(error, grpc.Call)
                lost = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
                assert error.code() in lost, error.details()
                self._hang_up()
                time.sleep(0.02)
        raise AssertionError("A call failed 200 times.")

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.cut()
        self._stream = None


def undisturbed(stub, subject: Subject, seed: int, rule: pb.ActionRule | None) -> list[Row]:
    request = pb.StartRequest(model=subject.model.name, seed=seed, rule=rule)
    (episode,) = stub.Start(request).episode_ids
    result = walk(stub.Act, subject, episode, world=World(seed))
    stub.End(pb.EndRequest(episode_ids=[episode]))
    return result


@pytest.mark.parametrize("kind", ["proxy", "relay"])
@pytest.mark.parametrize("streams", [False, True], ids=["calls", "streams"])
def test_whoever_sends_everything_again_loses_and_repeats_nothing(
    own_server, good_stub, subject, kind, streams
):
    with bad_network(kind, own_server.address) as address, channel_to(address) as channel:
        stubborn = Stubborn(policy_pb2_grpc.PolicyStub(channel), streams=streams)
        for seed in range(NUM_EPISODES):
            episode = str(uuid.uuid4())
            stubborn.start(
                pb.StartRequest(
                    model=subject.model.name, episode_ids=[episode], seed=seed, rule=RULE
                )
            )
            got = walk(stubborn.act, subject, episode, world=World(seed))
            assert got == undisturbed(good_stub, subject, seed, RULE)


# The client


@pytest.fixture(scope="module")
def bigclient() -> Any:
    module = pytest.importorskip("bigclient")
    if not hasattr(module, "connect"):
        pytest.skip("`bigclient` has no `connect` yet.")
    return module


def check_path(got: list[tuple[int, bytes]], want: list[Row], action_dtype: np.dtype) -> None:
    """Actions and beliefs of every step, to the last bit."""
    assert got == [(int(np.frombuffer(row.action, action_dtype)[0]), row.belief) for row in want]


@pytest.mark.parametrize("kind", ["proxy", "relay"])
def test_the_client_loses_and_repeats_nothing(own_server, good_stub, subject, bigclient, kind):
    dtype = unpack(pb.Array(dtype=subject.model.action.dtype, shape=[0])).dtype
    with bad_network(kind, own_server.address) as address, bigclient.connect(address) as client:
        for seed in range(NUM_EPISODES):
            world, path = World(seed), []
            with client.episode(details=["belief"]) as episode:
                for _ in range(8):
                    action = int(episode.act(*subject.see(world.state)))
                    path.append((action, np.asarray(episode.belief).tobytes()))
                    world.act(action)
            check_path(path, undisturbed(good_stub, subject, seed, None), dtype)


@pytest.mark.parametrize("kind", ["proxy", "relay"])
def test_the_asyncio_client_loses_and_repeats_nothing(
    own_server, good_stub, subject, bigclient, kind
):
    """All episodes at once, over one connection."""
    dtype = unpack(pb.Array(dtype=subject.model.action.dtype, shape=[0])).dtype

    async def play(client: Any, seed: int) -> list[tuple[int, bytes]]:
        world, path = World(seed), []
        async with client.episode(details=["belief"]) as episode:
            for _ in range(8):
                action = int(await episode.act(*subject.see(world.state)))
                path.append((action, np.asarray(episode.belief).tobytes()))
                world.act(action)
        return path

    async def play_all(address: str) -> list[list[tuple[int, bytes]]]:
        async with bigclient.aio.connect(address) as client:
            return await asyncio.gather(*(play(client, seed) for seed in range(NUM_EPISODES)))

    with bad_network(kind, own_server.address) as address:
        paths = asyncio.run(play_all(address))
    for seed, path in enumerate(paths):
        check_path(path, undisturbed(good_stub, subject, seed, None), dtype)
