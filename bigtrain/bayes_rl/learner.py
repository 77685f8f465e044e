"""Phase 3's two stages, each a pure function of what was collected, of one member.

A member is a seed with its numbers: a reward, a learning rate. With φ the network, φ' its lagging
copy and φ̄ the average that acts in the end, an update of the *values* stage is

    φ ← φ − η_t Adam(clip(∇_φ [L_values(φ; φ') + L_belief(φ)])),     η_t = η ½ (1 + cos(π t / T))
    φ' ← φ' + target_rate (φ − φ'),        φ̄ ← φ̄ + average_rate (φ − φ̄)

with L_values the squared errors of `targets` and L_belief the distillation of the filter's belief,
where the belief that robots get is a network too. ε falls linearly, from ε_start to ε_end.

*Settling*, which only targets that bootstrap need: all layers but the last are kept, and the head
is put where the expected update vanishes (eq. (c) of `targets`), with fresh episodes in between.
After `PLAIN_ROUNDS` it is averaged over rounds, W ← W + 2/(k + 2) (W_solved − W) in round k.

What bites:
- The greedy policy jumps where actions tie, so the heads of single rounds never stand still. In
  the average round k has a weight in proportion to k: the first rounds, which are bad, fade.
- Everything is under `vmap` over members, so what differs between them must be numbers: the
  learning rate multiplies Adam's direction instead of standing in the optimiser.
"""

from typing import Any, ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, Shaped

from bigtrain.bayes_rl.actor import ValueActor, spread_epsilon
from bigtrain.bayes_rl.config import BayesRLConfig
from bigtrain.bayes_rl.rewards import MemberParams, RewardModel
from bigtrain.bayes_rl.targets import SampledTargets, ValueTargets
from bigtrain.belief import AmortisedInference, InferenceModel
from bigtrain.data import Replay, replay
from bigtrain.learning import Collection, Stage, heads
from bigtrain.policy import NetworkPolicy, ValueNetwork
from bigtrain.problem import Actor, Simulator, State, Trajectories, draw_mixes

PLAIN_ROUNDS = 4
"""Rounds of settling before the head becomes an average over rounds."""

_SOLVER_STEPS = 4


