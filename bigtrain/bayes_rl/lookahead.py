"""Looked-ahead targets: a backup of every action, by stepping the simulator from where one was.

    y(s, b, a) = r̃(s, a) + γ Σ_θ b(θ) mean_k V⁻(s'_k, b'_k),   V⁻ = max_a Q⁻,  s'_k ~ p(· | s, a, θ)

with b' the belief after s'_k and Q⁻ a lagging copy of the network. A sampled step says something of
one action in one context; this says it of all of them, so that nothing hangs on how often an action
was tried, and noise in what follows is averaged out before the maximum is taken. It needs a
simulator that can be stepped from any state in any context (`Simulator.can_look`).

An iteration looks ahead from as many batches of replayed hyperstates as it has updates, all at
once, [row, action, outcome]; an update only evaluates Q⁻ there.
"""

from typing import Any, ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bigtrain.bayes_rl.actor import hidden_of
from bigtrain.bayes_rl.config import BayesRLConfig
from bigtrain.bayes_rl.learner import Learner
from bigtrain.bayes_rl.rewards import MemberParams, RewardModel, rescale_member
from bigtrain.bayes_rl.targets import ValueLoss, ValueTargets, value_of_resting, weigh_errors
from bigtrain.belief import Categorical, InferenceModel
from bigtrain.data import Replay, replay
from bigtrain.errors import ConfigError
from bigtrain.policy import ValueNetwork
from bigtrain.problem import MixedActor, Simulator, State, Trajectories, draw_mixes, flatten

_EPISODES, _STEPS, _LEAST_DEVIATION = 256, 128, 1e-6

MOST_CONTEXTS = 8
"""With more contexts than this, outcomes are of so many drawn from the belief, not of each."""


class Lesson(NamedTuple):
    """Hyperstates, and what may follow each action there.

    `probs` weigh outcomes. Where an outcome `rests` for ever it is worth `resting`, which is known.
    `counts` is 0 where a hyperstate itself rests: no choice is made there.
    """

    states: State
    log_beliefs: Float[Array, "row context"]
    counts: Float[Array, " row"]
    rewards: Float[Array, "row action"]
    next_states: State
    next_log_beliefs: Float[Array, "row action outcome context"]
    probs: Float[Array, "row action outcome"]
    rests: Bool[Array, "row action outcome"]
    resting: Float[Array, "row action outcome"]


