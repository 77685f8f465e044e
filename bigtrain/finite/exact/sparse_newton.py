"""Ψ that is never written down: its products, and Newton steps through it, by sparse factors.

For a fixed policy, Ψ·ω are the action values of the reward ν·ω, one sparse solve a context away,
and Ψᵀ·g is the transposed solve. A Newton step wants (ΨᵀWΨ + I/σ²)⁻¹ of a gradient, with a small
block of W for each state. Its matrix is full, but the values V of the step, kept as unknowns beside
ω and tied to it by Bellman's equation, make it the corner of a sparse system as large as a few
times the states. Where the dynamics are local, as on a map, its factors stay sparse too. Where
anything can follow anything they fill, and the full matrix is less work.
"""

import abc
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Float
from scipy import linalg as dense_linalg
from scipy import sparse
from scipy.sparse import linalg

from bigtrain.finite.cmdp import TabularCMDP

_NEGLIGIBLE = 1e-16
"""Curvature below this share of the prior's is left out, and so takes no room in the factors."""

_SPARSE_FILL = 0.1
"""The share of a Bellman system's factors that may be filled for it to count as sparse."""

_COLUMNS = 256


@dataclass(frozen=True)
class SparseProblem:
    """ν and γ·p(s' | s, a, θ) as sparse matrices with a row for each (state, action)."""

    features: sparse.csr_matrix
    onward: tuple[sparse.csr_matrix, ...]
    num_states: int
    num_actions: int
    num_features: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.onward), self.num_states, self.num_actions


class PolicyFactors(NamedTuple):
    """A policy with Bellman's equation factored in every context."""

    policy: Float[np.ndarray, "context state action"]
    choices: tuple[sparse.csr_matrix, ...]
    systems: tuple[sparse.csr_matrix, ...]
    factors: tuple[Any, ...]


def lay_out(cmdp: TabularCMDP) -> SparseProblem:
    """The dynamics and features of `cmdp`, ready for products."""
    successors, probabilities = cmdp.transitions
    num_pairs = cmdp.num_states * cmdp.num_actions
    onward = []
    for table in probabilities:
        ends = np.arange(num_pairs + 1) * successors.shape[-1]
        # A copy, since taking out zeros moves the rest.
        entries = (cmdp.gamma * table.ravel(), successors.ravel().copy(), ends)
        matrix = sparse.csr_matrix(entries, shape=(num_pairs, cmdp.num_states))
        matrix.eliminate_zeros()
        onward.append(matrix)
    return SparseProblem(
        cmdp.feature_matrix(),
        tuple(onward),
        cmdp.num_states,
        cmdp.num_actions,
        cmdp.num_features,
    )


def factor_policy(
    problem: SparseProblem, policy: Float[np.ndarray, "context state action"]
) -> PolicyFactors:
    """What products with the Ψ of `policy` need."""
    choices = tuple(_choice(part) for part in policy)
    systems = tuple(
        sparse.csr_matrix(sparse.identity(problem.num_states, format="csr") - choice @ onward)
        for choice, onward in zip(choices, problem.onward, strict=True)
    )
    factors = tuple(linalg.splu(system.tocsc()) for system in systems)
    return PolicyFactors(policy, choices, systems, factors)


def action_values(
    problem: SparseProblem,
    course: PolicyFactors,
    reward: Float[np.ndarray, " pair"],
    bonus: Float[np.ndarray, "context state"] | float = 0.0,
) -> Float[np.ndarray, "context state action"]:
    """Ψ·ω where `reward` is ν·ω; a `bonus` is paid on top in every state that comes later."""
    bonus = np.broadcast_to(bonus, problem.shape[:2])
    result = []
    for onward, choice, system, factor, extra in zip(
        problem.onward, *course[1:], bonus, strict=True
    ):
        received = choice @ reward + extra
        values = factor.solve(received)
        values += factor.solve(received - system @ values)
        result.append(reward + onward @ values)
    return np.stack(result).reshape(problem.shape)


def pull_back(
    problem: SparseProblem,
    course: PolicyFactors,
    slopes: Float[np.ndarray, "context state action"],
) -> tuple[Float[np.ndarray, " feature"], Float[np.ndarray, "context state"]]:
    """Ψᵀ·g for slopes g with respect to action values, and those with respect to values."""
    total, flows = 0, []
    for onward, choice, factor, slope in zip(
        problem.onward, course.choices, course.factors, slopes, strict=True
    ):
        flow = factor.solve(onward.T @ slope.ravel(), trans="T")
        total = total + slope.ravel() + choice.T @ flow
        flows.append(flow)
    return problem.features.T @ total, np.stack(flows)


def stays_sparse(problem: SparseProblem) -> bool:
    """Whether the dynamics are local enough for sparse factors, by those of acting at random."""
    anything = np.full(problem.shape, 1 / problem.num_actions)
    (factor, *_) = factor_policy(problem, anything).factors
    return factor.nnz <= _SPARSE_FILL * problem.num_states**2


