"""The models that are loaded, each with the versions that still have episodes."""

import asyncio
import collections
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Shaped

from bigserve.acts import Waiting
from bigserve.config import ServerConfig
from bigserve.engine import Engine
from bigserve.errors import BundleRefused, InvalidRequest, NotFound, quoted
from bigserve.worker import Worker
from bigtrain import load_bundle
from bigtrain.bundle import Bundle
from bigtrain.errors import BundleError

log = logging.getLogger("bigserve")

DTYPES = ("bool", "uint8", "int32", "int64", "float32", "float64")
"""What observations can be on the wire."""


@final
class Version:
    """A bundle that is being served, and where each of its episodes stands, by slot.

    `rows` holds what the engine gave last, `seen` the observation it was given, in words; and
    `waiting` the Acts that the engine has not begun, while it is `running` others.
    """

    def __init__(
        self,
        number: int,
        name: str,
        path: Path,
        bundle: Bundle,
        engine: Engine,
        capacity: int,
        worker: Worker,
    ):
        self.number, self.name, self.path = number, name, path
        self.bundle, self.engine, self.worker = bundle, engine, worker
        self.finished_at = path.stat().st_mtime
        self.loaded_at = time.time()
        self.current = True
        self.live = 0
        self.waiting: collections.deque[Waiting] = collections.deque()
        self.running = False
        self.layout = engine.layout
        self.rows, self.seen = self.layout.make_rows(capacity), self.layout.make_seen(capacity)

    def view(self, data: bytes, count: int) -> Shaped[np.ndarray, "episode ..."]:
        """Observations of so many episodes in bytes."""
        spec = self.bundle.observation
        return np.frombuffer(data, spec.dtype).reshape(count, *spec.shape)

    @property
    def digest(self) -> str:
        """What the wire calls the version."""
        return self.bundle.digest

    def fits(self, other: "Version") -> bool:
        """Whether steps of both may share a message."""
        mine, its = self.bundle, other.bundle
        return (mine.observation, mine.action_names, mine.context_names) == (
            its.observation,
            its.action_names,
            its.context_names,
        )


@final
class Models:
    """Loads bundles, says which version new episodes take, and lets go of the others."""

    def __init__(self, config: ServerConfig):
        self._config = config
        self._versions: dict[int, Version] = {}
        self._next = 0
        self._loading = asyncio.Lock()
        self._unloading: set[asyncio.Task] = set()

    def __iter__(self) -> Iterator[Version]:
        """All versions, newest first."""
        return iter(sorted(self._versions.values(), key=lambda v: (v.name, -v.number)))

    def __getitem__(self, number: int) -> Version:
        return self._versions[number]

    @property
    def names(self) -> list[str]:
        """The models."""
        return sorted({version.name for version in self._versions.values()})

    def choose(self, name: str, digest: str) -> Version:
        """The version that a caller asks for; the current one of the only model by default."""
        if not name:
            if len(self.names) != 1:
                raise InvalidRequest(
                    f"`model` must be named where there are several: {', '.join(self.names)}."
                )
            (name,) = self.names
        own = [version for version in self if version.name == name]
        if not own:
            raise NotFound(f"There is no model {quoted(name)} here, but {', '.join(self.names)}.")
        for version in own:
            if version.digest == digest or (not digest and version.current):
                return version
        raise NotFound(
            f"Version {quoted(digest)} of model {quoted(name)} is not loaded. Leave `version` "
            "empty to get the current one."
        )

    def find(self, name: str, digest: str) -> Version | None:
        """A version that is loaded, if it is."""
        for version in self:
            if (version.name, version.digest) == (name, digest):
                return version
        return None

    async def load(self, name: str, path: Path) -> Version:
        """Reads and compiles a bundle; new episodes then take it. Serving goes on meanwhile."""
        async with self._loading:  # one at a time, so that the last to be asked for wins
            bundle = await asyncio.to_thread(_read, path)
            known = self.find(name, bundle.digest)
            if known is None:
                engine = await asyncio.to_thread(self._compile, bundle)
                known = self._add(name, path, bundle, engine)
            known.path = path
            for version in self:
                if version.name == name:
                    version.current = version is known
                    self.let_go(version)
            return known

    async def reload(self) -> None:
        """Reads the files of all models again. One that cannot be read leaves its model as is."""
        for version in [version for version in self if version.current]:
            try:
                await self.load(version.name, version.path)
            except Exception:
                log.exception("model %s stays as it is: %s", version.name, version.path)

    def let_go(self, version: Version) -> None:
        """Unloads a version that nobody needs any more."""
        if version.current or version.live or version.number not in self._versions:
            return
        del self._versions[version.number]
        task = asyncio.get_running_loop().create_task(version.worker.close())
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)
        log.info("unloaded", extra={"model": version.name, "version": version.digest})

    async def close(self) -> None:
        """Ends the engines, once they have done what was submitted."""
        await asyncio.gather(*(version.worker.close() for version in self), *self._unloading)

    def _compile(self, bundle: Bundle) -> Engine:
        engine = Engine(bundle.policy, bundle.observation, sizes=self._config.batching.sizes)
        # Explanations compile a little too, at the first one.
        bundle.explain(np.zeros(bundle.observation.shape, bundle.observation.dtype))
        return engine

    def _add(self, name: str, path: Path, bundle: Bundle, engine: Engine) -> Version:
        number, self._next = self._next, self._next + 1
        capacity = self._config.limits.max_episodes
        worker = Worker(asyncio.get_running_loop(), f"engine-{name}")
        version = Version(number, name, path, bundle, engine, capacity, worker)
        self._versions[number] = version
        log.info("loaded", extra={"model": name, "version": bundle.digest, "path": str(path)})
        return version


def _read(path: Path) -> Bundle:
    try:
        bundle = load_bundle(path)
    except FileNotFoundError:
        raise NotFound(f"There must be a bundle at {path.name}, and there is none.") from None
    except (BundleError, OSError) as error:
        raise BundleRefused(f"{path.name} cannot be served: {error}") from None
    if bundle.observation.dtype not in DTYPES:
        raise BundleRefused(
            f"{path.name} cannot be served: observations must be one of {', '.join(DTYPES)}, and "
            f"its are {bundle.observation.dtype}. Observe in a wider type."
        )
    return bundle
