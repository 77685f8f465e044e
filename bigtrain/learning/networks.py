"""Encoders: what is seen, as a picture or as numbers, becomes a vector that heads can work with.

    enc(o) = conv(... relu(conv((o − mean) / scale)))      [code]     flat; numbers pass as they are
    trunk(x) = norm(W_L relu(norm(... norm(W_1 x))))       [width]
    weights ~ N(0, 2 / inputs)                                        He et al. (2015), `linear`

What bites: heads are solved for by least squares, which cannot tell apart what the layers below
have made alike. Hence means are taken away from observations, layers are normalised, and initial
weights are large enough that the output of several layers still differs from input to input.
"""

from dataclasses import dataclass
from typing import Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bigtrain.errors import ConfigError


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of an encoder.

    `channels`, `kernels` and `strides` matter for pictures only, one entry a layer. `units` says
    whether the numbers of a vector are all of one kind, or each is a measurement of its own, to be
    scaled by how much it varies.
    """

    width: int = 128
    depth: int = 2
    channels: tuple[int, ...] = (16, 32)
    kernels: tuple[int, ...] = (4, 3)
    strides: tuple[int, ...] = (4, 1)
    units: Literal["one", "each"] = "one"

    def __post_init__(self):
        if self.width < 2 or self.depth < 1:
            raise ConfigError(
                "`width` must be at least 2 and `depth` at least 1, "
                f"got {self.width} and {self.depth}."
            )
        layers = (self.channels, self.kernels, self.strides)
        if len({len(layer) for layer in layers}) != 1 or min(sum(layers, (1,))) < 1:
            raise ConfigError(
                "`channels`, `kernels` and `strides` must be positive and have one entry a layer, "
                f"got {self.channels}, {self.kernels} and {self.strides}."
            )


def linear(
    num_inputs: int, num_outputs: int, *, use_bias: bool = True, key: PRNGKeyArray
) -> eqx.nn.Linear:
    """A layer for rectified inputs: normal weights of the variance 2 / inputs, biases of 0.

    Larger than Equinox's own, so that what comes out of several layers still differs from input to
    input, which least squares on top of them depends on. `he_normal` has the same variance, but
    truncates.
    """
    layer = eqx.nn.Linear(num_inputs, num_outputs, use_bias=use_bias, key=key)
    # Equinox has the shape (out, in), and draws uniformly within 1/√in: a sixth of this variance.
    weight = _he_normal(num_inputs)(key, layer.weight.shape)
    layer = eqx.tree_at(lambda new: new.weight, layer, weight)
    if use_bias:
        layer = eqx.tree_at(lambda new: new.bias, layer, jnp.zeros(num_outputs))
    return layer


def _he_normal(num_inputs: int) -> jax.nn.initializers.Initializer:
    return jax.nn.initializers.normal(np.sqrt(2 / num_inputs))


@final
class Convolution(eqx.Module):
    """A convolution without padding, as a matrix product with the patches of the picture.

    `eqx.nn.Conv2d` computes the same. Under `vmap` over networks it becomes a grouped
    convolution, though, which takes XLA longer on CPUs; a matrix product stays one
    (`benchmarks/training.py` prints the ratio).
    """

    weight: Float[Array, "channel patch"]
    bias: Float[Array, " channel"]
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int, *, key: PRNGKeyArray
    ):
        size = in_channels * kernel**2
        self.weight = _he_normal(size)(key, (out_channels, size))
        self.bias = jnp.zeros(out_channels)
        self.kernel, self.stride = kernel, stride

    def __call__(self, picture: Float[Array, "row column in"]) -> Float[Array, "y x channel"]:
        height, width, _ = picture.shape
        rows, columns = (
            np.arange((size - self.kernel) // self.stride + 1)[:, None] * self.stride
            + np.arange(self.kernel)
            for size in (height, width)
        )
        # [y, x, kernel row, kernel column, channel], by two index arrays that broadcast.
        patches = picture[rows[:, None, :, None], columns[None, :, None, :]]
        patches = patches.reshape(len(rows), len(columns), -1)
        return patches @ self.weight.T + self.bias


@final
class Encoder(eqx.Module):
    """An observation of one kind to a vector: convolutions for pictures, nothing for numbers.

    Pictures are arrays [row, column, channel]. Anything else is laid out flat. `mean` and `scale`
    say what observations are like: what all of them have in common is taken away, since what
    tells them apart may be a few pixels.
    """

    convolutions: tuple[Convolution, ...]
    mean: Float[Array, "..."]
    scale: Float[Array, "*entry"]
    shape: tuple[int, ...] = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def __init__(
        self, examples: Shaped[Array, "example ..."], config: NetworkConfig, *, key: PRNGKeyArray
    ):
        values = examples.astype(jnp.float32)
        self.mean = values.mean(0)
        # One scale for all entries, as a rule: each by its own, those of a picture that hardly vary
        # would become noise. Of a vector of measurements each has a unit of its own.
        axis = 0 if config.units == "each" and examples.ndim == 2 else None
        spread = jnp.sqrt(((values - self.mean) ** 2).mean(axis))
        self.scale = jnp.where(spread > 0, spread, 1.0)
        self.shape = shape = examples.shape[1:]
        self.convolutions = ()
        if len(shape) != 3:
            self.size = int(np.prod(shape, dtype=int))
            return
        *spatial, channels = shape
        for key_layer, out_channels, kernel, stride in zip(
            jax.random.split(key, len(config.channels)),
            config.channels,
            config.kernels,
            config.strides,
            strict=True,
        ):
            if min(spatial) < kernel:
                raise ConfigError(
                    f"A picture of {shape[0]} × {shape[1]} is too small for the kernels "
                    f"{config.kernels} at the strides {config.strides}. Choose smaller ones."
                )
            layer = Convolution(channels, out_channels, kernel, stride, key=key_layer)
            self.convolutions += (layer,)
            channels = out_channels
            spatial = [(size - kernel) // stride + 1 for size in spatial]
        self.size = int(np.prod(spatial)) * channels

    def __call__(self, observation: Shaped[Array, "..."]) -> Float[Array, " code"]:
        if observation.shape != self.shape:
            raise ConfigError(
                f"An observation must have the shape {self.shape}, got {observation.shape}."
            )
        # Arrays of the module, and so parameters to an optimiser, were it not for this.
        mean, scale = jax.lax.stop_gradient((self.mean, self.scale))
        values = (observation.astype(jnp.float32) - mean) / scale
        for layer in self.convolutions:
            values = jax.nn.relu(layer(values))
        return values.reshape(-1)


@final
class Trunk(eqx.Module):
    """Fully connected layers, each normalised, and rectified but for the last.

    The normalisation keeps the outputs for different inputs apart, which least squares on top of
    them depends on. `sizes` are those of the input and of each layer.
    """

    layers: tuple[eqx.nn.Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]

    def __init__(self, sizes: tuple[int, ...], *, key: PRNGKeyArray):
        self.layers = tuple(
            eqx.nn.Linear(before, after, key=key_layer)
            for before, after, key_layer in zip(
                sizes[:-1], sizes[1:], jax.random.split(key, len(sizes) - 1), strict=True
            )
        )
        self.norms = tuple(eqx.nn.LayerNorm(size) for size in sizes[1:])

    def __call__(self, values: Float[Array, " in"]) -> Float[Array, " out"]:
        # Rectified before each layer but the first; who uses the output rectifies it.
        for place, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            values = norm(layer(values if place == 0 else jax.nn.relu(values)))
        return values
