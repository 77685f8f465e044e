"""BIG as a whole: the three phases in a row, learned."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Required, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp

from bigtrain import bayes_rl
from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.belief import BeliefConfig, InferenceModel
from bigtrain.data import Demonstrations
from bigtrain.errors import ConfigError
from bigtrain.exploration import CostOfExploration, PredictiveReward, check_settings
from bigtrain.finite import BayesConfig
from bigtrain.phases import (
    InferredReward,
    check_seeds,
    choose_inference,
    learn_members,
    learn_reward,
    route,
)
from bigtrain.problem import Simulator, UniformActor
from bigtrain.provenance import digest, trace
from bigtrain.result import FitResult, Measured
from bigtrain.reward import InferenceConfig, featurise, planned
from bigtrain.runs import Callback, Run

__all__ = ["FitConfig", "FitResult", "fit", "looking"]


@dataclass(frozen=True)
class FitConfig:
    """Settings of all phases, of the certificate, and of the final evaluation.

    `belief` matters where beliefs are learned, and `certificate` where the problem is finite.
    """

    belief: BeliefConfig = BeliefConfig()
    inference: InferenceConfig = InferenceConfig()
    policy: BayesRLConfig = BayesRLConfig()
    certificate: BayesConfig = BayesConfig()
    evaluation_episodes: int = 1_000
    evaluation_horizon: int = 100

    def __post_init__(self):
        for name in ("evaluation_episodes", "evaluation_horizon"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}.")


def looking() -> FitConfig:
    """Settings for a simulator that can be stepped from any state in any context, as those written
    in JAX can: all that is learned looks ahead in it."""
    return FitConfig(inference=planned(), policy=bayes_rl.looking())


class _Options(TypedDict, total=False):
    reward_range: Required[tuple[float, float]]
    exploration: CostOfExploration | None
    config: FitConfig
    inference: InferenceModel | None
    callbacks: Sequence[Callback]
    directory: str | os.PathLike | None
    tensorboard: bool
    checkpoint_seconds: float


@overload
def fit(
    cmdp: Simulator,
    demonstrations: Demonstrations,
    *,
    seed: int = ...,
    **options: Unpack[_Options],
) -> FitResult: ...
@overload
def fit(
    cmdp: Simulator,
    demonstrations: Demonstrations,
    *,
    seed: Sequence[int],
    **options: Unpack[_Options],
) -> list[FitResult]: ...
def fit(
    cmdp: Simulator,
    demonstrations: Demonstrations,
    *,
    reward_range: tuple[float, float],
    exploration: CostOfExploration | None = None,
    config: FitConfig = FitConfig(),
    seed: int | Sequence[int] = 0,
    inference: InferenceModel | None = None,
    callbacks: Sequence[Callback] = (),
    directory: str | os.PathLike | None = None,
    tensorboard: bool = False,
    checkpoint_seconds: float = 30.0,
) -> FitResult | list[FitResult]:
    """Infers the reward, prices exploration, and learns the Bayes policy.

    Several seeds learn at once and give a list. Beliefs are inferred by `inference`, or else by the
    exact filter, or where the simulator does not know its likelihood by a network that learns to.
    A run in `directory` that was interrupted or killed goes on where it was when the same call is
    made again, to the same result.
    """
    seeds = check_seeds(seed)
    check_settings(cmdp, reward_range, exploration)
    chosen = route(cmdp)
    settings = {"fit": config, "reward_range": reward_range}
    fingerprint = {"demonstrations": demonstrations.digest(), "problem": digest(cmdp)}
    if exploration is not None:
        fingerprint["exploration"] = exploration.describe(cmdp)
    run = Run(
        directory,
        settings | {"seeds": seeds},
        fingerprint=fingerprint,
        tensorboard=tensorboard,
        checkpoint_seconds=checkpoint_seconds,
    )
    with run:
        model = choose_inference(
            chosen, inference, run, callbacks, config=config.belief, seed=seeds[0]
        )
        expert = demonstrations.trajectories(cmdp)
        inferred = learn_reward(chosen, expert, model, config.inference, seeds, run, callbacks)
        known = chosen.occurring_states(expert)
        rewards = [
            one.reward(reward_range=reward_range, exploration=exploration, states=known)
            for one in inferred
        ]
        chosen.warn_of_endless(rewards[0])
        likely = None
        if known is not None:
            likely = [_likely_reward(*both) for both in zip(inferred, rewards, strict=True)]
        learned = learn_members(
            chosen,
            rewards,
            model,
            config=config.policy,
            seeds=seeds,
            baselines=likely,
            certificate=config.certificate,
            callbacks=callbacks,
            run=run,
        )
    results = []
    for own_seed, one, reward, policy in zip(seeds, inferred, rewards, learned, strict=True):
        result = FitResult(
            cmdp,
            reward,
            policy.policy,
            policy.certificate,
            one.history + policy.history,
            trace("fit", cmdp, demonstrations, settings=settings, seed=own_seed),
            config.inference.irl.temperature * reward.scale,
            successor=one.successor,
        )
        episodes, horizon = config.evaluation_episodes, config.evaluation_horizon
        played = result.evaluate(episodes=episodes, horizon=horizon)
        results.append(result.with_measured(Measured(played, episodes, horizon, policy.regret)))
    return results[0] if isinstance(seed, int) else results


_NUM_STARTS = 64


def _likely_reward(inferred: InferredReward, reward: PredictiveReward) -> float:
    """What an expert gets a step from the start on, by the learned successor features."""
    simulator = inferred.cmdp
    actor = UniformActor(simulator.num_actions)
    begun = simulator.collect(
        actor, jax.random.key(0), num_envs=_NUM_STARTS, horizon=0, restart=False
    )
    firsts = jax.tree.map(lambda leaf: leaf[:, 0], begun.states)
    values = inferred.successor(*featurise(simulator, firsts)) @ jnp.asarray(reward.weights)
    best = values.max(-1)[begun.contexts[:, 0], jnp.arange(_NUM_STARTS)].mean()
    return float((1 - simulator.gamma) * best + reward.bias)
