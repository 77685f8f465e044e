"""The fake server keeps the rules of the wire contract, asked by bare calls."""

import dataclasses

import grpc
import numpy as np
import pytest
from hearing import LEFT, RIGHT, SILENCE

from bigclient.arrays import decode, encode
from bigclient.testing import FakeModel, FakeServer
from bigclient.testing.server import LIMITS
from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

Code = grpc.StatusCode


@pytest.fixture
def stub(server):
    with grpc.insecure_channel(server.address) as channel:
        yield policy_pb2_grpc.PolicyStub(channel)


def request(ids, steps, heard, **fields) -> pb.ActRequest:
    column = encode(np.array(heard, "<i4"))
    return pb.ActRequest(episode_ids=ids, steps=steps, observation=[column], **fields)


def problems(reply) -> dict[int, str]:
    return {e.index: pb.Problem.Name(e.problem).removeprefix("PROBLEM_") for e in reply.errors}


def refused(call, message) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        call(message)
    return raised.value.code()  # type: ignore[attr-defined]


def start(stub, *ids, **fields):
    return stub.Start(pb.StartRequest(episode_ids=ids, **fields))


# Steps


def test_each_step_counts_once(stub, server):
    start(stub, "a")
    first = stub.Act(request(["a"], [0], [LEFT], request_id=5))
    assert first.request_id == 5 and not first.duplicates
    again = stub.Act(request(["a"], [0], [LEFT]))
    assert again.duplicates == [0] and again.actions == first.actions
    assert len(server.history("a")) == 1


@pytest.mark.parametrize(
    ("step", "heard", "problem"),
    [(1, RIGHT, "STEP_DIFFERS"), (3, LEFT, "STEP_AHEAD"), (0, LEFT, "STEP_BEHIND")],
)
def test_any_other_step_names_the_one_expected(stub, server, step, heard, problem):
    start(stub, "a")
    for i in (0, 1):
        stub.Act(request(["a"], [i], [LEFT]))
    reply = stub.Act(request(["a"], [step], [heard]))
    assert problems(reply) == {0: problem} and reply.errors[0].expected_step == 2
    assert len(server.history("a")) == 2


def test_items_fail_one_by_one(stub, server):
    start(stub, "a", "b")
    reply = stub.Act(request(["a", "x", "a", "b"], [0] * 4, [LEFT, LEFT, LEFT, 3]))
    assert problems(reply) == {1: "EPISODE_UNKNOWN", 2: "ITEM_INVALID", 3: "OBSERVATION_INVALID"}
    assert decode(reply.actions).tolist() == [2, 0, 0, 0]
    assert len(server.history("a")) == 1 and not server.history("b")


def test_details_are_not_stored_with_the_step(stub):
    start(stub, "a")
    plain = stub.Act(request(["a"], [0], [LEFT]))
    assert not any(plain.HasField(name) for name in ("values", "belief", "entropy"))
    full = stub.Act(request(["a"], [0], [LEFT], details=pb.Details(belief=True)))
    assert decode(full.belief)[0] == pytest.approx([0.85, 0.15], rel=1e-6)
    assert not full.HasField("values")


@pytest.mark.parametrize(
    "message",
    [
        request([], [], []),
        request(["a"], [], [0]),
        request(["a"], [0], [0, 0]),
        pb.ActRequest(episode_ids=["a"], steps=[0]),
        pb.ActRequest(
            episode_ids=["a"], steps=[0], observation=[encode(np.zeros(1, np.dtype("<f4")))]
        ),
        pb.ActRequest(
            episode_ids=["a"],
            steps=[0],
            observation=[pb.Array(dtype=pb.Array.DTYPE_INT32, shape=[1], data=b"")],
        ),
    ],
)
def test_columns_that_disagree_fail_the_call(stub, message):
    start(stub, "a")
    assert refused(stub.Act, message) is Code.INVALID_ARGUMENT


