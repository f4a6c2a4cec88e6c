"""Convolution, ReLU and max-pooling in one pass, judged by torch's three layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hopfy._kernels import conv_pool
from hopfy._kernels.conv_pool import conv_relu_pool
from hopfy._kernels.conv_pool.reference import conv_relu_pool as reference
from hopfy._runtime.compilation import compiled
from hopfy.estimators._bag_network import ConvReluPool

SHAPES = [
    # images, channels, height, width, outputs, kernel
    (5, 1, 28, 28, 20, 5),
    (3, 20, 12, 12, 50, 5),
    (2, 3, 9, 12, 8, 3),  # a row is left over
    (4, 2, 6, 5, 7, 4),  # one window wide
    (1, 5, 11, 7, 24, 2),
    (2, 1, 4, 4, 1, 1),
    (0, 1, 28, 28, 20, 5),
    (67, 3, 10, 10, 33, 5),
]


def _inputs(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    count, channels, height, width, outputs, kernel = shape
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, channels, height, width, generator=generator)
    weight = torch.randn(outputs, channels, kernel, kernel, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    return images.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def _exact(inputs: tuple[Tensor, ...], cotangent: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Values and gradients of torch's layers in double precision."""
    double = [each.detach().double().requires_grad_() for each in inputs]
    pooled = torch.relu(torch.max_pool2d(torch.conv2d(*double), 2))
    return pooled, torch.autograd.grad(pooled, double, cotangent.double())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_values_and_gradients_are_those_of_the_three_layers(
    shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    inputs = _inputs(shape)
    pooled = conv_relu_pool(inputs[0].contiguous(memory_format=layout), *inputs[1:])
    cotangent = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1))
    values, gradients = _exact(inputs, cotangent)
    torch.testing.assert_close(pooled.double(), values, rtol=1e-5, atol=1e-4)
    for ours, theirs in zip(torch.autograd.grad(pooled, inputs, cotangent), gradients, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=3e-4)


def test_it_is_the_compiled_pass_that_is_judged_here() -> None:
    pooled = conv_relu_pool(*_inputs(SHAPES[0]))
    assert (compiled("conv_pool.cpu") is None) != ("ConvReluPool" in type(pooled.grad_fn).__name__)


def test_only_what_is_asked_for_is_differentiated() -> None:
    images, weight, bias = _inputs(SHAPES[1])
    pooled = conv_relu_pool(images.detach(), weight, bias)
    cotangent = torch.randn_like(pooled)
    _, expected = _exact((images, weight, bias), cotangent)
    found = torch.autograd.grad(pooled, (weight, bias), cotangent)
    torch.testing.assert_close(found[0].double(), expected[1], rtol=1e-5, atol=3e-4)
    torch.testing.assert_close(found[1].double(), expected[2], rtol=1e-5, atol=3e-4)


def test_equal_entries_give_the_gradient_to_one_of_them() -> None:
    images = torch.ones(2, 1, 6, 6, requires_grad=True)
    weight, bias = torch.ones(1, 1, 3, 3), torch.zeros(1)
    (gradient,) = torch.autograd.grad(conv_relu_pool(images, weight, bias).sum(), images)
    (expected,) = torch.autograd.grad(reference(images, weight, bias).sum(), images)
    torch.testing.assert_close(gradient, expected)


def test_what_is_not_positive_gives_zero_and_no_gradient() -> None:
    images, weight, bias = _inputs(SHAPES[2])
    pooled = conv_relu_pool(images, weight * 0, -bias.abs())
    assert not pooled.any()
    assert not torch.autograd.grad(pooled.sum(), images)[0].any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_infinity_are_not_lost(value: float) -> None:
    images, weight, bias = _inputs((2, 1, 10, 10, 3, 3))
    spoiled = images.detach().clone()
    spoiled[0, 0, 4, 4] = value
    ours, theirs = conv_relu_pool(spoiled, weight, bias), reference(spoiled, weight, bias)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.isinf(), theirs.isinf())
    torch.testing.assert_close(ours[1], theirs[1])


def test_second_derivatives_exist() -> None:
    inputs = _inputs((2, 1, 6, 6, 2, 3))

    def penalty(function: object) -> tuple[Tensor, ...]:
        pooled = function(*inputs)  # type: ignore[operator]
        first = torch.autograd.grad(pooled.square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), inputs)

    for ours, theirs in zip(penalty(conv_relu_pool), penalty(reference), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_threads_do_not_change_a_bit_from_run_to_run() -> None:
    inputs = _inputs((300, 3, 12, 12, 16, 5))
    pooled = conv_relu_pool(*inputs)
    cotangent = torch.randn_like(pooled)
    first = torch.autograd.grad(pooled, inputs, cotangent, retain_graph=True)
    for _ in range(5):
        again = torch.autograd.grad(pooled, inputs, cotangent, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize(
    "shape", [(2, 1, 4, 9, 3, 5), (2, 2, 5, 5, 3, 5)], ids=["too low", "no window"]
)
def test_images_that_are_too_small_are_torchs_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError):
        conv_relu_pool(*_inputs(shape))


def test_wrong_channels_are_torchs_error() -> None:
    images, weight, bias = _inputs(SHAPES[1])
    with pytest.raises(RuntimeError, match="channels"):
        conv_relu_pool(images[:, :3], weight, bias)


def test_doubles_tracers_and_vmap_use_plain_torch() -> None:
    images, weight, bias = (each.detach() for each in _inputs(SHAPES[2]))
    expected = reference(images, weight, bias)
    found = conv_relu_pool(images.double(), weight.double(), bias.double())
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-4)
    each = torch.vmap(lambda own: conv_relu_pool(own.unsqueeze(0), weight, bias))(images)
    torch.testing.assert_close(each.squeeze(1), expected, rtol=1e-4, atol=1e-4)


def test_without_numba_plain_torch_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_pool, "compiled", lambda _: None)
    inputs = _inputs(SHAPES[2])
    torch.testing.assert_close(conv_relu_pool(*inputs), reference(*inputs))


def test_the_layer_has_the_parameters_of_a_convolution() -> None:
    layer, plain = ConvReluPool(3, 8, 5), torch.nn.Conv2d(3, 8, 5)
    plain.load_state_dict(layer.state_dict())
    images = torch.randn(2, 3, 14, 14)
    expected = torch.max_pool2d(plain(images).relu(), 2)
    torch.testing.assert_close(layer(images), expected, rtol=1e-4, atol=1e-5)
