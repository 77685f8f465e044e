"""Demonstrations: built, indexed, held against a finite problem, saved, read, and refused."""

import dataclasses
import hashlib
import json
import re
import socket
import struct
import sys
import time
import zipfile
from pathlib import Path

import gymnasium
import h5py
import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer

from bigtrain.data import Demonstrations, Trajectory
from bigtrain.errors import DemonstrationError
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.problem import Contexts, Discrete, HostSimulator

DTYPES = ["bool", "uint8", "int16", "int64", "float16", "float32", "float64"]


def make(**changes) -> Demonstrations:
    """Two trajectories of two actions and one, as state indices."""
    fields = {
        "observations": np.array([0, 1, 0, 0, 2]),
        "actions": np.array([0, 1, 1]),
        "lengths": np.array([2, 1]),
        "contexts": np.array([0, 0]),
        "metadata": {"environment": "fork"},
    }
    return Demonstrations(**{**fields, **changes})


@st.composite
def demonstrations(draw) -> Demonstrations:
    lengths = np.array(draw(st.lists(st.integers(1, 6), min_size=1, max_size=7)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    raw = rng.integers(0, 100, (lengths.sum() + len(lengths), *shape))
    contexts = rng.integers(0, 3, len(lengths)) if draw(st.booleans()) else None
    names = st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=3)
    return Demonstrations(
        (raw / 7 if dtype.kind == "f" else raw).astype(dtype),
        rng.integers(0, 4, lengths.sum()),
        lengths,
        contexts,
        draw(names),
    )


def seen_by_anyone(demos: Demonstrations) -> HostSimulator:
    """A simulator in which such things are seen, and of which nothing else is known."""
    seen = demos.observations

    def make():
        raise AssertionError("Nobody plays here.")

    return HostSimulator(
        make,
        observation=jax.ShapeDtypeStruct(seen.shape[1:], seen.dtype),
        actions=Discrete(4),
        contexts=Contexts([0.5, 0.25, 0.25]),
        gamma=0.9,
        features=lambda observation, action: jnp.ones(1),
    )


def assert_same(left: Demonstrations, right: Demonstrations):
    for field in dataclasses.fields(Demonstrations):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b
    assert left.digest() == right.digest()


class TestSequence:
    def test_an_episode_has_its_observations_actions_and_context(self):
        first, second = make(contexts=[1, 0])
        assert (first.observations.tolist(), first.actions.tolist()) == ([0, 1, 0], [0, 1])
        assert (second.observations.tolist(), second.actions.tolist()) == ([0, 2], [1])
        assert (first.context, second.context) == (1, 0)
        assert (len(first), len(second)) == (2, 1)
        assert make().num_steps == 3

    @given(demonstrations())
    def test_from_trajectories_inverts_iteration(self, demos):
        again = Demonstrations.from_trajectories(iter(demos), metadata=demos.metadata)
        assert_same(again, demos)

    @given(demonstrations(), st.data())
    def test_selections_are_those_of_a_list(self, demos, data):
        episodes = list(demos)
        positions = list(range(len(demos)))
        by_slice = data.draw(st.slices(len(demos)))
        by_list = data.draw(st.lists(st.integers(-len(demos), len(demos) - 1), min_size=1))
        mask = np.array(
            data.draw(st.lists(st.booleans(), min_size=len(demos), max_size=len(demos)))
        )
        for index, wanted in (
            (by_slice, positions[by_slice]),
            (by_list, [positions[i] for i in by_list]),
            (np.array(by_list), [positions[i] for i in by_list]),
            (mask, np.flatnonzero(mask)),
        ):
            if len(wanted) == 0:
                with pytest.raises(DemonstrationError, match="at least one trajectory"):
                    demos[index]
                continue
            expected = Demonstrations.from_trajectories(
                [episodes[i] for i in wanted], metadata=demos.metadata
            )
            assert_same(demos[index], expected)

    def test_indices_end(self):
        assert make()[-1].actions.tolist() == make()[np.int64(1)].actions.tolist() == [1]
        for index in (2, -3):
            with pytest.raises(IndexError, match="There are 2 trajectories"):
                make()[index]

    @given(demonstrations(), demonstrations())
    def test_concatenate_puts_episodes_one_after_the_other(self, first, second):
        parts = [first, first[::-1], first]
        joined = Demonstrations.concatenate(parts)
        expected = Demonstrations.from_trajectories(
            [episode for part in parts for episode in part], metadata=first.metadata
        )
        assert_same(joined, expected)
        alike = first.observations[0].shape == second.observations[0].shape
        alike &= first.observations.dtype == second.observations.dtype
        if not alike:
            with pytest.raises(DemonstrationError, match="those of part 1"):
                Demonstrations.concatenate([first, second])
        elif (first.contexts is None) != (second.contexts is None):
            with pytest.raises(DemonstrationError, match="without_contexts"):
                Demonstrations.concatenate([first, second])

    def test_concatenate_keeps_what_metadata_agree_on(self):
        left = make(metadata={"environment": "fork", "seed": 1, "only": 0})
        right = make(metadata={"environment": "fork", "seed": 2})
        assert Demonstrations.concatenate([left, right]).metadata == {"environment": "fork"}

    @given(demonstrations())
    def test_padding_repeats_the_last_observation_and_acts_0(self, demos):
        states, actions, first, contexts, mask, notes = demos.trajectories(seen_by_anyone(demos))
        longest = max(demos.lengths)
        assert states.shape == (len(demos), longest + 1, *demos.observations.shape[1:])
        for row, episode in enumerate(demos):
            for moment in range(longest + 1):
                seen = episode.observations[min(moment, len(episode))]
                np.testing.assert_array_equal(states[row, moment], seen.astype(states.dtype))
            assert mask[row].tolist() == [step <= len(episode) for step in range(longest + 1)]
            assert actions[row].tolist() == [*episode.actions] + [0] * (longest + 1 - len(episode))
            assert first[row].tolist() == [True] + [False] * longest
        assert (contexts == -1).all() and notes is None, "contexts are not read"

    def test_one_line_says_what_there_is(self):
        assert repr(make()) == (
            "Demonstrations(2 episodes, 3 steps, observations () int32, contexts known)"
        )
        pictures = make(observations=np.zeros((5, 4, 4, 3), np.uint8), contexts=None)
        assert repr(pictures).endswith("observations (4, 4, 3) uint8, contexts unknown)")
        assert repr(make()[0]) == "Trajectory(2 steps, observations () int32, context 0)"

    def test_nobody_changes_them(self):
        demos = make()
        with pytest.raises(ValueError, match="read-only"):
            demos.actions[0] = 2
        with pytest.raises(dataclasses.FrozenInstanceError):
            demos.contexts = None  # pyright: ignore[reportAttributeAccessIssue]
        assert demos.without_contexts().contexts is None
        assert demos.contexts is not None


class TestDigest:
    def test_it_is_what_the_documentation_says(self):
        """Bundles name their demonstrations by it, so a change here breaks provenance."""
        content = (
            b"observations <i4 (5,)\n" + struct.pack("<5i", 0, 1, 0, 0, 2),
            b"actions <i4 (3,)\n" + struct.pack("<3i", 0, 1, 1),
            b"lengths <i8 (2,)\n" + struct.pack("<2q", 2, 1),
            b"contexts <i4 (2,)\n" + struct.pack("<2i", 0, 0),
        )
        assert make().digest() == hashlib.sha256(b"".join(content)).hexdigest()
        assert make().digest().startswith("dbcf481fd32109ae")

    def test_it_is_that_of_the_content(self):
        swapped = make(
            observations=np.array([0, 1, 0, 0, 2], ">i8"), actions=np.array([0, 1, 1], np.uint8)
        )
        assert swapped.digest() == make(metadata={}).digest()
        pixels = np.arange(5 * 3, dtype=np.float32).reshape(5, 3)
        expected = make(observations=pixels).digest()
        assert make(observations=pixels.astype(">f4")).digest() == expected
        assert make(observations=np.asfortranarray(pixels)).digest() == expected

    def test_any_change_of_content_changes_it(self):
        changed = [
            make(),
            make(observations=[0, 1, 0, 0, 1]),
            make(observations=np.array([0, 1, 0, 0, 2.0])),
            make(observations=np.array([[0], [1], [0], [0], [2]])),
            make(actions=[0, 1, 0]),
            make(lengths=[1, 2]),
            make(contexts=[0, 1]),
            make(contexts=None),
        ]
        assert len({demos.digest() for demos in changed}) == len(changed)


class TestValidation:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"lengths": [2, 0]}, "`lengths` must be at least 1.*trajectory 1 has 0"),
            ({"lengths": [3, -1]}, "`lengths` must be indices.*trajectory 1 has -1"),
            ({"lengths": [2.0, 1.0]}, "`lengths` must be integers, got float64"),
            ({"lengths": np.zeros(0, int)}, "at least one trajectory, got none"),
            ({"lengths": [2, 2]}, "`actions` must have .* sums to, 4, got 3"),
            ({"lengths": [3]}, "`observations` must have .* 4 in all, got 5"),
            ({"actions": [0, -1, 1]}, "`actions` must be indices.*trajectory 0, step 1 has -1"),
            ({"actions": [0, 1, 2**31]}, "trajectory 1, step 0 has 2147483648"),
            ({"actions": [0.0, 1.0, 1.0]}, "`actions` must be integers, got float64"),
            ({"actions": [[0], [1], [1]]}, r"`actions` must have one axis, got the shape \(3, 1\)"),
            ({"actions": [[0], [1, 1]]}, "`actions` must be one array"),
            ({"observations": [0, 1, 0, -1, 2]}, "trajectory 1, step 0 has -1"),
            ({"observations": [0, 1, 0, 0, np.nan]}, "trajectory 1, step 1 holds NaN"),
            ({"observations": [0, np.inf, 0, 0, 1]}, "trajectory 0, step 1 holds NaN or inf"),
            ({"observations": list("abcde")}, "booleans, integers or floats .* got <U1"),
            ({"observations": np.array([None] * 5)}, "booleans, integers or floats .* got object"),
            ({"observations": np.zeros((5, 0))}, r"at least one number .* \(5, 0\)"),
            ({"observations": np.array(3)}, r"first axis for the steps, .* got the shape \(\)"),
            ({"contexts": [0]}, "one entry for each of the 2 trajectories, got 1"),
            ({"contexts": [0, -1]}, "`contexts` must be indices .* trajectory 1 has -1"),
            ({"contexts": [0.0, 1.0]}, "`contexts` must be integers"),
            ({"metadata": {"array": np.zeros(2)}}, "`metadata` must be what JSON can hold"),
            ({"metadata": {"cost": float("nan")}}, "`metadata` must be what JSON can hold"),
        ],
    )
    def test_flaws_are_told_with_their_place(self, changes, message):
        with pytest.raises(DemonstrationError, match=message):
            make(**changes)

    @pytest.mark.parametrize(
        ("observations", "actions", "context", "message"),
        [
            ([0, 1], [0, 1], None, "one observation more .* 2 observations and 2 actions"),
            ([0], np.zeros(0, int), None, "at least one action"),
            ([0.0, np.nan], [0], None, "step 1 holds NaN"),
            ([0, 1], [0], -1, "`context` must be .* has -1"),
        ],
    )
    def test_so_are_those_of_one_trajectory(self, observations, actions, context, message):
        with pytest.raises(DemonstrationError, match=message):
            Trajectory(observations, actions, context)

    def test_trajectories_must_be_alike(self):
        known, unknown = Trajectory([0, 1], [0], 1), Trajectory([0, 1], [0])
        vector = Trajectory(np.zeros((2, 3)), np.zeros(1, int))
        with pytest.raises(DemonstrationError, match="1 with and 1 without"):
            Demonstrations.from_trajectories([known, unknown])
        with pytest.raises(DemonstrationError, match=r"trajectory 0 .* \(\) int32 .* trajectory 1"):
            Demonstrations.from_trajectories([unknown, vector])
        with pytest.raises(DemonstrationError, match="at least one entry"):
            Demonstrations.from_trajectories([])
        with pytest.raises(DemonstrationError, match="at least one entry"):
            Demonstrations.concatenate([])