def test_versions_mix_where_they_speak_alike():
    models = FakeModel("one"), FakeModel("two"), FakeModel("three", actions=("a", "b", "c"))
    with FakeServer(*models) as server, grpc.insecure_channel(server.address) as channel:
        stub = policy_pb2_grpc.PolicyStub(channel)
        for name in ("one", "two", "three"):
            start(stub, name, model=name)
        reply = stub.Act(request(["one", "two", "three"], [0] * 3, [0] * 3))
        assert problems(reply) == {2: "ITEM_INVALID"}
        assert refused(stub.Start, pb.StartRequest()) is Code.INVALID_ARGUMENT


# Start and end


def test_start_can_be_retried_with_own_ids(stub, server):
    first = start(stub, "a", seed=1)
    assert start(stub, "a", seed=1) == first and server.open_episodes == ["a"]
    other = pb.StartRequest(episode_ids=["a"], seed=2)
    assert refused(stub.Start, other) is Code.ALREADY_EXISTS
    stub.Act(request(["a"], [0], [LEFT]))
    assert refused(stub.Start, pb.StartRequest(episode_ids=["a"], seed=1)) is Code.ALREADY_EXISTS


def test_start_starts_all_or_none(stub, server):
    start(stub, "b", seed=1)
    message = pb.StartRequest(episode_ids=["a", "b"], seed=2)
    assert refused(stub.Start, message) is Code.ALREADY_EXISTS
    assert server.open_episodes == ["b"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (pb.StartRequest(model="other"), Code.NOT_FOUND),
        (pb.StartRequest(version="00"), Code.NOT_FOUND),
        (pb.StartRequest(episode_ids=["a", "a"]), Code.INVALID_ARGUMENT),
        (pb.StartRequest(episode_ids=[""]), Code.INVALID_ARGUMENT),
        (pb.StartRequest(episode_ids=["a" * 129]), Code.INVALID_ARGUMENT),
        (pb.StartRequest(num_episodes=1025), Code.RESOURCE_EXHAUSTED),
        (
            pb.StartRequest(rule=pb.ActionRule(softmax=pb.ActionRule.Softmax())),
            Code.INVALID_ARGUMENT,
        ),
    ],
)
def test_starts_that_make_no_sense_are_refused(stub, server, message, code):
    assert refused(stub.Start, message) is code
    assert server.open_episodes == []


def test_the_server_makes_ids_and_cuts_leases(stub):
    reply = stub.Start(pb.StartRequest(num_episodes=3))
    assert len(set(reply.episode_ids)) == 3
    assert reply.lease.seconds == LIMITS.default_lease
    long = pb.StartRequest()
    long.lease.FromSeconds(10**6)
    assert stub.Start(long).lease.seconds == LIMITS.max_lease


def test_a_full_server_starts_nothing():
    limits = dataclasses.replace(LIMITS, max_episodes_per_caller=2)
    with FakeServer(limits=limits) as server, grpc.insecure_channel(server.address) as channel:
        stub = policy_pb2_grpc.PolicyStub(channel)
        start(stub, "a", "b")
        assert refused(stub.Start, pb.StartRequest()) is Code.RESOURCE_EXHAUSTED
        stub.End(pb.EndRequest(episode_ids=["a"]))
        start(stub, "c")


def test_a_tombstone_tells_until_it_is_forgotten(stub, server):
    start(stub, "a", "b", "c")
    server.evict("b")
    end = pb.EndRequest(episode_ids=["a", "b", "x"])
    assert problems(stub.End(end)) == {1: "EPISODE_EVICTED", 2: "EPISODE_UNKNOWN"}
    assert problems(stub.End(end)) == {1: "EPISODE_EVICTED", 2: "EPISODE_UNKNOWN"}
    server.advance(LIMITS.default_lease + 1)
    reply = stub.Act(request(["a", "b", "c"], [0] * 3, [0] * 3))
    assert problems(reply) == {0: "EPISODE_ENDED", 1: "EPISODE_EVICTED", 2: "EPISODE_EXPIRED"}
    times = [error.closed_at.seconds for error in reply.errors]
    assert times[0] == times[1] == times[2] - LIMITS.default_lease
    server.advance(LIMITS.tombstone_lifetime)
    reply = stub.Act(request(["a", "b", "c"], [0] * 3, [0] * 3))
    assert set(problems(reply).values()) == {"EPISODE_UNKNOWN"}


