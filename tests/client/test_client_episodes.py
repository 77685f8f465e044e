"""Episodes on a fake server, with both clients: one, many, and moved."""

import numpy as np
import pytest
from hearing import LEFT, LISTEN, OPEN_LEFT, OPEN_RIGHT, RIGHT, SILENCE

import bigclient
from bigclient import EpsilonGreedy, Greedy, SealedEpisode, Softmax, errors
from bigclient.testing import Decision, FakeModel, FakeServer, ImpossibleObservation

# The default model listens until it is 95 % sure. What it hears is right with 0.85, so two
# hearings more for a side than for the other make 0.85² / (0.85² + 0.15²) = 0.9698.
ONE, TWO = 0.85, 0.85**2 / (0.85**2 + 0.15**2)


def drawn(history) -> Decision:
    """Values that are all alike: a softmax draws uniformly."""
    return Decision([0.0] * 10, [1.0])


DRAWN = FakeModel("drawn", drawn, actions=tuple("abcdefghij"), contexts={"only": 1.0})


async def test_an_episode_acts_on_all_that_it_has_seen(driver, server):
    async with driver.connect(server.address) as client:
        async with client.episode() as episode:
            actions = [await episode.act(heard) for heard in (SILENCE, LEFT, RIGHT, LEFT, LEFT)]
            assert actions == [LISTEN, LISTEN, LISTEN, LISTEN, OPEN_RIGHT]
            assert episode.step == 5 and server.open_episodes == [episode.id]
    assert server.open_episodes == []
    # No call but those needed.
    assert server.calls == {"Describe": 1, "Start": 1, driver.steps_by: 5, "End": 1}


async def test_details_come_where_they_are_asked_for(driver, server):
    async with driver.connect(server.address) as client:
        async with client.episode(details=("belief", "values", "entropy")) as episode:
            with pytest.raises(errors.DetailMissing, match="there was none yet"):
                _ = episode.belief
            await episode.act(LEFT)
            # float32 on the wire.
            np.testing.assert_allclose(episode.belief, [ONE, 1 - ONE], rtol=1e-6)
            np.testing.assert_allclose(episode.values, [1 - 20 * ONE, 20 * ONE - 19, 0], rtol=1e-6)
            want = -ONE * np.log(ONE) - (1 - ONE) * np.log(1 - ONE)
            assert episode.entropy == pytest.approx(want, rel=1e-6)
        async with client.episode(details=("values",)) as episode:
            await episode.act(LEFT)
            with pytest.raises(errors.DetailMissing, match=r"details=\('values', 'belief',\)"):
                _ = episode.belief
        with pytest.raises(errors.ConfigError, match="among 'values', 'belief' and 'entropy'"):
            await client.episode(details=("beliefs",))


async def test_beliefs_cannot_be_asked_of_a_model_without_contexts(driver):
    with FakeServer(FakeModel(policy=lambda history: 0, contexts={})) as server:
        async with driver.connect(server.address) as client:
            with pytest.raises(errors.ConfigError, match="not finitely many"):
                await client.episode(details=("belief",))
            assert server.open_episodes == []


async def test_an_explanation_is_that_of_the_last_step(driver, server):
    async with driver.connect(server.address) as client, client.episode() as episode:
        with pytest.raises(errors.FailedPrecondition, match="no step"):
            await episode.explain()
        await episode.act(LEFT)
        await episode.act(LEFT)
        told = await episode.explain()
        assert (told.step, told.model, told.chosen) == (1, "hearing", OPEN_RIGHT)
        assert [action.name for action in told.actions] == ["open-left", "open-right", "listen"]
        assert told.contexts[0].probability == pytest.approx(TWO, rel=1e-6)
        server.evict(episode.id)
        with pytest.raises(errors.EpisodeEvicted):
            await episode.explain()


@pytest.mark.parametrize("rule", [Softmax(1.0), EpsilonGreedy(1.0)])
async def test_a_seed_makes_draws_repeatable(driver, rule):
    async def draw(client, seed):
        async with client.episode(seed=seed, rule=rule) as episode:
            return [await episode.act(SILENCE) for _ in range(20)]

    with FakeServer(DRAWN) as server:
        async with driver.connect(server.address) as client:
            once, again, other = [await draw(client, seed) for seed in (1, 1, 2)]
            assert once == again != other
            async with client.episode() as greedy:
                assert [await greedy.act(SILENCE) for _ in range(5)] == [0] * 5


async def test_episodes_are_on_the_model_and_version_they_ask_for(driver):
    old = FakeModel(revision="old")
    with FakeServer(old, DRAWN) as server:
        async with driver.connect(server.address, model="drawn") as client:
            async with client.episode() as episode:
                assert episode.model.name == "drawn"
            with pytest.raises(errors.ConfigError, match=r"this one has \['hearing', 'drawn'\]"):
                await client.episode(model="")
            with pytest.raises(errors.NotFound, match="no model `other`; it has"):
                await client.episode(model="other")
            async with client.episode(model="hearing"):
                server.load(FakeModel(revision="new"))
                async with client.episode(model="hearing") as current:
                    assert current.model.version == FakeModel(revision="new").version
                async with client.episode(model="hearing", version=old.version) as pinned:
                    assert pinned.model.version == old.version
        with pytest.raises(errors.NotFound, match="no model `absent`"):
            await driver.connect(server.address, model="absent")


