"""The proof that the seam is one: members of our own take their places, by public names only.

Each is what a user would write: a simulator that JAX cannot trace, an inference model, an action
space. All go through `fit`, and what comes out is judged by the exact answer.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bigtrain
from bigtrain import (
    ActionSpace,
    BayesRLConfig,
    BeliefConfig,
    BeliefInfo,
    Categorical,
    Contexts,
    CostOfExploration,
    Demonstrations,
    Discrete,
    FitConfig,
    FitResult,
    Fixed,
    HostSimulator,
    InferenceConfig,
    InferenceModel,
    bayes_rl,
    demonstrate,
    envs,
    fit,
    policy_value,
    reward,
)
from bigtrain.learning import NetworkConfig
from bigtrain.policy import NetworkPolicy, PolicyConfig
from bigtrain.reward import SuccessorConfig

TIGER = envs.make("tiger-treasure")
S0, T1, T2, TIGER_STATE, GOLD, ST = range(6)
assert TIGER.task is not None
SHOWN = demonstrate(TIGER, TIGER.task.reward, episodes=60, horizon=8, seed=0)
SEEN = Demonstrations(np.eye(6, dtype=np.float32)[SHOWN.observations], SHOWN.actions, SHOWN.lengths)
SMALL = NetworkConfig(width=32, depth=2)
QUICK = FitConfig(
    belief=BeliefConfig(num_iterations=150, horizon=20, network=SMALL),
    inference=InferenceConfig(
        successor=SuccessorConfig(network=SMALL, learning_rate=1e-3),
        rollout=reward.RolloutConfig(
            num_environments=64,
            horizon=24,
            replay_size=2_048,
            batch_size=32,
            settling_batch_size=256,
        ),
        max_rounds=20,
    ),
    policy=BayesRLConfig(
        model=PolicyConfig(network=SMALL),
        rollout=bayes_rl.RolloutConfig(num_environments=32, horizon=12, replay_size=512),
        num_iterations=40,
        max_rounds=10,
        evaluate_every=25,
        sweep=False,
    ),
    evaluation_episodes=100,
)
"""Sizes for seconds: what general simulators learn well takes longer."""


def lost(result: FitResult, policy: Any) -> float:
    """How much worse than the best `policy` is in the finite problem, as a share of the range, by
    the reward that was inferred."""
    predicted = np.asarray(result.reward.weights) + result.reward.bias
    predicted[[T1, T2]] = 0.5 * 10
    best = bigtrain.exact.solve_bayes(TIGER, predicted)
    value, _ = policy_value(policy, TIGER, reward=predicted)
    return (best.upper - value) / np.ptp(predicted)


# ── a simulator on the host ──────────────────────────────────────────────────────────────────────


class PlainTiger:
    """Tiger-treasure in plain Python: strings, dictionaries and a generator of its own."""

    STATES = ("S0", "T1", "T2", "tiger", "gold", "over")

    def reset(self, context: int, seed: int) -> np.ndarray:
        self._rng, self._tiger, self._state = np.random.default_rng(seed), context, "S0"
        return self._show()

    def step(self, action: Any) -> np.ndarray:
        if self._state in ("S0", "T1", "T2"):
            self._state = self._listen() if action == 2 else self._open(int(action))
        else:
            self._state = "over"
        return self._show()

    def _listen(self) -> str:
        right = self._rng.random() < 0.85
        return {0: "T1", 1: "T2"}[self._tiger if right else 1 - self._tiger]

    def _open(self, door: int) -> str:
        return "tiger" if door == self._tiger else "gold"

    def _show(self) -> np.ndarray:
        return np.array([state == self._state for state in self.STATES], np.float32)


def on_the_host(make: Any = PlainTiger, actions: ActionSpace | None = None) -> HostSimulator:
    return HostSimulator(
        make,
        observation=jax.ShapeDtypeStruct((6,), np.float32),
        actions=actions or Discrete(["open-1", "open-2", "listen"]),
        contexts=Contexts([0.5, 0.5], ["tiger-1", "tiger-2"]),
        gamma=0.99,
        features=lambda seen, action: seen,
        is_absorbing=lambda seen: seen[ST] > 0,
    )


EXPLORING = CostOfExploration(lambda seen: (seen[T1] + seen[T2]) > 0, k=Fixed(0.5))


def test_a_simulator_that_cannot_be_traced_is_learned_in_with_a_belief_that_is_learned():
    result = fit(
        on_the_host(), SEEN, reward_range=(-100.0, 10.0), exploration=EXPLORING, config=QUICK
    )
    phases = {event.phase for event in result.history}
    assert phases == {"features", "settling", "policy", "settling-policy"}
    assert result.certificate is None
    # The exact MAP reward is −52.35, −100, −4.07 and 10 in S0, tiger, gold and over.
    inferred = np.asarray(result.reward.weights) + result.reward.bias
    np.testing.assert_allclose(inferred[[S0, TIGER_STATE, ST]], [-52.35, -100, 10], atol=11)
    assert lost(result, result.policy) < 0.1  # never listening loses 0.3 of the range


def test_an_environment_that_shows_something_else_is_told_so():
    class Wrong(PlainTiger):
        def _show(self) -> np.ndarray:
            return np.zeros(5, np.float32)

    with pytest.raises(bigtrain.errors.SimulatorError, match=r"of the shape \(6,\).*\(5,\)"):
        on_the_host(Wrong).sample_states(jax.random.key(0))


# ── an inference model ───────────────────────────────────────────────────────────────────────────


class Hearings(InferenceModel):
    """Adds up what was heard, and knows for sure once a door was opened."""

    step: float = float(np.log(0.85 / 0.15))

    def init(self) -> Any:
        return jnp.zeros(())

    def update(self, memory: Any, code: Any, previous_action: Any) -> tuple[Any, BeliefInfo]:
        heard = self.step * (code[T1] - code[T2])
        door = jnp.where(previous_action == 0, 1.0, -1.0)
        opened = 40 * door * (code[TIGER_STATE] - code[GOLD])
        told = jnp.where(previous_action == bigtrain.NO_ACTION, 0, heard + opened)
        return memory + told, BeliefInfo(jnp.zeros(()), jnp.asarray(False))

    def belief(self, memory: Any) -> Categorical:
        return Categorical(jax.nn.log_sigmoid(jnp.stack([memory, -memory])))


def test_an_inference_model_of_ones_own_takes_the_exact_ones_place():
    result = fit(
        TIGER,
        SHOWN,
        reward_range=(-100.0, 10.0),
        exploration=CostOfExploration(["T1", "T2"], k=Fixed(0.5)),
        config=QUICK,
        inference=Hearings(),
    )
    assert isinstance(result.policy, NetworkPolicy)
    assert isinstance(result.policy.inference, Hearings)
    memory, decision = result.policy.step(
        result.policy.init(), jnp.eye(6)[S0], jnp.asarray(bigtrain.NO_ACTION)
    )
    _, decision = result.policy.step(memory, jnp.eye(6)[T1], jnp.asarray(2))
    np.testing.assert_allclose(decision.belief.probs, [0.85, 0.15], rtol=1e-5)
    assert lost(result, result.policy) < 0.1


# ── an action space ──────────────────────────────────────────────────────────────────────────────


class EarAndDoor(ActionSpace):
    """A pair: whether to listen, and which door to open if not."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"ear {ear}, door {door}" for ear, door in itertools.product((0, 1), (1, 2)))

    def action(self, number: Any) -> tuple[Any, Any]:
        return number // 2, number % 2

    def number(self, action: tuple[int, int]) -> int:
        return 2 * action[0] + action[1]


class TigerByPairs(PlainTiger):
    def step(self, action: Any) -> np.ndarray:
        ear, door = action
        return super().step(2 if ear else door)


def test_an_action_space_of_ones_own():
    space = EarAndDoor()
    listening = np.random.default_rng(0).integers(2, size=SEEN.num_steps)
    pairs = [
        (1, either) if a == 2 else (0, a) for a, either in zip(SEEN.actions, listening, strict=True)
    ]
    shown = Demonstrations(SEEN.observations, [space.number(pair) for pair in pairs], SEEN.lengths)
    result = fit(
        on_the_host(TigerByPairs, space),
        shown,
        reward_range=(-100.0, 10.0),
        exploration=EXPLORING,
        config=QUICK,
    )
    assert result.cmdp.action_names[3] == "ear 1, door 2"
    _, decision = result.policy.step(
        result.policy.init(), jnp.eye(6)[S0], jnp.asarray(bigtrain.NO_ACTION)
    )
    assert decision.values.shape == (4,)
    ear, _ = space.action(int(jnp.argmax(decision.values)))
    assert ear == 1  # it listens first
