"""Long work: what is measured and saved comes back to the last bit, whenever it is killed."""

import asyncio
import io
import json
import math
import shutil
import struct
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from rich.console import Console

import bigtrain
from bigtrain import runs
from bigtrain.errors import CheckpointError, ConfigError
from bigtrain.runs import (
    Callback,
    Checkpoints,
    Event,
    JsonLines,
    Progress,
    Run,
    TensorBoard,
    metric_values,
    read_metrics,
)

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn),
]


def assert_same_bits(found: Any, want: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        assert type(one) is type(other)
        assert one.dtype == other.dtype and one.shape == other.shape
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def blank(leaf: Any) -> Any:
    """An array of the same kind with other contents, to restore into."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jnp.zeros_like(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        with jax.enable_x64(True):
            return leaf.at[...].set(leaf.dtype.type(0))  # keeps a weak type
    return np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else type(leaf)(0)


# Events


def test_events_are_the_same_everywhere():
    assert bigtrain.Event is runs.Event is Event
    assert runs.Callback is Callback
    assert Event("reward", 1, {}).total is None


def test_a_metric_is_a_number_or_one_for_each_seed():
    assert metric_values("loss", 1).shape == ()
    np.testing.assert_array_equal(metric_values("loss", jnp.array([1.5, 2.0])), [1.5, 2.0])
    with pytest.raises(ConfigError, match=r"`loss` must be .* got the shape \(2, 1\)\."):
        metric_values("loss", np.zeros((2, 1)))


# Metrics


def test_json_lines_are_what_was_measured(tmp_path):
    lines = JsonLines(tmp_path / "m.jsonl")
    lines(Event("reward", 10, {"loss": 0.1, "gap": float("nan")}, total=20))
    lines(Event("policy", 2, {"loss": np.array([1.5, np.inf, -np.inf], np.float32)}))
    written = (tmp_path / "m.jsonl").read_text()  # while the file is still open
    assert written == (
        '{"phase": "reward", "step": 10, "loss": 0.1, "gap": null}\n'
        '{"phase": "policy", "step": 2, "loss": [1.5, null, null]}\n'
    )
    lines.close()
    first, second = read_metrics(tmp_path / "m.jsonl")
    assert first[:2] == ("reward", 10) and first.metrics["loss"] == 0.1
    assert isinstance(first.metrics["gap"], float) and math.isnan(first.metrics["gap"])
    np.testing.assert_array_equal(second.metrics["loss"], [1.5, np.nan, np.nan])


def test_json_lines_keep_every_bit_of_a_number(tmp_path):
    values = np.random.default_rng(0).normal(size=100) * 10.0 ** np.arange(-50, 50)
    lines = JsonLines(tmp_path / "m.jsonl")
    lines(Event("p", 0, {"x": values, "y": np.float32(0.1)}))
    lines.close()
    (event,) = read_metrics(tmp_path / "m.jsonl")
    np.testing.assert_array_equal(event.metrics["x"], values)
    assert event.metrics["y"] == np.float64(np.float32(0.1))


@pytest.mark.parametrize("name", ["phase", "step"])
def test_a_metric_must_not_hide_the_event(tmp_path, name):
    lines = JsonLines(tmp_path / "m.jsonl")
    with pytest.raises(ConfigError, match=f"must not be called `{name}`"):
        lines(Event("p", 0, {name: 1.0}))
    assert read_metrics(tmp_path / "m.jsonl") == []
    lines.close()


@pytest.mark.parametrize("torn", [b"", b"{", b'{"phase": "p", "step": 3, "x": 1.0}'])
def test_json_lines_rewind_and_go_on(tmp_path, torn):
    path = tmp_path / "m.jsonl"
    events = [Event("p", i, {"x": float(i)}) for i in range(4)]
    lines = JsonLines(path)
    for event in events[:3]:
        lines(event)
    lines.close()
    with open(path, "ab") as file:
        file.write(torn)
    assert read_metrics(path) == events[:3]
    lines = JsonLines(path)
    assert lines.num_events == 3
    lines.rewind(2)
    assert read_metrics(path) == events[:2]
    for event in events[2:]:
        lines(event)
    assert lines.num_events == 4
    lines.close()
    assert read_metrics(path) == events


def test_lost_metrics_are_told_of(tmp_path):
    lines = JsonLines(tmp_path / "m.jsonl")
    lines(Event("p", 0, {}))
    with pytest.warns(UserWarning, match="should hold the 3 events .* has 1"):
        lines.rewind(3)
    lines.close()


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"step": 1}', '{"phase": "p", "step": {}}'])
def test_a_damaged_line_is_named(tmp_path, line):
    (tmp_path / "m.jsonl").write_text(f'{{"phase": "p", "step": 0}}\n{line}\n')
    with pytest.raises(CheckpointError, match="line 2"):
        read_metrics(tmp_path / "m.jsonl")


def read_scalars(folder: Path) -> dict[tuple[str, int], float]:
    """The scalars in TensorBoard's files: of each record length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event as Record  # pyright: ignore

    scalars = {}
    for file in folder.iterdir():
        content = io.BytesIO(file.read_bytes())
        while head := content.read(12):
            (length,) = struct.unpack("<Q", head[:8])
            record = Record.FromString(content.read(length))
            content.read(4)
            for value in record.summary.value:
                assert (value.tag, record.step) not in scalars
                scalars[value.tag, record.step] = value.simple_value
    return scalars


def test_tensorboard_has_a_tag_for_each_metric_and_seed(tmp_path, capfd):
    board = TensorBoard(tmp_path)
    board(Event("reward", 10, {"loss": 0.5, "gap": jnp.array([1.0, jnp.nan, 3.0])}))
    board(Event("reward", 20, {"loss": 0.25, "right/θ = left": 1.0}))
    board.close()
    assert read_scalars(tmp_path) == {
        ("reward/loss", 10): 0.5,
        ("reward/gap/seed-0", 10): 1.0,
        ("reward/gap/seed-2", 10): 3.0,
        ("reward/loss", 20): 0.25,
        ("reward/right/θ___left", 20): 1.0,
    }
    assert capfd.readouterr() == ("", "")


def test_without_tensorboardx_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"`pip install big-imitation\[tensorboard\]`"):
        TensorBoard(tmp_path)