# Closed episodes, and steps that are not expected


async def test_a_closed_episode_says_how_it_closed(driver, server):
    async with driver.connect(server.address) as client:
        expired = await client.episode(lease=10)
        await expired.act(SILENCE)
        server.advance(11)
        with pytest.raises(errors.EpisodeExpired) as raised:
            await expired.act(SILENCE)
        assert raised.value.closed_at is not None and expired.step == 1

        ended = await client.episode()
        await ended.end()
        await ended.end()
        with pytest.raises(errors.EpisodeEnded):
            await ended.act(SILENCE)

        with pytest.raises(errors.EpisodeExpired):
            await expired.end()
        server.advance(1e6)
        with pytest.raises(errors.EpisodeUnknown):
            await expired.act(SILENCE)


async def test_leaving_the_block_of_a_closed_episode_is_no_error(driver, server):
    async with driver.connect(server.address) as client:
        async with client.episode() as episode:
            server.evict(episode.id)


async def test_somebody_elses_steps_are_told_not_mended(driver, server):
    async with driver.connect(server.address) as client, client.episode(id="mine") as episode:
        await episode.act(LEFT)
        async with driver.connect(server.address) as other:
            twin = await other.import_(await episode.export())
            await twin.act(LEFT)
            with pytest.raises(errors.StepDiffers) as raised:
                await episode.act(RIGHT)
            assert raised.value.expected_step == 2
            await twin.act(LEFT)
            with pytest.raises(errors.StepBehind):
                await episode.act(LEFT)
            assert episode.step == 1
            with pytest.raises(errors.EpisodeExists):
                await client.episode(id="mine")


async def test_an_impossible_observation_can_be_replaced(driver):
    def fussy(history):
        if int(history[-1]) == RIGHT:
            raise ImpossibleObservation("Nothing is ever heard on the right.")
        return 0

    with FakeServer(FakeModel(policy=fussy)) as server:
        async with driver.connect(server.address) as client, client.episode() as episode:
            with pytest.raises(errors.ObservationImpossible, match="on the right"):
                await episode.act(RIGHT)
            assert await episode.act(LEFT) == 0
            with pytest.raises(errors.ObservationInvalid, match="out of bounds"):
                await episode.act(3)
            assert episode.step == 1


async def test_an_error_in_the_block_still_ends_the_episode(driver, server):
    async with driver.connect(server.address) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.episode():
                _ = 1 / 0
    assert server.open_episodes == []


# Exports


async def test_an_export_goes_on_elsewhere_exactly_where_it_was(driver, server):
    with FakeServer() as elsewhere:
        async with (
            driver.connect(server.address) as here,
            driver.connect(elsewhere.address) as there,
        ):
            async with here.episode() as episode:
                await episode.act(LEFT)
                sealed = await episode.export(close=True)
                with pytest.raises(errors.EpisodeExported):
                    await episode.act(LEFT)
            sealed = SealedEpisode.from_bytes(sealed.to_bytes())
            async with there.import_(sealed, details=("belief",)) as moved:
                assert (moved.id, moved.step) == (episode.id, 1)
                assert await moved.act(LEFT) == OPEN_RIGHT
                np.testing.assert_allclose(moved.belief, [TWO, 1 - TWO], rtol=1e-5)


async def test_a_broken_seal_is_told(driver, server):
    async with driver.connect(server.address) as client, client.episode() as episode:
        data = bytearray((await episode.export()).to_bytes())
        data[-1] ^= 1
        with pytest.raises(errors.SealBroken):
            await client.import_(SealedEpisode.from_bytes(bytes(data)))
        with FakeServer(FakeModel(revision="new")) as other:
            async with driver.connect(other.address) as there:
                with pytest.raises(errors.VersionMissing):
                    await there.import_(await episode.export())


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"\n\x02hi"])
def test_bytes_that_are_no_export_are_refused(data):
    with pytest.raises(errors.SealBroken, match="must be what `episode.export"):
        SealedEpisode.from_bytes(data)


# Many episodes


async def test_rows_are_episodes_of_their_own(driver, server):
    async with driver.connect(server.address) as client:
        async with client.episodes(3, details=("belief", "values", "entropy")) as episodes:
            await episodes.act([LEFT, RIGHT, SILENCE])
            actions = await episodes.act(np.array([LEFT, RIGHT, LEFT]))
            assert actions.tolist() == [OPEN_RIGHT, OPEN_LEFT, LISTEN]
            np.testing.assert_allclose(episodes.beliefs[:, 0], [TWO, 1 - TWO, ONE], rtol=1e-5)
            assert episodes.values.shape == (3, 3) and episodes.entropies.shape == (3,)
            assert len(episodes) == len(set(episodes.ids)) == 3
        assert server.open_episodes == []
        assert server.calls[driver.steps_by] == 2


