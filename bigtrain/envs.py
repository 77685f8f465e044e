"""Environments by name: `make("tiger-treasure", p_hear=0.7)`."""

import inspect
from typing import Any

from bigtrain.errors import CMDPError
from bigtrain.finite import TabularCMDP
from bigtrain.finite.envs import (
    crossroads,
    detour,
    lighthouse,
    poisoned_doors,
    three_state,
    tiger_maze,
    tiger_treasure,
)

__all__ = ["describe", "make", "names", "options"]

_REGISTRY = {
    "tiger-treasure": tiger_treasure,
    "detour": detour,
    "tiger-maze": tiger_maze,
    "three-state": three_state,
    "crossroads": crossroads,
    "poisoned-doors": poisoned_doors,
    "lighthouse": lighthouse,
}


def names() -> tuple[str, ...]:
    """The names that `make` knows."""
    return tuple(_REGISTRY)


def options(name: str) -> dict[str, Any]:
    """The options of an environment, with their defaults."""
    return {
        option: parameter.default
        for option, parameter in inspect.signature(_builder(name)).parameters.items()
    }


def describe(name: str) -> str:
    """What the environment is, in a line."""
    return (inspect.getdoc(_builder(name)) or "").partition("\n")[0]


def make(name: str, **chosen: Any) -> TabularCMDP:
    """Builds the environment called `name`."""
    builder = _builder(name)
    unknown = sorted(set(chosen) - set(options(name)))
    if unknown:
        raise CMDPError(
            f"{name!r} has no option {unknown[0]!r}. Its options are: {', '.join(options(name))}."
        )
    return builder(**chosen)


def _builder(name: str):
    if name not in _REGISTRY:
        raise CMDPError(f"There is no environment {name!r}. There are: {', '.join(_REGISTRY)}.")
    return _REGISTRY[name]
