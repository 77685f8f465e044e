"""Many users of one client: tasks on one stream, threads, and those there when it closes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hearing import LEFT, LISTEN, OPEN_RIGHT, QUICK, RIGHT, SILENCE, applied

import bigclient
from bigclient import aio, errors

# The stream


async def test_replies_find_their_requests_in_any_order(server):
    async with aio.connect(server.address) as client:
        async with client.episode() as slow, client.episode() as quick:
            server.hold_reply()
            first = asyncio.create_task(slow.act(LEFT))
            while not server.calls["ActStream"]:
                await asyncio.sleep(0.01)
            assert not first.done()
            await quick.act(RIGHT)
            assert await first == LISTEN
            assert (applied(server, slow), applied(server, quick)) == ([LEFT], [RIGHT])


async def test_a_cut_stream_is_opened_again_and_everything_sent_again(server):
    async with aio.connect(server.address, retry=QUICK) as client:
        episodes = [await client.episode() for _ in range(20)]
        for _ in range(5):
            server.cut_stream(times=3)
            await asyncio.gather(*(episode.act(LEFT) for episode in episodes))
        assert all(applied(server, episode) == [LEFT] * 5 for episode in episodes)
        assert all(episode.step == 5 for episode in episodes)


async def test_one_bad_request_does_not_fail_the_others(server):
    async with aio.connect(server.address, retry=QUICK) as client:
        good = [await client.episode() for _ in range(5)]
        bad = await client.episode()
        bad._request.observation[0].shape[:] = [7]
        results = await asyncio.gather(
            *(episode.act(LEFT) for episode in (*good, bad)), return_exceptions=True
        )
        assert results[:5] == [LISTEN] * 5
        assert isinstance(results[5], errors.InvalidArgument)


async def test_a_silent_stream_is_given_up(server):
    async with aio.connect(server.address, retry=QUICK, timeout=0.2) as client:
        async with client.episode() as episode, client.episode() as other:
            server.lose_replies(times=2, method="ActStream")
            assert await asyncio.gather(episode.act(LEFT), other.act(LEFT)) == [LISTEN, LISTEN]
            assert applied(server, episode) == applied(server, other) == [LEFT]


async def test_what_is_late_on_a_stream_is_not_applied_later(server):
    async with aio.connect(server.address, timeout=0.2) as client:
        async with client.episode() as episode:
            server.delay(0.5, method="ActStream")
            with pytest.raises(errors.DeadlineExceeded):
                await episode.act(LEFT, budget=0.1)
            assert await episode.act(RIGHT, budget=5.0) == LISTEN
            assert applied(server, episode) == [RIGHT]


async def test_many_tasks_share_one_stream(server):
    async with aio.connect(server.address) as client:

        async def run(heard: int) -> int:
            async with client.episode() as episode:
                for _ in range(4):
                    await episode.act(SILENCE)
                await episode.act(heard)
                return await episode.act(heard)

        actions = await asyncio.gather(*(run(1 + i % 2) for i in range(50)))
        assert actions == [OPEN_RIGHT, 0] * 25


# Closing


async def test_a_closed_client_says_so(driver, server):
    client = await driver.connect(server.address)
    episode = await client.episode()
    await client.close()
    await client.close()
    for call in (client.describe(), episode.act(LEFT), episode.end()):
        with pytest.raises(errors.ClientClosed, match="connect again"):
            await call


@pytest.mark.parametrize("method", ["Describe", "ActStream"])
async def test_closing_ends_what_is_under_way(server, method):
    client = await aio.connect(server.address)
    episode = await client.episode()
    server.delay(0.5, method=method)
    before = server.calls[method]
    call = client.describe() if method == "Describe" else episode.act(LEFT)
    task = asyncio.create_task(call)
    while server.calls[method] == before:
        await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(errors.ClientClosed):
        await task
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


def test_closing_ends_what_is_under_way_in_other_threads(server):
    client = bigclient.connect(server.address)
    server.delay(0.5, method="Describe")
    with ThreadPoolExecutor(1) as pool:
        before = server.calls["Describe"]
        call = pool.submit(client.describe)
        while server.calls["Describe"] == before:
            pass
        client.close()
        with pytest.raises(errors.ClientClosed):
            call.result()


# Threads


def test_threads_share_a_client(server):
    rng = np.random.default_rng(0)
    heard = rng.integers(0, 3, (8, 30))
    server.fail(method="Act", times=5)

    def run(row: np.ndarray) -> float:
        with client.episode(details=("belief",)) as episode:
            for observation in row:
                episode.act(observation)
            assert applied(server, episode) == row.tolist()
            return episode.belief[0]

    with bigclient.connect(server.address, retry=QUICK) as client, ThreadPoolExecutor(8) as pool:
        beliefs = list(pool.map(run, heard))
    net = (heard == LEFT).sum(axis=1) - (heard == RIGHT).sum(axis=1)
    # float32 on the wire.
    np.testing.assert_allclose(beliefs, 1 / (1 + (0.15 / 0.85) ** net), rtol=1e-6)


def test_an_episode_belongs_to_one_thread(server):
    with bigclient.connect(server.address) as client, client.episode() as episode:
        server.delay(0.3, method="Act")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(episode.act, LEFT)
            while not server.calls["Act"]:
                pass
            with pytest.raises(errors.EpisodeBusy):
                episode.act(LEFT)
            assert first.result() == LISTEN
