"""The engine: the policy itself to the last bit, in any company, with actions drawn as was said."""

import functools
import logging
import struct
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bundles import EXACT, LEARNED, shaken
from jaxtyping import Array, Int, Shaped

from bigserve.engine import Engine
from bigserve.episodes import derive_key
from bigserve.layout import BEGUN, EPSILON, HEAD, KEY, PREVIOUS, STEP, TEMPERATURE
from bigserve.models import DTYPES
from bigtrain import envs, load_bundle
from bigtrain.belief import AmortisedInference, Categorical
from bigtrain.bundle import ArraySpec
from bigtrain.finite.inference import FiniteInference
from bigtrain.learning.networks import NetworkConfig
from bigtrain.policy import (
    BLOCK,
    Decision,
    NetworkPolicy,
    Policy,
    PolicyConfig,
    ValueNetwork,
    compile_block,
)

TIGER = envs.make("tiger-treasure")
NUM_FOLLOWED, LARGEST = 10, 70

# ── policies ─────────────────────────────────────────────────────────────────────────────────────


def network_policy(inference: Any, seen: np.ndarray, config: NetworkConfig, core: Any) -> Policy:
    config_ = PolicyConfig(config, core=core, core_width=5)
    network = ValueNetwork(
        jnp.asarray(seen), num_contexts=2, num_actions=3, config=config_, key=jax.random.key(0)
    )
    return NetworkPolicy(inference, shaken(network, seed=0), 0.3, 1.7, TIGER.gamma)


def make(name: str, folder: Any) -> tuple[Policy, np.ndarray]:
    """A policy, and what there is to see."""
    if name in ("exact", "learned"):
        file = folder / "policy.big"
        file.write_bytes({"exact": EXACT, "learned": LEARNED}[name])
        bundle = load_bundle(file)
        assert bundle.problem is not None
        return bundle.policy, np.asarray(bundle.problem.observation_array())
    if name == "no memory":
        seen = TIGER.observation_array()
        return network_policy(FiniteInference(TIGER), seen, NetworkConfig(width=8), "none"), seen
    seen = np.random.default_rng(0).integers(256, size=(6, 7), dtype=np.uint8)  # no whole words
    config = NetworkConfig(width=6, depth=2)
    inference = AmortisedInference(
        jnp.asarray(seen),
        context_prior=(0.6, 0.4),
        num_actions=3,
        config=config,
        core_width=5,
        key=jax.random.key(1),
    )
    return network_policy(shaken(inference, seed=1), seen, config, "gru"), seen


@pytest.mark.parametrize("name", ["exact", "learned", "odd bytes", "no memory"])
def test_every_batch_is_what_each_episode_does_alone(name, tmp_path):
    """To the last bit, for batches of 1 to 70 in up to three blocks, in random company."""
    policy, seen = make(name, tmp_path)
    engine = Engine(policy, ArraySpec("", seen.dtype.name, seen.shape[1:]), sizes=(32, 96))
    alone = Alone(policy, seen)
    rng = np.random.default_rng(0)
    layout = engine.layout
    rows = layout.make_rows(LARGEST)
    surprises = 0
    for size in rng.permutation(np.arange(1, LARGEST + 1)):
        chosen = rng.permutation(size)
        shown = seen[rng.choice(len(seen), size, p=[0.1, 0.35, 0.35, 0.05, 0.05, 0.1])]
        given = layout.give(rows[chosen], layout.pack(shown))
        taken, impossible = layout.split(engine.step(given))
        fine = impossible == 0
        rows[chosen[fine]] = taken[fine]
        for place in np.flatnonzero(chosen < NUM_FOLLOWED).tolist():
            wanted = alone.step(chosen[place], shown[place])
            assert fine[place] == (wanted is not None)
            if wanted is None:
                surprises += 1
                continue
            row, (state, decision, num_steps) = taken[place], wanted
            action = decision.probs.argmax()
            assert row[[BEGUN, STEP, PREVIOUS]].tolist() == [1, num_steps, action]
            assert_same(layout.state(row), state)
            details, belief = layout.details(row), decision.belief
            assert details.entropy.tobytes() == belief.entropy.tobytes()
            assert details.values.tobytes() == decision.values.tobytes()
            assert details.belief.tobytes() == belief.probs.tobytes()
    assert sum(alone.num_steps) > 50  # they have come some way
    # Only the exact filter knows what cannot be.
    assert (surprises > 100) == (name in ("exact", "no memory"))
    assert (surprises == 0) == (name in ("learned", "odd bytes"))


