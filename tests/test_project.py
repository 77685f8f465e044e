"""What holds for the project as a whole: imports, files, dependencies, the wire contract."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from bigproto.v1 import policy_pb2, policy_pb2_grpc

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "bigtrain": ROOT / "bigtrain",
    "bigserve": ROOT / "bigserve",
    "bigproto": ROOT / "proto" / "bigproto",
    "bigclient": ROOT / "clients" / "python" / "bigclient",
}
PINS = ("constraints.txt", "proto/generator.txt")
CODE_IN_DATA = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def imported(source: str) -> set[str]:
    """The top-level names that a source imports, wherever in it; relative imports have none."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module)
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                names.add(module)
    return {name.partition(".")[0] for name in names}


def imports_of(package: str) -> dict[str, set[str]]:
    """The imports of each source file of a package, by its path."""
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert files, f"`{package}` has no sources at {PACKAGES[package]}."
    return {str(file.relative_to(ROOT)): imported(file.read_text()) for file in files}


@pytest.mark.parametrize(
    "source",
    [
        "import jax.numpy as jnp",
        "from jax import lax",
        "def f():\n    import os, jax",
        "import importlib\njax = importlib.import_module('jax.numpy')",
        "__import__('jax')",
    ],
)
def test_imports_are_found_in_every_form(source):
    assert "jax" in imported(source)


def test_relative_imports_and_mentions_are_no_imports():
    assert imported("from . import jax\nfrom .jax import x\n'import jax'") == set()


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("bigtrain", {"bigserve", "bigclient", "bigproto"}),
        ("bigserve", {"bigclient"}),
        ("bigproto", {"bigtrain", "bigserve", "bigclient"}),
        ("bigclient", {"bigtrain", "bigserve"}),
    ],
)
def test_imports_point_one_way(package, forbidden):
    found = {file: names & forbidden for file, names in imports_of(package).items()}
    assert not any(found.values()), found


@pytest.mark.parametrize("package", ["bigproto", "bigclient"])
def test_the_base_install_is_enough_for_the_client(package):
    base = {"bigclient", "bigproto", "google", "grpc", "numpy"} | sys.stdlib_module_names
    found = {file: names - base for file, names in imports_of(package).items()}
    assert not any(found.values()), found


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_pickled(package):
    found = {file: names & CODE_IN_DATA for file, names in imports_of(package).items()}
    assert not any(found.values()), found
    for file in found:
        assert not re.search(r"allow_pickle\s*=(?!\s*False\b)", (ROOT / file).read_text()), file


@pytest.mark.parametrize("package", PACKAGES)
def test_types_are_shipped(package):
    assert (PACKAGES[package] / "py.typed").is_file()


# The wire contract


def test_services_offer_their_calls():
    services = policy_pb2.DESCRIPTOR.services_by_name
    calls = {
        f"{service.name}.{method.name}": (method.client_streaming, method.server_streaming)
        for service in services.values()
        for method in service.methods
    }
    unary, stream = (False, False), (True, True)
    assert calls == {
        "Policy.Describe": unary,
        "Policy.Start": unary,
        "Policy.End": unary,
        "Policy.Act": unary,
        "Policy.ActStream": stream,
        "Policy.Explain": unary,
        "Policy.Export": unary,
        "Policy.Import": unary,
        "Admin.LoadModel": unary,
    }
    for call in calls:
        service, method = call.split(".")
        assert hasattr(getattr(policy_pb2_grpc, f"{service}Servicer"), method)


def test_numbers_travel_in_blocks():
    """A step of 256 episodes costs its payload and ids, and hardly more."""
    n, size = 256, 6
    ids = [f"{i:022d}" for i in range(n)]
    data = bytes(4 * n * size)
    request = policy_pb2.ActRequest(
        episode_ids=ids,
        steps=[100] * n,
        observation=[
            policy_pb2.Array(dtype=policy_pb2.Array.DTYPE_FLOAT32, shape=[n, size], data=data)
        ],
    )
    # An id costs a tag and a length beside its 22 bytes, a step below 128 one byte.
    least = len(data) + n * (22 + 2) + n
    assert least < request.ByteSize() < least + 32
    assert policy_pb2.ActRequest.FromString(request.SerializeToString()) == request


