"""The contract of Export and Import. The server can be anybody's."""

import time

import grpc
import pytest
from wire import act_request, duration, failure, rows

from bigproto.v1 import policy_pb2 as pb

RULE = pb.ActionRule(epsilon_greedy=pb.ActionRule.EpsilonGreedy(epsilon=0.7))

STATES = ["Gold", "ST", "ST", "ST", "ST", "ST"]
"""What tiger-treasure can show whatever is done, so that actions may be drawn at random."""


def step(stub, subject, episode: str, number: int) -> pb.ActReply:
    reply = stub.Act(act_request([episode], [number], [subject.see(STATES[number])]))
    assert not reply.errors, reply.errors
    return reply


def export(stub, *episodes: str, close: bool) -> list[pb.SealedEpisode]:
    reply = stub.Export(pb.ExportRequest(episode_ids=episodes, close=close))
    assert not reply.errors, reply.errors
    return list(reply.episodes)


def take_in(stub, *sealed: pb.SealedEpisode) -> pb.ImportReply:
    return stub.Import(pb.ImportRequest(episodes=sealed))


def only_error(reply) -> pb.ItemError:
    (error,) = reply.errors
    assert error.message, "A refusal must say what is wrong."
    return error


# Export


def test_an_export_is_an_episode_state_with_a_seal(stub, start, subject):
    (episode,) = start(seed=1, rule=RULE, lease=duration(12))
    reply = stub.Act(act_request([episode], [0], [subject.first()]))
    (sealed,) = export(stub, episode, close=False)
    assert len(sealed.seal) == 32
    state = pb.EpisodeState.FromString(sealed.state)
    assert (state.episode_id, state.next_step) == (episode, 1)
    assert (state.model, state.version) == (subject.model.name, subject.model.version)
    assert state.rule == RULE and state.lease == duration(12)
    assert rows(state.last_reply) == rows(reply)


def test_before_the_first_step_there_is_no_last_reply(stub, start):
    (sealed,) = export(stub, *start(), close=False)
    state = pb.EpisodeState.FromString(sealed.state)
    assert state.next_step == 0 and not state.HasField("last_reply")


def test_exports_come_in_order_without_those_that_failed(stub, start):
    first, second = start(2)
    ids = [first, "no such episode", second]
    reply = stub.Export(pb.ExportRequest(episode_ids=ids))
    error = only_error(reply)
    assert (error.index, error.problem) == (1, pb.PROBLEM_EPISODE_UNKNOWN)
    states = [pb.EpisodeState.FromString(sealed.state) for sealed in reply.episodes]
    assert [state.episode_id for state in states] == [first, second]


def test_an_export_that_closes_says_so_ever_after(stub, start, subject):
    (episode,) = start()
    export(stub, episode, close=True)
    errors = [
        only_error(stub.Act(act_request([episode], [0], [subject.first()]))),
        only_error(stub.End(pb.EndRequest(episode_ids=[episode]))),
        only_error(stub.Export(pb.ExportRequest(episode_ids=[episode]))),
    ]
    for error in errors:
        assert error.problem == pb.PROBLEM_EPISODE_EXPORTED
        assert error.HasField("closed_at")
    request = pb.ExplainRequest(episode_id=episode)
    refused = failure(grpc.StatusCode.NOT_FOUND, stub.Explain, request)
    assert dict(refused.trailing_metadata())["big-problem"] == "PROBLEM_EPISODE_EXPORTED"


def test_an_export_that_does_not_close_changes_nothing(stub, start, tiger):
    exported, left_alone = (start(seed=4, rule=RULE)[0] for _ in range(2))
    for number in range(4):
        replies = [step(stub, tiger, episode, number) for episode in (exported, left_alone)]
        assert rows(replies[0]) == rows(replies[1])
        export(stub, exported, close=False)


def test_an_ended_episode_cannot_be_exported(stub, start):
    (episode,) = start()
    stub.End(pb.EndRequest(episode_ids=[episode]))
    error = only_error(stub.Export(pb.ExportRequest(episode_ids=[episode])))
    assert error.problem == pb.PROBLEM_EPISODE_ENDED


def test_more_exports_than_a_message_may_hold_are_refused(stub, limits):
    request = pb.ExportRequest(episode_ids=["x"] * (limits.max_items + 1))
    failure(grpc.StatusCode.RESOURCE_EXHAUSTED, stub.Export, request)


# Import


@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_an_imported_episode_goes_on_to_the_last_bit(stub, start, tiger, num_before):
    moved, stays = (start(seed=4, rule=RULE)[0] for _ in range(2))
    for number in range(num_before):
        step(stub, tiger, moved, number)
        step(stub, tiger, stays, number)
    (sealed,) = export(stub, moved, close=True)
    reply = take_in(stub, sealed)
    assert list(reply.episode_ids) == [moved] and not reply.errors
    for number in range(num_before, len(STATES)):
        replies = [step(stub, tiger, episode, number) for episode in (moved, stays)]
        assert not replies[0].duplicates
        assert rows(replies[0]) == rows(replies[1])


