"""Gathers Acts, has the engine step them off the event loop, and tells everybody what came of it.

Acts wait at their version until its engine is free; then as many as fit go on together. The common
case, where every item of them is the next step of its episode, goes through whole columns at once;
anything else goes by `bigserve.rules`, item by item. All of it runs on the event loop but for the
step of the engine.
"""

import asyncio
import collections
import functools
import logging
import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from bigserve import rules
from bigserve.acts import Act, Acted, Answer, Merged, Waiting
from bigserve.episodes import UNKNOWN, Episodes
from bigserve.errors import Fault, Problem
from bigserve.layout import Details
from bigserve.logs import incident
from bigserve.metrics import Metrics
from bigserve.models import Models, Version
from bigserve.worker import Done
from bigtrain.policy import BLOCK

log = logging.getLogger("bigserve")

_PATIENCE = 0.05
"""Seconds after which to come again when too many steps wait; a queue is through in less."""


class _Part(NamedTuple):
    """The items of one Act that go into a batch: their places in the Act, None for all of them."""

    answer: Answer
    places: list[int] | None
    size: int


class _Batch(NamedTuple):
    """Steps of different episodes of one version."""

    version: Version
    parts: list[_Part]
    slots: Int[np.ndarray, " step"]
    rows: Int[np.ndarray, " step"] | slice
    seen: Int[np.ndarray, "step word"]
    arrived: float