# Checkpoints


def round_trip(folder: Path, state: Any) -> Any:
    checkpoints = Checkpoints(folder)
    checkpoints.save(3, state)
    checkpoints.close()
    restored = Checkpoints(folder)
    found = restored.latest(jax.tree.map(blank, state))
    restored.close()
    assert found is not None and found[0] == 3
    return found[1]


def test_every_dtype_comes_back_bit_for_bit(tmp_path):
    """Random bits: among them NaNs with payloads, infinities, subnormals, negative zeros."""
    rng = np.random.default_rng(0)
    state = {}
    for dtype in map(np.dtype, DTYPES):
        bits = rng.integers(0, 256, 6 * dtype.itemsize, np.uint8)
        flat = bits % 2 == 1 if dtype == np.bool_ else bits.view(dtype)
        state[str(dtype)] = [flat.reshape(2, 3), flat[:1].reshape(()), np.empty((0, 3), dtype)]
        state[str(dtype)].append(flat.reshape(2, 3).T)  # not contiguous
    state["signed zeros"] = np.array([0.0, -0.0, -0.0])
    state["all negative zeros"] = np.full((3, 2), -0.0, np.float32)
    state["a scalar"] = np.float32(1.5)
    assert_same_bits(round_trip(tmp_path / "numpy", state), state)
    with jax.enable_x64(True):
        state = jax.tree.map(jnp.asarray, state)
    assert state["float64"][0].dtype == np.float64
    assert_same_bits(round_trip(tmp_path / "jax", state), state)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_keys_come_back_as_keys(tmp_path, implementation):
    key = jax.random.key(7, impl=implementation)
    state = {"one": key, "seeds": jax.random.split(key, 3), "none": jax.random.split(key, 0)}
    found = round_trip(tmp_path, state)
    assert_same_bits(found, state)
    np.testing.assert_array_equal(jax.random.normal(found["one"]), jax.random.normal(key))


class Learner(eqx.Module):
    weights: jax.Array
    activation: Any = eqx.field(static=True)
    extra: Any = None
    name: str = "old"


