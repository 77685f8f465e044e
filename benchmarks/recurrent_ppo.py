"""Phase 3 against sb3-contrib's RecurrentPPO, given the same reward in the same run.

The problem is tiger-treasure with the exact MAP reward and k = 0.5: it is best to listen until one
door is ahead by two. Prints how long each learner takes until the regret of its greedy policy is
proved to be at most 1% of what exploring brings. Checking RecurrentPPO's is not counted; of ours
all is, compilation included: once from nothing, and once with JAX's persistent compilation cache
filled by a run before.
"""

import argparse
import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
from gymnasium.wrappers import TimeLimit
from jax.experimental.compilation_cache import compilation_cache
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bigtrain import CostOfExploration, Fixed, TabularCMDP, demonstrate, envs, exact, regret
from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.evaluate import Regret
from bigtrain.exploration import predictive_reward
from bigtrain.finite import exploration_pairs, never_exploring_value
from bigtrain.finite.envs.tiger_treasure import LISTEN, S0, ST
from bigtrain.phases import learn_policy

K = 0.5
BOUND = 0.01
SEEDS = (0, 1, 2)
TIME_LIMIT = 50
STEPS_BETWEEN_CHECKS = 2_048
MAX_HISTORIES = 2_048

# The quickest of a few settings, by the median of three seeds: collecting costs little more for
# many environments than for one, and what is to be remembered is small.
TUNED = {
    "n_steps": 32,
    "batch_size": 2_048,
    "n_epochs": 5,
    "learning_rate": 3e-3,
    "ent_coef": 0.05,
    "policy_kwargs": {"lstm_hidden_size": 32, "net_arch": []},
}
TUNED_ENVIRONMENTS = 64
TUNED_SCALE = 0.02


class Problem(NamedTuple):
    """What is to be learned, and what regret is measured against."""

    cmdp: TabularCMDP
    reward: np.ndarray
    optimal: exact.BayesSolution
    never_exploring: float | None


class Outcome(NamedTuple):
    """How one seed fared: seconds until the bound was reached, or until patience ran out."""

    seconds: float
    reached: bool

    def __str__(self) -> str:
        return f"{'' if self.reached else '> '}{self.seconds:.1f}"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cap", type=float, default=120, help="most seconds for a RecurrentPPO")
    cap = parser.parse_args().cap
    if importlib.util.find_spec("sb3_contrib") is None:
        print(
            "To compare with RecurrentPPO: .venv/bin/pip install -c constraints.txt -e '.[bench]'"
        )
        return
    problem = make_problem()
    fared = {"ours, from nothing": [ours(problem, seed) for seed in track(SEEDS, "ours")]}
    with persistent_compilation_cache():
        ours(problem, SEEDS[0])  # fills it
        fared["ours, cache warm"] = [ours(problem, seed) for seed in track(SEEDS, "ours, warm")]
    for name, tuned in (("tuned", True), ("default", False)):
        fared[f"RecurrentPPO, {name}, up to {cap:g} s"] = [
            recurrent_ppo(problem, seed, cap, tuned=tuned) for seed in track(SEEDS, name)
        ]
    Console(width=120).print(compare(fared))


