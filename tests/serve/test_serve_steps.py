"""The rules of a step, each by itself: what applies, what is answered again, what is refused."""

import asyncio
import math
import time
from pathlib import Path

import numpy as np
import pytest
from bundles import EXACT
from cores import (
    GOLD,
    LISTEN,
    OPEN_2,
    S0,
    T1,
    T2,
    TIGER,
    Serving,
    act,
    again,
    assert_same_details,
    clock_of,
    count_steps,
    held,
    make_cores,
    never,
    problems,
    run,
    start,
    walk,
    whole_state,
)

from bigserve import rules
from bigserve.acts import Act
from bigserve.errors import InvalidRequest
from bigtrain.bundle import ArraySpec


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serving:
    """Makes cores that serve tiger-treasure, solved exactly."""
    return make_cores(monkeypatch, tmp_path)


# ── each step counts once ────────────────────────────────────────────────────────────────────────


@run
async def test_steps_apply_in_order_and_the_last_is_answered_again(serving):
    async with serving() as core:
        start(core, ["a"])
        assert await walk(core, "a", [S0, T1, T1]) == [LISTEN, LISTEN, OPEN_2]
        first = await act(core, ["a"], [3], [GOLD])
        retried = await act(core, ["a"], [3], [GOLD])
        assert (first.duplicates, retried.duplicates) == ([], [0])
        assert not retried.faults
        np.testing.assert_array_equal(retried.actions, first.actions)
        assert_same_details(retried, first)
        assert core.episodes.next_step[0] == 4
        assert (count_steps(core, "applied"), count_steps(core, "duplicate")) == (4, 1)
        assert core.steps.queued == 0


@pytest.mark.parametrize(
    "step, seen, problem",
    [
        (1, T2, "STEP_DIFFERS"),
        (0, S0, "STEP_BEHIND"),
        (3, T1, "STEP_AHEAD"),
        (2**64 - 1, T1, "STEP_AHEAD"),
    ],
)
@run
async def test_other_steps_are_told_which_is_next(serving, step, seen, problem):
    async with serving() as core:
        (episode,) = start(core, ["a"])
        await walk(core, "a", [S0, T1])
        before = whole_state(core)
        acted = await act(core, ["a"], [step], [seen])
        assert problems(acted) == {0: problem}
        assert acted.faults[0].expected_step == 2
        assert not acted.actions.any()
        assert whole_state(core) == before
        assert episode.id in {one.id for one in core.episodes}
        assert await core.export("me", ["a"], close=False)


@run
async def test_one_bad_item_fails_alone(serving):
    async with serving() as core:
        start(core, ["a", "b", "c", "d"])
        await walk(core, "b", [S0])
        await core.end("me", ["d"])
        given = ["a", "b", "b", "nobody", "c", "d"]
        acted = await act(core, given, [0, 0, 1, 0, 0, 0], [S0, S0, T1, S0, S0 * np.nan, S0])
        assert problems(acted) == {
            2: "ITEM_INVALID",
            3: "EPISODE_UNKNOWN",
            4: "OBSERVATION_INVALID",
            5: "EPISODE_ENDED",
        }
        assert acted.duplicates == [1]
        assert acted.actions.tolist() == [LISTEN, LISTEN, 0, 0, 0, 0]
        assert acted.details is not None
        table = acted.details.table
        assert table[:2].any(1).all() and not table[2:].any()
        assert core.episodes.next_step[:3].tolist() == [1, 1, 0]
        assert core.steps.queued == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.01, 1.01])
@run
async def test_numbers_out_of_bounds_are_refused(serving, value):
    async with serving() as core:
        start(core, ["a"])
        seen = S0.copy()
        seen[3] = value
        acted = await act(core, ["a"], [0], [seen])
        assert problems(acted) == {0: "OBSERVATION_INVALID"}
        assert "from 0 to 1" in acted.faults[0].message
        assert await walk(core, "a", [S0]) == [LISTEN]


@run
async def test_what_no_context_explains_changes_nothing(serving):
    """Gold cannot follow listening; the company of the step goes on all the same."""
    async with serving() as core:
        start(core, ["a", "b"])
        await walk(core, "a", [S0, T1])
        before = core.models[0].rows[0].copy()
        acted = await act(core, ["b", "a"], [0, 2], [S0, GOLD])
        assert problems(acted) == {1: "OBSERVATION_IMPOSSIBLE"}
        assert acted.actions.tolist() == [LISTEN, 0]
        np.testing.assert_array_equal(core.models[0].rows[0], before)
        assert core.episodes.next_step[:2].tolist() == [2, 1]
        assert problems(await act(core, ["a"], [1], [GOLD])) == {0: "STEP_DIFFERS"}
        assert (await act(core, ["a"], [2], [T1])).actions == [OPEN_2]