class Alone:
    """Episodes that are stepped in process, each in row 0 of a block of which the rest is noise."""

    def __init__(self, policy: Policy, seen: np.ndarray):
        self._step = compile_block(policy)
        rng = np.random.default_rng(1)
        self._states = [jax.tree.map(np.asarray, policy.init()) for _ in range(NUM_FOLLOWED)]
        self._actions = [-1] * NUM_FOLLOWED
        self.num_steps = [0] * NUM_FOLLOWED

        def noise(leaf: np.ndarray) -> np.ndarray:
            return rng.normal(0, 2, (BLOCK, *leaf.shape)).astype(leaf.dtype)

        self._others = jax.tree.map(noise, self._states[0])
        self._shown = seen[rng.integers(len(seen), size=BLOCK)].copy()

    def step(self, episode: int, observation: np.ndarray) -> tuple[Any, Decision, int] | None:
        """State and decision after an observation, and how many there were; None if surprised."""

        def join(leaf: np.ndarray, others: np.ndarray) -> np.ndarray:
            return np.concatenate([leaf[None], others[1:]])

        self._shown[0] = observation
        previous = np.full(BLOCK, self._actions[episode], np.int32)
        states = jax.tree.map(join, self._states[episode], self._others)
        state, decision = jax.tree.map(
            lambda leaf: np.asarray(leaf)[0], self._step(states, self._shown, previous)
        )
        if decision.surprised:
            return None
        self._states[episode], self._actions[episode] = state, int(decision.probs.argmax())
        self.num_steps[episode] += 1
        return state, decision, self.num_steps[episode]


def assert_same(read: dict[str, np.ndarray], state: Any) -> None:
    """That a row holds this state, under its names."""
    for path, leaf in jax.tree.leaves_with_path(state):
        found = read.pop(jax.tree_util.keystr(path, simple=True, separator="."))
        assert (found.dtype, found.shape) == (leaf.dtype, leaf.shape)
        assert found.tobytes() == leaf.tobytes()
    assert not read


# ── words ────────────────────────────────────────────────────────────────────────────────────────


@final
class Told(Policy):
    """A policy that is told the values of its actions, and remembers one of every kind."""

    def init(self) -> dict[str, Array]:
        return {
            "flags": jnp.array([True, False, True]),
            "bytes": jnp.arange(5, dtype=jnp.uint8),
            "count": jnp.asarray(7),
            "table": jnp.arange(6.0).reshape(2, 3),
        }

    def step(
        self, state: Any, observation: Shaped[Array, "..."], previous_action: Int[Array, ""]
    ) -> tuple[Any, Decision]:
        after = {
            "flags": ~state["flags"],
            "bytes": state["bytes"] + jnp.uint8(250),
            "count": state["count"] + observation.sum(),
            "table": state["table"] / 2,
        }
        values = observation / 2
        greedy = jax.nn.one_hot(jnp.argmax(values), 4)
        belief = Categorical(jnp.log(jnp.array([0.5, 0.5])))
        return after, Decision(greedy, values, belief, jnp.asarray(False))


@functools.cache
def told() -> Engine:
    return Engine(Told(), ArraySpec("", "int32", (4,)), sizes=(32, 64))


def test_arrays_of_every_kind_go_through_rows_and_programs():
    engine, layout = told(), told().layout
    seen = np.array([[1, -2, 3, 4], [2**31 - 1, -(2**31), 0, 5]], np.int32)
    rows = layout.make_rows(2)
    state = {
        "flags": np.array([False, False, True]),
        "bytes": np.array([0, 5, 6, 255, 128], np.uint8),
        "count": np.array(-5, np.int32),
        "table": np.array([[np.inf, -0.0, 3], [1e-30, 2, 9]], np.float32),
    }
    for row in rows:
        layout.resume(row, 3, 0, state, layout.no_details(1).select(0))
        assert_same(layout.state(row), state)
    words = layout.pack(seen)
    after = engine.step(layout.give(rows, words))
    for row, one in zip(after, seen, strict=True):
        found = layout.state(row)
        np.testing.assert_array_equal(found["flags"], [True, True, False])
        np.testing.assert_array_equal(found["bytes"], [250, 255, 0, 249, 122])
        assert found["count"] == -5 + one.sum()
        np.testing.assert_array_equal(found["table"], state["table"] / 2)
    np.testing.assert_array_equal([layout.unpack(row) for row in words], seen)


