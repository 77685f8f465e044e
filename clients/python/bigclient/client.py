"""The blocking client: `connect`, and what it gives."""

import time
from types import TracebackType
from typing import Any, TypeVar

import grpc
import numpy as np
import numpy.typing as npt

from bigproto.v1 import policy_pb2_grpc

from . import playing
from .calls import Call, Operation, Sleep
from .channel import Target, make_target
from .description import Description
from .episode import AbstractEpisode
from .episodes import AbstractEpisodes
from .errors import ClientClosed
from .explanation import Explanation
from .exports import SealedEpisode
from .observations import Observation
from .opening import open_episode, open_episodes, open_export
from .playing import Played
from .session import EpisodeOptions, Session
from .settings import TLS, Detail, Greedy, Retry, Rule, Softmax

T = TypeVar("T")


def connect(
    address: str,
    *,
    token: str | None = None,
    tls: TLS | None = None,
    insecure: bool = False,
    timeout: float = 5.0,
    retry: Retry = Retry(),
    model: str = "",
    compression: bool = False,
) -> "Client":
    """Connects to a server, and raises `Unavailable` if none answers within `timeout` seconds.

    A `token` goes to another machine only over `tls`, or where `insecure` allows it in the clear.
    `timeout` also holds for each attempt of every later call; `retry` says how often and how long
    to try. `model` is the one that episodes take unless they say otherwise; a server that has only
    one needs no name. `compression` is worth its time only where the network is slow.
    """
    session = Session(address, timeout=timeout, retry=retry, model=model)
    client = Client(session, _Driver(make_target(address, token, tls, insecure, compression)))
    try:
        client._run(session.connect())
    except BaseException:
        client.close()
        raise
    return client


class _Driver:
    """Carries out operations by blocking calls."""

    def __init__(self, target: Target):
        if target.credentials is None:
            self._channel = grpc.insecure_channel(
                target.address, target.options, target.compression
            )
        else:
            self._channel = grpc.secure_channel(
                target.address, target.credentials, target.options, target.compression
            )
        self._stub = policy_pb2_grpc.PolicyStub(self._channel)
        self._metadata = target.metadata
        self._closed = False

    def run(self, operation: Operation[T]) -> T:
        """Does what the operation yields, until it returns."""
        try:
            effect = next(operation)
            while True:
                try:
                    outcome = self._perform(effect)
                except BaseException as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(outcome)
        except StopIteration as finished:
            return finished.value

    def close(self) -> None:
        """Closes the connection. Calls under way in other threads raise `ClientClosed`."""
        self._closed = True
        self._channel.close()

    def _perform(self, effect: Call | Sleep) -> Any:
        if isinstance(effect, Sleep):
            return time.sleep(effect.seconds)
        try:
            method = getattr(self._stub, effect.method)
            return method(effect.request, timeout=effect.timeout, metadata=self._metadata)
        except (grpc.RpcError, ValueError):
            # A closed channel raises ValueError, and CANCELLED for what was under way.
            if self._closed:
                raise ClientClosed("The client is closed: connect again.") from None
            raise


