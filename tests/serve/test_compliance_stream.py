"""The contract of ActStream, and of what must not depend on how steps travel. Of any server."""

import uuid

import grpc
import numpy as np
import pytest
import tiger as closed_form
from walking import World, walk
from wire import Stream, act_request, rows, unpack

from bigproto.v1 import policy_pb2 as pb

SOFTMAX = pb.ActionRule(softmax=pb.ActionRule.Softmax(temperature=50))
"""Warm enough that all actions of tiger-treasure occur."""

EPSILON = pb.ActionRule(epsilon_greedy=pb.ActionRule.EpsilonGreedy(epsilon=0.7))


def ended_with(stream: Stream) -> grpc.StatusCode:
    """How a stream ended, after the replies that still came."""
    with pytest.raises(grpc.RpcError) as caught:
        while True:
            stream.receive()
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code()


# ActStream


def test_every_request_gets_one_reply_of_its_id(stub, start, subject):
    ids = start(40)
    with Stream(stub) as stream:
        for number, episode in enumerate(ids):
            stream.send(act_request([episode], [0], [subject.first()], request_id=1000 + number))
        replies = [stream.receive() for _ in ids]
    assert sorted(reply.request_id for reply in replies) == [1000 + i for i in range(40)]
    assert not any(reply.errors or reply.duplicates for reply in replies)


def test_a_stream_that_the_client_ends_ends_well(stub, start, subject):
    requests = [act_request([e], [0], [subject.first()], request_id=7) for e in start(3)]
    replies = list(stub.ActStream(iter(requests)))
    assert [reply.request_id for reply in replies] == [7, 7, 7]


def test_items_fail_alone_on_a_stream_too(stub, start, subject):
    (episode,) = start()
    with Stream(stub) as stream:
        request = act_request(["no such episode", episode], [0, 0], [subject.first()] * 2)
        (error,) = stream.ask(request).errors
        assert (error.index, error.problem) == (0, pb.PROBLEM_EPISODE_UNKNOWN)
        assert list(stream.ask(request).duplicates) == [1]


def test_a_request_that_makes_no_sense_ends_the_stream_but_not_the_episodes(stub, start, subject):
    (episode,) = start()
    with Stream(stub) as stream:
        before = stream.ask(act_request([episode], [0], [subject.first()]))
        stream.send(pb.ActRequest(episode_ids=[episode], steps=[1]))
        assert ended_with(stream) == grpc.StatusCode.INVALID_ARGUMENT
    with Stream(stub) as stream:
        after = stream.ask(act_request([episode], [0], [subject.first()]))
    assert list(after.duplicates) == [0] and rows(after) == rows(before)


def test_a_lost_stream_loses_no_episode(stub, start, tiger):
    (episode,) = start()
    with Stream(stub) as stream:
        stream.ask(act_request([episode], [0], [tiger.see("S0")]))
        stream.send(act_request([episode], [1], [tiger.see("T1")]))
        stream.cut()
    with Stream(stub) as stream:
        reply = stream.ask(act_request([episode], [1], [tiger.see("T1")]))
        assert not reply.errors, "Whether or not it had arrived, the step can be sent again."
        (error,) = stream.ask(act_request([episode], [3], [tiger.see("T1")])).errors
        assert error.expected_step == 2


# What must not depend on how steps travel


def test_the_same_seed_acts_the_same(stub, start, tiger):
    for rule in (SOFTMAX, EPSILON):
        twins = [start(seed=11, rule=rule)[0] for _ in range(2)]
        first, second = (walk(stub.Act, tiger, twin, world=World(0)) for twin in twins)
        assert first == second


