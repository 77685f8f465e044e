"""Why copying the expert fails, and what BIG does instead, on tiger-treasure.

An expert who knows where the tiger is opens the other door. The agent that learns from it does not
know, and must decide how long to listen first. What is best is computed exactly, then learned by
networks and written to a bundle, by which a server plays a simulator. Run it with `make demo`.
"""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import bigclient
import bigtrain
from bigtrain import CostOfExploration, Demonstrations, TabularCMDP, Task, Uniform, baselines, envs
from bigtrain.bundle import Bundle, render
from bigtrain.evaluate import Estimate, Evaluation
from bigtrain.finite import PrivilegedPolicy
from bigtrain.policy import Policy
from bigtrain.result import FitResult

EPISODES, HORIZON, SEEDS = 1_000, 100, [0, 1, 2, 3, 4]
KS = (-4.0, -1.0, 0.5, 0.9, 0.98)
K_LEARNED = 0.5
K_WIDTH = 0.02

S0, T1, T2, TIGER, GOLD, ST = range(6)
LISTEN = 2
REWARDS = np.array([0, -1, -1, -100, 10, 0])

Agent = Policy | PrivilegedPolicy
Results = dict[str, tuple[Evaluation, Evaluation]]
Served = tuple[Estimate, Estimate, Estimate]
"""Success, listens and return of episodes that were played by a server."""


