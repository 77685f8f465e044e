"""Damaged demonstration files: a `DemonstrationError`, or demonstrations that can be used."""

import contextlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from mutation import Mutation, Peak, blank, flip_bits, judge, pick, splice, truncate
from progress import Progress

from bigtrain import Demonstrations, TabularCMDP
from bigtrain.errors import DemonstrationError

Members = dict[str, bytes]
"""The files in the archive, by name."""

DESCRS: list[Any] = [
    *("()", "('<i4',)", "('<i4', (2,))", "[('a', '<i4')]", "'<i4'", "'>f8'", "'<U0'", "'<U7'"),
    *("'|O'", "'<f2'", "'<c8'", "'<M8[s]'", "'|V3'", "'|b1'", "''", "None", "{}", "[]", "[()]"),
    *("5", "'<i4,<i4'", "b'<i4'", "[('a', [()])]", "(('<i4', ()), {})", "'<i9'", "True"),
]
SHAPES = [
    *("()", "(3,)", "(0,)", "(-1,)", "(True,)", "(2, 3)", "3", "None", "(1.5,)", "('3',)"),
    *(f"({2**62}, 4)", f"({2**70},)", f"({'1, ' * 70})", "[3]", "(-3, -1)", f"({10**4000},)"),
]
ORDERS = ["False", "True", "None", "'C'", "3"]
KEYS = ["'descr'", "'shape'", "'fortran_order'", "'more'", "1", "(1,)", "None", "b'descr'", "2j"]
METADATA = [
    *("", "{", "[]", "null", "3", '"text"', "[" * 5000, '{"a": NaN}', '{"a": 1e999}', '{"": {}}'),
    *('{"a": "\\ud800"}', '{"a": ' * 3000, '{"seed": 18446744073709551616}', "{}{}", "\ufeff{}"),
]
VALUES: list[np.ndarray] = [
    *(np.array(value) for value in (0, -1, 2**31, 2**62, np.nan, np.inf, True, "text", 1.5)),
    *(np.array(values) for values in ([], [2**62] * 3, [-1], [[1, 2]], [0.5], ["a", "b"], [[]])),
    *(np.zeros(shape, "u1") for shape in ((3, 0), (0, 3), (1, 1, 1, 1))),
]


DEMOS = Demonstrations(
    np.random.default_rng(0).integers(9, size=(12, 2, 2), dtype=np.uint8),
    [0, 1, 1, 0, 2, 0, 1, 1, 2],
    [4, 2, 3],
    [0, 1, 1],
    {"about": "an attack", "numbers": [1, 2.5, None]},
)
"""Three trajectories of pictures, with contexts."""

PROBLEM = TabularCMDP(
    np.full((2, 12, 3, 12), 1 / 12),
    [0.5, 0.5],
    np.full(12, 1 / 12),
    gamma=0.9,
    observations=DEMOS.observations,
)
"""What they are of: each picture is a state, and every step can be."""


