"""What the tests of the wire contract share: a server, and calls to it.

`pytest tests/serve --server HOST:PORT` points those named `test_compliance*` at a running server,
with `--server-token` where it wants one and `--server-roots` where it speaks TLS.
"""

import functools
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from launch import Server, serving
from subject import Subject
from wire import act_request, channel_to

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--server", help="HOST:PORT of a server to test, instead of one of our own")
    parser.addoption("--server-token", help="bearer token for --server")
    parser.addoption("--server-roots", type=Path, help="PEM file to know --server by, over TLS")


@pytest.fixture(scope="session")
def seal_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key that servers share."""
    file = tmp_path_factory.mktemp("key") / "seal.key"
    file.touch(mode=0o600)
    file.write_bytes(secrets.token_bytes(32))
    return file


@pytest.fixture(scope="session")
def own_server(seal_key: Path) -> Iterator[Server]:
    """A server of our own, for all tests that need nothing special of it."""
    with serving(**{"seal-key": seal_key}) as server:
        yield server


@pytest.fixture(scope="session")
def channel(request: pytest.FixtureRequest) -> Iterator[grpc.Channel]:
    """Calls to the server under test: the one that was named, or our own."""
    # Unless pytest was told to look in this directory, it has not seen these options.
    option = functools.partial(request.config.getoption, default=None)
    address, token, roots = map(option, ("--server", "--server-token", "--server-roots"))
    address = address or request.getfixturevalue("own_server").address
    with channel_to(address, token=token, roots=roots) as channel:
        yield channel


@pytest.fixture(scope="session")
def stub(channel: grpc.Channel) -> policy_pb2_grpc.PolicyStub:
    return policy_pb2_grpc.PolicyStub(channel)


@pytest.fixture(scope="session")
def limits(stub: policy_pb2_grpc.PolicyStub) -> pb.Limits:
    return stub.Describe(pb.DescribeRequest()).limits


@pytest.fixture(scope="session")
def subject(stub: policy_pb2_grpc.PolicyStub) -> Subject:
    """A model of the server: tiger-treasure if there is one, since the tests know more of it."""
    models = [model for model in stub.Describe(pb.DescribeRequest()).models if model.current]
    subjects = sorted(map(Subject, models), key=lambda subject: not subject.is_tiger)
    if not subjects:
        pytest.skip("The server has no model loaded.")
    subject = subjects[0]
    ids = stub.Start(pb.StartRequest(model=subject.model.name)).episode_ids
    errors = stub.Act(act_request(ids, [0], [subject.first()])).errors
    stub.End(pb.EndRequest(episode_ids=ids))
    if [error.problem for error in errors] == [pb.PROBLEM_OBSERVATION_IMPOSSIBLE]:
        pytest.skip(f"The specs of {subject.model.name!r} do not tell what it can see at first.")
    return subject


@pytest.fixture(scope="session")
def tiger(subject: Subject) -> Subject:
    """The same, for tests that must know what can follow an action."""
    if not subject.is_tiger:
        pytest.skip("What can follow an action is known of tiger-treasure only.")
    return subject


Start = Callable[..., list[str]]


@pytest.fixture
def start(stub: policy_pb2_grpc.PolicyStub, subject: Subject) -> Iterator[Start]:
    """Starts episodes of the subject, `start(num_episodes, **fields)`, and ends them at last."""
    started: list[str] = []

    def call(num_episodes: int = 1, **fields: object) -> list[str]:
        request = pb.StartRequest(
            model=subject.model.name,
            num_episodes=num_episodes,
            **fields,  # pyright: ignore[reportArgumentType]
        )
        ids = list(stub.Start(request).episode_ids)
        started.extend(ids)
        return ids

    yield call
    if started:
        stub.End(pb.EndRequest(episode_ids=started))