class NewtonSystem(abc.ABC):
    """(ΨᵀWΨ + precision · I)⁻¹ for the Ψ of one policy and the blocks of W, factored once."""

    @abc.abstractmethod
    def solve(
        self, gradient: Float[np.ndarray, "feature *column"]
    ) -> Float[np.ndarray, "feature *column"]:
        """The Newton step in ω."""

    @abc.abstractmethod
    def inverse(self) -> Float[np.ndarray, "feature feature"]:
        """The whole matrix."""


@final
class SparseSystem(NewtonSystem):
    """By way of the values: the unknowns are ω, V in each context, and a multiplier for each V."""

    def __init__(
        self,
        problem: SparseProblem,
        course: PolicyFactors,
        blocks: Float[np.ndarray, "context state action action"],
        precision: float,
    ):
        features = problem.features
        corner = precision * sparse.identity(problem.num_features, format="csr")
        beside, inside, received = [], [], []
        for onward, choice, block in zip(problem.onward, course.choices, blocks, strict=True):
            weight = _block_diagonal(np.where(np.abs(block) < _NEGLIGIBLE * precision, 0, block))
            corner = corner + features.T @ weight @ features
            beside.append(features.T @ weight @ onward)
            inside.append(onward.T @ weight @ onward)
            received.append(-(choice @ features))
        side, reward = sparse.hstack(beside), sparse.vstack(received)
        values, bellman = sparse.block_diag(inside), sparse.block_diag(course.systems)
        rows = [[corner, side, reward.T], [side.T, values, bellman.T], [reward, bellman, None]]
        self._matrix = sparse.csc_matrix(sparse.bmat(rows))
        self._factor = linalg.splu(self._matrix)
        self._size = problem.num_features
        self._length = problem.num_features + 2 * problem.shape[0] * problem.num_states

    def solve(
        self, gradient: Float[np.ndarray, "feature *column"]
    ) -> Float[np.ndarray, "feature *column"]:
        right = np.zeros((self._length, *gradient.shape[1:]))
        right[: self._size] = gradient
        found = self._factor.solve(right)
        found += self._factor.solve(right - self._matrix @ found)
        return found[: self._size]

    def inverse(self) -> Float[np.ndarray, "feature feature"]:
        result = np.empty((self._size, self._size))
        for start in range(0, self._size, _COLUMNS):
            columns = np.arange(start, min(start + _COLUMNS, self._size))
            unit = np.zeros((self._size, len(columns)))
            unit[columns, columns - start] = 1
            result[:, columns] = self.solve(unit)
        return (result + result.T) / 2


@final
class FullSystem(NewtonSystem):
    """As a full matrix, with the rows of Ψ made a context and a few states at a time."""

    def __init__(
        self,
        problem: SparseProblem,
        course: PolicyFactors,
        blocks: Float[np.ndarray, "context state action action"],
        precision: float,
    ):
        matrix = precision * np.eye(problem.num_features)
        for onward, choice, system, block in zip(
            problem.onward, course.choices, course.systems, blocks, strict=True
        ):
            after = np.linalg.solve(
                system.toarray(), sparse.csr_matrix(choice @ problem.features).toarray()
            )
            states = np.flatnonzero(block.any((-1, -2)))
            for some in np.array_split(states, -(-len(states) // _COLUMNS)) if len(states) else ():
                pairs = (
                    some[:, None] * problem.num_actions + np.arange(problem.num_actions)
                ).ravel()
                rows = problem.features[pairs].toarray() + onward[pairs] @ after
                matrix += rows.T @ (_block_diagonal(block[some]) @ rows)
        self._factor = dense_linalg.cho_factor(matrix, overwrite_a=True)
        self._size = problem.num_features

    def solve(
        self, gradient: Float[np.ndarray, "feature *column"]
    ) -> Float[np.ndarray, "feature *column"]:
        return dense_linalg.cho_solve(self._factor, gradient)

    def inverse(self) -> Float[np.ndarray, "feature feature"]:
        result = self.solve(np.eye(self._size))
        return (result + result.T) / 2


def _choice(policy: Float[np.ndarray, "state action"]) -> sparse.csr_matrix:
    """The matrix that averages a column of pairs over what is done in each state."""
    ends = np.arange(len(policy) + 1) * policy.shape[1]
    matrix = sparse.csr_matrix((policy.ravel().copy(), np.arange(policy.size), ends))
    matrix.eliminate_zeros()
    return matrix


def _block_diagonal(blocks: Float[np.ndarray, "state row column"]) -> sparse.csr_matrix:
    count, size, _ = blocks.shape
    entries = (blocks, np.arange(count), np.arange(count + 1))
    matrix = sparse.bsr_matrix(entries, shape=(count * size, count * size))
    matrix = sparse.csr_matrix(matrix)
    matrix.eliminate_zeros()
    return matrix
