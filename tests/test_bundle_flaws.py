"""Flaws of bundles, each by its name; and results that no bundle can hold."""

import dataclasses
import hashlib
import tracemalloc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from bundles import EXACT, LEARNED, learned, resealed, set_array, solved

from bigtrain import CostOfExploration, FitResult, TabularCMDP
from bigtrain import errors as E
from bigtrain.bundle import dump_bundle, parse_bundle
from bigtrain.exploration import KPrior
from bigtrain.finite.policies import BayesPolicy
from bigtrain.policy import Policy
from bigtrain.storage.container import MAGIC, seal, unseal


def test_every_truncation_is_named():
    data = EXACT
    for length in range(len(data)):
        with pytest.raises(E.BundleTruncatedError):
            parse_bundle(data[:length])


def test_every_flipped_bit_is_named():
    data = EXACT
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(E.BundleError) as caught:
            parse_bundle(bytes(flipped))
        where = bit // 8
        if where < 8:
            assert caught.type is E.NotABundleError
        elif where < 12:
            assert caught.type is E.BundleVersionError
        elif where < 20:
            assert caught.type in (E.BundleTruncatedError, E.BundleDigestError)
        else:
            assert caught.type is E.BundleDigestError


def test_a_newer_version_asks_for_an_upgrade():
    data = bytearray(EXACT)
    data[8] = 2
    with pytest.raises(E.BundleVersionError, match="version 1 of the format, got 2. Upgrade"):
        parse_bundle(bytes(data))


def test_what_follows_a_bundle_is_a_flaw():
    with pytest.raises(E.BundleDigestError):
        parse_bundle(EXACT + b"\0")


def spelled(payload: bytes) -> bytes:
    """A bundle with this payload, whatever it is."""
    head = MAGIC + (1).to_bytes(4, "little") + len(payload).to_bytes(8, "little")
    return head + hashlib.sha256(head + payload).digest() + payload


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"", E.BundleStructureError),
        (b"\xc1", E.BundleStructureError),
        (b"\x80\x80", E.BundleStructureError),
        (b"\x81\xa1a", E.BundleStructureError),
        (b"\x82\xa1a\x01\xa1a\x01", E.BundleStructureError),  # a key twice
        (b"\x82\xa1b\x01\xa1a\x01", E.BundleStructureError),  # keys in the wrong order
        (b"\x81\xa1a\xd0\x01", E.BundleStructureError),  # a number in a longer form than it needs
        (b"\x81\x01\x01", E.BundleStructureError),  # a key that is no text
        (b"\x82\xa1a\x01\xc4\x01b\x01", E.BundleStructureError),  # nor is this one
        (b"\x81\xa1a\xc7\0\x05", E.BundleStructureError),  # an extension of msgpack
        (b"\x81\xa2\xff\xfe\x01", E.BundleStructureError),  # text that is no UTF-8
        (b"\xd6\xff\0\0\0\0", E.BundleStructureError),  # a timestamp
        (b"\x01", E.BundleStructureError),
        (b"\xdd\xff\xff\xff\xff", E.BundleLimitError),
        (b"\xdf\xff\xff\xff\xff", E.BundleLimitError),
        (b"\xdb\xff\xff\xff\xff", E.BundleStructureError),
        (b"\xc6\xff\xff\xff\xff", E.BundleStructureError),
        (b"\x91" * 17 + b"\x01", E.BundleLimitError),
        (b"\x91" * 100_000 + b"\x01", E.BundleLimitError),
        (b"\x81\xa1a" * 100_000 + b"\x01", E.BundleLimitError),
        (b"\xdc\x00\x10" * 100_000, E.BundleLimitError),
        (b"\xdd\x00\x00\xff\xff" + b"\x90" * 65_535, E.BundleStructureError),
        (b"\xdd\x00\x01\x00\x00" + b"\x90" * 65_536, E.BundleLimitError),
        (b"\x9f" + (b"\xdc\xff\xff" + b"\x90" * 65_535) * 15, E.BundleLimitError),
    ],
)
def test_payloads_that_are_none(payload, error):
    tracemalloc.start()
    try:
        with pytest.raises(error):
            parse_bundle(spelled(payload))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16_000_000  # 65,536 empty lists have 56 bytes each, and are copied once


