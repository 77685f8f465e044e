"""For loops of others: a step as Stable-Baselines3 does it, and a Gymnasium environment played."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .calls import Operation
from .episode import AbstractEpisode
from .errors import ConfigError
from .observations import Observation, ObservationSpec
from .opening import Many, Run, open_episode, open_episodes
from .session import EpisodeOptions, Session, derive_seed
from .settings import Rule


def predict(
    session: Session,
    run: Run,
    kind: type[Many],
    observation: Observation,
    state: Many | None,
    episode_start: npt.ArrayLike | None,
    rule: Rule,
) -> Operation[tuple[np.ndarray, Many]]:
    """One step in the manner of Stable-Baselines3, whose state is a group of episodes.

    Actions and `episode_start` are [episode]; of one observation the action has no axis.
    """
    if state is None:
        model = yield from session.resolve(session.default_model, "")
    else:
        model = state.model
    count = ObservationSpec(model).num_rows(observation)
    if single := count is None:
        observation = _as_row(observation)
    if state is None:
        options = EpisodeOptions(session.default_model, rule=rule)
        state = yield from open_episodes(session, run, kind, 1 if single else count, options, ())
    done = None if episode_start is None else np.atleast_1d(np.asarray(episode_start, np.bool_))
    actions = yield from state._act(observation, done, None)
    return (actions[0] if single else actions), state


def _as_row(observation: Observation) -> Observation:
    if isinstance(observation, Mapping):
        return {name: np.asarray(entry)[None] for name, entry in observation.items()}
    if isinstance(observation, tuple):
        return tuple(np.asarray(entry)[None] for entry in observation)
    return np.asarray(observation)[None]


@dataclasses.dataclass(frozen=True)
class Played:
    """The sum of rewards and the number of steps of each episode that was played."""

    returns: np.ndarray
    lengths: np.ndarray


def play(
    env: Any,
    session: Session,
    run: Run,
    *,
    episodes: int,
    max_steps: int | None,
    seed: int | None,
    options: EpisodeOptions,
) -> Operation[Played]:
    """Plays a Gymnasium environment, an episode of the policy for each of its own."""
    if hasattr(env, "num_envs"):
        raise ConfigError(
            "`env` must be a single environment, got a vector of them: step these with "
            "`client.episodes(env.num_envs)`."
        )
    if episodes < 1:
        raise ConfigError(f"`episodes` must be at least 1, got {episodes}.")
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    for number in range(episodes):
        # A seed for the first only: from there on the environment's own stream goes on.
        observation, _ = env.reset(seed=seed if number == 0 else None)
        if seed is not None:
            options = dataclasses.replace(options, seed=derive_seed(seed, number))
        episode = yield from open_episode(session, run, AbstractEpisode, options, (), None)
        error, over = None, False
        try:
            while not over and lengths[number] != max_steps:
                action = yield from episode._act(observation, None)
                observation, reward, terminated, truncated, _ = env.step(action)
                returns[number] += reward
                lengths[number] += 1
                over = terminated or truncated
        except BaseException as raised:
            error = raised
            raise
        finally:
            yield from episode._leave(error)
    return Played(returns, lengths)
