"""The same client with `await`: all episodes share one stream, so thousands may step at once."""

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

import grpc
import numpy as np
import numpy.typing as npt

from bigproto.v1 import policy_pb2, policy_pb2_grpc

from . import playing
from .calls import Call, Operation, Sleep
from .channel import Target, make_target
from .description import Description
from .episode import AbstractEpisode
from .episodes import AbstractEpisodes
from .errors import ClientClosed, from_rpc
from .explanation import Explanation
from .exports import SealedEpisode
from .observations import Observation
from .opening import open_episode, open_episodes, open_export
from .playing import Played
from .session import EpisodeOptions, Session
from .settings import TLS, Detail, Greedy, Retry, Rule, Softmax
from .stream import ActStream

__all__ = ["Client", "Episode", "Episodes", "Opening", "connect", "play"]

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
) -> "Opening[Client]":
    """Connects as `bigclient.connect` does, by `await` or by `async with`."""
    session = Session(address, timeout=timeout, retry=retry, model=model)
    return Opening(_connect(session, make_target(address, token, tls, insecure, compression)))


async def _connect(session: Session, target: Target) -> "Client":
    client = Client(session, _Driver(target))
    try:
        await client._run(session.connect())
    except BaseException:
        await client.close()
        raise
    return client


Opened = TypeVar("Opened", bound=AbstractAsyncContextManager[Any, Any])


class Opening(Generic[Opened]):
    """Something that `await` opens, and `async with` opens and closes."""

    def __init__(self, coroutine: Coroutine[Any, Any, Opened]):
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._coroutine
        return self._opened

    async def __aexit__(self, *error: Any) -> None:
        await self._opened.__aexit__(*error)


class _Driver:
    """Carries out operations with `await`: steps over the stream, all else by calls."""

    def __init__(self, target: Target):
        if target.credentials is None:
            self._channel = grpc.aio.insecure_channel(
                target.address, target.options, target.compression
            )
        else:
            self._channel = grpc.aio.secure_channel(
                target.address, target.credentials, target.options, target.compression
            )
        self._stub = policy_pb2_grpc.PolicyStub(self._channel)
        self._metadata = target.metadata
        self._stream = ActStream(
            lambda requests: self._stub.ActStream(requests, metadata=self._metadata)
        )
        self._closed = False

    async def run(self, operation: Operation[T]) -> T:
        """Does what the operation yields, until it returns."""
        try:
            effect = next(operation)
            while True:
                try:
                    outcome = await self._perform(effect)
                except BaseException as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(outcome)
        except StopIteration as finished:
            return finished.value

    async def close(self) -> None:
        """Closes the connection. Calls under way in other tasks raise `ClientClosed`."""
        self._closed = True
        await self._stream.close()
        await self._channel.close()

    async def _perform(self, effect: Call | Sleep) -> Any:
        if isinstance(effect, Sleep):
            return await asyncio.sleep(effect.seconds)
        if self._closed:
            raise ClientClosed(_CLOSED)
        try:
            if isinstance(effect.request, policy_pb2.ActRequest):
                return await self._act(effect.request, effect.timeout)
            return await self._call(effect)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            # A channel that closes cancels what is under way, as nobody cancelled this task.
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise ClientClosed(_CLOSED) from None
            raise

    async def _act(self, request: policy_pb2.ActRequest, timeout: float) -> policy_pb2.ActReply:
        try:
            return await self._stream.act(request, timeout)
        except grpc.aio.AioRpcError as error:
            if self._closed or from_rpc(error).retryable:
                raise
        # One request that is wrong as a whole ends the stream for all, and nobody can tell which
        # it was. So each asks again by itself, and learns what holds for it.
        return await self._call(Call("Act", request, timeout))

    async def _call(self, call: Call) -> Any:
        method = getattr(self._stub, call.method)
        return await method(call.request, timeout=call.timeout, metadata=self._metadata)


_CLOSED = "The client is closed: connect again."


class Client:
    """A connection to a server, for the tasks of one event loop."""

    def __init__(self, session: Session, driver: _Driver):
        self._session = session
        self._driver = driver
        self._run = driver.run

    async def close(self) -> None:
        """Closes the connection. Open episodes live on until their lease runs out."""
        await self._driver.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def describe(self) -> Description:
        """The models that the server has, and its limits."""
        return await self._run(self._session.describe())

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
    ) -> "Opening[Episode]":
        """Starts an episode, by `await` or by `async with`, whose end also ends the episode.

        `seed` makes what `rule` draws repeatable. `lease` is how many seconds may pass between
        steps before the server closes the episode. `details` asks for any of `values`, `belief`
        and `entropy` with each action.
        """
        options = EpisodeOptions(self._model(model), version, seed, rule, lease)
        return Opening(
            self._run(open_episode(self._session, self._run, Episode, options, details, id))
        )

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
    ) -> "Opening[Episodes]":
        """Starts `n` episodes that step together, with the options of `episode`."""
        options = EpisodeOptions(self._model(model), version, seed, rule, lease)
        return Opening(
            self._run(open_episodes(self._session, self._run, Episodes, n, options, details))
        )

    def import_(
        self, sealed: SealedEpisode, *, details: tuple[Detail, ...] = ()
    ) -> "Opening[Episode]":
        """Continues an exported episode on this server, exactly where it was."""
        return Opening(self._run(open_export(self._session, self._run, Episode, sealed, details)))

    async def predict(
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
        return await self._run(
            playing.predict(
                self._session, self._run, Episodes, observation, state, episode_start, chosen
            )
        )

    def _model(self, name: str | None) -> str:
        return self._session.default_model if name is None else name


class Episode(AbstractEpisode):
    """One episode: an observation goes in, an action comes out."""

    async def __aenter__(self) -> "Episode":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._run(self._leave(error))

    async def act(self, observation: Observation, *, budget: float | None = None) -> int:
        """The action for the next observation, within `budget` seconds in all.

        After an interruption or a failure, call it again with the same observation: the step
        counts once, whether or not it had arrived.
        """
        return await self._run(self._act(observation, budget))

    async def explain(self) -> Explanation:
        """What the episode believed and expected at its last step."""
        return await self._run(self._explain())

    async def export(self, close: bool = False) -> SealedEpisode:
        """The episode's state, for `import_` elsewhere; with `close`, only the copy goes on."""
        return await self._run(self._export(close))

    async def end(self) -> None:
        """Ends the episode. To end it again is no error."""
        await self._run(self._end())


class Episodes(AbstractEpisodes):
    """Many episodes that step together: a row of observations for each."""

    async def __aenter__(self) -> "Episodes":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._run(self._leave(error))

    async def act(
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
        return await self._run(self._act(observations, done, budget))

    async def end(self) -> None:
        """Ends all of them. To end them again is no error."""
        await self._run(self._end())


async def play(
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
    return await client._run(
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
