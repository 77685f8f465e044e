"""p(θ | history) as a network, for pictures and for simulators whose likelihood nobody knows.

Bayes' rule adds the log-likelihood of each step to the log-belief. The network does the same with a
learned one, so that evidence adds up over episodes of any length:

    log q(θ | h_t) = log p(θ) + Σ_{i ≤ t} g(o_{i−1}, a_{i−1}, o_i)[θ] − log Z_t        [context]
    g(o, a, o') = head(relu(evidence(enc(o), enc(o'), one-hot a, m)))
    m_t = GRU(m_{t−1}; enc(o_t), one-hot a_{t−1})                                     [core]

Where what is seen does not tell the state, the recurrent core m remembers the rest. Contexts that
the simulator drew give

    L = −E[log q(θ | h_t)] at every t  =  E[KL(p(θ | h_t) ‖ q(θ | h_t))] + const,

whose minimum is the true posterior; or q is distilled from the log-beliefs of an exact filter, by
squares, which has the same minimum without the noise of the draw. This takes the place of the
paper's Algorithm 2 (appendix E) where simulators tell the context of an episode.

What bites:
- Clipping. Log-beliefs are clipped at −12 at every step, in learning as in acting: one step's
  evidence of −∞ could never be outweighed, and what is clipped once is forgotten.
- Near certainty L has next to no gradient, and log-odds are off where probabilities look right.
- In rows episodes lie end to end: sums and core begin anew where one does.
"""

from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.arrays import ArrayLike
from bigtrain.belief.beliefs import Categorical, clip_log_belief
from bigtrain.belief.inference import UNKNOWN, BeliefInfo, InferenceModel
from bigtrain.learning import Encoder, NetworkConfig, Trunk
from bigtrain.problem import Simulator, Trajectories, flatten


class AmortisedState(NamedTuple):
    """What the next update needs: the last code, the core's memory, and the log-belief."""

    begun: Bool[Array, ""]
    code: Float[Array, " width"]
    memory: Float[Array, " core"]
    log_belief: Float[Array, " context"]


