"""A version of a model, and the limits of the server, as Describe tells of them."""

import math
from collections.abc import Iterator

import numpy as np

from bigproto.v1 import policy_pb2 as wire
from bigserve.config import LimitsConfig
from bigserve.convert import NUMBERS
from bigserve.models import Version
from bigtrain.bundle import ArraySpec, Bundle


def write_model(version: Version) -> wire.Model:
    """A version, described."""
    bundle = version.bundle
    names = bundle.action_names
    model = wire.Model(
        name=version.name,
        version=version.digest,
        current=version.current,
        observation=[_write_spec(bundle.observation)],
        action=wire.ArraySpec(
            dtype=wire.Array.DTYPE_INT32, minimum=0, maximum=len(names) - 1, value_names=list(names)
        ),
        contexts=[
            wire.Context(name=name, prior=prior)
            for name, prior in zip(bundle.context_names, bundle.context_prior, strict=True)
        ],
        reward_minimum=bundle.reward_range[0],
        reward_maximum=bundle.reward_range[1],
        exploration=_write_exploration(bundle),
        training=_write_training(bundle, version.finished_at),
    )
    model.loaded_at.FromMilliseconds(round(1000 * version.loaded_at))
    regret = None if bundle.measured is None else bundle.measured.regret
    if regret is not None:
        model.regret.value = regret.absolute
        if regret.normalised is not None and math.isfinite(regret.normalised):
            model.regret.normalised = regret.normalised
    return model


def write_limits(limits: LimitsConfig) -> wire.Limits:
    """What a caller should know of the limits."""
    found = wire.Limits(
        max_episodes=limits.max_episodes,
        max_episodes_per_caller=limits.max_episodes_per_caller,
        max_items=limits.max_items,
        max_message_bytes=limits.max_message_bytes,
        max_tombstones_per_caller=limits.tombstones_per_caller,
    )
    for name in ("default_lease", "max_lease", "tombstone_lifetime"):
        getattr(found, name).FromMilliseconds(round(1000 * getattr(limits, name)))
    return found


def _write_spec(spec: ArraySpec) -> wire.ArraySpec:
    return wire.ArraySpec(
        name=spec.name,
        dtype=NUMBERS[np.dtype(spec.dtype)],
        shape=spec.shape,
        minimum=spec.minimum,
        maximum=spec.maximum,
        value_names=spec.value_names,
    )


def _write_exploration(bundle: Bundle) -> Iterator[wire.ExplorationCost]:
    exploration, problem = bundle.exploration, bundle.problem
    if exploration is None or problem is None:
        if bundle.exploration_note:
            note, unknown = bundle.exploration_note, math.nan
            yield wire.ExplorationCost(state=note, k_low=unknown, k_high=unknown)
        return
    low, high = (exploration.spread(problem, bound) for bound in exploration.k.support)
    states, actions = exploration.indices(problem)
    for state in states:
        pairs = {(float(low[state, action]), float(high[state, action])) for action in actions}
        if len(actions) == problem.num_actions and len(pairs) == 1:
            ((least, most),) = pairs
            yield wire.ExplorationCost(state=problem.state_names[state], k_low=least, k_high=most)
            continue
        for action in actions:
            yield wire.ExplorationCost(
                state=problem.state_names[state],
                action=problem.action_names[action],
                k_low=low[state, action],
                k_high=high[state, action],
            )


def _write_training(bundle: Bundle, finished_at: float) -> wire.Training:
    provenance = bundle.provenance
    methods = {"fit": wire.Training.METHOD_LEARNED, "solve": wire.Training.METHOD_EXACT}
    training = wire.Training(
        method=methods[provenance.method],
        seed=provenance.seed % 2**64,
        num_demonstrations=provenance.num_demonstrations,
        discount=bundle.gamma,
        trainer_version=provenance.versions.get("big-imitation", ""),
        settings=provenance.settings,
    )
    training.finished_at.FromMilliseconds(round(1000 * finished_at))
    return training
