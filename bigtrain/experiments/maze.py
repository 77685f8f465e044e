"""Section 5.3: tiger-maze from pictures, with hearing that errs and with hearing that does not."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from bigtrain.experiments.statistics import estimate, share
from bigtrain.finite import (
    COARSE,
    TabularCMDP,
    anywhere,
    demonstrate,
    evaluate_exactly,
    map_reward,
    solve_bayes,
)
from bigtrain.fit import FitConfig
from bigtrain.reward import InferenceConfig, IRLConfig

HORIZON = 40
TRUE = "true reward"
KS = (-0.05, 0.0, 0.1, 0.2, 0.6, None)
SHOWN_K = 0.1


@final
@dataclass(frozen=True)
class Hearing:
    """A maze: how often hearing is right, and how wide the prior over rewards is (ς₀²)."""

    name: str
    p_hear: float
    prior_variance: float


NOISY, CLEAR = Hearing("noisy", 0.85, 0.01), Hearing("clear", 1.0, 1.0)


@final
@dataclass(frozen=True)
class Settings:
    """The mazes, the values of k*, the widths of the prior over rewards that are compared
    exactly, and how much is learned from and how often."""

    mazes: tuple[Hearing, ...] = (NOISY, CLEAR)
    ks: tuple[float | None, ...] = KS
    prior_variances: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
    observation: str = "pixels"
    num_seeds: int = 8
    num_demonstrations: int = 1_000
    inference: InferenceConfig = field(default_factory=phase_1.fast)
    policy: BayesRLConfig = field(
        default_factory=lambda: BayesRLConfig(evaluate_every=2, target_regret=1e-2)
    )


def settings(preset: Preset, seeds: int | None) -> Settings:
    """What a preset stands for."""
    if preset == "smoke":
        return Settings(
            mazes=(NOISY,),
            ks=(SHOWN_K, None),
            prior_variances=(0.01,),
            observation="symbolic",
            num_seeds=seeds or 1,
        )
    if preset == "paper":
        return Settings(
            num_seeds=seeds or 8,
            inference=phase_1.paper_tiger_maze(),
            policy=bayes_rl.paper_tiger_maze(),
        )
    return Settings(num_seeds=seeds or 8)


def pieces(settings: Settings) -> Mapping[str, Piece]:
    """What is to be done."""
    work: dict[str, Piece] = {}
    for maze in settings.mazes:
        work[f"exact-{maze.name}"] = lambda place, maze=maze: compute(settings, maze)
        work[f"learned-{maze.name}"] = lambda place, maze=maze: learn(settings, maze, place)
    return work


def _irl(settings: Settings, prior_variance: float) -> IRLConfig:
    return replace(settings.inference.irl, prior_variance=prior_variance)


def _problem(settings: Settings, maze: Hearing) -> tuple[TabularCMDP, Demonstrations]:
    problem = envs.make("tiger-maze", p_hear=maze.p_hear, observation=settings.observation)
    return problem, demonstrate(
        problem,
        task_of(problem).reward,
        episodes=settings.num_demonstrations,
        horizon=HORIZON,
        initial=anywhere(problem),
    )


def compute(settings: Settings, maze: Hearing) -> dict[str, Any]:
    """The Bayes-optimal policies for the true reward and for exact MAP rewards."""
    problem, shown = _problem(settings, maze)
    task = task_of(problem)

    def best(table) -> dict:
        policy = solve_bayes(problem, table).policy
        return learning.describe_policy(policy, problem, horizon=HORIZON)

    found: dict[str, Any] = {TRUE: best(task.reward), "widths": []}
    for variance in settings.prior_variances:
        posterior = map_reward(problem, shown, _irl(settings, variance)).posterior
        row = {}
        for k in settings.ks:
            reward = learning.predict(problem, posterior, k)
            row[label(k)] = best(reward.table())
        found["widths"].append([variance, row])
        if variance == maze.prior_variance:
            found |= row
            plain = learning.predict(problem, posterior)
            found["reward"] = plain.table()[:, 0].tolist()
    return found


def learn(settings: Settings, maze: Hearing, place: Workplace) -> dict[str, Any]:
    """The reward, and policies for it with and without priors, and for the true reward."""
    problem, shown = _problem(settings, maze)
    task, seeds = task_of(problem), range(settings.num_seeds)
    inference = replace(settings.inference, irl=_irl(settings, maze.prior_variance))
    inferred = learning.infer(place, problem, shown, inference, seeds)
    rewards = {
        label(k): [learning.predict(problem, one.posterior, k) for one in inferred]
        for k in settings.ks
    }
    learned = learning.learn(
        place,
        problem,
        {TRUE: [np.asarray(task.reward)] * len(seeds), **rewards},
        settings.policy,
        seeds,
        measure=lambda policy: {
            "true_return": evaluate_exactly(
                policy, problem, horizon=HORIZON, resolution=COARSE
            ).total_return.mean
        },
    )
    learning.save_bundles(
        replace(place, bundles=place.bundles / maze.name),
        problem,
        shown,
        inferred[0],
        {name: own[0] for name, own in rewards.items()},
        {name: own[0] for name, own in learned.items() if name != TRUE},
        FitConfig(inference=inference, policy=settings.policy),
        seed=0,
        horizon=HORIZON,
    )
    plain = [learning.predict(problem, one.posterior).table()[:, 0] for one in inferred]
    return {
        "reward": np.mean(plain, axis=0).tolist(),
        "episode": maps.play(learned[label(SHOWN_K)][0].policy, problem, horizon=HORIZON, seed=0),
        **{
            name: [
                learning.describe(one, problem, horizon=HORIZON, curve=["true_return"])
                for one in own
            ]
            for name, own in learned.items()
        },
    }


def conclude(settings: Settings, found: Mapping[str, Any]) -> Findings:
    """What follows."""
    tables, pictures, claims = [], [], []
    for maze in settings.mazes:
        exact, learned = found[f"exact-{maze.name}"], found[f"learned-{maze.name}"]
        tables += _tables(settings, maze, exact, learned)
        pictures += _pictures(settings, maze, exact, learned)
        claims += _claims(settings, maze, exact, learned)
    return Findings(
        "From pictures alone the agent learns what experts wanted and how to find out what they "
        "knew. Whether it needs a prior for that depends on how far the inferred reward is pulled "
        "towards zero: where hearing may err and the prior over rewards is narrow, the agent "
        "without one opens a door at random, as in the paper. Where hearing is always right, a "
        "single step of listening costs so little that the inferred reward alone suffices. Where "
        "exploring is priced too high it listens for ever, in either maze.",
        claims,
        tables,
        pictures,
    )


def _tables(
    settings: Settings, maze: Hearing, exact: Mapping[str, Any], learned: Mapping[str, Any]
) -> list[Table]:
    rows = []
    for name in (TRUE, *map(label, settings.ks)):
        returns, listens = (
            str(estimate([own[what] for own in learned[name]])) for what in ("return", "exploring")
        )
        good = [regret_of(own) <= 0.01 for own in learned[name]]
        rows.append(
            (
                name,
                returns,
                round(exact[name]["return"], 3),
                listens,
                round(exact[name]["exploring"], 2),
                f"{sum(good)} of {len(good)}",
            )
        )
    heard = f"hearing right with {maze.p_hear:g}, ς₀² = {maze.prior_variance:g}"
    widths = [
        (
            f"{variance:g}",
            *(
                f"{own[label(k)]['return']:.3f} ({own[label(k)]['exploring']:.3g})"
                for k in settings.ks
            ),
        )
        for variance, own in exact["widths"]
    ]
    return [
        Table(
            f"True return of {HORIZON} steps, {heard}",
            ("reward", "return", "exact", "listens", "exact", "regret at most 1%"),
            rows,
            "Exact: the Bayes-optimal policy for the exact MAP reward. Learned: mean and standard "
            "error over seeds. Regret is by each seed's own learned reward, as a share of what "
            "exploring brings, and where that is nothing, of the reward's range.",
        ),
        Table(
            f"Exact return (listens) over the prior's width, hearing right with {maze.p_hear:g}",
            ("ς₀²", *map(label, settings.ks)),
            widths,
            f"The Bayes-optimal policy for the true reward: {exact[TRUE]['return']:.3f} "
            f"({exact[TRUE]['exploring']:.3g}).",
        ),
    ]


def _claims(
    settings: Settings, maze: Hearing, exact: Mapping[str, Any], learned: Mapping[str, Any]
) -> list[Claim]:
    where = f"Hearing right with {maze.p_hear:g}: "
    best = exact[TRUE]["return"]
    mean = {
        name: float(np.mean([own["return"] for own in learned[name]]))
        for name in (TRUE, *map(label, settings.ks))
    }
    listens = {
        label(k): float(np.mean([own["exploring"] for own in learned[label(k)]]))
        for k in settings.ks
    }
    same = [k for k in settings.ks if k is not None and abs(mean[label(k)] - best) < 1e-2]
    claims = [
        Claim(
            f"{where}with a prior, k* = {SHOWN_K}, the policy does as well as for the true reward.",
            f"{mean[label(SHOWN_K)]:.3f} and {mean[TRUE]:.3f}; exactly {best:.3f}",
            abs(mean[label(SHOWN_K)] - mean[TRUE]) <= 0.01 * best,
        )
    ]
    if None in settings.ks:
        guesses = [own["exploring"] < 1e-9 for own in learned[label(None)]]
        alone = f"{mean[label(None)]:.3f}, listens {listens[label(None)]:.3g}"
        if maze == NOISY:
            statement = "the inferred reward alone makes the agent open a door at random at first."
            shown = f"{alone}; {share(guesses)} never listen"
            claims.append(Claim(where + statement, shown, sum(guesses) >= 0.875 * len(guesses)))
        else:
            statement = (
                "the inferred reward alone suffices; here, unlike in the paper, the agent does "
                "not guess at first."
            )
            claims.append(Claim(where + statement, alone, abs(mean[label(None)] - best) <= 1e-2))
    above = [k for k in settings.ks if k is not None and same and k > max(same)]
    if above:
        claims.append(
            Claim(
                f"{where}above some k* the agent explores too much.",
                ", ".join(f"k* = {k:g}: {listens[label(k)]:.3g} listens" for k in above),
                all(listens[label(k)] > listens[label(max(same))] + 0.5 for k in above),
            )
        )
    if maze == NOISY and -0.05 in settings.ks:
        claims.append(
            Claim(
                f"{where}below some k* it explores too little, and between lies a range that does "
                "as well as the true reward.",
                f"k* = −0.05: {listens[label(-0.05)]:.3g} listens; best from k* = "
                f"{min(same, default=float('nan')):g} to {max(same, default=float('nan')):g}",
                listens[label(-0.05)] < 1e-9 and len(same) >= 2,
            )
        )
    shares = {
        name: np.mean([regret_of(own) <= 0.01 for own in learned[name]])
        for name in (TRUE, *map(label, settings.ks))
    }
    worst = min(shares, key=lambda name: shares[name])
    claims.append(
        Claim(
            f"{where}the policies learned from pictures are Bayes-optimal: regret at most 1% in at "
            "least 9 of 10 seeds.",
            f"{shares[worst]:.0%} of {settings.num_seeds} seeds at the worst, {worst}",
            bool(shares[worst] >= 0.875),  # 7 of 8
        )
    )
    return claims


def _pictures(
    settings: Settings, maze: Hearing, exact: Mapping[str, Any], learned: Mapping[str, Any]
) -> list[Picture]:
    seen = envs.make("tiger-maze", p_hear=maze.p_hear, observation="pixels")
    heard = f"hearing right with {maze.p_hear:g}"
    updates = settings.policy.num_updates
    prior, alone = f"prior, k* = {SHOWN_K}", "no prior"
    curves = {
        name: [
            [(float(step * updates), value) for step, value in own["curves"]["true_return"]]
            for own in learned[key]
        ]
        for name, key in ((TRUE, TRUE), (prior, label(SHOWN_K)), (alone, label(None)))
        if key in learned
    }
    names = [TRUE, *map(label, settings.ks)]
    panel = drawing.Panel(
        f"true return of {HORIZON} steps",
        [name.removeprefix("k=") for name in names],
        [[own["return"] for own in learned[name]] for name in names],
        {"exact": [exact[name]["return"] for name in names]},
    )
    return [
        Picture(
            f"maze-{maze.name}-reward",
            f"The reward that inverse reinforcement learning found, on the map, {heard}; mean of "
            f"{settings.num_seeds} seeds. Left: nothing was heard just now; middle and right: "
            "gold was heard on that side.",
            maps.draw_rewards(seen, learned["reward"]),
        ),
        Picture(
            f"maze-{maze.name}-learning",
            f"True return while the policy is learned, {heard}: mean of {settings.num_seeds} "
            "seeds with one standard error.",
            drawing.draw_curves(
                curves,
                title=f"true return of {HORIZON} steps",
                label="updates",
                references={"exact": exact[TRUE]["return"]},
            ),
        ),
        Picture(
            f"maze-{maze.name}-returns",
            f"Final true return over k*, {heard}.",
            drawing.draw_bars([panel], "reward, or k* of the prior"),
        ),
        Picture(
            f"maze-{maze.name}-episode",
            f"An episode of the policy for k* = {SHOWN_K}, {heard}: what it sees, what it "
            "believes, and what it does.",
            maps.draw_episode(seen, learned["episode"]),
        ),
    ]


EXPERIMENT = Experiment("maze", "A maze seen from above", settings, pieces, conclude)
