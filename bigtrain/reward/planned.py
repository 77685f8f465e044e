"""Phase 1 where the simulator can be stepped from anywhere: Ψ by look-ahead, and planned for.

Ψ is learned by fitted iteration from replayed and demonstrated states, for every action:

    Ψ(s, a, θ) ← ν(s, a) + γ Ψ⁻(s', a', θ),    s' ~ p(· | s, a, θ),    a' = argmax Ψ⁻(s', ·, θ)·ω

where a state rests for ever, Ψ = ν / (1 − γ) is known. That is good enough to explore by, and not
for the likelihood: α = 0.01 turns an error of one step in a hundred into several nats, and the plan
that is greedy for a network wastes a step here and there. So where experts were, Ψ(s, a, θ) is
*planned*: a is taken, and then each of several plans is played in the simulator to where it rests,

    greedy for the network;   each action for ever;   as the expert went on;   the same a step later

with the same chance for all, and the best by ω is kept. A plan can only be worse than the best one,
so more plans never harm; what chance adds to the best of several is small where many draws are
averaged, and nothing where the simulator is deterministic.
"""

from typing import ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from bigtrain.data import Replay, replay
from bigtrain.learning import Collection
from bigtrain.problem import Simulator, State, Trajectories, flatten
from bigtrain.reward.experience import ActionValues, Experience, NetworkValues, featurise
from bigtrain.reward.expert import ExpertData
from bigtrain.reward.learner import (
    Learner,
    LearnerState,
    Metrics,
    climb,
    conclude,
    expert_successor_features,
)
from bigtrain.reward.stages import PLAIN_ROUNDS, SETTLING_NEWTON_STEPS, RewardStage, rest
from bigtrain.reward.successor import Batch, Steps, SuccessorNetwork

MOST_ROLLOUTS, MOST_DRAWS = 8_192, 64
"""How many episodes are played by a plan in a round, and how often each at most."""

LONGEST = 100
"""Steps after which the network's Ψ takes the place of an episode that does not rest."""


class _Played(NamedTuple):
    """An episode on its way: its state, the discount so far, and features added up so far."""

    state: State
    discount: Float[Array, ""]
    features: Float[Array, " feature"]


