"""Phase 1, the dynamics: contextual successor features Ψ(s, a, θ), learned (appendix B).

    Ψ(s, a, θ) = E[Σ_t γ^t ν(s_t, a_t) | s_0 = s, a_0 = a, θ]        [context, row, action, feature]
               = ν(s, a) + γ/(1 − γ) · W_a·x(s, θ)                   x [context, row, hidden]

A network over observation and context ends in a linear head W [action, hidden, feature]. With the
target Ψ' the errors and losses of eq:sf_expert_objective and eq:bellman_eq_for_sf are

    δ = ν(s, a) + γ Ψ'(s', a', θ) − Ψ(s, a, θ)                       [context, step, feature]
    L = (1 − γ)² Σ_θ,steps w(θ, step) ‖δ‖² / Σ w,        L_Expert + β L_Simulator,

where a' is the expert's own next action, or for simulated steps argmax_a Ψ'(s', a, θ)·ω (the paper
chooses by Ψ and values by Ψ'; the same while nothing lags), and w the belief p(θ | τ). All of Ψ
follows the gradient of L (a semi-gradient: Ψ' is held); the head alone can also be put where
Σ w x δᵀ = 0, by least squares (`solve_head`, `learning.heads`).

What bites (design, points 3 and 4):
- Entries of Ψ are up to 1/(1 − γ) = 100, and differences of 1 matter. The residual form above has
  the network give a discounted *mean* of features, of their own size.
- L_Expert is printed as a norm, not squared; its update in the paper is that of the square.
- A learned Ψ does not tie where the true one does, and the likelihood takes any difference at its
  word: see `merge_ties`.

States are evaluated once each, however often they occur: losses speak of `Steps` between the rows
of a `Batch`.
"""

from dataclasses import dataclass
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from bigtrain.errors import ConfigError
from bigtrain.learning import Encoder, NetworkConfig, Trunk, heads


