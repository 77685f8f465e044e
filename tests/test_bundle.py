"""Bundles: what is loaded is what was saved, to the last bit, and every flaw has a name."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bundles import EXACT, LEARNED, learned, resealed, simulated, solved
from problems import dense
from rich.console import Console
from scipy import special

from bigtrain import CostOfExploration, FitResult, Fixed, MaximumEntropy, TabularCMDP, Uniform
from bigtrain import errors as E
from bigtrain.bundle import ArraySpec, dump_bundle, load_bundle, parse_bundle, render, save_bundle
from bigtrain.evaluate import Estimate, Evaluation
from bigtrain.finite.policies import BayesPolicy, MemorylessPolicy
from bigtrain.policy import NetworkPolicy, Policy
from bigtrain.result import Measured
from bigtrain.storage.container import unseal

MAZE = {"observation": "symbolic"}
PIXELS = {"observation": "pixels"}


def with_table() -> FitResult:
    """A result whose policy looks at the state alone."""
    result = solved("detour")
    assert isinstance(result.cmdp, TabularCMDP)
    table = np.random.default_rng(0).dirichlet(np.ones(2), 6)
    return dataclasses.replace(result, policy=MemorylessPolicy(result.cmdp, table))


RESULTS = {
    "tiger-treasure": lambda: solved("tiger-treasure"),
    "detour": lambda: solved("detour"),
    "maze": lambda: solved("tiger-maze", **MAZE),
    "maze in pixels": lambda: solved("tiger-maze", **PIXELS),
    "memoryless": with_table,
    "network, exact belief": lambda: learned("tiger-treasure", "exact", "none"),
    "network with core, exact belief": lambda: learned("tiger-maze", "exact", "gru", **MAZE),
    "network, learned belief": lambda: learned("tiger-maze", "learned", "none", **PIXELS),
    "network with core, learned belief": lambda: learned("tiger-treasure", "learned", "gru"),
    "simulator": simulated,
}


# ── What is loaded is what was saved ─────────────────────────────────────────────────────────────


@eqx.filter_jit
def decide(policy: Policy, observations: jax.Array, actions: jax.Array):
    """The decisions of episodes, whatever was done in them."""

    def step(state, moment):
        return policy.step(state, *moment)

    def episode(observations, actions):
        return jax.lax.scan(step, policy.init(), (observations, actions))

    return jax.vmap(episode)(observations, actions)


@pytest.mark.parametrize("name", RESULTS)
def test_a_loaded_policy_decides_the_same_to_the_last_bit(name):
    result = RESULTS[name]()
    loaded = parse_bundle(dump_bundle(result))
    cmdp, rng = result.cmdp, np.random.default_rng(0)
    inner = cmdp if isinstance(cmdp, TabularCMDP) else cmdp.inner
    actions = jnp.asarray(rng.integers(cmdp.num_actions, size=(20, 30)), jnp.int32)

    def episode(key, actions):
        def step(state, moment):
            key, action = moment
            return inner.step(key, state, action, context), inner.observe(state)

        key_context, key_reset, key_steps = jax.random.split(key, 3)
        context = inner.sample_context(key_context)
        keys = jax.random.split(key_steps, len(actions))
        return jax.lax.scan(step, inner.reset(key_reset, context), (keys, actions))[1]

    seen = jax.vmap(episode)(jax.random.split(jax.random.key(1), 20), actions)
    seen = seen.at[:5, 7].set(3)  # what no state looks like, in some episodes
    previous = jnp.concatenate([jnp.full((20, 1), -1, jnp.int32), actions[:, :-1]], 1)
    one, other = (decide(policy, seen, previous) for policy in (result.policy, loaded.policy))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert left.dtype == right.dtype
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
    knows_values = not isinstance(result.policy, MemorylessPolicy)
    assert (np.isfinite(one[1].values) == knows_values).all()


@pytest.mark.parametrize("name", RESULTS)
def test_a_loaded_bundle_holds_what_the_result_held(name):
    result = RESULTS[name]()
    loaded = parse_bundle(dump_bundle(result))
    reward = result.reward
    np.testing.assert_array_equal(loaded.context_prior, result.cmdp.context_prior)
    np.testing.assert_array_equal(loaded.weights, reward.weights)
    np.testing.assert_array_equal(loaded.covariance, reward.covariance)
    assert (loaded.bias, loaded.scale, loaded.reward_range) == (
        reward.bias,
        reward.scale,
        reward.reward_range,
    )
    assert (loaded.gamma, loaded.temperature) == (result.cmdp.gamma, result.temperature)
    assert loaded.provenance == result.provenance
    assert loaded.measured == result.measured
    if result.expert is not None:
        np.testing.assert_array_equal(loaded.expert, result.expert)
    if result.successor is not None:
        assert eqx.tree_equal(loaded.successor, result.successor)
    if result.certificate is not None:
        assert loaded.certificate is not None
        assert loaded.certificate[:4] == result.certificate[1:]
    cmdp, problem = result.cmdp, loaded.problem
    if not isinstance(cmdp, TabularCMDP):
        assert problem is None
        return
    assert problem is not None and problem.task is None
    for left, right in zip(problem.transitions, cmdp.transitions, strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(problem.initial, cmdp.initial)
    np.testing.assert_array_equal(problem.observation_array(), cmdp.observation_array())
    assert problem.state_names == cmdp.state_names
    assert (loaded.action_names, loaded.context_names) == (cmdp.action_names, cmdp.context_names)
    assert loaded.reward is not None
    np.testing.assert_array_equal(loaded.reward.table(), reward.table())


def test_features_and_numbered_states_are_kept():
    """A problem with features of its own, whose observations are the numbers of its states."""
    result = solved("detour")
    assert isinstance(result.cmdp, TabularCMDP) and isinstance(result.policy, BayesPolicy)
    cmdp = TabularCMDP(
        result.cmdp.transitions,
        result.cmdp.context_prior,
        result.cmdp.initial,
        gamma=result.cmdp.gamma,
        features=np.random.default_rng(0).normal(size=(6, 2, 6)),
        observations=np.arange(6),
    )
    reward = dataclasses.replace(result.reward, cmdp=cmdp)
    policy = eqx.tree_at(lambda p: p.cmdp, result.policy, cmdp)
    changed = dataclasses.replace(result, cmdp=cmdp, reward=reward, policy=policy)
    loaded = parse_bundle(dump_bundle(changed))
    assert loaded.observation == ArraySpec("", "int32", (), 0.0, 5.0, cmdp.state_names)
    assert loaded.problem is not None
    np.testing.assert_array_equal(loaded.problem.feature_table, cmdp.feature_table)


@pytest.mark.parametrize(
    "k",
    [
        Fixed(0.25),
        MaximumEntropy(0.4, -1.0, 1.0),
        Uniform([[0.1, 0.2], [0.3, 0.4]], 0.5),
        Uniform(np.array([[0.1], [0.2]]), np.array([0.3, 0.9])),
    ],
)
def test_exploration_priors_are_kept(k):
    result = solved("tiger-treasure")
    given = CostOfExploration(["T2", "T1"], ["listen", 0], k=k)
    changed = dataclasses.replace(
        result, reward=dataclasses.replace(result.reward, exploration=given)
    )
    loaded = parse_bundle(dump_bundle(changed))
    assert loaded.exploration is not None and loaded.reward is not None
    assert (loaded.exploration.states, loaded.exploration.actions) == ((2, 1), (2, 0))
    assert type(loaded.exploration.k) is type(k)
    np.testing.assert_array_equal(loaded.reward.table(), changed.reward.table())
    np.testing.assert_array_equal(loaded.reward.variance_table(), changed.reward.variance_table())


def test_a_simulator_is_told_in_words():
    loaded = parse_bundle(dump_bundle(simulated()))
    assert loaded.action_names == ("a0", "a1", "a2")
    assert loaded.context_names == ("context-0", "context-1")
    assert loaded.observation == ArraySpec("", "uint8", (12, 12, 1))
    assert loaded.exploration is None and "from -1 to 1, 0.4 in the mean" in loaded.exploration_note
    assert loaded.explain(np.zeros((12, 12, 1), np.uint8)) is None


def test_an_error_of_a_single_episode_stays_unknown():
    evaluation = Evaluation(*(Estimate(1.0, float("nan")) for _ in range(5)))
    result = dataclasses.replace(solved("detour"), measured=Measured(evaluation, 1, 9, None))
    loaded = parse_bundle(dump_bundle(result))
    assert loaded.measured is not None and loaded.measured.evaluation.success is not None
    assert np.isnan(loaded.measured.evaluation.success.stderr)
    assert loaded.summary()["measured"]["success"] == [1.0, None]


def test_where_the_policy_stands():
    """Measured by the same reward, or proved by the solution it comes from; otherwise unknown."""
    result = solved("tiger-treasure")
    certificate, measured = result.certificate, result.measured
    assert certificate is not None and measured is not None and measured.regret is not None

    def value(result, measured):
        changed = dataclasses.replace(result, measured=measured)
        found = parse_bundle(dump_bundle(changed)).certificate
        assert found is not None
        return found.value

    elsewhere = measured._replace(regret=measured.regret._replace(optimal=1.0))
    assert value(result, measured) == measured.regret.value
    assert value(result, None) == value(result, elsewhere) == certificate.lower
    other = learned("tiger-treasure", "exact", "none")
    assert value(other, measured) == measured.regret.value
    assert value(other, None) is value(other, elsewhere) is None


# ── The same content gives the same bytes ────────────────────────────────────────────────────────


def test_the_order_in_which_things_were_said_does_not_matter():
    result = solved("tiger-treasure")
    backwards = dict(reversed(list(result.provenance.settings.items())))
    provenance = dataclasses.replace(result.provenance, settings=backwards)
    changed = dataclasses.replace(result, provenance=provenance)
    assert list(backwards) != sorted(backwards)
    assert dump_bundle(changed) == dump_bundle(result)


def test_the_digest_is_over_everything_but_itself():
    data = EXACT
    assert parse_bundle(data).digest == hashlib.sha256(data[:20] + data[52:]).hexdigest()


def test_fields_of_later_times_are_ignored():
    def extend(content):
        content["later"] = content["reward"]["later"] = {"any": [1, 2.0, None]}

    loaded = parse_bundle(resealed(EXACT, extend))
    before = parse_bundle(EXACT)
    assert loaded.digest != before.digest
    np.testing.assert_array_equal(loaded.weights, before.weights)


def test_every_field_is_documented():
    document = (Path(__file__).parents[1] / "docs" / "bundle-format.md").read_text()

    def check(content):
        for key, part in content.items():
            assert f"`{key}`" in document or f"`{key}?`" in document
            if isinstance(part, dict) and key not in ("arrays", "settings", "versions"):
                check(part)

    for data in (EXACT, LEARNED):
        check(unseal(data)[1])


# ── Explanations and summaries ───────────────────────────────────────────────────────────────────


def test_explanations_agree_with_planning():
    result = solved("tiger-treasure")
    cmdp = result.cmdp
    assert isinstance(cmdp, TabularCMDP)
    bundle = parse_bundle(dump_bundle(result))
    reward = np.asarray(result.reward.weights)[:, None] + result.reward.bias
    values = np.zeros((2, 6, 3))
    for _ in range(5_000):  # 0.99 ** 5000 < 1e-21
        values = reward + 0.99 * np.einsum("csan,cn->csa", dense(cmdp), values.max(-1))
    expert = special.softmax(values / result.temperature, axis=-1)
    for state, name in enumerate(cmdp.state_names):
        told = bundle.explain(cmdp.observe(jnp.asarray(state)))
        assert told is not None and told.state == name and told.expert is not None
        # Values are sums of some 1,000 in float64, and a temperature of 8 divides their errors.
        np.testing.assert_allclose(told.expert, expert[:, state], atol=1e-9)
        exploring = name in ("T1", "T2")
        assert told.explores.tolist() == [exploring] * 3
        # k is uniform on [0.4, 0.6] and r_max 10: a mean of 5, a deviation of 2 / √12.
        deviation = np.sqrt(result.reward.covariance[state, state])
        want = (5.0, 2 / np.sqrt(12)) if exploring else (reward[state, 0], deviation)
        np.testing.assert_allclose(told.reward_mean, want[0])
        np.testing.assert_allclose(told.reward_deviation, want[1])
    assert bundle.explain(np.full(6, 0.5, np.float32)) is None


def test_explanations_read_off_successor_features():
    result = learned("tiger-maze", "exact", "gru", **MAZE)
    cmdp, successor = result.cmdp, result.successor
    assert isinstance(cmdp, TabularCMDP) and successor is not None
    features = jnp.asarray(cmdp.feature_matrix().toarray().reshape(29, 5, 29), jnp.float32)
    seen = jnp.asarray(cmdp.observation_array())
    found = np.asarray(successor(seen, features), np.float64) @ np.asarray(result.reward.weights)
    bundle = parse_bundle(dump_bundle(result))
    for state in (0, 13, 28):
        told = bundle.explain(seen[state])
        assert told is not None and told.expert is not None
        want = special.softmax(found[:, state] / result.temperature, axis=-1)
        # Features are sums of about 100 in float32, each weighed by a reward of up to 1 and then
        # divided by the temperature of 0.03.
        np.testing.assert_allclose(told.expert, want, atol=1e-2)


@pytest.mark.parametrize("name", RESULTS)
def test_summaries_are_json_and_screens_are_small(name):
    bundle = parse_bundle(dump_bundle(RESULTS[name]()))
    summary = json.loads(json.dumps(bundle.summary(), allow_nan=False))
    assert summary["digest"] == bundle.digest
    assert summary["contexts"] == dict(
        zip(bundle.context_names, bundle.context_prior.tolist(), strict=True)
    )
    console = Console(width=80, height=40, file=open(os.devnull, "w"), record=True)
    console.print(render(bundle))
    text = console.export_text()
    assert bundle.digest in text and bundle.action_names[-1] in text
    assert len(text.splitlines()) <= 40


def test_a_summary_says_what_the_policy_is_made_of():
    result = learned("tiger-treasure", "learned", "gru")
    assert isinstance(result.policy, NetworkPolicy)
    policy = parse_bundle(dump_bundle(result)).summary()["policy"]
    assert (policy["kind"], policy["belief"], policy["core_width"]) == ("network", "learned", 5)
    sizes = [leaf.size for leaf in jax.tree.leaves(result.policy.network)]
    assert policy["num_weights"] == sum(sizes)


def test_names_are_no_markup():
    def rename(content):
        content["action_names"] = "[bold]a[/bold]\n[/b]\nc"

    console = Console(width=80, file=open(os.devnull, "w"), record=True)
    console.print(render(parse_bundle(resealed(EXACT, rename))))
    assert "[bold]a[/bold], [/b], c" in console.export_text()


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def test_files_hold_exactly_the_bundle(tmp_path):
    result = solved("tiger-treasure")
    result.save(tmp_path / "a.big")
    assert (tmp_path / "a.big").read_bytes() == dump_bundle(result)
    assert load_bundle(str(tmp_path / "a.big")).digest == parse_bundle(dump_bundle(result)).digest
    assert [file.name for file in tmp_path.iterdir()] == ["a.big"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(call, tmp_path, monkeypatch):
    path = tmp_path / "a.big"
    save_bundle(solved("detour"), path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="full"):
        save_bundle(solved("tiger-treasure"), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.big"]


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(E.BundleWriteError, match="nowhere` is none. Create it first"):
        save_bundle(solved("detour"), tmp_path / "nowhere" / "a.big")


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "a.big"
    path.write_bytes(EXACT[:-1])
    with pytest.raises(E.BundleTruncatedError, match="a.big` cannot be loaded"):
        load_bundle(path)
    with pytest.raises(FileNotFoundError):
        load_bundle(tmp_path / "b.big")


def test_files_beyond_the_limit_are_not_taken_in(tmp_path, monkeypatch):
    monkeypatch.setattr("bigtrain.storage.container.MAX_BYTES", 1_000)
    path = tmp_path / "a.big"
    path.write_bytes(EXACT)
    with pytest.raises(E.BundleLimitError, match="at most 1,000 bytes, got 3"):
        load_bundle(path)


# ── Old files stay readable ──────────────────────────────────────────────────────────────────────
#
# Written once, as `bundles` says, and never since.


def walk(policy: Policy, observations: np.ndarray, previous: list[int]):
    """The decisions of one episode."""
    actions = jnp.asarray([previous], jnp.int32)
    _, decisions = decide(policy, jnp.asarray(observations)[None], actions)
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), decisions)


def test_the_golden_bundle_of_an_exact_policy():
    bundle = parse_bundle(EXACT)
    assert bundle.digest == "6038f674f4b4112e440ca1b24815255dbb8d49ed5d8af52653c5a65656727c79"
    assert bundle.action_names == ("open-1", "open-2", "listen")
    assert bundle.provenance.num_demonstrations == 100
    assert bundle.measured is not None and bundle.measured.episodes == 50
    assert bundle.certificate is not None and bundle.certificate.closed
    # The tiger is heard behind door 1, 2, 1 and 1 again: with k = 0.5 two net hearings are enough.
    decisions = walk(bundle.policy, np.eye(6, dtype=np.float32)[[0, 1, 2, 1, 1]], [-1, 2, 2, 2, 2])
    assert decisions.probs.argmax(-1).tolist() == [2, 2, 2, 2, 1]
    odds = (0.85 / 0.15) ** np.array([0, 1, 0, 1, 2])
    # In float32, one rounding a step.
    np.testing.assert_allclose(decisions.belief.probs[:, 0], odds / (1 + odds), rtol=1e-6)


def test_the_golden_bundle_of_a_learned_policy():
    bundle = parse_bundle(LEARNED)
    assert bundle.digest == "223c6e63ae8fdefc0f6cf509f41ba8162c8a98d9dace9697667783bd48b6e3f0"
    assert bundle.problem is not None and bundle.successor is not None
    seen = bundle.problem.observation_array()
    decisions = walk(bundle.policy, seen[[0, 1, 2]], [-1, 2, 2])
    values = [[41.26115, 36.82771, 39.44493], [38.60236, 35.28028, 37.24199]]
    beliefs = [[-0.6164215, -0.7762525], [-0.7077118, -0.6787916]]
    # float32 on some other machine, in sums of some hundred terms.
    np.testing.assert_allclose(decisions.values[:2], values, rtol=1e-5)
    np.testing.assert_allclose(decisions.belief.log_probs[:2], beliefs, rtol=1e-5)
    told = bundle.explain(seen[0])
    assert told is not None and told.expert is not None
    np.testing.assert_allclose(told.expert, [[0, 1, 0], [0, 1, 0]], atol=1e-9)
