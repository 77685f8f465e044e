"""The contract of Act: each step counts once, and one bad item fails alone. Of any server."""

import grpc
import numpy as np
import pytest
import tiger as closed_form
from wire import act_request, failure, pack, rows, unpack

from bigproto.v1 import policy_pb2 as pb


def only_error(reply: pb.ActReply) -> pb.ItemError:
    (error,) = reply.errors
    assert error.message, "A refusal must say what is wrong."
    return error


def play(stub, subject, episode: str, states: list[str]) -> pb.ActReply:
    """Steps of one episode; the reply to the last."""
    reply = pb.ActReply()
    for step, state in enumerate(states):
        reply = stub.Act(act_request([episode], [step], [subject.see(state)]))
        assert not reply.errors, (step, reply.errors)
    return reply


@pytest.fixture
def listening(stub, start, tiger):
    """An episode that has made steps 0 and 1 and expects step 2, having listened both times."""
    (episode,) = start()
    reply = play(stub, tiger, episode, ["S0", "T1"])
    if unpack(reply.actions)[0] != closed_form.LISTEN:
        pytest.skip("The policy does not listen twice, so what can follow is not known.")
    return episode


# What comes back


def test_actions_are_as_the_spec_says(stub, start, subject):
    reply = stub.Act(act_request(start(3), [0] * 3, [subject.first()] * 3))
    assert not reply.errors and not reply.duplicates
    spec = subject.model.action
    assert reply.actions.dtype == spec.dtype
    assert list(reply.actions.shape) == [3, *spec.shape]
    actions = unpack(reply.actions)
    if spec.value_names:
        assert ((actions >= 0) & (actions < len(spec.value_names))).all()


def test_the_request_id_comes_back(stub, start, subject):
    for request_id in (0, 1, 2**64 - 1):
        request = act_request(start(), [0], [subject.first()], request_id=request_id)
        assert stub.Act(request).request_id == request_id


@pytest.mark.parametrize(
    "asked", [(), ("values",), ("belief",), ("entropy",), ("values", "belief")]
)
def test_details_come_only_when_asked_for(stub, start, subject, asked):
    details = pb.Details(**dict.fromkeys(asked, True))
    reply = stub.Act(act_request(start(2), [0, 0], [subject.first()] * 2, details=details))
    assert not reply.errors
    can_come = ("values", "belief", "entropy") if subject.model.contexts else ("values",)
    for name in ("values", "belief", "entropy"):
        assert reply.HasField(name) == (name in asked and name in can_come), name


def test_details_have_a_row_for_each_item(stub, start, subject):
    reply = stub.Act(act_request(start(4), [0] * 4, [subject.first()] * 4))
    if subject.model.action.value_names:
        assert list(reply.values.shape) == [4, len(subject.model.action.value_names)]
    if subject.model.contexts:
        assert list(reply.belief.shape) == [4, len(subject.model.contexts)]
        assert list(reply.entropy.shape) == [4]


def test_greedy_is_the_first_action_of_highest_value(stub, start, subject):
    if not subject.model.action.value_names:
        pytest.skip("Actions have no numbers in this model.")
    reply = stub.Act(act_request(start(3), [0] * 3, [subject.first()] * 3))
    np.testing.assert_array_equal(unpack(reply.actions), unpack(reply.values).argmax(-1))


def test_a_belief_is_a_distribution_and_entropy_its_own(stub, start, subject):
    if not subject.model.contexts:
        pytest.skip("The contexts of this model are not finitely many.")
    reply = stub.Act(act_request(start(3), [0] * 3, [subject.first()] * 3))
    belief = unpack(reply.belief).astype(np.float64)
    # Beliefs are float32 and may be kept in log space: within some roundings of 2^-24.
    np.testing.assert_allclose(belief.sum(-1), 1, atol=1e-5)
    safe = np.where(belief > 0, belief, 1)
    want = -(belief * np.log(safe)).sum(-1)
    np.testing.assert_allclose(unpack(reply.entropy), want, atol=1e-5)


# Each step counts once