def test_episodes_of_a_message_draw_from_streams_of_their_own(stub, start, tiger):
    """By chance alone 32 would draw the same first action once in 3^31."""
    ids = start(32, seed=11, rule=pb.ActionRule(epsilon_greedy={"epsilon": 1.0}))
    reply = stub.Act(act_request(ids, [0] * 32, [tiger.first()] * 32))
    assert len(set(unpack(reply.actions).tolist())) > 1
    again = start(32, seed=11, rule=pb.ActionRule(epsilon_greedy={"epsilon": 1.0}))
    assert unpack(
        stub.Act(act_request(again, [0] * 32, [tiger.first()] * 32)).actions
    ).tolist() == (unpack(reply.actions).tolist())


def test_epsilon_is_the_share_of_random_actions(stub, start, tiger):
    """Of n draws, ε·(1 − 1/3) are not the greedy action; four deviations on either side."""
    count, epsilon = 200, 0.6
    ids = start(count, seed=5, rule=pb.ActionRule(epsilon_greedy={"epsilon": epsilon}))
    reply = stub.Act(act_request(ids, [0] * count, [tiger.first()] * count))
    others = (unpack(reply.actions) != unpack(reply.values).argmax(-1)).mean()
    want = epsilon * 2 / 3
    assert abs(others - want) < 4 * np.sqrt(want * (1 - want) / count)


def test_softmax_draws_in_proportion(stub, start, tiger):
    """Frequencies of 200 draws against exp(value / temperature), within four deviations."""
    count = 200
    ids = start(count, seed=5, rule=SOFTMAX)
    reply = stub.Act(act_request(ids, [0] * count, [tiger.first()] * count))
    weights = unpack(reply.values)[0].astype(np.float64) / SOFTMAX.softmax.temperature
    want = np.exp(weights - weights.max())
    want /= want.sum()
    drawn = np.bincount(unpack(reply.actions), minlength=3) / count
    assert (abs(drawn - want) <= 4 * np.sqrt(want * (1 - want) / count)).all(), (drawn, want)


@pytest.mark.parametrize("rule", [None, SOFTMAX], ids=["greedy", "softmax"])
def test_streams_and_single_calls_agree_to_the_last_bit(stub, start, tiger, rule):
    by_call, by_stream = (start(seed=11, rule=rule)[0] for _ in range(2))
    with Stream(stub) as stream:
        want = walk(stub.Act, tiger, by_call, world=World(1))
        assert walk(stream.ask, tiger, by_stream, world=World(1)) == want


@pytest.mark.parametrize("num_others", [1, 2, 30, 200])
def test_a_batch_changes_no_bit_of_an_episode(stub, start, tiger, num_others, limits):
    """The same episode alone, and in the midst of others that are elsewhere."""
    if num_others >= limits.max_items:
        pytest.skip("The server takes fewer items in a message.")
    alone, among = (start(seed=11, rule=SOFTMAX)[0] for _ in range(2))
    others = start(num_others)
    place = num_others // 2
    ids = [*others[:place], among, *others[place:]]
    rng = np.random.default_rng(num_others)

    def ask_among_others(request: pb.ActRequest) -> pb.ActReply:
        (step,) = request.steps
        seen = [tiger.see(str(rng.choice(closed_form.STATES))) for _ in ids]
        seen[place] = (unpack(request.observation[0])[0],)
        reply = stub.Act(act_request(ids, [step] * len(ids), seen))
        assert place not in {error.index for error in reply.errors}
        only = pb.ActReply()
        for name in ("actions", "values", "belief", "entropy"):
            array = unpack(getattr(reply, name))[place : place + 1]
            part = getattr(only, name)
            part.CopyFrom(getattr(reply, name))
            part.shape[0], part.data = 1, array.tobytes()
        return only

    assert walk(ask_among_others, tiger, among, world=World(2)) == walk(
        stub.Act, tiger, alone, world=World(2)
    )


def test_own_ids_do_not_change_what_is_drawn(stub, start, tiger):
    own = start(episode_ids=[f"own {uuid.uuid4()}"], seed=11, rule=SOFTMAX)[0]
    made = start(seed=11, rule=SOFTMAX)[0]
    assert walk(stub.Act, tiger, own, world=World(3)) == walk(stub.Act, tiger, made, world=World(3))
