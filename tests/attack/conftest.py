"""How long the attacks are: some seconds by default, hours by `make attack`."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "serve"))  # a server to attack, and how to call it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attack-calls", type=int, help="how many mutated calls to make")
    parser.addoption("--attack-files", type=int, help="how many damaged files of a kind to read")


@pytest.fixture
def num_calls(request: pytest.FixtureRequest) -> int:
    # Unless pytest was told to look in this directory, it has not seen the option.
    return request.config.getoption("--attack-calls", default=None) or 3000


@pytest.fixture
def num_files(request: pytest.FixtureRequest) -> int | None:
    """How many damaged files there are of a kind; without it as many as take some seconds."""
    return request.config.getoption("--attack-files", default=None)