def test_the_same_step_again_returns_the_stored_reply(stub, start, subject):
    request = act_request(start(3), [0] * 3, [subject.first()] * 3)
    first = stub.Act(request)
    assert not first.errors and not first.duplicates
    again = stub.Act(request)
    assert not again.errors
    assert list(again.duplicates) == [0, 1, 2]
    assert rows(again) == rows(first)


def test_a_retry_may_want_other_details(stub, start, subject):
    ids = start()
    bare = stub.Act(act_request(ids, [0], [subject.first()], details=pb.Details()))
    full = stub.Act(act_request(ids, [0], [subject.first()]))
    assert list(full.duplicates) == [0]
    assert full.actions == bare.actions and full.HasField("values")
    bare_again = stub.Act(act_request(ids, [0], [subject.first()], details=pb.Details()))
    assert bare_again.actions == bare.actions and not bare_again.HasField("values")


def test_duplicates_are_named_by_their_places(stub, start, subject):
    ids = start(4)
    stub.Act(act_request(ids[1::2], [0, 0], [subject.first()] * 2))
    reply = stub.Act(act_request(ids, [0] * 4, [subject.first()] * 4))
    assert list(reply.duplicates) == [1, 3] and not reply.errors
    assert len(set(rows(reply))) == 1, "The same observation leads four new episodes to one reply."


def test_a_step_too_far_ahead_names_the_step_expected(stub, start, subject):
    ids = start()
    error = only_error(stub.Act(act_request(ids, [1], [subject.first()])))
    assert (error.problem, error.expected_step) == (pb.PROBLEM_STEP_AHEAD, 0)
    assert not stub.Act(act_request(ids, [0], [subject.first()])).errors
    error = only_error(stub.Act(act_request(ids, [2**64 - 1], [subject.first()])))
    assert (error.problem, error.expected_step) == (pb.PROBLEM_STEP_AHEAD, 1)


def test_the_last_step_with_another_observation_differs(stub, tiger, listening):
    error = only_error(stub.Act(act_request([listening], [1], [tiger.see("T2")])))
    assert (error.problem, error.expected_step) == (pb.PROBLEM_STEP_DIFFERS, 2)
    again = stub.Act(act_request([listening], [1], [tiger.see("T1")]))
    assert list(again.duplicates) == [0] and not again.errors


def test_a_step_before_the_last_is_behind(stub, tiger, listening):
    error = only_error(stub.Act(act_request([listening], [0], [tiger.see("S0")])))
    assert (error.problem, error.expected_step) == (pb.PROBLEM_STEP_BEHIND, 2)


@pytest.mark.parametrize(
    ("step", "state"), [(1, "T2"), (0, "S0"), (3, "T2"), (2, "Gold"), (1, "T1")]
)
def test_what_is_refused_or_repeated_leaves_the_belief_alone(stub, start, tiger, step, state):
    """An episode that was bothered goes on exactly as one that was not."""
    bothered, calm = start(2)
    for episode in (bothered, calm):
        last = play(stub, tiger, episode, ["S0", "T1"])
    if unpack(last.actions)[0] != closed_form.LISTEN:
        pytest.skip("The policy does not listen twice, so what can follow is not known.")
    stub.Act(act_request([bothered], [step], [tiger.see(state)]))
    replies = [stub.Act(act_request([e], [2], [tiger.see("T2")])) for e in (bothered, calm)]
    assert not any(reply.errors or reply.duplicates for reply in replies)
    assert rows(replies[0]) == rows(replies[1])


def test_an_impossible_observation_is_refused_and_another_may_come(stub, tiger, listening):
    error = only_error(stub.Act(act_request([listening], [2], [tiger.see("Gold")])))
    assert error.problem == pb.PROBLEM_OBSERVATION_IMPOSSIBLE
    reply = stub.Act(act_request([listening], [2], [tiger.see("T2")]))
    assert not reply.errors and not reply.duplicates


