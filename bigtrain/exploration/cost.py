"""Where exploring can be done, and what it pays there: S_COE × A_COE and p(k) (section 4.3).

    p(r | s, a, k) = N(k r_max, σ²) in S_COE × A_COE,        k ∈ [r_min / r_max, 1]

k [state, action], by broadcasting, over the states and actions named, not over all of them.

What bites: k < 1 in the paper. At 1 exploring pays as much as the best there is, and may never end;
that is allowed, and warned of. With r_max ≤ 0 a share of it means nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bigtrain.arrays import ArrayLike
from bigtrain.errors import ConfigError
from bigtrain.exploration.kpriors import KPrior, Uniform
from bigtrain.problem import Simulator, State

States = Sequence[int | str] | Callable[[State], bool | Bool[Array, ""]]
"""States by index or name (finite problems), or as a predicate.

A finite problem's predicate is asked of every index once; any other's is compiled.
"""


@final
@dataclass(frozen=True, eq=False)
class CostOfExploration:
    """Where exploring can be done, and p(k) there.

    `actions` are all of them unless given. The fields of `k` may differ between pairs: they are
    broadcast to [state, action] over the states and actions named here. Where the problem is not
    finite, `states` is a predicate and `k` can differ between actions only.
    """

    states: States
    actions: Sequence[int | str] | None = None
    k: KPrior = Uniform(0.0, 1.0)

    def mask(self, cmdp: Simulator) -> Bool[np.ndarray, "state action"]:
        """Which (state, action) the prior speaks of."""
        mask = np.zeros((cmdp.num_states, cmdp.num_actions), bool)
        mask[np.ix_(*self.indices(cmdp))] = True
        return mask

    def spread(self, cmdp: Simulator, values: ArrayLike) -> Float[np.ndarray, "state action"]:
        """`values` for the named pairs laid out over all of them, 0 elsewhere."""
        states, actions = self.indices(cmdp)
        table = np.zeros((cmdp.num_states, cmdp.num_actions))
        shape = len(states), len(actions)
        named = f"{len(states)} states and {len(actions)} actions of the exploration set"
        table[np.ix_(states, actions)] = _fit(values, shape, named)
        return table

    def describe(self, cmdp: Simulator) -> str:
        """The set and the prior in words that are the same in another process."""
        if cmdp.is_finite:
            states, actions = self.indices(cmdp)
            return f"states {states}, actions {actions}, {self.k!r}"
        predicate = getattr(self.states, "__qualname__", type(self.states).__qualname__)
        return f"states {predicate}, actions {self.actions}, {self.k!r}"

    def indices(self, cmdp: Simulator) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The states and the actions that span the exploration set, in the order of `k`."""
        states, actions = cmdp.state_indices(self.states), self._actions(cmdp)
        if not states or not actions:
            raise _empty(f"{len(states)} states and {len(actions)} actions")
        return states, actions

    def contains(self, cmdp: Simulator, state: State, action: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether the prior speaks of one pair; compiles."""
        row, column = self._place(cmdp, state, action)
        return (row >= 0) & (column >= 0)

    def pick(
        self, cmdp: Simulator, values: Float[Array, "..."], state: State, action: Int[Array, ""]
    ) -> Float[Array, ""]:
        """The entry for one pair of the set, of `values` in the shape of the fields of `k`."""
        values = values.reshape(
            (1, 1, *values.shape)[-2:]
        )  # [state, action], as broadcasting has it
        row, column = self._place(cmdp, state, action)
        # Clipped, since an axis of length 1 counts for every state or action.
        return values.at[row, column].get(mode="clip")

    def check_set(self, cmdp: Simulator) -> None:
        """Raises where the exploration set is empty or `k` does not fit it."""
        if cmdp.is_finite:
            self.spread(cmdp, self.k.mean)
            return
        self._predicate()
        if not (actions := self._actions(cmdp)):
            raise _empty("0 actions")
        named = f"{len(actions)} actions of the exploration set, since this problem is not finite"
        _fit(self.k.mean, (1, len(actions)), named)

    def check_occurring(self, states: State) -> None:
        """Raises unless some of a batch of states are in the set, by its predicate."""
        if not np.any(jax.jit(jax.vmap(self._predicate()))(states)):
            raise ConfigError(
                "`exploration` must hold some of the states that occur, got a predicate that none "
                f"of the {len(jax.tree.leaves(states)[0])} `states` fulfils. Check it, or give "
                "more states."
            )

    def check_support(self, reward_range: tuple[float, float]) -> None:
        """Raises unless k · r_max stays within the range, but for rounding."""
        r_min, r_max = reward_range
        low, high = self.k.support
        if r_max <= 0:
            raise ConfigError(
                "A cost of exploration is a share of `r_max`, so `r_max` must be positive, "
                f"got the range ({r_min}, {r_max}). Shift the range."
            )
        least = r_min / r_max
        # A k that somebody computed as r_min / r_max may differ from `least` by rounding.
        if not (np.all(low >= least - 1e-12 * abs(least)) and np.all(high <= 1)):
            raise ConfigError(
                f"`k` must lie from r_min/r_max = {least:g} to 1, "
                f"got {np.min(low):g} to {np.max(high):g}."
            )

    def _place(
        self, cmdp: Simulator, state: State, action: Int[Array, ""]
    ) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Row and column of the pair in the fields of `k`, -1 outside."""
        if cmdp.is_finite:
            states, actions = self.indices(cmdp)
            row = _places(states, cmdp.num_states)[state]
        else:
            actions = self._actions(cmdp)
            row = jnp.where(self._predicate()(state), 0, -1)
        return row, _places(actions, cmdp.num_actions)[action]

    def _predicate(self) -> Callable[[State], Bool[Array, ""]]:
        states = self.states
        if not callable(states):
            raise ConfigError(
                "`states` must be a predicate of the state, since this problem is not finite, "
                f"got {states}."
            )

        def explores(state: State) -> Bool[Array, ""]:
            found = jnp.asarray(states(state))
            if found.shape != () or found.dtype != bool:
                raise ConfigError(
                    "The predicate `states` must return one boolean for a state, "
                    f"got {found.dtype} of the shape {found.shape}."
                )
            return found

        return explores

    def _actions(self, cmdp: Simulator) -> tuple[int, ...]:
        if self.actions is None:
            return tuple(range(cmdp.num_actions))
        return cmdp.action_indices(self.actions)


def _places(indices: tuple[int, ...], count: int) -> Int[Array, " index"]:
    """Where each index up to `count` stands in `indices`, -1 where it does not."""
    places = np.full(count, -1)
    places[list(indices)] = np.arange(len(indices))
    return jnp.asarray(places)


def _fit(
    values: ArrayLike, shape: tuple[int, int], named: str
) -> Float[np.ndarray, "state action"]:
    fitted = np.empty(shape)
    try:
        fitted[:] = values
    except ValueError:
        raise ConfigError(
            f"`k` must be a number, or fit the {named}, got the shape {np.shape(values)}."
        ) from None
    return fitted


def _empty(found: str) -> ConfigError:
    return ConfigError(
        f"The exploration set must not be empty, got {found}. For no exploration prior, "
        "leave `exploration` out."
    )
