"""What one would do without BIG, beside BIG, on one problem."""

from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from bigtrain import baselines, envs
from bigtrain.baselines import CloneConfig
from bigtrain.bayes_rl import BayesRLConfig, RolloutConfig
from bigtrain.data import Demonstrations
from bigtrain.evaluate import evaluate
from bigtrain.experiments import learning
from bigtrain.experiments.experiment import Workplace
from bigtrain.experiments.learning import task_of
from bigtrain.finite import (
    MemorylessPolicy,
    SolveConfig,
    TabularCMDP,
    anywhere,
    demonstrate,
    map_reward,
    plan_expert,
    solve,
    solve_bayes,
)
from bigtrain.fit import FitConfig
from bigtrain.policy import Policy
from bigtrain.reward import InferenceConfig, IRLConfig

EXPERT = "expert, who knows the context"
COPIED, COPIED_NETWORK, COPIED_RECURRENT = (
    "behaviour cloning, counted",
    "behaviour cloning, network",
    "behaviour cloning, recurrent",
)
AVERAGED, ALONE, ALONE_LEARNED = (
    "IRL, contexts averaged out",
    "IRL, no prior, exact",
    "IRL, no prior, learned",
)
BIG_EXACT, BIG_LEARNED = "BIG, exact", "BIG, learned"
TRUE = "true reward, exact"
METHODS = (
    EXPERT,
    COPIED,
    COPIED_NETWORK,
    COPIED_RECURRENT,
    AVERAGED,
    ALONE,
    ALONE_LEARNED,
    BIG_EXACT,
    BIG_LEARNED,
    TRUE,
)


@final
@dataclass(frozen=True)
class Contest:
    """A problem, what is known of it, and how it is learned.

    Without `learn_reward` the reward is the exact MAP one, and only the policy is learned.
    """

    env: str
    options: tuple[tuple[str, Any], ...] = ()
    k: float | None = None
    horizon: int = 100
    num_demonstrations: int = 100
    demonstration_horizon: int = 50
    anywhere: bool = False
    temperature: float = 0.01
    prior_variance: float = 100.0
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    learn_reward: bool = True
    policy: BayesRLConfig = field(default_factory=BayesRLConfig)
    cloning: CloneConfig = field(default_factory=CloneConfig)
    num_episodes: int = 1_000
    num_restarts: int = 16

    @property
    def problem(self) -> TabularCMDP:
        """The problem itself."""
        return envs.make(self.env, **dict(self.options))

    @property
    def irl(self) -> IRLConfig:
        """Temperature and prior of phase 1."""
        return IRLConfig(temperature=self.temperature, prior_variance=self.prior_variance)

    def demonstrate(self, problem: TabularCMDP) -> Demonstrations:
        """What is learned from."""
        task = task_of(problem)
        return demonstrate(
            problem,
            task.reward,
            episodes=self.num_demonstrations,
            horizon=self.demonstration_horizon,
            initial=anywhere(problem) if self.anywhere else None,
        )


def hold(contest: Contest, place: Workplace, num_seeds: int) -> dict[str, list[dict]]:
    """What every method brings, by the true reward: one result, or one for each seed."""
    problem = contest.problem
    shown = contest.demonstrate(problem)
    found = _compute(contest, problem, shown)
    seeds = list(range(num_seeds))
    for name, recurrent in ((COPIED_NETWORK, False), (COPIED_RECURRENT, True)):
        config = replace(contest.cloning, recurrent=recurrent)
        copies = baselines.clone_network(
            problem, shown, config=config, seed=seeds, callbacks=place.callbacks
        )
        found[name] = [_play(contest, problem, one) for one in copies]
    return found | _learn(contest, problem, shown, place, seeds)


