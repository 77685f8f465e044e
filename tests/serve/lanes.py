"""Clients that do at random all that a client can do, and compare every reply with the rules.

A lane owns its episodes, so it knows the order of their steps; its messages mix them, and many
lanes run at once. What a lane does follows from its seed, but for what depends on timing.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from dataclasses import dataclass

import grpc.aio
import numpy as np
import tiger
from model import Refusal, Rules
from subject import Subject
from wire import CALL_SECONDS, GREEDY, Row, act_request, duration, rows, unpack

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc

SHORT_LEASE = 1.0

RULES = (
    GREEDY,
    pb.ActionRule(softmax=pb.ActionRule.Softmax(temperature=50)),
    pb.ActionRule(epsilon_greedy=pb.ActionRule.EpsilonGreedy(epsilon=0.5)),
)

CLOSED = {
    pb.PROBLEM_EPISODE_EXPIRED,
    pb.PROBLEM_EPISODE_ENDED,
    pb.PROBLEM_EPISODE_EXPORTED,
}

# In float32 and in log space a step adds an error of a few 2^-24 times log-odds of at most 21, a
# quarter of which reaches a probability.
MAX_STEPS = 16
BELIEF_TOLERANCE = 2e-5

Item = tuple[str, int, Hashable]


@dataclass
class Track:
    """How an episode was started, and what came back for each of its steps."""

    request: pb.StartRequest
    place: int
    rows: list[Row]


class Stream:
    """An ActStream on which many may wait for their replies at once."""

    def __init__(self, stub: policy_pb2_grpc.PolicyStub):
        self._requests: asyncio.Queue[pb.ActRequest] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[pb.ActReply]] = {}
        self._call = stub.ActStream(self._sent())
        self._reader = asyncio.create_task(self._read())

    def ask(self, request: pb.ActRequest) -> asyncio.Future[pb.ActReply]:
        """The reply to come; a ConnectionError if the stream is cut before."""
        reply = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = reply
        self._requests.put_nowait(request)
        return reply

    def cut(self, error: Exception | None = None) -> None:
        """Gives the stream up, with whatever is under way on it."""
        self._call.cancel()
        self._reader.cancel()
        for request_id in list(self._waiting):
            self._resolve(request_id, error or ConnectionError())

    async def _sent(self) -> AsyncIterator[pb.ActRequest]:
        while True:
            yield await self._requests.get()

    async def _read(self) -> None:
        try:
            async for reply in self._call:
                self._resolve(reply.request_id, reply)
        except grpc.aio.AioRpcError as error:
            self.cut(error)

    def _resolve(self, request_id: int, result: pb.ActReply | Exception) -> None:
        reply = self._waiting.pop(request_id)
        if reply.cancelled():  # whoever waited has failed, and that is reported
            return
        if isinstance(result, Exception):
            reply.set_exception(result)
        else:
            reply.set_result(result)


class Lane:
    """One client. `seen` counts what came back: by problem, and how often which way."""

    def __init__(self, stub: policy_pb2_grpc.PolicyStub, subject: Subject, *, size: int, seed: int):
        self._stub, self._subject, self._size = stub, subject, size
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._rules = Rules()
        self._pool: list[str] = []
        self._closed: list[str] = []
        self._stream = Stream(stub)
        self.tracks: dict[str, Track] = {}
        self.seen: Counter[str] = Counter()

    async def run(self, num_rounds: int) -> None:
        resting = asyncio.create_task(self._abandon())
        for _ in range(num_rounds):
            await self._fill()
            await self._act_on_some()
            await self._random.choice([self._end_some, self._move_some, self._act_on_some])()
        await resting
        await self._end(self._pool)
        self._stream.cut()

    # Starting and closing

    async def _fill(self) -> None:
        await self._retire([e for e in self._pool if len(self.states(e)) >= MAX_STEPS])
        missing = self._size - len(self._pool)
        if missing:
            self._pool += await self._start(self._random.randint(1, missing))

    async def _start(self, count: int, **fields: object) -> list[str]:
        own = [f"{self._random.getrandbits(64):x}" for _ in range(count)]
        request = pb.StartRequest(
            model=self._subject.model.name,
            num_episodes=count,
            episode_ids=own if self._random.random() < 0.5 else [],
            seed=self._random.getrandbits(32),
            rule=self._random.choice(RULES),
            **fields,  # pyright: ignore[reportArgumentType]
        )
        reply = await self._stub.Start(request, timeout=CALL_SECONDS)
        greedy = request.rule.HasField("greedy")
        for place, episode in enumerate(reply.episode_ids):
            self._rules.start(episode, tiger.greedy if greedy else tiger.drawing)
            self.tracks[episode] = Track(request, place, [])
        return list(reply.episode_ids)

    async def _abandon(self) -> None:
        """Lets leases run out, after a step. A step that a busy machine delays may be too late."""
        started = time.time()
        ids = await self._start(self._random.randint(1, 5), lease=duration(SHORT_LEASE))
        items = [(episode, 0, "S0") for episode in ids]
        reply = await self._stub.Act(self._request(items), timeout=CALL_SECONDS)
        if {error.problem for error in reply.errors} == {pb.PROBLEM_EPISODE_EXPIRED}:
            assert time.time() >= started + SHORT_LEASE, "A lease ran out too early."
        else:
            self._check(reply, items)
        await asyncio.sleep(SHORT_LEASE + 0.3)
        for episode in ids:
            self._rules.close(episode, pb.PROBLEM_EPISODE_EXPIRED)
        late = [(episode, 1, "T1") for episode in ids]
        reply = await self._stub.Act(self._request(late), timeout=CALL_SECONDS)
        self._check(reply, late)
        for error in reply.errors:
            closed_at = error.closed_at.ToNanoseconds() / 1e9
            assert started + SHORT_LEASE <= closed_at <= time.time()
        self._closed += ids

    async def _end_some(self) -> None:
        await self._end([*self._some(self._closed)[:20], "nobody's"])
        await self._retire(self._some(self._pool))

    async def _retire(self, ids: list[str]) -> None:
        await self._end(ids)
        self._pool = [episode for episode in self._pool if episode not in ids]
        self._closed += ids

    async def _end(self, ids: Sequence[str]) -> None:
        want = {i: self._rules.end(episode) for i, episode in enumerate(ids)}
        reply = await self._stub.End(pb.EndRequest(episode_ids=ids), timeout=CALL_SECONDS)
        got = {error.index: error.problem for error in reply.errors}
        assert got == {i: problem for i, problem in want.items() if problem is not None}

    async def _move_some(self) -> None:
        """Out and in again; some copies are tampered with, and some come back too late."""
        ids = self._some(self._pool)
        close = self._random.random() < 0.5
        request = pb.ExportRequest(episode_ids=ids, close=close)
        exported = await self._stub.Export(request, timeout=CALL_SECONDS)
        assert not exported.errors
        copies = [self._rules.export(episode, close=close) for episode in ids]
        await self._act(ids)
        want = {}
        for i, (sealed, episode, copy) in enumerate(
            zip(exported.episodes, ids, copies, strict=True)
        ):
            if self._random.random() < 0.2:
                sealed.seal = bytes(32)
                want[i] = pb.PROBLEM_SEAL_BROKEN
            else:
                assert not isinstance(copy, int)
                want[i] = self._rules.take_in(episode, copy)
        imported = await self._stub.Import(
            pb.ImportRequest(episodes=exported.episodes), timeout=CALL_SECONDS
        )
        got = {error.index: error.problem for error in imported.errors}
        assert got == {i: problem for i, problem in want.items() if problem is not None}
        assert list(imported.episode_ids) == [ids[i] for i, bad in want.items() if bad is None]
        self.seen.update(pb.Problem.Name(problem) for problem in got.values())
        self._closed += [episode for episode in ids if self._rules.problem_of(episode)]
        self._pool = [episode for episode in self._pool if not self._rules.problem_of(episode)]

    # Acting

    async def _act_on_some(self) -> None:
        await self._act(self._some(self._pool) + self._some(self._closed)[:3])

    async def _act(self, ids: Sequence[str]) -> None:
        """A step of each, in messages of random size, all under way at once."""
        ids = self._random.sample(ids, len(ids))
        messages = []
        while ids:
            size = self._random.randint(1, len(ids))
            messages.append([item for episode in ids[:size] for item in self._items(episode)])
            self._random.shuffle(messages[-1])
            ids = ids[size:]
        await asyncio.gather(*map(self._send, messages))

    def _items(self, episode: str) -> Iterator[Item]:
        """What to send of an episode; mostly the step that is expected."""
        history = self._rules.episodes[episode].history
        expected = len(history)
        come = tiger.possible(history) if history else ["S0", *tiger.STATES]
        proper = (episode, expected, self._random.choice(come))
        other = self._random.choice(tiger.STATES)
        match self._random.randint(0, 20):
            case 0 | 1 if expected:
                yield episode, expected - 1, history[-1][0]
            case 2 if expected:
                yield episode, expected - 1, other
            case 3:
                yield episode, expected + self._random.randint(1, 9), other
            case 4 if expected > 1:
                yield episode, self._random.randint(0, expected - 2), other
            case 5 if expected:
                yield episode, expected, self._random.choice(sorted({*tiger.STATES} - {*come}))
            case 6:
                yield episode, expected, tiger.BROKEN
            case 7:
                yield proper
                yield proper
            case 8:
                yield "nobody's", expected, other
            case _:
                yield proper

    def _request(self, items: Sequence[Item]) -> pb.ActRequest:
        ids, steps, seen = zip(*items, strict=True)
        broken = tuple(np.full_like(entry, np.nan) for entry in self._subject.first())
        observations = [
            broken if state == tiger.BROKEN else self._subject.see(state) for state in seen
        ]
        return act_request(ids, steps, observations, request_id=next(self._numbers))

    async def _send(self, items: Sequence[Item]) -> None:
        """Sends a message, one way or the other; now and then the first reply is lost."""
        request = self._request(items)
        (way,) = self._random.choices(["call", "stream", "lost call", "cut stream"], [9, 9, 1, 1])
        if way == "call":
            reply = await self._stub.Act(request, timeout=CALL_SECONDS)
            return self._check(reply, items)
        if way == "lost call":
            call = self._stub.Act(request, timeout=CALL_SECONDS)
            await asyncio.sleep(self._random.uniform(0, 0.005))
            call.cancel()
        else:
            stream = self._stream
            if way == "cut stream":
                self._stream = Stream(self._stub)
                loop = asyncio.get_running_loop()
                loop.call_later(self._random.uniform(0, 0.005), stream.cut)
            try:
                reply = await asyncio.wait_for(stream.ask(request), CALL_SECONDS)
                return self._check(reply, items)
            except ConnectionError:
                pass
        self.seen["lost"] += 1
        reply = await self._stub.Act(request, timeout=CALL_SECONDS)
        self._check(reply, items, retried=True)

    def _check(self, reply: pb.ActReply, items: Sequence[Item], *, retried: bool = False) -> None:
        """Every row and every error, against the rules; what was applied goes on the track."""
        outcomes = self._rules.act(items, unpack(reply.actions).tolist())
        errors = {error.index: error for error in reply.errors}
        assert len(errors) == len(reply.errors)
        for i, (outcome, row) in enumerate(zip(outcomes, rows(reply), strict=True)):
            what = (items[i], outcome, errors.get(i))
            if isinstance(outcome, Refusal):
                error = errors.pop(i, None)
                assert error is not None, what
                assert error.problem == outcome.problem, what
                assert error.expected_step == outcome.expected_step, what
                assert error.HasField("closed_at") == (error.problem in CLOSED), what
                assert not any(map(any, row)), "The rows of items that failed are zero."
                self.seen[pb.Problem.Name(error.problem)] += 1
                continue
            assert i not in errors, what
            track = self.tracks[items[i][0]]
            answered_again = i in reply.duplicates
            assert answered_again or not outcome.duplicate, what
            assert retried or not answered_again or outcome.duplicate, what
            self.seen["again" if answered_again else "applied"] += 1
            if not outcome.duplicate:
                track.rows.append(row)
            assert row == track.rows[-1], what
            assert unpack(reply.actions)[i] in outcome.decision.actions, what
            belief = unpack(reply.belief)[i]
            np.testing.assert_allclose(belief, outcome.decision.belief, atol=BELIEF_TOLERANCE)
        assert not errors

    def _some(self, ids: Sequence[str]) -> list[str]:
        return self._random.sample(ids, self._random.randint(0, len(ids)))

    def states(self, episode: str) -> list[str]:
        """What an episode has seen."""
        return [str(seen) for seen, _ in self._rules.episodes[episode].history]
