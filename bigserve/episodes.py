"""An episode's life: it starts, steps, and ends, expires, moves away or is evicted.

All of it belongs to the event loop; nothing here takes long or waits. What a step needs of many
episodes at once is kept in columns, with a row, its slot, for each open episode. Slots are used
again, so a ticket, which never is, says which episode was meant: its slot is what is left of it
when divided by their number.
"""

import hashlib
import heapq
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from bigserve.config import LimitsConfig
from bigserve.errors import AlreadyExists, Fault, LimitReached, Problem, quoted
from bigserve.tombstones import Tombstones

_AT_ONCE = 512
"""Episodes closed, or tombstones forgotten, by one sweep: a few milliseconds of the event loop."""

UNKNOWN, _FREE = -1, -2
"""The ticket of what is not open; and what a free slot has for one."""

_REASONS = {
    Problem.EPISODE_ENDED: "was ended by its owner",
    Problem.EPISODE_EXPIRED: "expired, since its lease ran out",
    Problem.EPISODE_EVICTED: "was closed by the server",
    Problem.EPISODE_EXPORTED: "was exported and goes on elsewhere",
}


class Rule(NamedTuple):
    """How an action is chosen: greedily, unless one of these is above 0."""

    epsilon: float = 0.0
    temperature: float = 0.0


class Episode(NamedTuple):
    """What does not change while an episode is open."""

    id: str
    owner: str
    ticket: int
    slot: int
    version: int
    rule: Rule
    seed: int | None
    lease: float


