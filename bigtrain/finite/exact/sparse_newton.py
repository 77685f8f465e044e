"""Ψ that is never written down: its products, and Newton steps through it, by sparse factors.

With a row for each pair (s, a), in each context θ, all of them sparse:

    F = ν                                    [pair, feature]     `features`
    G_θ[(s, a), s'] = γ p(s' | s, a, θ)      [pair, state]       `onward`
    C_θ[s, (s, a)] = π(a | s, θ)             [state, pair]       `choices`
    B_θ = I − C_θ G_θ                        [state, state]      `systems`, LU-factored in `factors`

Then Ψ_θ = F + G_θ B_θ⁻¹ C_θ F, and products with it are one solve a context away:

    Ψ ω = r + G V,  B V = C r,  r = F ω             action values of the reward ν·ω              (a)
    Ψᵀ g = Fᵀ (g + Cᵀ f),  Bᵀ f = Gᵀ g              f [state]: slopes in a bonus on V            (b)

A Newton step is the solution x of (Σ_θ ΨᵀWΨ + λ I) x = g, with W block diagonal, [action, action]
for each state, and λ = 1/σ₀². That matrix is full. With the values V_θ of the step as unknowns
beside x, tied to it by B V = C F x with multipliers μ, it is the corner of a sparse one:

    ⎡ λI + FᵀWF   FᵀWG   −(CF)ᵀ ⎤ ⎡ x ⎤   ⎡ g ⎤
    ⎢ GᵀWF        GᵀWG    Bᵀ    ⎥ ⎢ V ⎥ = ⎢ 0 ⎥      V, μ: [context · state] each                (c)
    ⎣ −CF         B       0     ⎦ ⎣ μ ⎦   ⎣ 0 ⎦

(Ψ x = F x + G V; the rows are the stationarity in x and in V, and the constraint.) Where the
dynamics are local, as on a map, the factors of (c) stay sparse. Where anything can follow anything
they fill, and the full matrix is less work.

What bites:
- W spans many orders of magnitude, for experts who are certain leave next to no curvature. What is
  far below the prior's curvature λ is dropped; kept, it would only fill the factors.
- (c) is indefinite and ill-conditioned; one step of iterative refinement after each solve recovers
  what LU with threshold pivoting loses. (a) has one too, since optimality is judged by its result.
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
"""How many right-hand sides are solved for at once: full columns of a large map take much room."""


@dataclass(frozen=True)
class SparseProblem:
    """F and G_θ: ν and γ·p(s' | s, a, θ) with a row for each pair (state, action), states first."""

    features: sparse.csr_matrix
    onward: tuple[sparse.csr_matrix, ...]
    num_states: int
    num_actions: int
    num_features: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.onward), self.num_states, self.num_actions


class PolicyFactors(NamedTuple):
    """A policy π with C_θ, B_θ and the factors of B_θ for every context."""

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
    factored: PolicyFactors,
    reward: Float[np.ndarray, " pair"],
    bonus: Float[np.ndarray, "context state"] | float = 0.0,
) -> Float[np.ndarray, "context state action"]:
    """Ψ·ω where `reward` is ν·ω, by (a); a `bonus` is paid on top in every state that comes later.

    With a bonus h(s), V solves B V = C r + h: for h = τ · entropy of π(· | s), V is the soft value.
    """
    bonus = np.broadcast_to(bonus, problem.shape[:2])
    result = []
    for onward, choice, system, factor, extra in zip(
        problem.onward, *factored[1:], bonus, strict=True
    ):
        received = choice @ reward + extra
        values = factor.solve(received)
        # Iterative refinement: V is up to 1/(1 − γ) times the reward, and ties are found by it.
        values += factor.solve(received - system @ values)
        result.append(reward + onward @ values)
    return np.stack(result).reshape(problem.shape)


