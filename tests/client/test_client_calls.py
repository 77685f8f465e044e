"""The decisions of the client, without any connection: operations driven by hand."""

import grpc
import numpy as np
import pytest

from bigclient import Retry, errors
from bigclient.arrays import encode
from bigclient.calls import Attempts, Call, Sleep, attempt
from bigclient.episode import AbstractEpisode
from bigclient.episodes import AbstractEpisodes
from bigclient.session import EpisodeOptions, Session
from bigclient.testing import FakeModel
from bigproto.v1 import policy_pb2

MODEL = FakeModel()


class Clock:
    """Time that passes when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def rpc_error(code: grpc.StatusCode, **metadata: str) -> grpc.aio.AioRpcError:
    pairs = [(name.replace("_", "-"), text) for name, text in metadata.items()]
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*pairs), "text")


UNAVAILABLE = rpc_error(grpc.StatusCode.UNAVAILABLE)


def finish(operation, outcome):
    """What an operation returns when it is sent its last outcome."""
    with pytest.raises(StopIteration) as stopped:
        operation.send(outcome)
    return stopped.value.value


def make_session(clock: Clock, **retry) -> Session:
    """A session that has seen its server."""
    session = Session("here:1", timeout=5.0, retry=Retry(**retry), model="", clock=clock)
    describing = session.describe()
    next(describing)
    limits = policy_pb2.Limits(max_items=8, max_message_bytes=1000)
    finish(describing, policy_pb2.DescribeReply(models=[MODEL.describe(True)], limits=limits))
    return session


def make_model(session: Session):
    resolving = session.resolve("", "")
    with pytest.raises(StopIteration) as stopped:
        next(resolving)
    return stopped.value.value


def act_reply(actions, errors=()) -> policy_pb2.ActReply:
    return policy_pb2.ActReply(actions=encode(np.array(actions, "<i4")), errors=errors)


def item(index: int, problem: str, wait: int = 0) -> policy_pb2.ItemError:
    return policy_pb2.ItemError(
        index=index, problem=f"PROBLEM_{problem}", message="text", retry_after_milliseconds=wait
    )


# Attempts


def test_waits_double_up_to_the_longest_and_are_cut_by_up_to_a_half():
    attempts = Attempts(Retry(budget=1e6, first_wait=0.1, longest_wait=1.0), 5.0, None, Clock())
    waits = [attempts.wait_after(errors.Unavailable("")) for _ in range(200)]
    full = np.minimum(1.0, 0.1 * 2.0 ** np.arange(200))
    shares = np.array(waits) / full
    assert np.all((0.5 <= shares) & (shares <= 1.0))
    # 196 waits of one full length, uniform in between: both ends are met, but with odds of 1e-9.
    assert shares.min() < 0.55 and shares.max() > 0.95


def test_a_server_that_says_how_long_is_waited_for_at_least_as_long():
    failure = errors.Overloaded("", retry_after=3.0)
    assert Attempts(Retry(), 5.0, None, Clock()).wait_after(failure) == 3.0


def test_no_attempt_outlasts_the_budget():
    clock = Clock()
    attempts = Attempts(Retry(budget=10.0), 4.0, None, clock)
    assert attempts.timeout == 4.0
    clock.now += 8.0
    assert attempts.timeout == 2.0
    clock.now += 1.99
    assert attempts.wait_after(errors.Unavailable("")) is None


def test_the_budget_of_a_call_takes_the_place_of_the_clients():
    assert Attempts(Retry(budget=10.0), 4.0, 0.5, Clock()).timeout == 0.5


def test_attempts_can_be_counted_instead():
    attempts = Attempts(Retry(attempts=2), 5.0, None, Clock())
    failure = errors.Unavailable("")
    assert attempts.wait_after(failure) is not None
    assert attempts.wait_after(failure) is None
    assert failure.__notes__ == ["Tried 2 times in 0.0 s."]


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (UNAVAILABLE, True),
        (rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED), True),
        (rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc_retry_pushback_ms="70"), True),
        (rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED), False),
        (rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc_retry_pushback_ms="-1"), False),
        (rpc_error(grpc.StatusCode.UNAVAILABLE, grpc_retry_pushback_ms="-1"), False),
        (rpc_error(grpc.StatusCode.INVALID_ARGUMENT), False),
        (rpc_error(grpc.StatusCode.INTERNAL), False),
        (rpc_error(grpc.StatusCode.UNAUTHENTICATED), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error, again):
    request = policy_pb2.DescribeRequest()
    operation = attempt("Describe", request, Attempts(Retry(), 5.0, None, Clock()))
    assert next(operation) == Call("Describe", request, 5.0)
    if again:
        assert isinstance(operation.throw(error), Sleep)
        assert operation.send(None) == Call("Describe", request, 5.0)
        assert finish(operation, "reply") == "reply"
    else:
        with pytest.raises(errors.CallError) as raised:
            operation.throw(error)
        assert raised.value.code is error.code()


def test_pushback_is_waited_for():
    error = rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc_retry_pushback_ms="7000")
    operation = attempt("End", policy_pb2.EndRequest(), Attempts(Retry(), 5.0, None, Clock()))
    next(operation)
    assert operation.throw(error) == Sleep(7.0)


def test_start_always_has_a_seed_so_that_it_can_be_sent_again():
    requests = [EpisodeOptions("").request(["a"]) for _ in range(2)]
    assert all(request.HasField("seed") for request in requests)
    assert requests[0].seed != requests[1].seed


# One episode


@pytest.fixture
def episode() -> AbstractEpisode:
    session = make_session(Clock())
    return AbstractEpisode(session, lambda operation: None, make_model(session), "me")


def test_a_step_that_fails_is_sent_again_as_it_was(episode):
    operation = episode._act(1, None)
    first = next(operation).request.SerializeToString()
    assert isinstance(operation.throw(UNAVAILABLE), Sleep)
    assert operation.send(None).request.SerializeToString() == first
    assert finish(operation, act_reply([2])) == 2
    assert episode.step == 1


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_step_is_not_counted(episode, interruption):
    operation = episode._act(1, None)
    first = next(operation).request.SerializeToString()
    with pytest.raises(interruption):
        operation.throw(interruption())
    assert episode.step == 0
    assert next(episode._act(1, None)).request.SerializeToString() == first


@pytest.mark.parametrize("problem", ["ITEM_OVERLOADED", "ITEM_TOO_LATE"])
def test_a_step_that_was_not_begun_is_sent_again(episode, problem):
    operation = episode._act(1, None)
    next(operation)
    wait = operation.send(act_reply([0], [item(0, problem, 4000)]))
    assert wait == Sleep(4.0)
    assert operation.send(None).request.steps == [0]
    assert finish(operation, act_reply([2])) == 2


def test_two_steps_at_once_are_refused_and_the_first_goes_on(episode):
    first = episode._act(1, None)
    next(first)
    with pytest.raises(errors.EpisodeBusy, match="one step at a time"):
        next(episode._act(1, None))
    assert finish(first, act_reply([2])) == 2


# Many episodes


@pytest.fixture
def episodes() -> AbstractEpisodes:
    session = make_session(Clock())
    model = make_model(session)
    ids = ["a", "b", "c", "d"]
    return AbstractEpisodes(session, lambda operation: None, model, ids, (), EpisodeOptions(""))


def test_only_the_rows_that_may_pass_are_sent_again(episodes):
    operation = episodes._act([0, 1, 2, 0], None, None)
    assert next(operation).request.episode_ids == ["a", "b", "c", "d"]
    bad = [item(1, "ITEM_OVERLOADED", 9000), item(3, "ITEM_TOO_LATE")]
    assert operation.send(act_reply([5, 0, 7, 0], bad)) == Sleep(9.0)
    again = operation.send(None).request
    assert again.episode_ids == ["b", "d"] and again.steps == [0, 0]
    assert np.frombuffer(again.observation[0].data, "<i4").tolist() == [1, 0]
    assert again.observation[0].shape == [2]
    assert finish(operation, act_reply([6, 8])).tolist() == [5, 6, 7, 8]
    assert episodes.steps.tolist() == [1, 1, 1, 1]


def test_rows_that_cannot_pass_come_with_the_others_actions(episodes):
    operation = episodes._act([0, 1, 2, 0], None, None)
    next(operation)
    with pytest.raises(errors.RowErrors) as raised:
        operation.send(act_reply([5, 0, 7, 8], [item(1, "EPISODE_EXPIRED")]))
    assert raised.value.rows.tolist() == [1]
    assert isinstance(raised.value.errors[1], errors.EpisodeExpired)
    assert raised.value.actions[[0, 2, 3]].tolist() == [5, 7, 8]
    assert episodes.steps.tolist() == [1, 0, 1, 1]


def test_a_call_that_fails_for_some_rows_does_not_lose_the_others(episodes):
    operation = episodes._act([0, 1, 2, 0], None, None)
    next(operation)
    operation.send(act_reply([5, 0, 7, 8], [item(1, "ITEM_OVERLOADED")]))
    operation.send(None)
    with pytest.raises(errors.RowErrors) as raised:
        operation.throw(rpc_error(grpc.StatusCode.INTERNAL))
    assert isinstance(raised.value.errors[1], errors.InternalError)
    assert episodes.steps.tolist() == [1, 0, 1, 1]


def test_rows_that_all_fail_need_no_arrays(episodes):
    operation = episodes._act([0, 1, 2, 0], None, None)
    next(operation)
    operation.send(policy_pb2.ActReply(errors=[item(i, "ITEM_OVERLOADED") for i in range(4)]))
    operation.send(None)
    lost = [item(i, "EPISODE_UNKNOWN") for i in (0, 1, 3)]
    with pytest.raises(errors.RowErrors) as raised:
        operation.send(act_reply([0, 0, 7, 0], lost))
    assert raised.value.actions[2] == 7 and raised.value.rows.tolist() == [0, 1, 3]


def test_an_interruption_between_parts_counts_no_row(episodes):
    operation = episodes._act([0, 1, 2, 0], None, None)
    next(operation)
    operation.send(act_reply([5, 0, 7, 8], [item(1, "ITEM_OVERLOADED")]))
    with pytest.raises(KeyboardInterrupt):
        operation.throw(KeyboardInterrupt())
    assert episodes.steps.tolist() == [0, 0, 0, 0]


def test_a_group_must_fit_into_a_message():
    session = make_session(Clock())
    with pytest.raises(errors.ConfigError, match="from 1 to 8, .* got 9: open several groups"):
        next(session.check_size(9, 4))
    with pytest.raises(errors.ConfigError, match="from 1 to 1,"):
        next(session.check_size(2, 700))
