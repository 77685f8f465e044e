"""Damaged checkpoints: a `CheckpointError`, or the state that was saved, to the last bit."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from mutation import Mutation, blank, flip_bits, judge, splice, truncate
from progress import Progress

from bigtrain.errors import CheckpointError
from bigtrain.runs import Checkpoints

NOTES = {"about": "an attack", "numbers": [1, 2.5, None], "more": {"0": [True]}}
VALUES: list[Any] = [None, True, 0, -1.5, "text", [], {}, [1], {"leaves": 3}, [[]], {"path": "x"}]
DAMAGE: tuple[Mutation, ...] = (flip_bits, flip_bits, flip_bits, truncate, splice, blank)


def make_state() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "weights": rng.normal(size=(40, 30)),
        "counts": np.arange(500, dtype=np.int32),
        "steady": np.zeros((64, 64), np.float32),  # what packs well is stored otherwise
        "key": jax.random.key(3),
        "step": np.int64(7),
    }


def to_bytes(state: dict[str, Any]) -> list[bytes]:
    data = {**state, "key": jax.random.key_data(state["key"])}
    return [np.asarray(data[name]).tobytes() for name in sorted(data)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoints = Checkpoints(folder)
    checkpoints.save(5, make_state(), NOTES)
    checkpoints.close()
    return folder


class Reader:
    """Puts a damaged checkpoint in place of the whole one, and goes on from it."""

    def __init__(self, whole: Path, folder: Path):
        self._whole, self._folder = whole, folder
        self._files = sorted(path for path in (whole / "5").rglob("*") if path.is_file())
        self._like = jax.tree.map(lambda leaf: leaf, make_state())
        self._want = to_bytes(make_state())

    def damage(self, rng: np.random.Generator) -> str:
        """Damages a file as a disk would, or says something else in it; its name."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._whole, self._folder)
        file = self._folder / self._files[rng.integers(len(self._files))].relative_to(self._whole)
        match rng.integers(8):
            case 0:
                file.unlink()
            case 1 | 2:
                self._reword(rng)
            case _:
                if data := file.read_bytes():
                    file.write_bytes(DAMAGE[rng.integers(len(DAMAGE))](rng, data))
        return file.name

    def _reword(self, rng: np.random.Generator) -> None:
        """What is noted has another type, or another entry, somewhere."""
        file = self._folder / "5" / "about" / "metadata"
        about = json.loads(file.read_text())
        value = VALUES[rng.integers(len(VALUES))]
        match rng.integers(4):
            case 0:
                about = value
            case 1:
                about[list(about)[rng.integers(len(about))]] = value
            case 2:
                about["leaves"][rng.integers(len(about["leaves"]))] = value
            case _:
                del about[list(about)[rng.integers(len(about))]]
        file.write_text(json.dumps(about))

    def __call__(self, _: bytes = b"") -> str:
        checkpoints = Checkpoints(self._folder)
        try:
            found, notes = checkpoints.latest(self._like), checkpoints.notes()
        finally:
            checkpoints.close()
        assert found is not None, "A checkpoint must not vanish silently."
        assert found[0] == 5 and to_bytes(found[1]) == self._want
        assert notes == NOTES
        return "whole"


def test_damaged_checkpoints_are_refused_or_whole(whole, tmp_path, num_files):
    count = max(num_files // 20, 60) if num_files else 60  # Orbax is slow
    rng, reader, progress = (
        np.random.default_rng(0),
        Reader(whole, tmp_path),
        Progress("checkpoints", count),
    )
    outcomes: Counter[str] = Counter()
    for number in range(count):
        name = reader.damage(rng)
        try:
            outcomes += judge([b""], reader, CheckpointError)
        except BaseException as error:
            error.add_note(f"Mutant {number} has damage in `{name}`.")
            raise
        if progress.is_due or number + 1 == count:
            progress.tell(number + 1, **outcomes)
    assert outcomes.total() == count
    assert set(outcomes) == {"whole", "CheckpointError"}
