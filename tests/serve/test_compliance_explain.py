"""The contract of Explain. The server can be anybody's."""

import time

import grpc
import numpy as np
import pytest
import tiger as closed_form
from wire import act_request, duration, failure, rows, unpack

from bigproto.v1 import policy_pb2 as pb


def explain(stub, episode: str) -> pb.ExplainReply:
    return stub.Explain(pb.ExplainRequest(episode_id=episode))


def problem_of(error) -> str:
    """The name in the trailing metadata."""
    return dict(error.trailing_metadata())["big-problem"]


@pytest.fixture
def explained(stub, start, subject):
    """An episode after its first step: the reply to it, and its explanation."""
    (episode,) = start()
    reply = stub.Act(act_request([episode], [0], [subject.first()]))
    assert not reply.errors
    return reply, explain(stub, episode)


def test_it_is_about_the_last_step_on_this_version(explained, subject):
    _, explanation = explained
    assert explanation.step == 0
    assert (explanation.model, explanation.version) == (subject.model.name, subject.model.version)


def test_actions_are_those_of_the_spec_and_have_the_values_of_the_reply(explained, subject):
    reply, explanation = explained
    names = [action.name for action in explanation.actions]
    assert names == list(subject.model.action.value_names)
    np.testing.assert_array_equal(
        [action.value for action in explanation.actions], unpack(reply.values)[0]
    )
    assert explanation.chosen == unpack(reply.actions)[0]


def test_the_belief_is_that_of_the_reply(explained, subject):
    reply, explanation = explained
    names = [context.name for context in explanation.contexts]
    assert names == [context.name for context in subject.model.contexts]
    if names:
        probabilities = [context.probability for context in explanation.contexts]
        # Beliefs are float32: within some roundings of 2^-24.
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        np.testing.assert_array_equal(probabilities, unpack(reply.belief)[0])
        assert explanation.entropy == unpack(reply.entropy)[0]
    else:
        assert explanation.entropy == 0


def test_each_expert_has_a_distribution_over_actions(explained):
    _, explanation = explained
    for context in explanation.contexts:
        if context.expert:
            assert len(context.expert) == len(explanation.actions)
            assert min(context.expert) >= 0
            assert sum(context.expert) == pytest.approx(1, abs=1e-5)


def test_rewards_are_predicted_with_their_deviation(explained, tiger):
    """Of an observation that fits the specs alone, nobody knows whether it has a reward."""
    _, explanation = explained
    for action in explanation.actions:
        assert np.isfinite(action.reward_mean)
        assert action.reward_deviation >= 0


def test_listening_explores_and_experts_know_the_door(stub, start, tiger):
    (episode,) = start()
    stub.Act(act_request([episode], [0], [tiger.see("S0")]))
    reply = stub.Act(act_request([episode], [1], [tiger.see("T1")]))
    explanation = explain(stub, episode)
    assert explanation.step == 1
    # In T1 every action counts as exploring, since the state does.
    assert [action.explores for action in explanation.actions] == [True] * 3
    assert explanation.chosen == unpack(reply.actions)[0]
    # Who knows that the tiger is behind door 1 opens door 2, and the other way round.
    best = [int(np.argmax(context.expert)) for context in explanation.contexts]
    assert best == [closed_form.OPEN_2, closed_form.OPEN_1]


def test_before_the_first_step_there_is_nothing_to_explain(stub, start):
    (episode,) = start()
    request = pb.ExplainRequest(episode_id=episode)
    failure(grpc.StatusCode.FAILED_PRECONDITION, stub.Explain, request)


def test_an_unknown_episode_fails_by_name(stub):
    request = pb.ExplainRequest(episode_id="no such episode")
    error = failure(grpc.StatusCode.NOT_FOUND, stub.Explain, request)
    assert problem_of(error) == "PROBLEM_EPISODE_UNKNOWN"


def test_an_ended_episode_fails_by_name(stub, start):
    (episode,) = start()
    stub.End(pb.EndRequest(episode_ids=[episode]))
    request = pb.ExplainRequest(episode_id=episode)
    error = failure(grpc.StatusCode.NOT_FOUND, stub.Explain, request)
    assert problem_of(error) == "PROBLEM_EPISODE_ENDED"


def test_it_does_not_renew_the_lease(stub, start, subject):
    (episode,) = start(lease=duration(0.8))
    stub.Act(act_request([episode], [0], [subject.first()]))
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        try:
            explain(stub, episode)
        except grpc.RpcError:
            break
        time.sleep(0.1)
    error = failure(grpc.StatusCode.NOT_FOUND, stub.Explain, pb.ExplainRequest(episode_id=episode))
    assert problem_of(error) == "PROBLEM_EPISODE_EXPIRED"


def test_it_does_not_touch_the_episode(stub, start, tiger):
    """With and without explanations in between, an episode that draws goes the same way."""
    rule = pb.ActionRule(epsilon_greedy=pb.ActionRule.EpsilonGreedy(epsilon=0.5))
    asked, left_alone = (start(seed=2, rule=rule)[0] for _ in range(2))
    for step, state in enumerate(["Gold", "ST", "ST", "ST"]):  # possible whatever is done
        replies = []
        for episode in (asked, left_alone):
            replies.append(stub.Act(act_request([episode], [step], [tiger.see(state)])))
            assert not replies[-1].errors
        assert rows(replies[0]) == rows(replies[1])
        assert explain(stub, asked) == explain(stub, asked)