def test_what_is_no_array_comes_from_the_new_state(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, (Learner(jnp.arange(3.0), jax.nn.relu), None, 4))
    like = (Learner(jnp.zeros(3), jax.nn.relu, name="new"), None, 5)
    found = checkpoints.latest(like)
    checkpoints.close()
    assert found is not None
    _, (learner, nothing, number) = found
    np.testing.assert_array_equal(learner.weights, [0.0, 1.0, 2.0])
    assert (learner.name, learner.activation, nothing, number) == ("new", jax.nn.relu, None, 5)


@pytest.mark.parametrize("state", [{}, {"empty": np.zeros((2, 0))}])
def test_a_state_without_numbers_is_a_state(tmp_path, state):
    assert_same_bits(round_trip(tmp_path, state), state)


def test_nothing_compiles_again_for_a_restored_state(tmp_path):
    traces = 0

    @jax.jit
    def advance(state):
        nonlocal traces
        traces += 1
        return jax.tree.map(lambda x: x + 1, state)

    like = {"strong": jnp.ones(3), "weak": jnp.asarray(1.0), "count": jnp.asarray(0)}
    assert like["weak"].weak_type and not like["strong"].weak_type
    state = advance(like)
    restored = round_trip(tmp_path, state)
    assert_same_bits(advance(restored), advance(state))
    assert traces == 1
    assert advance._cache_size() == 1  # pyright: ignore


def test_the_last_ones_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 5, 9):
        checkpoints.save(step, {"x": np.full(3, step)}, {"about": step})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["5", "9"]
    assert checkpoints.notes() == {"about": 9}
    for step in (-1, 5, 9):
        with pytest.raises(CheckpointError, match=f"above .* 9, got {step}"):
            checkpoints.save(step, {"x": np.zeros(3)})
    found = checkpoints.latest({"x": np.zeros(3, int)})
    assert found is not None and found[0] == 9
    checkpoints.close()
    with pytest.raises(ConfigError, match="`keep` must be at least 1, got 0"):
        Checkpoints(tmp_path, keep=0)


def test_where_there_is_no_checkpoint_there_is_none(tmp_path):
    checkpoints = Checkpoints(tmp_path / "nowhere")
    assert checkpoints.latest({"x": np.zeros(3)}) is None
    assert checkpoints.notes() == {}
    assert not (tmp_path / "nowhere").exists()


def test_arrays_overwritten_after_a_save_do_no_harm(tmp_path):
    give = jax.jit(lambda x: x * 2, donate_argnums=0)
    state = {"numpy": np.arange(1e5), "jax": jnp.arange(1e5)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, state)
    state["numpy"][:] = -1
    give(state["jax"])
    found = checkpoints.latest({"numpy": np.zeros(100_000), "jax": jnp.zeros(100_000)})
    checkpoints.close()
    assert found is not None
    np.testing.assert_array_equal(found[1]["numpy"], np.arange(1e5))
    np.testing.assert_array_equal(found[1]["jax"], np.arange(1e5))


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"x": np.zeros((2, 3), np.float32)}, r"array 1 is `\['y'\]`, int32\[\], .* absent here"),
        (
            {"x": np.zeros((3, 2), np.float32), "y": np.int32(0)},
            r"array 0 is `\['x'\]`, float32\[2, 3\], there and `\['x'\]`, float32\[3, 2\], here",
        ),
        ({"x": np.zeros((2, 3)), "y": np.int32(0)}, r"array 0 .* float64\[2, 3\], here"),
        ({"x": np.zeros((2, 3), np.float32), "y": np.int32(0), "z": np.int32(0)}, "absent there"),
        ({"x": np.zeros((2, 3), np.float32), "y": jax.random.key(0)}, r"key<fry>\[\], here"),
    ],
)
def test_another_state_is_refused(tmp_path, like, message):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, {"x": np.ones((2, 3), np.float32), "y": np.int32(4)})
    with pytest.raises(CheckpointError, match=message):
        checkpoints.latest(like)
    checkpoints.close()


def test_keys_of_another_algorithm_are_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, jax.random.key(0, impl="rbg"))
    with pytest.raises(CheckpointError, match="key<rbg>.* there and .*key<urbg>.* here"):
        checkpoints.latest(jax.random.key(0, impl="unsafe_rbg"))
    checkpoints.close()