@final
class AmortisedInference(InferenceModel):
    """A learned log-likelihood of each step, added up. `context_prior` is [context]."""

    encoder: Encoder
    entry: Trunk
    core: eqx.nn.GRUCell | None
    evidence: Trunk
    head: eqx.nn.Linear
    log_prior: Float[Array, " context"]

    def __init__(
        self,
        examples: Shaped[Array, "example ..."],
        *,
        context_prior: ArrayLike,
        num_actions: int,
        config: NetworkConfig,
        core_width: int | None,
        key: PRNGKeyArray,
    ):
        keys = jax.random.split(key, 5)
        width = config.width
        self.encoder = Encoder(examples, config, key=keys[0])
        self.entry = Trunk((self.encoder.size, width), key=keys[1])
        self.core = None
        if core_width is not None:
            self.core = eqx.nn.GRUCell(width + num_actions, core_width, key=keys[2])
        inputs = 2 * width + num_actions + (core_width or 0)
        self.evidence = Trunk((inputs, *[width] * config.depth), key=keys[3])
        prior = jnp.asarray(context_prior, jnp.float32)
        head = eqx.nn.Linear(width, len(prior), key=keys[4])
        # Before anything is learned no step tells more than the bias, the same for all of them.
        self.head = eqx.tree_at(lambda h: h.weight, head, jnp.zeros_like(head.weight))
        self.log_prior = clip_log_belief(jnp.log(prior))

    def init(self) -> AmortisedState:
        width = self.entry.layers[-1].out_features
        return AmortisedState(
            jnp.asarray(False), jnp.zeros(int(width)), self._empty_core, self.log_prior
        )

    def encode(self, observation: Shaped[Array, "..."]) -> Float[Array, " width"]:
        return jax.nn.relu(self.entry(self.encoder(observation)))

    def update(
        self,
        memory: AmortisedState,
        code: Float[Array, " width"],
        previous_action: Int[Array, ""],
    ) -> tuple[AmortisedState, BeliefInfo]:
        # The first observation is no step: no action, no evidence.
        done = jax.nn.one_hot(previous_action, self._num_actions) * memory.begun
        # The core first: the evidence of a step may depend on what it makes of it.
        remembered = self._remember(memory.memory, code, done)
        evidence = self._step_log_likelihood(memory.code, code, done, remembered)
        log_belief = clip_log_belief(memory.log_belief + jnp.where(memory.begun, evidence, 0))
        return AmortisedState(jnp.asarray(True), code, remembered, log_belief), UNKNOWN

    def belief(self, memory: AmortisedState) -> Categorical:
        return Categorical(memory.log_belief)

    def loss(
        self, simulator: Simulator, trajectories: Trajectories, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """−log q(θ | s, a, s') of steps made anew where that can be, else −log q(θ | h_t)."""
        if simulator.can_look and self.core is None:
            return self._step_loss(simulator, trajectories, key)
        log_beliefs = self.log_beliefs(simulator, trajectories)
        contexts = trajectories.contexts[..., None]
        right = jnp.take_along_axis(log_beliefs, contexts, -1)[..., 0]
        return -jnp.where(trajectories.mask, right, 0).sum() / trajectories.mask.sum()

    def _step_loss(
        self, simulator: Simulator, trajectories: Trajectories, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """−log softmax(log p(θ) + g(o, a, o'))[θ'], with θ' drawn anew for every step.

        Its minimum is g = log p(s' | s, a, θ) up to a constant in θ. However sure the belief of a
        history is, its gradient does not vanish, as that of −log q(θ | h) does.
        """
        states, actions = flatten((trajectories.states, jnp.asarray(trajectories.actions)))
        key_contexts, key_steps = jax.random.split(key)
        contexts = jax.random.categorical(key_contexts, self.log_prior, shape=actions.shape)
        keys = jax.random.split(key_steps, len(actions))
        after = jax.vmap(simulator.look)(keys, states, actions, contexts)
        encode = jax.vmap(lambda state: self.encode(simulator.observe(state)))
        evidence = jax.vmap(self.step_log_likelihood)(encode(states), actions, encode(after))
        log_posterior = jax.nn.log_softmax(self.log_prior + evidence)
        right = jnp.take_along_axis(log_posterior, contexts[:, None], -1)[:, 0]
        # Where a task is over too: that nothing is told there has to be learned as well.
        mask = flatten(jnp.asarray(trajectories.mask))
        return -jnp.where(mask, right, 0).sum() / mask.sum()

    def distillation_loss(
        self, simulator: Simulator, trajectories: Trajectories
    ) -> Float[Array, ""]:
        """How far log-beliefs are from the noted ones of an exact filter, as networks see them.

        They see them divided by 4 (`Categorical.encode`), hence the 16. The filter's are clipped:
        it can be certain, which no sum of finite evidence is.
        """
        learned = self.log_beliefs(simulator, trajectories)
        return ((learned - clip_log_belief(trajectories.notes.log_probs)) ** 2).mean() / 16

    def log_beliefs(
        self, simulator: Simulator, trajectories: Trajectories
    ) -> Float[Array, "row time context"]:
        """The same as `update` step by step, with all that can be done at once."""
        first = jnp.asarray(trajectories.first)
        # Without a core g depends on a step alone, and a finite problem has few different ones.
        if self.core is None:
            evidence = simulator.map_steps(self.encode, self.step_log_likelihood, trajectories)
        else:
            encode = simulator.encoder(self.encode, trajectories.actions.size)
            codes = jax.vmap(jax.vmap(encode))(trajectories.states)
            evidence = jax.vmap(self._row_log_likelihoods)(
                codes, trajectories.previous_actions, first
            )
        return jax.vmap(self._add_up)(evidence, first)

    def step_log_likelihood(
        self, before: Float[Array, " width"], action: Int[Array, ""], code: Float[Array, " width"]
    ) -> Float[Array, " context"]:
        """g(o, a, o'), where there is no core."""
        done = jax.nn.one_hot(action, self._num_actions)
        return self._step_log_likelihood(before, code, done, self._empty_core)

    def _row_log_likelihoods(
        self,
        codes: Float[Array, "time width"],
        previous: Int[Array, " time"],
        first: Bool[Array, " time"],
    ) -> Float[Array, "time context"]:
        """The evidence of each step of a row, with a core that goes through it."""
        done = jax.nn.one_hot(previous, self._num_actions)

        def remember(memory, step):
            code, done, first = step
            memory = self._remember(jnp.where(first, self._empty_core, memory), code, done)
            return memory, memory

        _, memories = jax.lax.scan(remember, self._empty_core, (codes, done, first))
        # At the first time of an episode that is another one's code; `_add_up` ignores the result.
        before = jnp.roll(codes, 1, axis=0)
        return jax.vmap(self._step_log_likelihood)(before, codes, done, memories)

    def _add_up(
        self, evidence: Float[Array, "time context"], first: Bool[Array, " time"]
    ) -> Float[Array, "time context"]:
        """The log-beliefs of a row by what each step adds. Clipped at each, as `update` does."""

        def add(log_belief, step):
            evidence, first = step
            log_belief = jnp.where(first, self.log_prior, clip_log_belief(log_belief + evidence))
            return log_belief, log_belief

        return jax.lax.scan(add, self.log_prior, (evidence, first))[1]

    def _remember(
        self,
        memory: Float[Array, " core"],
        code: Float[Array, " width"],
        done: Float[Array, " action"],
    ) -> Float[Array, " core"]:
        return memory if self.core is None else self.core(jnp.append(code, done), memory)

    def _step_log_likelihood(
        self,
        before: Float[Array, " width"],
        code: Float[Array, " width"],
        done: Float[Array, " action"],
        memory: Float[Array, " core"],
    ) -> Float[Array, " context"]:
        inputs = jnp.concatenate([before, code, done, memory])
        return self.head(jax.nn.relu(self.evidence(inputs)))

    @property
    def _empty_core(self) -> Float[Array, " core"]:
        return jnp.zeros(0 if self.core is None else self.core.hidden_size)

    @property
    def _num_actions(self) -> int:
        # From shapes: a module's arrays are all that a bundle holds.
        width = int(self.entry.layers[-1].out_features)
        core = 0 if self.core is None else self.core.hidden_size
        return int(self.evidence.layers[0].in_features) - 2 * width - core
