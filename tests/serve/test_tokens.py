"""Only those who may: callers have tokens, and episodes have owners."""

import shutil
import time
from contextlib import ExitStack

import grpc
import pytest
from bundles import EXACT, resealed
from launch import QUICK, TIGER, serving
from subject import Subject
from wire import act_request, channel_to, failure

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

TOKENS = {"ann": "a" * 32, "bob": "b" * 32, "olga": "o" * 32}
MAX_EPISODES, MAX_EPISODES_PER_CALLER = 24, 16


def tokens_file(**tokens: str) -> str:
    """Olga is an operator."""
    roles = {"olga": "operator"}
    return "".join(f"{n} {roles.get(n, 'caller')} {token}\n" for n, token in tokens.items())


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The models of the server, and who may call it."""
    directory = tmp_path_factory.mktemp("models")
    shutil.copy(TIGER, directory / "tiger.big")
    (directory / "tokens").touch(mode=0o600)
    (directory / "tokens").write_text(tokens_file(**TOKENS))
    return directory


@pytest.fixture(scope="module")
def server(directory):
    flags = {
        "tokens": directory / "tokens",
        "limits.max-episodes": MAX_EPISODES,
        "limits.max-episodes-per-caller": MAX_EPISODES_PER_CALLER,
    }
    with serving(directory / "tiger.big", **QUICK, **flags) as server:
        yield server


@pytest.fixture
def channel_of(server):
    """`channel_of(token)`: calls by whoever has that token."""
    with ExitStack() as stack:
        yield lambda token: stack.enter_context(channel_to(server.address, token=token))


@pytest.fixture
def ann(channel_of):
    return policy_pb2_grpc.PolicyStub(channel_of(TOKENS["ann"]))


@pytest.fixture
def bob(channel_of):
    return policy_pb2_grpc.PolicyStub(channel_of(TOKENS["bob"]))


@pytest.fixture
def anns(ann):
    """An episode of Ann's after its first step."""
    (episode,) = ann.Start(pb.StartRequest(model="tiger")).episode_ids
    assert not ann.Act(act_request([episode], [0], [first(ann)])).errors
    yield episode
    ann.End(pb.EndRequest(episode_ids=[episode]))


def first(stub):
    return Subject(stub.Describe(pb.DescribeRequest()).models[0]).first()


@pytest.mark.parametrize("token", [None, "z" * 32, "a" * 31])
def test_whoever_has_no_known_token_may_do_nothing(channel_of, token):
    stub = policy_pb2_grpc.PolicyStub(channel_of(token))
    for call, request in [
        (stub.Describe, pb.DescribeRequest()),
        (stub.Start, pb.StartRequest()),
        (stub.Act, pb.ActRequest()),
        (stub.End, pb.EndRequest()),
        (stub.Explain, pb.ExplainRequest()),
        (stub.Export, pb.ExportRequest()),
        (stub.Import, pb.ImportRequest()),
        (lambda request: list(stub.ActStream(iter([request]))), pb.ActRequest()),
    ]:
        failure(grpc.StatusCode.UNAUTHENTICATED, call, request)


def test_the_episodes_of_others_look_unknown(ann, bob, anns):
    other = bob.Act(act_request([anns], [0], [first(bob)])).errors
    unknown = bob.Act(act_request(["no such episode"], [0], [first(bob)])).errors
    assert other[0].problem == unknown[0].problem == pb.PROBLEM_EPISODE_UNKNOWN
    assert other[0].message == unknown[0].message.replace("no such episode", anns)
    for reply in (
        bob.End(pb.EndRequest(episode_ids=[anns])),
        bob.Export(pb.ExportRequest(episode_ids=[anns], close=True)),
    ):
        (error,) = reply.errors
        assert error.problem == pb.PROBLEM_EPISODE_UNKNOWN
    request = pb.ExplainRequest(episode_id=anns)
    error = failure(grpc.StatusCode.NOT_FOUND, bob.Explain, request)
    assert dict(error.trailing_metadata())["big-problem"] == "PROBLEM_EPISODE_UNKNOWN"
    again = ann.Act(act_request([anns], [0], [first(ann)]))
    assert list(again.duplicates) == [0], "Ann's episode is as it was."


