"""Behaviour cloning: demonstrations to the policy under which they are likeliest.

    L = −1/N Σ_i Σ_j log π_φ(a_j | o_j)            or π_φ(a_j | h_j), recurrent;  N steps in all
    φ ← φ − η ½ (1 + cos(π t / T)) Adam(∇L)

What bites: with an imitation gap (section 3.1) the minimum is Σ_θ p(θ | h) π*(a | s, θ), and that
opens some door as soon as it can. A mean over the steps of a batch would be biased, where
trajectories have different lengths; the sum is divided by the batch's size times the mean length.

A network is trained as a whole in compiled code, several seeds side by side. Finite problems can
also be cloned by counting: see `bigtrain.finite.baselines`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict, Unpack, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, Shaped

from bigtrain.baselines.cloned import ClonedPolicy, CloneNetwork
from bigtrain.data import Demonstrations
from bigtrain.errors import ConfigError
from bigtrain.learning import NetworkConfig
from bigtrain.problem import NO_ACTION, Simulator, State, Trajectories, observe_all
from bigtrain.runs import Callback, Event


@dataclass(frozen=True)
class CloneConfig:
    """Settings of cloning by a network; a `recurrent` one acts on the whole history.

    `core_width` is the size of its memory. The learning rate decays to 0 along a cosine.
    `batch_size` counts trajectories; where there are no more than that, every update uses all.
    """

    recurrent: bool = False
    network: NetworkConfig = field(default_factory=NetworkConfig)
    core_width: int = 64
    learning_rate: float = 3e-3
    num_updates: int = 1_000
    batch_size: int = 64
    report_every: int = 100

    def __post_init__(self):
        for name in ("core_width", "num_updates", "batch_size", "report_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if not 0 < self.learning_rate < float("inf"):
            raise ConfigError(f"`learning_rate` must be positive, got {self.learning_rate}.")


class _Options(TypedDict, total=False):
    config: CloneConfig
    callbacks: Sequence[Callback]


@overload
def clone_network(
    cmdp: Simulator, demonstrations: Demonstrations, *, seed: int = ..., **options: Unpack[_Options]
) -> ClonedPolicy: ...
@overload
def clone_network(
    cmdp: Simulator,
    demonstrations: Demonstrations,
    *,
    seed: Sequence[int],
    **options: Unpack[_Options],
) -> list[ClonedPolicy]: ...
def clone_network(
    cmdp: Simulator,
    demonstrations: Demonstrations,
    *,
    config: CloneConfig = CloneConfig(),
    seed: int | Sequence[int] = 0,
    callbacks: Sequence[Callback] = (),
) -> ClonedPolicy | list[ClonedPolicy]:
    """Behaviour cloning by a network, which generalises to what no expert saw, well or not.

    In a finite problem the network sees the problem's observations, made when they are looked
    at, even if the demonstrations hold states. Several seeds give a policy each; callbacks then
    hear one number for each.
    """
    seeds = [seed] if isinstance(seed, int) else list(seed)
    if not seeds:
        raise ConfigError("`seed` must be a number or a sequence of them, got an empty one.")
    lessons = _lessons(cmdp, demonstrations)
    keys = jnp.stack([jax.random.split(jax.random.key(number)) for number in seeds])
    networks = _start(
        keys[:, 0],
        observe_all(cmdp, lessons.examples),
        cmdp.num_actions,
        config.network,
        config.core_width if config.recurrent else None,
    )
    optimiser = _optimiser(config).init(eqx.filter(networks, eqx.is_array))
    for first in range(0, config.num_updates, config.report_every):
        stop = min(first + config.report_every, config.num_updates)
        span = jnp.asarray([first, stop])
        networks, optimiser, tally = _learn(
            networks, optimiser, keys[:, 1], span, cmdp, lessons, config
        )
        metrics = {}
        for name, total in (("loss", tally.loss), ("accuracy", tally.hits)):
            values = np.asarray(total / tally.steps, np.float64)
            metrics[name] = values.item() if isinstance(seed, int) else values
        for callback in callbacks:
            callback(Event("cloning", stop, metrics, config.num_updates))
    policies = [
        ClonedPolicy(
            cmdp.context_prior, jax.tree.map(lambda leaf, place=place: leaf[place], networks)
        )
        for place in range(len(seeds))
    ]
    return policies[0] if isinstance(seed, int) else policies


_NUM_EXAMPLES = 1_000
"""How many steps tell a network what observations are like; where there are fewer, they repeat."""


class _Lessons(eqx.Module):
    """Demonstrations as a simulator sees them, and some states to tell what those are like."""

    expert: Trajectories
    examples: State


class _Tally(NamedTuple):
    """Sums over steps: of the loss, of actions guessed right, and of the steps themselves."""

    loss: Float[Array, "*seed"]
    hits: Float[Array, "*seed"]
    steps: Float[Array, "*seed"]


def _lessons(simulator: Simulator, demonstrations: Demonstrations) -> _Lessons:
    expert = jax.tree.map(jnp.asarray, demonstrations.trajectories(simulator))
    mask = np.asarray(expert.mask)[:, 1:]  # the last state of a trajectory has no action
    chosen = np.linspace(0, mask.sum() - 1, _NUM_EXAMPLES).astype(int)
    # Evenly over all steps: networks take means and scales of observations from these.
    examples = jax.tree.map(lambda leaf: leaf[:, :-1][mask][chosen], expert.states)
    return _Lessons(expert, examples)


def _optimiser(config: CloneConfig) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(config.learning_rate, config.num_updates))


@eqx.filter_jit
def _start(
    keys: Key[Array, " seed"],
    examples: Shaped[Array, "example ..."],
    num_actions: int,
    config: NetworkConfig,
    core_width: int | None,
) -> CloneNetwork:
    def start(key):
        return CloneNetwork(examples, num_actions, config, core_width, key=key)

    return jax.vmap(start)(keys)


@eqx.filter_jit
def _learn(
    networks: CloneNetwork,
    optimiser: optax.OptState,
    keys: Key[Array, " seed"],
    span: Int[Array, "2"],
    cmdp: Simulator,
    lessons: _Lessons,
    config: CloneConfig,
) -> tuple[CloneNetwork, optax.OptState, _Tally]:
    """The updates from `span[0]` up to `span[1]`, in all seeds."""
    num_trajectories = len(lessons.expert.mask)

    def differentiate(network, key, step):
        batch = jnp.arange(num_trajectories)
        if config.batch_size < num_trajectories:
            # By the number of the update, so that how many are one program changes nothing.
            key_batch = jax.random.fold_in(key, step)
            batch = jax.random.randint(key_batch, (config.batch_size,), 0, num_trajectories)
        return jax.grad(_loss, has_aux=True)(network, cmdp, lessons, batch)

    def update(step, carry):
        networks, optimiser, total = carry
        # Seeds have networks of their own, so gradients are by `vmap`.
        gradients, tally = jax.vmap(differentiate, (0, 0, None))(networks, keys, step)
        # Adam goes by single weights, so one serves all seeds.
        changes, optimiser = _optimiser(config).update(gradients, optimiser)
        networks = eqx.apply_updates(networks, changes)
        return networks, optimiser, jax.tree.map(jnp.add, total, tally)

    none = jnp.zeros(len(keys))
    begin = (networks, optimiser, _Tally(none, none, none))
    return jax.lax.fori_loop(span[0], span[1], update, begin)


def _loss(
    network: CloneNetwork, simulator: Simulator, lessons: _Lessons, batch: Int[Array, " batch"]
) -> tuple[Float[Array, ""], _Tally]:
    """Minus the log-likelihood of a step, an unbiased estimate whatever the lengths."""
    chosen = jax.tree.map(lambda leaf: leaf[batch], lessons.expert)
    actions, mask = chosen.actions[:, :-1], chosen.mask[:, 1:]
    embed = simulator.encoder(network.embed, actions.size)
    states = jax.tree.map(lambda leaf: leaf[:, :-1], chosen.states)
    embeddings = jax.vmap(jax.vmap(embed))(states)

    def predict(embeddings, actions):
        if network.core is None:
            return jax.vmap(network.head)(embeddings)
        before = jnp.append(NO_ACTION, actions[:-1])  # rows are one episode each
        _, logits = jax.lax.scan(
            lambda memory, seen: network.step(memory, *seen), network.init(), (embeddings, before)
        )
        return logits

    # [trajectory, step, action]; what padding gives is masked below.
    logits = jax.vmap(predict)(embeddings, actions)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, actions)
    loss = jnp.where(mask, losses, 0).sum()
    hits = (mask & (logits.argmax(-1) == actions)).sum(dtype=loss.dtype)
    all_steps = lessons.expert.mask[:, 1:]
    mean_length = all_steps.sum() / len(all_steps)
    return loss / (len(batch) * mean_length), _Tally(loss, hits, mask.sum(dtype=loss.dtype))
