"""Results of every kind that a bundle can hold, and ways to damage one."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from problems import Hidden

from bigtrain import (
    CostOfExploration,
    FitResult,
    MaximumEntropy,
    SolveConfig,
    Uniform,
    demonstrate,
    envs,
    solve,
)
from bigtrain.belief import AmortisedInference
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.inference import FiniteInference
from bigtrain.learning.networks import NetworkConfig
from bigtrain.policy import NetworkPolicy, PolicyConfig, ValueNetwork
from bigtrain.result import Measured
from bigtrain.reward.successor import SuccessorNetwork
from bigtrain.storage.container import seal, unseal

DATA = Path(__file__).parent / "data"
EXACT = (DATA / "exact-v1.big").read_bytes()
"""The bundle of `solved("tiger-treasure")`, as version 1 once wrote it."""

LEARNED = (DATA / "learned-v1.big").read_bytes()
"""That of `learned("tiger-treasure", "learned", "gru")`."""

SMALL = NetworkConfig(width=6, depth=2, channels=(3, 4), kernels=(4, 3), strides=(4, 1))


@functools.cache
def solved(name: str, **options: str) -> FitResult:
    """A problem solved exactly; tiger-treasure with an exploration prior, and measured."""
    cmdp = envs.make(name, **options)
    assert cmdp.task is not None
    listening = CostOfExploration(["T1", "T2"], k=Uniform(0.4, 0.6))
    result = solve(
        cmdp,
        demonstrate(cmdp, cmdp.task.reward, episodes=100, horizon=20),
        reward_range=cmdp.task.reward_range,
        exploration=listening if name == "tiger-treasure" else None,
        config=SolveConfig(num_restarts=0),
    )
    if name != "tiger-treasure":
        return result
    evaluation = result.evaluate(episodes=50, horizon=20)
    return dataclasses.replace(result, measured=Measured(evaluation, 50, 20, result.regret()))


@functools.cache
def learned(
    name: str, belief: Literal["exact", "learned"], core: Literal["none", "gru"], **options: str
) -> FitResult:
    """The same with networks of random weights in place of what was computed.

    In tiger-treasure the agent then sees pictures.
    """
    result = solved(name, **options)
    if name == "tiger-treasure":
        result = pictured(result)
    cmdp = result.cmdp
    assert isinstance(cmdp, TabularCMDP)
    keys = jax.random.split(jax.random.key(0), 3)
    seen = jnp.asarray(cmdp.observation_array())
    counts = {"num_contexts": cmdp.num_contexts, "num_actions": cmdp.num_actions}
    config = PolicyConfig(SMALL, core=core, core_width=5)
    network = ValueNetwork(seen, config=config, key=keys[0], **counts)
    inference: AmortisedInference | FiniteInference = FiniteInference(cmdp)
    if belief == "learned":
        inference = shaken(
            AmortisedInference(
                seen,
                context_prior=cmdp.context_prior,
                num_actions=cmdp.num_actions,
                config=SMALL,
                core_width=5 if core == "gru" else None,
                key=keys[1],
            ),
            seed=1,
        )
    successor = SuccessorNetwork(
        seen,
        num_features=cmdp.num_features,
        gamma=cmdp.gamma,
        config=SMALL,
        key=keys[2],
        **counts,
    )
    baseline = jnp.asarray(0.3) if core == "gru" else 0.3  # either is allowed, and they differ
    return dataclasses.replace(
        result,
        policy=NetworkPolicy(inference, shaken(network, seed=0), baseline, 1.7, cmdp.gamma),
        successor=shaken(successor, seed=2),
        expert=None,
    )


def pictured(result: FitResult) -> FitResult:
    """The same with small pictures as observations."""
    before = result.cmdp
    assert isinstance(before, TabularCMDP)
    shape = (before.num_states, 12, 12, 1)
    cmdp = TabularCMDP(
        before.transitions,
        before.context_prior,
        before.initial,
        gamma=before.gamma,
        observations=np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8),
        state_names=before.state_names,
        action_names=before.action_names,
        context_names=before.context_names,
    )
    reward = dataclasses.replace(result.reward, cmdp=cmdp)
    return dataclasses.replace(result, cmdp=cmdp, reward=reward)


@functools.cache
def simulated() -> FitResult:
    """A result of a simulator, where the exploration set is a predicate."""
    result = learned("tiger-treasure", "learned", "none")
    assert isinstance(result.cmdp, TabularCMDP)
    hidden = Hidden(result.cmdp)
    exploration = CostOfExploration(lambda s: s["place"] == 1, k=MaximumEntropy(0.4, -1.0, 1.0))
    reward = dataclasses.replace(result.reward, cmdp=hidden, exploration=exploration)
    return dataclasses.replace(result, cmdp=hidden, reward=reward, certificate=None)


def shaken(network: Any, seed: int) -> Any:
    """A network with something added to every weight: some are 0 before they are learned."""
    rng = np.random.default_rng(seed)

    def shake(leaf: jax.Array) -> jax.Array:
        return leaf + jnp.asarray(0.3 * np.abs(rng.normal(size=leaf.shape)), leaf.dtype)

    return jax.tree.map(lambda leaf: shake(leaf) if eqx.is_inexact_array(leaf) else leaf, network)


def resealed(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The bundle after `change` to its content, with a right digest."""
    _, content = unseal(data)
    change(content)
    return seal(content)


def set_array(record: dict[str, Any], values: Any) -> None:
    """Puts other values into an array of a bundle's content."""
    values = np.asarray(values, record["dtype"])
    record["shape"], record["data"] = list(values.shape), values.tobytes()
