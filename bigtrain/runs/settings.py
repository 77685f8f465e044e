"""What a run was asked to do, kept in a file, so that it can only go on as it began."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bigtrain.atomic import atomic_write
from bigtrain.errors import CheckpointError, ConfigError


def keep_settings(directory: Path, settings: Any, fingerprint: str | Mapping[str, str]) -> None:
    """Writes settings.json, or holds the settings against those that it has."""
    path = directory / "settings.json"
    given = {"settings": settings, "fingerprint": fingerprint}
    text = json.dumps(given, default=_plain, indent=2)
    if not path.exists():
        if strays := [n for n in ("metrics.jsonl", "checkpoints") if (directory / n).exists()]:
            raise ConfigError(
                f"`{directory}` must be new or hold a run, but it has {' and '.join(strays)} "
                "without settings.json. Choose another directory."
            )
        with atomic_write(path) as file:
            file.write(f"{text}\n".encode())
        return
    try:
        there = _flat(json.loads(path.read_text()))
    except ValueError as error:
        raise CheckpointError(
            f"`{path}` must be JSON, but is damaged ({error}). Choose another directory."
        ) from error
    here = _flat(json.loads(text))
    for name in here | there:
        old, new = there.get(name, "absent"), here.get(name, "absent")
        if old != new:
            raise ConfigError(
                f"A run in `{directory}` can only go on as it began, but `{name}` was {old} and "
                f"is {new}. Choose another directory."
            )


def flatten_settings(settings: Any) -> dict[str, str]:
    """Each setting as JSON, by its dotted name."""
    return _flat(json.loads(json.dumps(settings, default=_plain)))


def _plain(value: Any) -> Any:
    """What JSON does not know, in terms of what it does."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise ConfigError(
        f"Settings must be dataclasses of numbers, text and the like, got {value!r} in them."
    )


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Each setting as text, by its dotted name."""
    if not isinstance(value, dict) or not value:
        return {name.removeprefix("settings."): json.dumps(value)}
    parts = [_flat(part, f"{name}.{key}" if name else key) for key, part in value.items()]
    return {name: text for part in parts for name, text in part.items()}
