"""The operations that give a user an episode: a new one, many, or one that was exported."""

from collections.abc import Callable
from typing import Any, TypeVar

from .calls import Operation
from .episode import AbstractEpisode, check_details
from .episodes import AbstractEpisodes
from .exports import SealedEpisode
from .observations import ObservationSpec
from .session import EpisodeOptions, Session, new_ids
from .settings import Detail

Run = Callable[[Operation[Any]], Any]
One = TypeVar("One", bound=AbstractEpisode)
Many = TypeVar("Many", bound=AbstractEpisodes)


def open_episode(
    session: Session,
    run: Run,
    kind: type[One],
    options: EpisodeOptions,
    details: tuple[Detail, ...],
    id: str | None,
) -> Operation[One]:
    """Starts one episode."""
    check_details(details, (yield from session.resolve(options.model, options.version)))
    ids = new_ids(1) if id is None else [id]
    model = yield from session.start(ids, options, session.attempts())
    return kind(session, run, model, ids[0], details)


def open_episodes(
    session: Session,
    run: Run,
    kind: type[Many],
    count: int,
    options: EpisodeOptions,
    details: tuple[Detail, ...],
) -> Operation[Many]:
    """Starts a group of episodes."""
    model = yield from session.resolve(options.model, options.version)
    check_details(details, model)
    yield from session.check_size(count, ObservationSpec(model).row_bytes)
    ids = new_ids(count)
    model = yield from session.start(ids, options, session.attempts())
    return kind(session, run, model, ids, details, options)


def open_export(
    session: Session,
    run: Run,
    kind: type[One],
    sealed: SealedEpisode,
    details: tuple[Detail, ...],
) -> Operation[One]:
    """Continues an exported episode."""
    model = yield from session.import_(sealed)
    check_details(details, model)
    return kind(session, run, model, sealed.episode_id, details, sealed.step)
