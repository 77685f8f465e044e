"""Phase 1 where the simulator can be stepped from anywhere: Ψ by look-ahead, and planned for.

Ψ is learned by fitted iteration from replayed and demonstrated states, for every action:

    Ψ(s, a, θ) ← ν(s, a) + γ Ψ⁻(s', a', θ),    s' ~ p(· | s, a, θ),    a' = argmax Ψ⁻(s', ·, θ)·ω

where a state rests for ever, Ψ = ν / (1 − γ) is known. That is good enough to explore by, and not
for the likelihood: α = 0.01 turns an error of one step in a hundred into several nats, and the plan
that is greedy for a network wastes a step here and there. So where experts were, Ψ(s, a, θ) is
*planned*: a is taken, and then each of several plans is played in the simulator to where it rests,

    greedy for the network;   each action for ever;   as the expert went on;   the same a step later

with the same chance for all, and the best by ω is kept. Where the simulator is deterministic a plan
is a sequence of actions, and the best one so far is also tried with single actions changed, put in
or left out, again and again, until nothing helps: a search that ends at the exact plan from any
good one, as long as one change at a time leads there.

What bites: a plan can only be worth less than the best one, so more plans never harm, except that
the best of several noisy means is above its mean. Many draws keep that small; and where there is
chance, sequences are not searched for, since they would be fitted to the draws.
"""

import functools
from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from bigtrain.data import Replay, replay
from bigtrain.problem import Simulator, State, Trajectories, flatten
from bigtrain.reward.experience import ActionValues, Experience, NetworkValues, featurise
from bigtrain.reward.expert import ExpertData
from bigtrain.reward.successor import Batch, Steps, SuccessorNetwork

MOST_ROLLOUTS, MOST_DRAWS = 8_192, 64
"""How many episodes are played by a plan in a round, and how often each at most."""

LONGEST = 100
"""Steps after which the network's Ψ takes the place of an episode that does not rest."""

NUM_NEIGHBOURS = 4
"""Visited states whose plans are tried for a pair that leads to where it looks much the same."""

NUM_CHANGES = 32
"""Changed plans that are tried for each pair in a round."""


class _Played(NamedTuple):
    """An episode on its way: its state, the discount, features added up so far, and its actions."""

    state: State
    discount: Float[Array, ""]
    features: Float[Array, " feature"]
    actions: Int[Array, " step"]


class PlannedMemory(NamedTuple):
    """States met; and of each pair the best plan so far, how long until it rests, and Ψ by it."""

    states: Replay
    features: Float[Array, "context visited action feature"]
    plans: Int[Array, "context visited action step"]
    lengths: Int[Array, "context visited action"]


