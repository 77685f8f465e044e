"""Phase 3 as a whole: from a predictive reward and a simulator to a Bayes policy.

Members (seeds, and settings that differ only in numbers) learn side by side in one compiled
program. In between they are judged, and of each the best policy so far is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import threadpoolctl

from bigtrain.arrays import ArrayLike
from bigtrain.bayes_rl import BayesRLConfig, Learner, LearnerState, init_members
from bigtrain.belief import InferenceModel
from bigtrain.errors import ConfigError
from bigtrain.evaluate import Regret
from bigtrain.exploration import PredictiveReward
from bigtrain.learning import drive, of_member
from bigtrain.phases.belief import choose_inference
from bigtrain.phases.judging import Measure
from bigtrain.phases.routing import Route, route
from bigtrain.policy import NetworkPolicy
from bigtrain.problem import Simulator, row_like
from bigtrain.runs import Callback, Event, Run


@final
@dataclass(frozen=True, eq=False)
class LearnedPolicy:
    """A policy, and what is known of it: its regret and certificate where the problem is finite.

    `discounted_return` was measured in simulation, by the normalised predictive reward.
    """

    policy: NetworkPolicy
    regret: Regret | None
    certificate: Any
    discounted_return: float | None
    history: tuple[Event, ...]


def learn_policies(
    cmdp: Simulator,
    rewards: Sequence[PredictiveReward | ArrayLike],
    *,
    config: BayesRLConfig = BayesRLConfig(),
    seeds: Sequence[int],
    learning_rates: Sequence[float] | None = None,
    baselines: Sequence[float] | None = None,
    inference: InferenceModel | None = None,
    certificate: Any = None,
    exploration_states: Sequence[int | str] | None = None,
    exploration_actions: Sequence[int | str] | None = None,
    measure: Measure | None = None,
    callbacks: Sequence[Callback] = (),
    run: Run | None = None,
) -> list[LearnedPolicy]:
    """Learns one policy for each reward and seed, all in one program.

    Of finite problems a reward may be a table [state] or [state, action].
    `baselines` say what reward a step is likely in a simulator that is not finite; `inference`
    takes the place of the exact filter. Of finite problems, `certificate` says how hard to look for
    the best policy, and `exploration_states` what regret is normalised by where a reward has no
    exploration prior: any action there explores, unless `exploration_actions` say which. What
    `measure` finds of each member's policy of the moment goes into the events. A `run` keeps
    metrics and checkpoints.
    """
    if len(rewards) != len(seeds) or not seeds:
        raise ConfigError(
            "There must be as many `rewards` as `seeds`, at least one, "
            f"got {len(rewards)} and {len(seeds)}."
        )
    run = run or Run(None, {}, fingerprint="")
    chosen = route(cmdp)
    return learn_members(
        chosen,
        rewards,
        choose_inference(chosen, inference, run, callbacks, seed=seeds[0]),
        config=config,
        seeds=seeds,
        learning_rates=learning_rates,
        baselines=baselines,
        certificate=certificate,
        exploration_states=exploration_states,
        exploration_actions=exploration_actions,
        measure=measure,
        callbacks=callbacks,
        run=run,
    )


def learn_members(
    route: Route,
    rewards: Sequence[PredictiveReward | ArrayLike],
    inference: InferenceModel,
    *,
    config: BayesRLConfig,
    seeds: Sequence[int],
    learning_rates: Sequence[float] | None = None,
    baselines: Sequence[float] | None = None,
    certificate: Any = None,
    exploration_states: Sequence[int | str] | None = None,
    exploration_actions: Sequence[int | str] | None = None,
    measure: Measure | None = None,
    callbacks: Sequence[Callback] = (),
    run: Run,
) -> list[LearnedPolicy]:
    """What `learn_policies` does once beliefs are known to be inferred by `inference`.

    Of finite problems a reward may be a table [state] or [state, action].
    """
    rates = [config.learning_rate] * len(seeds) if learning_rates is None else learning_rates
    model, members = route.rewards(rewards, rates, baselines)
    learner, stages = route.learner(inference, model, config)
    members = route.normalise(learner, members)
    judge = route.judge(
        learner,
        members,
        rewards,
        measure=measure,
        certificate=certificate,
        exploration_states=exploration_states,
        exploration_actions=exploration_actions,
    )
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        _, verdict, history = drive(
            stages,
            init_policies(learner, seeds),
            members,
            judge=judge,
            run=run,
            phase="policy",
            callbacks=callbacks,
        )
        learned = []
        for place in range(len(seeds)):
            policy, own = judge.policy(verdict.networks, place), of_member(history, place)
            learned.append(LearnedPolicy(policy, *judge.conclude(policy, place, own), own))
    return learned


def init_policies(learner: Learner, seeds: Sequence[int]) -> LearnerState:
    """What members begin with, one for each seed."""
    simulator, inference = learner.simulator, learner.inference
    notes = jax.eval_shape(lambda: inference.belief(inference.init()))
    row = row_like(simulator, learner.config.rollout.horizon, notes)
    examples = simulator.sample_states(jax.random.key(seeds[0]))
    return init_members(learner, jnp.stack([jax.random.key(s) for s in seeds]), examples, row)


def learn_policy(
    cmdp: Simulator,
    reward: PredictiveReward | ArrayLike,
    *,
    config: BayesRLConfig = BayesRLConfig(),
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> LearnedPolicy:
    """Learns the Bayes policy for one reward; see `learn_policies` for many, and for more.

    Of a finite problem the reward may be a table [state] or [state, action].
    """
    return learn_policies(cmdp, [reward], config=config, seeds=[seed], callbacks=callbacks)[0]
