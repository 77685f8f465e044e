"""Between the wire and the domain: names and numbers agree, and nonsense is refused by name."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundles import EXACT, LEARNED, resealed
from cores import NO_PROBLEM, never, settings
from google.protobuf.duration_pb2 import Duration

from bigproto.v1 import policy_pb2 as wire
from bigserve import convert, describe
from bigserve.core import NO_DETAILS, NOTHING, Record
from bigserve.episodes import Rule
from bigserve.errors import Fault, InvalidRequest, LimitReached, Problem
from bigserve.layout import Details
from bigserve.models import DTYPES
from bigtrain import load_bundle
from bigtrain.bundle import ArraySpec

LIMITS = settings(max_lease=100.0, default_lease=7.0).limits


def test_problems_are_those_of_the_wire():
    ours = {f"PROBLEM_{problem.name}": problem.value for problem in Problem}
    theirs = dict(wire.Problem.items())
    assert theirs.pop("PROBLEM_UNSPECIFIED") == 0
    assert ours == theirs


# ── describe ─────────────────────────────────────────────────────────────────────────────────────


def described(path: Path) -> wire.Model:
    version: Any = SimpleNamespace(
        name="tiger", current=True, bundle=load_bundle(path), finished_at=1.5, loaded_at=2.25
    )
    version.digest = version.bundle.digest
    return describe.write_model(version)


def test_a_solved_problem_is_described(tmp_path):
    path = tmp_path / "exact.big"
    path.write_bytes(EXACT)
    model = described(path)
    assert (model.name, model.version, model.current) == ("tiger", load_bundle(path).digest, True)
    (seen,) = model.observation
    assert (seen.dtype, list(seen.shape)) == (wire.Array.DTYPE_FLOAT32, [6])
    assert (seen.minimum, seen.maximum) == (0, 1)
    assert list(model.action.value_names) == ["open-1", "open-2", "listen"]
    assert (model.action.dtype, model.action.maximum) == (wire.Array.DTYPE_INT32, 2)
    assert [(c.name, c.prior) for c in model.contexts] == [("tiger-1", 0.5), ("tiger-2", 0.5)]
    assert (model.reward_minimum, model.reward_maximum) == (-100, 10)
    costs = [(cost.state, cost.action, cost.k_low, cost.k_high) for cost in model.exploration]
    assert costs == [("T1", "", 0.4, 0.6), ("T2", "", 0.4, 0.6)]
    training = model.training
    assert training.method == wire.Training.METHOD_EXACT
    assert (training.num_demonstrations, training.discount) == (100, 0.99)
    assert training.settings["solve.irl.prior_variance"] == "100.0"
    assert (training.finished_at.ToMilliseconds(), model.loaded_at.ToMilliseconds()) == (1500, 2250)
    assert 0 <= model.regret.value < 1e-6 and model.regret.HasField("normalised")


def test_a_learned_policy_that_sees_pictures_is_described(tmp_path):
    path = tmp_path / "learned.big"
    path.write_bytes(LEARNED)
    (seen,) = described(path).observation
    assert (seen.dtype, list(seen.shape)) == (wire.Array.DTYPE_UINT8, [12, 12, 1])
    assert not seen.HasField("minimum") and not seen.HasField("maximum")


def test_an_exploration_set_that_was_code_is_put_into_words(tmp_path):
    """As it is in the bundle of a simulator, which holds no problem."""
    path = tmp_path / "simulated.big"
    note = "where `is_listening` holds"
    path.write_bytes(resealed(LEARNED, lambda c: c.update(NO_PROBLEM, exploration_note=note)))
    (cost,) = described(path).exploration
    assert cost.state == note
    assert cost.action == "" and math.isnan(cost.k_low) and math.isnan(cost.k_high)


def test_limits_are_told():
    limits = describe.write_limits(LIMITS)
    assert (limits.max_items, limits.max_episodes) == (64, 64)
    assert (limits.default_lease.seconds, limits.max_lease.seconds) == (7, 100)


# ── arrays ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_read_as_they_were_written(dtype):
    values = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    for given in (
        values,
        values[::-1, ::2],
        values[0, 0],
        values.astype(values.dtype.newbyteorder(">")),
    ):
        array = convert.write_array(np.asarray(given))
        convert.read_block(array).check("x", dtype, np.shape(given))
        found = convert.read_array(array)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"dtype": wire.Array.DTYPE_INT32}, "`x` must have the dtype float32, got int32"),
        ({"dtype": 99}, "`x` must have the dtype float32, got 99"),
        ({"shape": [3, 2]}, r"`x` must have the shape \(2, 3\), got \(3, 2\)"),
        ({"shape": [2, 3, 1]}, r"`x` must have the shape \(2, 3\), got \(2, 3, 1\)"),
        ({"data": bytes(23)}, r"`x.data` must have 24 bytes for its shape, got 23"),
    ],
)
def test_arrays_that_are_not_as_they_should_be_are_refused(change, message):
    given: dict[str, Any] = {"dtype": wire.Array.DTYPE_FLOAT32, "shape": [2, 3], "data": bytes(24)}
    with pytest.raises(InvalidRequest, match=message):
        convert.read_block(wire.Array(**given | change)).check("x", "float32", (2, 3))


def test_truth_values_are_0_or_1():
    array = wire.Array(dtype=wire.Array.DTYPE_BOOL, shape=[4], data=b"\0\1\2\1")
    with pytest.raises(InvalidRequest, match="must have a 0 or a 1"):
        convert.read_block(array).check("x", "bool", (4,))


# ── start ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "asked, lease", [(None, 7.0), (Duration(), 7.0), (Duration(seconds=50), 50.0),
                     (Duration(nanos=700_000_000), 0.7), (Duration(seconds=101), 100.0)],
)  # fmt: skip
def test_leases_are_cut_to_what_may_be(asked, lease):
    found = convert.read_start(wire.StartRequest(lease=asked), LIMITS)
    assert (found.lease, found.ids, found.seed, found.rule) == (lease, 1, None, Rule())


def test_a_seed_of_0_is_a_seed():
    found = convert.read_start(wire.StartRequest(seed=0, episode_ids=["a"], num_episodes=9), LIMITS)
    assert (found.seed, found.ids) == (0, ["a"])


@pytest.mark.parametrize(
    "fields, error, message",
    [
        ({"episode_ids": ["a", "b", "a"]}, InvalidRequest, "must be all different"),
        ({"episode_ids": [""]}, InvalidRequest, "must have 1 to 128 bytes, got 0"),
        ({"episode_ids": ["ä" * 65]}, InvalidRequest, "must have 1 to 128 bytes, got 130"),
        ({"num_episodes": 65}, LimitReached, "at most 64 items, got 65"),
        ({"lease": Duration(seconds=-1)}, InvalidRequest, "`lease` must not be negative"),
    ],
)
def test_starts_that_make_no_sense_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        convert.read_start(wire.StartRequest(**fields), LIMITS)


@pytest.mark.parametrize("rule", [Rule(), Rule(epsilon=0.1), Rule(temperature=1e-3)])
def test_rules_are_read_as_they_were_written(rule):
    assert convert.read_rule(convert.write_rule(rule)) == rule


@pytest.mark.parametrize("epsilon", [-0.1, 1.1, math.nan, math.inf])
def test_probabilities_are_from_0_to_1(epsilon):
    rule = wire.ActionRule(epsilon_greedy=wire.ActionRule.EpsilonGreedy(epsilon=epsilon))
    with pytest.raises(InvalidRequest, match="`epsilon` must be from 0 to 1"):
        convert.read_rule(rule)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf, 1e-60, 1e60])
@pytest.mark.filterwarnings("error")
def test_temperatures_are_above_0_also_as_a_float32(temperature):
    rule = wire.ActionRule(softmax=wire.ActionRule.Softmax(temperature=temperature))
    with pytest.raises(InvalidRequest, match="`temperature` must be above 0"):
        convert.read_rule(rule)


# ── act ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fields, error, message",
    [
        ({}, InvalidRequest, "must name at least one episode"),
        ({"episode_ids": ["a"] * 65}, LimitReached, "at most 64 items, got 65"),
        ({"episode_ids": ["a", "b"], "steps": [0]}, InvalidRequest, "each of 2, got 1"),
        ({"episode_ids": ["a"], "steps": [0]}, InvalidRequest, "must be one array, got 0"),
    ],
)
def test_acts_that_make_no_sense_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        act = convert.read_act(wire.ActRequest(**fields), "me", LIMITS, 0.0, math.inf, never)
        act.observe(ArraySpec("", "float32", (6,)))


@pytest.mark.parametrize(
    "milliseconds, deadline, wanted",
    [(0, math.inf, math.inf), (500, math.inf, 10.5), (500, 10.1, 10.1)],
)
def test_the_nearer_deadline_holds(milliseconds, deadline, wanted):
    request = wire.ActRequest(episode_ids=["a"], steps=[0], timeout_milliseconds=milliseconds)
    act = convert.read_act(request, "me", LIMITS, 10.0, deadline, never)
    assert act.deadline == wanted


def test_a_fault_is_told_whole():
    fault = Fault(3, Problem.ITEM_OVERLOADED, "Later.", 7, closed_at=1.5, retry_after=0.05)
    error = convert.write_fault(fault)
    assert (error.index, error.problem) == (3, wire.PROBLEM_ITEM_OVERLOADED)
    assert (error.message, error.expected_step) == ("Later.", 7)
    assert (error.closed_at.ToMilliseconds(), error.retry_after_milliseconds) == (1500, 50)


# ── records ──────────────────────────────────────────────────────────────────────────────────────


def test_a_record_without_a_step_is_read_as_it_was_written():
    record = Record("a", "me", "tiger", "0" * 64, 0, Rule(epsilon=0.3), 0.7, bytes(range(8)), {},
                    NOTHING, 0, NO_DETAILS)  # fmt: skip
    assert convert.read_record(convert.write_record(record)) == record


def test_a_record_with_a_step_is_read_as_it_was_written():
    state = {
        "begun": np.array(True),
        "last": np.array(-1, np.int32),
        "memory": np.zeros(0, np.float32),
        "log_belief": np.array([-0.0, -np.inf], np.float32),
    }
    details = Details(np.arange(6, dtype=np.float32), 3)
    seen = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    record = Record("a", "Ω", "tiger", "0" * 64, 2**63, Rule(temperature=0.1), 300.3, b"\xff" * 8,
                    state, seen, 2, details)  # fmt: skip
    found = convert.read_record(convert.write_record(record))
    for name, wanted in record._asdict().items():
        if name == "details":
            np.testing.assert_array_equal(found.details.table, wanted.table)
            assert found.details.num_actions == 3
        elif name == "observation":
            np.testing.assert_array_equal(getattr(found, name), wanted)
        elif name != "state":
            assert getattr(found, name) == wanted
    assert found.state.keys() == state.keys()
    for path, wanted in state.items():
        assert (found.state[path].dtype, found.state[path].shape) == (wanted.dtype, wanted.shape)
        assert found.state[path].tobytes() == wanted.tobytes()
