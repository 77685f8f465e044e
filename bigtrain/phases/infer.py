"""Phase 1 as a whole: from demonstrations and a simulator to a posterior over the reward.

Algorithm 1 of the paper in two stages. *Features*: roll-outs, gradient updates of the successor
features Ψ, and updates of the reward weights ω, in turn, as in the paper. *Settling*: the network's
trunk is kept, and what is linear is solved for: the head of Ψ by least squares, ω by Newton's
method, with fresh roll-outs in between, until ω and the expert policy that it implies stand still.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, final, overload

import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl
from jaxtyping import Float

from bigtrain.belief import InferenceModel
from bigtrain.data import Demonstrations
from bigtrain.errors import ConfigError
from bigtrain.exploration import CostOfExploration, PredictiveReward, predictive_reward
from bigtrain.learning import Judge, Stage, drive, of_member, pick
from bigtrain.phases.belief import choose_inference
from bigtrain.phases.routing import Route, route
from bigtrain.problem import Simulator, State, Trajectories
from bigtrain.provenance import digest
from bigtrain.reward import (
    InferenceConfig,
    Learner,
    LearnerState,
    RewardPosterior,
    SuccessorNetwork,
    expert_data,
    expert_successor_features,
    init_seeds,
    irl,
)
from bigtrain.runs import Callback, Event, Run


@final
@dataclass(frozen=True, eq=False)
class InferredReward:
    """N(ω*, Σ) as one seed learned it, the network for Ψ, and how they came about.

    `settled` says that the maximum stood still; `path` has ω after every iteration and round.
    """

    cmdp: Simulator
    posterior: RewardPosterior
    successor: SuccessorNetwork
    log_posterior: float
    settled: bool
    path: Float[np.ndarray, "step feature"]
    history: tuple[Event, ...]

    def reward(
        self,
        *,
        reward_range: tuple[float, float],
        exploration: CostOfExploration | None = None,
        states: State | None = None,
    ) -> PredictiveReward:
        """Phase 2: the reward that the Bayes policy will maximise (see `predictive_reward`)."""
        return predictive_reward(
            self.cmdp,
            self.posterior,
            reward_range=reward_range,
            exploration=exploration,
            states=states,
        )


class _Options(TypedDict, total=False):
    config: InferenceConfig
    inference: InferenceModel | None
    callbacks: Sequence[Callback]
    directory: str | os.PathLike | None
    tensorboard: bool
    checkpoint_seconds: float


@overload
def infer_reward(
    cmdp: Simulator,
    demonstrations: Demonstrations,
    *,
    seed: int = ...,
    **options: Unpack[_Options],
) -> InferredReward: ...
@overload
def infer_reward(
    cmdp: Simulator,
    demonstrations: Demonstrations,
    *,
    seed: Sequence[int],
    **options: Unpack[_Options],
) -> list[InferredReward]: ...
def infer_reward(
    cmdp: Simulator,
    demonstrations: Demonstrations,
    *,
    config: InferenceConfig = InferenceConfig(),
    seed: int | Sequence[int] = 0,
    inference: InferenceModel | None = None,
    callbacks: Sequence[Callback] = (),
    directory: str | os.PathLike | None = None,
    tensorboard: bool = False,
    checkpoint_seconds: float = 30.0,
) -> InferredReward | list[InferredReward]:
    """Learns what the experts wanted; several seeds at once give a list.

    No reward is needed, and contexts in the demonstrations are not read. `inference` takes the
    place of the exact filter, which needs a simulator that knows its likelihood. A run in
    `directory` that was killed goes on where it was.
    """
    seeds = check_seeds(seed)
    chosen = route(cmdp)
    fingerprint = {"demonstrations": demonstrations.digest(), "problem": digest(cmdp)}
    run = Run(
        directory,
        {"inference": config, "seeds": seeds},
        fingerprint=fingerprint,
        tensorboard=tensorboard,
        checkpoint_seconds=checkpoint_seconds,
    )
    with run:
        model = choose_inference(chosen, inference, run, callbacks)
        results = learn_reward(
            chosen, demonstrations.trajectories(cmdp), model, config, seeds, run, callbacks
        )
    return results[0] if isinstance(seed, int) else results


def check_seeds(seed: int | Sequence[int]) -> list[int]:
    """One seed or more, as a list."""
    seeds = [seed] if isinstance(seed, int) else list(seed)
    if not seeds:
        raise ConfigError("`seed` must be a number or a sequence of them, got an empty one.")
    return seeds


def learn_reward(
    route: Route,
    expert: Trajectories,
    inference: InferenceModel,
    config: InferenceConfig,
    seeds: Sequence[int],
    run: Run,
    callbacks: Sequence[Callback] = (),
) -> list[InferredReward]:
    """What `infer_reward` does within a run, one result a seed."""
    learner = make_learner(route, expert, inference, config)
    # Small matrices: more threads only get in each other's way, and badly on a busy machine.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        states, _, history = drive(
            route.reward_stages(learner),
            init_seeds(learner, jnp.stack([jax.random.key(s) for s in seeds])),
            None,
            judge=_AtRest(config.patience),
            run=run,
            phase="reward",
            callbacks=callbacks,
        )
        results = [
            _result(learner, pick(states, jnp.asarray(place)), of_member(history, place))
            for place in range(len(seeds))
        ]
    if config.max_rounds and not all(result.settled for result in results):
        unsettled = [s for s, result in zip(seeds, results, strict=True) if not result.settled]
        warnings.warn(
            f"The reward did not settle within {config.max_rounds} rounds for the seeds "
            f"{unsettled}. Allow more `num_iterations`, more `max_rounds` or a larger `tolerance`.",
            stacklevel=3,
        )
    return results


def make_learner(
    route: Route,
    expert: Trajectories,
    inference: InferenceModel,
    config: InferenceConfig,
) -> Learner:
    """What is compiled: simulator, demonstrations and settings, checked."""
    simulator = route.simulator
    config.irl.prior_weights(simulator.num_features)
    data = expert_data(simulator, expert, inference)
    compact = jax.tree.map(jnp.asarray, data)  # float32, as everything compiled
    return Learner(simulator, inference, route.experience(expert, data, config), compact, config)


class _AtRest(Judge):
    """Nothing to keep; settling ends when all seeds have come to rest."""

    def __init__(self, patience: int):
        self._patience = patience

    def init(self, states: LearnerState) -> tuple[()]:
        return ()

    def judge(self, states: LearnerState, verdict: tuple[()]) -> tuple[tuple[()], dict[str, Any]]:
        return (), {}

    def enough(self, stage: Stage, states: LearnerState, verdict: tuple[()]) -> bool:
        settling = stage.begin > 0
        return settling and bool((states.num_calm >= self._patience).all())


def _result(learner: Learner, state: LearnerState, history: tuple[Event, ...]) -> InferredReward:
    """What one seed has learned, its posterior worked out in double precision."""
    config = learner.config
    state, found = expert_successor_features(learner, state, jax.random.key(0))
    psi = np.asarray(found, np.float64)
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, learner.data)
        weights = jnp.asarray(np.asarray(state.reward_weights, np.float64))
        if config.max_rounds:
            weights, _ = irl.map_estimate(jnp.asarray(psi), data, config.irl, weights)
        value = float(irl.log_posterior(weights, jnp.asarray(psi), data, config.irl))
        covariance = irl.laplace_covariance(weights, jnp.asarray(psi), data, config.irl)
        posterior = RewardPosterior(np.asarray(weights), np.asarray(covariance))
    return InferredReward(
        learner.simulator,
        posterior,
        state.network,
        value,
        bool(state.num_calm >= config.patience),
        np.asarray(state.path[: int(state.step)]),
        history,
    )