def make_fork(observations=None, context_prior=(0.5, 0.5)) -> TabularCMDP:
    """From `fork`, action `left` leads to `nest` in one context and to `den` in the other.

    From both, any action leads back.
    """
    transitions = np.zeros((2, 3, 2, 3))
    transitions[0, 0, 0, 1] = transitions[0, 0, 1, 2] = 1
    transitions[1, 0, 0, 2] = transitions[1, 0, 1, 1] = 1
    transitions[:, 1:, :, 0] = 1
    return TabularCMDP(
        transitions,
        np.array(context_prior),
        np.array([1, 0, 0]),
        gamma=0.9,
        observations=observations,
        state_names=["fork", "nest", "den"],
        action_names=["left", "right"],
        context_names=["calm", "windy"],
    )


class TestFiniteProblem:
    def test_integers_are_states(self):
        states = make().states(make_fork())
        assert states.dtype == np.int32
        assert states.tolist() == [0, 1, 0, 0, 2]

    @pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "bool"])
    def test_vectors_are_matched_whatever_their_dtype(self, dtype):
        demos = make(observations=np.eye(3)[[0, 1, 0, 0, 2]].astype(dtype))
        assert demos.states(make_fork()).tolist() == [0, 1, 0, 0, 2]

    def test_minus_zero_is_zero(self):
        demos = make(observations=np.array([-0.0, 1.0, 0.0, 0.0, 2.0]))
        assert demos.states(make_fork(observations=[0.0, 1.0, 2.0])).tolist() == [0, 1, 0, 0, 2]

    def test_pictures_of_thousands_of_episodes_take_a_moment(self):
        rng = np.random.default_rng(0)
        pictures = rng.integers(0, 256, (3, 8, 8, 3), np.uint8)
        states = rng.integers(0, 3, 2000 * 51)
        demos = Demonstrations(pictures[states], np.zeros(2000 * 50, int), np.full(2000, 50))
        start = time.perf_counter()
        found = demos.states(make_fork(observations=pictures))
        assert time.perf_counter() - start < 2  # 0.03 s on two slow cores
        np.testing.assert_array_equal(found, states)

    def test_observations_must_be_those_of_states(self):
        fork = make_fork()
        with pytest.raises(DemonstrationError, match="below 3, .* trajectory 1, step 1 has 3"):
            make(observations=[0, 1, 0, 0, 3]).states(fork)
        strange = np.eye(3)[[0, 1, 0, 0, 2]]
        strange[2, 1] = 1e-9
        with pytest.raises(DemonstrationError, match="trajectory 0, step 2 looks like no state"):
            make(observations=strange).states(fork)
        with pytest.raises(DemonstrationError, match=r"shape \(3,\) .* got \(4,\)"):
            make(observations=np.eye(4)[[0, 1, 0, 0, 2]]).states(fork)

    def test_states_that_look_alike_matter_only_where_they_occur(self):
        fork = make_fork(observations=[[0.0], [7.0], [7.0]])
        stay = make(observations=[[0.0], [0.0], [0.0], [0.0], [0.0]])
        assert stay.states(fork).tolist() == [0] * 5
        with pytest.raises(DemonstrationError, match="trajectory 1, step 1 .* `nest` and `den`"):
            make(observations=[[0.0], [0.0], [0.0], [0.0], [7.0]]).states(fork)

    def test_possible_demonstrations_pass(self):
        make().check(make_fork())
        make(contexts=None).check(make_fork())
        make(observations=[0, 2, 0, 0, 1], contexts=[1, 1]).check(make_fork())
        make(observations=np.eye(3)[[0, 1, 0, 0, 2]]).check(make_fork())

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"actions": [0, 1, 2]}, "`actions` must be below 2, .* trajectory 1, step 0 has 2"),
            ({"contexts": [0, 2]}, "`contexts` must be below 2, .* trajectory 1 has 2"),
            (
                {"contexts": [0, 1]},
                "trajectory 1, step 0 goes from `fork` by `right` to `den`, which is impossible "
                "in its context `windy`",
            ),
            (
                {"observations": [0, 1, 2, 0, 2], "contexts": None},
                "trajectory 0, step 1 goes from `nest` by `right` to `den`, which is impossible "
                "in every context",
            ),
        ],
    )
    def test_impossible_ones_are_told_with_names(self, changes, message):
        with pytest.raises(DemonstrationError, match=message):
            make(**changes).check(make_fork())

    def test_one_context_must_explain_the_whole_trajectory(self):
        changing = Trajectory([0, 1, 0, 2, 0], [0, 0, 0, 0])
        demos = Demonstrations.from_trajectories([*make(contexts=None), changing])
        message = "trajectory 2, step 2 .* which no context allows that allows the steps before it"
        with pytest.raises(DemonstrationError, match=message):
            demos.check(make_fork())

    def test_contexts_outside_the_prior_explain_nothing(self):
        with pytest.raises(DemonstrationError, match="impossible in every context of the prior"):
            make(contexts=None).check(make_fork(context_prior=(0, 1)))

    def test_trajectories_are_rows_of_states(self):
        for demos in (make(), make(observations=np.eye(3)[[0, 1, 0, 0, 2]])):
            rows = demos.trajectories(make_fork())
            np.testing.assert_array_equal(rows.states, [[0, 1, 0], [0, 2, 2]])
            np.testing.assert_array_equal(rows.actions, [[0, 1, 0], [1, 0, 0]])
            np.testing.assert_array_equal(rows.mask, [[1, 1, 1], [1, 1, 0]])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"actions": [0, 1, 2]}, "`actions` must be below 2, .* trajectory 1, step 0 has 2"),
            ({"observations": [0, 1, 2, 0, 2]}, "trajectory 0, step 1 .* impossible in every"),
            ({"observations": [0, 1, 0, 0, 3]}, "below 3, .* trajectory 1, step 1 has 3"),
        ],
    )
    def test_nobody_learns_from_what_cannot_be(self, changes, message):
        with pytest.raises(DemonstrationError, match=message):
            make(**changes).trajectories(make_fork())

    def test_contexts_that_are_wrong_are_not_even_read(self):
        lied = make(contexts=[1, 1])
        with pytest.raises(DemonstrationError, match="impossible in its context"):
            lied.check(make_fork())
        told, untold = (demos.trajectories(make_fork()) for demos in (lied, make(contexts=None)))
        jax.tree.map(np.testing.assert_array_equal, told, untold)


