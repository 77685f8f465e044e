"""Section 5.1: what the prior over the cost of exploration does, on tiger-treasure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from bigtrain import bayes_rl, envs
from bigtrain import reward as phase_1
from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.data import Demonstrations
from bigtrain.experiments import drawing, learning, maps
from bigtrain.experiments.experiment import Experiment, Piece, Preset, Workplace
from bigtrain.experiments.findings import Claim, Findings, Picture, Table
from bigtrain.experiments.learning import label, regret_of, task_of
from bigtrain.experiments.statistics import estimate, share, span
from bigtrain.finite import TabularCMDP, demonstrate, map_reward, solve_bayes
from bigtrain.fit import FitConfig
from bigtrain.reward import InferenceConfig

KS = (-10.0, -4.0, -2.0, -1.0, -0.5, 0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, None)
SHOWN_K = 0.5
HORIZON = 400
"""Steps of an episode, in which all but one in 10¹² of those that open a door have done so."""


@final
@dataclass(frozen=True)
class Settings:
    """The values of k*, None for no prior, and how much is learned from and how often."""

    ks: tuple[float | None, ...] = KS
    num_seeds: int = 10
    num_demonstrations: int = 100
    inference: InferenceConfig = field(default_factory=phase_1.fast)
    policy: BayesRLConfig = field(default_factory=BayesRLConfig)


def settings(preset: Preset, seeds: int | None) -> Settings:
    """What a preset stands for."""
    if preset == "smoke":
        return Settings(ks=(-4.0, 0.5, 1.0, None), num_seeds=seeds or 1)
    if preset == "paper":
        return Settings(
            num_seeds=seeds or 10,
            inference=phase_1.paper_tiger_treasure(),
            policy=bayes_rl.paper_tiger_treasure(),
        )
    return Settings(num_seeds=seeds or 10)


def pieces(settings: Settings) -> Mapping[str, Piece]:
    """What is to be done."""
    return {
        "exact": lambda place: compute(settings),
        "learned": lambda place: learn(settings, place),
    }


def _problem(settings: Settings) -> tuple[TabularCMDP, Demonstrations]:
    problem = envs.make("tiger-treasure")
    count = settings.num_demonstrations
    shown = demonstrate(
        problem,
        task_of(problem).reward,
        episodes=count,
        horizon=50,
        contexts=np.arange(count) % problem.num_contexts,
    )
    return problem, shown


def compute(settings: Settings) -> dict[str, Any]:
    """The Bayes-optimal policies for the exact MAP reward."""
    problem, shown = _problem(settings)
    posterior = map_reward(problem, shown, settings.inference.irl).posterior
    found = {}
    for k in settings.ks:
        reward = learning.predict(problem, posterior, k)
        best = solve_bayes(problem, reward.table()).policy
        found[label(k)] = learning.describe_policy(best, problem, horizon=HORIZON)
        if k is None:
            found["reward"] = reward.table()[:, 0].tolist()
    return found


def learn(settings: Settings, place: Workplace) -> dict[str, Any]:
    """Reward and policies learned, and what would be best for each seed's reward."""
    problem, shown = _problem(settings)
    seeds = range(settings.num_seeds)
    inferred = learning.infer(place, problem, shown, settings.inference, seeds)
    rewards = {
        label(k): [learning.predict(problem, one.posterior, k) for one in inferred]
        for k in settings.ks
    }
    learned = learning.learn(place, problem, rewards, settings.policy, seeds)
    learning.save_bundles(
        place,
        problem,
        shown,
        inferred[0],
        {name: own[0] for name, own in rewards.items()},
        {name: own[0] for name, own in learned.items()},
        FitConfig(inference=settings.inference, policy=settings.policy),
        seed=0,
        horizon=100,
    )
    found: dict[str, Any] = {
        "rewards": [
            learning.predict(problem, one.posterior).table()[:, 0].tolist() for one in inferred
        ],
        "episode": maps.play(learned[label(SHOWN_K)][0].policy, problem, horizon=30, seed=2),
    }
    for name, own in learned.items():
        found[name] = []
        for one in own:
            assert one.certificate is not None
            best = learning.describe_policy(one.certificate.policy, problem, horizon=HORIZON)
            here = learning.describe(one, problem, horizon=HORIZON)
            found[name].append({**here, "best": best})
    return found


