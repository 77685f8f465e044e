"""Phase 1's stages, each a pure function of what was collected, of one seed.

*Features* (Algorithm 1): ε-greedy episodes, `num_updates` gradient updates of Ψ_φ, and one of ω,

    φ ← φ − η_φ Adam(clip(∇_φ [L_Expert + β L_Simulator]))      appendix B; β = 0 while burning in
    ω ← ω + η_ω Adam(α ∇ log p(ω | D; Ψ_φ))                     eq. (3), or some Newton steps

with φ' ← φ every `target_period` updates. *Settling*: the network's trunk stays, and what is linear
is solved for, the head W of Ψ by least squares and ω by Newton's method:

    W_{k+1} = W_k + share_k (solve_head(W_k; ω_k) − W_k),    ω_{k+1} = argmax log p(ω | D; Ψ_{k+1})

Expert policies depend on ω, ω on Ψ, and Ψ on the policy that is greedy for ω, so the two alternate;
where plans tie they would do so for ever, and after `PLAIN_ROUNDS` the head becomes an average over
rounds, with share_k = 2/(k + 2) in round k: round k has then a weight in proportion to k.

What bites:
- Two time scales (appendix B: η_ω < η_φ). Before Ψ means anything ω should not move: the burn-in.
- An average moves little in a round, wherever it is going. Settled is only what has also not moved
  since half as many rounds.
- Seeds are under `vmap`, so one that has settled goes through the motions while others go on, and
  what it does is thrown away.
"""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from bigtrain.learning import Collection, Stage
from bigtrain.problem import Actor, Simulator, Trajectories
from bigtrain.reward import irl
from bigtrain.reward.experience import SampledContextActor
from bigtrain.reward.learner import (
    Learner,
    LearnerState,
    Metrics,
    climb,
    conclude,
    expert_beliefs,
    expert_successor_features,
    movement,
)
from bigtrain.reward.successor import greedy_actions, losses, solve_head

PLAIN_ROUNDS = 10
"""Rounds of settling before Ψ becomes an average over rounds, as in the exact route."""

_CHUNK = 5
"""Iterations or rounds between two looks at callbacks and checkpoints, at most."""

_NEWTON_STEPS = 4
"""In an iteration: Ψ moves on before the maximum matters."""

SETTLING_NEWTON_STEPS = 12
"""In a round: from the last maximum enough to reach the next."""


class RewardStage(Stage):
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
class FeaturesStage(RewardStage):
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
            # With a period of 1 the target is the network itself, held: one evaluation less.
            lagged = None
            if config.successor.target_period > 1:
                lagged = target(batch.observations, batch.features, batch.rests)

            def loss(network):
                psi = network(batch.observations, batch.features, batch.rests)
                targets = jax.lax.stop_gradient(psi) if lagged is None else lagged
                # By φ', as in DQN; the paper's a' is of φ. The same with a period of 1.
                greedy = greedy_actions(targets, state.reward_weights, config.successor.resolution)
                expert, simulated = losses(psi, targets, batch, greedy, network.gamma)
                return expert + beta * simulated, (expert, simulated)

            gradients, parts = eqx.filter_grad(loss, has_aux=True)(network)
            updates, optimiser = learner.optimiser.update(gradients, optimiser)
            network = eqx.apply_updates(network, updates)
            # Counted over all iterations, so a period may be longer than one.
            renew = (count + 1) % config.successor.target_period == 0
            target = jax.tree.map(lambda new, old: jnp.where(renew, new, old), network, target)
            return (network, target, optimiser), parts

        counts = state.step * config.num_updates + jnp.arange(config.num_updates)
        (network, target, optimiser), parts = jax.lax.scan(
            update,
            (state.network, state.target, state.optimiser),
            (jax.random.split(key_updates, config.num_updates), counts),
        )
        state = state._replace(network=network, target=target, optimiser=optimiser, memory=memory)
        state, expert_psi = expert_successor_features(learner, state, jax.random.fold_in(key, 0))
        if config.reward_update == "newton":
            weights = climb(learner, expert_psi, state.reward_weights, _NEWTON_STEPS)
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
            # Optax descends.
            updates, reward_optimiser = learner.reward_optimiser.update(
                -ascent, state.reward_optimiser
            )
            weights = jnp.asarray(optax.apply_updates(state.reward_weights, updates))
        # Computed all the same while burning in: a branch would be compiled under `vmap` anyway.
        weights = jnp.where(burning_in, state.reward_weights, weights)
        state = state._replace(reward_optimiser=reward_optimiser)
        state, metrics = conclude(learner, state, weights, expert_psi)
        expert_loss, simulator_loss = (part[-1] for part in parts)
        return state, metrics._replace(expert_loss=expert_loss, simulator_loss=simulator_loss)