def test_a_third_of_the_contract_is_comment():
    lines = (ROOT / "proto/bigproto/v1/policy.proto").read_text().splitlines()
    comments = sum("//" in line for line in lines)
    assert comments >= sum(bool(line.strip()) for line in lines) / 3


# Dependencies


def read_pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text().splitlines()
    return {
        canonicalize_name(package): Version(version)
        for package, version in (line.split("==") for line in lines)
    }


def read_project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read_dependencies() -> list[Requirement]:
    """All that pyproject.toml asks for, but the project itself."""
    project = read_project()
    lines = project["dependencies"] + [
        line for extra in project["optional-dependencies"].values() for line in extra
    ]
    return [r for r in map(Requirement, lines) if r.name != project["name"]]


def read_base() -> list[Requirement]:
    """What the client asks for."""
    return read_dependencies()[: len(read_project()["dependencies"])]


def bounds_of(requirement: Requirement) -> tuple[Version, Version] | None:
    """The lower bound and the upper one, where there are these and nothing else."""
    found = {part.operator: Version(part.version) for part in requirement.specifier}
    if len(requirement.specifier) != 2 or set(found) != {">=", "<"}:
        return None
    return found[">="], found["<"]


def flaw_of_bounds(
    requirement: Requirement, pins: Mapping[str, Version], *, base: bool
) -> str | None:
    """What lets in a version that no test has run with, or keeps out the one that they run with.

    Up to the next major version releases are taken to work alike, and below 1.0 up to the next
    minor one. Only the base install may go below the pin: another test runs with its floors.
    """
    name, pin = requirement.name, pins.get(canonicalize_name(requirement.name))
    if pin is None:
        return f"`{name}` has no pin."
    if (bounds := bounds_of(requirement)) is None:
        return f"`{name}` must have one lower bound by >= and one upper bound by <."
    lower, upper = bounds
    if not lower <= pin < upper:
        return f"The pin of `{name}`, {pin}, must lie in {requirement.specifier}."
    if lower < pin and not base:
        return f"`{name}` must start from its pin, {pin}: with {lower} no test has run."
    most = Version(f"{pin.major + 1}" if pin.major else f"0.{pin.minor + 1}")
    if upper > most:
        return f"`{name}` must end at {most} or before: with what follows no test has run."
    return None


@pytest.mark.parametrize("name", PINS)
def test_pins_are_names_and_versions_only(name):
    lines = (ROOT / name).read_text().splitlines()
    assert lines == sorted(lines, key=lambda line: line.split("==")[0].lower())
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.]*", line), line


@pytest.mark.parametrize("requirement", read_dependencies(), ids=str)
def test_bounds_let_in_what_was_tested(requirement):
    base = requirement in read_base()
    flaw = flaw_of_bounds(requirement, read_pins("constraints.txt"), base=base)
    assert flaw is None, flaw


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        ("young>=0.10.2,<0.11", None),
        ("young[extra]>=0.10.2,<0.10.9", None),
        ("grown>=3.1.4,<4", None),
        ("grown>=3.1.4,<3.2", None),
        ("Grow.n_>=3.1.4,<4", "has no pin"),
        ("grown", "one lower bound by >= and one upper bound"),
        ("grown>=3.1.4", "one lower bound by >= and one upper bound"),
        ("grown<4", "one lower bound by >= and one upper bound"),
        ("grown>=3.1.4,<=4", "one lower bound by >= and one upper bound"),
        ("grown>=3.1.4,<4,!=3.1.9", "one lower bound by >= and one upper bound"),
        ("grown~=3.1", "one lower bound by >= and one upper bound"),
        ("grown>=3.2,<4", "3.1.4, must lie in"),
        ("grown>=2,<3", "3.1.4, must lie in"),
        ("grown>=3.1.4,<3.1.4", "3.1.4, must lie in"),
        ("grown>=3.1.3,<4", "must start from its pin, 3.1.4: with 3.1.3"),
        ("grown>=3.1.4,<5", "must end at 4 or before"),
        ("grown>=3.1.4,<4.0.1", "must end at 4 or before"),
        ("young>=0.10.2,<0.12", "must end at 0.11 or before"),
        ("young>=0.10.2,<1", "must end at 0.11 or before"),
    ],
)
def test_bounds_that_let_in_what_was_not_tested_are_found(line, flaw):
    pins = {"grown": Version("3.1.4"), "young": Version("0.10.2")}
    found = flaw_of_bounds(Requirement(line), pins, base=False)
    assert found is None if flaw is None else found and flaw in found, found


