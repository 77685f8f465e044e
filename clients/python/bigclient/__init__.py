"""The client: what a robot or a simulator imports to get actions from a `bigserve` server.

`connect` gives a client, `client.episode()` an episode, and `episode.act(observation)` the action.
The same names with `await` are in `bigclient.aio`; `bigclient.testing` has a server for tests.
"""

from . import aio, errors
from .client import Client, Episode, Episodes, connect, play
from .description import (
    ArraySpec,
    Description,
    ExplorationCost,
    Limits,
    Model,
    Regret,
    Training,
)
from .errors import BigClientError
from .explanation import ActionExplanation, ContextExplanation, Explanation
from .exports import SealedEpisode
from .playing import Played
from .settings import TLS, EpsilonGreedy, Greedy, Retry, Softmax

__all__ = [
    "TLS",
    "ActionExplanation",
    "ArraySpec",
    "BigClientError",
    "Client",
    "ContextExplanation",
    "Description",
    "Episode",
    "Episodes",
    "EpsilonGreedy",
    "Explanation",
    "ExplorationCost",
    "Greedy",
    "Limits",
    "Model",
    "Played",
    "Regret",
    "Retry",
    "SealedEpisode",
    "Softmax",
    "Training",
    "aio",
    "connect",
    "errors",
    "play",
]