@run
async def test_a_call_that_makes_no_sense_changes_nothing(serving):
    async with serving() as core:
        start(core, ["a"])

        with pytest.raises(InvalidRequest, match="must be one array, got 0"):
            core.act(Act("me", ["a"], [0], [], math.inf, 0.0, never))
        assert core.steps.queued == 0
        assert await walk(core, "a", [S0]) == [LISTEN]


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


@run
async def test_acts_of_one_turn_share_a_batch_and_those_that_wait_the_next(serving):
    async with serving() as core:
        engine = held(core.models[0])
        start(core, [str(n) for n in range(20)])
        engine.gate.clear()
        waiting = [act(core, [str(n)], [0], [S0]) for n in range(3)]
        await asyncio.sleep(0.01)
        waiting += [act(core, [str(n)], [0], [S0]) for n in range(3, 20)]
        assert core.steps.queued == 20
        engine.gate.set()
        await asyncio.gather(*waiting)
        assert engine.batches == [3, 17]
        assert core.steps.queued == 0


@run
async def test_a_batch_holds_no_more_than_the_largest_size(serving):
    async with serving() as core:
        ids = [str(n) for n in range(64)]
        start(core, ids)
        parts = [ids[:30], ids[30:60], ids[60:]]
        acts = [act(core, part, [0] * len(part), [S0] * len(part)) for part in parts]
        acts.append(act(core, ids[:40], [1] * 40, [T1] * 40))
        for acted in await asyncio.gather(*acts):
            assert not acted.faults
        assert held(core.models[0]).batches == [64, 40]


@run
async def test_acts_of_one_episode_in_one_turn_are_made_one_after_the_other(serving):
    """A retry that overtakes its first try, and the step after it, are as if they had waited."""
    async with serving() as core:
        start(core, ["a", "b"])
        acts = [
            act(core, ["a"], [0], [S0]),
            act(core, ["a", "b"], [0, 0], [S0, S0]),
            act(core, ["a"], [1], [T1]),
            act(core, ["a"], [1], [T2]),
        ]
        found = await asyncio.gather(*acts)
        assert [acted.duplicates for acted in found] == [[], [0], [], []]
        assert [problems(acted) for acted in found] == [{}, {}, {}, {0: "STEP_DIFFERS"}]
        assert core.episodes.next_step[:2].tolist() == [2, 1]
        assert core.steps.queued == 0


@run
async def test_an_act_that_waits_is_not_overtaken(serving):
    async with serving() as core:
        start(core, ["a", "b"])
        acts = [
            act(core, ["a"], [0], [S0]),
            act(core, ["a", "b"], [1, 0], [T1, S0]),
            act(core, ["b"], [1], [T1]),
        ]
        assert [problems(acted) for acted in await asyncio.gather(*acts)] == [{}, {}, {}]


# ── saying no in time ────────────────────────────────────────────────────────────────────────────


@run
async def test_a_lease_ends_to_the_moment(serving):
    async with serving() as core:
        start(core, ["a", "b"], lease=10.0)
        clock = clock_of(core)
        clock.now += 9.999
        await walk(core, "a", [S0])
        clock.now += 0.001
        assert problems(await act(core, ["b"], [0], [S0])) == {0: "EPISODE_EXPIRED"}
        clock.now += 9.9985
        assert (await act(core, ["a"], [0], [S0])).duplicates == [0]  # which renews it as well
        clock.now += 9.9995
        assert problems(await act(core, ["a"], [3], [S0])) == {0: "STEP_AHEAD"}  # which does not
        clock.now += 0.0005
        acted = await act(core, ["a", "a"], [1, 1], [T1, T1])
        assert problems(acted) == {0: "EPISODE_EXPIRED", 1: "ITEM_INVALID"}
        assert acted.faults[0].closed_at == pytest.approx(time.time(), abs=60)
        assert len(core.episodes) == core.models[0].live == 0


@run
async def test_a_lease_does_not_end_while_a_step_is_under_way(serving):
    async with serving() as core:
        start(core, ["a"], lease=10.0)
        held(core.models[0]).gate.clear()
        acting = act(core, ["a"], [0], [S0])
        await asyncio.sleep(0)
        clock_of(core).now += 11
        core.episodes.sweep()
        held(core.models[0]).gate.set()
        assert not (await acting).faults
        core.episodes.sweep()
        assert len(core.episodes) == 1  # the step renewed it