def conclude(settings: Settings, found: Mapping[str, Any]) -> Findings:
    """What follows."""
    exact, learned = found["exact"], found["learned"]
    names = [label(k) for k in settings.ks]
    rows = [_row(name, exact[name], learned[name]) for name in names]
    table = Table(
        "Success and listening by k*",
        ("k*", "success", "exact", "listens", "exact", "regret at most 1%", "worst regret"),
        rows,
        "Exact: the Bayes-optimal policy for the exact MAP reward. Learned: mean and standard "
        "error over seeds, each policy's result computed exactly. Regret is by each seed's own "
        "learned reward: 0 for the best policy, 1 for the best that never listens.",
    )
    states = envs.make("tiger-treasure").state_names
    rewards = Table(
        "The inferred reward, rescaled to (−100, 10)",
        ("state", "learned", "exact"),
        [
            (state, str(estimate([own[i] for own in learned["rewards"]])), round(value, 2))
            for i, (state, value) in enumerate(zip(states, exact.get("reward", ()), strict=False))
        ],
    )
    return Findings(
        "An expert who sees the tiger never listens, so listening looks costly to whoever infers "
        "its reward, and without a prior the agent opens a door at once: right half of the time. "
        "Told what listening may cost, it listens as long as that pays and no longer: more and "
        "more as k* goes to 1, and for ever at 1, where listening is as good as the treasure.",
        _claims(settings, exact, learned),
        (table, rewards) if rewards.rows else (table,),
        _pictures(settings, exact, learned),
    )


def _row(name: str, exact: Mapping[str, Any], learned: Sequence[Mapping[str, Any]]) -> tuple:
    if never_opens(exact):
        return name, "never opens", "never opens", "∞", "∞", None, None
    good = [own for own in learned if regret_of(own) <= 0.01]
    return (
        name,
        str(estimate([own["success"] for own in learned])),
        round(exact["success"], 4),
        str(estimate([own["exploring"] for own in learned])),
        round(exact["exploring"], 3),
        f"{len(good)} of {len(learned)}",
        f"{max(map(regret_of, learned)):.2%}",
    )


def never_opens(result: Mapping[str, Any]) -> bool:
    """Whether no door is opened in any episode."""
    return result["unfinished"] > 1 - 1e-9


def _claims(
    settings: Settings, exact: Mapping[str, Any], learned: Mapping[str, Any]
) -> list[Claim]:
    ks = sorted(k for k in settings.ks if k is not None and k < 1)
    below = [learned[label(k)] for k in ks]
    claims = []
    if None in settings.ks:
        naive = learned[label(None)]
        claims.append(
            Claim(
                "Without a prior the reward does not lead to exploring: a door is opened at once.",
                f"listens {span(naive, 'exploring')}, success {span(naive, 'success')}",
                all(own["exploring"] == 0 for own in naive),
            )
        )
    if 1.0 in settings.ks:
        forever = learned[label(1.0)]
        claims.append(
            Claim(
                "At k* = 1 the agent never opens a door.",
                share([never_opens(own) for own in forever]) + " never open",
                all(map(never_opens, forever)),
            )
        )
    for what, words in (("exploring", "listens more"), ("success", "finds the gold more often")):
        means = [float(np.mean([own[what] for own in group])) for group in below]
        claims.append(
            Claim(
                f"As k* grows towards 1 the agent {words}.",
                " ≤ ".join(f"{mean:.4g}" for mean in means),
                all(np.diff(means) >= -1e-9) and means[-1] > means[0],
            )
        )
    good = {k: np.mean([regret_of(own) <= 0.01 for own in learned[label(k)]]) for k in ks}
    worst = min(good, key=lambda k: good[k])
    claims.append(
        Claim(
            "The learned policies are Bayes-optimal for every prior below 1: regret at most 1% "
            "in at least 9 of 10 seeds.",
            f"{good[worst]:.0%} of seeds at the worst of {len(ks)} values, k* = {worst:g}",
            bool(min(good.values()) >= 0.9),
        )
    )
    return claims


def _pictures(
    settings: Settings, exact: Mapping[str, Any], learned: Mapping[str, Any]
) -> list[Picture]:
    problem, episode = envs.make("tiger-treasure"), learned["episode"]
    (end,) = problem.state_indices(["ST"])
    panels = []
    for what, title in (("success", "success rate"), ("exploring", "time exploring, steps")):
        panels.append(
            drawing.Panel(
                title,
                [label(k).removeprefix("k=") for k in settings.ks],
                [
                    None
                    if never_opens(exact[label(k)])
                    else [own[what] for own in learned[label(k)]]
                    for k in settings.ks
                ],
                {
                    "exact, MAP reward": [exact[label(k)][what] for k in settings.ks],
                    "exact, each seed's reward": [
                        float(np.mean([own["best"][what] for own in learned[label(k)]]))
                        for k in settings.ks
                    ],
                },
                "never opens" if what == "success" else "∞",
            )
        )
    return [
        Picture(
            "exploration-prior",
            f"Success and listening over k*: learned policies of {settings.num_seeds} seeds "
            "(bars, with standard errors), and the Bayes-optimal ones. ∞ stands where the agent "
            "listens for ever and opens no door.",
            drawing.draw_bars(panels, "k*"),
        ),
        Picture(
            "exploration-prior-episode",
            f"An episode of the policy for k* = {SHOWN_K}: where it is, what it believes, and what "
            "it does.",
            maps.draw_episode(problem, episode, steps=1 + episode["states"].index(end)),
        ),
    ]


EXPERIMENT = Experiment(
    "exploration-prior", "What the exploration prior does", settings, pieces, conclude
)
