"""Many simulators in step, as arrays: one call for all of them, and fresh episodes as they finish.

Run it beside a server of tiger-treasure: `bigserve tiger.big`, then
`python examples/vectorised_loop.py localhost:8500`.
"""

import sys

import numpy as np

import bigclient

S0, T1, _, TIGER, GOLD, _ = range(6)
LISTEN = 2
NUM_ENVS, STEPS = 64, 50


def main(address: str = "localhost:8500") -> None:
    """Steps all simulators, and counts what those that finished have found."""
    rng = np.random.default_rng(0)
    tigers = rng.integers(2, size=NUM_ENVS)
    states = np.full(NUM_ENVS, S0)
    done = np.zeros(NUM_ENVS, dtype=bool)
    found = {TIGER: 0, GOLD: 0}
    with bigclient.connect(address) as client, client.episodes(NUM_ENVS) as episodes:
        for _ in range(STEPS):
            # Where `done` is true, the observation is the first of a new episode.
            actions = episodes.act(np.eye(6, dtype=np.float32)[states], done=done)
            heard = T1 + np.where(rng.random(NUM_ENVS) < 0.85, tigers, 1 - tigers)
            opened = np.where(actions == tigers, TIGER, GOLD)
            done = actions != LISTEN
            for state in found:
                found[state] += int(np.sum(done & (opened == state)))
            # A simulator that is done begins again at once.
            states = np.where(done, S0, heard)
            tigers = np.where(done, rng.integers(2, size=NUM_ENVS), tigers)
    print(
        f"{sum(found.values())} episodes finished, gold in {found[GOLD] / sum(found.values()):.1%}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