@final
class PlannedExperience(Experience):
    """Looked-ahead steps to learn Ψ from, and plans where experts were.

    `expert` holds the states of demonstrations, end to end. `onward[v]` are the actions that the
    expert took from the visited state v on, its last one repeated. `near` are the visited states
    that look most like where each pair leads.
    """

    simulator: Simulator
    expert: State
    onward: Int[np.ndarray | Array, "visited longer"]
    near: Int[np.ndarray | Array, "context visited action neighbour"]
    capacity: int = eqx.field(static=True)
    is_deterministic: bool = eqx.field(static=True)

    def init(self) -> PlannedMemory:
        num_contexts, num_actions = self.simulator.num_contexts, self.simulator.num_actions
        shape = (num_contexts, len(self.onward), num_actions)
        plans = jnp.broadcast_to(jnp.asarray(self.onward)[:, None, 1:], (*shape, LONGEST))
        states = replay.init(self.simulator.state_like, self.capacity)
        features = jnp.zeros((*shape, self.simulator.num_features))
        return PlannedMemory(states, features, plans, jnp.full(shape, LONGEST))

    def add(self, memory: PlannedMemory, episodes: Trajectories) -> PlannedMemory:
        return memory._replace(states=replay.add(memory.states, flatten(episodes.states)))

    def batch(
        self,
        memory: PlannedMemory,
        key: PRNGKeyArray,
        beliefs: Float[Array, "trajectory context"],
        num_episodes: int,
    ) -> Batch:
        """Steps of every action from `num_episodes` states, half of them demonstrated ones."""
        simulator = self.simulator
        key_met, key_shown, key_contexts, key_steps = jax.random.split(key, 4)
        half = num_episodes // 2
        met = replay.sample(memory.states, key_met, num_episodes - half)
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
        memory: PlannedMemory,
        network: SuccessorNetwork,
        reward_weights: Float[Array, " feature"],
        visited: State,
        key: PRNGKeyArray,
    ) -> tuple[PlannedMemory, Float[Array, "context visited action feature"]]:
        return _plan(self, memory, network, reward_weights, visited, key)

    def borrowed(
        self, memory: PlannedMemory, reward_weights: Float[Array, " feature"]
    ) -> Int[Array, "context visited action neighbour step"]:
        """What is best so far where states look like those that pairs lead to."""
        best = jnp.argmax(memory.features @ reward_weights, -1)[..., None]
        plans = jnp.take_along_axis(memory.plans, best[..., None], axis=2)[:, :, 0]
        plans = jnp.concatenate([best, plans[..., :-1]], axis=-1)
        return jax.vmap(lambda own, near: own[near])(plans, jnp.asarray(self.near))

    def best_plan(
        self,
        network: SuccessorNetwork,
        reward_weights: Float[Array, " feature"],
        state: State,
        onward: Int[Array, " longer"],
        draws: Key[Array, " draw"],
        action: Int[Array, ""],
        context: Int[Array, ""],
        plan: Int[Array, " step"],
        length: Int[Array, ""],
        borrowed: Int[Array, "neighbour step"],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " feature"], Int[Array, " step"], Int[Array, ""]]:
        """Ψ of one action in one state and context, by the best plan; the plan and its length."""

        def play(plan):
            each = jax.vmap(
                lambda key: self._play(network, reward_weights, state, action, context, plan, key)
            )
            features, actions, lengths = each(draws)
            return features.mean(0), actions[0], lengths[0]

        num_actions = self.simulator.num_actions
        constant = jnp.broadcast_to(jnp.arange(num_actions)[:, None], (num_actions, LONGEST))
        known = jnp.concatenate([plan[None], onward[None, 1:], onward[None, :-1]])
        groups = [jax.tree.map(lambda leaf: leaf[None], play(None)), jax.vmap(play)(constant)]
        if self.is_deterministic:
            change = functools.partial(_change, plan, length, num_actions)
            changed = jax.vmap(change)(jax.random.split(key, NUM_CHANGES))
            known = jnp.concatenate([known, borrowed, changed])
        groups.append(jax.vmap(play)(known))
        features, plans, lengths = jax.tree.map(lambda *parts: jnp.concatenate(parts), *groups)
        chosen = jnp.argmax(features @ reward_weights)
        return features[chosen], plans[chosen], lengths[chosen]

    def _play(
        self,
        network: SuccessorNetwork,
        reward_weights: Float[Array, " feature"],
        state: State,
        action: Int[Array, ""],
        context: Int[Array, ""],
        plan: Int[Array, " step"] | None,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " feature"], Int[Array, " step"], Int[Array, ""]]:
        """Discounted features of an action and then a plan, None being the network's own; what was
        done, and the steps until it rested."""
        simulator, gamma = self.simulator, self.simulator.gamma
        numbers = jnp.arange(simulator.num_actions)

        def features_of(state: State) -> Float[Array, "action feature"]:
            return jax.vmap(simulator.features, (None, 0))(state, numbers).astype(jnp.float32)

        def psi_of(state: State) -> Float[Array, "action feature"]:
            return network.in_context(simulator.observe(state), features_of(state), context)

        def advance(played: _Played, action, time) -> _Played:
            gained = played.features + played.discount * features_of(played.state)[action]
            after = simulator.look(jax.random.fold_in(key, time), played.state, action, context)
            return _Played(after, played.discount * gamma, gained, played.actions)

        def goes_on(carry):
            played, time = carry
            return ~simulator.is_absorbing(played.state) & (time < LONGEST)

        def step(carry):
            played, time = carry
            if plan is not None:
                return advance(played, plan[time], time + 1), time + 1
            chosen = jnp.argmax(psi_of(played.state) @ reward_weights).astype(jnp.int32)
            played = played._replace(actions=played.actions.at[time].set(chosen))
            return advance(played, chosen, time + 1), time + 1

        actions = jnp.zeros(LONGEST, jnp.int32) if plan is None else plan
        zero = jnp.zeros(len(reward_weights))
        begun = advance(_Played(state, jnp.float32(1), zero, actions), action, 0)
        played, length = jax.lax.while_loop(goes_on, step, (begun, jnp.asarray(0)))
        rests = simulator.is_absorbing(played.state)
        tail = jnp.where(rests, features_of(played.state) / (1 - gamma), psi_of(played.state))
        tail = tail[jnp.argmax(tail @ reward_weights)]
        return played.features + played.discount * tail, played.actions, length


