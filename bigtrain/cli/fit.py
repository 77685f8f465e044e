"""`bigtrain fit`: from a problem and demonstrations to a file that holds a policy."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, final

import jax
import tyro
from rich.console import Console

from bigtrain.bundle import load_bundle, render
from bigtrain.cli.command import (
    Command,
    Env,
    File,
    OptionalFile,
    OptionalFolder,
    OptionalNumber,
    Options,
    show,
)
from bigtrain.cli.problems import load_object, load_problem
from bigtrain.data import Demonstrations
from bigtrain.errors import ConfigError
from bigtrain.exploration import CostOfExploration, Fixed, Uniform
from bigtrain.finite import SolveConfig, anywhere, as_finite, demonstrate, solve
from bigtrain.fit import FitConfig, fit
from bigtrain.problem import CMDP
from bigtrain.result import FitResult, Measured
from bigtrain.runs import Progress

States = Annotated[
    tuple[str, ...], tyro.conf.arg(metavar="STATE [STATE ...]", help_behavior_hint="")
]
Actions = Annotated[
    tuple[str, ...], tyro.conf.arg(metavar="ACTION [ACTION ...]", help_behavior_hint="")
]
Range = Annotated[
    tuple[float, float] | None, tyro.conf.arg(metavar="LOW HIGH", help_behavior_hint="")
]

_EPISODES, _HORIZON = 1_000, 100  # what the exact route's policy is measured by


@final
@dataclass(frozen=True)
class Fit(Command):
    """Learn a policy from demonstrations and a simulator, and write it to a file.

    Interrupted or killed, the same command goes on where it was.
    """

    env: tyro.conf.Positional[Env]
    """A name of `bigtrain envs`, or module:object: a CMDP, or a function that makes one."""

    out: File
    """Where to write the bundle; with several seeds, each is added to the name of its file."""

    option: Options = ()
    """An option of the environment; may be repeated."""

    method: Literal["learn", "exact"] = "learn"
    """Learn by networks, or compute exactly what can be computed of finite problems."""

    demos: OptionalFile = None
    """Demonstrations (.npz); by default a privileged expert shows the problem's task."""

    episodes: int = 100
    """How often that expert shows it."""

    demo_horizon: int = 50
    """For how many steps each time."""

    demo_start: Literal["initial", "anywhere"] = "initial"
    """Where it begins: as episodes do, or anywhere but in exploration, goal and failure states."""

    demo_seed: int = 0
    """The seed of its demonstrations."""

    k: OptionalNumber = None
    """What a step of exploring is worth, as a share of the best reward; without it, no prior."""

    k_low: OptionalNumber = None
    """The least that it may be worth, where it is not known; with --k-high, in place of --k."""

    k_high: OptionalNumber = None
    """The most that it may be worth."""

    explore: States = ()
    """Where exploring is done, by default as the task says; of a simulator, module:predicate."""

    explore_actions: Actions = ()
    """The actions that explore there; by default any."""

    reward_range: Range = None
    """The least and the greatest reward of a step; by default the task's."""

    seed: tuple[int, ...] = (0,)
    """One seed, or more that are learned from at once."""

    run: OptionalFolder = None
    """Settings, metrics and checkpoints; by default beside the bundle, with the suffix .run."""

    tensorboard: bool = False
    """Write the metrics for TensorBoard too, into that directory."""

    figures: OptionalFolder = None
    """Draw the reward, learning curves and beliefs into this directory."""

    force: bool = False
    """Overwrite the bundle if there is one."""

    distributed: bool = False
    """Join the processes of a cluster (jax.distributed), and take a share of the seeds."""

    restarts: int = SolveConfig().num_restarts
    """How often --method exact climbs to the reward again, from elsewhere."""

    config: Annotated[FitConfig, tyro.conf.arg(name="")] = FitConfig()

    def __post_init__(self):
        chosen = tuple(value is not None for value in (self.k, self.k_low, self.k_high))
        if chosen not in ((False, False, False), (True, False, False), (False, True, True)):
            raise ConfigError("`--k` must be given alone, or `--k-low` and `--k-high` for it.")
        if self.explore and not any(chosen):
            raise ConfigError("`--explore` must come with `--k`: what exploring is worth there.")
        if self.explore_actions and not self.explore:
            raise ConfigError("`--explore-actions` must come with `--explore`: the states.")
        if not self.seed or len(set(self.seed)) < len(self.seed):
            raise ConfigError(f"`--seed` must be seeds that differ, got {list(self.seed)}.")
        if self._directory == self.out:
            raise ConfigError(f"`--run` must be another place than `--out`, {self.out}.")
        if self.distributed and (self.run or self.tensorboard):
            raise ConfigError("With `--distributed` there is no `--run` and no `--tensorboard`.")
        self._check_method()

    def perform(self) -> None:
        place, count = _join_cluster() if self.distributed else (0, 1)
        seeds = self.seed[place::count]
        if not seeds:
            raise ConfigError(f"{count} processes must have a seed each, got {len(self.seed)}.")
        for seed in seeds:
            _check_free(self._path(seed), self.force)
        problem = load_problem(self.env, self.option)
        task = problem.task
        reward_range = self.reward_range or (task and task.reward_range)
        if reward_range is None:
            raise ConfigError("`--reward-range` must be given: this problem has no task.")
        given = {
            "demonstrations": self._demonstrations(problem),
            "exploration": self._exploration(problem),
            "reward_range": reward_range,
        }
        # Orbax makes a checkpoint of all processes together, but each has its own to make.
        directory = self._directory if count == 1 else None
        if self.method == "exact":
            results = [self._solve(problem, given)]
        else:
            results = self._learn(problem, given, seeds, directory)
        for seed, result in zip(seeds, results, strict=True):
            self._deliver(seed, result)

    @property
    def _directory(self) -> Path:
        return self.run or self.out.with_suffix(".run")

    def _path(self, seed: int) -> Path:
        one = len(self.seed) == 1
        return self.out if one else self.out.with_stem(f"{self.out.stem}-{seed}")

    def _check_method(self) -> None:
        """Raises where a flag would do nothing."""
        default, given = FitConfig(), self.config
        inference = dataclasses.replace(default.inference, irl=given.inference.irl)
        known = dataclasses.replace(default, inference=inference, certificate=given.certificate)
        learning = self.run or self.tensorboard or self.distributed or self.seed[1:]
        if self.method == "exact" and (learning or given != known):
            raise ConfigError(
                "With `--method exact` nothing is learned: it has one seed, no `--run`, "
                "`--tensorboard` or `--distributed`, and of the settings of learning only those "
                "under `--inference.irl` and `--certificate`."
            )
        if self.method == "learn" and self.restarts != Fit.restarts:
            raise ConfigError("`--restarts` must come with `--method exact`.")
        expert = ("episodes", "demo_horizon", "demo_start", "demo_seed")
        if self.demos and any(getattr(self, name) != getattr(Fit, name) for name in expert):
            raise ConfigError("With `--demos` no expert is asked: its flags must be left out.")

    def _demonstrations(self, problem: CMDP) -> Demonstrations:
        if self.demos is not None:
            return Demonstrations.load(self.demos)
        finite = as_finite(problem)
        if finite is None or finite.task is None:
            raise ConfigError("`--demos` must be given: this problem has no task to demonstrate.")
        return demonstrate(
            finite,
            finite.task.reward,
            episodes=self.episodes,
            horizon=self.demo_horizon,
            seed=self.demo_seed,
            initial=anywhere(finite) if self.demo_start == "anywhere" else None,
        )

    def _exploration(self, problem: CMDP) -> CostOfExploration | None:
        if self.k is not None:
            k = Fixed(self.k)
        elif self.k_low is not None and self.k_high is not None:
            k = Uniform(self.k_low, self.k_high)
        else:
            return None
        actions = _by_number(self.explore_actions, problem.action_names) or None
        if not problem.is_finite:
            if len(self.explore) != 1:
                raise ConfigError("`--explore` must be module:object, a predicate of the state.")
            return CostOfExploration(load_object(self.explore[0]), actions, k)
        states = _by_number(self.explore, problem.state_names)
        if not states and (task := problem.task) is not None:
            states, actions = task.exploration_states, task.exploration_actions
        if not states:
            raise ConfigError("`--explore` must name states: the problem's task has none.")
        return CostOfExploration(states, actions, k)

    def _solve(self, problem: CMDP, given: dict[str, Any]) -> FitResult:
        finite = as_finite(problem)
        if finite is None:
            raise ConfigError("`--method exact` needs a finite problem: a TabularCMDP.")
        settings = self.config
        config = SolveConfig(settings.inference.irl, settings.certificate, self.restarts)
        with Progress(Console(stderr=True)) as progress:
            result = solve(finite, config=config, seed=self.seed[0], callbacks=[progress], **given)
        played = result.evaluate(episodes=_EPISODES, horizon=_HORIZON)
        measured = Measured(played, _EPISODES, _HORIZON, result.regret())
        return dataclasses.replace(result, measured=measured)

    def _learn(
        self, problem: CMDP, given: dict[str, Any], seeds: Sequence[int], directory: Path | None
    ) -> list[FitResult]:
        try:
            with Progress(Console(stderr=True)) as progress:
                return fit(
                    problem,
                    config=self.config,
                    seed=list(seeds),
                    callbacks=[progress],
                    directory=directory,
                    tensorboard=self.tensorboard,
                    **given,
                )
        except KeyboardInterrupt:
            kept = f"The same command goes on from `{directory}`." if directory else ""
            raise KeyboardInterrupt(kept) from None

    def _deliver(self, seed: int, result: FitResult) -> None:
        path = self._path(seed)
        result.save(path)
        show(render(load_bundle(path)))
        print(f"Written to {path}")
        if self.figures is not None:
            from bigtrain.figures import save_figures  # matplotlib takes long to import

            one = len(self.seed) == 1
            save_figures(result, self.figures if one else self.figures / f"seed-{seed}")
            print(f"Figures in {self.figures}")


def _by_number(given: Sequence[str], names: Sequence[str]) -> list[int | str]:
    """What stands for a number and is no name, as that number."""
    numbers = set(map(str, range(len(names)))) - set(names)
    return [int(one) if one in numbers else one for one in given]


def _check_free(path: Path, force: bool) -> None:
    """Raises now where a bundle could not be written in the end."""
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"`--out` must be a file in a directory that exists, got {path}.")
    if path.exists() and not force:
        raise ConfigError(f"`{path}` exists. Overwrite it by `--force`, or choose another name.")


def _join_cluster() -> tuple[int, int]:
    """Joins the other processes, and says which of how many this is."""
    count, place = os.environ.get("JAX_NUM_PROCESSES"), os.environ.get("JAX_PROCESS_ID")
    try:
        jax.distributed.initialize(
            num_processes=None if count is None else int(count),
            process_id=None if place is None else int(place),
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"`--distributed` must find the other processes, but cannot ({error}). Start it by "
            "Slurm, Open MPI or on Cloud TPUs; elsewhere set JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID."
        ) from error
    return jax.process_index(), jax.process_count()