def test_two_hearings_that_disagree_cancel_out(stub, tiger, listening):
    reply = stub.Act(act_request([listening], [2], [tiger.see("T2")]))
    # Two float32 roundings of log-odds of 1.7.
    np.testing.assert_allclose(unpack(reply.belief), [[0.5, 0.5]], atol=1e-6)


# One bad item fails alone


def test_a_bad_item_fails_alone_and_its_row_is_zero(stub, start, subject):
    good = start(2)
    reply = stub.Act(
        act_request([good[0], "no such episode", good[1]], [0] * 3, [subject.first()] * 3)
    )
    error = only_error(reply)
    assert (error.index, error.problem) == (1, pb.PROBLEM_EPISODE_UNKNOWN)
    for name in ("actions", "values", "belief", "entropy"):
        if reply.HasField(name):
            assert not unpack(getattr(reply, name))[1].any(), name
    alone = stub.Act(act_request(good, [0, 0], [subject.first()] * 2))
    assert list(alone.duplicates) == [0, 1]
    assert rows(alone) == [rows(reply)[0], rows(reply)[2]]


def test_an_episode_twice_in_a_message_fails_at_its_second_place(stub, start, subject):
    (once, twice) = start(2)
    reply = stub.Act(act_request([twice, once, twice], [0, 0, 1], [subject.first()] * 3))
    error = only_error(reply)
    assert (error.index, error.problem) == (2, pb.PROBLEM_ITEM_INVALID)
    again = stub.Act(act_request([twice], [0], [subject.first()]))
    assert list(again.duplicates) == [0]


def test_that_holds_for_episodes_that_are_not_open_too(stub, subject):
    errors = stub.Act(act_request(["nobody's"] * 2, [0, 0], [subject.first()] * 2)).errors
    problems = [error.problem for error in errors]
    assert problems == [pb.PROBLEM_EPISODE_UNKNOWN, pb.PROBLEM_ITEM_INVALID]


def spoiled(subject, value: float) -> tuple[np.ndarray, ...]:
    """The first observation with one number of its first entry replaced."""
    first, *rest = (entry.copy() for entry in subject.first())
    first.flat[-1] = value
    return first, *rest


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_invalid(stub, start, subject, value):
    if subject.first()[0].dtype.kind != "f":
        pytest.skip("The first entry of this model's observations has no floats.")
    bad, good = start(2)
    observations = [spoiled(subject, value), subject.first()]
    error = only_error(stub.Act(act_request([bad, good], [0, 0], observations)))
    assert (error.index, error.problem) == (0, pb.PROBLEM_OBSERVATION_INVALID)
    reply = stub.Act(act_request([bad], [0], [subject.first()]))
    assert not reply.errors and not reply.duplicates


@pytest.mark.parametrize("side", ["minimum", "maximum"])
def test_what_is_out_of_bounds_is_invalid(stub, start, subject, side):
    spec, entry = subject.model.observation[0], subject.first()[0]
    if not spec.HasField(side):
        pytest.skip(f"The first entry of this model's observations has no {side}.")
    beyond = getattr(spec, side) + (1 if side == "maximum" else -1)
    if entry.dtype.kind != "f" and np.array(beyond).astype(entry.dtype) != beyond:
        pytest.skip("Its dtype cannot go out of bounds.")
    error = only_error(stub.Act(act_request(start(), [0], [spoiled(subject, beyond)])))
    assert error.problem == pb.PROBLEM_OBSERVATION_INVALID


# What fails the call as a whole


def changed(subject, ids, change) -> pb.ActRequest:
    """A request for step 0 after a change to it."""
    request = act_request(ids, [0] * len(ids), [subject.first()] * len(ids))
    change(request)
    return request


def other_dtype(request: pb.ActRequest) -> None:
    array = unpack(request.observation[0])
    other = np.float64 if array.dtype != np.float64 else np.float32
    request.observation[0].CopyFrom(pack(array.astype(other)))


def other_shape(request: pb.ActRequest) -> None:
    array = unpack(request.observation[0])
    request.observation[0].CopyFrom(pack(np.stack([array, array], axis=-1)))


def other_bytes(request: pb.ActRequest) -> None:
    request.observation[0].data = request.observation[0].data[:-1]