@dataclass(frozen=True)
class SuccessorConfig:
    """How Ψ is learned.

    `simulator_weight` is the paper's β. `target_period` is how many updates the target network
    stays behind. Actions whose successor features differ by `resolution` or less, counted in
    visits, are taken to be the same. `ridge` and `proximity` steady the least squares.
    """

    network: NetworkConfig = NetworkConfig()
    learning_rate: float = 2e-4
    decay: bool = True
    max_gradient_norm: float = 0.5
    simulator_weight: float = 1.0
    target_period: int = 1
    resolution: float = 0.05
    ridge: float = 1e-4
    proximity: float = 1e-5

    def __post_init__(self):
        positive = ("learning_rate", "max_gradient_norm", "target_period", "ridge", "proximity")
        for name in positive:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must be positive, got {getattr(self, name)}.")
        for name in ("simulator_weight", "resolution"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must not be negative, got {getattr(self, name)}.")


@final
class SuccessorNetwork(eqx.Module):
    """Ψ = ν + γ/(1−γ) · W·x, x = (relu(trunk(relu(entry(enc(o)) + contexts_θ))), 1) / √width.

    What the head gives is a discounted mean of features to come, so it has their size whatever
    the horizon (design, point 4). The context enters as a vector as large as what the observation
    has become, so that neither drowns the other. `examples` are observations such as will come.
    """

    encoder: Encoder
    entry: Trunk
    contexts: Float[Array, "context width"]
    trunk: Trunk
    head: Float[Array, "action hidden feature"]
    gamma: float = eqx.field(static=True)

    def __init__(
        self,
        examples: Shaped[Array, "example ..."],
        *,
        num_contexts: int,
        num_actions: int,
        num_features: int,
        gamma: float,
        config: NetworkConfig,
        key: PRNGKeyArray,
    ):
        key_encoder, key_entry, key_contexts, key_trunk = jax.random.split(key, 4)
        width = config.width
        self.encoder = Encoder(examples, config, key=key_encoder)
        self.entry = Trunk((self.encoder.size, width), key=key_entry)
        self.contexts = jax.random.normal(key_contexts, (num_contexts, width))
        self.trunk = Trunk((width,) * config.depth, key=key_trunk)
        # Ψ = ν at first: nothing is expected of the future, in any context.
        self.head = jnp.zeros((num_actions, width + 1, num_features))
        self.gamma = gamma

    def hidden(
        self,
        observations: Shaped[Array, "row ..."],
        rests: Bool[Array, " row"] | None = None,
    ) -> Float[Array, "context row hidden"]:
        """x, what the head sees, with a constant at the end, in every context; 0 where at rest."""
        # The encoder runs once a state; only what follows depends on the context.
        codes = jax.vmap(lambda seen: self.entry(self.encoder(seen)))(observations)

        each = jax.vmap(jax.vmap(self._hidden, (None, 0)), (0, None))(self.contexts, codes)
        return each if rests is None else jnp.where(rests[:, None], 0, each)

    def _hidden(
        self, context: Float[Array, " width"], code: Float[Array, " width"]
    ) -> Float[Array, " hidden"]:
        values = self.trunk(jax.nn.relu(code + context))
        return jnp.append(jax.nn.relu(values), 1) / jnp.sqrt(len(values))

    def in_context(
        self,
        observation: Shaped[Array, "..."],
        features: Float[Array, "action feature"],
        context: Int[Array, ""],
    ) -> Float[Array, "action feature"]:
        """Ψ(s, ·, θ) of one state in one context."""
        code = self.entry(self.encoder(observation))
        hidden = self._hidden(self.contexts[context], code)
        return self.read_out(hidden[None, None], features[None])[0, 0]

    def read_out(
        self,
        hidden: Float[Array, "context row hidden"],
        features: Float[Array, "row action feature"],
    ) -> Float[Array, "context row action feature"]:
        """Ψ of every action, from `hidden` and ν."""
        mean_features = jnp.einsum("crh,ahd->crad", hidden, self.head)
        return features + self.gamma / (1 - self.gamma) * mean_features

    def __call__(
        self,
        observations: Shaped[Array, "row ..."],
        features: Float[Array, "row action feature"],
        rests: Bool[Array, " row"] | None = None,
    ) -> Float[Array, "context row action feature"]:
        """Ψ(s, a, θ) of a batch of states, every action and context."""
        return self.read_out(self.hidden(observations, rests), features)


class Steps(eqx.Module):
    """Steps from row to row of a batch, and how much each counts in each context: w(θ, step).

    `next_actions` are the expert's own (SARSA); None stands for the greedy ones (Q-learning).
    """

    rows: Int[Array, " step"]
    actions: Int[Array, " step"]
    next_rows: Int[Array, " step"]
    weights: Float[Array, "context step"]
    next_actions: Int[Array, " step"] | None = None


class Batch(eqx.Module):
    """States, each to be evaluated once, and the steps that lead from one to another.

    Where a row `rests` for ever its `features` are all that there is to its Ψ: ν / (1 − γ).
    """

    observations: Shaped[Array, "row ..."]
    features: Float[Array, "row action feature"]
    expert: Steps
    simulated: Steps
    rests: Bool[Array, " row"] | None = None


def merge_ties(
    successor_features: Float[Array, "*batch action feature"], resolution: float
) -> Float[Array, "*batch action feature"]:
    """Gives each action the mean of those that differ from it by `resolution` or less.

        Ψ̃_a = mean {Ψ_a' : max_d |Ψ_a',d − Ψ_a,d| ≤ resolution}

    Where experts choose at random because it does not matter what they do, the likelihood weighs
    any difference, however small, by the number of such choices: errors of 1e-4 in Ψ outweigh
    everything else that demonstrations show. See
    docs/decisions/0006-ties-have-a-resolution.md.
    """
    # Means are taken of what is left after the mean over actions, or rounding would be relative to
    # entries of 100; ties then come out equal to the last bit.
    centred = successor_features - successor_features.mean(-2, keepdims=True)
    distances = jnp.abs(centred[..., :, None, :] - centred[..., None, :, :]).max(-1)
    alike = (distances <= resolution).astype(centred.dtype)
    alike = alike / alike.sum(-1, keepdims=True)
    return successor_features.mean(-2, keepdims=True) + alike @ centred


def greedy_actions(
    successor_features: Float[Array, "context row action feature"],
    reward_weights: Float[Array, " feature"],
    resolution: float,
) -> Int[Array, "context row"]:
    """argmax_a Ψ(s, a, θ)·ω, the first of equals.

    Without the resolution, noise would choose among tied actions anew in every update.
    """
    values = merge_ties(successor_features, resolution) @ reward_weights
    return jnp.argmax(values, axis=-1)


def td_errors(
    successor_features: Float[Array, "context row action feature"],
    targets: Float[Array, "context row action feature"],
    features: Float[Array, "row action feature"],
    steps: Steps,
    greedy: Int[Array, "context row"],
    gamma: float,
) -> Float[Array, "context step feature"]:
    """δ = ν(s, a) + γ Ψ'(s', a', θ) − Ψ(s, a, θ) of every step, in every context."""
    each = jnp.arange(len(successor_features))[:, None]
    chosen = steps.next_actions
    following = greedy[:, steps.next_rows] if chosen is None else chosen[None]
    next_psi = targets[each, steps.next_rows, following]
    psi = successor_features[:, steps.rows, steps.actions]
    # ν of the state being left (design, point 9).
    return features[steps.rows, steps.actions] + gamma * next_psi - psi


def _mean_square(errors: Float[Array, "context step feature"], steps: Steps) -> Float[Array, ""]:
    total = jnp.maximum(steps.weights.sum(), 1e-12)
    return (steps.weights * (errors**2).sum(-1)).sum() / total


def losses(
    successor_features: Float[Array, "context row action feature"],
    targets: Float[Array, "context row action feature"],
    batch: Batch,
    greedy: Int[Array, "context row"],
    gamma: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """L_Expert and L_Simulator, in units of (1−γ)Ψ, so that rates mean the same for every γ."""
    expert, simulated = (
        _mean_square(
            td_errors(successor_features, targets, batch.features, steps, greedy, gamma), steps
        )
        for steps in (batch.expert, batch.simulated)
    )
    return (1 - gamma) ** 2 * expert, (1 - gamma) ** 2 * simulated


def solve_head(
    network: SuccessorNetwork,
    batch: Batch,
    reward_weights: Float[Array, " feature"],
    config: SuccessorConfig,
    *,
    num_steps: int = 8,
) -> SuccessorNetwork:
    """Moves the head to where the expected update of all steps vanishes, for a fixed trunk.

    Flat over actions, W is [action · hidden, feature], and a pair (s, a) has as input x the x(s, θ)
    in the block of a, 0 elsewhere. In units of the head the error is that of plain TD,

        (1 − γ)/γ · δ = (1 − γ) ν(s', a') − Wᵀ(x − γ x'),

    so the steps of `heads` apply. Greedy a' are those of the head given, throughout.
    """
    if network.gamma == 0:
        return network  # Ψ = ν, whatever the head
    hidden = network.hidden(batch.observations, batch.rests)
    psi = network.read_out(hidden, batch.features)
    greedy = greedy_actions(psi, reward_weights, config.resolution)
    parts = ((batch.expert, 1.0), (batch.simulated, config.simulator_weight))
    num_actions, width, num_features = network.head.shape
    size = num_actions * width
    inputs, differences, weights = [], [], []
    for steps, share in parts:
        chosen = steps.next_actions
        chosen = greedy[:, steps.next_rows] if chosen is None else chosen[None]
        acts = jax.nn.one_hot(steps.actions, num_actions)[None]
        next_acts = jax.nn.one_hot(chosen, num_actions)
        # [context, step, action, hidden], the block of one action filled.
        x = acts[..., None] * hidden[:, steps.rows, None]
        x_next = next_acts[..., None] * hidden[:, steps.next_rows, None]
        inputs.append(x.reshape(-1, size))
        differences.append((x - network.gamma * x_next).reshape(-1, size))
        # Each part a mean, as in `losses`, the simulated one times β.
        weights.append((steps.weights * share / jnp.maximum(steps.weights.sum(), 1e-12)).ravel())
    x, x_change = jnp.concatenate(inputs), jnp.concatenate(differences)
    weighted = x * jnp.concatenate(weights)[:, None]
    factors = heads.factorise(
        weighted.T @ x,
        weighted.T @ x_change,
        ridge=config.ridge,
        proximity=config.proximity,
    )
    scale = (1 - network.gamma) / network.gamma  # from units of Ψ to those of the head

    # Errors are computed anew from Ψ itself, not from the factors: rounding does not add up.
    def improve(head, _):
        moved = eqx.tree_at(lambda n: n.head, network, head).read_out(hidden, batch.features)
        errors = [
            td_errors(moved, moved, batch.features, steps, greedy, network.gamma)
            for steps, _ in parts
        ]
        flat = jnp.concatenate([part.reshape(-1, num_features) for part in errors])
        step = heads.step(factors, weighted.T @ (flat * scale))
        return head + step.reshape(head.shape), None

    head, _ = jax.lax.scan(improve, network.head, length=num_steps)
    return eqx.tree_at(lambda n: n.head, network, head)
