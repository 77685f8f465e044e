"""Phase 1 as a whole: from demonstrations and a simulator to a posterior over the reward.

Algorithm 1 of the paper in two stages. *Features*: roll-outs, gradient updates of the successor
features Ψ, and updates of the reward weights ω, in turn, as in the paper. *Settling*: the network's
trunk is kept, and what is linear is solved for: the head of Ψ by least squares, ω by Newton's
method, with fresh roll-outs in between, until ω and the expert policy that it implies stand still.
"""

import itertools
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import final, overload

import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl
from jaxtyping import Float

from bigtrain.belief import ExactFilter, Filter
from bigtrain.data import Demonstrations
from bigtrain.errors import ConfigError
from bigtrain.exploration import CostOfExploration, PredictiveReward, predictive_reward
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.problem import CMDP, State
from bigtrain.provenance import digest
from bigtrain.reward import irl
from bigtrain.reward import learner as learning
from bigtrain.reward.config import InferenceConfig
from bigtrain.reward.experience import CountedExperience, ReplayedExperience
from bigtrain.reward.irl import RewardPosterior
from bigtrain.reward.learner import Learner, LearnerState, Metrics
from bigtrain.reward.successor import SuccessorNetwork
from bigtrain.runs import Callback, Event, Run

_CHUNK = 5
"""Iterations or rounds between two looks at callbacks and checkpoints, at most."""


@final
@dataclass(frozen=True, eq=False)
class InferredReward:
    """N(ω*, Σ) as one seed learned it, the network for Ψ, and how they came about.

    `settled` says that the maximum stood still; `path` has ω after every iteration and round.
    """

    cmdp: CMDP
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


@overload
def infer_reward(
    cmdp: CMDP,
    demonstrations: Demonstrations,
    *,
    config: InferenceConfig = ...,
    seed: int = ...,
    filter: Filter | None = ...,
    callbacks: Sequence[Callback] = ...,
    directory: str | os.PathLike | None = ...,
    tensorboard: bool = ...,
    checkpoint_seconds: float = ...,
) -> InferredReward: ...
@overload
def infer_reward(
    cmdp: CMDP,
    demonstrations: Demonstrations,
    *,
    config: InferenceConfig = ...,
    seed: Sequence[int],
    filter: Filter | None = ...,
    callbacks: Sequence[Callback] = ...,
    directory: str | os.PathLike | None = ...,
    tensorboard: bool = ...,
    checkpoint_seconds: float = ...,
) -> list[InferredReward]: ...
def infer_reward(
    cmdp: CMDP,
    demonstrations: Demonstrations,
    *,
    config: InferenceConfig = InferenceConfig(),
    seed: int | Sequence[int] = 0,
    filter: Filter | None = None,
    callbacks: Sequence[Callback] = (),
    directory: str | os.PathLike | None = None,
    tensorboard: bool = False,
    checkpoint_seconds: float = 30.0,
) -> InferredReward | list[InferredReward]:
    """Learns what the experts wanted; several seeds at once give a list.

    No reward is needed, and contexts in the demonstrations are not read. `filter` tells contexts
    from transitions where the simulator does not know their probabilities. A run in `directory`
    that was killed goes on where it was.
    """
    seeds = [seed] if isinstance(seed, int) else list(seed)
    if not seeds:
        raise ConfigError("`seed` must be a number or a sequence of them, got an empty one.")
    learner = make_learner(cmdp, demonstrations, config, filter)
    fingerprint = {"demonstrations": demonstrations.digest(), "problem": digest(cmdp)}
    run = Run(
        directory,
        {"inference": config, "seeds": seeds},
        fingerprint=fingerprint,
        tensorboard=tensorboard,
        checkpoint_seconds=checkpoint_seconds,
    )
    with run:
        results = learn_reward(learner, seeds, run, callbacks)
    return results[0] if isinstance(seed, int) else results


