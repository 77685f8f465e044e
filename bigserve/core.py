"""What the calls do, in the domain's own words; one method a call.

All of it runs on the event loop, and waits where an episode has a step under way.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from bigserve.acts import Act
from bigserve.batching import Steps
from bigserve.config import ServerConfig
from bigserve.episodes import Episode, Episodes, Rule
from bigserve.errors import (
    EpisodeFault,
    Fault,
    LimitReached,
    NotBegun,
    Problem,
    Unavailable,
    quoted,
)
from bigserve.layout import Details
from bigserve.leaving import Streams
from bigserve.metrics import Metrics
from bigserve.models import Models, Version
from bigtrain.bundle import Explanation

PolicyState = dict[str, Shaped[np.ndarray, "..."]]
"""The arrays of a policy's state, by their path in it."""

NOTHING = np.zeros(0, np.float32)
NO_DETAILS = Details(NOTHING, 0)

_GLANCE = 0.005
"""Seconds between looks at whether all steps are done."""


class Record(NamedTuple):
    """All that the next step of an episode needs, wherever it is made.

    `state` is the policy's; `observation`, `action` and `details` are those of the last step. All
    are empty before the first.
    """

    id: str
    owner: str
    model: str
    version: str
    next_step: int
    rule: Rule
    lease: float
    key: bytes
    state: PolicyState
    observation: Shaped[np.ndarray, "..."]
    action: int
    details: Details
    seed: int | None = None


class Explained(NamedTuple):
    """The present moment of an episode."""

    version: Version
    step: int
    action: int
    details: Details
    explanation: Explanation | None


