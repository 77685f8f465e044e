"""The two stages of phase 3 as pure functions of a state, compiled, with members by `vmap`.

A member is a seed with its numbers: a reward, a learning rate. *Features*: ε-greedy lanes, and
gradient updates of a dueling network. In a finite problem it regresses on the values of the
hyperstates met, which sweeps find; in any other it learns by double Q-learning. *Settling*, which
only the latter need: all layers but the last are kept, and the head is put where the expected
update vanishes, with fresh lanes in between.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from bigtrain.bayes_rl import backups
from bigtrain.bayes_rl.config import BayesRLConfig
from bigtrain.bayes_rl.lanes import Lanes, look, roll_out, wander
from bigtrain.bayes_rl.rewards import Numbers, RewardModel
from bigtrain.belief import Filter, Posterior
from bigtrain.belief.amortised import clip_log_belief
from bigtrain.data import replay
from bigtrain.data.replay import Ring
from bigtrain.finite import hyperstate_table as hyperstates
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.hyperstate_table import Met
from bigtrain.learning import heads
from bigtrain.policy import ValueNetwork
from bigtrain.problem import CMDP, NO_ACTION

PLAIN_ROUNDS = 4
"""Rounds of settling before the head becomes an average over rounds."""

_SOLVER_STEPS = 4


class Learner(eqx.Module):
    """What learning needs and does not change."""

    cmdp: CMDP
    filter: Filter
    rewards: RewardModel
    config: BayesRLConfig = eqx.field(static=True)
    learn_belief: bool = eqx.field(static=True)
    expected: bool = eqx.field(static=True)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(self.config.max_gradient_norm), optax.scale_by_adam()
        )


class Networks(NamedTuple):
    """What is learned: values of actions, and beliefs where these are learned."""

    values: ValueNetwork
    posterior: Posterior | None


class LearnerState(NamedTuple):
    """What changes, of one member. `average` is what acts in the end.

    Where values are swept there is no target network, and lanes are kept only to learn beliefs.
    """

    networks: Networks
    target: ValueNetwork | None
    average: Networks
    optimiser: optax.OptState
    lanes: Ring | None
    met: Met | None
    step: Int[Array, ""]
    key: PRNGKeyArray


class Metrics(NamedTuple):
    """What is measured of an iteration or a round.

    `loss` is the mean squared error of values and `belief_loss` that of log-beliefs, both
    normalised; `reward` is the mean normalised reward a step of the lanes.
    """

    loss: Float[Array, ""]
    belief_loss: Float[Array, ""]
    reward: Float[Array, ""]


def init(learner: Learner, key: PRNGKeyArray) -> LearnerState:
    """Before the first iteration."""
    config, cmdp = learner.config, learner.cmdp
    key_values, key_posterior, key_examples, key = jax.random.split(key, 4)
    examples = jax.vmap(cmdp.observe)(wander(cmdp, key_examples))
    values = ValueNetwork(
        examples,
        num_contexts=cmdp.num_contexts,
        num_actions=cmdp.num_actions,
        config=config.model,
        key=key_values,
    )
    posterior = None
    if learner.learn_belief:
        posterior = Posterior(
            examples,
            context_prior=cmdp.context_prior,
            num_actions=cmdp.num_actions,
            config=config.model.network,
            core_width=config.model.core_width if config.model.core == "gru" else None,
            key=key_posterior,
        )
    networks = Networks(values, posterior)
    lanes = met = None
    if learner.expected:
        met = hyperstates.nothing(config.num_hyperstates, cmdp.num_contexts)
    if learner.learn_belief or not learner.expected:
        several = jax.eval_shape(lambda: _roll_out(learner, values, key_examples, 1.0))
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), several)
        lanes = replay.empty(one, config.lanes.replay_size)
    return LearnerState(
        networks,
        None if learner.expected else values,
        networks,
        learner.optimiser.init(eqx.filter(networks, eqx.is_array)),
        lanes,
        met,
        jnp.asarray(0),
        key,
    )


@eqx.filter_jit
def init_members(learner: Learner, keys: Key[Array, " member"]) -> LearnerState:
    """The states of many members."""
    return jax.vmap(lambda key: init(learner, key))(keys)


@eqx.filter_jit
def learn_features(
    learner: Learner, states: LearnerState, numbers: Numbers, num_iterations: int
) -> tuple[LearnerState, Metrics]:
    """Some iterations of the first stage, for every member."""

    def one(state, numbers):
        return jax.lax.scan(
            lambda s, _: _iterate(learner, s, numbers), state, length=num_iterations
        )

    return jax.vmap(one)(states, numbers)


@eqx.filter_jit
def settle(
    learner: Learner, states: LearnerState, numbers: Numbers, num_rounds: int
) -> tuple[LearnerState, Metrics]:
    """Some rounds of the second stage, for every member."""

    def one(state, numbers):
        return jax.lax.scan(lambda s, _: _settle(learner, s, numbers), state, length=num_rounds)

    return jax.vmap(one)(states, numbers)


def _iterate(
    learner: Learner, state: LearnerState, numbers: Numbers
) -> tuple[LearnerState, Metrics]:
    """A roll-out, and updates by gradient."""
    config, settings = learner.config, learner.config.lanes
    key, key_lanes, key_updates = jax.random.split(state.key, 3)
    progress = state.step / max(1, config.num_iterations)
    share = jnp.minimum(progress / max(settings.epsilon_fraction, 1e-9), 1.0)
    epsilon = settings.epsilon_start + share * (settings.epsilon_end - settings.epsilon_start)
    fresh = _roll_out(learner, state.networks.values, key_lanes, epsilon)
    state = _remember(state, numbers, fresh)
    decay = (1 + jnp.cos(jnp.pi * progress)) / 2 if config.decay else 1.0
    rate = numbers.learning_rate * decay
    goals = None
    if state.met is not None:
        assert isinstance(learner.cmdp, TabularCMDP) and numbers.informed is not None
        ahead = hyperstates.look_ahead(learner.cmdp, state.met)
        goals = backups.sweep(learner, state.average.values, numbers, state.met, ahead)
        met = hyperstates.add_ahead(goals[0], ahead, numbers.informed)
        state = state._replace(met=met)

    def update(carry, draws):
        networks, target, average, optimiser = carry
        batch = _Batch(None, None)
        key_batch, offset = draws
        if goals is not None:
            chosen = hyperstates.sample(goals[0], offset, settings.hyperstate_batch_size)
            batch = batch._replace(met=jax.tree.map(lambda leaf: leaf[chosen], goals))
        if state.lanes is not None:
            batch = batch._replace(lanes=replay.sample(state.lanes, key_batch, settings.batch_size))
        differentiate = eqx.filter_grad(_loss, has_aux=True)
        gradients, losses = differentiate(networks, target, learner, numbers, batch)
        changes, optimiser = learner.optimiser.update(gradients, optimiser)
        networks = eqx.apply_updates(networks, jax.tree.map(lambda c: -rate * c, changes))
        if target is not None:
            target = _follow(target, networks.values, config.target_rate)
        average = _follow(average, networks, config.average_rate)
        return (networks, target, average, optimiser), losses

    key_batches, key_offsets = jax.random.split(key_updates)
    (networks, target, average, optimiser), losses = jax.lax.scan(
        update,
        (state.networks, state.target, state.average, state.optimiser),
        (
            jax.random.split(key_batches, config.num_updates),
            jax.random.uniform(key_offsets, (config.num_updates,)),
        ),
    )
    after = state._replace(
        networks=networks,
        target=target,
        average=average,
        optimiser=optimiser,
        step=state.step + 1,
        key=key,
    )
    loss, belief_loss = (part[-1] for part in losses)
    return after, Metrics(loss, belief_loss, _mean_reward(learner, numbers, fresh))


def _settle(
    learner: Learner, state: LearnerState, numbers: Numbers
) -> tuple[LearnerState, Metrics]:
    """A roll-out, and the head by least squares, averaged over rounds."""
    config = learner.config
    key, key_lanes, key_solve = jax.random.split(state.key, 3)
    network = state.average.values
    fresh = _roll_out(learner, network, key_lanes, config.lanes.epsilon_end)
    state = _remember(state, numbers, fresh)
    solved = _solve(learner, network, state, numbers, fresh, key_solve)
    late = state.step - config.num_iterations - PLAIN_ROUNDS
    share = jnp.where(late < 0, 1.0, 2 / (late + 2))
    change = solved.head - network.head
    average = state.average._replace(values=network.with_head(network.head + share * change))
    after = state._replace(average=average, step=state.step + 1, key=key)
    moved = jnp.abs(change).max()
    return after, Metrics(moved, jnp.zeros(()), _mean_reward(learner, numbers, fresh))


def _remember(state: LearnerState, numbers: Numbers, fresh: Lanes) -> LearnerState:
    met, lanes = state.met, state.lanes
    if met is not None and numbers.informed is not None:
        met = hyperstates.add_lanes(met, fresh, numbers.informed)
    if lanes is not None:
        lanes = replay.push(lanes, fresh)
    return state._replace(lanes=lanes, met=met)


def _solve(
    learner: Learner,
    network: ValueNetwork,
    state: LearnerState,
    numbers: Numbers,
    fresh: Lanes,
    key: PRNGKeyArray,
) -> ValueNetwork:
    """The network with its head where the expected update vanishes, for its greedy policy."""
    config = learner.config
    assert state.lanes is not None
    replayed = replay.sample(state.lanes, key, config.lanes.settling_batch_size)
    batch = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), fresh, replayed)
    equations = backups.sampled_equations(learner, network, numbers, batch)
    factors = heads.factorise(
        equations.gram, equations.cross, ridge=config.ridge, proximity=config.proximity
    )

    def improve(head, _):
        return head + heads.step(factors, equations.constant - equations.cross @ head), None

    head, _ = jax.lax.scan(improve, network.head.reshape(-1, 1), length=_SOLVER_STEPS)
    return network.with_head(head.reshape(network.head.shape))


def _roll_out(
    learner: Learner, network: ValueNetwork, key: PRNGKeyArray, epsilon: Float[Array, ""] | float
) -> Lanes:
    settings = learner.config.lanes
    return roll_out(
        learner.cmdp,
        learner.filter,
        network,
        key,
        num_lanes=settings.num_environments,
        horizon=settings.horizon,
        epsilon=epsilon,
    )


class _Batch(NamedTuple):
    """What an update learns from: hyperstates, or lanes, or both where beliefs are learned."""

    met: Any
    lanes: Lanes | None


def _loss(
    networks: Networks,
    target: ValueNetwork | None,
    learner: Learner,
    numbers: Numbers,
    batch: _Batch,
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """What is made small; and the mean squared errors of values and of the learned belief."""
    if batch.met is None:
        assert batch.lanes is not None and target is not None
        errors = backups.sampled_errors(learner, networks.values, target, numbers, batch.lanes)
        weighed = (errors**2).mean()
    else:
        met, goals = batch.met
        hidden = backups.hidden_of(learner.cmdp, networks.values, met.states, met.log_beliefs)
        errors = hidden @ networks.values.head.T - goals
        weighed = weigh_errors(errors, learner.config.advantage_weight)
    belief_loss = jnp.zeros(())
    if networks.posterior is not None:
        assert batch.lanes is not None
        belief_loss = _belief_loss(networks.posterior, learner, batch.lanes)
    return weighed + belief_loss, ((errors**2).mean(), belief_loss)


def weigh_errors(errors: Float[Array, "place action"], advantage_weight: float) -> Float[Array, ""]:
    """The mean squared error, in which errors about how actions differ count for more."""
    return (errors.mean(-1) ** 2 + advantage_weight * errors.var(-1)).mean()


def _belief_loss(posterior: Posterior, learner: Learner, batch: Lanes) -> Float[Array, ""]:
    """How far learned log-beliefs are from the filter's, in the units in which they are used."""
    learned = track(posterior, learner.cmdp, batch)
    return ((learned - clip_log_belief(batch.log_beliefs)) ** 2).mean() / 16


