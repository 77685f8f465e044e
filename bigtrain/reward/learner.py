"""What phase 1's stages have in common: what is learned of one seed, and what follows from it.

A seed has a network Ψ_φ with its target φ', reward weights ω [feature], and the policies of experts
that follow from both, p(a | s, θ, ω) [context, visited, action] (eq. (2)). With `irl`, from these:

    ρ_iθ = p(θ | τ_i), or p(θ | ω, τ_i)                      `expert_beliefs`  [trajectory, context]
    Ψ̃(s, a, θ) = Ψ(s, a, θ) − mean_a' Ψ(s, a', θ)            `expert_successor_features`
    ω* = argmax_ω log p(ω | D; Ψ̃), by Newton's method        `climb`

What bites: adding b(s, θ) to Ψ(s, ·, θ) changes no likelihood, but costs digits in float32, where Ψ
is near 100 and divided by α = 0.01. Hence Ψ̃; and actions within the network's resolution are given
the same features, or its errors outweigh all that experts show (`successor.merge_ties`).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from bigtrain.belief import InferenceModel
from bigtrain.problem import Simulator
from bigtrain.reward import irl
from bigtrain.reward.config import InferenceConfig
from bigtrain.reward.experience import Experience, Memory, featurise
from bigtrain.reward.expert import ExpertData
from bigtrain.reward.successor import SuccessorNetwork, merge_ties

_NEWTON_TOLERANCE = 1e-5
"""In posterior deviations. Float32 gives no more, and Ψ moves by more until it has settled."""


class Learner(eqx.Module):
    """What learning needs and does not change."""

    simulator: Simulator
    inference: InferenceModel
    experience: Experience
    data: ExpertData
    config: InferenceConfig = eqx.field(static=True)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        # Updates are counted over all iterations: the cosine ends with the stage.
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
    observations, features = featurise(learner.simulator, learner.data.visited)
    num_features = features.shape[-1]
    network = SuccessorNetwork(
        observations,
        num_contexts=learner.simulator.num_contexts,
        num_actions=learner.simulator.num_actions,
        num_features=num_features,
        gamma=learner.simulator.gamma,
        config=learner.config.successor.network,
        key=key_network,
    )
    weights = jnp.asarray(learner.config.irl.prior_weights(num_features), jnp.float32)
    shape = (learner.simulator.num_contexts, len(features), learner.simulator.num_actions)
    return LearnerState(
        network,
        network,
        learner.optimiser.init(eqx.filter(network, eqx.is_array)),
        weights,
        learner.reward_optimiser.init(weights),
        learner.experience.init(),
        jnp.full(shape, 1 / shape[-1], jnp.float32),  # before Ψ is known
        jnp.zeros((learner.config.num_iterations + learner.config.max_rounds, num_features)),
        jnp.asarray(0),
        jnp.asarray(0),
        key,
    )


@eqx.filter_jit
def init_seeds(learner: Learner, keys: Key[Array, " seed"]) -> LearnerState:
    """The states of many seeds."""
    return jax.vmap(lambda key: init(learner, key))(keys)


def climb(
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


def expert_successor_features(
    learner: Learner, state: LearnerState, key: PRNGKeyArray
) -> tuple[LearnerState, Float[Array, "context visited action feature"]]:
    """Ψ where experts were, relative to its mean over actions, and ties as ties; and the state,
    which remembers what was found out on the way."""
    memory, raw = learner.experience.expert_features(
        state.memory, state.network, state.reward_weights, learner.data.visited, key
    )
    # Ties first: less the mean, rounding would differ between the tied.
    merged = merge_ties(raw, learner.config.successor.resolution)
    return state._replace(memory=memory), merged - merged.mean(-2, keepdims=True)


def expert_beliefs(learner: Learner, state: LearnerState) -> Float[Array, "trajectory context"]:
    """Which context each expert was in, by the evidence that is asked for."""
    settings, data = learner.config.irl, learner.data
    if settings.evidence == "transitions":
        return jax.nn.softmax(jnp.asarray(data.log_evidence))
    # ρ by the policies of the last iteration: a step of expectation maximisation behind.
    log_policies = jnp.log(jnp.maximum(state.policies, 1e-30))
    return jax.nn.softmax(irl.context_log_joint(data, log_policies, settings.evidence))


def conclude(
    learner: Learner,
    state: LearnerState,
    weights: Float[Array, " feature"],
    expert_psi: Float[Array, "context visited action feature"],
) -> tuple[LearnerState, Metrics]:
    """The state with new reward weights, and what can be said of them."""
    settings, data = learner.config.irl, learner.data
    log_policies = irl.log_policy(expert_psi, weights, settings.temperature)
    policies = jnp.exp(log_policies)
    # By the new policies, where actions are evidence.
    beliefs = expert_beliefs(learner, state._replace(policies=policies))
    counts = irl.visit_counts(data, beliefs, policies.shape[-1])
    # Among the most likely, or half as likely: ties count as right.
    likely = log_policies >= log_policies.max(-1, keepdims=True) - np.log(2)
    metrics = Metrics(
        expert_loss=jnp.zeros(()),
        simulator_loss=jnp.zeros(()),
        log_likelihood=(counts * log_policies).sum() / counts.sum(),
        movement=movement(state.reward_weights, weights),
        policy_change=jnp.abs(policies - state.policies).max(),
        accuracy=(counts * likely).sum((1, 2)) / jnp.maximum(counts.sum((1, 2)), 1e-9),
    )
    state = state._replace(
        reward_weights=weights,
        policies=policies,
        path=state.path.at[state.step].set(weights),
    )
    return state, metrics


def movement(before: Float[Array, " feature"], now: Float[Array, " feature"]) -> Float[Array, ""]:
    """max |ω' − ω| / (max ω' − min ω'), the largest change as a share of the range."""
    return jnp.abs(now - before).max() / jnp.maximum(jnp.ptp(now), 1e-12)
