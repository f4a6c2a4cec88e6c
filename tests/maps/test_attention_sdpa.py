"""`F.attention` with softmax beside torch's own function, option by option, gradients included."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hopfy import functional as F

M, N, D, E = 5, 8, 4, 3


def tensors(lead: tuple[int, ...] = (2, 3), m: int = M, n: int = N, e: int = E) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((*lead, m, D), (*lead, n, D), (*lead, n, e))
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def grouped() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 6, M, D), (2, 2, N, D), (2, 2, N, E))
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def lower_right() -> Any:
    from torch.nn.attention.bias import causal_lower_right

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return causal_lower_right(M, N)


def upper_left() -> Any:
    from torch.nn.attention.bias import causal_upper_left

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return causal_upper_left(M, N)


def some(*shape: int) -> Tensor:
    """A boolean mask that leaves every row its first key."""
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(1)) > 0.5
    mask[..., 0] = True
    return mask


CASES: dict[str, tuple[list[Tensor], dict[str, Any]]] = {
    "nothing": (tensors(), {}),
    "one matrix": (tensors(()), {}),
    "three dimensions": (tensors((4,)), {}),
    "five dimensions": (tensors((2, 1, 3)), {}),
    "as many values as features": (tensors(e=D), {}),
    "one key": (tensors(n=1), {}),
    "a boolean mask": (tensors(), {"attn_mask": some(2, 3, M, N)}),
    "a mask of pairs": (tensors(), {"attn_mask": some(M, N)}),
    "a mask of keys": (tensors(), {"attn_mask": some(2, 1, 1, N)}),
    "a mask of one row": (tensors(), {"attn_mask": some(1, N)}),
    "a bias": (tensors(), {"attn_mask": torch.randn(2, 3, M, N)}),
    "a bias with -inf": (
        tensors(),
        {"attn_mask": torch.randn(M, N).masked_fill(~some(M, N), -torch.inf)},
    ),
    "causal": (tensors(), {"is_causal": True}),
    "causal, more queries than keys": (tensors(m=9, n=4), {"is_causal": True}),
    "causal_lower_right": (tensors(e=D), {"attn_mask": lower_right()}),
    "causal_upper_left": (tensors(e=D), {"attn_mask": upper_left()}),
    "scale": (tensors(), {"scale": 0.3}),
    "scale of zero": (tensors(), {"scale": 0.0}),
    "a negative scale": (tensors(), {"scale": -1.5}),
    "grouped heads": (grouped(), {"enable_gqa": True}),
    "grouped heads and causal": (grouped(), {"enable_gqa": True, "is_causal": True}),
    "grouped heads and a mask": (grouped(), {"enable_gqa": True, "attn_mask": some(2, 6, M, N)}),
    "dropout": (tensors(), {"dropout_p": 0.4}),
    "everything dropped": (tensors(), {"dropout_p": 1.0}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gradients", [False, True])
def test_it_is_torchs_function(name: str, gradients: bool) -> None:
    data, options = CASES[name]
    data = [x.detach().requires_grad_(gradients) for x in data]
    torch.manual_seed(2)
    wanted = scaled_dot_product_attention(*data, **options)
    torch.manual_seed(2)  # dropout draws the same
    output = F.attention(*data, **options, omega="softmax")
    torch.testing.assert_close(output, wanted)
    if gradients:
        cotangent = torch.randn_like(output)
        ours, theirs = (torch.autograd.grad(x, data, cotangent) for x in (output, wanted))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.zeros(2, 5, 4), torch.zeros(2, 8, 3), torch.zeros(2, 8, 4)),
        (torch.zeros(2, 5, 4), torch.zeros(2, 8, 4), torch.zeros(2, 7, 4)),
        (torch.zeros(2, 5, 4), torch.zeros(3, 8, 4), torch.zeros(3, 8, 4)),
        (torch.zeros(2, 5, 4), torch.zeros(2, 8, 4).double(), torch.zeros(2, 8, 4)),
        (torch.zeros(4), torch.zeros(2, 8, 4), torch.zeros(2, 8, 4)),
        (*torch.zeros(3, 2, 5, 4), torch.zeros(5, 4, dtype=torch.bool)),
        (*torch.zeros(3, 2, 5, 4), torch.zeros(5, 5, dtype=torch.int64)),
        (torch.zeros(1, 5, 5, 4), *torch.zeros(2, 1, 2, 8, 4), None, 0.0, False, None, True),
    ],
    ids=[
        "features",
        "lengths",
        "batch",
        "dtypes",
        "one dimension",
        "shape of the mask",
        "dtype of the mask",
        "heads that do not divide",
    ],
)
@pytest.mark.parametrize("omega", ["softmax", "sparsemax"])
def test_what_torch_refuses_is_refused(arguments: tuple, omega: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        scaled_dot_product_attention(*arguments)
    with pytest.raises((ValueError, TypeError), match="expected"):
        F.attention(*arguments, omega=omega)


@pytest.mark.parametrize("mask", ["boolean", "bias", "keys"])
@pytest.mark.parametrize("omega", ["softmax", "sparsemax", "2-subsets"])
def test_is_causal_with_a_mask_means_both(mask: str, omega: str) -> None:
    """Torch refuses the pair; a row that both together leave nothing gives zeros."""
    data = tensors(m=N)
    given = torch.ones(N, N, dtype=torch.bool).tril(2).triu(-3)
    given[2, :3] = False  # what is_causal allows this row
    if mask == "keys":
        given = torch.arange(N) > 1
    both = given & torch.ones(N, N, dtype=torch.bool).tril()
    argument = torch.zeros(N, N).masked_fill(~given, -torch.inf) if mask == "bias" else given
    found = F.attention(*data, argument, is_causal=True, omega=omega)
    torch.testing.assert_close(found, F.attention(*data, both, omega=omega))
    assert (found[:, :, 0 if mask == "keys" else 2] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_autocast_returns_torchs_dtype(dtype: torch.dtype, is_causal: bool) -> None:
    data = tensors()
    with torch.autocast("cpu", dtype):
        wanted = scaled_dot_product_attention(*data, is_causal=is_causal)
        output = F.attention(*data, is_causal=is_causal, omega="softmax")
    assert output.dtype is wanted.dtype is dtype
    torch.testing.assert_close(output, wanted, atol=2e-2, rtol=2e-2)


def test_second_derivatives_through_torchs_fused_kernel() -> None:
    """Torch's own function has none there."""
    data = [x.detach()[..., :3].double().requires_grad_() for x in tensors(n=M)]
    assert torch.autograd.gradgradcheck(lambda *x: F.attention(*x, omega="softmax"), data)


