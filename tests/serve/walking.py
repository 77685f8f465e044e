"""Episodes of tiger-treasure in worlds that are the same whenever the actions are."""

from collections.abc import Callable

import numpy as np
import tiger
from model import History
from subject import Subject
from wire import Row, act_request, rows, unpack

from bigproto.v1 import policy_pb2 as pb


class World:
    """What tiger-treasure shows, drawn from a seed among what the actions so far allow."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)
        self._history: History = ()
        self.state = "S0"

    def act(self, action: int) -> None:
        self._history = (*self._history, (self.state, action))
        self.state = str(self._random.choice(tiger.possible(self._history)))


def walk(
    ask: Callable[[pb.ActRequest], pb.ActReply],
    subject: Subject,
    episode: str,
    *,
    world: World,
    steps: range = range(8),
) -> list[Row]:
    """Plays these steps of an episode; what came back for each."""
    result = []
    for step in steps:
        reply = ask(act_request([episode], [step], [subject.see(world.state)]))
        assert not reply.errors, (step, world.state, reply.errors)
        world.act(int(unpack(reply.actions)[0]))
        result += rows(reply)
    return result
