"""Learning for experiments: many settings and seeds side by side, in one compiled program."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.data import Demonstrations
from bigtrain.experiments.experiment import Workplace
from bigtrain.exploration import (
    CostOfExploration,
    Fixed,
    PredictiveReward,
    Uniform,
    predictive_reward,
)
from bigtrain.finite import BayesConfig, TabularCMDP, Task, evaluate_exactly
from bigtrain.fit import FitConfig
from bigtrain.phases import InferredReward, LearnedPolicy, Measure, infer_reward, learn_policies
from bigtrain.provenance import digest, trace
from bigtrain.result import FitResult, Measured
from bigtrain.reward import InferenceConfig, RewardPosterior
from bigtrain.runs import Run

Rewards = Mapping[str, Sequence[PredictiveReward | np.ndarray]]
"""By setting, one reward for each seed."""

_CHECKPOINT_SECONDS = 120.0  # many members make large checkpoints
_MOST_BYTES = 2_000_000_000
_K_SPREAD = 0.1
_FILE_NAME = str.maketrans({"=": None, " ": "-"})
"""So that the name of a bundle will do as that of a model."""


def task_of(problem: TabularCMDP) -> Task:
    """The problem's task, which all problems of experiments have."""
    assert problem.task is not None
    return problem.task


def label(k: float | None) -> str:
    """A value of k* in words."""
    return "no prior" if k is None else f"k={k:g}"


def price(
    problem: TabularCMDP, k: float | None, reward_range: tuple[float, float] | None = None
) -> CostOfExploration | None:
    """A uniform prior of the mean k, as wide as 0.1 where the range allows that."""
    if k is None:
        return None
    task = task_of(problem)
    low, high = reward_range or task.reward_range
    spread = min(_K_SPREAD, 2 * (k - low / high), 2 * (1 - k))
    prior = Uniform(k - spread / 2, k + spread / 2) if spread > 0 else Fixed(k)
    return CostOfExploration(task.exploration_states, k=prior)


def predict(
    problem: TabularCMDP, posterior: RewardPosterior, k: float | None = None
) -> PredictiveReward:
    """Phase 2 by the task's range of rewards, with a prior of the mean k or none."""
    return predictive_reward(
        problem,
        posterior,
        reward_range=task_of(problem).reward_range,
        exploration=price(problem, k),
    )


def infer(
    place: Workplace,
    problem: TabularCMDP,
    demonstrations: Demonstrations,
    config: InferenceConfig,
    seeds: Sequence[int],
    *,
    name: str = "reward",
) -> list[InferredReward]:
    """Phase 1 for all seeds, in a folder of the workplace called `name`."""
    return infer_reward(
        problem,
        demonstrations,
        config=config,
        seed=list(seeds),
        callbacks=place.callbacks,
        directory=place.directory / name,
        tensorboard=place.tensorboard,
        checkpoint_seconds=_CHECKPOINT_SECONDS,
    )


def learn(
    place: Workplace,
    problem: TabularCMDP,
    rewards: Rewards,
    config: BayesRLConfig,
    seeds: Sequence[int],
    *,
    certificate: BayesConfig = BayesConfig(),
    measure: Measure | None = None,
) -> dict[str, list[LearnedPolicy]]:
    """Phase 3 for all settings and seeds, each setting's policies in the order of the seeds.

    They learn side by side, but for as many at a time as there is room for.
    """
    members = [
        (seed, reward) for own in rewards.values() for seed, reward in zip(seeds, own, strict=True)
    ]
    size = _num_at_once(problem, config)
    groups = [members[begin : begin + size] for begin in range(0, len(members), size)]
    learned = []
    for number, group in enumerate(groups):
        tables = [
            np.asarray(one.table() if isinstance(one, PredictiveReward) else one)
            for _, one in group
        ]
        fingerprint = {
            "problem": digest(problem),
            "rewards": hashlib.sha256(b"".join(table.tobytes() for table in tables)).hexdigest(),
        }
        with Run(
            place.directory / ("policy" if len(groups) == 1 else f"policy-{number}"),
            {"policy": config, "seeds": [seed for seed, _ in group]},
            fingerprint=fingerprint,
            tensorboard=place.tensorboard,
            checkpoint_seconds=_CHECKPOINT_SECONDS,
        ) as run:
            learned += learn_policies(
                problem,
                [reward for _, reward in group],
                config=config,
                seeds=[seed for seed, _ in group],
                certificate=certificate,
                measure=measure,
                callbacks=place.callbacks,
                run=run,
            )
    parts = iter(learned)
    return {name: [next(parts) for _ in own] for name, own in rewards.items()}


def _num_at_once(problem: TabularCMDP, config: BayesRLConfig) -> int:
    """How many members' replays fit into memory; the paper keeps 200,000 of each."""
    rollout = config.rollout
    moment = 4 * (5 + problem.num_contexts)  # state, action, previous, context, end; log-belief
    return max(1, _MOST_BYTES // (rollout.replay_size * (rollout.horizon + 1) * moment))


def describe(
    learned: LearnedPolicy, problem: TabularCMDP, *, horizon: int, curve: Sequence[str] = ()
) -> dict:
    """What a policy brings by the true reward, exactly, and its regret by its own.

    The regret is None where exploring brings nothing; what is `lost` is a share of the reward's
    range.
    """
    assert learned.regret is not None
    regret, (low, high) = learned.regret.normalised, task_of(problem).reward_range
    return {
        **describe_policy(learned.policy, problem, horizon=horizon),
        "regret": None if regret is None or np.isinf(regret) else regret,
        "lost": learned.regret.absolute / (high - low),
        "curves": {
            name: [[event.step, event.metrics[name]] for event in learned.history] for name in curve
        },
    }


def regret_of(own: Mapping[str, Any]) -> float:
    """Of what `describe` found: the regret, or what is lost where exploring brings nothing."""
    return own["lost"] if own["regret"] is None else own["regret"]


def describe_policy(policy: Any, problem: TabularCMDP, *, horizon: int) -> dict:
    """What a policy brings by the true reward, exactly."""
    found = evaluate_exactly(policy, problem, horizon=horizon)
    return {
        "return": found.total_return.mean,
        "discounted": found.discounted_return.mean,
        "success": None if found.success is None else found.success.mean,
        "unfinished": None if found.unfinished is None else found.unfinished.mean,
        "exploring": None if found.exploring is None else found.exploring.mean,
    }


def save_bundles(
    place: Workplace,
    problem: TabularCMDP,
    demonstrations: Demonstrations,
    inferred: InferredReward | None,
    rewards: Mapping[str, PredictiveReward],
    policies: Mapping[str, LearnedPolicy],
    config: FitConfig,
    *,
    seed: int,
    horizon: int,
) -> None:
    """A bundle of each setting's policy of one seed; `inferred` where the reward was learned."""
    place.bundles.mkdir(parents=True, exist_ok=True)
    task = task_of(problem)
    settings = {"fit": config, "reward_range": task.reward_range}
    for name, reward in rewards.items():
        learned = policies[name]
        result = FitResult(
            problem,
            reward,
            learned.policy,
            learned.certificate,
            (inferred.history if inferred else ()) + learned.history,
            trace("fit", problem, demonstrations, settings=settings, seed=seed),
            config.inference.irl.temperature * reward.scale,
            successor=inferred.successor if inferred else None,
        )
        episodes = config.evaluation_episodes
        played = result.evaluate(episodes=episodes, horizon=horizon)
        measured = Measured(played, episodes, horizon, learned.regret)
        result.with_measured(measured).save(place.bundles / f"{name.translate(_FILE_NAME)}.big")