def compare(fared: dict[str, list[Outcome]]) -> Table:
    """A row for each learner; the first two are what the others are compared with."""
    table = Table(title=f"tiger-treasure, k = {K}: seconds until the regret is at most {BOUND:.0%}")
    seeds = (f"seed {seed}" for seed in SEEDS)
    for column in ("learner", *seeds, "median", "against ours", "against ours, warm"):
        table.add_column(column, justify="left" if column == "learner" else "right")
    medians = {name: sorted(outcomes)[len(outcomes) // 2] for name, outcomes in fared.items()}
    baselines = list(medians.values())[:2]
    for name, outcomes in fared.items():
        median = medians[name]
        ratios = [
            str(Outcome(median.seconds / baseline.seconds, median.reached))
            if baseline.reached
            else "none: ours did not get there"
            for baseline in baselines
        ]
        table.add_row(name, *map(str, outcomes), str(median), *ratios)
    return table


@contextlib.contextmanager
def persistent_compilation_cache() -> Iterator[None]:
    """Lets JAX keep every program, however small, in a directory that is there meanwhile."""
    settings = {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    with tempfile.TemporaryDirectory() as directory:
        for name, value in (settings | {"jax_compilation_cache_dir": directory}).items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX decides once whether there is one
        yield
    for name, value in (before | {"jax_compilation_cache_dir": None}).items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def make_problem() -> Problem:
    """tiger-treasure with the reward that phases 1 and 2 find exactly."""
    cmdp = envs.make("tiger-treasure")
    assert cmdp.task is not None
    states = cmdp.task.exploration_states
    demonstrations = demonstrate(
        cmdp, cmdp.task.reward, episodes=100, horizon=50, contexts=np.arange(100) % 2
    )
    reward = predictive_reward(
        cmdp,
        exact.map_reward(cmdp, demonstrations).posterior,
        reward_range=cmdp.task.reward_range,
        exploration=CostOfExploration(states, k=Fixed(K)),
    ).table()
    never_exploring = never_exploring_value(cmdp, reward, exploration_pairs(cmdp, reward, states))
    return Problem(cmdp, reward, exact.solve_bayes(cmdp, reward), never_exploring)


def ours(problem: Problem, seed: int) -> Outcome:
    """Phase 3, with nothing compiled in this process; it stops by itself at the bound."""
    jax.clear_caches()
    started = time.perf_counter()
    config = BayesRLConfig(target_regret=BOUND)
    result = learn_policy(problem.cmdp, problem.reward, config=config, seed=seed)
    seconds = time.perf_counter() - started
    left = regret(
        result.policy, problem.cmdp, reward=problem.reward, optimal=problem.optimal
    ).normalised
    return Outcome(seconds, left is not None and left <= BOUND)


def recurrent_ppo(problem: Problem, seed: int, cap: float, *, tuned: bool) -> Outcome:
    """RecurrentPPO as it comes, or as well as we could set it up."""
    import torch  # pyright: ignore[reportMissingImports]
    from sb3_contrib import RecurrentPPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
        make_vec_env,
    )

    torch.set_num_threads(1)  # two were seen to take ten times as long on a busy machine
    started = time.perf_counter()
    env = make_vec_env(
        lambda: TimeLimit(TigerTreasure(problem, ends=tuned), TIME_LIMIT),
        n_envs=TUNED_ENVIRONMENTS if tuned else 1,
    )
    settings = TUNED if tuned else {}
    model = RecurrentPPO("MlpLstmPolicy", env, seed=seed, device="cpu", **settings)
    seconds, reached = time.perf_counter() - started, False
    while not reached and seconds < cap:
        started = time.perf_counter()
        model.learn(STEPS_BETWEEN_CHECKS, reset_num_timesteps=False, log_interval=None)
        seconds += time.perf_counter() - started
        value = proved_value(model, problem)
        left = Regret(value, problem.optimal.upper, problem.never_exploring).normalised
        reached = left is not None and left <= BOUND
    return Outcome(seconds, reached)


class TigerTreasure(gymnasium.Env):
    """The problem in Gymnasium's terms: a context an episode, and the state as a one-hot.

    `ends` cuts episodes at ST. That is right only where ST is worth 0, so the reward is shifted;
    it is also scaled to the order of 1.
    """

    def __init__(self, problem: Problem, *, ends: bool):
        cmdp, reward = problem.cmdp, problem.reward
        self.observation_space = gymnasium.spaces.Box(0, 1, (cmdp.num_states,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(cmdp.num_actions)
        # Plain lists: quicker than arrays to look one number up in.
        self._observations = list(np.eye(cmdp.num_states, dtype=np.float32))
        self._prior = np.cumsum(cmdp.context_prior).tolist()
        self._successors = cmdp.transitions.successors.tolist()
        self._outcomes = np.cumsum(cmdp.transitions.probabilities, -1).tolist()
        self._reward = (TUNED_SCALE * (reward - reward[ST]) if ends else reward).tolist()
        self._ends = ends

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._context, self._state = self._draw(self._prior), S0
        return self._observations[self._state], {}

    def step(self, action: int):
        left = self._state
        place = self._draw(self._outcomes[self._context][left][action])
        self._state = self._successors[left][action][place]
        ended = self._ends and self._state == ST
        return self._observations[self._state], self._reward[left][action], ended, False, {}

    def _draw(self, cumulated: list[float]) -> int:
        drawn = self.np_random.random()
        return next(place for place, limit in enumerate(cumulated) if drawn < limit)


def proved_value(model: Any, problem: Problem) -> float:
    """A lower bound on the value of the greedy policy, close where it soon opens a door.

    The policy is asked what it does after every history of hearings that it can meet, until what
    is left weighs next to nothing or the histories are too many; that counts as the worst there is.
    """
    cmdp, reward = problem.cmdp, problem.reward
    successors, probabilities = cmdp.transitions
    # Once a door is open all actions are alike: the value of any policy is that of every policy.
    anyhow = np.full(reward.shape, 1 / cmdp.num_actions)
    opened_values = exact.evaluate_policy(cmdp, anyhow, reward)
    states = np.array([S0])
    mass = np.asarray(cmdp.context_prior)[:, None]  # [context, history], as everything below
    memory, value, discount = None, 0.0, 1.0
    while discount * mass.sum() > 1e-6 and len(states) <= MAX_HISTORIES:
        actions, memory = model.predict(
            np.eye(cmdp.num_states, dtype=np.float32)[states],
            state=memory,
            episode_start=np.full(len(states), memory is None),
            deterministic=True,
        )
        value += discount * (mass.sum(0) @ reward[states, actions])
        discount *= cmdp.gamma
        following = successors[states, actions]
        reached = mass[..., None] * probabilities[:, states, actions]
        opened = actions != LISTEN
        value += discount * (reached * opened_values[:, following])[:, opened].sum()
        parents, places = np.nonzero(reached.sum(0) * ~opened[:, None])
        states, mass = following[parents, places], reached[:, parents, places]
        memory = tuple(part[:, parents] for part in memory)
    return float(value + discount * mass.sum() * reward.min() / (1 - cmdp.gamma))


if __name__ == "__main__":
    main()
