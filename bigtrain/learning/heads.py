"""Linear heads put where the expected temporal-difference update vanishes.

With x [size] what the head W [size, output] multiplies, x' the same a step later, δ [output] the
error of a prediction and w the weight of a step, that is the fixed point of TD (LSTD):

    Σ w x δᵀ = 0,        δ = target − Wᵀ(x − γ x').

A plain solve of these equations can blow up where steps come from another policy than the one
evaluated: Σ w x (x − γx')ᵀ need not be positive, nor far from singular. So each step minimises the
mean squared *projected* error of gradient-TD methods (Sutton et al., 2009), plus `proximity` times
the change ΔW that it makes to what is predicted, with G = Σ w x xᵀ = L Lᵀ:

    min_ΔW ‖L⁻¹(Σ w x δᵀ − C ΔW)‖² + proximity · ‖Lᵀ ΔW‖²,     C = Σ w x (x − γ x')ᵀ.       (a)

In whitened coordinates U = Lᵀ ΔW, with A = L⁻¹ C L⁻ᵀ, these are ridge regression's equations:

    (AᵀA + proximity · I) U = Aᵀ L⁻¹ Σ w x δᵀ,        ΔW = L⁻ᵀ U.                             (b)

A Gauss-Newton step: it cannot raise the error, needs no second sample of what follows, and has the
fixed point of TD as its own. See docs/decisions/0007-what-is-linear-is-solved-for.md.

What bites: G is nearly singular, since layers are wider than there are states, hence `ridge`; and
squaring A squares its condition, in float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Projection(NamedTuple):
    """What a step needs: L, A, and the Cholesky factor of (b)."""

    root: Float[Array, "size size"]
    system: Float[Array, "size size"]
    normal: Float[Array, "size size"]


def factorise(
    gram: Float[Array, "size size"],
    cross: Float[Array, "size size"],
    *,
    ridge: float,
    proximity: float,
) -> Projection:
    """From G = Σ w x xᵀ and C = Σ w x (x − γx')ᵀ."""
    size = len(gram)
    # Relative to G's mean eigenvalue, so that it means the same whatever the weights' units.
    gram = gram + ridge * jnp.trace(gram) / size * jnp.eye(size)
    root = jnp.linalg.cholesky(gram)
    system = _whiten(root, _whiten(root, cross).T).T  # L⁻¹ C L⁻ᵀ
    square = system.T @ system
    normal = jnp.linalg.cholesky(square + proximity * jnp.eye(size))
    # Where steps weigh very unevenly, rounding in the square outgrows the proximity. The second
    # factorisation waits for the first: two batches of them at once can wait for each other's
    # threads for ever (seen with jaxlib 0.10.2 on two cores).
    rounding = 8 * jnp.finfo(square.dtype).eps * jnp.abs(square).sum(-1).max()
    lift = jnp.where(jnp.isfinite(normal).all(), proximity, rounding)
    return Projection(root, system, jnp.linalg.cholesky(square + lift * jnp.eye(size)))


def step(
    projection: Projection, correlation: Float[Array, "size output"]
) -> Float[Array, "size output"]:
    """ΔW, what to add to the head, from Σ w x δᵀ: (b)."""
    whitened = projection.system.T @ _whiten(projection.root, correlation)
    found = jax.scipy.linalg.cho_solve((projection.normal, True), whitened)
    return _whiten(projection.root, found, trans=1)  # back from whitened coordinates: L⁻ᵀ


def _whiten(
    root: Float[Array, "size size"], values: Float[Array, "size output"], *, trans: int = 0
) -> Float[Array, "size output"]:
    return jax.scipy.linalg.solve_triangular(root, values, lower=True, trans=trans)