@final
class LookAheadTargets(ValueTargets):
    """One-step look-ahead from replayed hyperstates."""

    bootstraps: ClassVar[bool] = True
    settles: ClassVar[bool] = False
    mixes_actions: ClassVar[bool] = True
    simulator: Simulator
    inference: InferenceModel
    rewards: RewardModel
    num_hyperstates: int = eqx.field(static=True)
    num_batches: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    num_draws: int = eqx.field(static=True)
    advantage_weight: float = eqx.field(static=True)

    def init(self) -> Replay:
        like = self.simulator.state_like, jax.eval_shape(self.inference.init)
        return replay.init(like, self.num_hyperstates)

    def prepare(
        self,
        memory: Replay,
        member: MemberParams,
        network: ValueNetwork,
        trajectories: Trajectories,
        key: PRNGKeyArray,
    ) -> tuple[Replay, Lesson]:
        remembered, _ = self.inference.unroll(self.simulator, trajectories)
        memory = replay.add(memory, flatten((trajectories.states, remembered)))
        key_rows, key_look = jax.random.split(key)
        count = self.num_batches * self.batch_size
        states, remembered = replay.sample(memory, key_rows, count)
        look = jax.vmap(self._look, (None, 0, 0, 0))
        return memory, look(member, states, remembered, jax.random.split(key_look, count))

    def loss(
        self,
        network: ValueNetwork,
        lagging: ValueNetwork,
        member: MemberParams,
        lesson: Lesson,
        replayed: Trajectories | None,
        draw: Float[Array, ""],
    ) -> ValueLoss:
        begin = jnp.floor(draw * self.num_batches).astype(int) * self.batch_size
        batch: Lesson = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, self.batch_size), lesson
        )
        hidden = hidden_of(self.simulator, network, batch.states, batch.log_beliefs)
        onward = hidden_of(self.simulator, lagging, batch.next_states, batch.next_log_beliefs)
        ahead = jnp.where(batch.rests, batch.resting, (onward @ lagging.head.T).max(-1))
        targets = batch.rewards + self.simulator.gamma * (batch.probs * ahead).sum(-1)
        errors = hidden @ network.head.T - jax.lax.stop_gradient(targets)
        errors = errors * jnp.sqrt(batch.counts / batch.counts.mean().clip(1e-6))[:, None]
        return ValueLoss(weigh_errors(errors, self.advantage_weight), (errors**2).mean())

    def _look(
        self, member: MemberParams, state: State, remembered: Any, key: PRNGKeyArray
    ) -> Lesson:
        """What may follow every action from one hyperstate."""
        simulator, inference = self.simulator, self.inference
        belief = categorical(inference, remembered)
        key_contexts, key_draws = jax.random.split(key)
        contexts, probs = belief.nodes()
        if len(contexts) > MOST_CONTEXTS:
            # Spread evenly over the belief, so that few stand for many.
            strata = (jnp.arange(MOST_CONTEXTS) + jax.random.uniform(key_contexts)) / MOST_CONTEXTS
            contexts = jax.vmap(belief.sample)(strata)
            probs = jnp.full(MOST_CONTEXTS, 1 / MOST_CONTEXTS)
        contexts = jnp.repeat(contexts, self.num_draws)
        probs = jnp.repeat(probs, self.num_draws) / self.num_draws

        def follow(action, context, key):
            after = simulator.look(key, state, action, context)
            seen = inference.encode(simulator.observe(after))
            updated, _ = inference.update(remembered, seen, action)
            rests = simulator.is_absorbing(after)
            resting = value_of_resting(self.rewards(member.reward, after), simulator.gamma)
            return after, categorical(inference, updated).log_probs, rests, resting

        # The same chance for every action: what differs between them is then their own doing.
        keys = jax.random.split(key_draws, len(contexts))
        each = jax.vmap(jax.vmap(follow, (None, 0, 0)), (0, None, None))
        after, log_beliefs, rests, resting = each(jnp.arange(simulator.num_actions), contexts, keys)
        return Lesson(
            state,
            belief.log_probs,
            1.0 - simulator.is_absorbing(state),
            self.rewards(member.reward, state),
            after,
            log_beliefs,
            jnp.broadcast_to(probs, rests.shape),
            rests,
            resting,
        )


def look_ahead(
    simulator: Simulator, inference: InferenceModel, rewards: RewardModel, config: BayesRLConfig
) -> LookAheadTargets:
    """The targets with the settings of phase 3."""
    if config.model.core != "none":
        raise ConfigError(
            "`core` must be 'none' where `looks` is set: what a core remembers is of an episode "
            "that was played, not of one that might follow."
        )
    return LookAheadTargets(
        simulator,
        inference,
        rewards,
        config.num_hyperstates,
        config.num_updates,
        config.rollout.hyperstate_batch_size,
        config.num_draws,
        config.advantage_weight,
    )


@eqx.filter_jit
def normalise(learner: Learner, members: MemberParams) -> MemberParams:
    """Members with rewards of which nothing is got where the best of tasks has ended, and returns
    of random episodes that have a deviation of 1.

    A value then says how much is still to be gained, in the units that it varies by (design, point
    10). What ends no task, or is the same in every episode, stays as it was.
    """
    simulator = learner.simulator
    key_mixes, key = jax.random.split(jax.random.key(0))
    mixes = draw_mixes(key_mixes, simulator.num_actions, _EPISODES)
    played = simulator.collect(
        MixedActor(mixes), key, num_envs=_EPISODES, horizon=_STEPS, restart=False
    )
    rests = jax.vmap(jax.vmap(simulator.is_absorbing))(played.states)
    discounts = simulator.gamma ** jnp.arange(_STEPS + 1)

    def one(member: MemberParams) -> MemberParams:
        rewards = jax.vmap(jax.vmap(lambda s: learner.rewards(member.reward, s)))(played.states)
        ended = jnp.where(rests, rewards.max(-1), -jnp.inf).max()
        shift = jnp.where(rests.any(), ended, 0)
        gained = jnp.take_along_axis(rewards, played.actions[..., None], -1)[..., 0] - shift
        deviation = (gained * discounts).sum(-1).std()
        scale = jnp.where(deviation > _LEAST_DEVIATION, deviation, 1)
        return rescale_member(member, shift, scale)

    return jax.vmap(one)(members)


def categorical(inference: InferenceModel, remembered: Any) -> Categorical:
    """What is believed, as networks of values know it."""
    belief = inference.belief(remembered)
    assert isinstance(belief, Categorical)
    return belief
