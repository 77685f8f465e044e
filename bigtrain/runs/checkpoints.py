"""The state of a learner to disk and back, bit for bit.

Orbax writes a checkpoint into a temporary folder and renames it when it is whole, so a process may
be killed at any moment. Only arrays are stored, in the order in which they come in the state; what
else the state has (functions, sizes, None) comes from the state that is given on restoring. Digests
tell whether arrays and notes are as they were written: what reads them notices some damage only.
"""

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bigtrain.errors import CheckpointError, ConfigError

State = TypeVar("State")

_FIELDS = {"leaves", "notes", "arrays", "digest"}
"""What is noted beside the arrays; checkpoints from before there were digests lack the last two."""


@final
class Checkpoints:
    """The last `keep` checkpoints of one state, in a directory that nobody else writes to."""

    def __init__(self, directory: str | os.PathLike, keep: int = 2):
        if keep < 1:
            raise ConfigError(f"`keep` must be at least 1, got {keep}.")
        self._directory = Path(directory).resolve()
        self._keep = keep
        self._opened: Any = None

    def save(self, step: int, state: Any, notes: Mapping[str, Any] | None = None) -> None:
        """Writes a checkpoint; it is whole on disk when this returns.

        `notes` are stored beside it: anything that JSON can say.
        """
        latest = self.latest_step()
        if step < 0 or (latest is not None and step <= latest):
            raise CheckpointError(
                f"`step` must be above that of the latest checkpoint, {latest}, got {step}."
            )
        args = _orbax().args
        leaves = jax.tree.leaves(eqx.filter(state, eqx.is_array))
        arrays = [np.asarray(_bits(leaf)) for leaf in leaves if leaf.size]
        about = {"leaves": _describe(state), "notes": dict(notes or {}), "arrays": _digest(arrays)}
        items = {"about": args.JsonSave({**about, "digest": _digest_text(about)})}
        if arrays:  # Orbax refuses to store nothing, be it an array or a list of them
            items["arrays"] = args.StandardSave(arrays)
        self._write(step, args.Composite(**items))

    def latest(self, like: State) -> tuple[int, State] | None:
        """The latest checkpoint, step and state; None where there is none.

        `like` is a state of the same structure, for instance the initial one.
        """
        step = self.latest_step()
        if step is None:
            return None
        about = self._about(step)
        self._check(step, about["leaves"], like)
        arrays, rest = eqx.partition(like, eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        stored = [np.empty(bits.shape, bits.dtype) for bits in map(_bits, leaves)]
        wanted = [array for array in stored if array.size]
        if wanted:
            read = self._read(step, "arrays", _orbax().args.StandardRestore(wanted))
            if about.get("arrays", _digest(read)) != _digest(read):
                raise self._damaged(step, "its arrays are not as they were written")
            found = iter(read)
            stored = [next(found) if array.size else array for array in stored]
        return step, eqx.combine(structure.unflatten(map(_like, leaves, stored)), rest)

    def latest_step(self) -> int | None:
        """The step of the latest checkpoint."""
        if self._opened is None and not self._directory.exists():
            return None
        return self._manager().latest_step()

    def notes(self) -> dict[str, Any]:
        """What was noted beside the latest checkpoint; nothing where there is none."""
        step = self.latest_step()
        return {} if step is None else self._about(step)["notes"]

    def close(self) -> None:
        """Ends the use of the directory."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _manager(self) -> Any:
        if self._opened is None:
            ocp = _orbax()
            options = ocp.CheckpointManagerOptions(
                max_to_keep=self._keep,
                cleanup_tmp_directories=True,
                enable_async_checkpointing=False,
            )
            self._opened = ocp.CheckpointManager(self._directory, options=options)
        return self._opened

    def _write(self, step: int, items: Any) -> None:
        try:
            written = self._manager().save(step, args=items)
        except Exception as error:  # whatever Orbax and what is below it make of a full disk
            raise CheckpointError(
                f"The checkpoint of step {step} cannot be written to `{self._directory}` "
                f"({_reason(error)}). Those before it are whole: make room, and go on from there."
            ) from error
        if not written:
            raise CheckpointError(f"The checkpoint of step {step} was not written.")

    def _about(self, step: int) -> dict[str, Any]:
        """What is noted beside the arrays, as it was written."""
        about = self._read(step, "about", _orbax().args.JsonRestore())
        if not isinstance(about, dict) or set(about) not in (_FIELDS, {"leaves", "notes"}):
            raise self._damaged(step, "what is noted in it is something else")
        digest = about.pop("digest", None)
        if not _is_sound(about) or digest not in (None, _digest_text(about)):
            raise self._damaged(step, "what is noted in it is not as it was written")
        return about

    def _read(self, step: int, item: str, how: Any) -> Any:
        try:
            return self._manager().restore(step, args=_orbax().args.Composite(**{item: how}))[item]
        except Exception as error:  # whatever Orbax and what is below it make of damaged files
            raise self._damaged(step, f"it cannot be read ({_reason(error)})") from error

    def _damaged(self, step: int, why: str) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint in `{self._directory / str(step)}` must be whole, but {why}. Delete "
            "that folder to go on from the one before."
        )

    def _check(self, step: int, there: list[dict[str, str]], like: Any) -> None:
        here = _describe(like)
        for i, (theirs, ours) in enumerate(itertools.zip_longest(there, here)):
            if theirs is None or ours is None or theirs["array"] != ours["array"]:
                raise CheckpointError(
                    f"The state must have the arrays of the checkpoint in "
                    f"`{self._directory / str(step)}`, but array {i} is {_show(theirs)} there and "
                    f"{_show(ours)} here. Go on with the settings it was written with."
                )


def _orbax() -> ModuleType:
    """Orbax, imported when it is first needed, and of its log lines only errors shown."""
    import absl.logging

    absl.logging.get_absl_logger().addFilter(_is_worth_reading)
    import orbax.checkpoint as ocp

    return ocp


def _is_worth_reading(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or "orbax" not in record.pathname


def _describe(tree: Any) -> list[dict[str, str]]:
    """Where each array is, and its dtype and shape; the dtype of keys has their algorithm."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    return [
        {"path": jax.tree_util.keystr(path), "array": f"{x.dtype}{list(x.shape)}"}
        for path, x in leaves
    ]


