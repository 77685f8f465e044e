"""What learning the reward costs: times, and ratios taken in the same run.

Prints how long it takes from nothing to a reward within 5% of the exact one on every state, with
compilation apart; updates a second and the share of the machine's matrix-product peak; what ten
seeds cost against one; what the paper's own updates reach in the same problem; what convolutions as
matrix products bring; the same of phase 3, in the steady state and from nothing; and how long all
of `fit` takes to a certified regret.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bigtrain import Demonstrations, IRLConfig, TabularCMDP, demonstrate, envs, exact, infer_reward
from bigtrain.bayes_rl import BayesRLConfig
from bigtrain.learning import advance
from bigtrain.learning.networks import Convolution
from bigtrain.phases import init_policies, learn_policies, make_learner, route
from bigtrain.reward import (
    FeaturesStage,
    Learner,
    LearnerState,
    fast,
    init_seeds,
    paper_tiger_treasure,
)

BOUND = 0.05
NUM_SEEDS = 10
NUM_UPDATES = 20


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paper", action="store_true", help="run the paper's table too: minutes")
    arguments = parser.parse_args()
    console = Console(width=120)
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        console.print(to_the_bound())
        console.print(steady_state())
        console.print(convolutions())
        console.print(policies())
        console.print(policies_from_nothing())
    console.print(to_a_certificate())
    if arguments.paper:
        console.print(the_papers_updates())


def problems() -> dict[str, tuple[TabularCMDP, Demonstrations, IRLConfig]]:
    """The problems of the design, with its demonstrations."""
    tiger, detour = envs.make("tiger-treasure"), envs.make("detour")
    assert tiger.task is not None and detour.task is not None
    found = {
        "tiger-treasure": (
            tiger,
            demonstrate(
                tiger, tiger.task.reward, episodes=100, horizon=50, contexts=np.arange(100) % 2
            ),
            IRLConfig(),
        ),
        "detour": (
            detour,
            demonstrate(detour, detour.task.reward, episodes=100, horizon=40),
            IRLConfig(),
        ),
    }
    for name, options in {
        "tiger-maze": {},
        "tiger-maze, pixels": {"observation": "pixels"},
        "tiger-maze, hearing with 0.85": {"p_hear": 0.85},
    }.items():
        maze = envs.make("tiger-maze", **options)
        assert maze.task is not None
        anywhere = np.zeros(maze.num_states)
        anywhere[:27:3] = 1  # every floor cell, with no indicator
        demonstrations = demonstrate(
            maze, maze.task.reward, episodes=1_000, horizon=40, initial=anywhere
        )
        found[name] = (maze, demonstrations, IRLConfig(prior_variance=1.0))
    return found


def stretched(weights: np.ndarray) -> np.ndarray:
    """One-hot weights as shares of their range."""
    return (weights - weights.min(-1, keepdims=True)) / np.ptp(weights, axis=-1)[..., None]


def to_the_bound() -> Table:
    """From nothing to the bound, for one seed and for ten at once."""
    table = Table(title=f"from nothing to within {BOUND:.0%} of the exact reward on every state")
    for column in (
        "problem",
        "seeds",
        "seconds in all",
        "of these compiling",
        "rounds",
        "worst error",
        "10 seeds against 1",
        "without compiling",
    ):
        table.add_column(column, justify="left" if column == "problem" else "right")
    for name, (env, demonstrations, config) in track(problems().items(), "to the bound"):
        want = stretched(exact.map_reward(env, demonstrations, config).posterior.mean)
        alone = (1.0, 1.0)
        for seeds in ([0], list(range(NUM_SEEDS))):
            jax.clear_caches()

            def learn(env=env, demonstrations=demonstrations, config=config, seeds=seeds):
                return infer_reward(env, demonstrations, config=fast(config), seed=seeds)

            cold, results = clock(learn)
            warm = min(clock(learn)[0] for _ in range(3))
            alone = (cold, warm) if len(seeds) == 1 else alone
            errors = [np.abs(stretched(r.posterior.mean) - want).max() for r in results]
            table.add_row(
                name,
                str(len(seeds)),
                f"{cold:.1f}",
                f"{cold - warm:.1f}",
                str(max(len(r.path) for r in results)),
                f"{max(errors):.4f}",
                "" if len(seeds) == 1 else f"{cold / alone[0]:.1f}",
                "" if len(seeds) == 1 else f"{warm / alone[1]:.1f}",
            )
    return table


def steady_state() -> Table:
    """Updates a second, and their share of what the machine can do in matrix products."""
    peak = matmul_peak()
    table = Table(title=f"steady state; peak of matrix products {peak / 1e9:.0f} GFLOP/s")
    for column in ("problem", "seeds", "updates/s", "GFLOP/s", "of the peak"):
        table.add_column(column, justify="left" if column == "problem" else "right")
    for name, (env, demonstrations, config) in track(problems().items(), "steady state"):
        settings = dataclasses.replace(fast(config), num_iterations=1_000, num_updates=NUM_UPDATES)
        chosen = route(env)
        expert, inference = demonstrations.trajectories(env), chosen.exact_inference()
        assert inference is not None
        ready = make_learner(chosen, expert, inference, settings)
        for num_seeds in (1, NUM_SEEDS):
            keys = jax.random.split(jax.random.key(0), num_seeds)
            states = init_seeds(ready, keys)
            iterate = partial(advance, FeaturesStage(ready), states, None, 10)
            clock(iterate)  # compiles
            seconds = min(clock(iterate)[0] for _ in range(3))
            updates = 10 * NUM_UPDATES * num_seeds
            rate = updates * update_flops(ready, states) / seconds
            table.add_row(
                name,
                str(num_seeds),
                f"{updates / seconds:,.0f}",
                f"{rate / 1e9:.1f}",
                f"{rate / peak:.0%}",
            )
    return table


def update_flops(ready: Learner, states: LearnerState) -> float:
    """What one update multiplies and adds: three times a forward pass, which is counted by XLA."""
    network = jax.tree.map(lambda leaf: leaf[0], states.network)
    batch = ready.experience.batch(
        ready.experience.init(),
        jax.random.key(0),
        jnp.ones((len(ready.data.log_evidence), ready.simulator.num_contexts)),
        ready.config.rollout.batch_size,
    )
    forward = jax.jit(lambda n, o, f: n(o, f)).lower(network, batch.observations, batch.features)
    analysis = forward.compile().cost_analysis()
    assert analysis is not None
    return 3 * float(analysis["flops"])


CERTIFY = """
import time
started = time.perf_counter()
import jax
from bigtrain import CostOfExploration, FitConfig, Fixed, BayesRLConfig, demonstrate, envs, fit
env = envs.make("tiger-treasure")
demonstrations = demonstrate(env, env.task.reward, episodes=100, horizon=50)
exploration = CostOfExploration(["T1", "T2"], k=Fixed(0.5))
config = FitConfig(policy=BayesRLConfig(target_regret=0.01))
result = fit(env, demonstrations, reward_range=(-100.0, 10.0), exploration=exploration,
             config=config)
