"""The two stages of phase 1 as pure functions of a state, compiled, with seeds by `vmap`."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from bigtrain.belief import Filter
from bigtrain.learning.devices import spread
from bigtrain.problem import CMDP
from bigtrain.reward import irl
from bigtrain.reward.config import InferenceConfig
from bigtrain.reward.experience import Experience, Memory, show, simulate
from bigtrain.reward.irl import ExpertData
from bigtrain.reward.successor import (
    SuccessorNetwork,
    greedy_actions,
    losses,
    merge_ties,
    solve_head,
)

PLAIN_ROUNDS = 10
"""Rounds of settling before Ψ becomes an average over rounds, as in the exact route."""

_NEWTON_STEPS = 4
_SETTLING_NEWTON_STEPS = 12
_NEWTON_TOLERANCE = 1e-5


class Learner(eqx.Module):
    """What learning needs and does not change."""

    cmdp: CMDP
    filter: Filter
    experience: Experience
    data: ExpertData
    config: InferenceConfig = eqx.field(static=True)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        settings, config = self.config.successor, self.config
        rate = settings.learning_rate
        num_updates = config.num_iterations * config.num_updates
        schedule = optax.cosine_decay_schedule(rate, max(1, num_updates))
        return optax.chain(
            optax.clip_by_global_norm(settings.max_gradient_norm),
            optax.adam(schedule if settings.decay else rate),
        )

    @property
    def reward_optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.config.reward_learning_rate)


class LearnerState(NamedTuple):
    """What changes, of one seed. `path` holds ω after every iteration and round so far."""

    network: SuccessorNetwork
    target: SuccessorNetwork
    optimiser: optax.OptState
    reward_weights: Float[Array, " feature"]
    reward_optimiser: optax.OptState
    memory: Memory
    policies: Float[Array, "context visited action"]
    path: Float[Array, "step feature"]
    step: Int[Array, ""]
    num_calm: Int[Array, ""]
    key: PRNGKeyArray


class Metrics(NamedTuple):
    """What is measured of an iteration or a round.

    `movement` is how far the maximum of the posterior has moved, as a share of ω's range: in a
    round of settling since half as many rounds too, for averages move little in one, wherever they
    are going. `policy_change` is the largest change of an action's probability where experts were.
    The accuracy is the share of an expert's actions that were among the most likely, or half as
    likely.
    """

    expert_loss: Float[Array, ""]
    simulator_loss: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    movement: Float[Array, ""]
    policy_change: Float[Array, ""]
    accuracy: Float[Array, " context"]


def init(learner: Learner, key: PRNGKeyArray) -> LearnerState:
    """Before the first iteration."""
    key_network, key = jax.random.split(key)
    observations, features = show(learner.cmdp, learner.data.visited)
    num_features = features.shape[-1]
    network = SuccessorNetwork(
        observations,
        num_contexts=learner.cmdp.num_contexts,
        num_actions=learner.cmdp.num_actions,
        num_features=num_features,
        gamma=learner.cmdp.gamma,
        config=learner.config.successor.network,
        key=key_network,
    )
    weights = jnp.asarray(learner.config.irl.prior_weights(num_features), jnp.float32)
    shape = (learner.cmdp.num_contexts, len(features), learner.cmdp.num_actions)
    return LearnerState(
        network,
        network,
        learner.optimiser.init(eqx.filter(network, eqx.is_array)),
        weights,
        learner.reward_optimiser.init(weights),
        learner.experience.init(),
        jnp.full(shape, 1 / shape[-1], jnp.float32),
        jnp.zeros((learner.config.num_iterations + learner.config.max_rounds, num_features)),
        jnp.asarray(0),
        jnp.asarray(0),
        key,
    )


@eqx.filter_jit
def init_seeds(learner: Learner, keys: Key[Array, " seed"]) -> LearnerState:
    """The states of many seeds."""
    return jax.vmap(lambda key: init(learner, key))(keys)


@eqx.filter_jit
def learn_features(
    learner: Learner, states: LearnerState, num_iterations: int
) -> tuple[LearnerState, Metrics]:
    """Some iterations of the first stage, for every seed."""
    return jax.vmap(
        lambda state: jax.lax.scan(lambda s, _: _iterate(learner, s), state, length=num_iterations)
    )(states)


@eqx.filter_jit
def settle(learner: Learner, states: LearnerState, num_rounds: int) -> tuple[LearnerState, Metrics]:
    """Some rounds of the second stage, for every seed that has not come to rest."""
    return jax.vmap(
        lambda state: jax.lax.scan(lambda s, _: _settle(learner, s), state, length=num_rounds)
    )(states)


def _iterate(learner: Learner, state: LearnerState) -> tuple[LearnerState, Metrics]:
    """A roll-out, updates of Ψ by gradient, and an update of ω (Algorithm 1)."""
    config = learner.config
    key, key_rollout, key_updates, key_reward = jax.random.split(state.key, 4)
    memory = _roll_out(learner, state, key_rollout)
    burning_in = state.step < config.num_burn_in
    beta = jnp.where(burning_in, 0.0, config.successor.simulator_weight)
    beliefs = expert_beliefs(learner, state)

    def update(carry, inputs):
        network, target, optimiser = carry
        key_batch, count = inputs
        batch = learner.experience.batch(memory, key_batch, beliefs, config.rollout.batch_size)
        lagged = None
        if config.successor.target_period > 1:
            lagged = target(batch.observations, batch.features)

        def loss(network):
            present = network(batch.observations, batch.features)
            targets = jax.lax.stop_gradient(present) if lagged is None else lagged
            greedy = greedy_actions(targets, state.reward_weights, config.successor.resolution)
            expert, simulated = losses(present, targets, batch, greedy, network.gamma)
            return expert + beta * simulated, (expert, simulated)

        gradients, parts = eqx.filter_grad(loss, has_aux=True)(network)
        updates, optimiser = learner.optimiser.update(gradients, optimiser)
        network = eqx.apply_updates(network, updates)
        renew = (count + 1) % config.successor.target_period == 0
        target = jax.tree.map(lambda new, old: jnp.where(renew, new, old), network, target)
        return (network, target, optimiser), parts

    counts = state.step * config.num_updates + jnp.arange(config.num_updates)
    (network, target, optimiser), parts = jax.lax.scan(
        update,
        (state.network, state.target, state.optimiser),
        (jax.random.split(key_updates, config.num_updates), counts),
    )
    expert_psi = expert_successor_features(learner, network)
    if config.reward_update == "newton":
        weights = _climb(learner, expert_psi, state.reward_weights, _NEWTON_STEPS)
        reward_optimiser = state.reward_optimiser
    else:
        ascent = irl.sampled_gradient(
            key_reward,
            state.reward_weights,
            expert_psi,
            learner.data,
            config.irl,
            config.rollout.batch_size,
        )
        updates, reward_optimiser = learner.reward_optimiser.update(-ascent, state.reward_optimiser)
        weights = jnp.asarray(optax.apply_updates(state.reward_weights, updates))
    weights = jnp.where(burning_in, state.reward_weights, weights)
    state = state._replace(
        network=network,
        target=target,
        optimiser=optimiser,
        reward_optimiser=reward_optimiser,
        memory=memory,
        key=key,
    )
    state, metrics = _conclude(learner, state, weights, expert_psi)
    expert_loss, simulator_loss = (part[-1] for part in parts)
    return state, metrics._replace(expert_loss=expert_loss, simulator_loss=simulator_loss)


def _settle(learner: Learner, state: LearnerState) -> tuple[LearnerState, Metrics]:
    """A roll-out, the head of Ψ by least squares, and ω by Newton's method."""
    config = learner.config
    key, key_rollout, key_batch = jax.random.split(state.key, 3)
    memory = _roll_out(learner, state, key_rollout)
    batch = learner.experience.batch(
        memory, key_batch, expert_beliefs(learner, state), config.rollout.settling_batch_size
    )
    solved = solve_head(state.network, batch, state.reward_weights, config.successor)
    late = state.step - config.num_iterations - PLAIN_ROUNDS
    share = jnp.where(late <= 0, 1.0, 2 / (late + 2))
    head = state.network.head + share * (solved.head - state.network.head)
    network = eqx.tree_at(lambda n: n.head, state.network, head)
    expert_psi = expert_successor_features(learner, network)
    weights = _climb(learner, expert_psi, state.reward_weights, _SETTLING_NEWTON_STEPS)
    present = network(batch.observations, batch.features)
    greedy = greedy_actions(present, weights, config.successor.resolution)
    expert_loss, simulator_loss = losses(present, present, batch, greedy, network.gamma)
    moved, metrics = _conclude(
        learner, state._replace(network=network, memory=memory, key=key), weights, expert_psi
    )
    halfway = moved.path[(config.num_iterations + state.step) // 2]
    movement = jnp.maximum(metrics.movement, _movement(halfway, weights))
    calm = (movement <= config.tolerance) & (metrics.policy_change <= config.tolerance)
    moved = moved._replace(num_calm=jnp.where(calm, state.num_calm + 1, 0))
    at_rest = state.num_calm >= config.patience
    state = jax.tree.map(lambda new, old: jnp.where(at_rest, old, new), moved, state)
    return state, metrics._replace(
        expert_loss=expert_loss, simulator_loss=simulator_loss, movement=movement
    )


def _climb(
    learner: Learner,
    expert_psi: Float[Array, "context visited action feature"],
    weights: Float[Array, " feature"],
    max_steps: int,
) -> Float[Array, " feature"]:
    """ω after some steps of Newton's method."""
    found, _ = irl.map_estimate(
        expert_psi,
        learner.data,
        learner.config.irl,
        weights,
        max_steps=max_steps,
        tolerance=_NEWTON_TOLERANCE,
    )
    return found


def _roll_out(learner: Learner, state: LearnerState, key: PRNGKeyArray) -> Memory:
    """The memory with fresh ε-greedy episodes."""
    settings = learner.config.rollout
    values = learner.experience.action_values(state.network, state.reward_weights)
    episodes = jax.vmap(
        lambda key_episode: simulate(
            learner.cmdp,
            learner.filter,
            values,
            key_episode,
            horizon=settings.horizon,
            epsilon=settings.epsilon,
        )
    )(spread(jax.random.split(key, settings.num_environments)))
    return learner.experience.add(state.memory, episodes)


def expert_successor_features(
    learner: Learner, network: SuccessorNetwork
) -> Float[Array, "context visited action feature"]:
    """Ψ where experts were, relative to its mean over actions, and ties as ties."""
    raw = network(*show(learner.cmdp, learner.data.visited))
    merged = merge_ties(raw, learner.config.successor.resolution)
    return merged - merged.mean(-2, keepdims=True)


def expert_beliefs(learner: Learner, state: LearnerState) -> Float[Array, "trajectory context"]:
    """Which context each expert was in, by the evidence that is asked for."""
    settings, data = learner.config.irl, learner.data
    if settings.evidence == "transitions":
        return jax.nn.softmax(jnp.asarray(data.log_evidence))
    log_policies = jnp.log(jnp.maximum(state.policies, 1e-30))
    return jax.nn.softmax(irl.context_log_joint(data, log_policies, settings.evidence))


def _conclude(
    learner: Learner,
    state: LearnerState,
    weights: Float[Array, " feature"],
    expert_psi: Float[Array, "context visited action feature"],
) -> tuple[LearnerState, Metrics]:
    """The state with new reward weights, and what can be said of them."""
    settings, data = learner.config.irl, learner.data
    log_policies = irl.log_policy(expert_psi, weights, settings.temperature)
    policies = jnp.exp(log_policies)
    beliefs = expert_beliefs(learner, state._replace(policies=policies))
    counts = irl.visit_counts(data, beliefs, policies.shape[-1])
    likely = log_policies >= log_policies.max(-1, keepdims=True) - np.log(2)
    metrics = Metrics(
        expert_loss=jnp.zeros(()),
        simulator_loss=jnp.zeros(()),
        log_likelihood=(counts * log_policies).sum() / counts.sum(),
        movement=_movement(state.reward_weights, weights),
        policy_change=jnp.abs(policies - state.policies).max(),
        accuracy=(counts * likely).sum((1, 2)) / jnp.maximum(counts.sum((1, 2)), 1e-9),
    )
    state = state._replace(
        reward_weights=weights,
        policies=policies,
        path=state.path.at[state.step].set(weights),
        step=state.step + 1,
    )
    return state, metrics


def _movement(before: Float[Array, " feature"], now: Float[Array, " feature"]) -> Float[Array, ""]:
    return jnp.abs(now - before).max() / jnp.maximum(jnp.ptp(now), 1e-12)