def test_half_written_checkpoints_are_passed_over(tmp_path):
    """A kill leaves a temporary folder, or takes away parts of one that was to be deleted."""
    state = {"x": np.arange(4)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state)
    checkpoints.save(2, {"x": np.arange(4) + 1})
    checkpoints.close()
    torn = tmp_path / "4.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "2", torn)
    (torn / "commit_success.txt").unlink(missing_ok=True)
    shutil.rmtree(torn / "arrays" / "d")
    shutil.rmtree(tmp_path / "1" / "arrays")
    (tmp_path / "1" / "_CHECKPOINT_METADATA").unlink()
    checkpoints = Checkpoints(tmp_path)
    found = checkpoints.latest(state)
    assert found is not None and found[0] == 2
    np.testing.assert_array_equal(found[1]["x"], [1, 2, 3, 4])
    checkpoints.save(3, state)
    found = checkpoints.latest(state)
    assert found is not None and found[0] == 3
    checkpoints.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "3"]


@pytest.mark.parametrize("part", ["arrays", "about/metadata"])
def test_a_damaged_checkpoint_is_named(tmp_path, part):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {"x": np.full(4, step)})
    damaged = tmp_path / "2" / part
    for file in [damaged] if damaged.is_file() else damaged.rglob("*"):
        if file.is_file():
            file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(CheckpointError, match=r"/2` must be whole.* Delete that folder"):
        checkpoints.latest({"x": np.zeros(4, int)})
    checkpoints.close()
    shutil.rmtree(tmp_path / "2")
    checkpoints = Checkpoints(tmp_path)
    found = checkpoints.latest({"x": np.zeros(4, int)})
    checkpoints.close()
    assert found is not None and found[0] == 1


def test_flipped_bits_in_arrays_are_noticed(tmp_path):
    """Below us nothing notices: packed numbers have no checksum."""
    state = {"x": np.random.default_rng(0).normal(size=(40, 30))}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state)
    checkpoints.close()
    flipped = 0
    for file in (path for path in (tmp_path / "1" / "arrays").rglob("*") if path.is_file()):
        data = bytearray(file.read_bytes())
        if len(data) > state["x"].nbytes // 2:
            for place in (len(data) // 3, len(data) // 2, 2 * len(data) // 3):
                data[place] ^= 4
                flipped += 1
            file.write_bytes(data)
    assert flipped == 3
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match=r"/1` must be whole, but .*Delete that folder"):
        checkpoints.latest(state)
    checkpoints.close()


def rewrite_notes(folder: Path, change: Any) -> None:
    """Changes what is noted in the checkpoint of step 1."""
    file = folder / "1" / "about" / "metadata"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


@pytest.mark.parametrize(
    "change",
    [
        lambda about: [about],
        lambda about: 3,
        lambda about: None,
        lambda about: {**about, "leaves": 3},
        lambda about: {**about, "leaves": [[]]},
        lambda about: {"leaves": None, "notes": {}},
        lambda about: {"leaves": about["leaves"], "notes": []},
        lambda about: {**about, "notes": {"step": 4}},
        lambda about: {**about, "arrays": about["digest"]},
        lambda about: {key: value for key, value in about.items() if key != "digest"},
    ],
)
def test_notes_that_are_something_else_are_named(tmp_path, change):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": np.arange(4)}, {"step": 3})
    rewrite_notes(tmp_path, change)
    for ask in (lambda: checkpoints.latest({"x": np.arange(4)}), checkpoints.notes):
        with pytest.raises(CheckpointError, match=r"/1` must be whole, but what is noted in it is"):
            ask()
    checkpoints.close()


