"""Linear heads put where the expected temporal-difference update vanishes.

With x what the head multiplies, x' the same a step later, and δ the error of a prediction, that is
Σ w x δᵀ = 0. A plain solve of these equations can blow up where steps come from another policy than
the one evaluated. So each step minimises the mean squared *projected* error, ‖G^{-1/2} Σ w x δᵀ‖²
with G = Σ w x xᵀ, plus `proximity` times the change that the step makes to what is predicted: a
Gauss-Newton step that cannot raise the error and needs no second sample of what follows.
See docs/decisions/0007-what-is-linear-is-solved-for.md.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Projection(NamedTuple):
    """The factors that a step needs: of G, and of the normal equations in whitened coordinates."""

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
    """From Σ w x xᵀ and Σ w x (x − γx')ᵀ."""
    size = len(gram)
    gram = gram + ridge * jnp.trace(gram) / size * jnp.eye(size)
    root = jnp.linalg.cholesky(gram)
    system = _whiten(root, _whiten(root, cross).T).T
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
    """What to add to the head, from Σ w x δᵀ."""
    whitened = projection.system.T @ _whiten(projection.root, correlation)
    found = jax.scipy.linalg.cho_solve((projection.normal, True), whitened)
    return _whiten(projection.root, found, trans=1)


def _whiten(
    root: Float[Array, "size size"], values: Float[Array, "size output"], *, trans: int = 0
) -> Float[Array, "size output"]:
    return jax.scipy.linalg.solve_triangular(root, values, lower=True, trans=trans)
