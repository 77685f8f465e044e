"""Swept targets: value iteration over the hyperstates h = (s, b) that were visited (section 4.4).

A sweep is one Bellman backup of all rows at once. With h' = (s', b') after s' and Bayes' rule,

    Q(h, a) = r̃(s, a) + γ Σ_s' p(s' | h, a) V(h')         [row, action],    V(h) = max_a Q(h, a),

            max_a r̃(s', a) / (1 − γ)                      where s' is absorbing
    V(h') = the table's V, renewed in each sweep          where h' is in the table
            min(max_a Q_φ(h', a), Σ_θ b'(θ) V*_θ(s'))     elsewhere.

Splitting the sum by these cases leaves V ← max_a (u + γ P V), with the constant u of the first and
last and P of the second: `constant` and `discounted` below. The network Q_φ is regressed on the
result and bootstraps only at the rim of the table; there is no sampling noise in its targets. See
docs/decisions/0008-values-are-swept.md.

What bites:
- Value iteration contracts by γ = 0.99 a sweep: 100 sweeps take away 63% of an error. Values are
  kept from iteration to iteration, so that they converge although no single one does.
- The network's maximum over actions is biased upwards, and backed up errors grow by 1/(1 − γ).
  The informed value V*_θ, that of an agent who knows θ, bounds it.
- An absorbing hyperstate's own row must be known as well, not only those that lead there.
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
    """The values of the hyperstates visited, by `num_sweeps` backups of all of them an iteration.

    A member's `targets` are the informed values V*_θ(s), [context, state], normalised as r̃ is.
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
        table = tables.add_trajectories(memory, trajectories, member.targets)
        successors = tables.successors_of(self.cmdp, table)
        # `network` is the average φ̄, which is steadier than what an update has just made.
        swept, values = self.sweep(network, member, table, successors)
        # Successors are only kept for the next iteration: they were not backed up in this one.
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
        rows, targets = jax.tree.map(lambda leaf: leaf[chosen], lesson)
        hidden = hidden_of(self.cmdp, network, rows.states, rows.log_beliefs)
        # All actions have a target, not only the one that was taken.
        errors = hidden @ network.head.T - targets
        return ValueLoss(weigh_errors(errors, self.advantage_weight), (errors**2).mean())

    def sweep(
        self,
        network: ValueNetwork,
        member: MemberParams,
        table: HyperstateTable,
        successors: Successors,
    ) -> tuple[HyperstateTable, Float[Array, "row action"]]:
        """`num_sweeps` of value iteration: the table with V renewed, and Q [row, action]."""
        gamma = self.cmdp.gamma
        rows = tables.find(table, successors)
        hidden = hidden_of(self.cmdp, network, successors.states, successors.log_beliefs)
        bootstrap = (hidden @ network.head.T).max(-1)
        informed = (jnp.exp(successors.log_beliefs) * member.targets.T[successors.states]).sum(-1)
        resting, rests = self._resting(member, table, successors)
        # What does not change between sweeps: the values of successors outside the table.
        fixed = jnp.where(rests, resting, jnp.where(rows < 0, jnp.minimum(bootstrap, informed), 0))
        constant = member.reward[table.states] + gamma * (successors.probs * fixed).sum(-1)
        # γ P, with 0 where `fixed` speaks; a row of −1 indexes the last one, times 0.
        discounted = gamma * jnp.where(rests | (rows < 0), 0, successors.probs)

        def backup(values):
            return constant + (discounted * values[rows]).sum(-1)

        values = jax.lax.fori_loop(
            0, self.num_sweeps, lambda _, values: backup(values).max(-1), table.values
        )
        return table._replace(values=values), backup(values)

    def _resting(
        self, member: MemberParams, table: HyperstateTable, successors: Successors
    ) -> tuple[Float[Array, "row action outcome"], Bool[Array, "row action outcome"]]:
        """V of successors that are absorbing, and which those are.

        The row of an absorbing s leads to itself: through the table its value would only contract
        towards this one, by γ a sweep.
        """
        value = value_of_resting(member.reward, self.cmdp.gamma)
        absorbing = jax.vmap(self.cmdp.is_absorbing)(jnp.arange(self.cmdp.num_states))
        here = absorbing[table.states][:, None, None]
        resting = jnp.where(here, value[table.states][:, None, None], value[successors.states])
        return resting, here | absorbing[successors.states]


def prepare_tables(
    cmdp: TabularCMDP,
    rewards: Sequence[PredictiveReward | ArrayLike],
    learning_rates: Sequence[float],
) -> tuple[TableRewards, MemberParams]:
    """The rewards of many members, normalised by what an agent who knew the context would get.

    With J = Σ_θ p(θ) Σ_s p(s_0 = s) V*_θ(s): c = (1 − γ) J, and informed values become
    (V* − c / (1 − γ)) / ρ = (V* − J) / ρ.
    """
    tabled = np.stack([table_of(cmdp, reward) for reward in rewards])
    scales = np.ptp(tabled, axis=(1, 2))
    if not scales.all():
        raise ConfigError("A reward must not be the same everywhere: any policy would do.")
    # [member, context, state], in float64: differences of 1 in values of 900.
    informed = np.stack([plan(cmdp, table).values for table in tabled])
    first = informed @ np.asarray(cmdp.initial) @ np.asarray(cmdp.context_prior)
    shift = (1 - cmdp.gamma) * first
    # [member, state, action]
    normalised = (tabled - shift[:, None, None]) / scales[:, None, None]
    informed = (informed - first[:, None, None]) / scales[:, None, None]
    numbers = (normalised, shift, scales, np.asarray(learning_rates), informed)
    return TableRewards(), MemberParams(*as_float32(numbers))
