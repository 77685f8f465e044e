"""Encoders: the same numbers as the library's convolutions, by hand, and whatever the units."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bigtrain.errors import ConfigError
from bigtrain.learning.networks import Convolution, Encoder, NetworkConfig, Trunk

SMALL = NetworkConfig(channels=(3, 5), kernels=(3, 2), strides=(2, 1))
SHAPES = [(), (5,), (2, 3), (2, 2, 1, 2)]


make_encoder = eqx.filter_jit(Encoder)


def pictures(seed: int = 0, count: int = 12, shape: tuple[int, ...] = (9, 8, 2)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)


def biased(encoder: Encoder) -> Encoder:
    """The same with biases that are not 0, so that pictures of zeros are told from none."""
    return eqx.tree_at(
        lambda e: [layer.bias for layer in e.convolutions],
        encoder,
        [jnp.linspace(-0.5, 1, len(layer.bias)) for layer in encoder.convolutions],
    )


def without_statistics(encoder: Encoder) -> Encoder:
    blank = (jnp.zeros_like(encoder.mean), jnp.ones(()))
    return eqx.tree_at(lambda e: (e.mean, e.scale), encoder, blank)


# ── convolutions ─────────────────────────────────────────────────────────────────────────────────


def library_convolution(layer: Convolution, in_channels: int) -> eqx.nn.Conv2d:
    """`eqx.nn.Conv2d` with the weights of `layer`, whose patches are [row, column, channel]."""
    size = layer.kernel
    plain = eqx.nn.Conv2d(in_channels, len(layer.bias), size, layer.stride, key=jax.random.key(9))
    weight = layer.weight.reshape(-1, size, size, in_channels).transpose(0, 3, 1, 2)
    bias = layer.bias[:, None, None]
    return eqx.tree_at(lambda c: (c.weight, c.bias), plain, (weight, bias))


def random_convolution(seed: int, in_channels: int, kernel: int, stride: int) -> Convolution:
    key_weight, key_bias = jax.random.split(jax.random.key(seed))
    layer = Convolution(in_channels, 4, kernel, stride, key=key_weight)
    return eqx.tree_at(lambda c: c.bias, layer, jax.random.normal(key_bias, (4,)))


@pytest.mark.parametrize("kernel, stride", [(1, 1), (3, 2), (4, 4), (2, 3), (7, 1)])
def test_convolution_is_the_librarys(kernel, stride):
    layer = random_convolution(kernel, 3, kernel, stride)
    picture = np.random.default_rng(stride).normal(size=(11, 7, 3)).astype(np.float32)
    want = library_convolution(layer, 3)(jnp.asarray(picture.transpose(2, 0, 1)))
    found = layer(jnp.asarray(picture))
    assert found.shape == ((11 - kernel) // stride + 1, (7 - kernel) // stride + 1, 4)
    # Sums of at most 147 products of size 1 in float32.
    np.testing.assert_allclose(found, want.transpose(1, 2, 0), atol=2e-5)


def test_convolution_is_the_librarys_for_many_networks():
    seeds = range(3)
    layers = [random_convolution(seed, 2, 3, 2) for seed in seeds]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    seen = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 9, 2)), jnp.float32)
    found = eqx.filter_vmap(lambda layer, picture: layer(picture))(stacked, seen)
    for layer, picture, one in zip(layers, seen, found, strict=True):
        want = library_convolution(layer, 2)(picture.transpose(2, 0, 1))
        np.testing.assert_allclose(one, want.transpose(1, 2, 0), atol=2e-5)


def test_convolution_by_hand():
    """One 2 × 2 kernel, rows first, over [[0, 1, 2], [3, 4, 5], [6, 7, 8]]."""
    layer = Convolution(1, 1, 2, 1, key=jax.random.key(0))
    layer = eqx.tree_at(
        lambda c: (c.weight, c.bias), layer, (jnp.array([[1.0, 10, 100, 1000]]), jnp.array([0.5]))
    )
    found = layer(jnp.arange(9.0).reshape(3, 3, 1))
    np.testing.assert_allclose(found[..., 0], [[4310.5, 5421.5], [7643.5, 8754.5]])


# ── encoders ─────────────────────────────────────────────────────────────────────────────────────


def test_encoder_takes_the_mean_away():
    examples = jnp.asarray(pictures())
    encoder = biased(make_encoder(examples, SMALL, key=jax.random.key(0)))
    mean = examples.astype(jnp.float32).mean(0)
    want = without_statistics(encoder)(jnp.zeros_like(mean))
    assert (np.asarray(want) > 0).any() and (np.asarray(want) == 0).any()
    np.testing.assert_allclose(encoder(mean), want, atol=1e-6)
    assert np.abs(np.asarray(encoder(examples[0]) - want)).max() > 0.1


def test_encoder_scales_by_one_number():
    """All examples together get a variance of 1; what varies little stays little."""
    examples = np.random.default_rng(0).normal(2, [1.0, 5.0, 0.1], size=(50, 3)).astype(np.float32)
    deviations = examples - examples.mean(0)
    encoder = make_encoder(jnp.asarray(examples), SMALL, key=jax.random.key(0))
    found = jax.vmap(encoder)(jnp.asarray(examples))
    np.testing.assert_allclose(found, deviations / np.sqrt((deviations**2).mean()), atol=1e-5)


@pytest.mark.parametrize("shape", [(9, 8, 2), (4,)])
def test_units_do_not_matter(shape):
    """Observations of three times the size around another mean give the same code."""
    examples = pictures(shape=shape).astype(np.float32)
    encoder, other = (
        Encoder(jnp.asarray(seen), SMALL, key=jax.random.key(0))
        for seen in (examples, 3 * examples - 70)
    )
    for seen in examples:
        # Numbers up to 700 in float32, divided by a scale of about 200.
        np.testing.assert_allclose(
            encoder(jnp.asarray(seen)), other(jnp.asarray(3 * seen - 70)), atol=1e-5
        )


def test_bytes_and_numbers_give_the_same_code():
    examples = pictures()
    from_bytes = make_encoder(jnp.asarray(examples), SMALL, key=jax.random.key(0))
    from_floats = make_encoder(jnp.asarray(examples, jnp.float32), SMALL, key=jax.random.key(0))
    want = np.asarray(from_floats(jnp.asarray(examples[3], jnp.float32)))
    assert want.any()
    for encoder in (from_bytes, from_floats):
        for dtype in (jnp.uint8, jnp.int32, jnp.float32):
            np.testing.assert_array_equal(encoder(jnp.asarray(examples[3], dtype)), want)


def test_encoder_is_convolutions_in_a_row():
    examples = pictures(1)
    encoder = biased(make_encoder(jnp.asarray(examples), SMALL, key=jax.random.key(1)))
    values = examples[0].astype(np.float64)
    values = (values - examples.mean(0)) / np.sqrt(((examples - examples.mean(0)) ** 2).mean())
    for layer, in_channels in zip(encoder.convolutions, (2, 3), strict=True):
        plain = library_convolution(layer, in_channels)
        after = plain(jnp.asarray(values.transpose(2, 0, 1), jnp.float32)).transpose(1, 2, 0)
        values = np.maximum(np.asarray(after), 0)
    found = encoder(jnp.asarray(examples[0]))
    assert found.shape == (encoder.size,) == (3 * 2 * 5,)
    np.testing.assert_allclose(found, values.ravel(), atol=1e-4)


def test_examples_that_are_all_alike():
    encoder = make_encoder(jnp.full((3, 4), 7, jnp.uint8), SMALL, key=jax.random.key(0))
    np.testing.assert_array_equal(encoder(jnp.array([7, 8, 6, 7])), [0, 1, -1, 0])


def test_statistics_get_no_gradient():
    examples = jnp.asarray(pictures(), jnp.float32)
    encoder = biased(make_encoder(examples, SMALL, key=jax.random.key(0)))
    gradients = eqx.filter_grad(lambda e: (e(examples[0]) ** 2).sum())(encoder)
    assert not np.asarray(gradients.mean).any() and not np.asarray(gradients.scale).any()
    for layer in gradients.convolutions:
        assert np.asarray(layer.weight).any() and np.asarray(layer.bias).any()
    towards = jax.grad(lambda seen: (encoder(seen) ** 2).sum())(examples[0])
    assert np.asarray(towards).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_no_picture_is_laid_out_flat(shape):
    examples = np.random.default_rng(0).normal(size=(20, *shape)).astype(np.float32)
    encoder = make_encoder(jnp.asarray(examples), SMALL, key=jax.random.key(0))
    deviations = examples - examples.mean(0)
    want = (deviations[4] / np.sqrt((deviations**2).mean())).ravel()
    assert encoder.convolutions == () and encoder.size == want.size
    np.testing.assert_allclose(encoder(jnp.asarray(examples[4])), want, atol=1e-5)


@pytest.mark.parametrize("wrong", [(9, 8), (8, 9, 2), (9, 8, 3), (1, 9, 8, 2)])
def test_an_observation_of_another_shape(wrong):
    encoder = make_encoder(jnp.asarray(pictures()), SMALL, key=jax.random.key(0))
    with pytest.raises(ConfigError) as error:
        encoder(jnp.zeros(wrong))
    assert str(error.value) == f"An observation must have the shape (9, 8, 2), got {wrong}."


def test_the_smallest_picture_that_will_do():
    """A kernel of 3 at a stride of 2 leaves 2 of 5 pixels, which a kernel of 2 just covers."""
    assert make_encoder(jnp.zeros((2, 5, 6, 1)), SMALL, key=jax.random.key(0)).size == 5
    for shape in [(4, 6, 1), (6, 4, 1), (2, 2, 1)]:
        with pytest.raises(ConfigError) as error:
            Encoder(jnp.zeros((2, *shape)), SMALL, key=jax.random.key(0))
        assert str(error.value) == (
            f"A picture of {shape[0]} × {shape[1]} is too small for the kernels (3, 2) at the "
            "strides (2, 1). Choose smaller ones."
        )


# ── trunks ───────────────────────────────────────────────────────────────────────────────────────


def test_every_layer_is_normalised():
    trunk = Trunk((7, 64, 32, 48), key=jax.random.key(0))
    for seed in range(3):
        values = jnp.asarray(np.random.default_rng(seed).normal(size=7), jnp.float32)
        for count, size in enumerate((64, 32, 48), 1):
            first = eqx.tree_at(
                lambda t: (t.layers, t.norms),
                trunk,
                (trunk.layers[:count], trunk.norms[:count]),
            )
            out = np.asarray(first(values))
            assert out.shape == (size,)
            assert out.mean() == pytest.approx(0, abs=1e-6)
            # The norm adds 1e-5 to a variance which at the start is 0.05 or more.
            assert out.var() == pytest.approx(1, abs=2e-4)


def test_trunk_by_plain_algebra():
    """Rectified between layers, neither before the first nor after the last."""
    trunk = Trunk((5, 8, 6), key=jax.random.key(2))
    values = np.random.default_rng(0).normal(size=5)
    want = values
    for layer, before in zip(trunk.layers, (lambda x: x, lambda x: np.maximum(x, 0)), strict=True):
        assert layer.bias is not None
        want = np.asarray(layer.weight) @ before(want) + np.asarray(layer.bias)
        want = (want - want.mean()) / np.sqrt(want.var() + 1e-5)
    assert want.min() < 0
    np.testing.assert_allclose(trunk(jnp.asarray(values, jnp.float32)), want, atol=1e-5)


def test_a_trunk_without_layers_changes_nothing():
    values = jnp.array([1.0, -2.0, 3.0])
    np.testing.assert_array_equal(Trunk((3,), key=jax.random.key(0))(values), values)


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["width", "depth"])
@pytest.mark.parametrize("value", [0, -3])
def test_config_refuses_sizes_below_one(field, value):
    with pytest.raises(
        ConfigError, match="^`width` must be at least 2 and `depth` at least 1, got"
    ):
        NetworkConfig(**{field: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"channels": (16,)},
        {"kernels": (4, 3, 2)},
        {"strides": ()},
        {"channels": (16, 0)},
        {"kernels": (0, 3)},
        {"strides": (4, -1)},
    ],
)
def test_config_refuses_layers_that_do_not_fit(fields: dict[str, Any]):
    given = {"channels": (16, 32), "kernels": (4, 3), "strides": (4, 1), **fields}
    with pytest.raises(ConfigError) as error:
        NetworkConfig(**fields)
    assert str(error.value) == (
        "`channels`, `kernels` and `strides` must be positive and have one entry a layer, got "
        f"{given['channels']}, {given['kernels']} and {given['strides']}."
    )


def test_pictures_may_go_without_convolutions():
    config = NetworkConfig(channels=(), kernels=(), strides=())
    encoder = make_encoder(jnp.asarray(pictures()), config, key=jax.random.key(0))
    assert encoder(jnp.asarray(pictures()[0])).shape == (9 * 8 * 2,)
