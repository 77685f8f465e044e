"""Robots that each step at a fixed rate and must have an action in time, all over one stream.

Run it beside a server of tiger-treasure: `bigserve tiger.big`, then
`python examples/robot_loop_aio.py localhost:8500`.
"""

import asyncio
import random
import sys

import numpy as np

import bigclient
from bigclient import aio, errors

S0, T1, _, TIGER, GOLD, _ = range(6)
LISTEN = 2
PERIOD = 0.05  # seconds


class Robot:
    """Stands in for the real thing: it sees where it is, and does what it is told."""

    def __init__(self, number: int):
        self.name = f"robot {number}"
        self.rng = random.Random(number)
        self.tiger = self.rng.randrange(2)
        self.state = S0

    def see(self) -> np.ndarray:
        return np.eye(6, dtype=np.float32)[self.state]

    def do(self, action: int) -> None:
        if action == LISTEN:
            self.state = T1 + (self.tiger if self.rng.random() < 0.85 else 1 - self.tiger)
        else:
            self.state = TIGER if action == self.tiger else GOLD


async def control(robot: Robot, client: aio.Client) -> None:
    """Steps one robot until it has opened a door."""
    clock = asyncio.get_running_loop().time
    async with client.episode(lease=30) as episode:
        while robot.state not in (TIGER, GOLD):
            began = clock()
            try:
                action = await episode.act(robot.see(), budget=PERIOD)
            except (errors.Unavailable, errors.DeadlineExceeded):
                # The robot holds still. The step is sent again with what it saw, and counts once.
                continue
            robot.do(action)
            await asyncio.sleep(began + PERIOD - clock())
    print(f"{robot.name}: {'gold' if robot.state == GOLD else 'tiger'} after {episode.step} steps")


async def main(address: str = "localhost:8500") -> None:
    """Steps five robots at once."""
    async with bigclient.aio.connect(address) as client:
        await asyncio.gather(*(control(Robot(number), client) for number in range(5)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