print(time.perf_counter() - started, result.measured.regret.normalised)
"""


def to_a_certificate() -> Table:
    """All of `fit` in processes of its own, first without and then with JAX's compilation cache."""
    table = Table(title="tiger-treasure, k = 0.5: from nothing to a certified regret of 1%")
    for column in ("compilation cache", "seconds, imports included", "regret"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        for name in ("cold", "warm"):
            done = subprocess.run(
                [sys.executable, "-c", CERTIFY],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            seconds, regret = map(float, done.stdout.split())
            table.add_row(name, f"{seconds:.1f}", f"{regret:.4f}")
    return table


def policies() -> Table:
    """Phase 3 in the steady state: an update against its multiplications at the peak."""
    peak = matmul_peak()
    table = Table(title="phase 3, steady state, roll-outs and sweeps included")
    for column in ("problem", "members", "ms/update", "times the peak's", "10 against 1"):
        table.add_column(column, justify="left" if column == "problem" else "right")
    config = BayesRLConfig()
    for name in ("tiger-treasure", "tiger-maze"):
        env = envs.make(name)
        assert env.task is not None
        alone = None
        for count in (1, NUM_SEEDS):
            chosen = route(env)
            inference = chosen.exact_inference()
            assert inference is not None
            model, members = chosen.rewards([env.task.reward] * count, [1e-3] * count, None)
            ready, stages = chosen.learner(inference, model, config)
            states = init_policies(ready, range(count))
            iterate = partial(advance, stages[0], states, members, 5)
            clock(iterate)  # compiles
            seconds = min(clock(iterate)[0] for _ in range(3)) / (5 * config.num_updates)
            alone = alone or seconds
            width, rows = config.model.network.width, config.rollout.hyperstate_batch_size
            flops = 3 * 2 * rows * width * (width + env.num_actions) * count
            table.add_row(
                name,
                str(count),
                f"{1_000 * seconds:.2f}",
                f"{seconds / (flops / peak):.1f}",
                "" if count == 1 else f"{seconds / alone:.1f}",
            )
    return table


def policies_from_nothing() -> Table:
    """Phase 3 to the regret at which it stops, certificates included."""
    table = Table(title="phase 3, from nothing to a certified regret of 0.1%")
    for column in (
        "problem",
        "members",
        "seconds in all",
        "of these compiling",
        "worst regret",
        "10 against 1",
        "without compiling",
    ):
        table.add_column(column, justify="left" if column == "problem" else "right")
    for name in track(("tiger-treasure", "tiger-maze"), "policies from nothing"):
        env = envs.make(name)
        assert env.task is not None
        alone = (1.0, 1.0)
        for count in (1, NUM_SEEDS):
            jax.clear_caches()
            learn = partial(learn_policies, env, [env.task.reward] * count, seeds=range(count))
            cold, results = clock(learn)
            warm = min(clock(learn)[0] for _ in range(3))
            alone = (cold, warm) if count == 1 else alone
            regrets = [one.regret.normalised for one in results if one.regret is not None]
            table.add_row(
                name,
                str(count),
                f"{cold:.1f}",
                f"{cold - warm:.1f}",
                f"{max(left for left in regrets if left is not None):.4f}",
                "" if count == 1 else f"{cold / alone[0]:.1f}",
                "" if count == 1 else f"{warm / alone[1]:.1f}",
            )
    return table


def matmul_peak(size: int = 1_024) -> float:
    """Floating-point operations a second of a large matrix product."""
    matrix = jnp.ones((size, size))
    multiply = jax.jit(lambda m: m @ m)
    seconds = min(clock(lambda: multiply(matrix))[0] for _ in range(10))
    return 2 * size**3 / seconds


def convolutions() -> Table:
    """Two layers of ten networks at once: as matrix products, and as XLA's own convolutions."""
    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    pictures = jax.random.uniform(jax.random.key(1), (29, 20, 20, 3))
    kinds = {
        "ours": (Convolution, pictures),
        "grouped": (eqx.nn.Conv2d, jnp.moveaxis(pictures, -1, 1)),
    }
    seconds = {}
    for name, (kind, inputs) in kinds.items():
        networks = eqx.filter_vmap(
            lambda key, kind=kind: (kind(3, 16, 4, 4, key=key), kind(16, 32, 3, 1, key=key))
        )(keys)

        @eqx.filter_jit
        def differentiate(networks, inputs=inputs):
            def loss(network):
                first, second = network
                outputs = jax.vmap(lambda picture: second(jax.nn.relu(first(picture))))(inputs)
                return (outputs**2).sum()

            return eqx.filter_vmap(eqx.filter_grad(loss))(networks)

        seconds[name] = min(clock(partial(differentiate, networks))[0] for _ in range(20))
    table = Table(title=f"gradient of two convolutions, {NUM_SEEDS} networks at once")
    table.add_column("as matrix products, against `eqx.nn.Conv2d`", justify="right")
    table.add_row(f"{seconds['ours'] / seconds['grouped']:.2f}")
    return table


def the_papers_updates() -> Table:
    """Where the paper's table leads in tiger-treasure: gradient updates of Ψ and ω alone."""
    env, demonstrations, config = problems()["tiger-treasure"]
    want = stretched(exact.map_reward(env, demonstrations, config).posterior.mean)
    seconds, results = clock(
        lambda: infer_reward(env, demonstrations, config=paper_tiger_treasure(), seed=[0, 1, 2])
    )
    table = Table(title=f"the paper's updates, 3 seeds, {seconds:.0f} s; exact below")
    for column in ("after", *env.state_names, "off by at most"):
        table.add_column(column, justify="right")
    for result in results:
        for step in (1_000, 5_000):
            found = stretched(result.path[step - 1].astype(float))
            off = f"{np.abs(found - want).max():.2f}"
            table.add_row(f"{step:,}", *(f"{value:.2f}" for value in found), off)
    table.add_row("exact", *(f"{value:.2f}" for value in want), "")
    return table


def clock(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that `work` takes, and what it gives."""
    started = time.perf_counter()
    result = jax.block_until_ready(work())
    return time.perf_counter() - started, result


if __name__ == "__main__":
    main()