class Steps:
    """Applies the rules of the contract to Acts."""

    def __init__(
        self,
        episodes: Episodes,
        models: Models,
        metrics: Metrics,
        *,
        max_queued: int,
        max_batch: int,
    ):
        self._episodes = episodes
        self._models = models
        self._metrics = metrics
        self._max_queued = max_queued
        self._max_batch = max_batch
        self.queued = 0

    def submit(self, act: Act) -> None:
        """Takes an Act in, and delivers what comes of it, now or later.

        Raises what fails the call as a whole: nothing has changed then, and nothing is delivered.
        """
        episodes, answer = self._episodes, Answer(act)
        tickets = episodes.find(act.owner, act.ids)
        first = next((ticket for ticket in tickets if ticket != UNKNOWN), None)
        if first is None:
            repeated = rules.find_repeated(act.ids)
            answer.faults += [
                repeated.get(place) or episodes.explain_absence(act.owner, id, place)
                for place, id in enumerate(act.ids)
            ]
            self._deliver(answer, None)
            return
        version = self._models[int(episodes.version[first % episodes.capacity])]
        data = act.observe(version.bundle.observation)
        if self.queued + len(act.ids) > self._max_queued:
            message = f"At most {self._max_queued} steps may wait, and so many do. Send it again."
            self._refuse(answer, version, Problem.ITEM_OVERLOADED, message)
        else:
            self._enqueue(version, Waiting(answer, tickets, data))

    def _enqueue(self, version: Version, waiting: Waiting) -> None:
        self._count(waiting)
        version.waiting.append(waiting)
        if not version.running:  # what else this turn of the event loop brings goes along
            version.running = True
            asyncio.get_running_loop().call_soon(self._run, version)

    def _count(self, waiting: Waiting) -> None:
        """Counts an Act among those that wait."""
        waiting.answer.queued = len(waiting.tickets)
        self.queued += waiting.answer.queued

    # ── batches ──────────────────────────────────────────────────────────────────────────────────

    def _run(self, version: Version) -> None:
        """Sends the next batch to the engine, if there is one."""
        while version.waiting:
            taken = self._take(version)
            try:
                batch = self._make_batch(version, taken)
            except Exception as error:  # a fault of ours; those after it shall not wait for ever
                self._fail(
                    version, [one.answer for one in taken if one not in version.waiting], error
                )
                continue
            if batch is None:
                continue
            self._episodes.busy[batch.rows] = True
            given = version.layout.give(version.rows[batch.rows], batch.seen)
            version.worker.submit(
                functools.partial(version.engine.step, given),
                functools.partial(self._finish, batch),
            )
            return
        version.running = False

    def _take(self, version: Version) -> list[Waiting]:
        """The Acts that have waited longest, as many as fit into a batch."""
        waiting = version.waiting
        taken = [waiting.popleft()]
        count = len(taken[0].tickets)
        while waiting and count + len(waiting[0].tickets) <= self._max_batch:
            taken.append(waiting.popleft())
            count += len(taken[-1].tickets)
        return taken

    def _make_batch(self, version: Version, taken: list[Waiting]) -> _Batch | None:
        """What there is to step in these Acts, if anything; the rest is delivered or waits on."""
        now = time.monotonic()
        tickets = np.array([ticket for one in taken for ticket in one.tickets])
        steps = np.array([step for one in taken for step in one.act.steps], np.uint64)
        count = len(tickets)
        observations = version.view(b"".join([one.data for one in taken]), count)
        slots = tickets % self._episodes.capacity
        rows = _rows(slots)
        if (
            self._are_next(version, rows, tickets, steps, observations)
            and (isinstance(rows, slice) or len(set(tickets.tolist())) == count)
            and min([one.act.deadline for one in taken]) > now
        ):
            parts = [_Part(one.answer, None, len(one.tickets)) for one in taken]
        else:
            parts, chosen = self._pick(version, taken, observations, now)
            if not parts:
                return None
            slots, observations = slots[chosen], observations[chosen]
            rows = _rows(slots)
        seen = version.layout.pack(observations)
        return _Batch(version, parts, slots, rows, seen, taken[0].act.arrived)

    def _are_next(
        self,
        version: Version,
        rows: Int[np.ndarray, " step"] | slice,
        tickets: Int[np.ndarray, " step"],
        steps: Int[np.ndarray, " step"],
        observations: Shaped[np.ndarray, "step ..."],
    ) -> bool:
        """Whether all items are the next steps of open episodes of this version."""
        episodes = self._episodes
        fine = (
            (episodes.tickets[rows] == tickets)
            & (episodes.version[rows] == version.number)
            & (episodes.next_step[rows] == steps)
            & (episodes.deadline[rows] > episodes.clock())
            & rules.are_valid(observations, version.bundle.observation)
        )
        return bool(fine.all())

    def _finish(self, batch: _Batch, done: Done) -> None:
        """Writes down what the engine did, and tells everybody."""
        version, size = batch.version, len(batch.slots)
        if done.error is not None:
            self._fail(version, [part.answer for part in batch.parts], done.error)
        else:
            self._apply(batch, done.result)
            padded, waited = -(-size // BLOCK) * BLOCK, done.began - batch.arrived
            self._metrics.batch(version.name, size, padded, waited, done.ended - done.began)
        self._episodes.release(batch.rows)
        self._run(version)

    def _fail(self, version: Version, answers: list[Answer], error: Exception) -> None:
        id = incident()
        log.error("a step failed", exc_info=error, extra={"incident": id})
        for answer in answers:
            message = f"The server failed; its log has it as {id}."
            self._refuse(answer, version, Problem.INTERNAL, message)

    def _apply(self, batch: _Batch, stepped: Int[np.ndarray, "step word"]) -> None:
        version, rows, seen = batch.version, batch.rows, batch.seen
        taken, impossible = version.layout.split(stepped)
        surprised = np.count_nonzero(impossible)
        if surprised:
            fine = impossible == 0
            rows, seen = batch.slots[fine], seen[fine]
            version.rows[rows] = taken[fine]
            taken = np.where(fine[:, None], taken, 0)
        else:
            version.rows[rows] = taken
        version.seen[rows] = seen
        self._episodes.advance(rows)
        actions, details = version.layout.actions(taken), version.layout.details(taken)
        start = 0
        for answer, places, size in batch.parts:
            part = slice(start, start + size)
            if surprised:
                for row in np.flatnonzero(impossible[part]).tolist():
                    place = row if places is None else places[row]
                    answer.faults.append(Fault(place, *rules.IMPOSSIBLE))
            self._deliver(answer, version, places, actions[part], details.select(part))
            start += size

    # ── Acts where not everything is plain ───────────────────────────────────────────────────────

    def _pick(
        self,
        version: Version,
        taken: list[Waiting],
        observations: Shaped[np.ndarray, "step ..."],
        now: float,
    ) -> tuple[list[_Part], list[int]]:
        """The parts of a batch, and which of all the items are in it. The others are delivered."""
        parts, chosen, start = list[_Part](), list[int](), 0
        used, again = set[int](), list[Waiting]()
        for one in taken:
            end, answer = start + len(one.tickets), one.answer
            if used.intersection(one.tickets):  # it must see what the one before it does
                again.append(one)
            elif one.act.deadline <= now:
                message = "Its time ran out before its batch began. Send it again."
                self._refuse(answer, version, Problem.ITEM_TOO_LATE, message)
            elif own := self._split(one, version):
                again.append(own)
            elif places := rules.sort_out(self._episodes, version, one, observations[start:end]):
                parts.append(_Part(answer, places, len(places)))
                chosen += [start + place for place in places]
            else:
                self._deliver(answer, version)
            used.update(one.tickets)
            start = end
        version.waiting.extendleft(reversed(again))
        return parts, chosen

    def _split(self, whole: Waiting, lead: Version) -> Waiting | None:
        """If there are several versions in an Act, hands their items on, but for the lead's own."""
        act, count, episodes = whole.act, len(whole.tickets), self._episodes
        groups = dict[int, list[int]]()
        for place, ticket in enumerate(whole.tickets):
            slot = ticket % episodes.capacity
            is_open = episodes.tickets[slot] == ticket
            number = int(episodes.version[slot]) if is_open else lead.number
            groups.setdefault(number, []).append(place)
        if len(groups) == 1:
            return None
        rows = lead.view(whole.data, count)
        nothing = Acted(np.zeros(count, np.int32), lead.layout.no_details(count), [], [])
        merged = Merged(act, nothing, len(groups))
        self._drop(whole.answer)
        parts = dict[int, Waiting]()
        for number, places in groups.items():
            part = act._replace(
                ids=[act.ids[place] for place in places],
                steps=[act.steps[place] for place in places],
                deliver=functools.partial(merged.add, places),
            )
            tickets = [whole.tickets[place] for place in places]
            parts[number] = Waiting(Answer(part), tickets, rows[places].tobytes())
        own = parts.pop(lead.number)
        self._count(own)
        for number, part in parts.items():
            version = self._models[number]
            if version.fits(lead):
                self._enqueue(version, part)
            else:
                message = f"Its specs must be those of {lead.name!r}, as item 0 is. Send it alone."
                self._refuse(part.answer, None, Problem.ITEM_INVALID, message)
        return own

    # ── delivering ───────────────────────────────────────────────────────────────────────────────

    def _refuse(
        self, answer: Answer, version: Version | None, problem: Problem, message: str
    ) -> None:
        """Refuses every item for one reason."""
        wait = _PATIENCE if problem == Problem.ITEM_OVERLOADED else 0.0
        answer.faults = [
            Fault(place, problem, message, retry_after=wait) for place in range(len(answer.act.ids))
        ]
        self._deliver(answer, version)

    def _deliver(
        self,
        answer: Answer,
        version: Version | None,
        places: list[int] | None = None,
        actions: Int[np.ndarray, " part"] | None = None,
        details: Details | None = None,
    ) -> None:
        """Delivers what came of an Act: of the items in `places`, of duplicates, and of faults.

        Once: what has been delivered is not delivered again.
        """
        if answer.delivered:
            return
        self._drop(answer)
        act, faults, duplicates = answer.act, answer.faults, answer.duplicates
        count, failed = len(act.ids), {}
        if faults or duplicates or actions is None:
            faults.sort()
            failed = collections.Counter(fault.problem.name for fault in faults)
            whole = np.zeros(count, np.int32)
            whole_details = None if version is None else version.layout.no_details(count)
            if actions is not None:
                chosen = slice(None) if places is None else places
                whole[chosen] = actions
            if whole_details is not None and version is not None:
                if details is not None:
                    whole_details.put(slice(None) if places is None else places, details)
                for place, row in duplicates.items():
                    whole[place] = version.layout.actions(row)
                    whole_details.put(place, version.layout.details(row))
            actions, details = whole, whole_details
        applied = count - len(faults) - len(duplicates)
        name = "" if version is None else version.name
        self._metrics.steps(name, applied, len(duplicates), failed)
        try:
            act.deliver(Acted(actions, details, faults, sorted(duplicates)))
        except Exception as error:  # nobody else shall wait for ever
            log.error("an answer could not be delivered", exc_info=error)

    def _drop(self, answer: Answer) -> None:
        """Counts an Act out of those that wait; nothing more will be delivered of it."""
        self.queued -= answer.queued
        answer.queued, answer.delivered = 0, True


def _rows(slots: Int[np.ndarray, " step"]) -> Int[np.ndarray, " step"] | slice:
    """The same rows by a slice where it is one, which needs no copy.

    It is one for a single episode, and mostly for those that were started together.
    """
    first, count = int(slots[0]), len(slots)
    if count == 1 or (slots[-1] == first + count - 1 and (slots[1:] - slots[:-1] == 1).all()):
        return slice(first, first + count)
    return slots
