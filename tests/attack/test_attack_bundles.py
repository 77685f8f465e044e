"""Damaged bundles: a named error or a sound load, in bounded memory."""

import copy
import hashlib
import json
import struct
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from bundles import EXACT, LEARNED, resealed, set_array
from mutation import (
    Mutation,
    Peak,
    assert_is_sentence,
    flip_bits,
    judge,
    pick,
    splice,
    truncate,
)
from progress import Progress

from bigtrain import errors
from bigtrain.bundle import Bundle, parse_bundle
from bigtrain.errors import BundleError
from bigtrain.storage.container import MAGIC, seal, unseal

HEADER = 52
SOUND_EVERY = 20  # tracing a policy is slow
LENGTHS = [0, 1, 15, 16, 17, 255, 65_535, 1 << 24, (1 << 31) - 1, (1 << 32) - 1]
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1 << 62,
    (1 << 64) - 1,
    0.0,
    -1.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "exact",
    "a\nb",
    "\x1b[2J",
    b"",
    b"\0" * 64,
    [],
    [1 << 40, 1 << 40],
    [2, 3],
    {},
    {"dtype": "float64", "shape": [], "data": b"\0" * 8},
]


def reseal(payload: bytes) -> bytes:
    """A bundle with this payload and a right digest."""
    head = MAGIC + struct.pack("<IQ", 1, len(payload))
    return head + hashlib.sha256(head + payload).digest() + payload


def flip_header(rng: np.random.Generator, data: bytes) -> bytes:
    return flip_bits(rng, data[:HEADER]) + data[HEADER:]


def flip_payload(rng: np.random.Generator, data: bytes) -> bytes:
    return reseal(flip_bits(rng, data[HEADER:]))


def truncate_payload(rng: np.random.Generator, data: bytes) -> bytes:
    return reseal(truncate(rng, data[HEADER:]))


def splice_payload(rng: np.random.Generator, data: bytes) -> bytes:
    return reseal(splice(rng, data[HEADER:]))


def claim_length(rng: np.random.Generator, data: bytes) -> bytes:
    """Puts the head of a list, map, text or block of bytes somewhere, with some length."""
    kind = rng.choice([0xDD, 0xDF, 0xDB, 0xC6, 0xC9])
    head = bytes([kind]) + int(rng.choice(LENGTHS)).to_bytes(4, "big")
    payload = data[HEADER:]
    place = int(rng.integers(len(payload)))
    return reseal(payload[:place] + head + payload[place + len(head) * int(rng.integers(2)) :])


def nest(rng: np.random.Generator, data: bytes) -> bytes:
    """Wraps what is at some place many times over."""
    wrapper = [b"\x91", b"\x81\xa1a", b"\xdc\x00\x10", b"\xde\x10\x00\xa1a"][rng.integers(4)]
    payload = data[HEADER:]
    place = int(rng.integers(len(payload)))
    return reseal(payload[:place] + wrapper * int(rng.integers(1, 3_000)) + payload[place:])


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Where values are in a content, itself left out."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in inner:
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))


def change_content(rng: np.random.Generator, data: bytes) -> bytes:
    """Replaces, removes, swaps or repeats what is in a bundle, and seals it as we do."""
    content = copy.deepcopy(unseal(data)[1])
    everywhere = list(places(content))

    def find() -> tuple[Any, Any]:
        found, (*path, last) = content, everywhere[rng.integers(len(everywhere))]
        for step in path:
            found = found[step]
        return found, last

    holder, key = find()
    kind = rng.integers(4)
    if kind == 0:
        holder[key] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    elif kind == 1:
        del holder[key]
    elif kind == 2:
        other, place = find()
        holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(holder[key])
    elif isinstance(holder[key], int | float):
        holder[key] = type(holder[key])(
            holder[key] * rng.choice([-1, 2, 1e3]) + rng.integers(-1, 2)
        )
    elif isinstance(holder[key], list | str | bytes):
        holder[key] = holder[key] * int(rng.integers(2, 4))
    else:
        holder[key] = {"nested": holder[key]}
    return seal(content)


MUTATIONS: dict[Mutation, int] = {
    flip_bits: 1,
    flip_header: 1,
    truncate: 1,
    flip_payload: 3,
    truncate_payload: 1,
    splice_payload: 1,
    claim_length: 2,
    nest: 1,
    change_content: 3,
}


def check_sound(bundle: Bundle) -> None:
    """A load is sound if all that is asked of a bundle can be had."""
    json.dumps(bundle.summary(), allow_nan=False)
    seen = jax.ShapeDtypeStruct(bundle.observation.shape, bundle.observation.dtype)
    action = jax.ShapeDtypeStruct((), jnp.int32)
    _, decision = eqx.filter_eval_shape(bundle.policy.step, bundle.policy.init(), seen, action)
    assert decision.values.shape == (len(bundle.action_names),)
    assert decision.belief.log_probs.shape == bundle.context_prior.shape


class Reader:
    """Loads bundles, and keeps the most memory that one took."""

    def __init__(self, every: int):
        self.peak, self._loaded = Peak(every), 0

    def __call__(self, data: bytes) -> str:
        with self.peak.traced():
            bundle = parse_bundle(data)
        if self._loaded % SOUND_EVERY == 0:
            check_sound(bundle)
        self._loaded += 1
        return "loaded"


def make_mutants(count: int, seed: int) -> Iterator[bytes]:
    rng = np.random.default_rng(seed)
    for index in range(count):
        yield pick(rng, MUTATIONS)(rng, (EXACT, LEARNED)[index % 2])


def test_damaged_bundles_are_refused_or_load(monkeypatch, num_files):
    # The checks of types that tests have, and users do not, must not be what refuses a bundle.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    count, reader = num_files or 800, Reader(every=8 if num_files else 1)
    progress = Progress("bundles", count)
    outcomes = judge(make_mutants(count, seed=0), reader, BundleError, progress)
    assert outcomes.total() == count
    # Every kind of damage was met, and some that does no harm.
    reading = {n for n in vars(errors) if "Bundle" in n} - {"BundleError", "BundleWriteError"}
    assert {*reading, "loaded"} <= set(outcomes)
    # The bundles have 4 and 15 kB; the skeleton of a network of 64 layers takes most.
    assert 0 < reader.peak.most < 16_000_000


def test_what_is_wrong_with_tables_of_k_is_said_in_one_line():
    def swap(content: dict[str, Any]) -> None:
        for part, values in (("low", [[0.9], [0.4]]), ("high", [[0.1], [0.6]])):
            set_array(content["exploration"]["k"][part], values)

    with pytest.raises(BundleError, match="`exploration.k` cannot be used") as refused:
        parse_bundle(resealed(EXACT, swap))
    assert_is_sentence(str(refused.value))
