"""BIG as a whole: the three phases in a row, learned."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np

from bigtrain.bayes_rl.config import BayesRLConfig
from bigtrain.bayes_rl.lanes import wander
from bigtrain.bayes_rl.learn import learn_policies
from bigtrain.belief import Filter
from bigtrain.data import Demonstrations
from bigtrain.errors import ConfigError
from bigtrain.exploration import CostOfExploration, PredictiveReward, check_settings
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact.bayes import BayesConfig
from bigtrain.problem import CMDP, State
from bigtrain.provenance import digest, trace
from bigtrain.result import FitResult, Measured
from bigtrain.reward.config import InferenceConfig
from bigtrain.reward.experience import show
from bigtrain.reward.infer import InferredReward, learn_reward, make_learner
from bigtrain.runs import Callback, Run

__all__ = ["FitConfig", "FitResult", "fit"]


@dataclass(frozen=True)
class FitConfig:
    """Settings of all three phases, of the certificate, and of the final evaluation."""

    inference: InferenceConfig = InferenceConfig()
    policy: BayesRLConfig = BayesRLConfig()
    certificate: BayesConfig = BayesConfig()
    evaluation_episodes: int = 1_000
    evaluation_horizon: int = 100

    def __post_init__(self):
        for name in ("evaluation_episodes", "evaluation_horizon"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}.")


@overload
def fit(
    cmdp: CMDP,
    demonstrations: Demonstrations,
    *,
    reward_range: tuple[float, float],
    exploration: CostOfExploration | None = ...,
    config: FitConfig = ...,
    seed: int = ...,
    filter: Filter | None = ...,
    callbacks: Sequence[Callback] = ...,
    directory: str | os.PathLike | None = ...,
    tensorboard: bool = ...,
    checkpoint_seconds: float = ...,
) -> FitResult: ...
@overload
def fit(
    cmdp: CMDP,
    demonstrations: Demonstrations,
    *,
    reward_range: tuple[float, float],
    exploration: CostOfExploration | None = ...,
    config: FitConfig = ...,
    seed: Sequence[int],
    filter: Filter | None = ...,
    callbacks: Sequence[Callback] = ...,
    directory: str | os.PathLike | None = ...,
    tensorboard: bool = ...,
    checkpoint_seconds: float = ...,
) -> list[FitResult]: ...
def fit(
    cmdp: CMDP,
    demonstrations: Demonstrations,
    *,
    reward_range: tuple[float, float],
    exploration: CostOfExploration | None = None,
    config: FitConfig = FitConfig(),
    seed: int | Sequence[int] = 0,
    filter: Filter | None = None,
    callbacks: Sequence[Callback] = (),
    directory: str | os.PathLike | None = None,
    tensorboard: bool = False,
    checkpoint_seconds: float = 30.0,
) -> FitResult | list[FitResult]:
    """Infers the reward, prices exploration, and learns the Bayes policy.

    Several seeds learn at once and give a list. `filter` tells contexts from transitions where the
    simulator does not know their probabilities. A run in `directory` that was interrupted or
    killed goes on where it was when the same call is made again, to the same result.
    """
    seeds = [seed] if isinstance(seed, int) else list(seed)
    if not seeds:
        raise ConfigError("`seed` must be a number or a sequence of them, got an empty one.")
    check_settings(cmdp, reward_range, exploration)
    learner = make_learner(cmdp, demonstrations, config.inference, filter)
    settings = {"fit": config, "reward_range": reward_range}
    fingerprint = {"demonstrations": demonstrations.digest(), "problem": digest(cmdp)}
    if exploration is not None:
        fingerprint["exploration"] = _describe(cmdp, exploration)
    run = Run(
        directory,
        settings | {"seeds": seeds},
        fingerprint=fingerprint,
        tensorboard=tensorboard,
        checkpoint_seconds=checkpoint_seconds,
    )
    with run:
        inferred = learn_reward(learner, seeds, run, callbacks)
        known = None if isinstance(cmdp, TabularCMDP) else _known_states(cmdp, learner.data.visited)
        rewards = [
            one.reward(reward_range=reward_range, exploration=exploration, states=known)
            for one in inferred
        ]
        learned = learn_policies(
            cmdp,
            rewards,
            config=config.policy,
            seeds=seeds,
            baselines=None if known is None else list(map(_likely_reward, inferred, rewards)),
            filter=filter,
            certificate=config.certificate,
            exploration_states=_explored(cmdp, exploration),
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


def _describe(cmdp: CMDP, exploration: CostOfExploration) -> str:
    """The exploration prior in words that are the same in another process."""
    if isinstance(cmdp, TabularCMDP):
        states, actions = exploration.indices(cmdp)
        return f"states {states}, actions {actions}, {exploration.k!r}"
    predicate = getattr(exploration.states, "__qualname__", type(exploration.states).__qualname__)
    return f"states {predicate}, actions {exploration.actions}, {exploration.k!r}"


def _explored(cmdp: CMDP, exploration: CostOfExploration | None) -> list[int] | None:
    if exploration is None or not isinstance(cmdp, TabularCMDP):
        return None
    return np.flatnonzero(exploration.mask(cmdp).any(-1)).tolist()


def _known_states(cmdp: CMDP, visited: State) -> State:
    """States of a simulator that are known to occur: where experts were, and random walks lead."""
    walked = jax.jit(lambda key: wander(cmdp, key))(jax.random.key(0))
    return jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a), b]), visited, walked)


_NUM_STARTS = 64


def _likely_reward(inferred: InferredReward, reward: PredictiveReward) -> float:
    """What an expert gets a step from the start on, by the learned successor features."""
    cmdp = inferred.cmdp
    keys = jax.random.split(jax.random.key(0), (2, _NUM_STARTS))
    contexts = jax.vmap(cmdp.sample_context)(keys[0])
    firsts = jax.vmap(cmdp.reset)(keys[1], contexts)
    values = inferred.successor(*show(cmdp, firsts)) @ jnp.asarray(reward.weights)
    best = values.max(-1)[contexts, jnp.arange(_NUM_STARTS)].mean()
    return float((1 - cmdp.gamma) * best + reward.bias)
