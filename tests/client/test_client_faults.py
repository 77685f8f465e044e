"""What goes wrong between client and server, and that callers do not notice, or are told."""

import asyncio
import dataclasses
import signal
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest
from hearing import LEFT, LISTEN, OPEN_RIGHT, QUICK, RIGHT, applied

import bigclient
from bigclient import TLS, ArraySpec, Retry, aio, errors
from bigclient.testing import FakeModel, FakeServer


async def test_a_server_that_is_not_there_is_told_soon(driver, server):
    with server.down():
        with pytest.raises(errors.Unavailable, match="No server answers at 127.0.0.1:.* 0.2 s"):
            await driver.connect(server.address, timeout=0.2)


async def test_connect_waits_for_a_server_that_is_starting(driver, server):
    server.fail(method="Describe", times=3)
    async with driver.connect(server.address, retry=QUICK) as client:
        assert (await client.describe()).models[0].name == "hearing"


# Each method, each way to fail


@pytest.mark.parametrize("method", ["Start", "steps", "End", "Explain", "Export", "Import"])
@pytest.mark.parametrize("fault", ["fail", "lose_replies"])
async def test_failures_pass_unnoticed_and_nothing_happens_twice(driver, server, method, fault):
    method = driver.steps_by if method == "steps" else method
    # On a stream a reply that is lost shows by its silence only.
    async with driver.connect(server.address, retry=QUICK, timeout=0.2) as client:
        getattr(server, fault)(method=method, times=2)
        async with client.episode() as episode:
            await episode.act(LEFT)
            assert (await episode.explain()).step == 0
            sealed = await episode.export(close=True)
            async with client.import_(sealed) as moved:
                assert await moved.act(LEFT) == OPEN_RIGHT
                assert applied(server, moved) == [LEFT, LEFT]
        assert server.open_episodes == []
        assert server.calls[method] >= 3


async def test_a_lost_reply_to_a_closing_export_does_not_lose_the_episode(driver, server):
    async with driver.connect(server.address, retry=QUICK) as client:
        episode = await client.episode()
        await episode.act(LEFT)
        server.delay(0.0, method="Export")  # lets the first call pass: the second one closes
        server.lose_replies(method="Export")
        sealed = await episode.export(close=True)
        assert server.calls["Export"] == 3 and server.open_episodes == []
        async with client.import_(sealed) as moved:
            assert await moved.act(LEFT) == OPEN_RIGHT


async def test_a_limit_with_a_hint_is_waited_for_and_one_without_is_told(driver, server):
    async with driver.connect(server.address, retry=QUICK) as client:
        server.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, method="Start", pushback="10")
        async with client.episode() as episode:
            server.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, method=driver.steps_by, pushback="10")
            assert await episode.act(LEFT) == LISTEN
        server.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, method="Start")
        with pytest.raises(errors.ResourceExhausted):
            await client.episode()


@pytest.mark.parametrize("problem", ["ITEM_OVERLOADED", "ITEM_TOO_LATE"])
async def test_items_that_were_not_begun_are_sent_again(driver, server, problem):
    async with driver.connect(server.address, retry=QUICK) as client:
        async with client.episode() as episode, client.episodes(4) as episodes:
            server.refuse(problem, times=2, retry_after=0.01)
            assert await episode.act(LEFT) == LISTEN
            server.refuse(problem, rows=[1, 3], times=1)
            server.refuse(problem, rows=[0], times=1)
            assert (await episodes.act([LEFT] * 4)).tolist() == [LISTEN] * 4
            for id in episodes.ids:
                assert len(server.history(id)) == 1


async def test_what_outlasts_the_budget_is_told(driver, server):
    async with driver.connect(server.address, retry=QUICK) as client:
        async with client.episode() as episode, client.episodes(2) as episodes:
            server.refuse("ITEM_OVERLOADED", times=2, retry_after=60.0)
            with pytest.raises(errors.Overloaded) as raised:
                await episode.act(LEFT, budget=1.0)
            assert raised.value.retry_after == 60.0
            with pytest.raises(errors.RowErrors) as raised:
                await episodes.act([LEFT, LEFT], budget=1.0)
            assert raised.value.rows.tolist() == [0, 1]
            server.fail(method=driver.steps_by, times=10**6)
            with pytest.raises(errors.Unavailable):
                await episode.act(LEFT, budget=0.2)
            server.heal()
            assert await episode.act(LEFT) == LISTEN
            assert applied(server, episode) == [LEFT]


async def test_without_retries_the_first_failure_is_told(driver, server):
    async with driver.connect(server.address, retry=Retry(attempts=1)) as client:
        server.fail(method="Start")
        with pytest.raises(errors.Unavailable):
            await client.episode()


async def test_a_step_goes_on_after_the_server_was_away(driver, server):
    async with driver.connect(server.address, retry=QUICK) as client:
        async with client.episode() as episode:
            await episode.act(LEFT)
            with server.down():
                pass
            assert await episode.act(LEFT) == OPEN_RIGHT
            assert applied(server, episode) == [LEFT, LEFT]


async def test_a_step_waits_for_a_server_that_is_away(driver, server):
    async with driver.connect(server.address, retry=QUICK) as client:
        async with client.episode() as episode:
            server.stop()
            timer = threading.Timer(0.3, server.start)
            timer.start()
            assert await episode.act(LEFT) == LISTEN
            timer.join()


