"""The experiments: how they are carried out, what they compute, and, slowly, what they show."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import optimize

from bigtrain import BayesRLConfig, envs, experiments, load_bundle
from bigtrain.cli import main
from bigtrain.errors import CheckpointError, ConfigError
from bigtrain.experiments import larger_mazes, learning, maps, neighbours, temperature
from bigtrain.experiments.experiment import Experiment, Workplace
from bigtrain.experiments.findings import Claim, Findings, Picture, Table, read
from bigtrain.experiments.statistics import estimate, span
from bigtrain.finite.exact import solve_bayes
from bigtrain.finite.expert import anywhere
from bigtrain.phases.learn import LearnedPolicy
from bigtrain.runs import Event

# ── how an experiment is carried out ─────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Counting:
    """Settings of an experiment that counts."""

    first: int = 1
    second: int = 2


def counting(calls: list[str], *, interrupted: bool = False) -> Experiment:
    def one(place: Workplace) -> int:
        calls.append("one")
        for callback in place.callbacks:
            callback(Event("counting", 1, {}, 1))
        return 1

    def two(place: Workplace) -> int:
        calls.append("two")
        place.directory.mkdir(parents=True, exist_ok=True)
        (place.directory / "checkpoints").mkdir(exist_ok=True)
        if interrupted:
            raise KeyboardInterrupt
        return 2

    def conclude(settings: Counting, found: Mapping[str, Any]) -> Findings:
        total = found["one"] + found["two"]
        figure = Figure()
        figure.subplots().plot([0, total])
        return Findings(
            "It counts.",
            [Claim("One and two are three.", f"{total}", total == 3)],
            [Table("Numbers", ("name", "value"), [("sum", np.float64(total)), ("none", None)])],
            [Picture("count", "A line.", figure)],
        )

    def settings(preset: str, seeds: int | None) -> Counting:
        return Counting(second=seeds or 2)

    return Experiment(
        "counting", "Counting", settings, lambda settings: {"one": one, "two": two}, conclude
    )


def test_what_was_found_is_written(tmp_path):
    heard: list[Event] = []
    found = experiments.carry_out(counting([]), tmp_path, callbacks=[heard.append])
    assert [claim.holds for claim in found.claims] == [True]
    written = read(tmp_path)
    assert written["experiment"] == "counting" and written["preset"] == "fast"
    assert written["claims"] == [
        {"statement": "One and two are three.", "shown": "3", "holds": True}
    ]
    assert written["tables"][0]["rows"] == [["sum", 3.0], ["none", None]]
    assert written["settings"] == {"first": "1", "second": "2"}
    for suffix in ("png", "svg"):
        assert (tmp_path / "figures" / f"count.{suffix}").stat().st_size > 1_000
    assert [(event.phase, event.step) for event in heard] == [
        ("counting", 0),
        ("counting, one: counting", 1),
        ("counting", 1),
        ("counting", 2),
    ]


def test_what_is_done_is_not_done_again(tmp_path):
    calls: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        experiments.carry_out(counting(calls, interrupted=True), tmp_path)
    assert calls == ["one", "two"]
    assert not (tmp_path / "findings.json").exists()
    experiments.carry_out(counting(calls), tmp_path)
    assert calls == ["one", "two", "two"], "the first piece was done before"
    experiments.carry_out(counting(calls), tmp_path)
    assert calls == ["one", "two", "two"]


def test_checkpoints_go_when_a_piece_is_done(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        experiments.carry_out(counting([], interrupted=True), tmp_path)
    assert (tmp_path / "work" / "two" / "checkpoints").is_dir()
    experiments.carry_out(counting([]), tmp_path)
    assert not (tmp_path / "work" / "two" / "checkpoints").exists()


def test_a_piece_that_is_done_lets_go_of_its_compiled_programs(tmp_path):
    """Those of all experiments together are more than a process may have."""
    traced = []

    @jax.jit
    def double(x):
        traced.append(x)
        return 2 * x

    def work(place: Workplace) -> float:
        return float(double(1.0))

    pieces = {"one": work, "two": work}
    experiment = replace(counting([]), pieces=lambda settings: pieces)
    experiments.carry_out(experiment, tmp_path)
    assert len(traced) == 2, "in each piece anew"


def test_it_goes_on_only_as_it_began(tmp_path):
    experiments.carry_out(counting([]), tmp_path, seeds=5)
    with pytest.raises(ConfigError, match="`of.second` was 5 and is 2"):
        experiments.carry_out(counting([]), tmp_path)


def test_damaged_results(tmp_path):
    experiments.carry_out(counting([]), tmp_path)
    path = tmp_path / "results" / "one.json"
    path.write_text("{")
    with pytest.raises(CheckpointError, match="one.json` must be JSON, but is damaged"):
        experiments.carry_out(counting([]), tmp_path)
    path.unlink()
    experiments.carry_out(counting([]), tmp_path)


@pytest.mark.parametrize("seeds", [0, -1])
def test_seeds_that_cannot_be(tmp_path, seeds):
    with pytest.raises(ConfigError, match=f"`seeds` must be at least 1, got {seeds}"):
        experiments.carry_out(counting([]), tmp_path, seeds=seeds)


def test_names():
    assert experiments.names()[:3] == ("exploration-prior", "context-inference", "maze")
    for name in experiments.names():
        assert experiments.get(name).name == name
    with pytest.raises(ConfigError, match="There is no experiment 'tiger'. There are: explor"):
        experiments.get("tiger")


@pytest.mark.parametrize("name", experiments.names())
@pytest.mark.parametrize("preset", ["smoke", "fast", "paper"])
def test_presets(name, preset):
    """Settings can be had, each seed count is taken, and there is something to do."""
    experiment = experiments.get(name)
    few = experiment.settings(preset, 3)
    assert few.num_seeds == 3
    assert few != experiment.settings(preset, 4)
    assert experiment.pieces(few)


def test_the_papers_tables():
    """As its appendix prints them."""
    tiger = experiments.get("exploration-prior").settings("paper", None)
    assert tiger.num_seeds == 10
    assert (tiger.inference.rollout.num_environments, tiger.inference.num_iterations) == (500, 5000)
    assert (tiger.policy.num_iterations, tiger.policy.learning_rate) == (20_000, 1e-4)
    maze = experiments.get("maze").settings("paper", None)
    assert maze.num_seeds == 8
    assert (maze.inference.num_iterations, maze.inference.reward_learning_rate) == (20_000, 3e-3)
    assert (maze.policy.num_iterations, maze.policy.model.core) == (100_000, "gru")


def test_misused_commands(capsys, tmp_path):
    assert main(["reproduce", "tiger", "--out", str(tmp_path)]) == 2
    assert "There is no experiment 'tiger'" in capsys.readouterr().err
    assert main(["reproduce", "temperature", "--seeds", "0", "--out", str(tmp_path)]) == 2
    assert "`--seeds` must be at least 1, got 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ── what they compute ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("alpha", [1e-4, 1e-2, 1.0, 1e2, 1e6])
def test_separation_is_at_the_maximum(alpha):
    """The formula comes from a derivative; here the posterior itself is climbed."""
    count, variance, gamma = 20, 1.0, 0.99
    found = temperature.separation(alpha, num_experts=count, prior_variance=variance, gamma=gamma)

    def loss(log_d):
        d = np.exp(log_d)
        surprise = np.logaddexp(0, -gamma / (1 - gamma) * d / alpha)
        return count * surprise + d**2 / (4 * alpha * variance)

    best = optimize.minimize_scalar(
        loss, bounds=np.log([found / 10, found * 10]), method="bounded", options={"xatol": 1e-9}
    )
    assert np.exp(best.x) == pytest.approx(found, rel=1e-4), "a minimum is only known to a root"


def test_separation_has_its_limits():
    settings = temperature.Settings()
    options = {"num_experts": 20, "prior_variance": 1.0, "gamma": 0.99}
    assert temperature.limit(settings) == pytest.approx(20 * 99)
    assert temperature.separation(1e9, **options) == pytest.approx(20 * 99, rel=1e-3)
    assert temperature.separation(1e-9, **options) < 1e-9


@pytest.mark.parametrize("k, width", [(-10.0, 0.0), (0.0, 0.1), (0.98, 0.04), (1.0, 0.0)])
def test_priors_have_the_mean_and_stay_in_range(k, width):
    exploration = learning.price(envs.make("tiger-treasure"), k)
    assert exploration is not None
    low, high = exploration.k.support
    assert float(exploration.k.mean) == pytest.approx(k)
    assert float(high - low) == pytest.approx(width)
    exploration.check_support((-100.0, 10.0))


def test_no_prior():
    assert learning.price(envs.make("tiger-treasure"), None) is None
    assert learning.label(None) == "no prior"
    assert learning.label(-0.05) == "k=-0.05"


def test_members_learn_as_many_at_a_time_as_there_is_room_for(tmp_path, monkeypatch):
    """Four members, three at a time: all are learned for, and none for another's reward."""
    problem = envs.make("detour")
    config = BayesRLConfig()
    calls = []

    def learn_policies(problem, rewards, *, seeds, **_):
        calls.append(len(seeds))
        return [
            fake(seed, float(reward[0, 0])) for seed, reward in zip(seeds, rewards, strict=True)
        ]

    def fake(*identity):
        learned = object.__new__(LearnedPolicy)
        object.__setattr__(learned, "history", identity)
        return learned

    monkeypatch.setattr(learning, "learn_policies", learn_policies)
    moments = config.rollout.replay_size * (config.rollout.horizon + 1)
    monkeypatch.setattr(learning, "_MOST_BYTES", 3 * moments * 4 * 7)
    table = np.ones((problem.num_states, problem.num_actions))
    rewards = {"a": [table, 2 * table], "b": [3 * table, 4 * table]}
    place = Workplace(tmp_path, tmp_path)
    found = learning.learn(place, problem, rewards, config, [7, 8])
    identities = {name: [one.history for one in own] for name, own in found.items()}
    assert identities == {"a": [(7, 1.0), (8, 2.0)], "b": [(7, 3.0), (8, 4.0)]}
    assert calls == [3, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy-0", "policy-1"]


def test_maps_of_any_width():
    assert larger_mazes.draw_map(3) == ("#####", "#...#", "L.S.R", "#.x.#", "#####")
    maze = envs.make("tiger-maze", map=larger_mazes.draw_map(7))
    assert maze.num_states == 3 * 49 + 2
    assert anywhere(maze).sum() == 49
    assert maps.cells(maze).tolist()[0] == [1, 1]
    # Three steps to the door from S, one behind it, and a step more from x: ten rounds and a bit.
    assert larger_mazes.horizon(3) == 40


def test_length_of_lighthouse_episodes():
    """30 steps to a known corner, at 0.01 each, and 1 for the goal; or 1,000 in vain."""
    assert neighbours.length({"success": 1.0, "return": 1 - 0.30}) == pytest.approx(30)
    assert neighbours.length({"success": 0.0, "return": -10.0}) == pytest.approx(1_000)


def test_estimates():
    assert estimate([1.0]) == (1.0, 0.0)
    assert estimate([0.0, 2.0]) == (1.0, pytest.approx(1.0))
    assert estimate([0.3, 0.1 + 0.2]).stderr == 0.0, "rounding is no error"
    assert span([{"x": 1.0}, {"x": 3.0}], "x") == "1 to 3"


def test_an_episode_as_numbers():
    """The best policy for the true reward listens once, and then fetches gold for ever."""
    maze = envs.make("tiger-maze")
    policy = solve_bayes(maze, np.asarray(learning.task_of(maze).reward)).policy
    played = maps.play(policy, maze, horizon=9, seed=3)
    names = [maze.state_names[state] for state in played["states"]]
    heard = maze.context_names[played["context"]]
    assert names[:4] == ["(2,2)", f"(2,2) {heard}", names[2], "Gold"]
    assert names[7] == "Gold", "every four steps from then on"
    assert played["beliefs"][0] == [0.5, 0.5]
    assert played["beliefs"][1][played["context"]] == pytest.approx(1)


# ── all of them, in a minute ─────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    """All experiments, as small as they get, by the command.

    Nearly all of it is compiling, which takes less if little is optimised; and two cores help.
    """
    folder = tmp_path_factory.mktemp("smoke")
    script = "import sys; from bigtrain.cli import main; sys.exit(main())"
    options = ["--preset", "smoke", "--out", str(folder)]
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, "reproduce", *some, *options],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for some in (experiments.names()[:3], experiments.names()[3:])
    ]
    complaints = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], complaints
    return folder


@pytest.mark.parametrize("name", experiments.names())
def test_smoke(smoke, name):
    """Everything is there, and what is claimed holds even so."""
    found = read(smoke / name)
    assert found["preset"] == "smoke" and found["claims"] and found["tables"]
    assert [claim for claim in found["claims"] if not claim["holds"]] == []
    for figure in found["figures"]:
        for suffix in ("png", "svg"):
            assert (smoke / name / "figures" / f"{figure['name']}.{suffix}").exists()
    json.dumps(found, allow_nan=False)


def test_smoke_is_reported(smoke):
    assert main(["report", str(smoke)]) == 0
    page = (smoke / "report.html").read_text()
    for name in experiments.names():
        assert experiments.get(name).title in page


def test_smoke_leaves_bundles_that_load(smoke):
    bundles = sorted(smoke.rglob("*.big"))
    assert len(bundles) >= 4
    for path in bundles:
        assert load_bundle(path).measured is not None


# ── what they show ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("name", experiments.names())
def test_every_claim(name, tmp_path):
    """Section 5, the appendix and what is beyond them, claim by claim, by the fast preset.

    What `bigtrain reproduce --out $BIG_RESULTS` has finished is not computed again.
    """
    folder = Path(os.environ.get("BIG_RESULTS") or tmp_path) / name
    found = experiments.carry_out(experiments.get(name), folder)
    for claim in found.claims:
        assert claim.holds, f"{claim.statement} {claim.shown}"
