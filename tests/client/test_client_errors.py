"""The tree of errors is as drawn, and holds every problem of the wire contract."""

import inspect
import re
from pathlib import Path

import grpc
import pytest

import bigclient
from bigclient import aio, errors, testing
from bigproto.v1 import policy_pb2

CONTRACT = (Path(policy_pb2.__file__).parent / "policy.proto").read_text(encoding="utf-8")
# A problem's comment ends with the code in brackets, on the line above it.
CODES = {
    name: code
    for code, name in re.findall(r"\[([A-Z_]+)\]\n\s+PROBLEM_([A-Z_]+) = [0-9]+;", CONTRACT)
}


def classes(module) -> dict[str, type]:
    return {
        name: thing
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and thing.__module__ == module.__name__
    }


def test_the_tree_is_as_drawn():
    drawn, path = {}, []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)(\w+)(?:  |$)", line)
        if match and match[2] in classes(errors):
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else None
    built = {
        name: next((base.__name__ for base in kind.__bases__ if base.__name__ in drawn), None)
        for name, kind in classes(errors).items()
    }
    assert drawn == built


def public(module) -> set[str]:
    """What has no underscore in front, and is no module that an import left behind."""
    names = {name for name in vars(module) if not name.startswith("_")}
    return {name for name in names if not inspect.ismodule(getattr(module, name))}


@pytest.mark.parametrize("module", [bigclient, testing], ids=lambda module: module.__name__)
def test_all_is_what_is_public(module):
    assert set(module.__all__) - {"aio", "errors"} == public(module)


def test_all_of_aio_is_what_it_defines():
    own = {n for n in public(aio) if getattr(getattr(aio, n), "__module__", "") == aio.__name__}
    assert set(aio.__all__) == own - {"T", "Opened"}


def test_what_users_take_and_give_can_be_imported():
    modules = ("client", "settings", "description", "explanation", "exports")
    own = {n for module in modules for n in classes(getattr(bigclient, module))}
    assert {name for name in own if not name.startswith("_")} <= set(bigclient.__all__)


def parameters(function) -> list[tuple]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", ["connect", "play", "Client", "Episode", "Episodes"])
def test_both_clients_have_the_same_names_and_parameters(name):
    blocking, other = getattr(bigclient, name), getattr(aio, name)
    if inspect.isclass(blocking):
        methods = {n for n in dir(blocking) if not n.startswith("_")}
        assert methods == {n for n in dir(other) if not n.startswith("_")}
        pairs = [(getattr(blocking, n), getattr(other, n)) for n in methods]
        pairs = [pair for pair in pairs if callable(pair[0])]
    else:
        pairs = [(blocking, other)]
    for one, two in pairs:
        assert parameters(one) == parameters(two)


def test_every_problem_has_its_class_and_code():
    names = {n.removeprefix("PROBLEM_") for n in policy_pb2.Problem.keys()} - {"UNSPECIFIED"}
    assert set(CODES) == names
    for name in names:
        item = policy_pb2.ItemError(problem=f"PROBLEM_{name}", message="text")
        failure = errors.from_item(item)
        assert type(failure) is not errors.ProblemError, name
        assert failure.code is grpc.StatusCode[CODES[name]], name
        assert str(failure) == "text"


def test_problems_that_this_release_does_not_know_keep_their_sentence():
    item = policy_pb2.ItemError(message="Something new.")
    item.MergeFromString(b"\x10\x63")  # problem = 99
    assert type(errors.from_item(item)) is errors.ProblemError


def test_what_a_problem_tells_is_kept():
    item = policy_pb2.ItemError(problem="PROBLEM_STEP_AHEAD", expected_step=7)
    assert errors.from_item(item).expected_step == 7
    item = policy_pb2.ItemError(problem="PROBLEM_EPISODE_ENDED")
    item.closed_at.FromSeconds(86_400)
    failure = errors.from_item(item)
    assert failure.expected_step is None
    assert failure.closed_at is not None and failure.closed_at.isoformat().startswith("1970-01-02")


def test_codes_without_a_class_are_named():
    failure = errors.from_rpc(
        grpc.aio.AioRpcError(
            grpc.StatusCode.DATA_LOSS, grpc.aio.Metadata(), grpc.aio.Metadata(), "text"
        )
    )
    assert type(failure) is errors.CallError and str(failure) == "DATA_LOSS: text"