async def test_a_finished_row_gives_way_to_a_fresh_episode(driver, server):
    async with driver.connect(server.address) as client:
        async with client.episodes(3) as episodes:
            first = episodes.ids
            await episodes.act([LEFT, LEFT, LEFT], done=[True] * 3)  # fresh already
            assert episodes.ids == first and server.calls["Start"] == 1
            actions = await episodes.act([LEFT, LEFT, LEFT], done=[False, True, False])
            assert actions.tolist() == [OPEN_RIGHT, LISTEN, OPEN_RIGHT]
            assert episodes.steps.tolist() == [2, 1, 2]
            assert episodes.ids[1] != first[1] and episodes.ids[::2] == first[::2]
            assert sorted(server.open_episodes) == sorted(episodes.ids)
            with pytest.raises(errors.ConfigError, match="`done` must be 3 booleans"):
                await episodes.act([LEFT, LEFT, LEFT], done=[0, 1, 0])


async def test_replaced_rows_draw_anew_and_repeatably(driver):
    async def draw(client):
        every = np.array([True])
        async with client.episodes(1, seed=3, rule=Softmax(1.0)) as episodes:
            return [int((await episodes.act([SILENCE], done=every))[0]) for _ in range(20)]

    with FakeServer(DRAWN) as server:
        async with driver.connect(server.address) as client:
            once, again = await draw(client), await draw(client)
            assert once == again and len(set(once)) > 1


async def test_rows_that_fail_are_told_and_can_be_replaced(driver, server):
    async with driver.connect(server.address) as client:
        async with client.episodes(3) as episodes:
            await episodes.act([LEFT, LEFT, LEFT])
            server.evict(episodes.ids[1])
            with pytest.raises(errors.RowErrors, match="1 of 3 rows failed, .* row 1") as raised:
                await episodes.act([LEFT, LEFT, LEFT])
            assert isinstance(raised.value.errors[1], errors.EpisodeEvicted)
            assert raised.value.actions[[0, 2]].tolist() == [OPEN_RIGHT, OPEN_RIGHT]
            done = np.isin(np.arange(3), raised.value.rows)
            await episodes.act([SILENCE, LEFT, SILENCE], done=done)
            assert episodes.steps.tolist() == [3, 1, 3]


async def test_a_row_that_never_acted_can_be_replaced_after_it_failed(driver, server):
    async with driver.connect(server.address) as client:
        async with client.episodes(1) as episodes:
            server.evict(episodes.ids[0])
            with pytest.raises(errors.RowErrors):
                await episodes.act([LEFT])
            assert (await episodes.act([LEFT], done=[True])).tolist() == [LISTEN]


async def test_a_group_does_not_take_on_a_version_that_speaks_otherwise(driver, server):
    async with driver.connect(server.address) as client:
        async with client.episodes(2) as episodes:
            await episodes.act([LEFT, LEFT])
            server.load(FakeModel(revision="new"))
            await episodes.act([LEFT, LEFT], done=[True, False])
            assert episodes.model.version == FakeModel(revision="new").version
            server.load(FakeModel(actions=("a", "b", "c")))
            with pytest.raises(errors.ConfigError, match="other observations, actions or contexts"):
                await episodes.act([LEFT, LEFT], done=[True, False])


# Settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Softmax(0), "`temperature` must be above 0 and finite, got 0; .* `Greedy"),
        (lambda: EpsilonGreedy(1.5), "`epsilon` must be in \\[0, 1\\], got 1.5"),
        (lambda: bigclient.Retry(budget=0), "`budget` must be above 0 seconds, got 0"),
        (lambda: bigclient.Retry(attempts=0), "`attempts` must be at least 1, or None, got 0"),
        (lambda: bigclient.Retry(first_wait=3), "at most `longest_wait`, got 3 and 2.0"),
        (lambda: bigclient.TLS(key=b"x"), "got `key` alone: give `certificate` as well"),
        (lambda: bigclient.connect("localhost"), "must be host:port, .* got 'localhost'"),
        (lambda: bigclient.connect("http://localhost:1"), "must be host:port"),
        (lambda: bigclient.connect("localhost:1", timeout=0), "`timeout` must be above 0"),
        (lambda: bigclient.connect("robot:1", token="x"), "must not travel in the clear"),
    ],
)
def test_settings_are_checked_where_they_are_born(make, message):
    with pytest.raises(errors.ConfigError, match=message):
        make()


async def test_options_of_episodes_are_checked(driver, server):
    async with driver.connect(server.address) as client:
        with pytest.raises(
            errors.ConfigError, match="`seed` must be in \\[0, 2\\*\\*64\\), got -1"
        ):
            await client.episode(seed=-1)
        with pytest.raises(errors.ConfigError, match="`lease` must be above 0 seconds, got 0"):
            await client.episode(lease=0)
        with pytest.raises(errors.ConfigError, match="from 1 to 1024"):
            await client.episodes(0)
        async with client.episode(rule=Greedy(), lease=2.5) as episode:
            server.advance(2.4)
            await episode.act(LEFT)
            server.advance(2.6)
            with pytest.raises(errors.EpisodeExpired):
                await episode.act(LEFT)