def _compute(
    contest: Contest, problem: TabularCMDP, shown: Demonstrations
) -> dict[str, list[dict]]:
    """The methods that are exact, or as good as that."""
    task = task_of(problem)
    config = SolveConfig(contest.irl, num_restarts=contest.num_restarts)
    ranged = {"reward_range": task.reward_range, "config": config}
    policies: dict[str, Any] = {
        EXPERT: plan_expert(problem, task.reward),
        COPIED: baselines.clone(problem, shown),
        AVERAGED: _average(contest, problem, shown),
        ALONE: baselines.solve_without_prior(problem, shown, **ranged).policy,
        TRUE: solve_bayes(problem, np.asarray(task.reward)).policy,
    }
    if contest.k is not None:
        priced = solve(problem, shown, exploration=learning.price(problem, contest.k), **ranged)
        policies[BIG_EXACT] = priced.policy
    else:  # nothing to price: the same
        policies[BIG_EXACT] = policies[ALONE]
    return {
        name: [learning.describe_policy(policy, problem, horizon=contest.horizon)]
        for name, policy in policies.items()
    }


def _average(contest: Contest, problem: TabularCMDP, shown: Demonstrations) -> Policy:
    """As `baselines.solve_averaged`; and where averaging leaves no preference, any action."""
    averaged = baselines.average_contexts(problem)
    posterior = map_reward(
        averaged, shown, contest.irl, num_restarts=contest.num_restarts
    ).posterior
    if not np.ptp(problem.feature_matrix() @ posterior.mean) > 0:
        anything = np.full((problem.num_states, problem.num_actions), 1 / problem.num_actions)
        return MemorylessPolicy(problem, anything)
    reward = learning.predict(problem, posterior)
    return solve_bayes(problem, reward.table()).policy


def _learn(
    contest: Contest,
    problem: TabularCMDP,
    shown: Demonstrations,
    place: Workplace,
    seeds: list[int],
) -> dict[str, list[dict]]:
    """Phases 1 to 3, with the prior and without."""
    inference = replace(contest.inference, irl=contest.irl)
    if contest.learn_reward:
        inferred = learning.infer(place, problem, shown, inference, seeds)
        posteriors = [one.posterior for one in inferred]
    else:
        inferred = [None]
        found = map_reward(problem, shown, contest.irl, num_restarts=contest.num_restarts)
        posteriors = [found.posterior] * len(seeds)
    names = {ALONE_LEARNED: None, BIG_LEARNED: contest.k}
    if contest.k is None:
        del names[ALONE_LEARNED]
    rewards = {
        name: [learning.predict(problem, posterior, k) for posterior in posteriors]
        for name, k in names.items()
    }
    learned = learning.learn(place, problem, rewards, contest.policy, seeds)
    learning.save_bundles(
        place,
        problem,
        shown,
        inferred[0],
        {contest.env: rewards[BIG_LEARNED][0]},
        {contest.env: learned[BIG_LEARNED][0]},
        FitConfig(inference=inference, policy=contest.policy),
        seed=0,
        horizon=contest.horizon,
    )
    found = {
        name: [learning.describe(one, problem, horizon=contest.horizon) for one in own]
        for name, own in learned.items()
    }
    return {ALONE_LEARNED: found[BIG_LEARNED]} | found


def _play(contest: Contest, problem: TabularCMDP, policy: Any) -> dict[str, float | None]:
    """What `learning.describe_policy` finds, by playing: a recurrent policy's memory is endless."""
    played = evaluate(policy, problem, episodes=contest.num_episodes, horizon=contest.horizon)
    names = ("return", "discounted", "success", "unfinished", "exploring")
    means = (None if part is None else part.mean for part in played)
    return {**dict(zip(names, means, strict=True)), "stderr": played.total_return.stderr}


def hurry(contest: Contest) -> Contest:
    """The same, with only as much of it as shows that it runs."""
    return replace(
        contest,
        learn_reward=False,
        cloning=CloneConfig(num_updates=50),
        num_episodes=100,
        num_restarts=0,
    )


def swept(num_hyperstates: int, *, horizon: int, **chosen: Any) -> BayesRLConfig:
    """Settings for problems with more hyperstates and longer ways than the paper's."""
    rollout = RolloutConfig(horizon=horizon, hyperstate_batch_size=1_024)
    return BayesRLConfig(rollout=rollout, num_hyperstates=num_hyperstates, **chosen)
