"""What is remembered of closed episodes, for whom and how long; and what may come back over it."""

from pathlib import Path

import pytest
from cores import S0, T1, Clock, Serving, act, clock_of, make_cores, run, settings, start, walk

from bigserve import convert, describe
from bigserve.config import LimitsConfig
from bigserve.core import Core, Record
from bigserve.errors import AlreadyExists, ConfigError, Fault, Problem
from bigserve.tombstones import Tombstones


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serving:
    return make_cores(monkeypatch, tmp_path)


# ── a bound per caller ───────────────────────────────────────────────────────────────────────────


@run
async def test_no_caller_makes_the_server_forget_what_another_may_ask_for(serving):
    """An End that is sent again is no error, and an ended episode does not come back to life."""
    async with serving(max_tombstones_per_caller=64) as core:
        start(core, ["mine"])
        await core.end("me", ["mine"])
        for turn in range(40):  # more than the server has ever kept of all callers together
            ids = [f"{turn}-{n}" for n in range(60)]
            start(core, ids, owner="you")
            await core.end("you", ids)
        assert await core.end("me", ["mine"]) == []
        with pytest.raises(AlreadyExists, match="was ended by its owner"):
            start(core, ["mine"])
        assert len([1 for owner, _, _ in core.episodes.tombstones if owner == "you"]) == 64


def test_the_oldest_of_a_caller_go_first_however_often_an_id_closes():
    tombstones = Tombstones(lifetime=10, most=2, clock=Clock())
    for id in ("a", "b", "a", "c"):
        tombstones.add("me", id, Problem.EPISODE_ENDED, 0.0, 0)
    assert [id for _, id, _ in tombstones] == ["a", "c"]
    tombstones.discard("me", "a")
    tombstones.discard("me", "c")
    assert not tombstones._stores  # nothing is left of a caller of whom nothing is remembered


def test_what_may_be_open_is_remembered_if_all_of_it_closes_at_once():
    assert settings().limits.tombstones_per_caller == 4 * 64
    assert LimitsConfig(max_episodes=5, max_items=1).tombstones_per_caller == 20
    given = LimitsConfig(max_tombstones_per_caller=4096)
    assert describe.write_limits(given).max_tombstones_per_caller == 4096
    with pytest.raises(ConfigError, match=r"must be at least 4096, .*; got 4095\."):
        LimitsConfig(max_tombstones_per_caller=4095)


# ── what may come back ───────────────────────────────────────────────────────────────────────────


async def export(core: Core, *, close: bool) -> Record:
    ((record,), faults) = await core.export("me", ["a"], close=close)
    assert not faults
    return convert.read_record(convert.write_record(record))


async def import_again(core: Core, record: Record) -> Problem | None:
    fault: Fault | None = await core.import_("me", record)
    assert fault is None or fault.closed_at is not None
    return None if fault is None else fault.problem


@run
async def test_an_old_export_is_refused_over_the_tombstone_of_what_went_on(serving):
    async with serving() as core:
        start(core, ["a"])
        await walk(core, "a", [S0])
        old = await export(core, close=True)
        assert await import_again(core, old) is None
        assert not (await act(core, ["a"], [1], [T1])).faults
        await core.end("me", ["a"])
        assert await import_again(core, old) == Problem.EPISODE_ENDED
        assert len(core.episodes) == 0


@run
async def test_what_was_exported_comes_back_as_it_left_or_later_and_not_as_it_was(serving):
    async with serving() as core, serving() as other:
        start(core, ["a"])
        first = await export(core, close=False)
        await walk(core, "a", [S0])
        left = await export(core, close=True)
        assert await import_again(core, first) == Problem.EPISODE_EXPORTED
        fault = await core.import_("me", first)
        assert (
            fault is not None and "at step 1, or later, got an export from step 0" in fault.message
        )
        assert await other.import_("me", left) is None
        # Later, as it has become elsewhere.
        later = left._replace(next_step=5)
        assert await import_again(core, later) is None


@pytest.mark.parametrize("reason", [Problem.EPISODE_EXPIRED, Problem.EPISODE_EVICTED])
@run
async def test_what_the_server_closed_does_not_come_back_either(serving, reason):
    async with serving() as core:
        (episode,) = start(core, ["a"])
        await walk(core, "a", [S0])
        old = await export(core, close=False)
        core.episodes.close(episode, reason)
        assert await import_again(core, old) == reason
        clock_of(core).now += core.episodes._limits.tombstone_lifetime
        core.episodes.sweep()
        assert await import_again(core, old) is None  # once it is forgotten, nobody can tell


# ── seeds ────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_seeded_start_can_be_sent_again_after_a_move(serving):
    async with serving() as core:
        start(core, ["a"], seed=7)
        record = await export(core, close=True)
        assert record.seed == 7
        assert await import_again(core, record) is None
        (again,) = start(core, ["a"], seed=7)
        assert again.id == "a" and len(core.episodes) == 1
        with pytest.raises(AlreadyExists):
            start(core, ["a"], seed=8)


@run
async def test_an_export_of_an_older_release_has_no_seed_and_comes_in_all_the_same(serving):
    async with serving() as core:
        start(core, ["a"], seed=7)
        old = (await export(core, close=False))._replace(seed=None)
        assert await core.import_("me", old) is None  # it is here already, in the same state
        await core.export("me", ["a"], close=True)
        assert await core.import_("me", old) is None
        with pytest.raises(AlreadyExists):
            start(core, ["a"], seed=7)