def main() -> None:
    """Demonstrates, computes what is best, plays it, learns the same by networks, and serves it."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the server ends with us
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    console = Console()
    env = envs.make("tiger-treasure")
    task = env.task
    assert task is not None
    demonstrations = bigtrain.demonstrate(env, task.reward, episodes=100, horizon=50)
    console.print(
        f"\nAn expert who sees the tiger shows the task {len(demonstrations)} times. "
        "It never listens.\n"
    )
    solved, results = compute(console, env, task, demonstrations)
    exact = solved[K_LEARNED]
    wants = "  ".join(
        f"{name} {reward:.1f}"
        for name, reward in zip(env.state_names, exact.reward.irl_table()[:, 0], strict=True)
    )
    console.print(f"What it wants, inferred and stretched to {task.reward_range}:\n  {wants}\n")
    console.print(results_table(results))
    console.print(
        "\nNothing the expert does shows what listening is worth, so its copy and plain inverse "
        "RL gamble. BIG takes a prior over it, k times the best reward a step, and listens just "
        "as long as that pays: k near 1 makes a cautious agent, k far below 0 a rash one. Exact "
        "figures are computed, the others played, with their standard error over seeds.\n\n"
        f"Now the same by networks, for k around {K_LEARNED:g}, from the same demonstrations:\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiger.big"
        learn(console, env, task, demonstrations, path)
        bundle = bigtrain.load_bundle(path)
        console.print("\nThe bundle, written, read back, and shown as by `bigtrain inspect`:\n")
        console.print(render(bundle))
        with serving(console, path) as address:
            served = play(address)
    console.print(f"Served at {address}, and played through `bigclient`:\n")
    console.print(comparison_table(env, exact, bundle, served))
    console.print(
        "\nThe learned policy is the one from the bundle. Regret is by the exact reward: 0 for the "
        f"best there is, 1 for the best that never listens. Served is what {EPISODES:,} simulated "
        "episodes got from the server, with the standard error.\n"
    )


def compute(
    console: Console, env: TabularCMDP, task: Task, demonstrations: Demonstrations
) -> tuple[dict[float | None, FitResult], Results]:
    """The exact results by k, and how all agents play."""
    agents: dict[str, Agent] = {
        "the expert": bigtrain.plan_expert(env, task.reward),
        "a copy of the expert": baselines.clone(env, demonstrations),
    }
    solved: dict[float | None, FitResult] = {}
    results: Results = {}
    with Progress(
        TextColumn("{task.description:<32}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        bar = progress.add_task("solving", total=2 * (1 + len(KS)) + len(agents))
        for k in (None, *KS):
            name = "inverse RL, no prior" if k is None else f"BIG, k around {k:g}"
            progress.update(bar, description=f"solving: {name}")
            solved[k] = bigtrain.solve(
                env,
                demonstrations,
                reward_range=task.reward_range,
                exploration=None if k is None else price(task, k),
            )
            agents[name] = solved[k].policy
            progress.advance(bar)
        for name, agent in agents.items():
            progress.update(bar, description=f"playing: {name}")
            results[name] = (
                bigtrain.evaluate(agent, env, episodes=EPISODES, horizon=HORIZON, seed=SEEDS),
                bigtrain.evaluate_exactly(agent, env, horizon=HORIZON),
            )
            progress.advance(bar)
    return solved, results


def learn(
    console: Console, env: TabularCMDP, task: Task, demonstrations: Demonstrations, path: Path
) -> None:
    """All three phases by networks, to a file."""
    with bigtrain.runs.Progress(console) as progress:
        bigtrain.fit(
            env,
            demonstrations,
            reward_range=task.reward_range,
            exploration=price(task, K_LEARNED),
            callbacks=[progress],
        ).save(path)


@contextlib.contextmanager
def serving(console: Console, bundle: Path) -> Iterator[str]:
    """The address of a server, which ends when the block is left, in whatever way."""
    command = [sys.executable, "-m", "bigserve", str(bundle), "--listen", "127.0.0.1:0"]
    # One size of batches is quicker to compile than several. Nobody is waited for at the end.
    command += ["--batching.sizes", "1024", "--grace", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            log = ""
            with console.status("starting a server: a few seconds"):
                while (found := re.search(r"listening on (\S+)", log)) is None:
                    if not (line := server.stderr.readline()):
                        raise RuntimeError(f"The server must start, but it ended:\n{log}")
                    log += line
            yield found[1]
        finally:
            server.terminate()
            server.communicate()


def play(address: str) -> Served:
    """Plays tiger-treasure by the policy at an address, all episodes side by side."""
    rng = np.random.default_rng(0)
    tigers = rng.integers(2, size=EPISODES)
    states = np.full(EPISODES, S0)
    listens, gold, returns = np.zeros((3, EPISODES))
    with bigclient.connect(address) as client, client.episodes(EPISODES) as episodes:
        for _ in range(HORIZON):
            actions = episodes.act(np.eye(6, dtype=np.float32)[states])
            heard = T1 + np.where(rng.random(EPISODES) < 0.85, tigers, 1 - tigers)
            found = np.where(actions == tigers, TIGER, GOLD)
            after = np.where(actions == LISTEN, heard, found)
            states = np.where(states < TIGER, after, ST)
            listens += (states == T1) | (states == T2)
            gold += states == GOLD
            returns += REWARDS[states]
            if np.all(states == ST):
                break
    return estimate(gold), estimate(listens), estimate(returns)


def price(task: Task, k: float) -> CostOfExploration:
    """A step of listening is worth about `k` times the best reward."""
    around = Uniform(k - K_WIDTH, k + K_WIDTH)
    return CostOfExploration(task.exploration_states, k=around)


def results_table(results: Results) -> Table:
    """Played beside exact, a row for each agent."""
    table = Table(title=f"tiger-treasure, {len(SEEDS)} × {EPISODES:,} episodes", min_width=78)
    table.add_column("who", no_wrap=True)
    for column in ("finds gold", "exact", "listens", "exact", "return"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, (played, exact) in results.items():
        table.add_row(
            name,
            show(played.success, 3),
            show(exact.success, 4),
            show(played.exploring, 2),
            show(exact.exploring, 2),
            show(exact.total_return, 2),
        )
    return table


def comparison_table(env: TabularCMDP, exact: FitResult, bundle: Bundle, served: Served) -> Table:
    """The learned policy beside the exact one, both valued exactly, and as it was served."""
    table = Table(title=f"BIG, k around {K_LEARNED:g}, in three ways", min_width=78)
    table.add_column("way", no_wrap=True)
    for column in ("finds gold", "listens", "return", "regret"):
        table.add_column(column, justify="right", no_wrap=True)
    for way, policy in (("exact", exact.policy), ("learned", bundle.policy)):
        valued = bigtrain.evaluate_exactly(policy, env, horizon=HORIZON)
        regret = bigtrain.regret(policy, env, reward=exact.reward).normalised
        table.add_row(
            way,
            show(valued.success, 4),
            show(valued.exploring, 2),
            show(valued.total_return, 2),
            f"{regret:.4f}",
        )
    success, listens, total = served
    table.add_row("served", show(success, 3), show(listens, 2), show(total, 2))
    return table


def estimate(values: np.ndarray) -> Estimate:
    """The mean over episodes, and its standard error."""
    return Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))


def show(estimate: Estimate | None, digits: int) -> str:
    """An estimate as text, with its error where it has one."""
    if estimate is None:
        return "-"
    error = f" ± {estimate.stderr:.{digits}f}" if estimate.stderr else ""
    return f"{estimate.mean:.{digits}f}{error}"


if __name__ == "__main__":
    main()
