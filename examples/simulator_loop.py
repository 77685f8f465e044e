"""One simulator, one episode at a time, step by step: who listens, and when does it open?

Run it beside a server of tiger-treasure: `bigserve tiger.big`, then
`python examples/simulator_loop.py localhost:8500`.
"""

import sys

import numpy as np

import bigclient

S0, T1, T2, TIGER, GOLD, _ = range(6)
LISTEN = 2


class TigerTreasure:
    """Two doors, in the manner of Gymnasium. Behind one waits the tiger, and nobody says which."""

    def __init__(self):
        self.rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.tiger = int(self.rng.integers(2))
        return self.see(S0), {}

    def step(self, action: int):
        if action == LISTEN:
            right = self.rng.random() < 0.85
            return self.see(T1 + (self.tiger if right else 1 - self.tiger)), -1.0, False, False, {}
        found = TIGER if action == self.tiger else GOLD
        return self.see(found), -100.0 if found == TIGER else 10.0, True, False, {}

    def see(self, state: int) -> np.ndarray:
        return np.eye(6, dtype=np.float32)[state]


def main(address: str = "localhost:8500") -> None:
    """Plays one episode in slow motion, then a hundred."""
    env = TigerTreasure()
    with bigclient.connect(address) as client:
        names = client.describe().models[0].action.value_names
        with client.episode(details=("belief",)) as episode:
            observation, _ = env.reset(seed=0)
            over = False
            while not over:
                action = episode.act(observation)
                print(f"step {episode.step}: belief {episode.belief.round(3)}, {names[action]}")
                observation, _, over, _, _ = env.step(action)

        played = bigclient.play(env, client, episodes=100, max_steps=50, seed=1)
        print(
            f"100 episodes: return {played.returns.mean():.2f}, steps {played.lengths.mean():.2f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
