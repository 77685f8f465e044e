"""How a result came about: settings, versions and digests, enough to do it again."""

import dataclasses
import hashlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Literal, final

import jax
import numpy as np

from bigtrain.data import Demonstrations
from bigtrain.problem import Simulator
from bigtrain.runs import flatten_settings

PACKAGES = ("big-imitation", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")


@final
@dataclasses.dataclass(frozen=True)
class Provenance:
    """How a policy came about.

    `settings` are all settings as text, by their dotted names; `versions` those of the packages
    at work. There is no date in it: what is made again from the same is the same.
    """

    method: Literal["fit", "solve"]
    seed: int
    num_demonstrations: int
    demonstrations_digest: str
    problem_digest: str
    settings: Mapping[str, str]
    versions: Mapping[str, str]


def trace(
    method: Literal["fit", "solve"],
    cmdp: Simulator,
    demonstrations: Demonstrations,
    *,
    settings: Mapping[str, Any],
    seed: int,
) -> Provenance:
    """The provenance of a result."""
    return Provenance(
        method,
        seed,
        len(demonstrations),
        demonstrations.digest(),
        digest(cmdp),
        flatten_settings(settings),
        {name: metadata.version(name) for name in PACKAGES},
    )


def digest(cmdp: Simulator) -> str:
    """SHA-256 of the kind of problem, its discount and all its arrays."""
    result = hashlib.sha256(f"{type(cmdp).__qualname__} {cmdp.gamma!r}\n".encode())
    for leaf in jax.tree.leaves(cmdp):
        values = np.asarray(leaf)
        result.update(f"{values.dtype.str} {values.shape}\n".encode() + values.tobytes())
    return result.hexdigest()
