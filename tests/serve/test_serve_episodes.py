"""An episode's life: how it starts, why it closes, what is remembered of it, and where it goes."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from bundles import EXACT
from cores import (
    END,
    GOLD,
    LISTEN,
    OPEN_2,
    S0,
    T1,
    T2,
    Clock,
    Serving,
    act,
    again,
    assert_same_details,
    clock_of,
    held,
    make_cores,
    problems,
    run,
    settings,
    start,
    walk,
)

from bigserve.convert import read_record, write_record
from bigserve.core import NO_DETAILS, NOTHING
from bigserve.episodes import UNKNOWN, Episode, Episodes, Rule, derive_key
from bigserve.errors import (
    AlreadyExists,
    EpisodeFault,
    LimitReached,
    NotBegun,
    Problem,
    Unavailable,
)
from bigserve.layout import KEY


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serving:
    return make_cores(monkeypatch, tmp_path)


def table(**limits: float) -> Episodes:
    """Episodes alone, of one version."""
    limits = {"max_episodes": 4, "max_episodes_per_caller": 3, "tombstone_lifetime": 30, **limits}
    config = settings(**limits).limits
    return Episodes(config, opened=lambda *_: None, closed=lambda *_: None, clock=Clock())


def begin(episodes: Episodes, ids: list[str] | int, owner: str = "me", **options) -> list[Episode]:
    given = {"version": 0, "acceptable": [0], "rule": Rule(), "seed": None, "lease": 10.0}
    return episodes.start(owner, ids, **{**given, **options})


# ── starting ─────────────────────────────────────────────────────────────────────────────────────


def test_ids_that_the_server_makes_are_unguessable_and_differ():
    ids = [episode.id for episode in begin(table(), 3)]
    assert len(set(ids)) == 3
    assert all(len(id) >= 22 for id in ids)  # 128 bits in base 64


def test_the_same_id_of_two_callers_is_two_episodes():
    episodes = table()
    mine, theirs = begin(episodes, ["a"])[0], begin(episodes, ["a"], owner="you")[0]
    assert mine.slot != theirs.slot
    assert episodes.get("me", "a") is mine and episodes.get("you", "a") is theirs
    assert episodes.get("she", "a") is None


def test_a_start_that_is_sent_again_starts_nothing():
    episodes = table()
    first = begin(episodes, ["a", "b"], seed=3, rule=Rule(epsilon=0.5))
    assert begin(episodes, ["a", "b"], seed=3, rule=Rule(epsilon=0.5)) == first
    assert len(episodes) == 2


@pytest.mark.parametrize(
    "changed",
    [{"seed": 4}, {"seed": None}, {"rule": Rule(temperature=1.0)}, {"acceptable": [1]}],
)
def test_a_start_that_differs_from_the_first_is_refused_as_a_whole(changed):
    episodes = table()
    begin(episodes, ["b"], seed=3)
    with pytest.raises(AlreadyExists, match="'b' is open already"):
        begin(episodes, ["a", "b"], **{"seed": 3, **changed})
    assert [episode.id for episode in episodes] == ["b"]


def test_an_episode_that_has_moved_on_or_closed_is_not_started_again():
    episodes = table()
    (moved, closed) = begin(episodes, ["a", "b"])
    episodes.advance(np.array([moved.slot]))
    episodes.close(closed, Problem.EPISODE_ENDED)
    with pytest.raises(AlreadyExists, match="has made steps"):
        begin(episodes, ["a"])
    with pytest.raises(AlreadyExists, match="'b' was ended by its owner at .* Take another id"):
        begin(episodes, ["c", "b"])
    assert len(episodes) == 1


def test_limits_hold_for_all_or_nothing():
    episodes = table()
    begin(episodes, 2)
    with pytest.raises(
        LimitReached, match="at most 3 open episodes, 2 are open and 2 more"
    ) as told:
        begin(episodes, 2)
    assert told.value.metadata == (("grpc-retry-pushback-ms", "1000"),)
    begin(episodes, 1, owner="you")
    with pytest.raises(LimitReached, match="at most 4 open episodes, 3 are open and 2 more"):
        begin(episodes, 2, owner="you")
    assert len(episodes) == 3


@run
async def test_a_retry_after_a_new_version_keeps_all_on_one(serving, tmp_path):
    """So that the version in the reply is that of each."""
    async with serving() as core:
        (old,) = start(core, ["a"])
        (tmp_path / "tiger.big").write_bytes(again(EXACT, 5))
        await core.models.reload()
        (new,) = start(core, ["new"])
        assert new.version != old.version
        assert {one.version for one in start(core, ["b", "a"])} == {old.version}
        with pytest.raises(AlreadyExists):
            start(core, ["a", "new"])


def test_random_streams_are_those_of_seed_and_place():
    keys = {derive_key(seed, index) for seed in (0, 1, 2**64 - 1) for index in range(50)}
    assert len(keys) == 150
    # Fixed for ever: seeds make actions repeatable across releases.
    assert derive_key(1, 2).hex() == "66f0c01efbe35546"


@run
async def test_an_episode_draws_from_the_stream_of_its_place(serving):
    async with serving() as core:
        start(core, ["a", "b"], seed=9, rule=Rule(temperature=1.0))
        rows = core.models[0].rows
        assert [rows[slot, KEY].tobytes() for slot in (0, 1)] == [derive_key(9, n) for n in (0, 1)]


# ── tickets and slots ────────────────────────────────────────────────────────────────────────────


def test_a_ticket_is_never_used_again_and_tells_the_slot():
    episodes = table()
    seen = set()
    for turn in range(10):
        (episode,) = begin(episodes, [str(turn)])
        assert episodes.find("me", [str(turn), "x"]) == [episode.ticket, UNKNOWN]
        assert episode.ticket % episodes.capacity == episode.slot == 0
        assert episode.ticket not in seen
        seen.add(episode.ticket)
        episodes.close(episode, Problem.EPISODE_ENDED)
        assert episodes.tickets[0] not in (episode.ticket, UNKNOWN)


def test_episodes_that_start_together_lie_together_in_whatever_order_others_ended():
    episodes = table()
    a, b, c = begin(episodes, ["a", "b", "c"])
    for episode in (b, a, c):
        episodes.close(episode, Problem.EPISODE_ENDED)
    assert [episode.slot for episode in begin(episodes, ["e", "f", "g"])] == [0, 1, 2]


@run
async def test_a_slot_that_is_used_again_has_nothing_of_the_episode_before(serving):
    async with serving() as core:
        (first,) = start(core, ["a"], rule=Rule(epsilon=0.25), seed=1)
        await walk(core, "a", [S0])
        await core.end("me", ["a"])
        (second,) = start(core, ["b"], owner="you")
        assert second.slot == first.slot
        ((record,), _) = await core.export("you", ["b"], close=False)
        assert (record.next_step, record.action, record.state) == (0, 0, {})
        assert record.observation is NOTHING and record.details is NO_DETAILS
        assert record.key != derive_key(1, 0)
        row = core.models[0].rows[second.slot].copy()
        row[KEY] = 0
        assert not row.any()
        assert await walk(core, "b", [S0, T1, T1], owner="you") == [LISTEN, LISTEN, OPEN_2]


# ── closing ──────────────────────────────────────────────────────────────────────────────────────


def test_tombstones_are_forgotten_after_their_lifetime():
    episodes = table()
    clock = episodes.clock
    assert isinstance(clock, Clock)
    first, second = begin(episodes, ["a", "b"])
    episodes.close(first, Problem.EPISODE_ENDED)
    clock.now += 9.5
    episodes.close(second, Problem.EPISODE_EVICTED)
    clock.now += 20.4
    episodes.sweep()
    assert episodes.explain_absence("me", "a").problem == Problem.EPISODE_ENDED
    clock.now += 0.1
    episodes.sweep()
    assert episodes.explain_absence("me", "a", 7)[:2] == (7, Problem.EPISODE_UNKNOWN)
    assert episodes.explain_absence("me", "b").problem == Problem.EPISODE_EVICTED
    assert episodes.explain_absence("you", "b").problem == Problem.EPISODE_UNKNOWN
    assert begin(episodes, ["a"])


def test_tombstones_are_at_most_so_many_and_the_oldest_go():
    episodes = table()
    for n in range(100):
        episodes.close(begin(episodes, [str(n)])[0], Problem.EPISODE_ENDED)
    assert [id for _, id, _ in episodes.tombstones] == [str(n) for n in range(88, 100)]


def test_a_sweep_closes_what_has_expired_and_is_not_busy():
    episodes = table()
    resting, busy = begin(episodes, ["a", "b"])
    begin(episodes, ["c"], lease=10.5)
    episodes.busy[busy.slot] = True
    assert isinstance(episodes.clock, Clock)
    episodes.clock.now += 10
    episodes.sweep()
    assert {episode.id for episode in episodes} == {"b", "c"}
    freed: list[str] = []
    episodes.when_free(busy.slot, lambda: freed.append("b"))
    assert not freed
    episodes.release(np.array([busy.slot]))
    assert freed == ["b"]
    episodes.sweep()
    assert {episode.id for episode in episodes} == {"c"}
    assert episodes.explain_absence("me", "a").problem == Problem.EPISODE_EXPIRED


@run
async def test_an_end_waits_for_the_step_under_way_and_can_be_sent_again(serving):
    async with serving() as core:
        start(core, ["a"])
        held(core.models[0]).gate.clear()
        acting = act(core, ["a"], [0], [S0])
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(core.end("me", ["a", "nobody"]))
        await asyncio.sleep(0.01)
        assert not ending.done()
        held(core.models[0]).gate.set()
        assert not (await acting).faults
        assert [(fault.place, fault.problem) for fault in await ending] == [
            (1, Problem.EPISODE_UNKNOWN)
        ]
        assert await core.end("me", ["a"]) == []
        assert len(core.episodes) == 0


# ── explain ──────────────────────────────────────────────────────────────────────────────────────


@run
async def test_an_explanation_is_of_the_last_step(serving):
    async with serving() as core:
        start(core, ["a"])
        with pytest.raises(NotBegun):
            await core.explain("me", "a")
        await walk(core, "a", [S0, T1])
        deadline = core.episodes.deadline[0]
        clock_of(core).now += 1
        found = await core.explain("me", "a")
        assert (found.step, found.action) == (1, LISTEN)
        np.testing.assert_allclose(found.details.belief, [0.85, 0.15], rtol=1e-6)
        assert found.explanation is not None and found.explanation.state == "T1"
        assert core.episodes.deadline[0] == deadline
        await core.end("me", ["a"])
        with pytest.raises(EpisodeFault) as told:
            await core.explain("me", "a")
        assert told.value.metadata == (("big-problem", "PROBLEM_EPISODE_ENDED"),)


# ── moving ───────────────────────────────────────────────────────────────────────────────────────


@run
async def test_an_episode_goes_on_elsewhere_to_the_last_bit(serving):
    rule = Rule(temperature=40.0)
    async with serving() as core, serving() as other:
        start(core, ["a"], rule=rule, seed=5, lease=0.7)
        start(other, ["filler"])
        await act(core, ["a"], [0], [S0])
        last = await act(core, ["a"], [1], [T1])
        ((record,), faults) = await core.export("me", ["a"], close=False)
        assert not faults
        record = read_record(write_record(record))
        assert await other.import_("me", record) is None
        assert await core.import_("me", record) is None  # it is here already
        retried = await act(other, ["a"], [1], [T1])
        assert retried.duplicates == [0]
        assert_same_details(retried, last)
        shown, action = T1, last.actions
        for step in range(2, 12):
            is_over = shown is GOLD or shown is END
            shown = END if is_over else T2 if action == LISTEN else GOLD
            one, two = [await act(where, ["a"], [step], [shown]) for where in (core, other)]
            assert not one.faults and not two.faults
            assert one.actions == two.actions
            assert_same_details(one, two)
            action = one.actions
        found = await core.import_("me", record)
        assert found is not None and found.problem == Problem.EPISODE_EXISTS
        refused = await other.import_("you", record)
        assert refused is not None and refused.problem == Problem.EPISODE_UNKNOWN
        missing = await other.import_("me", record._replace(version="0" * 64, id="b"))
        assert missing is not None and missing.problem == Problem.VERSION_MISSING


@run
async def test_an_export_can_close_and_come_back(serving):
    async with serving() as core:
        start(core, ["a"])
        await walk(core, "a", [S0, T1])
        ((record,), faults) = await core.export("me", ["a", "a"], close=True)
        assert [(f.place, f.problem) for f in faults] == [(1, Problem.EPISODE_EXPORTED)]
        assert problems(await act(core, ["a"], [2], [T1])) == {0: "EPISODE_EXPORTED"}
        assert await core.import_("me", record) is None
        assert (await act(core, ["a"], [2], [T1])).actions == [OPEN_2]


@run
async def test_a_record_stays_as_it_was_while_others_are_waited_for(serving):
    """The details of an episode are those of its state, whatever it does meanwhile."""
    async with serving() as core:
        start(core, ["a", "b"])
        await walk(core, "a", [S0, T1])
        held(core.models[0]).gate.clear()
        acting = act(core, ["b"], [0], [S0])
        await asyncio.sleep(0)
        exporting = asyncio.ensure_future(core.export("me", ["a", "b"], close=False))
        await asyncio.sleep(0)
        await core.end("me", ["a"])
        start(core, ["c"], owner="you")
        held(core.models[0]).gate.set()
        await acting
        ((a, _), _) = await exporting
        np.testing.assert_allclose(a.details.belief, [0.85, 0.15], rtol=1e-6)


@run
async def test_an_import_whose_version_goes_with_its_last_episode_is_refused(serving, tmp_path):
    async with serving() as core:
        start(core, ["a"], lease=10.0)
        ((record,), _) = await core.export("me", ["a"], close=False)
        (tmp_path / "tiger.big").write_bytes(again(EXACT, 5))
        await core.models.reload()
        clock_of(core).now += 10
        fault = await core.import_("me", record)
        assert fault is not None and fault.problem == Problem.VERSION_MISSING
        assert len(core.episodes) == 0


@run
async def test_all_are_exported_once_what_waits_is_done(serving):
    """A step that waits will be told that it was made: it must be in the snapshot."""
    async with serving() as core:
        start(core, ["a", "b"])
        held(core.models[0]).gate.clear()
        acting = [act(core, ["a"], [0], [S0])]
        await asyncio.sleep(0)
        acting.append(act(core, ["b"], [0], [S0]))
        acting.append(act(core, ["a"], [1], [T1]))
        core.stopped = core.draining = True
        exporting = asyncio.ensure_future(core.export_all())
        await asyncio.sleep(0)
        held(core.models[0]).gate.set()
        records = {record.id: record.next_step for record in await exporting}
        assert not any(acted.faults for acted in await asyncio.gather(*acting))
        assert records == {"a": 2, "b": 1}
        for call in (core.end("me", ["a"]), core.export("me", ["a"], close=True)):
            with pytest.raises(Unavailable):  # or it would go on here and elsewhere
                await call
        with pytest.raises(Unavailable):
            act(core, ["a"], [2], [T1])
        with pytest.raises(Unavailable):
            start(core, ["c"])