@final
class PlannedExperience(Experience):
    """Looked-ahead steps to learn Ψ from, and plans where experts were.

    `expert` holds the states of demonstrations, end to end. `onward[v]` are the actions that the
    expert took from the visited state v on, its last one repeated.
    """

    simulator: Simulator
    expert: State
    onward: Int[np.ndarray | Array, "visited step"]
    capacity: int = eqx.field(static=True)
    is_deterministic: bool = eqx.field(static=True)

    def init(self) -> Replay:
        return replay.init(self.simulator.state_like, self.capacity)

    def add(self, memory: Replay, episodes: Trajectories) -> Replay:
        return replay.add(memory, flatten(episodes.states))

    def batch(
        self,
        memory: Replay,
        key: PRNGKeyArray,
        beliefs: Float[Array, "trajectory context"],
        num_episodes: int,
    ) -> Batch:
        """Steps of every action from `num_episodes` states, half of them demonstrated ones."""
        simulator = self.simulator
        key_met, key_shown, key_contexts, key_steps = jax.random.split(key, 4)
        half = num_episodes // 2
        met = replay.sample(memory, key_met, num_episodes - half)
        num_shown = len(jax.tree.leaves(self.expert)[0])
        rows = jax.random.randint(key_shown, (half,), 0, num_shown)
        shown = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], self.expert)
        states = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), met, shown)
        shape = (num_episodes, simulator.num_actions)
        contexts = jax.random.randint(key_contexts, shape, 0, simulator.num_contexts)
        look = jax.vmap(jax.vmap(simulator.look, (0, None, 0, 0)))
        actions = jnp.broadcast_to(jnp.arange(shape[1]), shape)
        after = look(jax.random.split(key_steps, shape), states, actions, contexts)
        everything = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), states, flatten(after))
        rests = jax.vmap(simulator.is_absorbing)(everything)
        observations, features = featurise(simulator, everything)
        features = jnp.where(rests[:, None, None], features / (1 - simulator.gamma), features)
        here = jnp.repeat(jnp.arange(num_episodes), shape[1])
        weights = jax.nn.one_hot(contexts.ravel(), simulator.num_contexts).T * ~rests[here]
        ahead = num_episodes + jnp.arange(here.size)
        steps = Steps(here, actions.ravel(), ahead, weights)
        nothing = jax.tree.map(lambda leaf: leaf[..., :0], steps)
        return Batch(observations, features, nothing, steps, rests)

    def action_values(
        self, network: SuccessorNetwork, reward_weights: Float[Array, " feature"]
    ) -> ActionValues:
        return NetworkValues(self.simulator, network, reward_weights)

    def expert_features(
        self,
        simulator: Simulator,
        network: SuccessorNetwork,
        reward_weights: Float[Array, " feature"],
        visited: State,
    ) -> Float[Array, "context visited action feature"]:
        num_actions, num_contexts = simulator.num_actions, simulator.num_contexts
        num_visited = len(self.onward)
        num_pairs = num_visited * num_actions * num_contexts
        num_draws = 1
        if not self.is_deterministic:
            num_draws = int(np.clip(MOST_ROLLOUTS // num_pairs, 1, MOST_DRAWS))
        # The same chance for every plan, action and context of a state: what differs between them
        # is then their own doing.
        keys = jax.random.split(jax.random.key(0), (num_visited, num_draws))
        actions, contexts = jnp.arange(num_actions), jnp.arange(num_contexts)
        constant = jnp.broadcast_to(actions[:, None], (num_actions, LONGEST))

        def of_pair(state, onward, keys, action, context):
            """Ψ of one action in one state and context: the best plan's."""
            plans = jnp.concatenate([constant, onward[None, 1:], onward[None, :-1]])

            def one(plan, key):
                return self._play(network, reward_weights, state, action, context, plan, key)

            played = jax.vmap(lambda plan: jax.vmap(lambda key: one(plan, key))(keys).mean(0))
            greedy = jax.vmap(lambda key: one(None, key))(keys).mean(0)
            found = jnp.concatenate([greedy[None], played(plans)])
            return found[jnp.argmax(found @ reward_weights)]

        each = jax.vmap(of_pair, (None, None, None, 0, None))
        each = jax.vmap(each, (0, 0, 0, None, None))
        each = jax.vmap(each, (None, None, None, None, 0))
        visited = jax.tree.map(jnp.asarray, visited)
        return each(visited, jnp.asarray(self.onward), keys, actions, contexts)

    def _play(
        self,
        network: SuccessorNetwork,
        reward_weights: Float[Array, " feature"],
        state: State,
        action: Int[Array, ""],
        context: Int[Array, ""],
        plan: Int[Array, " step"] | None,
        key: PRNGKeyArray,
    ) -> Float[Array, " feature"]:
        """Discounted features of an action and then a plan; None is the network's own."""
        simulator, gamma = self.simulator, self.simulator.gamma
        actions = jnp.arange(simulator.num_actions)

        def features_of(state: State) -> Float[Array, "action feature"]:
            return jax.vmap(simulator.features, (None, 0))(state, actions).astype(jnp.float32)

        def psi_of(state: State) -> Float[Array, "action feature"]:
            seen: Shaped[Array, ...] = simulator.observe(state)
            return network.in_context(seen, features_of(state), context)

        def advance(carry, action, moment):
            now = carry.state
            gained = carry.features + carry.discount * features_of(now)[action]
            after = simulator.look(jax.random.fold_in(key, moment), now, action, context)
            return _Played(after, carry.discount * gamma, gained)

        def goes_on(carry):
            played, moment = carry
            return ~simulator.is_absorbing(played.state) & (moment < LONGEST)

        def step(carry):
            played, moment = carry
            if plan is None:
                chosen = jnp.argmax(psi_of(played.state) @ reward_weights)
            else:
                chosen = plan[moment]
            return advance(played, chosen, moment + 1), moment + 1

        num_features = len(reward_weights)
        begun = advance(_Played(state, jnp.float32(1), jnp.zeros(num_features)), action, 0)
        played, _ = jax.lax.while_loop(goes_on, step, (begun, jnp.asarray(0)))
        rests = simulator.is_absorbing(played.state)
        tail = jnp.where(rests, features_of(played.state) / (1 - gamma), psi_of(played.state))
        return played.features + played.discount * tail[jnp.argmax(tail @ reward_weights)]


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
        expert_psi = expert_successor_features(learner, state.network, now)
        found = climb(learner, expert_psi, now, SETTLING_NEWTON_STEPS)
        late = state.step - learner.config.num_iterations - PLAIN_ROUNDS
        share = jnp.where(late <= 0, 1.0, 2 / (late + 2))
        moved, metrics = conclude(learner, state, now + share * (found - now), expert_psi)
        return rest(learner, state, moved, metrics)


def plan_experience(
    simulator: Simulator, expert: Trajectories, data: ExpertData, capacity: int
) -> PlannedExperience:
    """The experience of demonstrations in a simulator that can be stepped from anywhere."""
    mask = np.asarray(expert.mask)
    shown = jax.tree.map(lambda leaf: np.asarray(leaf)[mask], expert.states)
    return PlannedExperience(
        simulator,
        shown,
        _onward(expert, data),
        capacity,
        is_deterministic(simulator, shown),
    )


def _onward(expert: Trajectories, data: ExpertData) -> Int[np.ndarray, "visited step"]:
    """The actions from the first time on that each visited state was met."""
    steps = np.asarray(expert.mask)[:, 1:]
    trajectories, moments = np.nonzero(steps)
    lengths = steps.sum(1)
    _, first = np.unique(np.asarray(data.rows), return_index=True)
    trajectory, moment = trajectories[first], moments[first]
    ahead = moment[:, None] + np.arange(LONGEST + 1)
    ahead = np.minimum(ahead, lengths[trajectory][:, None] - 1)
    return np.asarray(expert.actions)[trajectory[:, None], ahead].astype(np.int32)


_NUM_LOOKS = 256


def is_deterministic(simulator: Simulator, states: State) -> bool:
    """Whether chance made no difference in any of some hundred looks from these states."""
    rng = np.random.default_rng(0)
    count = len(jax.tree.leaves(states)[0])
    rows = rng.integers(count, size=_NUM_LOOKS)
    chosen = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), states)
    actions = jnp.asarray(rng.integers(simulator.num_actions, size=_NUM_LOOKS))
    contexts = jnp.asarray(rng.integers(simulator.num_contexts, size=_NUM_LOOKS))
    look = eqx.filter_jit(jax.vmap(simulator.look))
    one, other = (
        look(jax.random.split(jax.random.key(seed), _NUM_LOOKS), chosen, actions, contexts)
        for seed in (0, 1)
    )
    same = jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), one, other)
    return all(jax.tree.leaves(same))
