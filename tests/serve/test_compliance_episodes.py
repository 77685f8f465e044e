"""The contract of Start and End. The server can be anybody's."""

import secrets
import time
import uuid

import grpc
import pytest
from wire import GREEDY, act_request, duration, failure, seconds

from bigproto.v1 import policy_pb2 as pb


def own_ids(count: int) -> list[str]:
    return [f"own {uuid.uuid4()}" for _ in range(count)]


def softmax(temperature: float) -> pb.ActionRule:
    return pb.ActionRule(softmax=pb.ActionRule.Softmax(temperature=temperature))


def epsilon_greedy(epsilon: float) -> pb.ActionRule:
    return pb.ActionRule(epsilon_greedy=pb.ActionRule.EpsilonGreedy(epsilon=epsilon))


def is_open(stub, subject, episode_id: str) -> bool:
    """Whether a first step would be taken; it is one too late, so that none is."""
    reply = stub.Act(act_request([episode_id], [9], [subject.first()]))
    (error,) = reply.errors
    return error.problem == pb.PROBLEM_STEP_AHEAD


# Start


def test_as_many_start_as_were_asked_for(start):
    assert len(set(start(5))) == 5


def test_none_means_one(start):
    assert len(start(0)) == 1


def test_ids_of_the_server_are_long_enough_to_be_unguessable(start):
    """128 random bits are 22 characters at least, in base 64."""
    ids = start(100) + start(100)
    assert len(set(ids)) == 200
    assert min(len(set(episode_id)) for episode_id in ids) > 4
    assert min(map(len, ids)) >= 22


def test_model_and_version_are_told(stub, start, subject):
    ids = own_ids(1)
    start(episode_ids=ids)
    reply = stub.Start(pb.StartRequest(model=subject.model.name, episode_ids=ids))
    assert (reply.model, reply.version) == (subject.model.name, subject.model.version)


def test_the_model_may_be_left_out_where_there_is_one(stub):
    models = {model.name for model in stub.Describe(pb.DescribeRequest()).models}
    if len(models) > 1:
        error = failure(grpc.StatusCode.INVALID_ARGUMENT, stub.Start, pb.StartRequest())
        assert "model" in error.details()
    else:
        reply = stub.Start(pb.StartRequest())
        assert {reply.model} == models
        stub.End(pb.EndRequest(episode_ids=reply.episode_ids))


def test_a_version_that_is_listed_can_be_asked_for(start, subject):
    assert start(version=subject.model.version)


@pytest.mark.parametrize("field", ["model", "version"])
def test_what_is_not_loaded_is_not_found(stub, subject, field):
    request = pb.StartRequest(model=subject.model.name)
    setattr(request, field, "0" * 64)
    failure(grpc.StatusCode.NOT_FOUND, stub.Start, request)


def test_own_ids_come_back_in_order(start):
    ids = own_ids(5)
    assert start(episode_ids=ids) == ids


def test_own_ids_count_themselves(start):
    ids = own_ids(2)
    assert start(7, episode_ids=ids) == ids


@pytest.mark.parametrize("rule", [None, GREEDY, softmax(0.5), epsilon_greedy(0.1)])
def test_start_with_own_ids_can_be_retried(stub, start, subject, rule):
    ids = own_ids(3)
    assert start(episode_ids=ids, seed=3, rule=rule) == ids
    assert start(episode_ids=ids, seed=3, rule=rule) == ids
    assert all(is_open(stub, subject, episode_id) for episode_id in ids)


def test_greedy_is_the_rule_where_none_is_given(start):
    ids = own_ids(1)
    assert start(episode_ids=ids, seed=3) == start(episode_ids=ids, seed=3, rule=GREEDY)


@pytest.mark.parametrize(
    "other", [{"seed": 4, "rule": softmax(1)}, {"seed": 3, "rule": softmax(2)}, {"seed": 3}]
)
def test_an_id_in_use_with_another_seed_or_rule_already_exists(stub, start, subject, other):
    ids = own_ids(1)
    start(episode_ids=ids, seed=3, rule=softmax(1))
    request = pb.StartRequest(model=subject.model.name, episode_ids=ids, **other)
    failure(grpc.StatusCode.ALREADY_EXISTS, stub.Start, request)


def test_an_id_that_has_stepped_already_exists(stub, start, subject):
    ids = own_ids(1)
    start(episode_ids=ids, seed=3)
    reply = stub.Act(act_request(ids, [0], [subject.first()]))
    assert not reply.errors
    request = pb.StartRequest(model=subject.model.name, episode_ids=ids, seed=3)
    failure(grpc.StatusCode.ALREADY_EXISTS, stub.Start, request)


def test_all_start_or_none(stub, start, subject):
    (used,) = start(episode_ids=own_ids(1), seed=1, rule=softmax(1))
    (new,) = own_ids(1)
    request = pb.StartRequest(model=subject.model.name, episode_ids=[new, used], seed=2)
    failure(grpc.StatusCode.ALREADY_EXISTS, stub.Start, request)
    (error,) = stub.Act(act_request([new], [0], [subject.first()])).errors
    assert error.problem == pb.PROBLEM_EPISODE_UNKNOWN


@pytest.mark.parametrize("length", [1, 128])
def test_own_ids_have_up_to_128_bytes(start, length):
    own = [secrets.token_hex(64)[:length]]
    assert start(episode_ids=own) == own


@pytest.mark.parametrize("bad", ["", "x" * 129, "ø" * 65], ids=["empty", "ASCII", "wide"])
def test_own_ids_of_other_lengths_are_invalid(stub, subject, bad):
    request = pb.StartRequest(model=subject.model.name, episode_ids=[bad])
    error = failure(grpc.StatusCode.INVALID_ARGUMENT, stub.Start, request)
    assert "episode_ids" in error.details()


