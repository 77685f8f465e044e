"""Bytes that are nearly what they should be. The same seed, the same bytes."""

from collections.abc import Callable, Sequence

import numpy as np

Mutation = Callable[[np.random.Generator, bytes], bytes]

TEXTS = [b"", b"\0", b"\xff\xfe", b"x" * 129, b"x" * 20_000, "é\n\x1b[2J".encode(), b"\0" * 100_000]
"""What stands where a text or bytes should."""


def flip_bits(rng: np.random.Generator, data: bytes) -> bytes:
    changed = bytearray(data)
    for place in rng.integers(len(data), size=rng.integers(1, 5)):
        changed[place] ^= 1 << rng.integers(8)
    return bytes(changed)


def truncate(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: rng.integers(len(data))]


def insert(rng: np.random.Generator, data: bytes) -> bytes:
    place = rng.integers(len(data))
    return data[:place] + rng.bytes(int(rng.integers(1, 9))) + data[place:]


def repeat(rng: np.random.Generator, data: bytes) -> bytes:
    """Some stretch many times over: repeated fields without end."""
    start, end = sorted(rng.integers(len(data) + 1, size=2).tolist())
    return data[:start] + data[start:end] * int(rng.integers(2, 200)) + data[end:]


def claim_length(rng: np.random.Generator, data: bytes) -> bytes:
    """A varint of some size where there was a byte."""
    place = rng.integers(len(data))
    return data[:place] + _varint(1 << int(rng.integers(64))) + data[place + 1 :]


def add_field(rng: np.random.Generator, data: bytes) -> bytes:
    """One more field, known or not, of some type, with something extreme in it."""
    number, kind = int(rng.integers(1, 20)), int(rng.choice([0, 1, 2, 5]))
    head = _varint(number << 3 | kind)
    if kind == 0:
        return data + head + _varint((1 << int(rng.integers(65))) - 1)
    if kind == 2:
        text = TEXTS[rng.integers(len(TEXTS))]
        return data + head + _varint(len(text)) + text
    return data + head + rng.bytes(8 if kind == 1 else 4)


def nest(rng: np.random.Generator, data: bytes) -> bytes:
    """What it was, within itself, many times over."""
    head = _varint(int(rng.integers(1, 12)) << 3 | 2)
    for _ in range(int(rng.integers(1, 200))):
        data = head + _varint(len(data)) + data
    return data


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits, flip_bits, truncate, insert, repeat, claim_length, add_field, add_field, nest
)  # fmt: skip


def mutate(rng: np.random.Generator, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One or two mutations, or a part of something else; now and then what it was."""
    kind = rng.integers(12)
    if kind == 0:
        return data
    if kind == 1 and others:
        other = others[int(rng.integers(len(others)))]
        at, other_at = (int(rng.integers(len(one) + 1)) for one in (data, other))
        return data[:at] + other[other_at:]
    for _ in range(int(rng.integers(1, 3))):
        data = MUTATIONS[rng.integers(len(MUTATIONS))](rng, data or b"\0")
    return data


def _varint(number: int) -> bytes:
    found = b""
    while number >= 128:
        found += bytes([number % 128 | 128])
        number //= 128
    return found + bytes([number])