def pull_back(
    problem: SparseProblem,
    factored: PolicyFactors,
    slopes: Float[np.ndarray, "context state action"],
) -> tuple[Float[np.ndarray, " feature"], Float[np.ndarray, "context state"]]:
    """Ψᵀ·g for slopes g with respect to action values, by (b), and f, those in a bonus on V.

    It is reverse-mode differentiation through the solve of (a).
    """
    total, flows = 0, []
    for onward, choice, factor, slope in zip(
        problem.onward, factored.choices, factored.factors, slopes, strict=True
    ):
        flow = factor.solve(onward.T @ slope.ravel(), trans="T")
        total = total + slope.ravel() + choice.T @ flow
        flows.append(flow)
    return problem.features.T @ total, np.stack(flows)


def stays_sparse(problem: SparseProblem) -> bool:
    """Whether the dynamics are local enough for sparse factors, by those of acting at random."""
    uniform = np.full(problem.shape, 1 / problem.num_actions)
    (factor, *_) = factor_policy(problem, uniform).factors
    return factor.nnz <= _SPARSE_FILL * problem.num_states**2


class NewtonSystem(abc.ABC):
    """(Σ_θ ΨᵀWΨ + λ I)⁻¹ for the Ψ of one policy and the blocks of W, factored once.

    λ is `precision`, and x of g the Newton step.
    """

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
    """By (c): the unknowns are x, V in each context, and a multiplier μ for each V."""

    def __init__(
        self,
        problem: SparseProblem,
        factored: PolicyFactors,
        blocks: Float[np.ndarray, "context state action action"],
        precision: float,
    ):
        features = problem.features
        corner = precision * sparse.identity(problem.num_features, format="csr")
        # The blocks of (c): FᵀWG, GᵀWG and −CF of each context; ω is shared, so the corner adds up.
        beside, inside, received = [], [], []
        for onward, choice, block in zip(problem.onward, factored.choices, blocks, strict=True):
            weight = _block_diagonal(np.where(np.abs(block) < _NEGLIGIBLE * precision, 0, block))
            corner = corner + features.T @ weight @ features
            beside.append(features.T @ weight @ onward)
            inside.append(onward.T @ weight @ onward)
            received.append(-(choice @ features))
        side, reward = sparse.hstack(beside), sparse.vstack(received)
        values, bellman = sparse.block_diag(inside), sparse.block_diag(factored.systems)
        rows = [[corner, side, reward.T], [side.T, values, bellman.T], [reward, bellman, None]]
        # Column by column: the form that LU wants.
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
        # Iterative refinement, as above.
        found += self._factor.solve(right - self._matrix @ found)
        return found[: self._size]

    def inverse(self) -> Float[np.ndarray, "feature feature"]:
        result = np.empty((self._size, self._size))
        for start in range(0, self._size, _COLUMNS):
            columns = np.arange(start, min(start + _COLUMNS, self._size))
            unit = np.zeros((self._size, len(columns)))
            unit[columns, columns - start] = 1
            result[:, columns] = self.solve(unit)
        return (result + result.T) / 2  # a covariance must be symmetric to the last bit


@final
class FullSystem(NewtonSystem):
    """As a full matrix, with the rows of Ψ made a context and a few states at a time."""

    def __init__(
        self,
        problem: SparseProblem,
        factored: PolicyFactors,
        blocks: Float[np.ndarray, "context state action action"],
        precision: float,
    ):
        # λ I + Σ ΨᵀWΨ, positive definite: by Cholesky, in its own room.
        matrix = precision * np.eye(problem.num_features)
        for onward, choice, system, block in zip(
            problem.onward, factored.choices, factored.systems, blocks, strict=True
        ):
            # M = B⁻¹ C F [state, feature]: successor features of states.
            after = np.linalg.solve(
                system.toarray(), sparse.csr_matrix(choice @ problem.features).toarray()
            )
            # Only states where experts were have curvature; the rows of Ψ elsewhere are not needed.
            states = np.flatnonzero(block.any((-1, -2)))
            for some in np.array_split(states, -(-len(states) // _COLUMNS)) if len(states) else ():
                pairs = (
                    some[:, None] * problem.num_actions + np.arange(problem.num_actions)
                ).ravel()
                # Ψ of these pairs, and their part of ΨᵀWΨ.
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
