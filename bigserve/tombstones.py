"""What is remembered of closed episodes: why, when and at which step they closed.

Each caller has a store of its own, so that nothing one caller does makes the server forget what
another may still ask for.
"""

import collections
from collections.abc import Callable, Iterator
from typing import NamedTuple, final

from bigserve.errors import Problem


class Tombstone(NamedTuple):
    """Why and when, by the wall clock, an episode closed, and the step that was next."""

    reason: Problem
    closed_at: float
    next_step: int
    forgotten_at: float


@final
class Tombstones:
    """The tombstones of all callers: each is kept for `lifetime`, and the last `most` of a caller.

    Ordered dictionaries, since to find the first key of a plain one whose first keys were deleted
    takes as long as there were such keys.
    """

    def __init__(self, *, lifetime: float, most: int, clock: Callable[[], float]):
        self._lifetime, self._most, self._clock = lifetime, most, clock
        self._stores: dict[str, collections.OrderedDict[str, Tombstone]] = {}

    def __iter__(self) -> Iterator[tuple[str, str, Tombstone]]:
        """Owner, id and tombstone; of each owner the oldest first."""
        for owner, store in self._stores.items():
            for id, tombstone in store.items():
                yield owner, id, tombstone

    def get(self, owner: str, id: str) -> Tombstone | None:
        """The tombstone of an episode, if there is one."""
        store = self._stores.get(owner)
        return None if store is None else store.get(id)

    def add(self, owner: str, id: str, reason: Problem, closed_at: float, next_step: int) -> None:
        """Remembers an episode; where that is one too many, the owner's oldest is forgotten."""
        store = self._stores.setdefault(owner, collections.OrderedDict())
        store[id] = Tombstone(reason, closed_at, next_step, self._clock() + self._lifetime)
        store.move_to_end(id)
        if len(store) > self._most:
            store.popitem(last=False)

    def discard(self, owner: str, id: str) -> None:
        """Forgets an episode that is open again, if it was remembered."""
        store = self._stores.get(owner)
        if store is not None and store.pop(id, None) is not None and not store:
            del self._stores[owner]

    def forget(self, most: int) -> int:
        """Forgets at most so many whose time is over; how many they were."""
        now, count = self._clock(), 0
        for owner, store in list(self._stores.items()):
            while store and count < most and next(iter(store.values())).forgotten_at <= now:
                store.popitem(last=False)
                count += 1
            if not store:
                del self._stores[owner]
        return count