def _is_sound(about: Mapping[str, Any]) -> bool:
    """Whether notes are of the kinds that they are written in."""
    leaves, notes = about["leaves"], about["notes"]
    return isinstance(notes, dict) and (
        isinstance(leaves, list)
        and all(isinstance(leaf, dict) and set(leaf) == {"path", "array"} for leaf in leaves)
    )


def _digest(arrays: Sequence[np.ndarray]) -> str:
    """SHA-256 of arrays: their kinds, shapes and bytes."""
    result = hashlib.sha256()
    for array in map(np.asarray, arrays):
        result.update(f"{array.dtype} {array.shape}\n".encode())
        result.update(np.ascontiguousarray(array).tobytes())
    return result.hexdigest()


def _digest_text(about: Mapping[str, Any]) -> str:
    """SHA-256 of what JSON makes of notes."""
    plain = json.loads(json.dumps(about))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _reason(error: Exception) -> str:
    """What is below us says of a failure: at most a line of it."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 200 else f"{words[:199]}…"


def _show(leaf: Mapping[str, str] | None) -> str:
    return "absent" if leaf is None else f"`{leaf['path']}`, {leaf['array']},"


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _bits(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(leaf: Any, stored: np.ndarray) -> Any:
    """What was stored, as the kind of array that `leaf` is and in the place where it is."""
    if not isinstance(leaf, jax.Array):
        return stored if isinstance(leaf, np.ndarray) else stored[()]
    place = leaf.sharding if leaf.committed else None
    if _is_key(leaf):
        keys = jax.random.wrap_key_data(jnp.asarray(stored), impl=jax.random.key_impl(leaf))
        return jax.device_put(keys, place)
    with jax.enable_x64(True):  # else JAX would make float32 of float64
        array = jax.device_put(stored, place)
        # A weak type is part of what a loop was compiled for; setting keeps that of `leaf`.
        return leaf.at[...].set(array) if leaf.weak_type else array
