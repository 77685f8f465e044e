"""What attacks on files share: damage that fits any file, and the judge."""

import collections
import contextlib
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from progress import Progress

Mutation = Callable[[np.random.Generator, bytes], bytes]
"""Makes damaged bytes of whole ones."""


def flip_bits(rng: np.random.Generator, data: bytes) -> bytes:
    """One to three bits are others."""
    flipped = bytearray(data)
    for place in rng.integers(len(data), size=rng.integers(1, 4)):
        flipped[place] ^= 1 << rng.integers(8)
    return bytes(flipped)


def truncate(rng: np.random.Generator, data: bytes) -> bytes:
    """The end is missing."""
    return data[: rng.integers(len(data))]


def splice(rng: np.random.Generator, data: bytes) -> bytes:
    """A part occurs again in another place, or instead of what was there."""
    start, end = np.sort(rng.integers(len(data) + 1, size=2))
    part = data[start : min(end, start + 64)]
    place = int(rng.integers(len(data) + 1))
    return data[:place] + part + data[place + len(part) * int(rng.integers(2)) :]


def blank(rng: np.random.Generator, data: bytes) -> bytes:
    """A part is zero, as where a disk lost a block."""
    start, end = np.sort(rng.integers(len(data) + 1, size=2))
    return data[:start] + bytes(int(end - start)) + data[end:]


def pick(rng: np.random.Generator, mutations: Mapping[Mutation, int]) -> Mutation:
    """One of them, by their weights."""
    weights = np.array(list(mutations.values()), float)
    return list(mutations)[rng.choice(len(mutations), p=weights / weights.sum())]


class Peak:
    """The most memory that one attempt took, of those that are traced: one in so many.

    To be traced makes an attempt three or four times as long.
    """

    def __init__(self, every: int):
        self.most = self._number = 0
        self._every = every

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """An attempt."""
        self._number += 1
        if self._number % self._every:
            yield
            return
        tracemalloc.start()
        try:
            yield
        finally:
            self.most = max(self.most, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()


def judge(
    mutants: Iterable[bytes],
    attempt: Callable[[bytes], str],
    refusal: type[Exception],
    progress: Progress | None = None,
) -> collections.Counter[str]:
    """What came of each: what `attempt` says of it, or the name of the refusal that it raised.

    Anything else that is raised passes on, with the number of the mutant.
    """
    outcomes: collections.Counter[str] = collections.Counter()
    for number, mutant in enumerate(mutants):
        try:
            outcomes[attempt(mutant)] += 1
        except refusal as error:
            assert_is_sentence(str(error))
            outcomes[type(error).__name__] += 1
        except Exception as error:
            error.add_note(f"It is mutant {number}.")
            raise
        if progress is not None and progress.is_due:
            progress.tell(number + 1, **outcomes)
    if progress is not None:
        progress.tell(outcomes.total(), **outcomes)
    return outcomes


def assert_is_sentence(message: str) -> None:
    """One line, which a terminal shows as it is, with an end."""
    assert message.isprintable() and message.endswith("."), repr(message)
