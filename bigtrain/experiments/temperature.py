"""The appendix on temperature: how far rewards are pulled apart, on the three-state problem.

Only the choice at s0 says anything: N experts chose s1 over s2. For features that tell states, the
difference of action values there is c·d, with c = γ/(1 − γ) and d the difference of the rewards of
s1 and s2, which lie around zero. So the maximum of the posterior fulfils

    d = 2 ς₀² N c / (1 + exp(c d / α)),

from which d → ς₀² N c as α → ∞, where the model of the expert stays uniform and only the prior
holds rewards together, and d → 0 as α → 0, where any difference explains the choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from scipy import optimize, special

from bigtrain import envs
from bigtrain import reward as phase_1
from bigtrain.data import Demonstrations
from bigtrain.experiments import drawing, learning
from bigtrain.experiments.experiment import Experiment, Piece, Preset, Workplace
from bigtrain.experiments.findings import Claim, Findings, Picture, Table
from bigtrain.experiments.learning import task_of
from bigtrain.experiments.statistics import estimate
from bigtrain.finite import TabularCMDP, demonstrate, map_reward
from bigtrain.reward import InferenceConfig, IRLConfig


@final
@dataclass(frozen=True)
class Settings:
    """Temperatures for which it is computed, those for which it is learned, and from how much."""

    temperatures: tuple[float, ...] = tuple(10.0 ** (e / 2) for e in range(-8, 13))
    learned: tuple[float, ...] = (1e-3, 1e-1, 1e1, 1e3)
    num_seeds: int = 5
    num_demonstrations: int = 20
    prior_variance: float = 1.0
    inference: InferenceConfig = field(default_factory=phase_1.fast)


def settings(preset: Preset, seeds: int | None) -> Settings:
    """What a preset stands for; the paper prints no settings for this one."""
    if preset == "smoke":
        return Settings(temperatures=(1e-2, 1e0, 1e2), learned=(1e-2,), num_seeds=seeds or 1)
    return Settings(num_seeds=seeds or 5)


def pieces(settings: Settings) -> Mapping[str, Piece]:
    """What is to be done."""
    return {
        "exact": lambda place: compute(settings),
        **{
            f"learned-{alpha:g}": lambda place, alpha=alpha: learn(settings, alpha, place)
            for alpha in settings.learned
        },
    }


def separation(alpha: float, *, num_experts: int, prior_variance: float, gamma: float) -> float:
    """d by the formula above, to machine precision."""
    c = gamma / (1 - gamma)
    most = 2 * prior_variance * num_experts * c

    def excess(d: float) -> float:
        return d - most * special.expit(-c * d / alpha)

    found = optimize.root_scalar(excess, bracket=(0, most), xtol=1e-300, rtol=1e-14)
    return float(found.root)


def limit(settings: Settings) -> float:
    """d as α grows without end."""
    gamma = envs.make("three-state").gamma
    return settings.prior_variance * settings.num_demonstrations * gamma / (1 - gamma)


def _problem(settings: Settings) -> tuple[TabularCMDP, Demonstrations]:
    problem = envs.make("three-state")
    count = settings.num_demonstrations
    shown = demonstrate(
        problem, task_of(problem).reward, episodes=count, horizon=10, contexts=np.arange(count) % 2
    )
    return problem, shown


def _irl(settings: Settings, alpha: float) -> IRLConfig:
    return IRLConfig(temperature=alpha, prior_variance=settings.prior_variance)


def compute(settings: Settings) -> list[list[float]]:
    """By temperature: the separation at the exact maximum, and by the formula."""
    problem, shown = _problem(settings)
    rows = []
    for alpha in settings.temperatures:
        _, s1, s2 = map_reward(problem, shown, _irl(settings, alpha)).posterior.mean
        formula = separation(
            alpha,
            num_experts=settings.num_demonstrations,
            prior_variance=settings.prior_variance,
            gamma=problem.gamma,
        )
        rows.append([alpha, float(s1 - s2), formula])
    return rows


def learn(settings: Settings, alpha: float, place: Workplace) -> dict[str, Any]:
    """The separation that is learned at a temperature, seed by seed."""
    problem, shown = _problem(settings)
    config = replace(settings.inference, irl=_irl(settings, alpha))
    inferred = learning.infer(place, problem, shown, config, range(settings.num_seeds))
    found = [float(one.posterior.mean[1] - one.posterior.mean[2]) for one in inferred]
    return {"temperature": alpha, "separations": found}


def conclude(settings: Settings, found: Mapping[str, Any]) -> Findings:
    """What follows."""
    exact = np.array(found["exact"])
    learned = {alpha: found[f"learned-{alpha:g}"]["separations"] for alpha in settings.learned}
    count, gamma = settings.num_demonstrations, envs.make("three-state").gamma
    formulas = {
        alpha: separation(
            alpha, num_experts=count, prior_variance=settings.prior_variance, gamma=gamma
        )
        for alpha in settings.learned
    }
    table = Table(
        "The reward of s1 above that of s2, by temperature",
        ("α", "learned", "exact maximum", "formula"),
        [
            (
                f"{alpha:g}",
                next((str(estimate(v)) for a, v in learned.items() if np.isclose(a, alpha)), None),
                f"{value:.6g}",
                f"{formula:.6g}",
            )
            for alpha, value, formula in exact
        ],
    )
    off = np.abs(exact[:, 1] / exact[:, 2] - 1).max()
    worst = max(abs(value / formulas[a] - 1) for a, own in learned.items() for value in own)
    last = exact[-1, 2] / limit(settings)
    claims = [
        Claim(
            "The smaller α, the less rewards are pulled apart; they come together as α goes to 0.",
            f"{exact[0, 1]:.3g} at α = {exact[0, 0]:g}, {exact[-1, 1]:.4g} at {exact[-1, 0]:g}",
            bool(np.all(np.diff(exact[:, 1]) > 0)),
        ),
        Claim(
            "As α grows the difference grows to what the prior allows, ς₀² N γ/(1 − γ).",
            f"{last:.2%} of {limit(settings):.4g} at α = {exact[-1, 0]:g}",
            bool(np.all(exact[:, 1] <= limit(settings) * (1 + 1e-9))),
        ),
        Claim(
            "The exact maximum is that of the formula.",
            f"off by {off:.1e} at most",
            bool(off < 1e-6),
        ),
        Claim(
            "What is learned is within 1% of the formula.",
            f"off by {worst:.2%} at most, {len(learned)} temperatures, {settings.num_seeds} seeds",
            worst < 0.01,
        ),
    ]
    return Findings(
        "How much rewards differ is not in the demonstrations: an expert who always goes to s1 "
        "may like it a little or a lot. The temperature says how sure experts act; the surer, the "
        "smaller the difference that explains what they did.",
        claims,
        (table,),
        (
            Picture(
                "temperature",
                "The reward of s1 above that of s2 over the temperature α: exact maximum, closed "
                "form, and learned.",
                drawing.draw_lines(
                    {"formula": exact[:, [0, 2]]},
                    {
                        "exact maximum": exact[:, :2],
                        "learned": np.array([[a, v] for a, own in learned.items() for v in own]),
                    },
                    title="separation of rewards",
                    label="temperature α",
                    references={"limit": limit(settings)},
                ),
            ),
        ),
    )


EXPERIMENT = Experiment(
    "temperature", "What the temperature does to rewards", settings, pieces, conclude
)
