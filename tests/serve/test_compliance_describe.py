"""The contract of Describe and of the standard services. The server can be anybody's."""

import re
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from wire import DTYPES, failure, seconds

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc


@pytest.fixture(scope="module")
def described(stub) -> pb.DescribeReply:
    return stub.Describe(pb.DescribeRequest())


# Models


def test_a_version_is_a_digest_in_hexadecimal(described):
    for model in described.models:
        assert re.fullmatch("[0-9a-f]{64}", model.version), model.name


def test_new_episodes_take_one_version_of_each_model(described):
    names = [model.name for model in described.models]
    current = [model.name for model in described.models if model.current]
    assert sorted(current) == sorted(set(names))


def test_versions_of_a_model_stand_together_newest_first(described):
    names = [model.name for model in described.models]
    for name in set(names):
        first = names.index(name)
        assert names[first : first + names.count(name)] == [name] * names.count(name)
        loaded = [m.loaded_at.ToNanoseconds() for m in described.models if m.name == name]
        assert loaded == sorted(loaded, reverse=True) and min(loaded) > 0


def test_one_model_can_be_asked_for(stub, subject):
    models = stub.Describe(pb.DescribeRequest(model=subject.model.name)).models
    assert {model.name for model in models} == {subject.model.name}
    assert subject.model.version in {model.version for model in models}


def test_an_unknown_model_is_not_found(stub):
    error = failure(
        grpc.StatusCode.NOT_FOUND, stub.Describe, pb.DescribeRequest(model="no-such-model")
    )
    assert "no-such-model" in error.details()


def test_specs_say_what_to_send_and_what_comes(described):
    for model in described.models:
        assert model.observation
        for spec in (*model.observation, model.action):
            assert spec.dtype in DTYPES
        names = [spec.name for spec in model.observation]
        assert len(set(names)) == len(names)
        assert names == [""] or all(names)


def test_the_prior_of_contexts_is_a_distribution(described):
    for model in described.models:
        if model.contexts:
            assert min(context.prior for context in model.contexts) >= 0
            # A prior kept in float32 sums to 1 within its rounding, 2^-24 a context.
            total = sum(context.prior for context in model.contexts)
            assert total == pytest.approx(1, abs=1e-6)
            assert len({context.name for context in model.contexts}) == len(model.contexts)


def test_rewards_have_a_range(described):
    for model in described.models:
        assert model.reward_minimum < model.reward_maximum


def test_costs_of_exploration_are_ranges_in_named_places(described):
    for model in described.models:
        for cost in model.exploration:
            assert cost.state
            assert cost.k_low <= cost.k_high
            assert cost.action == "" or cost.action in model.action.value_names


def test_training_is_told(described):
    for model in described.models:
        assert model.training.method in (pb.Training.METHOD_LEARNED, pb.Training.METHOD_EXACT)
        assert 0 < model.training.discount < 1
        assert model.training.trainer_version


def test_a_regret_computed_exactly_has_no_error(described):
    for model in described.models:
        if model.HasField("regret") and model.regret.num_episodes == 0:
            assert model.regret.standard_error == 0


def test_tiger_treasure_is_described_as_it_is(tiger):
    assert [c.prior for c in tiger.model.contexts] == [0.5, 0.5]
    assert (tiger.model.reward_minimum, tiger.model.reward_maximum) == (-100, 10)
    assert {cost.state for cost in tiger.model.exploration} == {"T1", "T2"}
    assert tiger.model.training.discount == pytest.approx(0.99)


# Limits


def test_limits_are_told(limits):
    for name in ("max_episodes", "max_episodes_per_caller", "max_items", "max_message_bytes"):
        assert getattr(limits, name) > 0, name
    assert limits.max_episodes_per_caller <= limits.max_episodes
    assert 0 < seconds(limits.default_lease) <= seconds(limits.max_lease)
    assert seconds(limits.tombstone_lifetime) > 0
    assert limits.max_tombstones_per_caller >= limits.max_episodes_per_caller


def test_the_release_of_the_server_is_told(described):
    assert described.server_version


# Standard services


def check_health(channel, service: str):
    health: Any = health_pb2_grpc.HealthStub(channel)
    return health.Check(health_pb2.HealthCheckRequest(service=service)).status


@pytest.mark.parametrize("service", ["", "bigproto.v1.Policy"])
def test_the_server_is_healthy(channel, service):
    assert check_health(channel, service) == health_pb2.HealthCheckResponse.SERVING


def test_every_model_has_a_health_of_its_own(channel, described):
    for name in {model.name for model in described.models}:
        assert check_health(channel, f"models/{name}") == health_pb2.HealthCheckResponse.SERVING, (
            name
        )


def test_the_health_of_what_does_not_exist_is_not_found(channel):
    with pytest.raises(grpc.RpcError) as caught:
        check_health(channel, "no such service")
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def reflect(channel, **fields):
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(**fields)
    (reply,) = stub.ServerReflectionInfo(iter([request]))
    return reply


def test_reflection_lists_the_services(channel):
    reply = reflect(channel, list_services="")
    names = {service.name for service in reply.list_services_response.service}
    assert {"bigproto.v1.Policy", "grpc.health.v1.Health"} <= names


def test_reflection_gives_the_contract_itself(channel):
    reply = reflect(channel, file_containing_symbol="bigproto.v1.Policy")
    files = map(
        FileDescriptorProto.FromString, reply.file_descriptor_response.file_descriptor_proto
    )
    (policy,) = [file for file in files if file.name == pb.DESCRIPTOR.name]
    want = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(want)
    assert policy == want


# Admin


@pytest.fixture(scope="module")
def load_model(channel):
    """LoadModel, where the server offers it to this caller."""
    stub = policy_pb2_grpc.AdminStub(channel)
    try:
        stub.LoadModel(pb.LoadModelRequest(model="no-such-model"))
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED):
            pytest.skip(f"The server does not offer Admin to this caller: {error.code().name}.")
    return stub.LoadModel


def test_loading_an_unknown_model_again_is_not_found(load_model):
    failure(grpc.StatusCode.NOT_FOUND, load_model, pb.LoadModelRequest(model="no-such-model"))


@pytest.mark.parametrize("path", ["../x.big", "/x.big", "a/../../x.big"])
def test_files_elsewhere_are_invalid(load_model, path):
    request = pb.LoadModelRequest(model="escaped", path=path)
    failure(grpc.StatusCode.INVALID_ARGUMENT, load_model, request)


def test_loading_the_same_file_again_changes_nothing(load_model, subject):
    reply = load_model(pb.LoadModelRequest(model=subject.model.name))
    assert reply.model == subject.model