def track(posterior: Posterior, cmdp: CMDP, lanes: Lanes) -> Float[Array, "lane moment context"]:
    """The learned log-beliefs of lanes. Where fewer steps are possible than there are, each of the
    possible ones is looked at once."""
    if (
        isinstance(cmdp, TabularCMDP)
        and posterior.core is None
        and cmdp.successors.size <= lanes.actions.size
    ):
        told = _tell_all(posterior, cmdp)[_steps_taken(cmdp, lanes)]
        return jax.vmap(posterior.add_up)(told, lanes.previous == NO_ACTION)
    encode = look(cmdp, posterior.encode, lanes.actions.size)
    codes = jax.vmap(jax.vmap(encode))(lanes.states)
    return jax.vmap(posterior.unroll)(codes, lanes.previous)


def _tell_all(
    posterior: Posterior, cmdp: TabularCMDP
) -> Float[Array, "state action outcome context"]:
    """What every step that can occur tells, each worked out once."""
    codes = jax.vmap(lambda state: posterior.encode(cmdp.observe(state)))(
        jnp.arange(cmdp.num_states)
    )
    after = codes[jnp.asarray(cmdp.successors)]
    tell = jax.vmap(posterior.tell, (None, 0, None))  # outcomes, then actions, then states
    tell = jax.vmap(jax.vmap(tell, (None, 0, 0)), (0, 0, None))
    return tell(codes, after, jnp.arange(cmdp.num_actions))


def _steps_taken(cmdp: TabularCMDP, lanes: Lanes) -> tuple[Int[Array, "lane moment"], ...]:
    """The step that led to each moment: state, action, and which of its outcomes came."""
    before, action = jnp.roll(lanes.states, 1, axis=1), jnp.maximum(lanes.previous, 0)
    outcomes = jnp.asarray(cmdp.successors)[before, action]
    return before, action, jnp.argmax(outcomes == lanes.states[..., None], -1)


def _mean_reward(learner: Learner, numbers: Numbers, lanes: Lanes) -> Float[Array, ""]:
    rewards = jax.vmap(jax.vmap(lambda state: learner.rewards(numbers, state)))(lanes.states)
    return jnp.take_along_axis(rewards, lanes.actions[..., None], -1).mean()


def _follow(slow, fast, rate: float):
    """An exponential average of parameters."""
    return jax.tree.map(
        lambda old, new: old + rate * (new - old) if eqx.is_inexact_array(old) else old, slow, fast
    )