NARROW = {"int64": "int32", "float64": "float32"}
"""What a policy takes of numbers of 64 bits."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_observations_of_every_kind_are_unpacked_as_they_were_packed(dtype, shape, monkeypatch):
    monkeypatch.setattr(Engine, "_step", lambda self, rows, num_blocks=None: rows)  # no program
    engine = Engine(Told(), ArraySpec("", dtype, shape), sizes=(32,))
    seen = np.random.default_rng(0).normal(0, 100, (3, *shape)).astype(np.int32).astype(dtype)
    layout = engine.layout
    words = layout.pack(seen)
    assert words.shape == layout.make_seen(3).shape
    for row, one in zip(words, seen, strict=True):
        found, narrow = layout.unpack(row), one.astype(NARROW.get(dtype, dtype))
        assert (found.dtype, found.tobytes()) == (narrow.dtype, narrow.tobytes())


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_numbers_of_64_bits_are_read_as_such():
    engine = Engine(Told(), ArraySpec("", "float64", (4,)), sizes=(32,))
    layout = engine.layout
    words = layout.pack(SEEN[None].astype(np.float64))
    (row,) = engine.step(layout.give(layout.make_rows(1), words))
    assert row[PREVIOUS] == VALUES.argmax()


def test_an_episode_that_has_not_begun_begins_at_the_beginning():
    """Whatever is in the rest of its row."""
    layout = told().layout
    rows = layout.make_rows(1)
    rows[:] = 0x12345678
    rows[0, [BEGUN, EPSILON, TEMPERATURE]] = 0
    (row,) = told().step(layout.give(rows, layout.pack(np.ones((1, 4), np.int32))))
    found = layout.state(row)
    np.testing.assert_array_equal(found["flags"], [False, True, False])
    assert found["count"] == 7 + 4


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────

SEEN = np.array([2, 6, 5, 6], np.int32)
VALUES = SEEN / 2


def heads(count: int, *, epsilon: float = 0.0, temperature: float = 0.0) -> np.ndarray:
    """Rows of episodes with random streams of their own, at steps of their own."""
    rows = told().layout.make_rows(count)
    for index, row in enumerate(rows):
        row[KEY] = np.frombuffer(derive_key(3, index), np.int32)
        row[STEP] = index % 5
        row[EPSILON], row[TEMPERATURE] = struct.unpack(
            "=ii", struct.pack("=ff", epsilon, temperature)
        )
    return rows


def draw(rows: np.ndarray, seen: np.ndarray = SEEN) -> np.ndarray:
    """What the episodes do, in batches of 64."""
    layout = told().layout
    given = layout.give(rows, layout.pack(np.tile(seen, (len(rows), 1))))
    parts = [told().step(given[at : at + 64]) for at in range(0, len(given), 64)]
    return np.concatenate(parts)[:, PREVIOUS]


SOFT = np.exp(VALUES / 0.7) / np.exp(VALUES / 0.7).sum()


@pytest.mark.parametrize(
    "rule, probabilities",
    [
        ({"epsilon": 0.3}, [0.075, 0.775, 0.075, 0.075]),
        ({"epsilon": 1.0}, [0.25] * 4),
        ({"temperature": 0.7}, SOFT),
        ({"epsilon": 1.0, "temperature": 0.7}, SOFT),
    ],
)
def test_actions_are_drawn_with_their_probabilities(rule, probabilities):
    """χ² with 3 degrees of freedom is above 16.27 once in a thousand such samples."""
    count = 64 * 64
    found = np.bincount(draw(heads(count, **rule)), minlength=4)
    wanted = count * np.asarray(probabilities)
    assert ((found - wanted) ** 2 / wanted).sum() < 16.27


def test_values_far_apart_do_not_overflow():
    extreme = np.array([-(2**31), 2**31 - 1, 0, 1], np.int32)
    rows = heads(64, temperature=1e-35)
    assert (draw(rows, extreme) == 1).all()


def test_draws_depend_on_key_and_step_alone():
    rows = heads(64, temperature=50.0)
    first = draw(rows)
    np.testing.assert_array_equal(draw(rows), first)
    order = np.random.default_rng(0).permutation(64)
    np.testing.assert_array_equal(draw(rows[order]), first[order])
    np.testing.assert_array_equal(draw(rows[:5]), first[:5])
    later, others = rows.copy(), rows.copy()
    later[:, STEP] += 1
    others[:, KEY] = rows[order][:, KEY]
    assert 30 < (draw(later) != first).sum() < 64  # 48 of 64 differ by chance, give or take 3.5
    assert 30 < (draw(others) != first).sum() < 64


def test_greedy_episodes_draw_nothing():
    """Ties go to the first, whatever the company, and key and rule stay as they are."""
    rows = heads(64)
    rows[::2] = heads(64, temperature=50.0)[::2]
    assert (draw(rows)[1::2] == 1).all()
    layout = told().layout
    given = layout.give(rows, layout.pack(np.tile(SEEN, (64, 1))))
    np.testing.assert_array_equal(
        told().step(given)[:, KEY.start : HEAD], rows[:, KEY.start : HEAD]
    )


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_compiled_once_an_engine_is_made(caplog):
    engine, layout, seen = told(), told().layout, np.ones((64, 4), np.int32)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        jax.jit(lambda x: x * 3)(seen)
        assert "Compiling" in caplog.text  # it would be seen
        caplog.clear()
        for size in (1, 2, 31, 32, 33, 64):
            given = layout.give(heads(size, epsilon=0.5), layout.pack(seen[:size]))
            layout.state(engine.step(given)[0])
    assert "Compiling" not in caplog.text