def test_steps_renew_the_lease_and_explaining_does_not(stub, server):
    start(stub, "a")
    for step in range(3):
        stub.Act(request(["a"], [step], [SILENCE]))
        server.advance(LIMITS.default_lease - 1)
    stub.Explain(pb.ExplainRequest(episode_id="a"))
    server.advance(2)
    assert refused(stub.Explain, pb.ExplainRequest(episode_id="a")) is Code.NOT_FOUND


# Export and import


def test_both_go_on_from_an_export_that_does_not_close(stub, server):
    start(stub, "a")
    stub.Act(request(["a"], [0], [LEFT]))
    reply = stub.Export(pb.ExportRequest(episode_ids=["x", "a"]))
    assert problems(reply) == {0: "EPISODE_UNKNOWN"} and len(reply.episodes) == 1
    sealed = pb.ImportRequest(episodes=reply.episodes)
    assert list(stub.Import(sealed).episode_ids) == ["a"]  # here already, in that state
    with FakeServer() as other, grpc.insecure_channel(other.address) as channel:
        there = policy_pb2_grpc.PolicyStub(channel)
        assert list(there.Import(sealed).episode_ids) == ["a"]
        # A retry of the last step is known there, too.
        assert there.Act(request(["a"], [0], [LEFT])).duplicates == [0]
        assert decode(there.Act(request(["a"], [1], [LEFT])).actions).tolist() == [1]
    stub.Act(request(["a"], [1], [RIGHT]))
    assert problems(stub.Import(sealed)) == {0: "EPISODE_EXISTS"}


def test_a_key_of_another_server_is_not_taken(stub):
    start(stub, "a")
    sealed = stub.Export(pb.ExportRequest(episode_ids=["a"])).episodes
    with FakeServer(key=b"other") as other, grpc.insecure_channel(other.address) as channel:
        there = policy_pb2_grpc.PolicyStub(channel)
        reply = there.Import(pb.ImportRequest(episodes=sealed))
        assert problems(reply) == {0: "SEAL_BROKEN"}


def test_an_old_version_goes_with_its_last_episode(stub, server):
    start(stub, "a")
    server.load(FakeModel(revision="new"))
    models = stub.Describe(pb.DescribeRequest()).models
    assert [model.current for model in models] == [True, False]
    assert models[0].version == FakeModel(revision="new").version
    stub.End(pb.EndRequest(episode_ids=["a"]))
    assert len(stub.Describe(pb.DescribeRequest()).models) == 1
    assert refused(stub.Describe, pb.DescribeRequest(model="x")) is Code.NOT_FOUND


def test_a_stream_answers_every_request_once(stub):
    start(stub, "a")
    requests = [request(["a"], [step], [LEFT], request_id=10 + step) for step in range(3)]
    replies = list(stub.ActStream(iter(requests)))
    assert [reply.request_id for reply in replies] == [10, 11, 12]
    bad = pb.ActRequest(request_id=1, episode_ids=["a"])
    assert refused(lambda m: list(stub.ActStream(iter([m]))), bad) is Code.INVALID_ARGUMENT
    assert not stub.Act(request(["a"], [3], [LEFT])).errors


def test_the_default_policy_listens_until_it_is_sure(stub):
    start(stub, "a", "b")
    heard = [(SILENCE, LEFT), (LEFT, RIGHT), (RIGHT, RIGHT), (RIGHT, RIGHT), (RIGHT, RIGHT)]
    actions = [
        decode(stub.Act(request(["a", "b"], [i, i], row)).actions).tolist()
        for i, row in enumerate(heard)
    ]
    # Net hearings of a: 0 1 0 -1 -2; of b: 1 0 -1 -2 -3. Two make 0.97, more than 0.95.
    assert actions == [[2, 2], [2, 2], [2, 2], [2, 0], [0, 0]]