async def test_what_the_server_will_not_have_is_told_at_once(driver, server):
    async with driver.connect(server.address, retry=QUICK) as client:
        async with client.episode() as episode:
            for code, kind in (
                (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidArgument),
                (grpc.StatusCode.INTERNAL, errors.InternalError),
                (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
            ):
                # A stream that ends so is followed by a call, which must fail as well.
                for method in {driver.steps_by, "Act"}:
                    server.fail(code, method=method)
                with pytest.raises(kind):
                    await episode.act(LEFT)
            assert await episode.act(LEFT) == LISTEN


async def test_an_episode_that_cannot_be_ended_hides_no_error(driver, server):
    async with driver.connect(server.address, retry=QUICK) as client:
        with pytest.raises(ZeroDivisionError) as raised:
            async with client.episode():
                server.fail(grpc.StatusCode.INTERNAL, method="End")
                _ = 1 / 0
        assert "could not be ended" in raised.value.__notes__[0]
        with pytest.raises(errors.InternalError):
            async with client.episode():
                server.fail(grpc.StatusCode.INTERNAL, method="End")


# Credentials


async def test_callers_are_known_by_their_token(driver):
    with FakeServer(tokens={"one": "anna", "two": "ben"}) as server:
        for token in (None, "three"):
            with pytest.raises(errors.Unauthenticated, match="token"):
                await driver.connect(server.address, token=token)
        async with driver.connect(server.address, token="one") as anna:
            async with driver.connect(server.address, token="two") as ben:
                mine = await anna.episode(id="same")
                async with ben.episode(id="same") as theirs:
                    assert await mine.act(LEFT) == await theirs.act(RIGHT) == LISTEN
                with pytest.raises(errors.EpisodeUnknown):
                    await ben.import_(await mine.export())
                await mine.end()


def pem(name: str) -> bytes:
    return (Path(__file__).parents[1] / "data" / "tls" / name).read_bytes()


async def test_connections_can_be_encrypted_and_both_sides_named(driver):
    credentials = grpc.ssl_server_credentials(
        [(pem("server.key"), pem("server.pem"))], pem("roots.pem"), require_client_auth=True
    )
    me = TLS(roots=pem("roots.pem"), certificate=pem("named.pem"), key=pem("named.key"))
    with FakeServer(tokens={"token": "anna"}, credentials=credentials) as server:
        async with driver.connect(server.address, tls=me, token="token") as client:
            async with client.episode() as episode:
                assert await episode.act(LEFT) == LISTEN
        elsewhere = dataclasses.replace(me, server_name="elsewhere.test")
        for tls in (None, TLS(roots=pem("roots.pem")), elsewhere):
            with pytest.raises(errors.Unavailable, match="with TLS if and only if"):
                await driver.connect(server.address, tls=tls, token="token", timeout=0.3)


# Interruptions


async def test_a_cancelled_step_may_be_sent_again(server):
    async with aio.connect(server.address) as client, client.episode() as episode:
        for fault in (lambda: server.delay(0.2, method="ActStream"), server.lose_replies):
            fault()
            before = server.calls["ActStream"]
            task = asyncio.create_task(episode.act(LEFT))
            while server.calls["ActStream"] == before:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await episode.act(LEFT)
        assert applied(server, episode) == [LEFT, LEFT]


async def test_another_observation_for_a_step_that_had_arrived_is_told(server):
    async with aio.connect(server.address) as client, client.episode() as episode:
        server.lose_replies()
        task = asyncio.create_task(episode.act(LEFT))
        while not server.history(episode.id):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(errors.StepDiffers):
            await episode.act(RIGHT)
        assert await episode.act(LEFT) == LISTEN


def test_ctrl_c_leaves_the_episode_usable(server):
    def interrupt(*_):
        raise KeyboardInterrupt

    with bigclient.connect(server.address) as client, client.episode() as episode:
        server.delay(1.0, method="Act")
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                episode.act(LEFT)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert episode.act(LEFT) == LISTEN
        assert episode.act(LEFT) == OPEN_RIGHT
        assert applied(server, episode) == [LEFT, LEFT]


async def test_a_model_with_pictures_steps_in_bulk(driver):
    spec = ArraySpec(np.dtype(np.uint8), (16, 16, 3))
    model = FakeModel(policy=lambda history: int(history[-1].max()) % 3, observation=(spec,))
    with FakeServer(model) as server:
        async with driver.connect(server.address, compression=True) as client:
            async with client.episodes(64) as episodes:
                pictures = np.zeros((64, 16, 16, 3), np.uint8)
                pictures[:, 3, 4, 1] = np.arange(64)
                assert (await episodes.act(pictures)).tolist() == [i % 3 for i in range(64)]


async def test_a_call_that_a_stopping_server_breaks_off_is_made_again(driver, server):
    """gRPC says CANCELLED to what comes while a server stops; nobody here has cancelled."""
    async with driver.connect(server.address, retry=QUICK) as client:
        for method in ("Start", "Act", "ActStream", "End"):
            server.fail(method=method, code=grpc.StatusCode.CANCELLED)
        async with client.episode() as episode:
            assert await episode.act(LEFT) == LISTEN
            assert applied(server, episode) == [LEFT]
        server.fail(method="Describe", times=1, code=grpc.StatusCode.CANCELLED)
        once = driver.connect(server.address, retry=Retry(attempts=1))
        with pytest.raises(errors.Unavailable, match="broken off on its way"):
            async with once:
                pass
