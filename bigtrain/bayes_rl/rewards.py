"""The predictive reward as phase 3 wants it: numbers that `vmap` can go over, normalised.

    r̃(s, a) = (r(s, a) − c) / ρ,        Q(h, a) = ρ Q̃(h, a) + c / (1 − γ)

r is the mean of p^{IRL+COE} (eq:predictive_reward of section 4.4), [state, action] or a function:

    r(s, a) = k* r_max  where exploring is done,  ν(s, a)·ω̄ + bias  elsewhere.

c is the reward a step that is likely to be got, (1 − γ) times a value, and ρ the range of r. They
do not change which policy is best, since no episode ends. Without them values of 900 hide
differences of 1 (design, point 10): a network that is off by 0.1% is wrong about what to do.

What bites: 1/(1 − γ) = 100 turns an error of c into one of values, the same for all actions. That
is harmless to the policy and slow to learn away, so c should be right to some percent of the range.
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

    `reward` is r̃ as the reward model wants it, `baseline` and `scale` are its c and ρ; `targets`
    is what the targets of values need of a member.
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
    """r̃ = ν·weights + bias; `exploring`, in the shape of k's fields, is (k* r_max − c) / ρ."""

    weights: Float[Array, "*member feature"]
    bias: Float[Array, "*member"]
    exploring: Float[Array, "..."] | None


@final
class LinearRewards(RewardModel):
    """Rewards of any simulator, from its features."""

    simulator: Simulator
    exploration: CostOfExploration | None = eqx.field(static=True)

    def __call__(self, reward: Linear, state: State) -> Float[Array, " action"]:
        def one(action):
            features = self.simulator.features(state, action)
            # Terms may cancel, and on GPUs the default precision is below float32's.
            mean = jnp.dot(features, reward.weights, precision="highest") + reward.bias
            if self.exploration is None or reward.exploring is None:
                return mean
            paid = self.exploration.pick(self.simulator, reward.exploring, state, action)
            return jnp.where(self.exploration.contains(self.simulator, state, action), paid, mean)

        return jax.vmap(one)(jnp.arange(self.simulator.num_actions))


def rescale_member(
    member: MemberParams, shift: Float[Array, ""], scale: Float[Array, ""]
) -> MemberParams:
    """The member with (r̃ − shift) / scale in place of r̃."""
    weights, bias, exploring = member.reward
    if exploring is not None:
        exploring = (exploring - shift) / scale
    return member._replace(
        reward=Linear(weights / scale, (bias - shift) / scale, exploring),
        baseline=member.baseline + member.scale * shift,
        scale=member.scale * scale,
    )


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
    # One exploration set is compiled in, so members may differ in k only, not in where it counts.
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
    exploring = [
        (np.asarray(r.exploration.k.mean) * r.reward_range[1] - low) / scale
        for r, low, scale in zip(inferred, shift, scales, strict=True)
        if r.exploration is not None
    ]
    # (ν·ω̄ + bias − c) / ρ, in float64: here the large numbers cancel.
    weights = np.stack([np.asarray(r.weights) for r in inferred]) / scales[:, None]
    bias = (np.array([r.bias for r in inferred]) - shift) / scales
    linear = Linear(*as_float32((weights, bias, np.stack(exploring) if exploring else None)))
    params = MemberParams(linear, *as_float32((shift, scales, np.asarray(learning_rates))))
    return LinearRewards(simulator, costs[0]), params


def as_float32(arrays: PyTree) -> Any:
    """Numbers for compiled code, in the same structure."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), arrays)
