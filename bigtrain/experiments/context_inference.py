"""Section 5.2: what inferring the contexts of demonstrations is good for, on detour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from bigtrain import baselines, bayes_rl, envs
from bigtrain import reward as phase_1
from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.data import Demonstrations
from bigtrain.experiments import drawing, learning
from bigtrain.experiments.experiment import Experiment, Piece, Preset, Workplace
from bigtrain.experiments.findings import Claim, Findings, Picture, Table
from bigtrain.experiments.learning import regret_of, task_of
from bigtrain.experiments.statistics import estimate
from bigtrain.finite import TabularCMDP, demonstrate, evaluate_exactly, map_reward, solve_bayes
from bigtrain.reward import InferenceConfig

HORIZON = 100
TRUE, INFERRED, AVERAGED = "true reward", "contexts inferred", "contexts averaged out"


@final
@dataclass(frozen=True)
class Settings:
    """How much is learned from, and how often."""

    num_seeds: int = 8
    num_demonstrations: int = 100
    inference: InferenceConfig = field(default_factory=phase_1.fast)
    policy: BayesRLConfig = field(
        default_factory=lambda: BayesRLConfig(num_updates=2, evaluate_every=1)
    )


def settings(preset: Preset, seeds: int | None) -> Settings:
    """What a preset stands for."""
    if preset == "smoke":
        return Settings(num_seeds=seeds or 1)
    if preset == "paper":  # which prints no table for this problem; tiger-treasure's is nearest
        return Settings(
            num_seeds=seeds or 8,
            inference=phase_1.paper_tiger_treasure(),
            policy=bayes_rl.paper_tiger_treasure(),
        )
    return Settings(num_seeds=seeds or 8)


def pieces(settings: Settings) -> Mapping[str, Piece]:
    """What is to be done."""
    return {
        "exact": lambda place: compute(settings),
        "learned": lambda place: learn(settings, place),
    }


def _problem(settings: Settings) -> tuple[TabularCMDP, Demonstrations]:
    problem = envs.make("detour")
    shown = demonstrate(
        problem, task_of(problem).reward, episodes=settings.num_demonstrations, horizon=40
    )
    return problem, shown


def compute(settings: Settings) -> dict[str, Any]:
    """The Bayes-optimal policies for the true reward and for both exact MAP rewards."""
    problem, shown = _problem(settings)
    found: dict[str, Any] = {}
    for name, seen in ((INFERRED, problem), (AVERAGED, baselines.average_contexts(problem))):
        posterior = map_reward(seen, shown, settings.inference.irl).posterior
        table = learning.predict(problem, posterior).table()
        best = solve_bayes(problem, table).policy
        found[name] = learning.describe_policy(best, problem, horizon=HORIZON)
        found[name]["weights"] = posterior.mean.tolist()
    best = solve_bayes(problem, task_of(problem).reward).policy
    found[TRUE] = learning.describe_policy(best, problem, horizon=HORIZON)
    found[TRUE]["weights"] = np.asarray(task_of(problem).reward)[:, 0].tolist()
    return found


def learn(settings: Settings, place: Workplace) -> dict[str, Any]:
    """Both rewards, and policies for these and for the true one."""
    problem, shown = _problem(settings)
    task, seeds = task_of(problem), range(settings.num_seeds)
    averaged = baselines.average_contexts(problem)
    inferred = {
        INFERRED: learning.infer(place, problem, shown, settings.inference, seeds),
        AVERAGED: learning.infer(
            place, averaged, shown, settings.inference, seeds, name="averaged"
        ),
    }
    rewards = {
        name: [learning.predict(problem, one.posterior) for one in own]
        for name, own in inferred.items()
    }
    learned = learning.learn(
        place,
        problem,
        {TRUE: [np.asarray(task.reward)] * len(seeds), **rewards},
        settings.policy,
        seeds,
        measure=lambda policy: {
            "true_return": evaluate_exactly(policy, problem, horizon=HORIZON).total_return.mean
        },
    )
    return {
        name: {
            "policies": [
                learning.describe(one, problem, horizon=HORIZON, curve=["true_return"])
                for one in own
            ],
            "weights": [one.posterior.mean.tolist() for one in inferred.get(name, [])],
        }
        for name, own in learned.items()
    }


def unit(weights: Any) -> np.ndarray:
    """With the norm of 1, as the paper shows rewards."""
    array = np.asarray(weights, np.float64)
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def conclude(settings: Settings, found: Mapping[str, Any]) -> Findings:
    """What follows."""
    exact, learned = found["exact"], found["learned"]
    names = (TRUE, INFERRED, AVERAGED)
    returns = {name: [own["return"] for own in learned[name]["policies"]] for name in names}
    rows = [
        (
            name,
            str(estimate(returns[name])),
            round(exact[name]["return"], 3),
            f"{max(map(regret_of, learned[name]['policies'])):.2%}",
        )
        for name in names
    ]
    table = Table(
        f"True return of {HORIZON} steps",
        ("reward", "learned", "exact", "worst regret"),
        rows,
        "Exact: the Bayes-optimal policy for the true reward and for the exact MAP rewards. "
        "Regret is by the reward that the policy was learned for.",
    )
    problem = envs.make("detour")
    weights = {name: unit(learned[name]["weights"]) for name in (INFERRED, AVERAGED)}
    rewards = Table(
        "Rewards of unit norm",
        ("state", TRUE, INFERRED, "exact", AVERAGED, "exact"),
        [
            (
                state,
                round(float(unit(exact[TRUE]["weights"])[i]), 3),
                *(
                    cell
                    for name in (INFERRED, AVERAGED)
                    for cell in (
                        str(estimate(weights[name][:, i].tolist())),
                        round(float(unit(exact[name]["weights"])[i]), 3),
                    )
                ),
            )
            for i, state in enumerate(problem.state_names)
        ],
    )
    updates = settings.policy.num_updates
    curves = {
        name: [
            [(float(step * updates), value) for step, value in own["curves"]["true_return"]]
            for own in learned[name]["policies"]
        ]
        for name in names
    }
    bars = {
        TRUE: [[value] for value in unit(exact[TRUE]["weights"])],
        **{name: weights[name].T.tolist() for name in (INFERRED, AVERAGED)},
    }
    return Findings(
        "Experts who know that the short way is open take it; most of the time it is closed. "
        "An agent that averages contexts out cannot tell the two cases apart: to it, experts just "
        "seem to like s2, and it goes there even where it could avoid it. An agent that infers "
        "which context each expert was in learns that s2 is to be avoided.",
        _claims(exact, returns, weights),
        (table, rewards),
        (
            Picture(
                "context-inference",
                f"True return of {HORIZON} steps while the policy is learned, mean of "
                f"{settings.num_seeds} seeds with one standard error.",
                drawing.draw_curves(
                    curves,
                    title=f"true return of {HORIZON} steps",
                    label="updates",
                    references={"exact": exact[TRUE]["return"], " ": exact[AVERAGED]["return"]},
                ),
            ),
            Picture(
                "context-inference-rewards",
                "The learned rewards beside the true one, each of unit norm.",
                drawing.draw_groups(bars, problem.state_names, "reward, unit norm"),
            ),
        ),
    )


def _claims(
    exact: Mapping[str, Any],
    returns: Mapping[str, list[float]],
    weights: Mapping[str, np.ndarray],
) -> list[Claim]:
    means = {name: float(np.mean(own)) for name, own in returns.items()}
    _, s1, s2, s3, *_ = weights[INFERRED].T
    _, naive_s1, naive_s2, *_ = weights[AVERAGED].T
    apart = float(np.min(s1 - s2))
    naive = float(np.max(naive_s1 - naive_s2))
    return [
        Claim(
            "With contexts inferred the policy matches the one for the true reward.",
            f"{means[INFERRED]:.2f} and {means[TRUE]:.2f}; exactly {exact[TRUE]['return']:.2f}",
            abs(means[INFERRED] - means[TRUE]) <= 0.01 * abs(means[TRUE]),
        ),
        Claim(
            "With contexts averaged out the policy is worse.",
            f"{means[AVERAGED]:.2f}; exactly {exact[AVERAGED]['return']:.2f}",
            max(returns[AVERAGED]) < min(returns[INFERRED]),
        ),
        Claim(
            "With contexts inferred the rewards of s1, s2 and s3 are in the order of the true "
            "ones: s3 above s1 above s2.",
            f"s1 above s2 by {apart:.3f} and s3 above s1 by {np.min(s3 - s1):.3f} at least",
            bool(np.all(s3 > s1) and np.all(s1 > s2)),
        ),
        Claim(
            "With contexts averaged out s1 is not told from s2: it does not come out above it.",
            f"s1 above s2 by {naive:.3f} at most",
            naive < 0.1 * apart,
        ),
    ]


EXPERIMENT = Experiment(
    "context-inference", "What inferring contexts is good for", settings, pieces, conclude
)
