"""From what a person types to a problem: `tiger-maze`, or `module:object` for one's own."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bigtrain import envs
from bigtrain.errors import BigTrainError, CMDPError
from bigtrain.problem import CMDP


def load_problem(name: str, options: Sequence[str] = ()) -> CMDP:
    """The environment called `name`, or the CMDP that `module:object` is or makes.

    `options` are of the form NAME=VALUE, and typed as the defaults of what they are given to.
    """
    if ":" not in name:
        return envs.make(name, **parse_options(options, envs.options(name)))
    found = load_object(name)
    if isinstance(found, CMDP):
        if options:
            raise CMDPError(f"Options must be for a function, but `{name}` is a CMDP already.")
        return found
    if not callable(found):
        raise CMDPError(
            f"`{name}` must be a CMDP, or a function that makes one, got {type(found).__name__}."
        )
    chosen = parse_options(options, _defaults(found))
    made = _call(found, chosen, name)
    if not isinstance(made, CMDP):
        raise CMDPError(f"`{name}` must make a CMDP, got {type(made).__name__}.")
    return made


def load_object(reference: str) -> Any:
    """What `module:object` names; modules in the current directory are found too."""
    module, _, path = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a module may raise anything
        raise CMDPError(
            f"`{module}` cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise CMDPError(f"`{module}` must have `{path}`, as `{reference}` says, but has not.")
        found = getattr(found, part)
    return found


def parse_options(given: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """NAME=VALUE as keyword arguments, each of the type of its default."""
    chosen = {}
    for option in given:
        name, equals, text = option.partition("=")
        if not equals:
            raise CMDPError(f"An option must be NAME=VALUE, got {option!r}.")
        try:
            chosen[name] = _parse(text, defaults.get(name))
        except ValueError as error:
            raise CMDPError(
                f"The option `{name}` must be like {show_option(defaults[name])}, got {text!r}."
            ) from error
    return chosen


def show_option(value: Any) -> str:
    """A value as `parse_options` reads it."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _parse(text: str, default: Any) -> Any:
    match default:
        case bool():
            return bool(("False", "True").index(text.capitalize()))
        case int() | float():
            return type(default)(text)
        case (first, *_):
            return tuple(_parse(part, first) for part in text.split(","))
    return text


def _defaults(maker: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(maker).parameters
    return {name: parameter.default for name, parameter in parameters.items()}


def _call(maker: Callable[..., Any], chosen: Mapping[str, Any], name: str) -> Any:
    try:
        return maker(**chosen)
    except BigTrainError:
        raise
    except Exception as error:  # a function may raise anything
        raise CMDPError(f"`{name}` failed: {type(error).__name__}: {error}") from error
