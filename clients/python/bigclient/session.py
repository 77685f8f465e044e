"""What a client knows of its server, and the operations that open and close episodes."""

import dataclasses
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from google.protobuf import duration_pb2

from bigproto.v1 import policy_pb2

from .calls import Attempts, Operation, attempt
from .description import Description, Model, read_description
from .errors import ConfigError, DeadlineExceeded, NotFound, Unavailable, from_item
from .exports import SealedEpisode
from .settings import Greedy, Retry, Rule


@dataclasses.dataclass(frozen=True)
class EpisodeOptions:
    """What episodes are started with. `version` empty is the current one, `seed` None a new one."""

    model: str
    version: str = ""
    seed: int | None = None
    rule: Rule = Greedy()
    lease: float | None = None

    def __post_init__(self):
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ConfigError(f"`seed` must be in [0, 2**64), got {self.seed}.")
        if self.lease is not None and not self.lease > 0:
            raise ConfigError(f"`lease` must be above 0 seconds, got {self.lease}.")

    def request(self, ids: Sequence[str]) -> policy_pb2.StartRequest:
        """The request that starts such episodes, and may be sent again."""
        return policy_pb2.StartRequest(
            model=self.model,
            version=self.version,
            episode_ids=ids,
            # Always given: a server could not tell a retry from another start without.
            seed=secrets.randbits(64) if self.seed is None else self.seed,
            rule=self.rule.to_wire(),
            lease=None if self.lease is None else _duration(self.lease),
        )


class Session:
    """One client's view of its server; shared by its episodes and its threads."""

    def __init__(
        self,
        address: str,
        *,
        timeout: float,
        retry: Retry,
        model: str,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not timeout > 0:
            raise ConfigError(f"`timeout` must be above 0 seconds, got {timeout}.")
        self.address = address
        self.default_model = model
        self._timeout = timeout
        self._retry = retry
        self._clock = clock
        # Replaced as a whole, so threads may read it at any time.
        self._description: Description | None = None

    def attempts(self, budget: float | None = None) -> Attempts:
        """The attempts of one operation, within `budget` seconds or the client's own."""
        return Attempts(self._retry, self._timeout, budget, self._clock)

    def call(self, method: str, request: Any, budget: float | None = None) -> Operation[Any]:
        """One call, tried as often as it may be."""
        return (yield from attempt(method, request, self.attempts(budget)))

    def connect(self) -> Operation[None]:
        """Finds out what the server serves, or that there is none."""
        try:
            yield from self.describe(budget=self._timeout)
        except (Unavailable, DeadlineExceeded) as error:
            raise Unavailable(
                f"No server answers at {self.address} within {self._timeout:g} s. `bigserve` must "
                "run there, and listen on that host and port, with TLS if and only if `tls` is "
                f"given. The last attempt said: {error}"
            ) from None
        if self.default_model:
            yield from self.resolve(self.default_model, "")

    def describe(self, budget: float | None = None) -> Operation[Description]:
        """What the server serves now."""
        request = policy_pb2.DescribeRequest()
        self._description = read_description((yield from self.call("Describe", request, budget)))
        return self._description

    def resolve(self, name: str, version: str) -> Operation[Model]:
        """A version of a model; empty for the only model, and for its current version."""
        known = self._description
        if known is None or known.find(name, version) is None:
            known = yield from self.describe()
        names = list(dict.fromkeys(model.name for model in known.models))
        if not name and len(names) != 1:
            raise ConfigError(
                f"`model` must be given where a server has not just one: this one has {names}."
            )
        model = known.find(name, version)
        if model is None:
            which = f"version {version} of model `{name}`" if version else f"model `{name}`"
            raise NotFound(f"The server at {self.address} has no {which}; it has {names}.")
        if model.action.shape or model.action.dtype.kind not in "iu":
            raise ConfigError(
                f"The action of model `{model.name}` must be one whole number, got "
                f"{model.action.dtype} of shape {model.action.shape}: this client is too old."
            )
        return model

    def start(
        self, ids: Sequence[str], options: EpisodeOptions, attempts: Attempts
    ) -> Operation[Model]:
        """Starts episodes of these ids, and gives the model that they are on."""
        reply = yield from attempt("Start", options.request(ids), attempts)
        return (yield from self.resolve(reply.model, reply.version))

    def check_size(self, num_episodes: int, row_bytes: int) -> Operation[None]:
        """Raises if a step of so many episodes does not fit into a message."""
        known = self._description or (yield from self.describe())
        # An id of ours has 22 bytes; with it come a step, and the tags and lengths of both.
        fits = (known.limits.max_message_bytes - 256) // (row_bytes + 40)
        most = min(known.limits.max_items, fits)
        if not 1 <= num_episodes <= most:
            raise ConfigError(
                f"The number of episodes must be from 1 to {most}, which is what the server takes "
                f"in one message, got {num_episodes}: open several groups for more."
            )

    def export(self, id: str, close: bool) -> Operation[SealedEpisode]:
        """The state of an episode, sealed."""
        request = policy_pb2.ExportRequest(episode_ids=[id], close=close)
        reply = yield from self.call("Export", request)
        if reply.errors:
            raise from_item(reply.errors[0])
        return SealedEpisode(reply.episodes[0])

    def import_(self, sealed: SealedEpisode) -> Operation[Model]:
        """Continues an exported episode here, and gives the model that it is on."""
        request = policy_pb2.ImportRequest(episodes=[sealed.message])
        reply = yield from self.call("Import", request)
        if reply.errors:
            raise from_item(reply.errors[0])
        return (yield from self.resolve(*sealed.model_and_version))


def new_ids(count: int) -> list[str]:
    """Ids that nobody can guess, and with which Start may be sent again."""
    return [secrets.token_urlsafe(16) for _ in range(count)]


def derive_seed(seed: int, number: int) -> int:
    """A seed of its own for the n-th start that one seed was given for."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])


def _duration(seconds: float) -> duration_pb2.Duration:
    whole, rest = divmod(seconds, 1)
    return duration_pb2.Duration(seconds=int(whole), nanos=int(rest * 1e9))
