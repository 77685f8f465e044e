"""Models: new versions come in while old ones finish, and what cannot be served is refused."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from bundles import EXACT, LEARNED, resealed
from cores import (
    LISTEN,
    NO_PROBLEM,
    S0,
    T1,
    HeldEngine,
    Serving,
    act,
    again,
    held,
    make_cores,
    problems,
    run,
    start,
    walk,
)

from bigserve import models
from bigserve.core import Core
from bigserve.errors import BundleRefused, InvalidRequest, NotFound
from bigtrain import load_bundle


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serving:
    return make_cores(monkeypatch, tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What the model is loaded from."""
    return tmp_path / "tiger.big"


def versions(core: Core) -> list[tuple[int, bool]]:
    return [(version.number, version.current) for version in core.models]


@run
async def test_a_file_that_changed_is_taken_by_new_episodes_only(serving, file):
    async with serving() as core:
        (old,) = start(core, ["old"])
        await walk(core, "old", [S0])
        file.write_bytes(again(EXACT, 5))
        await core.models.reload()
        (new,) = start(core, ["new"])
        assert versions(core) == [(1, True), (0, False)]  # newest first
        assert (old.version, new.version) == (0, 1)
        assert not (await act(core, ["old"], [1], [T1])).faults
        assert await walk(core, "new", [S0]) == [LISTEN]
        # One that only finishes its episodes can still be asked for.
        assert start(core, ["late"], digest=core.models[0].digest)[0].version == 0


@run
async def test_a_version_unloads_after_its_last_episode(serving, file):
    async with serving() as core:
        start(core, ["a", "b"])
        old = core.models[0]
        file.write_bytes(again(EXACT, 5))
        await core.models.reload()
        await core.end("me", ["a"])
        assert versions(core) == [(1, True), (0, False)]
        waiting = act(core, ["b"], [0], [S0])
        await core.end("me", ["b"])
        assert versions(core) == [(1, True)]
        assert problems(await waiting) == {0: "EPISODE_ENDED"}
        with pytest.raises(NotFound, match="is not loaded"):
            start(core, ["c"], digest=old.digest)
        await asyncio.gather(*core.models._unloading)
        assert not old.worker._thread.is_alive()


@run
async def test_a_version_without_episodes_unloads_at_once(serving, file):
    async with serving() as core:
        file.write_bytes(again(EXACT, 5))
        await core.models.reload()
        assert versions(core) == [(1, True)]


@run
async def test_a_file_that_is_broken_leaves_the_model_as_it_is(serving, file, caplog):
    async with serving() as core:
        file.write_bytes(EXACT[:-7])
        await core.models.reload()
        assert "stays as it is" in caplog.text
        with pytest.raises(BundleRefused, match=r"^tiger\.big cannot be served: "):
            await core.models.load("tiger", file)
        file.unlink()
        with pytest.raises(NotFound, match="must be a bundle at tiger.big"):
            await core.models.load("tiger", file)
        assert versions(core) == [(0, True)]
        start(core, ["a"])
        assert await walk(core, "a", [S0]) == [LISTEN]


@run
async def test_a_version_that_is_there_is_not_loaded_twice(serving, file):
    async with serving() as core:
        first = core.models[0]
        assert await core.models.load("tiger", file) is first
        start(core, ["a"])
        file.write_bytes(again(EXACT, 5))
        await core.models.reload()
        file.write_bytes(EXACT)
        assert await core.models.load("tiger", file) is first  # back to it, while it has episodes
        assert versions(core) == [(0, True)]
        other = await core.models.load("cat", file)  # under another name it is another model
        assert other is not first
        assert core.models.names == ["cat", "tiger"]
        with pytest.raises(InvalidRequest, match="several: cat, tiger"):
            core.models.choose("", "")
        with pytest.raises(NotFound, match="no model 'dog' here, but cat, tiger"):
            core.models.choose("dog", "")


@run
async def test_the_last_load_that_was_asked_for_wins(serving, tmp_path, monkeypatch):
    """However long the one before it takes to compile; meanwhile steps are made."""
    async with serving() as core:
        start(core, ["a"])
        slow, begun = threading.Event(), threading.Event()

        def make(*given: Any, **options: Any) -> HeldEngine:
            begun.set()
            slow.wait()
            return HeldEngine(*given, **options)

        monkeypatch.setattr(models, "Engine", make)
        files = [tmp_path / f"{seed}.big" for seed in (5, 6)]
        for seed, file in zip((5, 6), files, strict=True):
            file.write_bytes(again(EXACT, seed))
        loading = [asyncio.ensure_future(core.models.load("tiger", file)) for file in files]
        await asyncio.to_thread(begun.wait)
        assert await walk(core, "a", [S0]) == [LISTEN]
        assert versions(core) == [(0, True)]
        slow.set()
        _, last = await asyncio.gather(*loading)
        assert last.digest == load_bundle(files[1]).digest
        assert versions(core) == [(2, True), (0, False)]


@run
async def test_observations_that_the_wire_lacks_are_refused(serving, file):
    async with serving() as core:
        file.write_bytes(resealed(LEARNED, observe_in_int16))
        with pytest.raises(BundleRefused, match="its are int16. Observe in a wider type"):
            await core.models.load("tiger", file)


def observe_in_int16(content: dict[str, Any]) -> None:
    content.update(NO_PROBLEM)  # with which its observations would have to agree
    content["observation"]["dtype"] = "int16"


@run
async def test_versions_that_look_alike_may_share_a_message(serving, file, tmp_path):
    async with serving() as core:
        start(core, ["a"])
        file.write_bytes(again(EXACT, 5))
        new = await core.models.load("tiger", file)
        other = tmp_path / "other.big"
        other.write_bytes(resealed(EXACT, lambda content: content.update(context_names="x\ny")))
        strange = await core.models.load("other", other)
        assert new.fits(core.models[0]) and not strange.fits(new)
        start(core, ["b"], model="other")
        acted = await act(core, ["a", "b"], [0, 0], [S0, S0])
        assert problems(acted) == {1: "ITEM_INVALID"}
        assert acted.actions.tolist() == [LISTEN, 0]
        assert held(strange).batches == []
