"""Before phase 1: what beliefs are inferred by, learned where nobody knows the likelihood.

The simulator draws contexts and tells them; the model learns to tell them from what is seen. Where
θ is hidden nothing but exploring makes evidence, and doors open before anything is heard if every
action is as likely as any other: so each environment draws its own mix of actions.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bigtrain.belief import AmortisedInference, BeliefConfig, InferenceModel
from bigtrain.data import Replay, replay
from bigtrain.learning import Collection, Judge, Stage, drive, pick
from bigtrain.phases.routing import Route
from bigtrain.problem import Actor, MixedActor, Simulator, Trajectories, draw_mixes, row_like
from bigtrain.runs import Callback, Run


class BeliefLearnerState(NamedTuple):
    """What changes while a model is learned."""

    model: InferenceModel
    optimiser: optax.OptState
    replay: Replay
    step: Int[Array, ""]
    key: PRNGKeyArray


class Metrics(NamedTuple):
    """The model's own loss: −log q(θ | h), unless it is a model of somebody's own."""

    belief_loss: Float[Array, ""]


@final
class BeliefStage(Stage):
    """Roll-outs of random actions, and gradient updates of the model's loss."""

    phase: ClassVar[str] = "belief"
    _simulator: Simulator
    config: BeliefConfig = eqx.field(static=True)

    @property
    def simulator(self) -> Simulator:
        return self._simulator

    @property
    def begin(self) -> int:
        return 0

    @property
    def total(self) -> int:
        return self.config.num_iterations

    @property
    def chunk(self) -> int:
        return min(5, self.total)

    @property
    def collection(self) -> Collection:
        return Collection(self.config.num_environments, self.config.horizon, restart=True)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        num_updates = self.config.num_iterations * self.config.num_updates
        schedule = optax.cosine_decay_schedule(self.config.learning_rate, num_updates)
        return optax.chain(
            optax.clip_by_global_norm(self.config.max_gradient_norm), optax.adam(schedule)
        )

    def init(self, model: InferenceModel, key: PRNGKeyArray) -> BeliefLearnerState:
        """Before the first iteration."""
        like = row_like(self.simulator, self.config.horizon)
        return BeliefLearnerState(
            model,
            self.optimiser.init(eqx.filter(model, eqx.is_inexact_array)),
            replay.init(like, self.config.replay_size),
            jnp.asarray(0),
            key,
        )

    def actor(self, state: BeliefLearnerState, member: None) -> Actor:
        shape = (self.config.num_environments,)
        return MixedActor(draw_mixes(state.key, self.simulator.num_actions, *shape))

    def update(
        self, state: BeliefLearnerState, member: None, trajectories: Trajectories, key: PRNGKeyArray
    ) -> tuple[BeliefLearnerState, Metrics]:
        kept = replay.add(state.replay, trajectories)

        def update(carry, key_batch):
            model, optimiser = carry
            batch = replay.sample(kept, key_batch, self.config.batch_size)
            loss, gradients = eqx.filter_value_and_grad(
                lambda model: model.loss(self.simulator, batch, jax.random.fold_in(key_batch, 0))
            )(model)
            changes, optimiser = self.optimiser.update(gradients, optimiser)
            return (eqx.apply_updates(model, changes), optimiser), loss

        keys = jax.random.split(key, self.config.num_updates)
        (model, optimiser), losses = jax.lax.scan(update, (state.model, state.optimiser), keys)
        after = state._replace(model=model, optimiser=optimiser, replay=kept)
        return after, Metrics(losses.mean())


def choose_inference(
    route: Route,
    given: InferenceModel | None,
    run: Run,
    callbacks: Sequence[Callback] = (),
    *,
    config: BeliefConfig = BeliefConfig(),
    seed: int = 0,
) -> InferenceModel:
    """The model that was given, or the exact one, or a network; trained if it learns."""
    model = given or route.exact_inference()
    key_examples, key_model, key = jax.random.split(jax.random.key(seed), 3)
    simulator = route.simulator
    if model is None:
        examples = jax.vmap(simulator.observe)(simulator.sample_states(key_examples))
        model = AmortisedInference(
            examples,
            context_prior=simulator.context_prior,
            num_actions=simulator.num_actions,
            config=config.network,
            core_width=config.core_width if config.core == "gru" else None,
            key=key_model,
        )
    if not model.learns:
        return model
    stage = BeliefStage(simulator, config)
    states = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], stage.init(model, key))
    states, _, _ = drive(
        [stage], states, None, judge=_Patient(), run=run, phase="belief", callbacks=callbacks
    )
    return pick(states.model, jnp.asarray(0))


@final
class _Patient(Judge):
    """Nothing to keep, and no reason to end early."""

    def init(self, states: BeliefLearnerState) -> tuple[()]:
        return ()

    def judge(
        self, states: BeliefLearnerState, verdict: tuple[()]
    ) -> tuple[tuple[()], dict[str, np.ndarray]]:
        return (), {}

    def enough(self, stage: Stage, states: BeliefLearnerState, verdict: tuple[()]) -> bool:
        return False