@run
async def test_what_is_late_is_dropped_before_it_changes_anything(serving):
    async with serving() as core:
        start(core, ["a", "b"])
        held(core.models[0]).gate.clear()
        acting = act(core, ["b"], [0], [S0])
        await asyncio.sleep(0)
        late = act(core, ["a"], [0], [S0], deadline=time.monotonic() - 1)
        in_time = act(core, ["a"], [0], [S0], deadline=time.monotonic() + 600)
        held(core.models[0]).gate.set()
        assert problems(await late) == {0: "ITEM_TOO_LATE"}
        assert not (await in_time).faults and not (await in_time).duplicates
        assert not (await acting).faults
        assert core.steps.queued == 0


@run
async def test_too_many_waiting_steps_are_told_to_come_again(serving):
    async with serving(max_queued_steps=64) as core:
        ids = [str(n) for n in range(64)]
        start(core, ids)
        held(core.models[0]).gate.clear()
        full = act(core, ids[:62], [0] * 62, [S0] * 62)
        over = await act(core, ids[61:], [0] * 3, [S0] * 3)
        fits = act(core, ids[62:], [0] * 2, [S0] * 2)
        assert problems(over) == dict.fromkeys(range(3), "ITEM_OVERLOADED")
        assert all(fault.retry_after > 0 for fault in over.faults)
        held(core.models[0]).gate.set()
        assert not (await full).faults and not (await fits).faults
        assert core.steps.queued == 0
        assert (await act(core, ids[61:], [0] * 3, [S0] * 3)).duplicates == [0, 1, 2]


# ── several versions ─────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_may_mix_versions_of_one_kind(serving, tmp_path):
    async with serving() as core:
        start(core, ["old-1", "old-2"])
        (tmp_path / "tiger.big").write_bytes(again(EXACT, 77))
        await core.models.reload()
        start(core, ["new-1", "new-2"])
        ids = ["old-1", "new-1", "nobody", "old-2", "new-2"]
        acted = await act(core, ids, [0, 0, 0, 1, 0], [S0, S0, S0, S0, TIGER])
        assert problems(acted) == {2: "EPISODE_UNKNOWN", 3: "STEP_AHEAD"}
        assert acted.actions.tolist() == [LISTEN, LISTEN, 0, 0, 0]
        acted = await act(core, ids, [0, 1, 0, 0, 0], [S0, T1, S0, S0, TIGER])
        assert acted.duplicates == [0, 4]
        assert problems(acted) == {2: "EPISODE_UNKNOWN"}
        assert acted.details is not None
        np.testing.assert_allclose(acted.details.belief[[0, 1], -1], [0.5, 0.15], rtol=1e-6)
        assert [held(version).batches for version in core.models] == [[2, 1], [1, 1]]
        assert core.steps.queued == 0


@run
async def test_a_message_may_outlive_one_of_its_versions(serving, tmp_path):
    async with serving() as core:
        start(core, ["old"])
        (tmp_path / "tiger.big").write_bytes(again(EXACT, 77))
        await core.models.reload()
        start(core, ["new"])
        waiting = act(core, ["old", "new"], [0, 0], [S0, S0])
        await core.end("me", ["old"])  # with which its version goes
        acted = await waiting
        assert problems(acted) == {0: "EPISODE_ENDED"}
        assert acted.actions.tolist() == [0, LISTEN]
        assert core.steps.queued == 0


@pytest.mark.parametrize(
    ("dtype", "bad", "good"),
    [
        ("int64", [-(2**63), -(2**63) + 1, -(2**31), 2**31, 2**63 - 1], [-(2**31) + 1, 2**31 - 1]),
        ("float64", [-np.inf, np.inf, np.nan, -3.5e38, 3.5e38], [-3.4e38, 3.4e38]),
        ("float32", [-np.inf, np.inf, np.nan], [np.finfo(np.float32).min, 0]),
    ],
)
def test_numbers_that_32_bits_cannot_hold_are_invalid(dtype, bad, good):
    """The least int64 too, which is its own absolute value."""
    spec = ArraySpec("", dtype, (2,))
    rows = np.array([[0, one] for one in (*bad, *good)], dtype)
    assert rules.are_valid(rows, spec).tolist() == [False] * len(bad) + [True] * len(good)
