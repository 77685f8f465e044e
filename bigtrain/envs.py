"""Environments by name: `make("tiger-treasure", p_hear=0.7)`."""

import inspect
from typing import Any

from bigtrain.errors import CMDPError
from bigtrain.finite import TabularCMDP
from bigtrain.finite import envs as finite

__all__ = ["describe", "make", "names", "options"]

_REGISTRY = {
    "tiger-treasure": finite.tiger_treasure,
    "detour": finite.detour,
    "tiger-maze": finite.tiger_maze,
    "three-state": finite.three_state,
    "crossroads": finite.crossroads,
    "poisoned-doors": finite.poisoned_doors,
    "lighthouse": finite.lighthouse,
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
