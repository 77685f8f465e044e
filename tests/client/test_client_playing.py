"""Steps as Stable-Baselines3 makes them, and environments played, with both clients."""

import gymnasium
import numpy as np
import pytest
from hearing import LEFT, LISTEN, OPEN_LEFT, OPEN_RIGHT, RIGHT, SILENCE

from bigclient import ArraySpec, errors
from bigclient.testing import Decision, FakeModel, FakeServer

# As Stable-Baselines3 does it


async def test_predict_passes_its_state_on(driver, server):
    async with driver.connect(server.address) as client:
        state, starts = None, np.ones(2, dtype=bool)
        for want in ([LISTEN, LISTEN], [OPEN_RIGHT, OPEN_LEFT]):
            actions, state = await client.predict(
                np.array([LEFT, RIGHT]), state=state, episode_start=starts
            )
            assert actions.tolist() == want
            starts = np.zeros(2, dtype=bool)
        actions, state = await client.predict(
            np.array([LEFT, LEFT]), state, np.array([True, False])
        )
        assert actions.tolist() == [LISTEN, LISTEN]
        await state.end()
        assert server.open_episodes == []


async def test_predict_takes_a_single_observation(driver, server):
    async with driver.connect(server.address) as client:
        action, state = await client.predict(LEFT)
        assert action.shape == () and action == LISTEN
        action, state = await client.predict(LEFT, state, episode_start=False)
        assert action == OPEN_RIGHT
        action, state = await client.predict(LEFT, state, episode_start=True)
        assert action == LISTEN


async def test_predict_takes_several_entries(driver):
    specs = (ArraySpec(np.dtype("<f4"), (2,), "pose"), ArraySpec(np.dtype("<i4"), (), "gear"))

    def gear(history):
        return int(history[-1]["gear"])

    with FakeServer(FakeModel(policy=gear, observation=specs)) as server:
        async with driver.connect(server.address) as client:
            for observation in ({"pose": np.zeros(2), "gear": 2}, (np.zeros(2), 2)):
                action, _ = await client.predict(observation)
                assert action == 2
            many = {"pose": np.zeros((2, 2)), "gear": np.array([1, 2])}
            actions, _ = await client.predict(many)
            assert actions.tolist() == [1, 2]


async def test_predict_draws_unless_it_is_to_be_deterministic(driver):
    alike = FakeModel(policy=lambda history: Decision([0.0] * 10), actions=tuple("abcdefghij"))
    with FakeServer(alike) as server:
        async with driver.connect(server.address) as client:
            same, _ = await client.predict(np.zeros(50, np.int32))
            drawn, _ = await client.predict(np.zeros(50, np.int32), deterministic=False)
            # Fifty uniform draws of ten that are all alike: 1e-49.
            assert set(same.tolist()) == {0} and len(set(drawn.tolist())) > 1


# Gymnasium


class Doors(gymnasium.Env):
    """The tiger is left. Listening tells, and costs 1; the right door is worth 10."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return SILENCE, {}

    def step(self, action):
        opened = action != LISTEN
        reward = (10.0 if action == OPEN_RIGHT else -100.0) if opened else -1.0
        return np.int64(LEFT), reward, opened, False, {}


class Plain:
    """Not of Gymnasium, but of its manners; it cuts its episodes off."""

    def __init__(self):
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.left = 4
        return SILENCE, {}

    def step(self, action):
        self.left -= 1
        return SILENCE, 0.5, False, self.left == 0, {}


async def test_an_environment_of_gymnasium_is_played(driver, server):
    async with driver.connect(server.address) as client:
        played = await driver.play(Doors(), client, episodes=3)
        # Silence, then heard twice: three actions, of which the last opens.
        assert played.lengths.tolist() == [3, 3, 3] and played.returns.tolist() == [8.0] * 3
    assert server.open_episodes == []


async def test_whatever_behaves_like_one_is_played(driver, server):
    async with driver.connect(server.address) as client:
        env = Plain()
        played = await driver.play(env, client, episodes=2, seed=7)
        assert played.lengths.tolist() == [4, 4] and played.returns.tolist() == [2.0, 2.0]
        assert env.seeds == [7, None]
        played = await driver.play(Plain(), client, max_steps=3)
        assert played.lengths.tolist() == [3]
        with pytest.raises(errors.ConfigError, match="at least 1, got 0"):
            await driver.play(Plain(), client, episodes=0)
        with pytest.raises(errors.ConfigError, match="client.episodes"):
            await driver.play(gymnasium.vector.SyncVectorEnv([Doors]), client)


async def test_an_environment_that_breaks_leaves_no_episode_behind(driver, server):
    class Broken(Plain):
        def step(self, action):
            raise OSError("The arm is stuck.")

    async with driver.connect(server.address) as client:
        with pytest.raises(OSError, match="stuck"):
            await driver.play(Broken(), client)
    assert server.open_episodes == []