def test_a_checkpoint_from_before_there_were_digests_is_gone_on_from(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": np.arange(4)}, {"step": 3})
    rewrite_notes(tmp_path, lambda about: {key: about[key] for key in ("leaves", "notes")})
    found = checkpoints.latest({"x": np.zeros(4, int)})
    assert found is not None and found[1]["x"].tolist() == [0, 1, 2, 3]
    assert checkpoints.notes() == {"step": 3}
    checkpoints.close()


def test_a_full_disk_is_said_in_a_sentence_and_what_was_there_stays(tmp_path):
    resource = pytest.importorskip("resource")  # no file may grow beyond so many bytes
    state = {"x": np.random.default_rng(0).normal(size=100_000)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(
            CheckpointError, match="step 2 cannot be written to `.*make room"
        ) as told:
            checkpoints.save(2, state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(told.value).isprintable() and len(str(told.value)) < 400 + len(str(tmp_path))
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path)
    found = checkpoints.latest(state)
    assert found is not None and found[0] == 1
    checkpoints.save(3, state)
    assert checkpoints.latest_step() == 3
    checkpoints.close()


def test_checkpoints_are_quiet_and_loaded_late(tmp_path):
    """Even where a user wants to read every log line, and every warning is an error."""
    script = """
        import logging, sys
        import numpy as np
        from bigtrain.runs import Checkpoints
        assert "orbax" not in str(list(sys.modules)), "imported before it is needed"
        import absl.logging
        absl.logging.set_verbosity(absl.logging.DEBUG)
        checkpoints = Checkpoints(sys.argv[1])
        checkpoints.save(0, {"x": np.ones(3)})
        checkpoints.latest({"x": np.ones(3)})
        checkpoints.close()
        absl.logging.info("others are heard")
    """
    command = [sys.executable, "-W", "error:::bigtrain", "-W", "error:::orbax"]
    done = subprocess.run(
        [*command, "-c", textwrap.dedent(script), tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert [line.endswith("others are heard") for line in done.stderr.splitlines()] == [True]


def test_checkpoints_work_inside_a_running_event_loop(tmp_path):
    """As in a notebook."""

    async def save_and_restore():
        return round_trip(tmp_path, {"x": np.arange(3)})

    np.testing.assert_array_equal(asyncio.run(save_and_restore())["x"], [0, 1, 2])


# Runs


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    layers: tuple[int, ...] = (8, 8)


@dataclass(frozen=True)
class Settings:
    num_steps: int = 10
    inner: Inner = field(default_factory=Inner)
    limit: float = math.nan


@jax.jit
def advance(state):
    """Two seeds at once: a walk with keys, so that a wrong key shows."""

    def one(state):
        key_next, key_step = jax.random.split(state["key"])
        return {"key": key_next, "x": state["x"] * 0.9 + jax.random.normal(key_step)}

    return jax.vmap(one)(state)


def begin() -> dict[str, jax.Array]:
    return {"key": jax.random.split(jax.random.key(0), 2), "x": jnp.zeros(2)}


def walk(run: Run, until: int, *, phase: str = "walk", force: bool = True) -> Any:
    """Each step an event; a checkpoint each third step; the last steps after it are lost."""
    done, state = run.resume(begin(), phase=phase) or (0, begin())
    for step in range(done + 1, until + 1):
        state = advance(state)
        run.record(Event(phase, step, {"x": state["x"], "mean": float(state["x"].mean())}))
        if step % 3 == 0:
            run.checkpoint(step, state, force, phase=phase)
    return state


def test_a_resumed_run_is_like_one_that_never_stopped(tmp_path):
    with Run(tmp_path / "a", Settings(), fingerprint="f", tensorboard=True) as run:
        want = walk(run, 12)
    with Run(tmp_path / "b", Settings(), fingerprint="f", tensorboard=True) as run:
        walk(run, 2)  # no checkpoint yet
    (tmp_path / "b" / "checkpoints").mkdir()
    (tmp_path / "b" / "checkpoints" / ".stray").touch()
    with Run(tmp_path / "b", Settings(), fingerprint="f", tensorboard=True) as run:
        walk(run, 8)
    (scalars,) = (tmp_path / "b" / "tensorboard").iterdir()
    scalars.rename(scalars.with_name("events.out.tfevents.1"))  # as if it were of another second
    assert len(read_metrics(tmp_path / "b" / "metrics.jsonl")) == 8
    with Run(tmp_path / "b", Settings(), fingerprint="f", tensorboard=True) as run:
        assert [event.step for event in run.events()] == [1, 2, 3, 4, 5, 6], "to the checkpoint"
        found = walk(run, 12)
    assert_same_bits(found, want)
    for name in ("metrics.jsonl", "settings.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    scalars = read_scalars(tmp_path / "b" / "tensorboard")
    assert scalars == read_scalars(tmp_path / "a" / "tensorboard")
    assert len(scalars) == 3 * 12


def test_phases_resume_one_by_one(tmp_path):
    folders = [tmp_path / "straight", tmp_path / "stopped"]
    for folder, stops in zip(folders, [[6], [1, 5, 6]], strict=True):
        for until in stops:
            with Run(folder, Settings(), fingerprint="") as run:
                walk(run, 6, phase="first")
                walk(run, until, phase="second")
    straight, stopped = [(folder / "metrics.jsonl").read_bytes() for folder in folders]
    assert stopped == straight
    assert len(straight.splitlines()) == 12


def test_checkpoints_are_as_rare_as_asked(tmp_path):
    with Run(tmp_path, Settings(), fingerprint="", checkpoint_seconds=3_600.0) as run:
        walk(run, 9, force=False)
        assert not (tmp_path / "checkpoints").exists()
        assert run.checkpoint(9, begin(), force=True)
        assert run.checkpoint(9, begin(), force=True), "it is saved already"
        assert not run.checkpoint(10, begin())
    with Run(tmp_path, Settings(), fingerprint="", checkpoint_seconds=0.0) as run:
        assert run.checkpoint(10, begin())
        found = run.resume(begin())
        assert found is not None and found[0] == 10


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Run(None, Settings(), fingerprint="", tensorboard=True) as run:
        state = walk(run, 5)
        assert not run.checkpoint(5, state, force=True)
        assert run.resume(begin()) is None
        assert run.events() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "fingerprint", "message"),
    [
        (Settings(num_steps=11), {"demos": "ab"}, "`num_steps` was 10 and is 11."),
        (Settings(inner=Inner(0.2)), {"demos": "ab"}, "`inner.rate` was 0.1 and is 0.2."),
        (
            Settings(inner=Inner(layers=(8,))),
            {"demos": "ab"},
            r"`inner.layers` was \[8, 8\] and is \[8\].",
        ),
        (Settings(), {"demos": "cd"}, '`fingerprint.demos` was "ab" and is "cd".'),
        (Inner(), {"demos": "ab"}, "`rate` was absent and is 0.1."),
        ({"num_steps": 10, "limit": math.nan}, {"demos": "ab"}, "`inner.rate` was 0.1 and is abs"),
    ],
)
def test_a_run_goes_on_only_as_it_began(tmp_path, settings, fingerprint, message):
    with Run(tmp_path, Settings(), fingerprint={"demos": "ab"}) as run:
        walk(run, 3)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=f"{message}.*Choose another directory"):
        Run(tmp_path, settings, fingerprint=fingerprint)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    with Run(tmp_path, Settings(), fingerprint={"demos": "ab"}) as run:
        assert run.resume(begin(), phase="walk") is not None


def test_settings_can_be_read_by_others(tmp_path):
    settings = {"seed": np.int64(3), "inner": Inner()}
    Run(tmp_path, settings, fingerprint={"demos": "ab"}).close()
    assert json.loads((tmp_path / "settings.json").read_text()) == {
        "settings": {"seed": 3, "inner": {"rate": 0.1, "layers": [8, 8]}},
        "fingerprint": {"demos": "ab"},
    }


def test_settings_that_are_none_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="Settings must be dataclasses .* got <function"):
        Run(tmp_path, {"rate": lambda step: 0.1}, fingerprint="")
    (tmp_path / "settings.json").write_text('{"settings": {')
    with pytest.raises(CheckpointError, match="must be JSON, but is damaged"):
        Run(tmp_path, Settings(), fingerprint="")


def test_what_others_left_is_not_touched(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("mine\n")
    with pytest.raises(ConfigError, match="it has metrics.jsonl without settings.json"):
        Run(tmp_path, Settings(), fingerprint="")
    assert (tmp_path / "metrics.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize("phase", ["", "..", "a/b", "/a"])
def test_a_phase_has_a_plain_name(tmp_path, phase):
    with Run(tmp_path, Settings(), fingerprint="") as run:
        with pytest.raises(ConfigError, match="`phase` must do as the name of a folder"):
            run.checkpoint(0, begin(), force=True, phase=phase)


def test_only_one_may_work_in_a_directory(tmp_path):
    with Run(tmp_path, Settings(), fingerprint=""):
        with pytest.raises(ConfigError, match="Only one process at a time .* another one does"):
            Run(tmp_path, Settings(), fingerprint="")
    with pytest.raises(ConfigError, match="`num_steps`") as refused:
        Run(tmp_path, Settings(num_steps=1), fingerprint="")
    Run(tmp_path, Settings(), fingerprint="").close()  # a refused one holds nothing
    assert refused.traceback, "which keeps the refused one alive"


# A process that only imports, and forks workers which it kills: many kills in a few seconds.
KILLED = """
    import os, random, signal, sys, time
    import numpy as np
    import orbax.checkpoint
    from bigtrain.runs import Event, Run

    def work(directory):
        with Run(directory, {}, fingerprint="", checkpoint_seconds=0.0) as run:
            like = {"x": np.linspace(0, 1, 50), "pad": np.zeros(20_000)}
            step, state = run.resume(like) or (0, like)
            for step in range(step + 1, 41):
                state = {"x": np.sin(3 * state["x"] + step), "pad": state["pad"] + step}
                for part in "ab":
                    run.record(Event(part, step, {"x": state["x"][:5]}))
                if step % 2 == 0:
                    run.checkpoint(step, state)
            np.save(f"{directory}/final.npy", np.concatenate([state["x"], state["pad"]]))

    def fork(directory):
        child = os.fork()
        if child == 0:
            try:
                work(directory)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        return child

    def size():
        return os.path.getsize(metrics) if os.path.exists(metrics) else 0

    random.seed(0)
    straight, killed = sys.argv[1:]
    metrics = f"{killed}/metrics.jsonl"
    assert os.waitpid(fork(straight), 0)[1] == 0
    ended, kills = 0, 0
    while not ended:  # kills soon after the start, or when so many bytes more are written
        enough = size() + random.choice([0, 500, 1_000, 2_000])
        child = fork(killed)
        while not ended and size() < enough:
            time.sleep(0.001)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            time.sleep(random.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            kills += 1
    assert status == 0
    print(kills)
"""


def test_killed_at_any_moment_it_ends_the_same(tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), straight, killed],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert int(done.stdout) >= 3, "kills"
    for name in ("final.npy", "metrics.jsonl", "settings.json"):
        assert (straight / name).read_bytes() == (killed / name).read_bytes(), name
    assert len((straight / "metrics.jsonl").read_text().splitlines()) == 80


# Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_now_and_then():
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, width=60, get_time=clock)
    with Progress(console, every_seconds=5.0) as progress:
        for step in range(1, 21):  # a second each
            clock.now += 1
            metrics = {"loss": np.array([1.0, 2.0]) / step, "gap": 1.0, "c": 2.0, "d": 3.0}
            progress(Event("reward", 100 * step, metrics, total=2_000))
        for step in range(1, 5):
            clock.now += 60
            progress(Event("policy", step, {}, total=6))
        for step in range(1, 4):
            clock.now += 1
            progress(Event("check", step, {}))
    assert out.getvalue().splitlines() == [
        "reward  100/2,000  loss 1.5  gap 1  c 2  0:00:01 taken",
        "reward  600/2,000  loss 0.25  gap 1  c 2  0:00:06 taken, 0:00:14 left",
        "reward  1,100/2,000  loss 0.1364  gap 1  c 2  0:00:11 taken, 0:00:09 left",
        "reward  1,600/2,000  loss 0.09375  gap 1  c 2  0:00:16 taken, 0:00:04 left",
        "reward  2,000/2,000  loss 0.075  gap 1  c 2  0:00:20 taken",
        "policy  1/6  0:01:00 taken",
        "policy  2/6  0:02:00 taken",
        "policy  3/6  0:03:00 taken, 0:03:00 left",
        "policy  4/6  0:04:00 taken, 0:02:00 left",
        "check  1  0:00:01 taken",
        "check  3  0:00:03 taken",
    ]


def test_progress_shows_the_metrics_asked_for():
    out = io.StringIO()
    with Progress(Console(file=out), metrics=["gap", "loss", "other"]) as progress:
        progress(Event("[b]", 1, {"loss": 1.0, "gap": math.nan}))
    assert out.getvalue() == "[b]  1  gap nan  loss 1  0:00:00 taken\n"


def test_a_terminal_gets_bars():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, force_interactive=True)
    with Progress(console) as progress:
        progress(Event("reward", 50, {"loss": 0.5}, total=200))
        progress(Event("reward", 200, {"loss": 0.25}, total=200))
        progress(Event("policy", 7, {}))
    last = [line for line in out.getvalue().splitlines() if "reward" in line][-1]
    assert "━" * 20 in last and "200/200" in last and "loss 0.25" in last
    assert "policy" in out.getvalue()