class Learner(eqx.Module):
    """What learning needs and does not change.

    `inference` is what actors and targets believe by. With `distils` robots get a network that
    learns to believe the same from what they see.
    """

    simulator: Simulator
    inference: InferenceModel
    rewards: RewardModel
    targets: ValueTargets
    config: BayesRLConfig = eqx.field(static=True)
    distils: bool = eqx.field(static=True)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        # Without a rate: `learning_rate` is a member's own, and the optimiser is shared.
        return optax.chain(
            optax.clip_by_global_norm(self.config.max_gradient_norm), optax.scale_by_adam()
        )

    @property
    def replays(self) -> bool:
        """Whether updates learn from trajectories of earlier iterations."""
        return self.targets.settles or self.distils

    @property
    def drifts(self) -> bool:
        """Whether what robots believe is learned, so that no two histories agree to the last
        digit."""
        return self.distils or self.inference.learns

    @property
    def last_step(self) -> int:
        """Where all stages end."""
        rounds = self.config.max_rounds if self.targets.settles else 0
        return self.config.num_iterations + rounds

    def learning_rate(self, member: MemberParams, step: Int[Array, ""]) -> Float[Array, ""]:
        """η_t, the member's own, which decays along a cosine; the same within an iteration."""
        if not self.config.decay:
            return member.learning_rate
        total = max(1, self.config.num_iterations)
        return member.learning_rate * optax.cosine_decay_schedule(1.0, total)(step)

    def epsilon(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """ε, on average over environments: linear, then constant.

        By hand, since `optax.linear_schedule` over 0 steps stays at its first value for ever, where
        `epsilon_fraction` = 0 should mean the last.
        """
        settings = self.config.rollout
        span = max(settings.epsilon_fraction * self.config.num_iterations, 1e-9)
        share = jnp.minimum(step / span, 1.0)
        return settings.epsilon_start + share * (settings.epsilon_end - settings.epsilon_start)

    def policy(self, networks: "Networks", member: MemberParams) -> NetworkPolicy:
        """The policy that robots get, of one member."""
        return NetworkPolicy(
            networks.student or self.inference,
            networks.values,
            member.baseline,
            member.scale,
            self.simulator.gamma,
        )


class Networks(NamedTuple):
    """What is learned: values of actions, and beliefs where these are distilled."""

    values: ValueNetwork
    student: AmortisedInference | None


class LearnerState(NamedTuple):
    """What changes, of one member. `average` is what acts in the end, `lagging` what targets are
    bootstrapped from, and `memory` what the targets of values remember."""

    networks: Networks
    lagging: ValueNetwork | None
    average: Networks
    optimiser: optax.OptState
    replay: Replay | None
    memory: Any
    step: Int[Array, ""]
    key: PRNGKeyArray


class Metrics(NamedTuple):
    """What is measured of an iteration or a round.

    `loss` is the mean squared error of values and `belief_loss` that of log-beliefs, both
    normalised; `reward` is the mean normalised reward a step of what was collected.
    """

    loss: Float[Array, ""]
    belief_loss: Float[Array, ""]
    reward: Float[Array, ""]


def init(learner: Learner, key: PRNGKeyArray, examples: State, like: Trajectories) -> LearnerState:
    """Before the first iteration: `examples` are states such as will come, `like` a row of
    trajectories such as will be collected."""
    config, simulator = learner.config, learner.simulator
    key_values, key_student, key = jax.random.split(key, 3)
    shown: Shaped[Array, "example ..."] = jax.vmap(simulator.observe)(examples)
    values = ValueNetwork(
        shown,
        num_contexts=simulator.num_contexts,
        num_actions=simulator.num_actions,
        config=config.model,
        key=key_values,
    )
    student = None
    if learner.distils:
        student = AmortisedInference(
            shown,
            context_prior=simulator.context_prior,
            num_actions=simulator.num_actions,
            config=config.model.network,
            core_width=config.model.core_width if config.model.core == "gru" else None,
            key=key_student,
        )
    networks = Networks(values, student)
    return LearnerState(
        networks,
        values if learner.targets.bootstraps else None,  # φ' = φ̄ = φ
        networks,
        learner.optimiser.init(eqx.filter(networks, eqx.is_array)),
        replay.init(like, config.rollout.replay_size) if learner.replays else None,
        learner.targets.init(),
        jnp.asarray(0),
        key,
    )


@eqx.filter_jit
def init_members(
    learner: Learner, keys: Key[Array, " member"], examples: State, like: Trajectories
) -> LearnerState:
    """The states of many members."""
    return jax.vmap(lambda key: init(learner, key, examples, like))(keys)


class _PolicyStage(Stage):
    """What both stages share: how much is collected."""

    learner: eqx.AbstractVar[Learner]

    @property
    def simulator(self) -> Simulator:
        return self.learner.simulator

    @property
    def chunk(self) -> int:
        return min(self.learner.config.evaluate_every, max(self.total, 1))

    @property
    def collection(self) -> Collection:
        settings = self.learner.config.rollout
        return Collection(settings.num_environments, settings.horizon, restart=True)

    def _actor(
        self,
        network: ValueNetwork,
        epsilon: Float[Array, ""] | float,
        mixes: Float[Array, "env action"] | None = None,
    ) -> Actor:
        learner, (num_envs, horizon, _) = self.learner, self.collection
        # Where a finite problem has fewer states than times in a roll-out, each is encoded once.
        num_uses = num_envs * (horizon + 1)
        return ValueActor(
            learner.inference,
            learner.inference.state_encoder(learner.simulator, num_uses),
            network,
            learner.simulator.encoder(network.encode, num_uses),
            spread_epsilon(epsilon, num_envs),
            mixes,
        )

    def _mean_reward(self, member: MemberParams, fresh: Trajectories) -> Float[Array, ""]:
        rewards = jax.vmap(jax.vmap(lambda s: self.learner.rewards(member.reward, s)))(fresh.states)
        return jnp.take_along_axis(rewards, fresh.actions[..., None], -1).mean()


@final
class ValuesStage(_PolicyStage):
    """Updates by gradient."""

    phase: ClassVar[str] = "policy"
    learner: Learner

    @property
    def begin(self) -> int:
        return 0

    @property
    def total(self) -> int:
        return self.learner.config.num_iterations

    def actor(self, state: LearnerState, member: MemberParams) -> Actor:
        learner, mixes = self.learner, None
        if learner.targets.mixes_actions:
            mixes = draw_mixes(state.key, self.simulator.num_actions, self.collection.num_envs)
        return self._actor(state.networks.values, learner.epsilon(state.step), mixes)

    def update(
        self,
        state: LearnerState,
        member: MemberParams,
        trajectories: Trajectories,
        key: PRNGKeyArray,
    ) -> tuple[LearnerState, Metrics]:
        learner, config = self.learner, self.learner.config
        kept = None if state.replay is None else replay.add(state.replay, trajectories)
        memory, lesson = learner.targets.prepare(
            state.memory, member, state.average.values, trajectories, jax.random.fold_in(key, 0)
        )
        rate = learner.learning_rate(member, state.step)

        # Values and belief have no parameter in common, so their sum trains each by itself, but
        # for the clipping of the norm, which they share.
        def loss(networks, lagging, replayed, draw):
            found = learner.targets.loss(networks.values, lagging, member, lesson, replayed, draw)
            belief_loss = jnp.zeros(())
            if networks.student is not None:
                belief_loss = networks.student.distillation_loss(learner.simulator, replayed)
            return found.loss + belief_loss, (found.squared_error, belief_loss)

        def update(carry, draws):
            networks, lagging, average, optimiser = carry
            key_batch, draw = draws  # for the replay, and for what targets choose by themselves
            replayed = None
            if kept is not None:
                replayed = replay.sample(kept, key_batch, config.rollout.batch_size)
            # Swept targets do not bootstrap, and never look at it.
            behind = networks.values if lagging is None else lagging
            gradients, losses = eqx.filter_grad(loss, has_aux=True)(
                networks, behind, replayed, draw
            )
            changes, optimiser = learner.optimiser.update(gradients, optimiser)
            networks = eqx.apply_updates(networks, jax.tree.map(lambda c: -rate * c, changes))
            if lagging is not None:
                lagging = optax.incremental_update(networks.values, lagging, config.target_rate)
            average = optax.incremental_update(networks, average, config.average_rate)
            return (networks, lagging, average, optimiser), losses

        key_batches, key_draws = jax.random.split(key)
        (networks, lagging, average, optimiser), losses = jax.lax.scan(
            update,
            (state.networks, state.lagging, state.average, state.optimiser),
            (
                jax.random.split(key_batches, config.num_updates),
                jax.random.uniform(key_draws, (config.num_updates,)),
            ),
        )
        after = state._replace(
            networks=networks,
            lagging=lagging,
            average=average,
            optimiser=optimiser,
            replay=kept,
            memory=memory,
        )
        loss_now, belief_loss = (part[-1] for part in losses)
        return after, Metrics(loss_now, belief_loss, self._mean_reward(member, trajectories))


@final
class SettlingStage(_PolicyStage):
    """The head by least squares, averaged over rounds."""

    phase: ClassVar[str] = "settling-policy"
    learner: Learner
    targets: SampledTargets

    @property
    def begin(self) -> int:
        return self.learner.config.num_iterations

    @property
    def total(self) -> int:
        return self.learner.config.max_rounds

    def actor(self, state: LearnerState, member: MemberParams) -> Actor:
        return self._actor(state.average.values, self.learner.config.rollout.epsilon_end)

    def update(
        self,
        state: LearnerState,
        member: MemberParams,
        trajectories: Trajectories,
        key: PRNGKeyArray,
    ) -> tuple[LearnerState, Metrics]:
        config, network = self.learner.config, state.average.values
        assert state.replay is not None
        kept = replay.add(state.replay, trajectories)
        # Fresh rows come from the policy that is being settled; the replayed ones keep states in
        # the equations that it avoids, whose values would be free otherwise.
        replayed = replay.sample(kept, key, config.rollout.settling_batch_size)
        batch = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), trajectories, replayed)
        solved = self._solve(network, member, batch)
        late = state.step - config.num_iterations - PLAIN_ROUNDS
        share = jnp.where(late < 0, 1.0, 2 / (late + 2))  # 1, 2/3, 2/4, ...: weights 1, 2, 3, ...
        change = solved - network.head
        average = state.average._replace(values=network.with_head(network.head + share * change))
        after = state._replace(average=average, replay=kept)
        reward = self._mean_reward(member, trajectories)
        return after, Metrics(jnp.abs(change).max(), jnp.zeros(()), reward)

    def _solve(
        self, network: ValueNetwork, member: MemberParams, batch: Trajectories
    ) -> Float[Array, "action hidden"]:
        """The head where the expected update vanishes, for the greedy policy of the present one.

        Each step is damped by `proximity`, so that it takes some to arrive; a' is that of the
        present head throughout, and the next round looks again.
        """
        config = self.learner.config
        equations = self.targets.equations(network, member, batch)
        factors = heads.factorise(
            equations.gram, equations.cross, ridge=config.ridge, proximity=config.proximity
        )

        def improve(head, _):
            return head + heads.step(factors, equations.constant - equations.cross @ head), None

        head, _ = jax.lax.scan(improve, network.head.reshape(-1, 1), length=_SOLVER_STEPS)
        return head.reshape(network.head.shape)