def test_nobody_imports_what_others_started(ann, bob, anns):
    sealed = ann.Export(pb.ExportRequest(episode_ids=[anns])).episodes
    reply = bob.Import(pb.ImportRequest(episodes=sealed))
    assert [error.problem for error in reply.errors] == [pb.PROBLEM_EPISODE_UNKNOWN]
    assert not reply.episode_ids


def test_ids_of_different_callers_never_collide(ann, bob):
    request = pb.StartRequest(model="tiger", episode_ids=["mine"], seed=1)
    for stub in (ann, bob):
        assert list(stub.Start(request).episode_ids) == ["mine"]
    assert not ann.Act(act_request(["mine"], [0], [first(ann)])).errors
    reply = bob.Act(act_request(["mine"], [0], [first(bob)]))
    assert not reply.errors and not reply.duplicates
    for stub in (ann, bob):
        assert not stub.End(pb.EndRequest(episode_ids=["mine"])).errors


def test_limits_hold_for_each_caller_and_for_all(ann, bob):
    of_ann = ann.Start(
        pb.StartRequest(model="tiger", num_episodes=MAX_EPISODES_PER_CALLER)
    ).episode_ids
    failure(grpc.StatusCode.RESOURCE_EXHAUSTED, ann.Start, pb.StartRequest(model="tiger"))
    left = MAX_EPISODES - MAX_EPISODES_PER_CALLER
    failure(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        bob.Start,
        pb.StartRequest(model="tiger", num_episodes=left + 1),
    )
    of_bob = bob.Start(pb.StartRequest(model="tiger", num_episodes=left)).episode_ids
    assert len(of_bob) == left, "The Start that failed must have started none."
    failure(grpc.StatusCode.RESOURCE_EXHAUSTED, bob.Start, pb.StartRequest(model="tiger"))
    ann.End(pb.EndRequest(episode_ids=of_ann))
    bob.End(pb.EndRequest(episode_ids=of_bob))


def test_only_operators_load_models(channel_of, directory):
    admin = {name: policy_pb2_grpc.AdminStub(channel_of(token)) for name, token in TOKENS.items()}
    for name, content in {"broken": EXACT[:-1], "other": resealed(EXACT, seeded)}.items():
        (directory / f"{name}.big").write_bytes(content)
    request = pb.LoadModelRequest(model="other", path="other.big")
    failure(grpc.StatusCode.PERMISSION_DENIED, admin["ann"].LoadModel, request)

    load = admin["olga"].LoadModel
    broken = pb.LoadModelRequest(model="tiger", path="broken.big")
    failure(grpc.StatusCode.FAILED_PRECONDITION, load, broken)
    missing = pb.LoadModelRequest(model="tiger", path="missing.big")
    failure(grpc.StatusCode.NOT_FOUND, load, missing)
    stub = policy_pb2_grpc.PolicyStub(channel_of(TOKENS["olga"]))
    assert [model.name for model in stub.Describe(pb.DescribeRequest()).models] == ["tiger"]

    loaded = load(request).model
    assert (loaded.name, loaded.current) == ("other", True)
    assert loaded in stub.Describe(pb.DescribeRequest(model="other")).models
    failure(grpc.StatusCode.INVALID_ARGUMENT, stub.Start, pb.StartRequest())
    reply = stub.Start(pb.StartRequest(model="other"))
    assert reply.version == loaded.version
    stub.End(pb.EndRequest(episode_ids=reply.episode_ids))


def seeded(content):
    content["provenance"]["seed"] = 1


def test_a_new_file_of_tokens_counts_from_the_next_calls_on(channel_of, directory, ann, anns):
    file = directory / "tokens"
    file.write_text(tokens_file(**TOKENS, eve="e" * 32))
    eve = policy_pb2_grpc.PolicyStub(channel_of("e" * 32))
    until = time.monotonic() + 60
    while True:
        try:
            eve.Describe(pb.DescribeRequest())
            break
        except grpc.RpcError:
            assert time.monotonic() < until, "The new token was not accepted."
            time.sleep(0.1)
    file.write_text(tokens_file(**TOKENS))
    while True:
        try:
            eve.Describe(pb.DescribeRequest())
            assert time.monotonic() < until, "The old token was accepted for too long."
            time.sleep(0.1)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            break
    assert list(ann.Act(act_request([anns], [0], [first(ann)])).duplicates) == [0]
