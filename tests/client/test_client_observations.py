"""Observations that do not fit fail before they are sent, and what fits arrives unchanged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigclient.arrays import DTYPES, decode, encode
from bigclient.description import ArraySpec, Model
from bigclient.errors import ObservationInvalid
from bigclient.observations import ObservationSpec


def spec(*entries: ArraySpec) -> ObservationSpec:
    fields = dict.fromkeys(Model.__dataclass_fields__, None)
    return ObservationSpec(Model(**{**fields, "observation": entries}))  # type: ignore[arg-type]


FLOATS = ArraySpec(np.dtype("<f4"), (2,))
COUNT = ArraySpec(np.dtype("<i4"))


@given(st.sampled_from(list(DTYPES.values())), st.lists(st.integers(0, 3), max_size=3))
def test_arrays_come_back_as_they_went(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    back = decode(encode(array))
    assert back.dtype == dtype and back.flags.writeable
    np.testing.assert_array_equal(back, array)


def test_bytes_are_little_endian():
    assert encode(np.array([1], "<i4")).data == b"\x01\x00\x00\x00"
    (column,) = spec(COUNT).columns(np.array(1, ">i4"), ())
    assert column.tobytes() == b"\x01\x00\x00\x00"


@pytest.mark.parametrize(
    ("entry", "observation", "want"),
    [
        (FLOATS, [0.1, 0.2], [0.1, 0.2]),
        (FLOATS, np.array([0.1, 0.2]), [0.1, 0.2]),
        (FLOATS, [1, 2], [1, 2]),
        (FLOATS, np.array([True, False]), [1, 0]),
        (FLOATS, np.array([np.nan, np.inf]), [np.nan, np.inf]),  # the server's to judge
        (COUNT, 3, 3),
        (COUNT, np.int64(3), 3),
        (COUNT, np.uint8(3), 3),
        (ArraySpec(np.dtype(np.uint8)), 255, 255),
        (ArraySpec(np.dtype(np.bool_)), True, True),
    ],
)
def test_what_keeps_its_value_is_cast(entry, observation, want):
    (column,) = spec(entry).columns(observation, ())
    assert column.dtype == entry.dtype and column.shape == entry.shape
    np.testing.assert_array_equal(column, np.asarray(want, entry.dtype))


@pytest.mark.parametrize(
    ("entry", "observation", "message"),
    [
        (COUNT, 1.0, "must be int32, got float64: convert"),
        (COUNT, 2**31, "got int64 with the value 2147483648, which int32 cannot hold"),
        (ArraySpec(np.dtype(np.uint8)), np.int64(-1), "with the value -1"),
        (ArraySpec(np.dtype(np.bool_)), 1, "must be bool, got int64"),
        (FLOATS, [2**24 + 1, 0], "with the value 16777217, which float32 cannot hold"),
        (FLOATS, [1e39, 0.0], "with the value 1e\\+39"),
        (FLOATS, ["a", "b"], "must be float32, got str"),
        (FLOATS, [1.0, 2.0, 3.0], "shape \\(2,\\), got \\(3,\\)"),
        (FLOATS, [[1.0, 2.0]], "shape \\(2,\\), got \\(1, 2\\)"),
        (ArraySpec(np.dtype("<f4"), (2,), "pose"), 1.0, "Observation `pose` must have shape"),
    ],
)
def test_what_would_change_is_refused_by_name(entry, observation, message):
    with pytest.raises(ObservationInvalid, match=message):
        spec(entry).columns(observation, ())


def test_a_batch_has_a_row_for_each_episode():
    (column,) = spec(FLOATS).columns(np.zeros((3, 2), np.float32), (3,))
    assert column.shape == (3, 2)
    with pytest.raises(ObservationInvalid, match="3 episodes, each \\(2,\\), got \\(2, 2\\)"):
        spec(FLOATS).columns(np.zeros((2, 2), np.float32), (3,))


def test_data_that_is_not_contiguous_is_sent_in_order():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    (column,) = spec(FLOATS).columns(array, (3,))
    assert np.frombuffer(column.tobytes(), "<f4").tolist() == [0, 3, 1, 4, 2, 5]


TWO = spec(ArraySpec(np.dtype("<f4"), (2,), "pose"), ArraySpec(np.dtype("<i4"), (), "gear"))


@pytest.mark.parametrize("observation", [{"gear": 3, "pose": [1.0, 2.0]}, ([1.0, 2.0], 3)])
def test_entries_come_in_the_models_order(observation):
    pose, gear = TWO.columns(observation, ())
    assert pose.tolist() == [1.0, 2.0] and gear == 3


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"pose": [1.0, 2.0]}, "entries \\['pose', 'gear'\\], got \\['pose'\\]"),
        (np.zeros(2), "or a tuple of them in that order, got a ndarray"),
        (([1.0, 2.0],), "got a tuple"),
    ],
)
def test_entries_must_be_all_there(observation, message):
    with pytest.raises(ObservationInvalid, match=message):
        TWO.columns(observation, ())


def test_batches_are_told_from_single_observations():
    assert spec(FLOATS).num_rows(np.zeros(2)) is None
    assert spec(FLOATS).num_rows(np.zeros((5, 2))) == 5
    assert TWO.num_rows({"gear": [1, 2, 3], "pose": np.zeros((3, 2))}) == 3
    assert TWO.num_rows((np.zeros(2), 3)) is None