class Client:
    """A connection to a server. Threads may share it, if each drives episodes of its own."""

    def __init__(self, session: Session, driver: _Driver):
        self._session = session
        self._driver = driver
        self._run = driver.run

    def close(self) -> None:
        """Closes the connection. Open episodes live on until their lease runs out."""
        self._driver.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def describe(self) -> Description:
        """The models that the server has, and its limits."""
        return self._run(self._session.describe())

    def episode(
        self,
        *,
        model: str | None = None,
        version: str = "",
        seed: int | None = None,
        rule: Rule = Greedy(),
        lease: float | None = None,
        id: str | None = None,
        details: tuple[Detail, ...] = (),
    ) -> "Episode":
        """Starts an episode. As a context manager it ends when its block is left.

        `seed` makes what `rule` draws repeatable. `lease` is how many seconds may pass between
        steps before the server closes the episode. `details` asks for any of `values`, `belief`
        and `entropy` with each action.
        """
        options = EpisodeOptions(self._model(model), version, seed, rule, lease)
        return self._run(open_episode(self._session, self._run, Episode, options, details, id))

    def episodes(
        self,
        n: int,
        *,
        model: str | None = None,
        version: str = "",
        seed: int | None = None,
        rule: Rule = Greedy(),
        lease: float | None = None,
        details: tuple[Detail, ...] = (),
    ) -> "Episodes":
        """Starts `n` episodes that step together, with the options of `episode`."""
        options = EpisodeOptions(self._model(model), version, seed, rule, lease)
        return self._run(open_episodes(self._session, self._run, Episodes, n, options, details))

    def import_(self, sealed: SealedEpisode, *, details: tuple[Detail, ...] = ()) -> "Episode":
        """Continues an exported episode on this server, exactly where it was."""
        return self._run(open_export(self._session, self._run, Episode, sealed, details))

    def predict(
        self,
        observation: Observation,
        state: "Episodes | None" = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = True,
        *,
        rule: Rule = Softmax(1.0),
    ) -> tuple[np.ndarray, "Episodes"]:
        """Actions and the next state for one observation or a batch, as Stable-Baselines3 does it.

        Actions are [episode], or one without an axis. Without `state` new episodes start, so give
        back the state of the call before. Rows where `episode_start` [episode] is true begin a
        fresh episode. Unless `deterministic`, episodes draw their actions by `rule`; both matter
        only where episodes start, with `state` None.
        """
        chosen = Greedy() if deterministic else rule
        return self._run(
            playing.predict(
                self._session, self._run, Episodes, observation, state, episode_start, chosen
            )
        )

    def _model(self, name: str | None) -> str:
        return self._session.default_model if name is None else name


class Episode(AbstractEpisode):
    """One episode: an observation goes in, an action comes out."""

    def __enter__(self) -> "Episode":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._leave(error))

    def act(self, observation: Observation, *, budget: float | None = None) -> int:
        """The action for the next observation, within `budget` seconds in all.

        After an interruption or a failure, call it again with the same observation: the step
        counts once, whether or not it had arrived.
        """
        return self._run(self._act(observation, budget))

    def explain(self) -> Explanation:
        """What the episode believed and expected at its last step."""
        return self._run(self._explain())

    def export(self, close: bool = False) -> SealedEpisode:
        """The episode's state, for `import_` elsewhere; with `close`, only the copy goes on."""
        return self._run(self._export(close))

    def end(self) -> None:
        """Ends the episode. To end it again is no error."""
        self._run(self._end())


class Episodes(AbstractEpisodes):
    """Many episodes that step together: a row of observations for each."""

    def __enter__(self) -> "Episodes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._leave(error))

    def act(
        self,
        observations: Observation,
        *,
        done: npt.ArrayLike | None = None,
        budget: float | None = None,
    ) -> np.ndarray:
        """The actions for a row of observations each, [n], within `budget` seconds in all.

        Where `done` is true the row's episode is over, and the observation is the first of a fresh
        one, which takes its place. Raises `RowErrors` if rows fail that trying again cannot help.
        """
        return self._run(self._act(observations, done, budget))

    def end(self) -> None:
        """Ends all of them. To end them again is no error."""
        self._run(self._end())


def play(
    env: Any,
    client: Client,
    *,
    episodes: int = 1,
    max_steps: int | None = None,
    seed: int | None = None,
    model: str | None = None,
    version: str = "",
    rule: Rule = Greedy(),
) -> Played:
    """Plays episodes of a Gymnasium environment, each cut after `max_steps` steps.

    `seed` is for the environment, and for what `rule` draws.
    """
    options = EpisodeOptions(client._model(model), version, rule=rule)
    return client._run(
        playing.play(
            env,
            client._session,
            client._run,
            episodes=episodes,
            max_steps=max_steps,
            seed=seed,
            options=options,
        )
    )
