"""Steps when things go wrong on our side, and when ids change hands while a step waits."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from cores import (
    LISTEN,
    S0,
    T1,
    Serving,
    act,
    block,
    held,
    make_cores,
    problems,
    run,
    start,
    walk,
    whole_state,
)

from bigserve.acts import Act, Acted


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serving:
    return make_cores(monkeypatch, tmp_path)


# ── faults of our own ────────────────────────────────────────────────────────────────────────────


@run
async def test_an_engine_that_fails_changes_nothing(serving, caplog):
    async with serving() as core:
        engine = held(core.models[0])
        start(core, ["a", "b"])
        await walk(core, "a", [S0])
        before = whole_state(core)
        engine.error = RuntimeError("secret")
        acted = await act(core, ["a", "b"], [1, 0], [T1, S0])
        assert problems(acted) == {0: "INTERNAL", 1: "INTERNAL"}
        (incident,) = {record.incident for record in caplog.records if record.exc_info}
        assert acted.faults[0].message == f"The server failed; its log has it as {incident}."
        assert whole_state(core) == before
        engine.error = None
        assert not (await act(core, ["a", "b"], [1, 0], [T1, S0])).faults
        assert core.steps.queued == 0
        assert not core.episodes.busy.any()


@run
async def test_a_batch_that_cannot_be_made_holds_nobody_up(serving, monkeypatch):
    async with serving() as core:
        start(core, ["a"])
        with monkeypatch.context() as patch:
            patch.setattr(core.models[0].layout, "pack", _broken)
            first = act(core, ["a"], [0], [S0])
            assert problems(await first) == {0: "INTERNAL"}
        assert await walk(core, "a", [S0]) == [LISTEN]
        assert core.steps.queued == 0


@run
async def test_what_was_told_before_a_batch_failed_is_told_once(serving, monkeypatch):
    async with serving() as core:
        start(core, ["a", "b"])
        monkeypatch.setattr(core.models[0].layout, "pack", _broken)
        told: list[Acted] = []
        late = Act("me", ["a"], [0], [block([S0])], 0.0, 0.0, told.append)
        core.act(late)
        await act(core, ["b"], [0], [S0])
        assert [problems(acted) for acted in told] == [{0: "ITEM_TOO_LATE"}]
        assert core.steps.queued == 0


@run
async def test_one_who_cannot_be_told_holds_nobody_up(serving):
    async with serving() as core:
        start(core, ["a", "b"])
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        core.act(Act("me", ["a"], [0], [block([S0])], math.inf, 0.0, _broken))
        acting = act(core, ["b"], [0], [S0])
        await asyncio.sleep(0)
        await core.models[0].worker.call(lambda: None)  # comes after the batch
        assert acting.done()
        assert not core.episodes.busy.any() and not core.models[0].running
        assert core.steps.queued == 0


# ── ids that change hands while a step waits ─────────────────────────────────────────────────────


@run
async def test_a_step_that_came_before_its_episode_touches_no_other(serving):
    async with serving(max_episodes=3) as core:
        start(core, ["a", "b"])
        (theirs,) = start(core, ["last"], owner="you")
        assert theirs.slot == 2  # the last slot
        await core.end("me", ["b"])
        waiting = act(core, ["a", "c"], [0, 0], [S0, S0])
        start(core, ["c"])
        await waiting
        assert core.episodes.next_step[theirs.slot] == 0
        assert await walk(core, "last", [S0], owner="you") == [LISTEN]


@run
async def test_a_step_of_an_id_that_was_forgotten_and_used_again_touches_no_other(serving):
    async with serving(tombstone_lifetime=0.0) as core:
        start(core, ["a"])
        waiting = act(core, ["a"], [0], [S0])
        await core.end("me", ["a"])
        core.episodes.sweep()
        (theirs,) = start(core, ["b"], owner="you")
        start(core, ["a"])
        await waiting
        assert core.episodes.next_step[theirs.slot] == 0


@run
async def test_a_duplicate_is_answered_from_its_own_episode(serving):
    async with serving() as core:
        start(core, ["a", "b"])
        await walk(core, "a", [S0])
        held(core.models[0]).gate.clear()
        waiting = act(core, ["a", "b"], [0, 0], [S0, S0])
        await asyncio.sleep(0)
        await core.end("me", ["a"])
        start(core, ["c"], owner="you")
        held(core.models[0]).gate.set()
        acted = await waiting
        assert acted.duplicates == [0]
        assert acted.actions.tolist() == [LISTEN, LISTEN]


def _broken(_: Any) -> Any:
    raise RuntimeError("broken")
