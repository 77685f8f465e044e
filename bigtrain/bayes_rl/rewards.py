"""The predictive reward as phase 3 wants it: numbers that `vmap` can go over, normalised.

    r̃(s, a) = (r(s, a) − baseline) / scale

A constant is subtracted so that the long-run reward is near 0, and what is left is divided by the
range, so that values of 900 do not hide differences of 1 (design, point 10). Neither changes which
policy is best.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bigtrain.arrays import ArrayLike
from bigtrain.errors import ConfigError
from bigtrain.exploration import CostOfExploration, PredictiveReward
from bigtrain.problem import Simulator, State


class MemberParams(NamedTuple):
    """What may differ between policies that are learned side by side.

    `reward` is as the reward model wants it, normalised by `baseline` and `scale`; `targets` is
    what the targets of values need of a member.
    """

    reward: PyTree
    baseline: Float[Array, "*member"]
    scale: Float[Array, "*member"]
    learning_rate: Float[Array, "*member"]
    targets: PyTree = None


class RewardModel(eqx.Module):
    """What turns a member's `reward` into rewards."""

    @abc.abstractmethod
    def __call__(self, reward: PyTree, state: State) -> Float[Array, " action"]:
        """The normalised reward of every action in one state."""


class Linear(NamedTuple):
    """r̃ = ν·weights + bias, and what exploring is worth, where there is a prior over that."""

    weights: Float[Array, "*member feature"]
    bias: Float[Array, "*member"]
    worth: Float[Array, "..."] | None


@final
class LinearRewards(RewardModel):
    """Rewards of any simulator, from its features."""

    simulator: Simulator
    exploration: CostOfExploration | None = eqx.field(static=True)

    def __call__(self, reward: Linear, state: State) -> Float[Array, " action"]:
        def one(action):
            features = self.simulator.features(state, action)
            mean = jnp.dot(features, reward.weights, precision="highest") + reward.bias
            if self.exploration is None or reward.worth is None:
                return mean
            worth = self.exploration.pick(self.simulator, reward.worth, state, action)
            return jnp.where(self.exploration.contains(self.simulator, state, action), worth, mean)

        return jax.vmap(one)(jnp.arange(self.simulator.num_actions))


def prepare_linear(
    simulator: Simulator,
    rewards: Sequence[PredictiveReward | ArrayLike],
    learning_rates: Sequence[float],
    baselines: Sequence[float] | None,
) -> tuple[LinearRewards, MemberParams]:
    """The rewards of many members. `baselines` say what reward a step is likely to be got.

    Tables [state, action] are refused: they are for finite problems.
    """
    inferred = [reward for reward in rewards if isinstance(reward, PredictiveReward)]
    if len(inferred) < len(rewards):
        raise ConfigError(
            "`reward` must be a `PredictiveReward`, since this problem is not finite."
        )
    costs = [reward.exploration for reward in inferred]
    sets = [None if cost is None else (cost.states, cost.actions) for cost in costs]
    if any(chosen != sets[0] for chosen in sets):
        raise ConfigError(
            "Rewards learned for side by side must have one exploration set, since this problem "
            "is not finite; only k may differ."
        )
    scales = np.array([r.reward_range[1] - r.reward_range[0] for r in inferred])
    # Without anything better the middle of the range: wrong, but by less than the range.
    shift = np.array(baselines or [np.mean(r.reward_range) for r in inferred], np.float64)
    # Of one exploration set, so all of them have a prior or none has.
    worths = [
        (np.asarray(r.exploration.k.mean) * r.reward_range[1] - low) / scale
        for r, low, scale in zip(inferred, shift, scales, strict=True)
        if r.exploration is not None
    ]
    weights = np.stack([np.asarray(r.weights) for r in inferred]) / scales[:, None]
    bias = (np.array([r.bias for r in inferred]) - shift) / scales
    linear = Linear(*as_float32((weights, bias, np.stack(worths) if worths else None)))
    params = MemberParams(linear, *as_float32((shift, scales, np.asarray(learning_rates))))
    return LinearRewards(simulator, costs[0]), params


def as_float32(arrays: PyTree) -> Any:
    """Numbers for compiled code, in the same structure."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), arrays)
