"""Swept targets: value iteration over the hyperstates that were met.

    Q(s, b, a) = r̃(s, a) + γ Σ_s' p(s' | s, b, a) V(s', b'),    V = max_a Q

There is no noise in what follows, so a sweep updates all hyperstates at once, and the network is
only ever regressed on the result. See docs/decisions/0008-values-are-swept.md.
"""

from collections.abc import Sequence
from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bigtrain.arrays import ArrayLike
from bigtrain.bayes_rl import (
    MemberParams,
    RewardModel,
    ValueLoss,
    ValueTargets,
    as_float32,
    hidden_of,
    value_of_resting,
    weigh_errors,
)
from bigtrain.errors import ConfigError
from bigtrain.exploration import PredictiveReward
from bigtrain.finite import hyperstate_table as tables
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.evaluation import table_of
from bigtrain.finite.exact.planning import plan
from bigtrain.finite.hyperstate_table import HyperstateTable, Successors
from bigtrain.policy import ValueNetwork
from bigtrain.problem import State, Trajectories

Lesson = tuple[HyperstateTable, Float[Array, "row action"]]
"""Hyperstates, and the value of every action there."""


@final
class TableRewards(RewardModel):
    """A member's reward is a table [state, action]."""

    def __call__(self, reward: Float[Array, "state action"], state: State) -> Float[Array, "a"]:
        return reward[state]


@final
class SweptTargets(ValueTargets):
    """The values of the hyperstates met, by `num_sweeps` backups of all of them an iteration.

    A member's `targets` are what an agent would get who is told the context, [context, state].
    """

    bootstraps: ClassVar[bool] = False
    settles: ClassVar[bool] = False
    cmdp: TabularCMDP
    num_hyperstates: int = eqx.field(static=True)
    num_sweeps: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    advantage_weight: float = eqx.field(static=True)

    def init(self) -> HyperstateTable:
        return tables.empty(self.num_hyperstates, self.cmdp.num_contexts)

    def prepare(
        self,
        memory: HyperstateTable,
        member: MemberParams,
        network: ValueNetwork,
        trajectories: Trajectories,
        key: PRNGKeyArray,
    ) -> tuple[HyperstateTable, Lesson]:
        met = tables.add_trajectories(memory, trajectories, member.targets)
        successors = tables.successors_of(self.cmdp, met)
        swept, values = self.sweep(network, member, met, successors)
        return tables.add_successors(swept, successors, member.targets), (swept, values)

    def loss(
        self,
        network: ValueNetwork,
        lagging: ValueNetwork,
        member: MemberParams,
        lesson: Lesson,
        replayed: Trajectories | None,
        draw: Float[Array, ""],
    ) -> ValueLoss:
        chosen = tables.sample(lesson[0], draw, self.batch_size)
        met, targets = jax.tree.map(lambda leaf: leaf[chosen], lesson)
        hidden = hidden_of(self.cmdp, network, met.states, met.log_beliefs)
        errors = hidden @ network.head.T - targets
        return ValueLoss(weigh_errors(errors, self.advantage_weight), (errors**2).mean())

    def sweep(
        self,
        network: ValueNetwork,
        member: MemberParams,
        met: HyperstateTable,
        successors: Successors,
    ) -> tuple[HyperstateTable, Float[Array, "row action"]]:
        """The table with its values renewed, and those of every action.

        A successor has one of three values. Where it rests for ever, that is known. Where it is in
        the table, it is the table's, renewed in each sweep. Where it has not been met, it is what
        the network makes of it, and no more than to one who is told the context.
        """
        gamma = self.cmdp.gamma
        rows = tables.find(met, successors)
        hidden = hidden_of(self.cmdp, network, successors.states, successors.log_beliefs)
        guessed = (hidden @ network.head.T).max(-1)
        informed = (jnp.exp(successors.log_beliefs) * member.targets.T[successors.states]).sum(-1)
        resting, rests = self._resting(member, met, successors)
        fixed = jnp.where(rests, resting, jnp.where(rows < 0, jnp.minimum(guessed, informed), 0))
        gained = member.reward[met.states] + gamma * (successors.probs * fixed).sum(-1)
        onward = gamma * jnp.where(rests | (rows < 0), 0, successors.probs)

        def backup(values):
            return gained + (onward * values[rows]).sum(-1)

        values = jax.lax.fori_loop(
            0, self.num_sweeps, lambda _, values: backup(values).max(-1), met.values
        )
        return met._replace(values=values), backup(values)

    def _resting(
        self, member: MemberParams, met: HyperstateTable, successors: Successors
    ) -> tuple[Float[Array, "row action outcome"], Bool[Array, "row action outcome"]]:
        """What successors are worth that lead to themselves for ever, and which those are.

        A hyperstate that rests itself leads to itself, whatever stands in the table.
        """
        value = value_of_resting(member.reward, self.cmdp.gamma)
        absorbing = jax.vmap(self.cmdp.is_absorbing)(jnp.arange(self.cmdp.num_states))
        here = absorbing[met.states][:, None, None]
        worth = jnp.where(here, value[met.states][:, None, None], value[successors.states])
        return worth, here | absorbing[successors.states]


def prepare_tables(
    cmdp: TabularCMDP,
    rewards: Sequence[PredictiveReward | ArrayLike],
    learning_rates: Sequence[float],
) -> tuple[TableRewards, MemberParams]:
    """The rewards of many members, normalised by what an agent who knew the context would get."""
    tabled = np.stack([table_of(cmdp, reward) for reward in rewards])
    scales = np.ptp(tabled, axis=(1, 2))
    if not scales.all():
        raise ConfigError("A reward must not be the same everywhere: any policy would do.")
    informed = np.stack([plan(cmdp, table).values for table in tabled])
    first = informed @ np.asarray(cmdp.initial) @ np.asarray(cmdp.context_prior)
    shift = (1 - cmdp.gamma) * first
    normalised = (tabled - shift[:, None, None]) / scales[:, None, None]
    informed = (informed - first[:, None, None]) / scales[:, None, None]
    numbers = (normalised, shift, scales, np.asarray(learning_rates), informed)
    return TableRewards(), MemberParams(*as_float32(numbers))
