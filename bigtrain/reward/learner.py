"""Phase 1's two stages, each a pure function of what was collected, of one seed.

*Features* (Algorithm 1): ε-greedy episodes, `num_updates` gradient updates of Ψ_φ, and one of ω,

    φ ← φ − η_φ Adam(clip(∇_φ [L_Expert + β L_Simulator]))      appendix B; β = 0 while burning in
    ω ← ω + η_ω Adam(α ∇ log p(ω | D; Ψ_φ))                     eq. (3), or some Newton steps

with φ' ← φ every `target_period` updates. *Settling*: the network's trunk stays, and what is linear
is solved for, the head W of Ψ by least squares and ω by Newton's method:

    W_{k+1} = W_k + share_k (solve_head(W_k; ω_k) − W_k),    ω_{k+1} = argmax log p(ω | D; Ψ_{k+1})

Expert policies depend on ω, ω on Ψ, and Ψ on the policy that is greedy for ω, so the two alternate;
where plans tie they would do so for ever, and after `PLAIN_ROUNDS` the head becomes an average over
rounds, with share_k = 2/(k + 2) in round k: round k has then a weight in proportion to k.

What bites: before Ψ means anything ω should not move, hence the burn-in. An average moves little
in a round, wherever it is going; settled is only what has also not moved since half as many rounds.
Adding b(s, θ) to Ψ(s, ·, θ) changes no likelihood, but costs digits: its mean is taken away.
"""

from typing import ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from bigtrain.belief import InferenceModel
from bigtrain.learning import Collection, Stage
from bigtrain.problem import Actor, Simulator, Trajectories
from bigtrain.reward import irl
from bigtrain.reward.config import InferenceConfig
from bigtrain.reward.experience import Experience, Memory, SampledContextActor, featurise
from bigtrain.reward.expert import ExpertData
from bigtrain.reward.successor import (
    SuccessorNetwork,
    greedy_actions,
    losses,
    merge_ties,
    solve_head,
)

PLAIN_ROUNDS = 10
"""Rounds of settling before Ψ becomes an average over rounds, as in the exact route."""

_CHUNK = 5
"""Iterations or rounds between two looks at callbacks and checkpoints, at most."""

_NEWTON_STEPS = 4
_SETTLING_NEWTON_STEPS = 12
_NEWTON_TOLERANCE = 1e-5


class Learner(eqx.Module):
    """What learning needs and does not change."""

    simulator: Simulator
    inference: InferenceModel
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


class _LearningStage(Stage):
    """What both stages share: who explores."""

    learner: eqx.AbstractVar[Learner]

    @property
    def simulator(self) -> Simulator:
        return self.learner.simulator

    @property
    def chunk(self) -> int:
        """At most `_CHUNK`, and such that all chunks are alike: each size is compiled anew."""
        sizes = range(min(_CHUNK, self.total), 0, -1)
        return next((size for size in sizes if self.total % size == 0), 1)

    @property
    def collection(self) -> Collection:
        settings = self.learner.config.rollout
        return Collection(settings.num_environments, settings.horizon, restart=False)

    def actor(self, state: LearnerState, member: None) -> Actor:
        learner = self.learner
        num_uses = self.collection.num_envs * (self.collection.horizon + 1)
        return SampledContextActor(
            learner.inference,
            learner.inference.state_encoder(learner.simulator, num_uses),
            learner.experience.action_values(state.network, state.reward_weights),
            learner.simulator.num_actions,
            learner.config.rollout.epsilon,
        )

    def events(self, metrics: Metrics, done: int) -> list[tuple[int, dict[str, np.ndarray]]]:
        """Every iteration, with the accuracy in each context by its name."""
        measured = {name: np.asarray(part) for name, part in metrics._asdict().items()}
        accuracy = measured.pop("accuracy")
        for context, name in enumerate(self.simulator.context_names):
            measured[f"accuracy/{name}"] = accuracy[..., context]
        return [
            (done + i + 1, {name: values[:, i] for name, values in measured.items()})
            for i in range(accuracy.shape[1])
        ]