def test_own_ids_are_all_different(stub, subject):
    request = pb.StartRequest(model=subject.model.name, episode_ids=own_ids(1) * 2)
    error = failure(grpc.StatusCode.INVALID_ARGUMENT, stub.Start, request)
    assert "episode_ids" in error.details()


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (epsilon_greedy(-0.1), "epsilon"),
        (epsilon_greedy(1.1), "epsilon"),
        (epsilon_greedy(float("nan")), "epsilon"),
        (softmax(0), "temperature"),
        (softmax(-1), "temperature"),
        (softmax(float("nan")), "temperature"),
    ],
)
def test_rules_out_of_range_are_invalid(stub, subject, rule, field):
    request = pb.StartRequest(model=subject.model.name, rule=rule)
    assert field in failure(grpc.StatusCode.INVALID_ARGUMENT, stub.Start, request).details()


def lease_of(stub, subject, **fields) -> float:
    reply = stub.Start(pb.StartRequest(model=subject.model.name, **fields))
    stub.End(pb.EndRequest(episode_ids=reply.episode_ids))
    return seconds(reply.lease)


def test_a_lease_is_the_default_unless_asked_for(stub, subject, limits):
    assert lease_of(stub, subject) == seconds(limits.default_lease)
    assert lease_of(stub, subject, lease=duration(0)) == seconds(limits.default_lease)


def test_a_lease_is_what_was_asked_for(stub, subject):
    assert lease_of(stub, subject, lease=duration(0.5)) == 0.5


def test_a_lease_is_cut_to_the_most_there_is(stub, subject, limits):
    most = seconds(limits.max_lease)
    assert lease_of(stub, subject, lease=duration(most + 100)) == most


def test_more_episodes_than_a_message_may_hold_are_refused(stub, subject, limits):
    request = pb.StartRequest(model=subject.model.name, num_episodes=limits.max_items + 1)
    failure(grpc.StatusCode.RESOURCE_EXHAUSTED, stub.Start, request)


def test_a_lease_that_runs_out_closes_the_episode(stub, start, subject):
    (expiring,) = start(lease=duration(0.2))
    (resting,) = start()
    time.sleep(0.5)
    reply = stub.Act(act_request([expiring, resting], [0, 0], [subject.first()] * 2))
    (error,) = reply.errors
    assert (error.index, error.problem) == (0, pb.PROBLEM_EPISODE_EXPIRED)
    assert error.message and error.HasField("closed_at")


def test_a_step_renews_the_lease(stub, start, subject):
    """Two rests, longer than the lease only if taken together."""
    (episode,) = start(lease=duration(1.5))
    time.sleep(0.9)
    assert not stub.Act(act_request([episode], [0], [subject.first()])).errors
    time.sleep(0.9)
    assert is_open(stub, subject, episode)


def test_an_item_that_is_refused_does_not_renew_the_lease(stub, start, subject):
    (episode,) = start(lease=duration(0.8))
    time.sleep(0.5)
    assert stub.Act(act_request([episode], [9], [subject.first()])).errors
    time.sleep(0.6)
    (error,) = stub.Act(act_request([episode], [0], [subject.first()])).errors
    assert error.problem == pb.PROBLEM_EPISODE_EXPIRED


# End


def test_an_ended_episode_says_so(stub, start, subject):
    (episode,) = start()
    assert not stub.End(pb.EndRequest(episode_ids=[episode])).errors
    (error,) = stub.Act(act_request([episode], [0], [subject.first()])).errors
    assert error.problem == pb.PROBLEM_EPISODE_ENDED
    assert error.message and error.HasField("closed_at")
    assert error.expected_step == 0


def test_tombstones_say_when(stub, start, subject):
    """By the server's own clock, since it may be far away."""
    ids = start(2)
    for episode in ids:
        stub.End(pb.EndRequest(episode_ids=[episode]))
        time.sleep(0.01)
    errors = stub.Act(act_request(ids, [0, 0], [subject.first()] * 2)).errors
    first, second = (error.closed_at.ToNanoseconds() for error in errors)
    assert first < second
    stub.End(pb.EndRequest(episode_ids=ids))
    again = stub.Act(act_request(ids, [0, 0], [subject.first()] * 2)).errors
    assert [error.closed_at.ToNanoseconds() for error in again] == [first, second]


def test_end_can_be_retried(stub, start):
    request = pb.EndRequest(episode_ids=start(3))
    assert not stub.End(request).errors
    assert not stub.End(request).errors


def test_ending_what_is_unknown_is_an_error_of_that_item(stub, start, subject):
    (episode,) = start()
    (error,) = stub.End(pb.EndRequest(episode_ids=["no such episode", episode])).errors
    assert (error.index, error.problem) == (0, pb.PROBLEM_EPISODE_UNKNOWN)
    assert not is_open(stub, subject, episode)


def test_ending_what_has_expired_is_an_error_of_that_item(stub, start):
    ids = start(2, lease=duration(0.2))
    time.sleep(0.5)
    errors = stub.End(pb.EndRequest(episode_ids=ids)).errors
    assert [error.index for error in errors] == [0, 1]
    for error in errors:
        assert error.problem == pb.PROBLEM_EPISODE_EXPIRED
        assert error.message and error.HasField("closed_at")


def test_more_ends_than_a_message_may_hold_are_refused(stub, limits):
    request = pb.EndRequest(episode_ids=["x"] * (limits.max_items + 1))
    failure(grpc.StatusCode.RESOURCE_EXHAUSTED, stub.End, request)