def test_a_retry_is_still_known_after_the_move(stub, start, tiger):
    (episode,) = start(seed=4, rule=RULE)
    before = step(stub, tiger, episode, 0)
    take_in(stub, *export(stub, episode, close=True))
    after = step(stub, tiger, episode, 0)
    assert list(after.duplicates) == [0]
    assert rows(after) == rows(before)
    error = only_error(stub.Act(act_request([episode], [0], [tiger.see("Tiger")])))
    assert (error.problem, error.expected_step) == (pb.PROBLEM_STEP_DIFFERS, 1)


def test_import_can_be_retried(stub, start):
    sealed = export(stub, *start(2), close=True)
    first = take_in(stub, *sealed)
    assert len(first.episode_ids) == 2 and not first.errors
    assert take_in(stub, *sealed) == first


def test_what_is_open_here_in_another_state_exists(stub, start, tiger):
    (episode,) = start()
    step(stub, tiger, episode, 0)
    (sealed,) = export(stub, episode, close=False)
    assert not take_in(stub, sealed).errors, "It is here already, in the same state."
    later = step(stub, tiger, episode, 1)
    reply = take_in(stub, sealed)
    assert only_error(reply).problem == pb.PROBLEM_EPISODE_EXISTS
    assert not reply.episode_ids
    again = step(stub, tiger, episode, 1)
    assert list(again.duplicates) == [0] and rows(again) == rows(later)


def test_an_old_export_does_not_come_back_over_what_went_on(stub, start, tiger):
    """Or its steps would count twice."""
    (episode,) = start()
    step(stub, tiger, episode, 0)
    (old,) = export(stub, episode, close=True)
    assert not take_in(stub, old).errors
    step(stub, tiger, episode, 1)
    (new,) = export(stub, episode, close=True)
    assert only_error(take_in(stub, old)).problem == pb.PROBLEM_EPISODE_EXPORTED
    assert not take_in(stub, new).errors
    stub.End(pb.EndRequest(episode_ids=[episode]))
    for sealed in (old, new):
        error = only_error(take_in(stub, sealed))
        assert error.problem == pb.PROBLEM_EPISODE_ENDED
        assert error.HasField("closed_at")


def test_a_start_can_be_sent_again_after_a_move(stub, subject):
    request = pb.StartRequest(model=subject.model.name, episode_ids=["moved-on-start"], seed=3)
    first = stub.Start(request)
    take_in(stub, *export(stub, "moved-on-start", close=True))
    assert stub.Start(request) == first
    stub.End(pb.EndRequest(episode_ids=first.episode_ids))


def test_imports_come_in_order_and_fail_alone(stub, start):
    first, second = export(stub, *start(2), close=True)
    broken = pb.SealedEpisode(state=first.state, seal=second.seal)
    reply = take_in(stub, first, broken, second)
    error = only_error(reply)
    assert (error.index, error.problem) == (1, pb.PROBLEM_SEAL_BROKEN)
    want = [pb.EpisodeState.FromString(sealed.state).episode_id for sealed in (first, second)]
    assert list(reply.episode_ids) == want


def flipped(data: bytes, place: int) -> bytes:
    return bytes(byte ^ (i == place % len(data)) for i, byte in enumerate(data))


@pytest.mark.parametrize("field", ["state", "seal"])
@pytest.mark.parametrize("place", [0, 15, -1])
def test_whoever_alters_a_bit_breaks_the_seal(stub, start, subject, field, place):
    (episode,) = start()
    (sealed,) = export(stub, episode, close=True)
    altered = pb.SealedEpisode(state=sealed.state, seal=sealed.seal)
    setattr(altered, field, flipped(getattr(sealed, field), place))
    error = only_error(take_in(stub, altered))
    assert error.problem == pb.PROBLEM_SEAL_BROKEN
    error = only_error(stub.Act(act_request([episode], [0], [subject.first()])))
    assert error.problem == pb.PROBLEM_EPISODE_EXPORTED


@pytest.mark.parametrize("seal", [b"", b"short", bytes(32), bytes(33)])
def test_a_seal_made_up_is_broken(stub, seal):
    state = pb.EpisodeState(episode_id="made up").SerializeToString()
    sealed = pb.SealedEpisode(state=state, seal=seal)
    assert only_error(take_in(stub, sealed)).problem == pb.PROBLEM_SEAL_BROKEN


def test_export_keeps_the_lease(stub, start, subject):
    (episode,) = start(lease=duration(0.2))
    take_in(stub, *export(stub, episode, close=True))
    time.sleep(0.5)
    error = only_error(stub.Act(act_request([episode], [0], [subject.first()])))
    assert error.problem == pb.PROBLEM_EPISODE_EXPIRED


def test_more_imports_than_a_message_may_hold_are_refused(stub, limits):
    sealed = [pb.SealedEpisode()] * (limits.max_items + 1)
    failure(grpc.StatusCode.RESOURCE_EXHAUSTED, stub.Import, pb.ImportRequest(episodes=sealed))