@final
class FeaturesStage(_LearningStage):
    """Updates of Ψ by gradient, and an update of ω (Algorithm 1)."""

    phase: ClassVar[str] = "features"
    learner: Learner

    @property
    def begin(self) -> int:
        return 0

    @property
    def total(self) -> int:
        return self.learner.config.num_iterations

    def update(
        self, state: LearnerState, member: None, trajectories: Trajectories, key: PRNGKeyArray
    ) -> tuple[LearnerState, Metrics]:
        learner, config = self.learner, self.learner.config
        key_updates, key_reward = jax.random.split(key)
        memory = learner.experience.add(state.memory, trajectories)
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
                psi = network(batch.observations, batch.features)
                targets = jax.lax.stop_gradient(psi) if lagged is None else lagged
                # By φ', as in DQN; the paper's a' is of φ. The same with a period of 1.
                greedy = greedy_actions(targets, state.reward_weights, config.successor.resolution)
                expert, simulated = losses(psi, targets, batch, greedy, network.gamma)
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
            updates, reward_optimiser = learner.reward_optimiser.update(
                -ascent, state.reward_optimiser
            )
            weights = jnp.asarray(optax.apply_updates(state.reward_weights, updates))
        weights = jnp.where(burning_in, state.reward_weights, weights)
        state = state._replace(
            network=network,
            target=target,
            optimiser=optimiser,
            reward_optimiser=reward_optimiser,
            memory=memory,
        )
        state, metrics = _conclude(learner, state, weights, expert_psi)
        expert_loss, simulator_loss = (part[-1] for part in parts)
        return state, metrics._replace(expert_loss=expert_loss, simulator_loss=simulator_loss)


@final
class SettlingStage(_LearningStage):
    """The head of Ψ by least squares, and ω by Newton's method, until they stand still."""

    phase: ClassVar[str] = "settling"
    learner: Learner

    @property
    def begin(self) -> int:
        return self.learner.config.num_iterations

    @property
    def total(self) -> int:
        return self.learner.config.max_rounds

    def update(
        self, state: LearnerState, member: None, trajectories: Trajectories, key: PRNGKeyArray
    ) -> tuple[LearnerState, Metrics]:
        learner, config = self.learner, self.learner.config
        memory = learner.experience.add(state.memory, trajectories)
        batch = learner.experience.batch(
            memory, key, expert_beliefs(learner, state), config.rollout.settling_batch_size
        )
        solved = solve_head(state.network, batch, state.reward_weights, config.successor)
        late = state.step - config.num_iterations - PLAIN_ROUNDS
        # 1, 2/3, 2/4, ...: the average's weights are 1, 2, 3, ...
        share = jnp.where(late <= 0, 1.0, 2 / (late + 2))
        head = state.network.head + share * (solved.head - state.network.head)
        network = eqx.tree_at(lambda n: n.head, state.network, head)
        expert_psi = expert_successor_features(learner, network)
        weights = _climb(learner, expert_psi, state.reward_weights, _SETTLING_NEWTON_STEPS)
        psi = network(batch.observations, batch.features)
        greedy = greedy_actions(psi, weights, config.successor.resolution)
        expert_loss, simulator_loss = losses(psi, psi, batch, greedy, network.gamma)
        moved, metrics = _conclude(
            learner, state._replace(network=network, memory=memory), weights, expert_psi
        )
        # What counts is where ω was when there were half as many rounds.
        halfway = moved.path[(config.num_iterations + state.step) // 2]
        movement = jnp.maximum(metrics.movement, _movement(halfway, weights))
        calm = (movement <= config.tolerance) & (metrics.policy_change <= config.tolerance)
        moved = moved._replace(num_calm=jnp.where(calm, state.num_calm + 1, 0))
        # A seed at rest stays where it is while others go on.
        at_rest = state.num_calm >= config.patience
        stayed = state._replace(path=state.path.at[state.step].set(state.reward_weights))
        state = jax.tree.map(lambda new, old: jnp.where(at_rest, old, new), moved, stayed)
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


def expert_successor_features(
    learner: Learner, network: SuccessorNetwork
) -> Float[Array, "context visited action feature"]:
    """Ψ where experts were, relative to its mean over actions, and ties as ties."""
    raw = network(*featurise(learner.simulator, learner.data.visited))
    merged = merge_ties(raw, learner.config.successor.resolution)
    return merged - merged.mean(-2, keepdims=True)


def expert_beliefs(learner: Learner, state: LearnerState) -> Float[Array, "trajectory context"]:
    """Which context each expert was in, by the evidence that is asked for."""
    settings, data = learner.config.irl, learner.data
    if settings.evidence == "transitions":
        return jax.nn.softmax(jnp.asarray(data.log_evidence))
    # ρ by the policies of the last iteration: a step of expectation maximisation behind.
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
    # Among the most likely, or half as likely: ties count as right.
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
    )
    return state, metrics


def _movement(before: Float[Array, " feature"], now: Float[Array, " feature"]) -> Float[Array, ""]:
    return jnp.abs(now - before).max() / jnp.maximum(jnp.ptp(now), 1e-12)
