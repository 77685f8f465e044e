"""`bigtrain evaluate`: how a policy does, in its own problem or in another."""

import warnings
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import tyro
from rich.table import Table

from bigtrain.bundle import Bundle, load_bundle
from bigtrain.cli.command import Command, File, OptionalEnv, Options, show, show_json
from bigtrain.cli.problems import load_problem
from bigtrain.errors import ConfigError
from bigtrain.evaluate import Estimate, Evaluation, evaluate
from bigtrain.exploration import PredictiveReward
from bigtrain.finite import as_finite, evaluate_exactly
from bigtrain.policy import Policy
from bigtrain.problem import CMDP


@final
@dataclass(frozen=True)
class Evaluate(Command):
    """Play a bundle's policy and say what it brings.

    Without ENV it is played in the finite problem that the bundle holds, and returns are by the
    inferred reward. With ENV they are by that problem's true one, if it has a task.
    """

    file: tyro.conf.Positional[File]
    """The bundle, as `fit` wrote it."""

    env: tyro.conf.Positional[OptionalEnv] = None
    """A name of `bigtrain envs`, or module:object: a CMDP, or a function that makes one."""

    option: Options = ()
    """An option of the environment; may be repeated."""

    episodes: int = 1_000
    """How many episodes to play for each seed."""

    horizon: int = 100
    """How many steps an episode has."""

    seed: tuple[int, ...] = (0,)
    """One seed or more; with more, standard errors are over seeds."""

    exact: bool = False
    """Compute what endless episodes would bring; finite problems only."""

    json: bool = False
    """Print JSON."""

    def __post_init__(self):
        if self.option and self.env is None:
            raise ConfigError("`--option` must come with ENV: a bundle's own problem has none.")
        if self.exact and (self.episodes != Evaluate.episodes or self.seed != Evaluate.seed):
            raise ConfigError("With `--exact` nothing is played: no `--episodes`, no `--seed`.")

    def perform(self) -> None:
        bundle = load_bundle(self.file)
        problem = self._problem(bundle)
        truly = problem.task is not None
        found = self._evaluate(bundle.policy, problem, {} if truly else _inferred(bundle, problem))
        reward = "true" if truly else "inferred"
        if self.json:
            told = {name: _plain(estimate) for name, estimate in found._asdict().items()}
            return show_json({"digest": bundle.digest, "reward": reward, **self._how(), **told})
        seeds = f" for each of {len(self.seed)} seeds" if len(self.seed) > 1 else ""
        played = "Computed exactly" if self.exact else f"{self.episodes:,} episodes{seeds}"
        table = Table.grid(padding=(0, 2))
        for name, estimate in found._asdict().items():
            if estimate is not None:
                table.add_row(name.replace("_", " "), str(estimate))
        print(f"{played}, {self.horizon} steps, by the {reward} reward:")
        show(table)

    def _how(self) -> dict[str, Any]:
        played = {"episodes": self.episodes, "horizon": self.horizon, "seed": list(self.seed)}
        return {"horizon": self.horizon} if self.exact else played

    def _problem(self, bundle: Bundle) -> CMDP:
        problem = bundle.problem
        if self.env is not None:
            problem = load_problem(self.env, self.option)
            _check_alike(self.env, problem, bundle)
        if problem is None:
            raise ConfigError(
                f"ENV must be given: `{self.file}` is for a simulator, which is code and no part "
                "of it. Name it: `bigtrain evaluate FILE module:object`."
            )
        if self.exact and not problem.is_finite:
            raise ConfigError("`--exact` needs a finite problem. Leave it out to play episodes.")
        return problem

    def _evaluate(self, policy: Policy, problem: CMDP, judged: dict[str, Any]) -> Evaluation:
        finite = as_finite(problem) if self.exact else None
        if finite is not None:
            return evaluate_exactly(policy, finite, **self._how(), **judged)
        return evaluate(policy, problem, **self._how(), **judged)


def _check_alike(name: str, problem: CMDP, bundle: Bundle) -> None:
    """Raises where the bundle's policy could not act in the problem."""
    beginning = jax.random.key(0), jnp.asarray(0)
    seen = jax.eval_shape(lambda *drawn: problem.observe(problem.reset(*drawn)), *beginning)
    theirs = (seen.shape, problem.num_actions)
    ours = (bundle.observation.shape, len(bundle.action_names))
    if theirs != ours:
        raise ConfigError(
            f"`{name}` must have observations of the shape {ours[0]} and {ours[1]} actions, as the "
            f"bundle has, got {theirs[0]} and {theirs[1]}."
        )


def _inferred(bundle: Bundle, problem: CMDP) -> dict[str, Any]:
    """The bundle's reward as one of `problem`, and where it counts as exploring."""
    finite = problem.is_finite
    if bundle.exploration_note or (bundle.exploration and not finite):
        warnings.warn(
            "Where a simulator explores is told by code, which no bundle holds: returns are by the "
            "reward inferred from demonstrations alone.",
            stacklevel=2,
        )
    exploration = bundle.exploration if finite else None
    learned = (bundle.weights, bundle.bias, bundle.covariance, bundle.scale, bundle.reward_range)
    reward = PredictiveReward(problem, *learned, exploration)
    if not finite:
        return {"reward": reward.mean}
    if exploration is None:
        return {"reward": reward, "exploring": ()}
    states, actions = exploration.indices(problem)
    return {"reward": reward, "exploring": states, "exploring_actions": actions}


def _plain(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    stderr = estimate.stderr if estimate.stderr == estimate.stderr else None  # JSON has no NaN
    return {"mean": estimate.mean, "stderr": stderr}