def no_dtype(request: pb.ActRequest) -> None:
    request.observation[0].dtype = pb.Array.DTYPE_UNSPECIFIED


def row_too_few(request: pb.ActRequest) -> None:
    request.observation[0].CopyFrom(pack(unpack(request.observation[0])[:-1]))


def huge_shape(request: pb.ActRequest) -> None:
    """Its product overflows 64 bits and comes out as 0."""
    request.observation[0].shape[:] = [2, *[2**31] * 4]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (other_dtype, "observation"),
        (other_shape, "observation"),
        (other_bytes, "observation"),
        (no_dtype, "observation"),
        (row_too_few, "observation"),
        (huge_shape, "observation"),
        (lambda request: request.observation.pop(), "observation"),
        (lambda request: request.observation.append(request.observation[0]), "observation"),
        (lambda request: request.steps.pop(), "steps"),
        (lambda request: request.steps.append(0), "steps"),
    ],
)
def test_columns_that_do_not_fit_fail_the_call_and_name_the_field(
    stub, start, subject, change, field
):
    ids = start(2)
    request = changed(subject, ids, change)
    error = failure(grpc.StatusCode.INVALID_ARGUMENT, stub.Act, request)
    assert field in error.details()
    reply = stub.Act(act_request(ids, [0, 0], [subject.first()] * 2))
    assert not reply.duplicates, "A call that failed must have changed nothing."


def test_more_items_than_a_message_may_hold_are_refused(stub, start, subject, limits):
    if limits.max_items > 100_000:
        pytest.skip("The limit of this server is too high to exceed in a test.")
    (episode,) = start()
    count = limits.max_items + 1
    ids = [episode, *(f"{i}" for i in range(count - 1))]
    request = act_request(ids, [0] * count, [subject.first()] * count)
    failure(grpc.StatusCode.RESOURCE_EXHAUSTED, stub.Act, request)
    assert not stub.Act(act_request([episode], [0], [subject.first()])).duplicates


def test_more_bytes_than_a_message_may_hold_are_refused(stub, limits):
    if limits.max_message_bytes > 2**28:
        pytest.skip("The limit of this server is too high to exceed in a test.")
    request = pb.ActRequest(episode_ids=["x" * (limits.max_message_bytes + 1)], steps=[0])
    failure(grpc.StatusCode.RESOURCE_EXHAUSTED, stub.Act, request)


# Time


def test_a_generous_timeout_is_no_hindrance(stub, start, subject):
    request = act_request(start(), [0], [subject.first()], timeout_milliseconds=50_000)
    assert not stub.Act(request).errors


def in_a_hurry(stub, requests: list[pb.ActRequest], timeout: float | None) -> list[bool | None]:
    """Makes calls all at once: which were applied. None: nobody knows, the deadline passed."""
    applied: list[bool | None] = []
    for call in [stub.Act.future(request, timeout=timeout) for request in requests]:
        try:
            problems = {error.problem for error in call.result().errors}
            assert problems <= {pb.PROBLEM_ITEM_TOO_LATE}
            applied.append(not problems)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            applied.append(None)
    return applied


@pytest.mark.parametrize("limit", ["deadline", "timeout_milliseconds"])
def test_what_comes_too_late_is_not_applied_and_can_be_sent_again(stub, start, subject, limit):
    """Many calls at once with a millisecond each: some can be too late."""
    ids = start(64)
    timeout, milliseconds = (0.001, 0) if limit == "deadline" else (None, 1)
    requests = [
        act_request([episode], [0], [subject.first()], timeout_milliseconds=milliseconds)
        for episode in ids
    ]
    applied = in_a_hurry(stub, requests, timeout)
    again = stub.Act(act_request(ids, [0] * 64, [subject.first()] * 64))
    assert not again.errors
    for i, was_applied in enumerate(applied):
        if was_applied is not None:
            assert (i in again.duplicates) == was_applied, i
    assert len(set(rows(again))) == 1, "Whenever it was applied, the reply is the same."