def make_file(compressed: bool) -> bytes:
    buffer = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    arrays = {name: getattr(DEMOS, name) for name in ("observations", "actions", "lengths")}
    metadata = json.dumps(dict(DEMOS.metadata))
    head = {"format": "big-demonstrations", "version": 1, "metadata": metadata}
    save(buffer, **head, contexts=DEMOS.contexts, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


WHOLE = make_file(compressed=False), make_file(compressed=True)


# ── damage to what is in the archive, whose checksums are then right ─────────────────────────────


def repack(change: Callable[[np.random.Generator, Members], Any]) -> Mutation:
    """A mutation of the files in an archive."""

    def mutate(rng: np.random.Generator, data: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
            kind = archive.infolist()[0].compress_type
        change(rng, members)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", kind) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return buffer.getvalue()

    return mutate


def choose(rng: np.random.Generator, things: Any) -> Any:
    things = list(things)
    return things[rng.integers(len(things))]


def npy(header: str, data: bytes) -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def change_bytes(rng: np.random.Generator, members: Members) -> None:
    name = choose(rng, members)
    members[name] = choose(rng, (flip_bits, truncate, splice, blank))(rng, members[name])


def change_header(rng: np.random.Generator, members: Members) -> None:
    """A header that says something else, with the data that was there, or with none."""
    name = choose(rng, members)
    array = np.load(io.BytesIO(members[name]), allow_pickle=False)
    parts = {
        "'descr'": repr(array.dtype.str),
        "'fortran_order'": "False",
        "'shape'": str(array.shape),
    }
    for key, values in (("'descr'", DESCRS), ("'fortran_order'", ORDERS), ("'shape'", SHAPES)):
        if rng.random() < 0.4:
            parts[key] = choose(rng, values)
    if rng.random() < 0.3:
        parts.pop(choose(rng, parts))
    if rng.random() < 0.3:
        parts[choose(rng, KEYS)] = choose(rng, [*DESCRS, *SHAPES, *ORDERS])
    header = "{" + ", ".join(f"{key}: {value}" for key, value in parts.items()) + "}"
    members[name] = npy(header, array.tobytes() if rng.random() < 0.7 else b"")


def change_value(rng: np.random.Generator, members: Members) -> None:
    """Another array, well written."""
    buffer = io.BytesIO()
    np.save(buffer, choose(rng, VALUES), allow_pickle=False)
    members[choose(rng, members)] = buffer.getvalue()


def change_metadata(rng: np.random.Generator, members: Members) -> None:
    text = choose(rng, METADATA)
    members["metadata.npy"] = npy(
        f"{{'descr': '<U{len(text)}', 'fortran_order': False, 'shape': ()}}",
        text.encode("utf-32-le", "surrogatepass"),
    )


def change_members(rng: np.random.Generator, members: Members) -> None:
    """One is missing, has another name, another's content, or is one too many."""
    name, other = choose(rng, members), choose(rng, members)
    match rng.integers(4):
        case 0:
            del members[name]
        case 1:
            members[choose(rng, ("x.npy", "../a", " ", "actions", "\n", "a" * 9000))] = members.pop(
                name
            )
        case 2:
            members[name], members[other] = members[other], members[name]
        case _:
            members[name.removesuffix(".npy")] = members[other]


MUTATIONS: dict[Mutation, int] = {
    flip_bits: 2,
    truncate: 1,
    splice: 1,
    blank: 1,
    repack(change_bytes): 3,
    repack(change_header): 6,
    repack(change_value): 3,
    repack(change_metadata): 1,
    repack(change_members): 1,
}


class Reader:
    """Loads files, uses what is in them, and keeps the most memory that one took."""

    def __init__(self, path: Path, every: int):
        self._path, self.peak = path, Peak(every)

    def __call__(self, data: bytes) -> str:
        self._path.write_bytes(data)
        with self.peak.traced():
            demos = Demonstrations.load(self._path)
            assert len(demos.digest()) == 64
            assert sum(len(one) for one in demos) == demos.num_steps
            with contextlib.suppress(DemonstrationError):  # what loads need not be of the problem
                demos.trajectories(PROBLEM)
            repr(demos)
            json.dumps(dict(demos.metadata), allow_nan=False)
        return "loaded"


def make_mutants(count: int, seed: int) -> Iterator[bytes]:
    rng = np.random.default_rng(seed)
    for index in range(count):
        yield pick(rng, MUTATIONS)(rng, WHOLE[index % 2])


@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz`", "ignore:Duplicate name")
def test_damaged_files_are_refused_or_load(tmp_path, monkeypatch, num_files):
    # The checks of types that tests have, and users do not, must not be what refuses a file.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    count = num_files or 1_500
    reader = Reader(tmp_path / "demos.npz", every=8 if num_files else 1)
    progress = Progress("demonstrations", count)
    outcomes = judge(make_mutants(count, seed=0), reader, DemonstrationError, progress)
    assert outcomes.total() == count
    assert set(outcomes) == {"loaded", "DemonstrationError"}
    assert min(outcomes.values()) > count / 100
    # The files have 2 kB, and no deflate stream grows by more than 1,032.
    assert 0 < reader.peak.most < 16_000_000
