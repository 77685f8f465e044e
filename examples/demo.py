"""Why copying the expert fails, and what BIG does instead, on tiger-treasure.

An expert who knows where the tiger is opens the other door. The agent that learns from it does not
know, and must decide how long to listen first. Run it with `make demo`.
"""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import bigtrain
from bigtrain import CostOfExploration, Uniform, baselines, envs
from bigtrain.evaluate import Estimate, Evaluation
from bigtrain.policy import Policy, PrivilegedPolicy

EPISODES, HORIZON, SEEDS = 1_000, 100, [0, 1, 2, 3, 4]
KS = (-4.0, -1.0, 0.5, 0.9, 0.98)
K_WIDTH = 0.02

Agent = Policy | PrivilegedPolicy
Results = dict[str, tuple[Evaluation, Evaluation]]


def main() -> None:
    """Demonstrates, infers, solves, plays and prints."""
    console = Console()
    env = envs.make("tiger-treasure")
    task = env.task
    assert task is not None
    demonstrations = bigtrain.demonstrate(env, task.reward, episodes=100, horizon=50)
    console.print(
        f"\nAn expert who sees the tiger shows the task {len(demonstrations)} times. "
        "It never listens.\n"
    )
    agents: dict[str, Agent] = {
        "the expert": bigtrain.plan_expert(env, task.reward),
        "a copy of the expert": baselines.clone(env, demonstrations),
    }
    results: Results = {}
    with Progress(
        TextColumn("{task.description:<32}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        bar = progress.add_task("solving", total=2 * (1 + len(KS)) + len(agents))
        reward = None
        for k in (None, *KS):
            name = "inverse RL, no prior" if k is None else f"BIG, k around {k:g}"
            progress.update(bar, description=f"solving: {name}")
            prior = None
            if k is not None:
                around = Uniform(k - K_WIDTH, k + K_WIDTH)
                prior = CostOfExploration(task.exploration_states, k=around)
            solved = bigtrain.solve(
                env, demonstrations, reward_range=task.reward_range, exploration=prior
            )
            agents[name], reward = solved.policy, solved.reward.irl_table()[:, 0]
            progress.advance(bar)
        for name, agent in agents.items():
            progress.update(bar, description=f"playing: {name}")
            results[name] = (
                bigtrain.evaluate(agent, env, episodes=EPISODES, horizon=HORIZON, seed=SEEDS),
                bigtrain.evaluate_exactly(agent, env, horizon=HORIZON),
            )
            progress.advance(bar)
    assert reward is not None
    wants = "  ".join(f"{n} {r:.1f}" for n, r in zip(env.state_names, reward, strict=True))
    console.print(f"What it wants, inferred and stretched to {task.reward_range}:\n  {wants}\n")
    console.print(results_table(results))
    console.print(
        "\nNothing the expert does shows what listening is worth, so its copy and plain inverse "
        "RL gamble. BIG takes a prior over it, k times the best reward a step, and listens just "
        "as long as that pays: k near 1 makes a cautious agent, k far below 0 a rash one. Exact "
        "figures are computed, the others played, with their standard error over seeds.\n"
    )


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


def show(estimate: Estimate | None, digits: int) -> str:
    """An estimate as text, with its error where it has one."""
    if estimate is None:
        return "-"
    error = f" ± {estimate.stderr:.{digits}f}" if estimate.stderr else ""
    return f"{estimate.mean:.{digits}f}{error}"


if __name__ == "__main__":
    main()