@eqx.filter_jit
def _plan(
    experience: PlannedExperience,
    memory: PlannedMemory,
    network: SuccessorNetwork,
    reward_weights: Float[Array, " feature"],
    visited: State,
    key: PRNGKeyArray,
) -> tuple[PlannedMemory, Float[Array, "context visited action feature"]]:
    """A round of planning, of all pairs."""
    num_actions, num_contexts = experience.simulator.num_actions, experience.simulator.num_contexts
    num_visited = len(experience.onward)
    num_draws = 1
    if not experience.is_deterministic:
        num_pairs = num_visited * num_actions * num_contexts
        num_draws = int(np.clip(MOST_ROLLOUTS // num_pairs, 1, MOST_DRAWS))
    # The same chance for every plan, action and context of a state, and in every round: what
    # differs between them is then their own doing.
    draws = jax.random.split(jax.random.key(0), (num_visited, num_draws))
    pairs = jnp.arange(num_actions), jnp.arange(num_contexts)
    shape = (num_contexts, num_visited, num_actions)
    best = jax.vmap(  # [context, visited, action]
        jax.vmap(
            jax.vmap(experience.best_plan, (None, None, None, None, None, 0, None, 0, 0, 0, 0)),
            (None, None, 0, 0, 0, None, None, 0, 0, 0, 0),
        ),
        (None, None, None, None, None, None, 0, 0, 0, 0, 0),
    )
    states = jax.tree.map(jnp.asarray, visited)
    onward, keys = jnp.asarray(experience.onward), jax.random.split(key, shape)
    psi, plans, lengths = best(
        network,
        reward_weights,
        states,
        onward,
        draws,
        *pairs,
        memory.plans,
        memory.lengths,
        experience.borrowed(memory, reward_weights),
        keys,
    )
    return memory._replace(features=psi, plans=plans, lengths=lengths), psi


def _change(
    plan: Int[Array, " step"], length: Int[Array, ""], num_actions: int, key: PRNGKeyArray
) -> Int[Array, " step"]:
    """A plan with a change or two, each before it rests: an action is another one, is put in, is
    left out, or comes later or earlier."""

    def once(plan, key):
        keys = jax.random.split(key, 4)
        time, other = jax.random.randint(keys[0], (2,), 0, jnp.maximum(length, 1))
        action = jax.random.randint(keys[1], (), 0, num_actions)
        times = jnp.arange(len(plan))
        changed = jnp.where(times == time, action, plan)
        earlier = plan[jnp.maximum(times - (times > time), 0)]
        put_in = jnp.where(times == time, action, earlier)
        left_out = plan[jnp.minimum(times + (times >= time), len(plan) - 1)]
        swapped = plan.at[time].set(plan[other]).at[other].set(plan[time])
        kind = jax.random.randint(keys[2], (), 0, 4)
        return jnp.stack([changed, put_in, left_out, swapped])[kind]

    key_once, key_twice, key_whether = jax.random.split(key, 3)
    one = once(plan, key_once)
    return jnp.where(jax.random.bernoulli(key_whether), once(one, key_twice), one)


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
        _near(simulator, data.visited),
        capacity,
        is_deterministic(simulator, shown),
    )


def _onward(expert: Trajectories, data: ExpertData) -> Int[np.ndarray, "visited longer"]:
    """The actions from the first time on that each visited state was met."""
    steps = np.asarray(expert.mask)[:, 1:]
    trajectories, moments = np.nonzero(steps)
    lengths = steps.sum(1)
    _, first = np.unique(np.asarray(data.rows), return_index=True)
    trajectory, moment = trajectories[first], moments[first]
    ahead = moment[:, None] + np.arange(LONGEST + 1)
    ahead = np.minimum(ahead, lengths[trajectory][:, None] - 1)
    return np.asarray(expert.actions)[trajectory[:, None], ahead].astype(np.int32)


def _near(
    simulator: Simulator, visited: State
) -> Int[np.ndarray, "context visited action neighbour"]:
    """The visited states that look most like where each pair leads, by one draw."""
    contexts, actions = jnp.arange(simulator.num_contexts), jnp.arange(simulator.num_actions)
    states = jax.tree.map(jnp.asarray, visited)

    @jax.jit
    def find(states):
        seen = jax.vmap(simulator.observe)(states)
        seen = seen.reshape(len(seen), -1).astype(jnp.float32)
        scale = jnp.where(seen.std(0) > 0, seen.std(0), 1)

        def nearest(context, state, action):
            after = simulator.look(jax.random.key(0), state, action, context)
            one = simulator.observe(after).reshape(-1).astype(jnp.float32)
            distances = (((seen - one) / scale) ** 2).sum(-1)
            return jax.lax.top_k(-distances, min(NUM_NEIGHBOURS, len(seen)))[1]

        each = jax.vmap(jax.vmap(nearest, (None, None, 0)), (None, 0, None))
        return jax.vmap(each, (0, None, None))(contexts, states, actions)

    return np.asarray(find(states))


_NUM_LOOKS = 256


def is_deterministic(simulator: Simulator, states: State) -> bool:
    """Whether chance made no difference in any of some hundred looks from these states."""
    rng = np.random.default_rng(0)
    count = len(jax.tree.leaves(states)[0])
    rows = rng.integers(count, size=_NUM_LOOKS)
    chosen = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), states)
    actions = jnp.asarray(rng.integers(simulator.num_actions, size=_NUM_LOOKS))
    contexts = jnp.asarray(rng.integers(simulator.num_contexts, size=_NUM_LOOKS))
    look = jax.jit(jax.vmap(lambda *given: simulator.look(*given)))
    one, other = (
        look(jax.random.split(jax.random.key(seed), _NUM_LOOKS), chosen, actions, contexts)
        for seed in (0, 1)
    )
    same = jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), one, other)
    return all(jax.tree.leaves(same))
