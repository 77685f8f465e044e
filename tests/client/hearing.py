"""The fake server's own model, which listens until it is 95 % sure, and what tests ask of it."""

from bigclient import Retry
from bigclient.testing import FakeServer

SILENCE, LEFT, RIGHT = 0, 1, 2
OPEN_LEFT, OPEN_RIGHT, LISTEN = 0, 1, 2

QUICK = Retry(first_wait=0.01, longest_wait=0.05)


def applied(server: FakeServer, episode) -> list[int]:
    """The observations that the server has applied to an episode."""
    return [int(entries[0]) for entries in server.history(episode.id)]
