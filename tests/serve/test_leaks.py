"""Clients that vanish leave nothing behind: slots and memory return."""

import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from launch import serving
from subject import Subject
from wire import act_request, channel_to, duration, failure

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

MAX_EPISODES = 1000
LEASE = 0.5


@pytest.fixture(scope="module")
def server():
    """One that forgets soon: what it remembers on purpose is no leak."""
    with serving(
        **{
            "limits.max-episodes": MAX_EPISODES,
            "limits.max-episodes-per-caller": MAX_EPISODES,
            "limits.max-items": MAX_EPISODES,
            "limits.tombstone-lifetime": 0.2,
            "batching.sizes": 1024,
        }
    ) as server:
        yield server


@pytest.fixture
def stub(server):
    with channel_to(server.address) as channel:
        yield policy_pb2_grpc.PolicyStub(channel)


def killed_amid_steps(address: str) -> None:
    """A process with every episode there is, killed between two steps or in one."""
    command = [sys.executable, str(Path(__file__).with_name("abandon.py"))]
    command += [address, str(MAX_EPISODES), str(LEASE)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    steps = [process.stdout.readline() for _ in range(3)]
    process.kill()
    process.wait()
    process.stdout.close()
    assert steps == ["0\n", "1\n", "2\n"]


def start_all(stub) -> list[str]:
    return list(stub.Start(pb.StartRequest(num_episodes=MAX_EPISODES)).episode_ids)


def start_all_once_leases_ran_out(stub) -> list[str]:
    """Every episode there can be; until then the server says no."""
    until = time.monotonic() + 60
    while True:
        try:
            return start_all(stub)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert time.monotonic() < until, "Slots of clients that were killed did not return."
            time.sleep(0.05)


def test_slots_of_killed_clients_return(server, stub):
    for _ in range(2):
        killed_amid_steps(server.address)
        failure(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            stub.Start,
            pb.StartRequest(num_episodes=MAX_EPISODES),
        )
        stub.End(pb.EndRequest(episode_ids=start_all_once_leases_ran_out(stub)))
        stub.End(pb.EndRequest(episode_ids=start_all(stub)))  # what is ended is free at once


def resident_bytes(pid: int) -> int:
    """Pages in memory, by the kernel's count."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Memory is read from /proc.")
@pytest.mark.parametrize(
    "num_rounds", [6, pytest.param(60, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_memory_of_abandoned_episodes_returns(server, stub, num_rounds):
    """Rounds of episodes that nobody ends, each begun once all of the last are gone.

    The first rounds fill caches and arenas. After them, what an episode leaves behind must be
    less than 100 bytes: its id alone, in a table, takes more. Half a megabyte is allowed for the
    allocator, which does not give back every page at once.
    """
    subject = Subject(stub.Describe(pb.DescribeRequest()).models[0])
    first = [subject.first()] * MAX_EPISODES
    resident = []
    for _ in range(num_rounds):
        stub.End(pb.EndRequest(episode_ids=start_all_once_leases_ran_out(stub)))
        request = pb.StartRequest(num_episodes=MAX_EPISODES, lease=duration(LEASE))
        ids = stub.Start(request).episode_ids
        assert not stub.Act(act_request(ids, [0] * MAX_EPISODES, first)).errors
        resident.append(resident_bytes(server.pid))
    settled = num_rounds // 2
    growth = resident[-1] - resident[settled]
    episodes = 2 * MAX_EPISODES * (num_rounds - 1 - settled)
    assert growth < 100 * episodes + 2**19, resident
