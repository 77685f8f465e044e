"""The predictive reward as phase 3 wants it: numbers that `vmap` can go over, normalised.

A constant is subtracted so that the long-run reward is near 0, and what is left is divided by the
range, so that values of 900 do not hide differences of 1 (design, point 10). Neither changes which
policy is best.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bigtrain.arrays import ArrayLike
from bigtrain.errors import ConfigError
from bigtrain.exploration import CostOfExploration, PredictiveReward
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact.planning import plan, reward_table
from bigtrain.problem import CMDP, State


class Numbers(NamedTuple):
    """What may differ between policies that are learned side by side.

    `reward` is a table of finite problems, and otherwise the weights, the bias, and what exploring
    is worth. It is normalised by `baseline` and `scale`. `informed` is what an agent would get who
    is told the context, normalised too: no belief is worth more. Finite problems know it.
    """

    reward: Any
    baseline: Float[Array, "*member"]
    scale: Float[Array, "*member"]
    learning_rate: Float[Array, "*member"]
    informed: Float[Array, "*member context state"] | None


class _Linear(NamedTuple):
    weights: Float[np.ndarray | Array, "*member feature"]
    bias: Float[np.ndarray | Array, "*member"]
    worth: Float[np.ndarray | Array, "..."] | None


class RewardModel(eqx.Module):
    """What turns `Numbers` into rewards: the problem, and the exploration set of a simulator."""

    cmdp: CMDP
    exploration: CostOfExploration | None = eqx.field(static=True)

    def __call__(self, numbers: Numbers, state: State) -> Float[Array, " action"]:
        """The normalised reward of every action in one state."""
        if isinstance(self.cmdp, TabularCMDP):
            return numbers.reward[state]
        linear = numbers.reward

        def one(action):
            features = self.cmdp.features(state, action)
            mean = jnp.dot(features, linear.weights, precision="highest") + linear.bias
            if self.exploration is None:
                return mean
            worth = self.exploration.pick(self.cmdp, linear.worth, state, action)
            return jnp.where(self.exploration.contains(self.cmdp, state, action), worth, mean)

        return jax.vmap(one)(jnp.arange(self.cmdp.num_actions))


def prepare(
    cmdp: CMDP,
    rewards: Sequence[PredictiveReward | ArrayLike],
    learning_rates: Sequence[float],
    baselines: Sequence[float] | None,
) -> tuple[RewardModel, Numbers]:
    """The rewards of many members as one model and stacked numbers.

    The baseline of a finite problem is what an agent who knew the context would get a step. For
    others `baselines` says what is likely to be got.
    """
    if isinstance(cmdp, TabularCMDP):
        tables = np.stack([_table(cmdp, reward) for reward in rewards])
        scales = np.ptp(tables, axis=(1, 2))
        if not scales.all():
            raise ConfigError("A reward must not be the same everywhere: any policy would do.")
        informed = np.stack([plan(cmdp, table).values for table in tables])
        first = informed @ np.asarray(cmdp.initial) @ np.asarray(cmdp.context_prior)
        shift = (1 - cmdp.gamma) * first
        informed = (informed - first[:, None, None]) / scales[:, None, None]
        numbers = (tables - shift[:, None, None]) / scales[:, None, None]
        model = RewardModel(cmdp, None)
    else:
        informed = None
        model, numbers, shift, scales = _prepare_linear(cmdp, rewards, baselines)
    parts = (numbers, shift, scales, np.asarray(learning_rates), informed)
    return model, Numbers(*jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), parts))


def _prepare_linear(
    cmdp: CMDP, rewards: Sequence[Any], baselines: Sequence[float] | None
) -> tuple[RewardModel, _Linear, Float[np.ndarray, " member"], Float[np.ndarray, " member"]]:
    if not all(isinstance(reward, PredictiveReward) for reward in rewards):
        raise ConfigError(
            "`reward` must be a `PredictiveReward`, since this problem is not finite."
        )
    sets = [
        (r.exploration.states, r.exploration.actions) if r.exploration else None for r in rewards
    ]
    if any(chosen != sets[0] for chosen in sets):
        raise ConfigError(
            "Rewards learned for side by side must have one exploration set, since this problem "
            "is not finite; only k may differ."
        )
    scales = np.array([r.reward_range[1] - r.reward_range[0] for r in rewards])
    # Without anything better the middle of the range: wrong, but by less than the range.
    shift = np.array(baselines or [np.mean(r.reward_range) for r in rewards], np.float64)
    worth = None
    if sets[0] is not None:
        means = [np.asarray(r.exploration.k.mean) * r.reward_range[1] for r in rewards]
        worth = np.stack(
            [(mean - low) / scale for mean, low, scale in zip(means, shift, scales, strict=True)]
        )
    linear = _Linear(
        np.stack([np.asarray(r.weights) for r in rewards]) / scales[:, None],
        (np.array([r.bias for r in rewards]) - shift) / scales,
        worth,
    )
    return RewardModel(cmdp, rewards[0].exploration), linear, shift, scales


def _table(
    cmdp: TabularCMDP, reward: PredictiveReward | ArrayLike
) -> Float[np.ndarray, "state action"]:
    return reward_table(cmdp, reward.table() if isinstance(reward, PredictiveReward) else reward)