class Episodes:
    """All episodes, open and lately closed.

    `busy` says whether a step of an episode is under way: it is left alone until `when_free`.
    """

    def __init__(
        self,
        limits: LimitsConfig,
        *,
        opened: Callable[[Episode, bytes], None],
        closed: Callable[[Episode, Problem], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        capacity = limits.max_episodes
        self._limits = limits
        self._opened, self._closed = opened, closed
        self.clock = clock
        self.capacity = capacity
        self.tickets = np.full(capacity, _FREE)
        self.next_step = np.zeros(capacity, np.uint64)
        self.version = np.zeros(capacity, np.int32)
        self.lease = np.zeros(capacity)
        self.deadline = np.full(capacity, np.inf)
        self.busy = np.zeros(capacity, bool)
        self._open: dict[int, Episode] = {}
        self._books: dict[str, dict[str, int]] = {}
        self._free = list(range(capacity))  # a heap, so that episodes started together lie so
        self._serial = 0
        self.tombstones = Tombstones(
            lifetime=limits.tombstone_lifetime,
            most=limits.tombstones_per_caller,
            clock=lambda: self.clock(),  # tests put another in its place
        )
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Episode]:
        return iter(list(self._open.values()))

    # ── finding ──────────────────────────────────────────────────────────────────────────────────

    def find(self, owner: str, ids: Sequence[str]) -> list[int]:
        """The tickets of episodes; `UNKNOWN` for those that are not open."""
        book = self._books.get(owner)
        if book is None:
            return [UNKNOWN] * len(ids)
        ticket_of = book.get
        return [ticket_of(id, UNKNOWN) for id in ids]

    def get(self, owner: str, id: str) -> Episode | None:
        """An open episode."""
        (ticket,) = self.find(owner, [id])
        if ticket == UNKNOWN:
            return None
        episode = self._open[ticket % self.capacity]
        if self.deadline[episode.slot] <= self.clock() and not self.busy[episode.slot]:
            self.close(episode, Problem.EPISODE_EXPIRED)
            return None
        return episode

    def explain_absence(self, owner: str, id: str, index: int = 0) -> Fault:
        """Why an episode is not open."""
        tombstone = self.tombstones.get(owner, id)
        if tombstone is None:
            return self.deny(id, index)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(tombstone.closed_at))
        message = f"Episode {quoted(id)} {_REASONS[tombstone.reason]} at {at}. Start a new one."
        return Fault(index, tombstone.reason, message, closed_at=tombstone.closed_at)

    def deny(self, id: str, index: int = 0) -> Fault:
        """What is said of an episode that never was, is forgotten, or is somebody else's."""
        return Fault(
            index,
            Problem.EPISODE_UNKNOWN,
            f"No episode {quoted(id)} is open here. Start one; if it was, that is so long ago that "
            "it is forgotten.",
        )

    # ── starting ─────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        owner: str,
        ids: Sequence[str] | int,
        *,
        version: int,
        acceptable: Iterable[int],
        rule: Rule,
        seed: int | None,
        lease: float,
    ) -> list[Episode]:
        """Starts episodes, all of them or none: so many, or those of the caller's own ids.

        One that was started alike on one of the `acceptable` versions, and has made no step, is
        the one asked for.
        """
        if isinstance(ids, int):
            ids = [secrets.token_urlsafe(16) for _ in range(ids)]
        present = [self.get(owner, id) for id in ids]
        acceptable = set(acceptable)
        for id, episode in zip(ids, present, strict=True):
            if episode is not None:
                self._check_same(episode, acceptable, rule, seed)
                version, acceptable = episode.version, {episode.version}  # a reply names one
            elif self.tombstones.get(owner, id) is not None:
                message = self.explain_absence(owner, id).message
                raise AlreadyExists(f"{message.removesuffix('Start a new one.')}Take another id.")
        self._check_room(owner, present.count(None))
        streams = seed if seed is not None else secrets.randbits(64)
        return [
            episode
            or self.open(owner, id, version, rule, lease, derive_key(streams, index), seed=seed)
            for index, (id, episode) in enumerate(zip(ids, present, strict=True))
        ]

    def open(
        self,
        owner: str,
        id: str,
        version: int,
        rule: Rule,
        lease: float,
        key: bytes,
        *,
        seed: int | None = None,
        next_step: int = 0,
    ) -> Episode:
        """Opens one episode, at its beginning or where another server left it."""
        self._check_room(owner, 1)
        slot = heapq.heappop(self._free)
        self._serial += 1
        ticket = self._serial * self.capacity + slot
        episode = Episode(id, owner, ticket, slot, version, rule, seed, lease)
        self._open[slot] = episode
        self._books.setdefault(owner, {})[id] = ticket
        self.tombstones.discard(owner, id)
        self.tickets[slot] = ticket
        self.next_step[slot] = next_step
        self.version[slot] = version
        self.lease[slot] = lease
        self.deadline[slot] = self.clock() + lease
        self._opened(episode, key)
        return episode

    def advance(self, slots: Int[np.ndarray, " episode"] | slice) -> None:
        """Counts a step of each, and renews their leases."""
        self.next_step[slots] += 1
        self.renew(slots)

    def renew(self, slots: Int[np.ndarray, " episode"] | slice | int) -> None:
        """Begins leases anew."""
        self.deadline[slots] = self.clock() + self.lease[slots]

    # ── closing ──────────────────────────────────────────────────────────────────────────────────

    def close(self, episode: Episode, reason: Problem) -> None:
        """Closes an open episode that is not busy, and remembers why."""
        del self._open[episode.slot]
        book = self._books[episode.owner]
        del book[episode.id]
        if not book:
            del self._books[episode.owner]
        self.tickets[episode.slot] = _FREE
        self.deadline[episode.slot] = np.inf
        heapq.heappush(self._free, episode.slot)
        next_step = int(self.next_step[episode.slot])
        self.tombstones.add(episode.owner, episode.id, reason, time.time(), next_step)
        self._closed(episode, reason)

    def sweep(self) -> bool:
        """Closes what has expired, and forgets what closed long ago; whether there is more of it.

        It does a bounded part of that, so that a hundred thousand leases that run out together
        hold nobody up: who calls it lets others run before the next part.
        """
        expired = np.flatnonzero((self.deadline <= self.clock()) & ~self.busy)
        for slot in expired[:_AT_ONCE].tolist():
            self.close(self._open[slot], Problem.EPISODE_EXPIRED)
        return len(expired) > _AT_ONCE or self.tombstones.forget(_AT_ONCE) == _AT_ONCE

    # ── being busy ───────────────────────────────────────────────────────────────────────────────

    def when_free(self, slot: int, run: Callable[[], None]) -> None:
        """Runs something once the step of an episode that is under way is done."""
        self._waiting.setdefault(slot, []).append(run)

    def release(self, slots: Int[np.ndarray, " episode"] | slice) -> None:
        """Marks episodes as free, and runs what waited for that."""
        self.busy[slots] = False
        for slot in [slot for slot in self._waiting if not self.busy[slot]]:
            for run in self._waiting.pop(slot):
                run()

    # ── limits ───────────────────────────────────────────────────────────────────────────────────

    def _check_room(self, owner: str, count: int) -> None:
        if count > len(self._free):
            raise LimitReached(
                f"This server holds at most {self._limits.max_episodes} open episodes, "
                f"{len(self)} are open and {count} more were asked for. End some, or try again.",
                retry_after=1.0,
            )
        most, own = self._limits.max_episodes_per_caller, len(self._books.get(owner, ()))
        if own + count > most:
            raise LimitReached(
                f"A caller may have at most {most} open episodes, {own} are open and {count} more "
                "were asked for. End some.",
                retry_after=1.0,
            )

    def _check_same(
        self, episode: Episode, acceptable: set[int], rule: Rule, seed: int | None
    ) -> None:
        same = (episode.rule, episode.seed) == (rule, seed) and episode.version in acceptable
        if not same or self.next_step[episode.slot] or self.busy[episode.slot]:
            raise AlreadyExists(
                f"An episode {quoted(episode.id)} is open already, and has made steps or was "
                "started differently. Take another id, or end it first."
            )


def derive_key(seed: int, index: int) -> bytes:
    """The key of the i-th random stream of a seed."""
    numbers = seed.to_bytes(8, "little") + index.to_bytes(8, "little")
    return hashlib.blake2b(numbers, digest_size=8, person=b"big-episode").digest()
