"""A bundle in memory: a policy that is ready to run, and all that is known of it."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from scipy import special

from bigtrain.bundle.policies import StorablePolicy
from bigtrain.bundle.records import Certificate
from bigtrain.bundle.summary import summarise_measured, summarise_network, summarise_policy
from bigtrain.exploration import CostOfExploration, PredictiveReward
from bigtrain.finite import stored
from bigtrain.provenance import Provenance
from bigtrain.result import Measured
from bigtrain.reward import SuccessorNetwork
from bigtrain.storage import VERSION


@final
@dataclass(frozen=True)
class ArraySpec:
    """What an observation looks like. Bounds hold for every number of it, both included.

    `value_names` are those of 0, 1, 2, ... where an observation is the number of a state.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    minimum: float | None = None
    maximum: float | None = None
    value_names: tuple[str, ...] = ()


class Explanation(NamedTuple):
    """The present moment of a finite problem.

    The reward predicted of each action here, its standard deviation, whether the action counts as
    exploring, and the probability with which an expert who knew the context would take it.
    """

    state: str
    reward_mean: Float[np.ndarray, " action"]
    reward_deviation: Float[np.ndarray, " action"]
    explores: Bool[np.ndarray, " action"]
    expert: Float[np.ndarray, "context action"] | None


class RewardTables(NamedTuple):
    """The predictive reward of a finite problem: mean, standard deviation, exploration set."""

    mean: Float[np.ndarray, "state action"]
    deviation: Float[np.ndarray, "state action"]
    explores: Bool[np.ndarray, "state action"]


@final
@dataclass(frozen=True, eq=False)
class Bundle:
    """A policy, the reward and the problem it is for, and how it came about.

    `digest` is the SHA-256 of the file in hexadecimal: bundles with equal digests act equally.
    Where the problem is a simulator, `problem` is None, since simulators are code. So is an
    exploration set that was a predicate of one, which `exploration_note` puts into words.
    """

    digest: str
    observation: ArraySpec
    action_names: tuple[str, ...]
    context_names: tuple[str, ...]
    context_prior: Float[np.ndarray, " context"]
    gamma: float
    reward_range: tuple[float, float]
    weights: Float[np.ndarray, " feature"]
    bias: float
    covariance: Float[np.ndarray, "feature feature"]
    scale: float
    temperature: float
    exploration: CostOfExploration | None
    exploration_note: str
    policy: StorablePolicy
    problem: stored.StoredProblem | None
    successor: SuccessorNetwork | None
    expert: Float[np.ndarray, "context state action"] | None
    provenance: Provenance
    measured: Measured | None
    certificate: Certificate | None

    @functools.cached_property
    def reward(self) -> PredictiveReward | None:
        """The predictive reward; None where the problem is a simulator."""
        if self.problem is None:
            return None
        return PredictiveReward(
            self.problem,
            self.weights,
            self.bias,
            self.covariance,
            self.scale,
            self.reward_range,
            self.exploration,
        )

    @functools.cached_property
    def reward_tables(self) -> RewardTables | None:
        """The same as tables, with the exploration set."""
        reward, problem = self.reward, self.problem
        if reward is None or problem is None:
            return None
        mean = reward.table()
        explores = np.zeros(mean.shape, bool)
        if self.exploration is not None:
            explores = self.exploration.mask(problem)
        return RewardTables(mean, np.sqrt(np.maximum(reward.variance_table(), 0)), explores)

    def explain(self, observation: Shaped[np.ndarray | Array, "..."]) -> Explanation | None:
        """What there is to say of a moment, whatever came before it.

        None where the problem is a simulator, and where no state looks like `observation`.
        """
        problem, tables = self.problem, self.reward_tables
        if problem is None or tables is None:
            return None
        found, known = problem.identify(jnp.asarray(observation))
        if not known:
            return None
        state = int(found)
        return Explanation(
            problem.state_names[state],
            tables.mean[state],
            tables.deviation[state],
            tables.explores[state],
            self._expert_in(problem, state),
        )

    def summary(self) -> dict[str, Any]:
        """All but the large arrays, as JSON can hold it."""
        certificate, successor, measured = self.certificate, self.successor, self.measured
        return {
            "format_version": VERSION,
            "digest": self.digest,
            "observation": dataclasses.asdict(self.observation),
            "actions": list(self.action_names),
            "contexts": dict(zip(self.context_names, self.context_prior.tolist(), strict=True)),
            "gamma": self.gamma,
            "reward_range": list(self.reward_range),
            "temperature": self.temperature,
            "reward": self._summarise_reward(),
            "exploration": self._summarise_exploration(),
            "policy": summarise_policy(self.policy),
            "successor": None if successor is None else summarise_network(successor),
            "certificate": None if certificate is None else certificate._asdict(),
            "measured": None if measured is None else summarise_measured(measured),
            "provenance": dataclasses.asdict(self.provenance),
        }

    def _summarise_reward(self) -> dict[str, Any]:
        """By state and action where the problem is finite, and by feature where it is not."""
        problem, tables = self.problem, self.reward_tables
        if problem is None or tables is None:
            deviation = np.sqrt(np.maximum(np.diag(self.covariance), 0))
            return {
                "bias": self.bias,
                "weights": self.weights.tolist(),
                "deviation": deviation.tolist(),
            }
        return {
            name: dict(zip(problem.state_names, table.tolist(), strict=True))
            for name, table in (("mean", tables.mean), ("deviation", tables.deviation))
        }

    def _summarise_exploration(self) -> dict[str, Any] | None:
        exploration, problem = self.exploration, self.problem
        if exploration is None or problem is None:
            return {"note": self.exploration_note} if self.exploration_note else None
        states, actions = exploration.indices(problem)
        low, high = exploration.k.support
        return {
            "states": [problem.state_names[state] for state in states],
            "actions": [problem.action_names[action] for action in actions],
            "k": {"mean": exploration.k.mean.tolist(), "low": low.tolist(), "high": high.tolist()},
        }

    def _expert_in(
        self, problem: stored.StoredProblem, state: int
    ) -> Float[np.ndarray, "context action"] | None:
        if self.expert is not None:
            return self.expert[:, state]
        if self.successor is None:
            return None
        found = np.asarray(_read_off(self.successor, problem, jnp.asarray(state)), np.float64)
        found = found - found.mean(1, keepdims=True)  # what all actions share can be large
        return special.softmax(found @ self.weights / self.temperature, axis=-1)


@eqx.filter_jit
def _read_off(
    network: SuccessorNetwork, cmdp: stored.StoredProblem, state: Int[Array, ""]
) -> Float[Array, "context action feature"]:
    """Ψ of one state."""
    features = jax.vmap(cmdp.features, (None, 0))(state, jnp.arange(cmdp.num_actions))
    return network(cmdp.observe(state)[None], features[None])[:, 0]