class Core:
    """The episodes and models of a server."""

    def __init__(self, config: ServerConfig, metrics: Metrics):
        self._metrics = metrics
        self.models = Models(config)
        self.episodes = Episodes(config.limits, opened=self._opened, closed=self._closed)
        self.steps = Steps(
            self.episodes,
            self.models,
            metrics,
            max_queued=config.limits.max_queued_steps,
            max_batch=config.batching.sizes[-1],
        )
        self.streams = Streams()
        self.draining = self.stopped = False

    def live(self) -> dict[str, int]:
        """How many episodes each model has."""
        counts = dict.fromkeys(self.models.names, 0)
        for version in self.models:
            counts[version.name] += version.live
        return counts

    # ── start and end ────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        owner: str,
        model: str,
        digest: str,
        ids: Sequence[str] | int,
        *,
        rule: Rule,
        seed: int | None,
        lease: float,
    ) -> tuple[Version, list[Episode]]:
        """Starts episodes on a version."""
        self._check_open()
        version = self.models.choose(model, digest)
        same_model = [v.number for v in self.models if v.name == version.name]
        episodes = self.episodes.start(
            owner,
            ids,
            version=version.number,
            acceptable=[version.number] if digest else same_model,
            rule=rule,
            seed=seed,
            lease=lease,
        )
        return self.models[episodes[0].version], episodes

    async def end(self, owner: str, ids: Sequence[str]) -> list[Fault]:
        """Ends episodes; those that have ended already are as good."""
        self._check_running()
        for id in ids:
            episode = await self._when_free(owner, id)
            if episode is not None:
                self.episodes.close(episode, Problem.EPISODE_ENDED)
        faults = (self.episodes.explain_absence(owner, id, i) for i, id in enumerate(ids))
        return [fault for fault in faults if fault.problem != Problem.EPISODE_ENDED]

    # ── act ──────────────────────────────────────────────────────────────────────────────────────

    def act(self, act: Act) -> None:
        """Takes steps in; what comes of them is delivered."""
        self._check_running()
        self.steps.submit(act)

    # ── explain ──────────────────────────────────────────────────────────────────────────────────

    async def explain(self, owner: str, id: str) -> Explained:
        """What an episode believes and expects after its last step."""
        episode = await self._when_free(owner, id)
        if episode is None:
            raise EpisodeFault(self.episodes.explain_absence(owner, id))
        slot, version = episode.slot, self.models[episode.version]
        step = int(self.episodes.next_step[slot]) - 1
        if step < 0:
            raise NotBegun(f"Episode {quoted(id)} must make a step before there is one to explain.")
        row, observation = version.rows[slot].copy(), version.layout.unpack(version.seen[slot])
        why = await version.worker.call(lambda: version.bundle.explain(observation))
        action, details = int(version.layout.actions(row)), version.layout.details(row)
        return Explained(version, step, action, details, why)

    # ── export and import ────────────────────────────────────────────────────────────────────────

    async def export(
        self, owner: str, ids: Sequence[str], *, close: bool
    ) -> tuple[list[Record], list[Fault]]:
        """The episodes as they stand, and those that are not open."""
        self._check_running()
        records, faults = [], []
        for index, id in enumerate(ids):
            episode = await self._when_free(owner, id)
            if episode is None:
                faults.append(self.episodes.explain_absence(owner, id, index))
                continue
            records.append(self._record(episode))
            if close:
                self.episodes.close(episode, Problem.EPISODE_EXPORTED)
        return records, faults

    async def export_all(self) -> list[Record]:
        """All open episodes, once no step waits: whoever sent it will be told that it was made."""
        while self.steps.queued:
            await asyncio.sleep(_GLANCE)
        while self.episodes.sweep():
            await asyncio.sleep(0)
        return [self._record(episode) for episode in self.episodes]

    async def import_all(
        self, owner: str, records: Sequence[Record | None]
    ) -> tuple[list[str], list[Fault]]:
        """Goes on with episodes of this owner here: the ids of those that do, and why others do
        not. None stands for one whose seal is broken."""
        ids, faults = list[str](), list[Fault]()
        for index, record in enumerate(records):
            if record is None:
                message = "The seal must be that of this state, by the key of this server."
                faults.append(Fault(index, Problem.SEAL_BROKEN, message))
                continue
            try:
                fault = await self.import_(owner, record)
            except LimitReached as error:
                wait, overloaded = error.retry_after or 0.0, Problem.ITEM_OVERLOADED
                fault = Fault(index, overloaded, str(error), retry_after=wait)
            if fault is None:
                ids.append(record.id)
            else:
                faults.append(fault._replace(place=index))
        return ids, faults

    async def import_(self, owner: str | None, record: Record) -> Fault | None:
        """Goes on with an episode here, or says why not. Without an owner anybody's is welcome.

        An episode that has closed here goes on only if an Export closed it, and not from before
        the step at which it left: else steps would count twice.
        """
        self._check_open()
        if owner not in (None, record.owner):
            return self.episodes.deny(record.id)
        present = await self._when_free(record.owner, record.id)
        # Only now, since its version may have gone with an episode that has just expired.
        version = self.models.find(record.model, record.version)
        if version is None:
            message = (
                f"Version {record.version} of model {quoted(record.model)} must be loaded here for "
                "the episode to go on. Load it, then import again."
            )
            return Fault(0, Problem.VERSION_MISSING, message)
        if present is not None:
            if _equal(self._record(present), record):
                return None
            message = (
                f"An episode {quoted(record.id)} is open here, in another state. End it first."
            )
            return Fault(0, Problem.EPISODE_EXISTS, message)
        if (fault := self._check_newer(record)) is not None:
            return fault
        slot = self.episodes.open(
            record.owner,
            record.id,
            version.number,
            record.rule,
            record.lease,
            record.key,
            seed=record.seed,
            next_step=record.next_step,
        ).slot
        if record.next_step:
            version.layout.resume(
                version.rows[slot], record.next_step, record.action, record.state, record.details
            )
            version.seen[slot] = version.layout.pack(record.observation[None])[0]
        return None

    def _record(self, episode: Episode) -> Record:
        slot, version = episode.slot, self.models[episode.version]
        row, next_step = version.rows[slot].copy(), int(self.episodes.next_step[slot])
        begun, layout = next_step > 0, version.layout
        return Record(
            episode.id,
            episode.owner,
            version.name,
            version.digest,
            next_step,
            episode.rule,
            episode.lease,
            layout.key(row),
            layout.state(row) if begun else {},
            layout.unpack(version.seen[slot]) if begun else NOTHING,
            int(layout.actions(row)),
            layout.details(row) if begun else NO_DETAILS,
            episode.seed,
        )

    def _check_newer(self, record: Record) -> Fault | None:
        """What is wrong with an import over the tombstone of the same episode, if there is one."""
        tombstone = self.episodes.tombstones.get(record.owner, record.id)
        if tombstone is None:
            return None
        fault = self.episodes.explain_absence(record.owner, record.id)
        if tombstone.reason != Problem.EPISODE_EXPORTED:
            return fault
        if record.next_step >= tombstone.next_step:
            return None
        message = (
            f"Episode {quoted(record.id)} must come back as it left, at step "
            f"{tombstone.next_step}, or later, got an export from step {record.next_step}. Import "
            "the newer one."
        )
        return fault._replace(message=message)

    # ── what they share ──────────────────────────────────────────────────────────────────────────

    async def _when_free(self, owner: str, id: str) -> Episode | None:
        """An open episode, once no step of it is under way."""
        while True:
            episode = self.episodes.get(owner, id)
            if episode is None or not self.episodes.busy[episode.slot]:
                return episode
            free = asyncio.Event()
            self.episodes.when_free(episode.slot, free.set)
            await free.wait()

    def _check_open(self) -> None:
        if self.draining:
            raise Unavailable("The server is shutting down. Try another, or again in a while.")

    def _check_running(self) -> None:
        if self.stopped:
            raise Unavailable("The server is shutting down. Send it again in a while.")

    def _opened(self, episode: Episode, key: bytes) -> None:
        version = self.models[episode.version]
        version.layout.begin(version.rows[episode.slot], key, *episode.rule)
        version.live += 1
        self._metrics.started(version.name, 1)

    def _closed(self, episode: Episode, reason: Problem) -> None:
        version = self.models[episode.version]
        version.live -= 1
        self._metrics.closed(version.name, reason.name.removeprefix("EPISODE_").lower(), 1)
        self.models.let_go(version)


def _equal(one: Record, other: Record) -> bool:
    """Whether both go on in the same way; the seed is only for Start, and older exports lack it."""

    def parts(record: Record) -> tuple[list, list]:
        *plain, state, observation, action, details, _ = record
        paths, leaves = sorted(state), [state[path] for path in sorted(state)]
        return [*plain, action, paths], [observation, details.table, *leaves]

    (plain, arrays), (other_plain, other_arrays) = parts(one), parts(other)
    return plain == other_plain and all(map(np.array_equal, arrays, other_arrays))