@final
class SettlingStage(RewardStage):
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
        moved = state._replace(network=network, memory=memory)
        moved, expert_psi = expert_successor_features(learner, moved, key)
        weights = climb(learner, expert_psi, state.reward_weights, SETTLING_NEWTON_STEPS)
        psi = network(batch.observations, batch.features, batch.rests)
        greedy = greedy_actions(psi, weights, config.successor.resolution)
        expert_loss, simulator_loss = losses(psi, psi, batch, greedy, network.gamma)
        moved, metrics = conclude(learner, moved, weights, expert_psi)
        metrics = metrics._replace(expert_loss=expert_loss, simulator_loss=simulator_loss)
        return rest(learner, state, moved, metrics)


@final
class PlannedSettlingStage(RewardStage):
    """ω by Newton's method for plans that are the best for ω, until both stand still.

    Where two plans tie, one would take the other's place for ever; so after some rounds ω moves by
    2/(k+2) of the way in round k.
    """

    phase: ClassVar[str] = "settling"
    learner: Learner

    @property
    def begin(self) -> int:
        return self.learner.config.num_iterations

    @property
    def total(self) -> int:
        return self.learner.config.max_rounds

    @property
    def collection(self) -> Collection:
        """Nothing is learned from what is collected here."""
        return Collection(1, 0, restart=False)

    def update(
        self, state: LearnerState, member: None, trajectories: Trajectories, key: PRNGKeyArray
    ) -> tuple[LearnerState, Metrics]:
        learner, now = self.learner, state.reward_weights
        state, expert_psi = expert_successor_features(learner, state, key)
        found = climb(learner, expert_psi, now, SETTLING_NEWTON_STEPS)
        late = state.step - learner.config.num_iterations - PLAIN_ROUNDS
        share = jnp.where(late <= 0, 1.0, 2 / (late + 2))
        moved, metrics = conclude(learner, state, now + share * (found - now), expert_psi)
        return rest(learner, state, moved, metrics)


def rest(
    learner: Learner, state: LearnerState, moved: LearnerState, metrics: Metrics
) -> tuple[LearnerState, Metrics]:
    """The state after a round of settling, which is the one before where a seed is at rest."""
    config = learner.config
    # Averages move little in a round, wherever they are going: what counts is where ω was when
    # there were half as many rounds.
    halfway = moved.path[(config.num_iterations + state.step) // 2]
    moved_by = jnp.maximum(metrics.movement, movement(halfway, moved.reward_weights))
    calm = (moved_by <= config.tolerance) & (metrics.policy_change <= config.tolerance)
    moved = moved._replace(num_calm=jnp.where(calm, state.num_calm + 1, 0))
    # A seed at rest stays where it is while others go on.
    at_rest = state.num_calm >= config.patience
    stayed = state._replace(path=state.path.at[state.step].set(state.reward_weights))
    state = jax.tree.map(lambda new, old: jnp.where(at_rest, old, new), moved, stayed)
    return state, metrics._replace(movement=moved_by)