@pytest.mark.parametrize("mask", [None, "boolean", "bias", "causal"])
def test_second_derivatives_with_masks(mask: str | None) -> None:
    data = [x.detach()[..., :3].double().requires_grad_() for x in tensors((1, 2), n=M)]
    options: dict[str, Any] = {"is_causal": mask == "causal"}
    if mask == "boolean":
        options["attn_mask"] = some(M, M)
    elif mask == "bias":
        options["attn_mask"] = torch.randn(M, M, dtype=torch.float64)

    def call(*x: Tensor) -> Tensor:
        return F.attention(*x, **options, omega="softmax")

    assert torch.autograd.gradgradcheck(call, data)
    recorded = torch.autograd.grad(call(*data).square().sum(), data, create_graph=True)
    torch.testing.assert_close(recorded, torch.autograd.grad(call(*data).square().sum(), data))


@pytest.mark.parametrize("outer", ["grad", "jvp", "backward"])
@pytest.mark.parametrize("omega", ["softmax", "1.5-entmax"])
def test_second_derivatives_by_transforms(outer: str, omega: str) -> None:
    """A transform differentiates what another transform, or autograd, differentiates again."""
    q, k, v = (x.detach()[..., :3].double() for x in tensors((1, 2), n=M))
    direction = torch.randn_like(q)

    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: F.attention(y, k, v, omega=omega).square().sum())(x)

    def along(x: Tensor) -> Tensor:
        return (slope(x) * direction).sum()

    if outer == "jvp":
        _, found = torch.func.jvp(slope, (q,), (direction,))
    elif outer == "grad":
        found = torch.func.grad(along)(q)
    else:
        point = q.clone().requires_grad_()
        (found,) = torch.autograd.grad(along(point), point)
    step = 1e-5 * direction
    wanted = (slope(q + step) - slope(q - step)) / 2e-5
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


def test_checkpoints_keep_no_queries_keys_or_values() -> None:
    """Second derivatives must not hold tensors that a checkpoint computes again."""
    kept: list[weakref.ref[Any]] = []

    def block(x: Tensor) -> Tensor:
        q, k, v = (x * factor for factor in (1.0, 2.0, 3.0))
        kept.extend(weakref.ref(each) for each in (q, k, v))
        return F.attention(q, k, v, omega="softmax")

    x = torch.randn(1, 2, M, D, requires_grad=True)
    output = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    assert all(each() is None for each in kept)
    (found,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(block(x).sum(), x)[0])