def test_only_the_base_may_start_below_the_pin():
    pins = {"grown": Version("3.1.4")}
    older = Requirement("grown>=2.0,<4")
    assert flaw_of_bounds(older, pins, base=True) is None
    assert flaw_of_bounds(older, pins, base=False)
    assert flaw_of_bounds(Requirement("grown>=2.0,<5"), pins, base=True)
    assert [requirement.name for requirement in read_base()] == ["grpcio", "numpy", "protobuf"]


@pytest.mark.parametrize("requirement", read_dependencies(), ids=lambda r: r.name)
def test_a_dependency_is_pinned_and_explained(requirement):
    pin = read_pins("constraints.txt").get(canonicalize_name(requirement.name))
    assert pin is not None, f"`{requirement.name}` has no pin in constraints.txt."
    assert pin in requirement.specifier, f"{pin} is not in {requirement}."
    told = (ROOT / "docs" / "dependencies.md").read_text().splitlines()
    lines = [line for line in told if line.startswith(f"- **{requirement.name}**: ")]
    assert lines, f"`{requirement.name}` has no line in docs/dependencies.md."
    bounds = bounds_of(requirement)
    assert bounds is not None
    below = re.compile(rf"\*[Bb]elow {re.escape(str(bounds[1]))}\*")
    assert any(map(below.search, lines)), f"docs/dependencies.md does not say why {requirement}."


@pytest.mark.parametrize("name", ["grpcio", "protobuf"])
def test_generated_code_is_checked_under_the_oldest_runtime(name):
    """`make check` imports it in the generator's environment: see decision 1."""
    (requirement,) = [r for r in read_dependencies() if r.name == name]
    floor = next(s.version for s in requirement.specifier if s.operator == ">=")
    assert read_pins("proto/generator.txt")[name] == Version(floor)


@pytest.mark.parametrize("name", ["pyproject.toml", "Makefile", ".ci/run", *PINS])
def test_packages_come_from_where_the_user_says(name):
    text = (ROOT / name).read_text()
    assert not re.search(r"://|index-url|find-links|trusted-host", text)


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="numpy 1.26 has no wheels for it")
def test_the_client_works_with_the_oldest_that_it_accepts(tmp_path):
    """All tests of the client, in an environment with nothing but its floors and the tools."""
    pins = read_pins("constraints.txt")
    tools = ("gymnasium", "hypothesis", "pytest")
    wanted = {name: pins[name] for name in tools}
    for requirement in read_base():
        bounds = bounds_of(requirement)
        assert bounds is not None
        wanted[requirement.name] = bounds[0]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    exact = [f"{name}=={version}" for name, version in wanted.items()]
    install = [python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *exact]
    subprocess.run(install, check=True)
    path = os.pathsep.join(str(ROOT / folder) for folder in ("proto", "clients/python"))
    found = subprocess.run(
        [
            *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull),
            *(f"--rootdir={ROOT}", "--confcutdir=tests/client", "tests/client"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout[-2_000:] + found.stderr[-2_000:]
    assert re.search(r"[1-9]\d\d passed", found.stdout), found.stdout[-500:]


@pytest.mark.slow
def test_the_wheel_has_every_package(tmp_path):
    # A copy, since a build leaves files behind that the next one would pick up.
    ignore = shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, tmp_path / "copy", ignore=ignore)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "./copy"],
        cwd=tmp_path,
        check=True,
    )
    (wheel,) = tmp_path.glob("big_imitation-*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    for package, folder in PACKAGES.items():
        sources = {
            f"{package}/{file.relative_to(folder)}"
            for file in folder.rglob("*")
            if file.suffix in {".py", ".pyi", ".proto"} or file.name == "py.typed"
        }
        assert sources <= shipped
    assert not [name for name in shipped if name.startswith(("tests", "examples", "benchmarks"))]