def test_every_form_of_value_comes_back():
    """Texts, blocks, lists, maps and numbers, on both sides of where their forms change."""
    sizes = [0, 15, 16, 31, 32, 255, 256, 2_000]
    content = {
        "texts": {str(size): "x" * size for size in (*sizes, 65_535, 65_536)},
        "blocks": {str(size): b"x" * size for size in (*sizes, 65_535, 65_536)},
        "lists": {str(size): [None] * size for size in sizes},
        "maps": {str(size): {str(key): True for key in range(size)} for size in sizes},
        "numbers": [0.5, *(sign * 2**n - sign for sign in (1, -1) for n in range(64))],
        "least and greatest": [-(2**63), 2**64 - 1],
    }
    assert unseal(seal(content))[1] == content


def put(*path, value):
    """A change that puts a value into a bundle's content."""

    def change(content):
        for step in path[:-1]:
            content = content[step]
        assert path[-1] in content
        content[path[-1]] = value

    return change


def put_array(*path, values):
    """A change of the numbers of an array."""

    def change(content):
        for step in path:
            content = content[step]
        set_array(content, values)

    return change


def drop(*path):
    def change(content):
        for step in path[:-1]:
            content = content[step]
        del content[path[-1]]

    return change


def poison(*path, value):
    """A change of one number of an array."""

    def change(content):
        for step in path:
            content = content[step]
        values = np.frombuffer(content["data"], content["dtype"]).copy()
        values[len(values) // 2] = value
        content["data"] = values.tobytes()

    return change


NETWORK = ("policy", "network", "arrays")
POSTERIOR = ("policy", "belief", "network", "arrays")
FLAWS = [
    # NaN and infinities, wherever they are
    (LEARNED, poison(*NETWORK, "layers.0.weight", value=np.nan), E.BundleValueError),
    (LEARNED, poison(*NETWORK, "core.weight_hh", value=np.inf), E.BundleValueError),
    (LEARNED, poison(*POSTERIOR, "head.bias", value=-np.inf), E.BundleValueError),
    (LEARNED, poison("successor", "arrays", "head", value=np.nan), E.BundleValueError),
    (EXACT, poison("policy", "plans", value=1e300), E.BundleValueError),
    (EXACT, poison("reward", "covariance", value=np.nan), E.BundleValueError),
    (EXACT, put("gamma", value=float("nan")), E.BundleValueError),
    (EXACT, put("reward", "bias", value=float("inf")), E.BundleValueError),
    # Shapes that disagree
    (LEARNED, put_array(*NETWORK, "value", values=np.zeros(3)), E.BundleShapeError),
    (LEARNED, put(*NETWORK, "value", "shape", value=[9, 9]), E.BundleShapeError),
    (LEARNED, put("policy", "network", "width", value=7), E.BundleShapeError),
    (EXACT, put_array("reward", "weights", values=np.zeros(5)), E.BundleShapeError),
    (EXACT, put_array("policy", "plans", values=np.zeros((6, 1, 3))), E.BundleShapeError),
    (EXACT, put_array("expert", values=np.full((2, 5, 2), 0.5)), E.BundleShapeError),
    (EXACT, put("action_names", value="left\nright"), E.BundleShapeError),
    (EXACT, put("problem", "state_names", value="one\ntwo"), E.BundleShapeError),
    (EXACT, put("observation", "shape", value=[7]), E.BundleShapeError),
    (EXACT, put("observation", "maximum", value=2.0), E.BundleShapeError),
    (EXACT, put("observation", "maximum", value=None), E.BundleValueError),
    (EXACT, put("action_names", value="\n" * 2**20), E.BundleLimitError),
    (EXACT, put_array("exploration", "k", "low", values=np.zeros(2)), E.BundleShapeError),
    (
        EXACT,
        put_array("exploration", "k", "low", values=np.zeros((2, 3, 1))),
        E.BundleShapeError,
    ),
    # Fields that are missing or of the wrong type
    (EXACT, drop("provenance"), E.BundleStructureError),
    (EXACT, drop("measured"), E.BundleStructureError),
    (EXACT, drop("policy", "plans", "data"), E.BundleStructureError),
    (EXACT, put("gamma", value=0), E.BundleStructureError),
    (EXACT, put("policy", value=[1]), E.BundleStructureError),
    (EXACT, put("certificate", "closed", value=1), E.BundleStructureError),
    (EXACT, put("policy", "plans", "shape", value=[6, True, 2]), E.BundleStructureError),
    (EXACT, put("problem", value=None), E.BundleStructureError),
    (LEARNED, drop(*NETWORK, "entry.bias"), E.BundleStructureError),
    (LEARNED, put("policy", "network", "depth", value=3), E.BundleStructureError),
    (LEARNED, put("policy", "network", "core_width", value=None), E.BundleStructureError),
    # Absurd sizes
    (EXACT, put("policy", "plans", "shape", value=[1] * 9), E.BundleLimitError),
    (EXACT, put("policy", "plans", "shape", value=[0]), E.BundleLimitError),
    (EXACT, put("policy", "plans", "shape", value=[1] * 17), E.BundleLimitError),
    (EXACT, put("policy", "plans", "shape", value=[2**63, 2**63]), E.BundleShapeError),
    (EXACT, put("observation", "shape", value=[2**20, 2**20]), E.BundleLimitError),
    (EXACT, put("context_names", value="a\n" + "b" * 257), E.BundleLimitError),
    (LEARNED, put("policy", "network", "width", value=2**40), E.BundleLimitError),
    (LEARNED, put("policy", "network", "depth", value=10**9), E.BundleLimitError),
    (LEARNED, put("policy", "network", "core_width", value=2**16), E.BundleShapeError),
    # Values that cannot be
    (EXACT, put("gamma", value=1.0), E.BundleValueError),
    (EXACT, put("policy", "kind", value="code"), E.BundleValueError),
    (EXACT, put("policy", "plans", "dtype", value="object"), E.BundleValueError),
    (EXACT, put("context_names", value="same\nsame"), E.BundleValueError),
    (EXACT, put("context_names", value="a\n\x1b[31mred"), E.BundleValueError),
    (EXACT, put_array("context_prior", values=[0.5, 0.6]), E.BundleValueError),
    (EXACT, put_array("context_prior", values=[1.5, -0.5]), E.BundleValueError),
    (EXACT, poison("problem", "probabilities", value=0.3), E.BundleValueError),
    (EXACT, poison("problem", "successors", value=6), E.BundleValueError),
    (EXACT, poison("problem", "successors", value=-1), E.BundleValueError),
    (EXACT, poison("expert", value=2.0), E.BundleValueError),
    (EXACT, put("reward", "minimum", value=10.0), E.BundleValueError),
    (EXACT, put("reward", "scale", value=0.0), E.BundleValueError),
    (EXACT, put("reward", "temperature", value=-1.0), E.BundleValueError),
    (EXACT, put("certificate", "lower", value=1e6), E.BundleValueError),
    (EXACT, put_array("exploration", "states", values=[1, 1]), E.BundleValueError),
    (EXACT, put_array("exploration", "states", values=[6]), E.BundleValueError),
    (EXACT, put_array("exploration", "k", "high", values=1.5), E.BundleValueError),
    (EXACT, put_array("exploration", "k", "high", values=0.1), E.BundleValueError),
    (LEARNED, put_array(*NETWORK, "encoder.scale", values=0.0), E.BundleValueError),
]


@pytest.mark.parametrize(("bundle", "change", "error"), FLAWS)
def test_flaws_under_a_right_digest_are_named(bundle, change, error):
    with pytest.raises(error) as caught:
        parse_bundle(resealed(bundle, change))
    assert isinstance(caught.value, E.BundleError)
    assert str(caught.value).endswith(".")


def measure_peak(data: bytes) -> tuple[int, Exception | None]:
    """The memory that parsing took at most, and what it said."""
    tracemalloc.start()
    error = None
    try:
        parse_bundle(data)
    except E.BundleError as flaw:
        error = flaw
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, error


def test_small_files_cannot_ask_for_large_tables():
    """Rows that would be broadcast against columns, and successors compared with each other."""
    rows, columns = np.zeros(100_000), np.zeros((100_000, 1))

    def broadcast(content):
        set_array(content["exploration"]["k"]["low"], rows)
        set_array(content["exploration"]["k"]["high"], columns)

    data = resealed(EXACT, broadcast)
    peak, error = measure_peak(data)
    assert isinstance(error, E.BundleShapeError) and peak < 20 * len(data)

    def widen(content):
        probabilities = np.zeros((2, 6, 3, 20_000))
        probabilities[..., 0] = 1
        set_array(content["problem"]["successors"], np.zeros((6, 3, 20_000)))
        set_array(content["problem"]["probabilities"], probabilities)

    data = resealed(EXACT, widen)
    peak, error = measure_peak(data)
    assert error is None and peak < 10 * len(data)


# ── Results that no bundle can hold ──────────────────────────────────────────────────────────────


class Guess(KPrior):
    """A prior of somebody else."""

    mean = variance = property(lambda self: np.asarray(0.5))  # type: ignore[assignment]
    support = property(lambda self: (np.asarray(0.5), np.asarray(0.5)))  # type: ignore[assignment]

    def quantile(self, probability):
        return probability


class Coin(Policy):
    """A policy of somebody else."""

    def init(self):
        return ()

    def step(self, state, observation, previous_action):
        raise NotImplementedError


def with_reward(result: FitResult, **changes) -> FitResult:
    return dataclasses.replace(result, reward=dataclasses.replace(result.reward, **changes))


def renamed(name: str) -> FitResult:
    result = learned("tiger-treasure", "learned", "none")
    assert isinstance(result.cmdp, TabularCMDP)
    cmdp = TabularCMDP(
        result.cmdp.transitions,
        result.cmdp.context_prior,
        result.cmdp.initial,
        gamma=result.cmdp.gamma,
        state_names=result.cmdp.state_names,
        action_names=["a", "b", name],
    )
    return dataclasses.replace(result, cmdp=cmdp)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda r: dataclasses.replace(r, policy=Coin()), E.BundleWriteError, "got Coin"),
        (
            lambda r: with_reward(r, exploration=CostOfExploration(["T1"], k=Guess())),
            E.BundleWriteError,
            "got Guess",
        ),
        (
            lambda r: dataclasses.replace(r, policy=solved("detour").policy),
            E.BundleWriteError,
            "one for the problem",
        ),
        (
            lambda r: dataclasses.replace(
                r,
                policy=dataclasses.replace(learned("detour", "learned", "none").policy, gamma=0.5),
            ),
            E.BundleWriteError,
            "discount of the problem, 0.99",
        ),
        (lambda r: renamed("two\nlines"), E.BundleWriteError, "printable"),
        (lambda r: renamed("x" * 300), E.BundleLimitError, "at most 256 characters"),
        (lambda r: with_reward(r, bias=float("nan")), E.BundleValueError, "`reward.bias`"),
        (
            lambda r: dataclasses.replace(
                r, provenance=dataclasses.replace(r.provenance, seed=1 << 64)
            ),
            E.BundleLimitError,
            "64 bits",
        ),
    ],
)
def test_what_cannot_be_stored_is_said_before_anything_is_written(change, error, message, tmp_path):
    with pytest.raises(error, match=message):
        change(solved("tiger-treasure")).save(tmp_path / "x.big")
    assert list(tmp_path.iterdir()) == []


def test_a_problem_that_went_through_compiled_code_is_still_the_same():
    """It comes back in float32, in which policies run anyway."""
    result = solved("tiger-treasure")
    policy = eqx.filter_jit(lambda policy: policy)(result.policy)
    assert policy.cmdp.probabilities.dtype == jnp.float32
    loaded = parse_bundle(dump_bundle(dataclasses.replace(result, policy=policy)))
    assert isinstance(loaded.policy, BayesPolicy)
    np.testing.assert_array_equal(loaded.policy.plans, policy.plans)