class TestSimulator:
    """What is seen, held against a simulator that is not finite."""

    def test_what_is_seen_is_the_state(self):
        demos = make(observations=np.arange(10.0).reshape(5, 2))
        rows = demos.trajectories(seen_by_anyone(demos))
        np.testing.assert_array_equal(rows.states[0], [[0, 1], [2, 3], [4, 5]])
        np.testing.assert_array_equal(rows.states[1], [[6, 7], [8, 9], [8, 9]])

    def test_another_shape_is_refused(self):
        simulator = seen_by_anyone(make(observations=np.zeros((5, 2))))
        with pytest.raises(DemonstrationError, match=r"must have the shape \(2,\) .* got \(3,\)"):
            make(observations=np.zeros((5, 3))).trajectories(simulator)

    def test_another_kind_of_numbers_is_refused(self):
        """Pictures from 0 to 1 are not those from 0 to 255."""
        pictures = np.zeros((5, 4, 4, 3), np.uint8)
        simulator = seen_by_anyone(make(observations=pictures))
        with pytest.raises(DemonstrationError, match="must be uint8, .* got float32"):
            make(observations=pictures.astype(np.float32)).trajectories(simulator)
        simulator = seen_by_anyone(make(observations=pictures.astype(np.float32)))
        rows = make(observations=pictures).trajectories(simulator)
        assert rows.states.dtype == np.float32


