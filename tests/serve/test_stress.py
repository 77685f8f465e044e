"""Many clients at once, each reply compared with the rules applied one item after another."""

import asyncio
import random

import grpc.aio
import pytest
from lanes import Lane
from subject import Subject
from wire import act_request, rows

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

WANTED = {
    "applied",
    "again",
    "lost",
    "PROBLEM_EPISODE_UNKNOWN",
    "PROBLEM_EPISODE_EXPIRED",
    "PROBLEM_EPISODE_ENDED",
    "PROBLEM_EPISODE_EXPORTED",
    "PROBLEM_EPISODE_EXISTS",
    "PROBLEM_STEP_DIFFERS",
    "PROBLEM_STEP_AHEAD",
    "PROBLEM_STEP_BEHIND",
    "PROBLEM_OBSERVATION_INVALID",
    "PROBLEM_OBSERVATION_IMPOSSIBLE",
    "PROBLEM_ITEM_INVALID",
    "PROBLEM_SEAL_BROKEN",
}
"""All that must have happened, or the run says little."""


async def stress(address: str, sizes: list[int], num_rounds: int, seed: int) -> list[Lane]:
    """Lanes of these sizes, all at once, over three connections."""
    channels = [
        # Without an option of their own, channels of one process share a connection.
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(3)
    ]
    stubs = [policy_pb2_grpc.PolicyStub(channel) for channel in channels]
    described = await stubs[0].Describe(pb.DescribeRequest())
    subject = Subject(described.models[0])
    lanes = [Lane(stubs[i % 3], subject, size=size, seed=seed + i) for i, size in enumerate(sizes)]
    async with asyncio.TaskGroup() as running:
        for lane in lanes:
            running.create_task(lane.run(num_rounds))
    await replay(stubs[0], subject, lanes, random.Random(seed))
    for channel in channels:
        await channel.close()
    return lanes


async def replay(
    stub: policy_pb2_grpc.PolicyStub, subject: Subject, lanes: list[Lane], choose: random.Random
) -> None:
    """Plays some episodes of each lane again, each alone and by single calls, to the last bit."""
    for lane in lanes:
        played = [episode for episode, track in lane.tracks.items() if len(track.rows) > 2]
        for episode in choose.sample(played, min(len(played), 4)):
            track = lane.tracks[episode]
            request = pb.StartRequest(
                model=subject.model.name,
                num_episodes=track.place + 1,
                seed=track.request.seed,
                rule=track.request.rule,
            )
            ids = (await stub.Start(request)).episode_ids
            for step, state in enumerate(lane.states(episode)):
                reply = await stub.Act(act_request(ids[-1:], [step], [subject.see(state)]))
                assert rows(reply) == [track.rows[step]], (episode, step)
            await stub.End(pb.EndRequest(episode_ids=ids))


def check_all_happened(lanes: list[Lane]) -> None:
    seen = set().union(*(lane.seen for lane in lanes))
    assert seen == WANTED, seen ^ WANTED


def test_many_clients_at_once_get_what_the_rules_say(own_server):
    sizes = [1, 1, 2, 3, 5, 8, 20, 50, 100, 300]
    check_all_happened(asyncio.run(stress(own_server.address, sizes, num_rounds=40, seed=0)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000, 2000, 3000])
def test_many_more_clients_at_once_get_what_the_rules_say(own_server, seed):
    sizes = [1] * 30 + [2, 3, 5, 8] * 4 + [100] * 6 + [300] * 6
    check_all_happened(asyncio.run(stress(own_server.address, sizes, num_rounds=60, seed=seed)))