def learn_reward(
    learner: Learner, seeds: Sequence[int], run: Run, callbacks: Sequence[Callback] = ()
) -> list[InferredReward]:
    """What `infer_reward` does within a run, one result a seed."""
    config = learner.config
    states = learning.init_seeds(learner, jnp.stack([jax.random.key(s) for s in seeds]))
    _, states = run.resume(states, phase="reward") or (0, states)
    # Small matrices: more threads only get in each other's way, and badly on a busy machine.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        states, history = _drive(learner, states, run, callbacks)
        results = [
            _result(learner, jax.tree.map(itemgetter(place), states), place, history)
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
    cmdp: CMDP,
    demonstrations: Demonstrations,
    config: InferenceConfig,
    filter: Filter | None = None,
) -> Learner:
    """What `infer_reward` compiles: problem, demonstrations and settings, checked."""
    data = irl.expert_data(cmdp, demonstrations, filter)
    config.irl.prior_weights(_num_features(cmdp))
    if isinstance(cmdp, TabularCMDP):
        experience = CountedExperience(cmdp, demonstrations)
    else:
        experience = ReplayedExperience(
            cmdp,
            demonstrations,
            capacity=config.rollout.replay_size,
            horizon=config.rollout.horizon,
        )
    compact = jax.tree.map(jnp.asarray, data)  # float32, as everything compiled
    return Learner(cmdp, filter or ExactFilter(cmdp), experience, compact, config)


def _num_features(cmdp: CMDP) -> int:
    state = jax.eval_shape(cmdp.reset, jax.random.key(0), jnp.asarray(0))
    return jax.eval_shape(cmdp.features, state, jnp.asarray(0)).shape[0]


def _drive(
    learner: Learner, states: LearnerState, run: Run, callbacks: Sequence[Callback]
) -> tuple[LearnerState, list[Event]]:
    """Both stages in chunks, with everybody told and checkpoints in between."""
    config = learner.config
    stages: tuple[tuple[str, Callable, int, int], ...] = (
        ("features", learning.learn_features, 0, config.num_iterations),
        ("settling", learning.settle, config.num_iterations, config.max_rounds),
    )
    history = [event for event in run.events() if event.phase in ("features", "settling")]
    try:
        for phase, advance, begin, total in stages:
            size = next((n for n in range(min(_CHUNK, total), 0, -1) if total % n == 0), 1)
            while (done := _steps_done(states)) < begin + total and not (
                phase == "settling" and _all_at_rest(learner, states)
            ):
                states, metrics = advance(learner, states, size)
                events = _events(learner, phase, done - begin, total, metrics)
                for event in events:  # all of them, before a callback may interrupt
                    history.append(event._replace(total=None))
                    run.record(event)
                for event, callback in itertools.product(events, callbacks):
                    callback(event)
                run.checkpoint(_steps_done(states), states, phase="reward")
    finally:  # also when somebody interrupts
        run.checkpoint(_steps_done(states), states, force=True, phase="reward")
    return states, history


def _steps_done(states: LearnerState) -> int:
    return int(states.step.max())


def _all_at_rest(learner: Learner, states: LearnerState) -> bool:
    return bool((states.num_calm >= learner.config.patience).all())


def _events(learner: Learner, phase: str, done: int, total: int, metrics: Metrics) -> list[Event]:
    """An event for each iteration or round, with one number for each seed."""
    names = (
        learner.cmdp.context_names
        if isinstance(learner.cmdp, TabularCMDP)
        else [str(context) for context in range(learner.cmdp.num_contexts)]
    )
    measured = {name: np.asarray(part) for name, part in metrics._asdict().items()}
    accuracy = measured.pop("accuracy")
    measured |= {f"accuracy/{name}": accuracy[..., c] for c, name in enumerate(names)}
    return [
        Event(
            phase,
            done + i + 1,
            {name: values[:, i].tolist() for name, values in measured.items()},
            total,
        )
        for i in range(accuracy.shape[1])
    ]


def _result(
    learner: Learner, state: LearnerState, place: int, history: Sequence[Event]
) -> InferredReward:
    """What one seed has learned, its posterior worked out in double precision."""
    config = learner.config
    psi = np.asarray(learning.expert_successor_features(learner, state.network), np.float64)
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, learner.data)
        weights = jnp.asarray(np.asarray(state.reward_weights, np.float64))
        if config.max_rounds:
            weights, _ = irl.map_estimate(jnp.asarray(psi), data, config.irl, weights)
        value = float(irl.log_posterior(weights, jnp.asarray(psi), data, config.irl))
        covariance = irl.laplace_covariance(weights, jnp.asarray(psi), data, config.irl)
        posterior = RewardPosterior(np.asarray(weights), np.asarray(covariance))
    return InferredReward(
        learner.cmdp,
        posterior,
        state.network,
        value,
        bool(state.num_calm >= config.patience),
        np.asarray(state.path[: int(state.step)]),
        tuple(
            event._replace(
                metrics={n: np.asarray(v)[place].item() for n, v in event.metrics.items()}
            )
            for event in history
        ),
    )