def write_npz(path, **changes):
    """A file as a user of numpy would write it; None leaves a field out."""
    fields = {
        "format": "big-demonstrations",
        "version": 1,
        "metadata": '{"environment": "fork"}',
        "observations": np.array([0, 1, 0, 0, 2]),
        "actions": np.array([0, 1, 1]),
        "lengths": np.array([2, 1]),
        "contexts": np.array([0, 0]),
    }
    kept = {key: value for key, value in {**fields, **changes}.items() if value is not None}
    np.savez(path, **kept)


def write_raw(path, member: str, content: bytes):
    """The file of `make()`, with one member's bytes replaced and its checksum right."""
    make().save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, old in members.items():
            archive.writestr(name, content if name == member else old)


def npy(header: str, data: bytes, version: bytes = b"\x01\x00") -> bytes:
    padded = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(padded)) + padded + data


class TestFiles:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(demonstrations())
    def test_what_is_saved_is_loaded(self, tmp_path, demos):
        demos.save(tmp_path / "demos.npz")
        assert_same(Demonstrations.load(tmp_path / "demos.npz"), demos)

    def test_the_same_demonstrations_give_the_same_file(self, tmp_path):
        make().save(tmp_path / "first.npz")
        make().save(str(tmp_path / "second"))
        assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "second").read_bytes()

    def test_numpy_alone_reads_and_writes_the_format(self, tmp_path):
        write_npz(tmp_path / "by_hand.npz")
        assert_same(Demonstrations.load(tmp_path / "by_hand.npz"), make())
        make(contexts=None).save(tmp_path / "saved.npz")
        with np.load(tmp_path / "saved.npz", allow_pickle=False) as file:
            assert sorted(file) == sorted(
                "format version metadata observations actions lengths contexts".split()
            )
            assert (str(file["format"]), int(file["version"])) == ("big-demonstrations", 1)
            assert json.loads(str(file["metadata"])) == {"environment": "fork"}
            assert file["contexts"].shape == (0,)
            assert [file[name].dtype for name in ("actions", "lengths")] == [np.int32, np.int64]

    def test_any_byte_order_and_layout_is_read(self, tmp_path):
        pixels = np.arange(15, dtype=np.float32).reshape(5, 3)
        swapped = np.asfortranarray(pixels.astype(">f4"))
        write_npz(tmp_path / "demos.npz", observations=swapped, actions=np.array([0, 1, 1], ">i8"))
        assert_same(Demonstrations.load(tmp_path / "demos.npz"), make(observations=pixels))

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "demos.npz"
        make().save(path)

        def fail(file, **_):
            file.write(b"half a file")
            raise OSError("No space left on device")

        monkeypatch.setattr(np, "savez_compressed", fail)
        with pytest.raises(OSError, match="No space left"):
            make(contexts=None).save(path)
        assert_same(Demonstrations.load(path), make())
        assert [file.name for file in tmp_path.iterdir()] == ["demos.npz"]

    def test_a_link_is_written_through(self, tmp_path):
        (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
        make().save(tmp_path / "link.npz")
        assert (tmp_path / "link.npz").is_symlink()
        assert_same(Demonstrations.load(tmp_path / "real.npz"), make())

    def test_no_file_is_no_file(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            Demonstrations.load(tmp_path / "none.npz")
        with pytest.raises(FileNotFoundError):
            make().save(tmp_path / "no" / "folder.npz")

    def test_thousands_of_episodes_take_a_moment(self, tmp_path):
        rng = np.random.default_rng(0)
        demos = Demonstrations(
            rng.integers(0, 29, 5000 * 51), rng.integers(0, 3, 5000 * 50), np.full(5000, 50)
        )
        demos.save(tmp_path / "demos.npz")
        start = time.perf_counter()
        Demonstrations.load(tmp_path / "demos.npz")
        assert time.perf_counter() - start < 1  # 0.01 s on two slow cores

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"format": None}, "it is some other .npz file"),
            ({"version": None}, "it is some other .npz file"),
            ({"format": "pictures"}, "it is some other .npz file"),
            ({"format": np.array([1.0])}, "it is some other .npz file"),
            ({"version": 2}, "must be in version 1 of the format, got 2"),
            ({"version": np.array([1])}, r"must be in version 1 of the format, got \[1\]"),
            ({"contexts": None}, "must hold exactly the fields"),
            ({"rewards": np.zeros(3)}, "must hold exactly the fields .* got .* rewards"),
            ({"metadata": "{"}, "`metadata` as text: a JSON object"),
            ({"metadata": "[" * 100_000}, "`metadata` as text: a JSON object"),
            ({"metadata": "[1]"}, "`metadata` as text: a JSON object"),
            ({"metadata": np.zeros(3)}, "`metadata` as text: a JSON object"),
            ({"metadata": '{"cost": NaN}'}, "`metadata` must be what JSON can hold"),
            ({"lengths": np.array([2, 2])}, "`actions` must have .* sums to, 4, got 3"),
            ({"lengths": np.array([2**62, 2**62])}, "`lengths` must be indices"),
            ({"actions": np.array([0.0, 1.0, 1.0])}, "`actions` must be integers"),
            ({"actions": np.array([0, 1, 1], object)}, "numbers and text only, .* dtype object"),
            ({"observations": np.zeros(5, complex)}, "numbers and text only, .* complex128"),
            ({"observations": np.zeros(5, "i4,f4")}, "numbers and text only"),
            ({"observations": np.array(list("abcde"))}, "booleans, integers or floats"),
        ],
    )
    def test_files_that_are_not_demonstrations_are_refused(self, tmp_path, changes, message):
        path = tmp_path / "strange.npz"
        write_npz(path, **changes)
        with pytest.raises(DemonstrationError, match=f"`{re.escape(str(path))}` .*{message}"):
            Demonstrations.load(path)

    def test_no_code_in_a_file_runs(self, tmp_path):
        class Payload:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "ran",))

        write_npz(tmp_path / "evil.npz", observations=np.array([Payload()] * 5))
        with pytest.raises(DemonstrationError, match="numbers and text only"):
            Demonstrations.load(tmp_path / "evil.npz")
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY\x01\x00", b"a,b\n1,2\n" * 99])
    def test_nor_are_files_that_are_no_archive(self, tmp_path, content):
        (tmp_path / "demos.npz").write_bytes(content)
        with pytest.raises(DemonstrationError, match="demos.npz` .* damaged or not an .npz"):
            Demonstrations.load(tmp_path / "demos.npz")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (npy("{'descr':'<i4','fortran_order':False,'shape':(10**15,)}", b"12"), "damaged"),
            (
                npy(f"{{'descr':'<i4','fortran_order':False,'shape':({10**15},)}}", b"12"),
                "needs 4000000000000000 bytes and has 2",
            ),
            (
                npy("{'descr':'<i4','fortran_order':False,'shape':(-1,-3)}", b"0" * 12),
                "needs 12 bytes and has 12",
            ),
            (npy("{'descr':'|O','fortran_order':False,'shape':(3,)}", b"12"), "dtype object"),
            (npy("{'descr':'what','fortran_order':False,'shape':(3,)}", b"12"), "damaged"),
            (npy("{'descr':'<i4','fortran_order':False,'shape':(True,)}", b"1234"), "damaged"),
            (npy("{'shape':(3,)}", b"12"), "damaged"),
            (npy("{'descr':(),'fortran_order':False,'shape':(3,)}", b"12"), "damaged"),
            (npy("{'descr':('<i4',),'fortran_order':False,'shape':(3,)}", b"12"), "damaged"),
            (npy("{'descr':'<i4',1:2,'fortran_order':False,'shape':(3,)}", b"12"), "damaged"),
            (npy("{'descr':'<i4',(1,):False,'shape':(3,)}", b"12"), "damaged"),
            (npy("(" * 5000, b""), "damaged"),
            (npy("{'descr':'<i4','fortran_order':False,'shape':(3L,)}\n  x (", b""), "damaged"),
            (npy("{}", b"", b"\x03\x00"), r"unknown .npy version \(3, 0\)"),
            (npy("{}", b"", b"\x09\x00"), r"unknown .npy version \(9, 0\)|damaged"),
            (b"\x93NUMPY\x01\x00", "damaged"),
            (b"", "damaged"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz`")
    def test_arrays_that_lie_about_themselves_are_refused(self, tmp_path, content, message):
        write_raw(tmp_path / "demos.npz", "actions.npy", content)
        with pytest.raises(DemonstrationError, match=f"demos.npz` .*{message}"):
            Demonstrations.load(tmp_path / "demos.npz")

    def test_members_that_claim_more_than_the_file_holds_are_refused(self, tmp_path):
        path = tmp_path / "demos.npz"
        make().save(path)
        content = path.read_bytes()
        entry = content.index(b"actions.npy", content.index(b"PK\x01\x02")) - 46
        huge = struct.pack("<I", 0xFFFF0000)
        path.write_bytes(content[: entry + 24] + huge + content[entry + 28 :])
        with pytest.raises(DemonstrationError, match="`actions.npy` claims 4294901760 bytes"):
            Demonstrations.load(path)

    @pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_members_are_packed_as_numpy_packs_them(self, tmp_path, kind):
        """Others take as much memory as they say, before anything is unpacked."""
        make().save(tmp_path / "demos.npz")
        with zipfile.ZipFile(tmp_path / "demos.npz") as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
        with zipfile.ZipFile(tmp_path / "demos.npz", "w", kind) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        with pytest.raises(DemonstrationError, match="`format.npy` must be stored or deflated"):
            Demonstrations.load(tmp_path / "demos.npz")

    def test_a_field_must_be_there_once(self, tmp_path):
        make().save(tmp_path / "demos.npz")
        with (
            pytest.warns(UserWarning, match="Duplicate name"),
            zipfile.ZipFile(tmp_path / "demos.npz", "a") as archive,
        ):
            archive.writestr("actions.npy", npy("{}", b""))
        with pytest.raises(DemonstrationError, match="each field once"):
            Demonstrations.load(tmp_path / "demos.npz")

    @pytest.mark.parametrize("compressed", [True, False])
    def test_a_damaged_file_is_refused_or_read_right(self, tmp_path, compressed):
        """Flipped bits, cut ends, lost, doubled and foreign bytes: an error, or no harm."""
        path, rng = tmp_path / "demos.npz", np.random.default_rng(0)
        original = make(observations=rng.random((5, 2, 2)), metadata={"name": "fork" * 9})
        if compressed:
            original.save(path)
        else:
            write_npz(
                path, observations=original.observations, metadata='{"name": "%s"}' % ("fork" * 9)
            )
        content, refused = path.read_bytes(), 0
        for _ in range(600):
            path.write_bytes(_damage(content, rng))
            try:
                loaded = Demonstrations.load(path)
            except DemonstrationError as error:
                assert str(path) in str(error)
                refused += 1
            else:
                assert_same(loaded, original)
        assert refused > 300


def _damage(content: bytes, rng: np.random.Generator) -> bytes:
    place, size = int(rng.integers(len(content))), int(rng.integers(1, 40))
    noise = rng.bytes(size)
    match rng.integers(6):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + content[place + size :]
        case 2:
            return content[:place] + noise + content[place:]
        case 3:
            return content[:place] + noise + content[place + size :]
        case _:
            flipped = bytearray(content)
            flipped[place] ^= 1 << int(rng.integers(8))
            return bytes(flipped)


@pytest.fixture
def minari_root(tmp_path, monkeypatch):
    """A place of its own for datasets, and no way to a network."""

    def refuse(*_, **__):
        raise AssertionError("Nothing here may use the network.")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def create_foreign(
    observation_space, observations, *, actions=None, action_space=None, infos=None, **options
):
    """A dataset as others write it: episodes of two actions each."""
    buffers = [
        EpisodeBuffer(
            observations=seen,
            actions=[0, 1] if actions is None else actions,
            rewards=[1.0, 2.0],
            terminations=[False, True],
            truncations=[False, False],
            infos=None if infos is None else infos[index],
        )
        for index, seen in enumerate(observations)
    ]
    return minari.create_dataset_from_buffers(
        "others/foreign-v0",
        buffers,
        observation_space=observation_space,
        action_space=action_space or spaces.Discrete(2),
        **options,
    )


@pytest.mark.usefixtures("minari_root")
@pytest.mark.filterwarnings("ignore::UserWarning:minari")
class TestMinari:
    @pytest.mark.parametrize("dtype", [*DTYPES, "uint64"])
    @pytest.mark.parametrize("shape", [(), (3,), (2, 3), (32, 32, 3)])
    @pytest.mark.parametrize("known", [True, False])
    def test_what_is_written_is_read(self, dtype, shape, known):
        rng = np.random.default_rng(0)
        observations = rng.integers(0, 256, (5, *shape)).astype(dtype)
        demos = make(observations=observations, contexts=[2, 0] if known else None)
        demos.to_minari("tests/round-trip-v0")
        read = Demonstrations.from_minari("tests/round-trip-v0")
        assert read.metadata == {"environment": "fork", "minari_id": "tests/round-trip-v0"}
        assert_same(dataclasses.replace(read, metadata=demos.metadata), demos)

    def test_others_see_a_plain_dataset(self, recwarn):
        make().to_minari("tests/plain-v0", num_states=7, num_actions=4, description="Two walks.")
        assert not recwarn.list
        dataset = minari.load_dataset("tests/plain-v0")
        assert dataset.env_spec is None
        assert dataset.observation_space == spaces.Discrete(7)
        assert dataset.action_space == spaces.Discrete(4)
        assert (dataset.total_episodes, dataset.total_steps) == (2, 3)
        first = dataset[0]
        assert first.observations.tolist() == [0, 1, 0]
        assert first.rewards.tolist() == [0.0, 0.0]
        assert first.terminations.tolist() == [False, False]
        assert first.truncations.tolist() == [False, True]
        assert first.infos["context"].tolist() == [0, 0, 0]
        assert dataset.storage.metadata["description"] == "Two walks."

    def test_a_dataset_has_an_id_a_folder_and_a_face(self, minari_root):
        dataset = make().to_minari("tests/named-v0")
        folder = minari_root / "tests" / "named-v0"
        for name in (dataset, "tests/named-v0", folder, str(folder), folder / "data"):
            assert Demonstrations.from_minari(name).digest() == make().digest()
        for missing in ("tests/absent-v0", minari_root / "absent"):
            with pytest.raises(FileNotFoundError):
                Demonstrations.from_minari(missing)

    def test_filtered_datasets_stay_filtered(self):
        dataset = make().to_minari("tests/filtered-v0")
        short = dataset.filter_episodes(lambda episode: len(episode) == 1)
        assert_same(
            dataclasses.replace(Demonstrations.from_minari(short), metadata={}),
            dataclasses.replace(make()[[1]], metadata={}),
        )

    @pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1"])
    def test_datasets_of_environments_are_read(self, name):
        collector = minari.DataCollector(gymnasium.make(name, max_episode_steps=7))
        for seed in range(3):
            collector.reset(seed=seed)
            collector.action_space.seed(seed)
            done = False
            while not done:
                _, _, ended, cut, _ = collector.step(collector.action_space.sample())
                done = ended or cut
        dataset = collector.create_dataset("others/collected-v0")
        collector.close()
        demos = Demonstrations.from_minari(dataset)
        assert demos.contexts is None
        assert demos.metadata["environment"] == name
        for ours, theirs in zip(demos, dataset, strict=True):
            np.testing.assert_array_equal(ours.observations, theirs.observations)
            np.testing.assert_array_equal(ours.actions, theirs.actions)

    def test_discrete_spaces_may_start_anywhere(self):
        dataset = create_foreign(
            spaces.Discrete(3, start=-1),
            [np.array([-1, 0, 1])],
            actions=np.array([5, 6]),
            action_space=spaces.Discrete(2, start=5),
        )
        (episode,) = Demonstrations.from_minari(dataset)
        assert (episode.observations.tolist(), episode.actions.tolist()) == ([0, 1, 2], [0, 1])

    def test_dictionaries_and_tuples_become_vectors_as_in_gymnasium(self):
        space = spaces.Dict(
            {
                "where": spaces.Box(-1, 1, (2, 2), np.float32),
                "rest": spaces.Tuple(
                    (
                        spaces.Discrete(3, start=1),
                        spaces.MultiDiscrete([2, 4]),
                        spaces.MultiBinary([2, 1]),
                    )
                ),
            }
        )
        space.seed(0)
        samples = [space.sample() for _ in range(3)]
        rows = {
            "where": np.stack([sample["where"] for sample in samples]),
            "rest": tuple(np.stack([sample["rest"][i] for sample in samples]) for i in range(3)),
        }
        dataset = create_foreign(space, [rows])
        demos = Demonstrations.from_minari(dataset)
        expected = np.stack([np.asarray(spaces.flatten(space, sample)) for sample in samples])
        assert demos.observations.dtype == expected.dtype
        np.testing.assert_array_equal(demos.observations, expected)
        picked = Demonstrations.from_minari(dataset, observation_key="where")
        np.testing.assert_array_equal(picked.observations, rows["where"])
        with pytest.raises(DemonstrationError, match="`observation_key` .*where.* got 'here'"):
            Demonstrations.from_minari(dataset, observation_key="here")

    def test_text_is_refused_and_what_is_beside_it_read(self):
        space = spaces.Dict({"mission": spaces.Text(9), "cell": spaces.Discrete(4)})
        rows = {"mission": ["go", "on", "home"], "cell": np.array([0, 1, 3])}
        dataset = create_foreign(space, [rows])
        with pytest.raises(DemonstrationError, match="must be numbers.*Text.*`observation_key`"):
            Demonstrations.from_minari(dataset)
        picked = Demonstrations.from_minari(dataset, observation_key="cell")
        assert picked.observations.tolist() == [0, 1, 3]

    def test_pictures_stored_as_jpeg_come_as_minari_gives_them(self):
        pictures = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
        infos = [{"context": np.array([4, 4, 4])}] * 2
        dataset = create_foreign(
            spaces.Box(0, 255, (32, 32, 3), np.uint8), [pictures] * 2, infos=infos
        )
        demos = Demonstrations.from_minari(dataset)
        np.testing.assert_array_equal(demos[1].observations, dataset[1].observations)
        assert [episode.context for episode in demos] == [4, 4]

    @pytest.mark.parametrize(
        "space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2]), spaces.Box(-1, 1, ())]
    )
    def test_only_discrete_actions_are_read(self, space):
        actions = np.zeros((2, *space.shape), space.dtype)
        dataset = create_foreign(
            spaces.Discrete(3), [np.arange(3)], actions=actions, action_space=space
        )
        with pytest.raises(DemonstrationError, match="`others/foreign-v0` must be `Discrete`, got"):
            Demonstrations.from_minari(dataset)

    @pytest.mark.parametrize(
        "infos",
        [
            [{"context": np.array([0, 0, 0])}, {"context": np.array([0, 0, 1])}],
            [{"context": np.array([0, 0, 0])}, {"context": np.array([0.5, 0.5, 0.5])}],
        ],
    )
    def test_contexts_that_are_none_are_refused_or_left(self, infos):
        dataset = create_foreign(spaces.Discrete(3), [np.arange(3)] * 2, infos=infos)
        with pytest.raises(DemonstrationError, match="one integer for the whole.*episode 1"):
            Demonstrations.from_minari(dataset)
        assert Demonstrations.from_minari(dataset, context_key=None).contexts is None
        assert Demonstrations.from_minari(dataset, context_key="other").contexts is None

    def test_episodes_must_have_one_observation_more_than_actions(self):
        dataset = create_foreign(spaces.Discrete(3), [np.arange(3), np.arange(2)])
        with pytest.raises(DemonstrationError, match="Episode 1 .* 2 observations and 2 actions"):
            Demonstrations.from_minari(dataset)

    def test_damaged_datasets_are_refused(self, minari_root):
        make().to_minari("tests/damaged-v0")
        data = minari_root / "tests" / "damaged-v0" / "data"
        with h5py.File(data / "main_data.hdf5", "a") as file:
            del file["episode_1"]
        with pytest.raises(DemonstrationError, match="`tests/damaged-v0` must be a whole Minari"):
            Demonstrations.from_minari("tests/damaged-v0")
        (data / "main_data.hdf5").write_bytes(b"not HDF5")
        with pytest.raises(DemonstrationError, match="`tests/damaged-v0` must be a whole Minari"):
            Demonstrations.from_minari("tests/damaged-v0")
        (data / "metadata.json").write_text("{}")
        with pytest.raises(DemonstrationError, match="must be a Minari dataset that minari"):
            Demonstrations.from_minari("tests/damaged-v0")

    def test_ids_are_checked_before_anything_is_written(self, minari_root):
        for wrong in ("no-version", "a/short-v0", "spa ce-v0", "../up-v0"):
            with pytest.raises(DemonstrationError, match="`dataset_id` must be"):
                make().to_minari(wrong)
        with pytest.raises(DemonstrationError, match="`actions` must be below 1"):
            make().to_minari("tests/small-v0", num_actions=1)
        with pytest.raises(DemonstrationError, match="`observations` must be below 2"):
            make().to_minari("tests/small-v0", num_states=2)
        assert not minari_root.exists()
        make().to_minari("tests/twice-v0")
        with pytest.raises(DemonstrationError, match="`tests/twice-v0`: .* already exists"):
            make().to_minari("tests/twice-v0")

    def test_without_the_extra_the_way_to_it_is_told(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "minari", None)
        for call in (Demonstrations.from_minari, make().to_minari):
            with pytest.raises(DemonstrationError, match=r"pip install 'big-imitation\[minari\]'"):
                call("tests/absent-v0")
