"""`F.attention` in the conventions of torch's SDPA, judged by the definition."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy._kernels.attention import cpu_blocks, cpu_plan
from judges import attention as judge

OMEGAS: dict[str, tuple[str, float]] = {
    "softmax": ("softmax", 1.0),
    "sparsemax": ("entmax", 2.0),
    "1.5-entmax": ("entmax", 1.5),
    "1.3-entmax": ("entmax", 1.3),
    "1.04-entmax": ("entmax", 1.04),
    "3-entmax": ("entmax", 3.0),
    "2-normmax": ("normmax", 2.0),
    "5-normmax": ("normmax", 5.0),
    "1.4-normmax": ("normmax", 1.4),
    "3-subsets": ("ksubsets", 3.0),
}
every_omega = pytest.mark.parametrize("omega", OMEGAS)


def inputs(
    b: int = 2, hq: int = 4, h: int = 2, m: int = 6, n: int = 9, d: int = 4, e: int = 3, **options
) -> list[Tensor]:
    dtype = options.get("dtype", torch.float64)
    shapes = ((b, hq, m, d), (b, h, n, d), (b, h, n, e))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def judged(data: list[Tensor], omega: str, allowed=None, bias=None, scale=None) -> Tensor:
    q, k, v = (x.detach().double().numpy() for x in data)
    shape = (*q.shape[:3], k.shape[2])
    kind, parameter = OMEGAS[omega]
    output, _ = judge.attention(
        q,
        k,
        v,
        kind=kind,
        parameter=np.full(shape[1], parameter),
        allowed=np.broadcast_to(True if allowed is None else np.asarray(allowed), shape),
        bias=np.broadcast_to(0.0 if bias is None else np.asarray(bias.double()), shape),
        scale=scale,
    )
    return torch.from_numpy(output)


def causal(m: int, n: int, offset: int = 0) -> Tensor:
    return torch.arange(n) <= torch.arange(m)[:, None] + offset


@st.composite
def problems(draw):
    """Shapes, heads, masks and maps, at random."""
    sizes = {
        "b": draw(st.integers(1, 3)),
        "m": draw(st.integers(1, 12)),
        "n": draw(st.integers(1, 40)),
        "d": draw(st.integers(1, 6)),
        "e": draw(st.integers(1, 6)),
        "h": draw(st.integers(1, 3)),
    }
    sizes["hq"] = sizes["h"] * draw(st.integers(1, 3))
    mask = draw(st.sampled_from(["none", "pairs", "heads", "keys", "window", "bias", "lower"]))
    is_causal = draw(st.booleans()) and mask != "lower"
    return sizes, mask, is_causal, draw(st.sampled_from(list(OMEGAS))), draw(st.integers(0, 10**6))


def mask_of(name: str, b: int, hq: int, m: int, n: int) -> tuple[object, Tensor, Tensor]:
    """The argument, where keys are allowed, and what is added."""
    everywhere, nothing = torch.ones(1, dtype=torch.bool), torch.zeros(1)
    if name == "pairs":
        mask = torch.rand(m, n) > 0.4
    elif name == "heads":
        mask = torch.rand(b, hq, m, n) > 0.4
    elif name == "keys":
        mask = (torch.arange(n) < torch.randint(0, n + 1, (b, 1)))[:, None, None]
    elif name == "window":
        mask = (torch.arange(n) - torch.arange(m)[:, None]).abs() <= 2
    elif name == "bias":
        bias = torch.randn(b, 1, m, n, dtype=torch.float64)
        bias = bias.masked_fill(torch.rand(b, 1, m, n) > 0.7, -torch.inf)
        return bias, everywhere, bias
    elif name == "lower":
        from torch.nn.attention.bias import causal_lower_right

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return causal_lower_right(m, n), causal(m, n, n - m), nothing
    else:
        return None, everywhere, nothing
    return mask, mask, nothing


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_it_is_the_definition(share: float, problem) -> None:
    """Whatever is masked, however heads are grouped, with dense and with sparse blocks."""
    sizes, name, is_causal, omega, seed = problem
    torch.manual_seed(seed)
    data = inputs(**sizes)
    b, hq, m, n = (sizes[key] for key in ("b", "hq", "m", "n"))
    argument, allowed, bias = mask_of(name, b, hq, m, n)
    if is_causal:
        allowed = allowed & causal(m, n)
    options = {"is_causal": is_causal, "enable_gqa": True, "omega": omega}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_blocks, "_SPARSE", share)
        got = F.attention(*data, argument, **options)
        wanted = judged(data, omega, allowed, bias)
        torch.testing.assert_close(got, wanted, atol=1e-7, rtol=1e-7)
        dense, weights = F.attention(*data, argument, **options, return_weights=True)
        torch.testing.assert_close(dense, wanted, atol=1e-7, rtol=1e-7)
        assert weights.shape == (b, hq, m, n)
        cotangent = torch.randn_like(got)
        for ours, theirs in zip(
            torch.autograd.grad(got, data, cotangent),
            torch.autograd.grad(dense, data, cotangent),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@every_omega
def test_a_row_with_nothing_to_select_is_zeros_forward_and_backward(omega: str) -> None:
    data = inputs()
    mask = torch.ones(2, 1, 6, 9, dtype=torch.bool)
    mask[0, 0, 3] = False
    for argument in (mask, torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)):
        output = F.attention(*data, argument, enable_gqa=True, omega=omega)
        assert (output[0, :, 3] == 0).all()
        gradients = torch.autograd.grad(output.square().sum(), data)
        assert (gradients[0][0, :, 3] == 0).all()
        assert all(g.isfinite().all() for g in gradients)


@every_omega
@pytest.mark.parametrize("m", [1, 3, 50])
def test_many_blocks_equal_one(omega: str, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, also across grouped heads, with ranges of keys of their own."""
    data = inputs(b=2, hq=4, h=2, m=m, n=70)
    whole = F.attention(*data, is_causal=True, enable_gqa=True, omega=omega)
    monkeypatch.setattr(cpu_plan, "_BLOCK", 300)
    parts = F.attention(*data, is_causal=True, enable_gqa=True, omega=omega)
    torch.testing.assert_close(parts, whole)
    cotangent = torch.randn_like(whole)
    for a, b in zip(
        torch.autograd.grad(parts, data, cotangent),
        torch.autograd.grad(whole, data, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@every_omega
def test_derivatives(omega: str) -> None:
    torch.manual_seed(1)
    data = inputs(b=1, hq=2, h=1, m=3, n=5, d=2, e=2)

    def call(*x: Tensor) -> Tensor:
        return F.attention(*x, is_causal=True, enable_gqa=True, omega=omega, scale=1.3)

    assert torch.autograd.gradcheck(call, data)
    assert torch.autograd.gradgradcheck(call, data)


@every_omega
@pytest.mark.parametrize("n", [1, 5])
def test_a_tensor_that_attends_to_itself(omega: str, n: int) -> None:
    """Queries, keys and values are one tensor: each use has its own part of the gradient.

    ``gradgradcheck`` cannot see an error here: it differentiates the recorded gradients alone.
    """
    x = torch.randn(1, 2, n, 3, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        return F.attention(x, x, x, omega=omega).square().sum()

    (plain,) = torch.autograd.grad(loss(), x)
    (recorded,) = torch.autograd.grad(loss(), x, create_graph=True)
    torch.testing.assert_close(recorded, plain)
    apart = [x.detach().clone().requires_grad_() for _ in range(3)]
    each = torch.autograd.grad(F.attention(*apart, omega=omega).square().sum(), apart)
    torch.testing.assert_close(plain, sum(each))


@every_omega
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 8, 300])
def test_one_query_is_the_same_with_and_without_gradients(
    omega: str, dtype: torch.dtype, n: int
) -> None:
    """The shortest way, which nothing records, gives the bits of the others."""
    data = inputs(hq=2, h=2, m=1, n=n, dtype=dtype)
    recorded = F.attention(*data, omega=omega)
    with torch.no_grad():
        assert torch.equal(F.attention(*data, omega=omega), recorded)
        apart = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in data]
        assert torch.equal(F.attention(*apart, omega=omega), recorded)
    masked = F.attention(*data, torch.ones(1, n, dtype=torch.bool), omega=omega)
    torch.testing.assert_close(masked, recorded)


@pytest.mark.parametrize("family", [hopfy.Tsallis, hopfy.Norm])
def test_alpha_of_each_head_and_its_gradient(family) -> None:
    torch.manual_seed(0)
    data = inputs(b=1, m=2, n=5, d=2, e=2)
    alpha = torch.tensor([[1.2], [1.5], [2.0], [1.8]], dtype=torch.float64, requires_grad=True)

    def call(alpha: Tensor, *x: Tensor) -> Tensor:
        return F.attention(*x, enable_gqa=True, omega=family(alpha))

    output = call(alpha, *data)
    for head in range(4):
        alone = F.attention(*data, enable_gqa=True, omega=family(alpha[head].item()))
        torch.testing.assert_close(output[:, head], alone[:, head])
    assert torch.autograd.gradcheck(call, (alpha, *data))
    assert torch.autograd.gradgradcheck(call, (alpha, *data))


@every_omega
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision(omega: str, dtype: torch.dtype) -> None:
    data = [x.detach().to(dtype) for x in inputs()]
    output = F.attention(*data, enable_gqa=True, omega=omega)
    assert output.dtype == dtype
    tolerance = {torch.float16: 3e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(output.double(), judged(data, omega), atol=tolerance, rtol=tolerance)


@every_omega
@pytest.mark.parametrize("value", [-1e4, -1e9, -1e30, torch.finfo(torch.float32).min])
def test_a_huge_negative_bias_is_a_mask(omega: str, value: float) -> None:
    data = inputs(dtype=torch.float32)
    mask = torch.arange(9) < torch.tensor([9, 4])[:, None, None, None]
    bias = torch.zeros(mask.shape).masked_fill(~mask, value)
    options = {"enable_gqa": True, "omega": omega}
    masked, added = F.attention(*data, mask, **options), F.attention(*data, bias, **options)
    torch.testing.assert_close(added, masked)
    torch.testing.assert_close(
        torch.autograd.grad(added.sum(), data[0]), torch.autograd.grad(masked.sum(), data[0])
    )


@every_omega
def test_a_row_of_only_huge_negative_biases_keeps_its_keys(omega: str) -> None:
    data = inputs(dtype=torch.float32)
    bias = torch.full((6, 9), torch.finfo(torch.float32).min)
    output = F.attention(*data, bias, enable_gqa=True, omega=omega)
    mean = data[2].repeat_interleave(2, 1).mean(2, keepdim=True)
    total = 3.0 if omega == "3-subsets" else 1.0
    torch.testing.assert_close(output, (total * mean).expand_as(output), atol=1e-5, rtol=1e-5)


@every_omega
def test_fewer_visible_keys_than_k_takes_all(omega: str) -> None:
    data = inputs(hq=2, h=2, m=5, n=5)
    output = F.attention(*data, is_causal=True, omega="4-subsets")
    torch.testing.assert_close(output[:, :, 1], data[2][:, :, :2].sum(2))


@every_omega
@pytest.mark.parametrize("m", [1, 6])
@pytest.mark.parametrize(
    "shape",
    [(), (1,), (9,), (1, 9), (6, 1), (6, 9), (1, 1, 9), (4, 1, 9), (2, 1, 6, 1), (2, 1, 1, 9)],
    ids=str,
)
@pytest.mark.parametrize("as_bias", [False, True], ids=["mask", "bias"])
def test_whatever_broadcasts_is_a_mask(
    omega: str, m: int, shape: tuple[int, ...], as_bias: bool
) -> None:
    """For heads that share keys too, with the gradients of the mask in its full shape."""
    torch.manual_seed(len(shape))
    data = inputs(m=m)
    shape = tuple(m if size == 6 else size for size in shape)
    mask = torch.randn(shape, dtype=torch.float64) if as_bias else torch.rand(shape) < 0.7
    outputs = [
        F.attention(*data, each, enable_gqa=True, omega=omega)
        for each in (mask, mask.expand(2, 4, m, 9))
    ]
    torch.testing.assert_close(*outputs)
    cotangent = torch.randn_like(outputs[0])
    torch.testing.assert_close(*(torch.autograd.grad(x, data, cotangent) for x in outputs))


def test_any_leading_shape_and_broadcast_keys() -> None:
    q, k, v = torch.randn(2, 3, 4, 5, 8), torch.randn(4, 7, 8), torch.randn(4, 7, 6)
    output = F.attention(q, k, v)
    assert output.shape == (2, 3, 4, 5, 6)
    torch.testing.assert_close(output[1, 2], F.attention(q[1, 2], k, v))
    torch.testing.assert_close(output[1, 2, 3], F.attention(q[1, 2, 3], k[3], v[3]))


@every_omega
@pytest.mark.parametrize("e", [3, 4])
@pytest.mark.parametrize("restriction", ["causal", "mask", "bias"])
def test_a_scale_of_zero_weighs_all_visible_keys_alike(
    omega: str, e: int, restriction: str
) -> None:
    data = inputs(hq=2, h=2, m=5, n=5, e=e)
    mask = causal(5, 5)
    argument = {
        "causal": None,
        "mask": mask,
        "bias": torch.zeros(5, 5, dtype=torch.float64).masked_fill(~mask, -torch.inf),
    }[restriction]
    output = F.attention(*data, argument, is_causal=restriction == "causal", scale=0.0, omega=omega)
    counts = torch.arange(1, 6, dtype=torch.float64)[:, None]
    mean = data[2].cumsum(2) / counts
    total = counts.clamp_max(3) if omega == "3-subsets" else 1.0
    torch.testing.assert_close(output, mean * total)


@every_omega
@pytest.mark.parametrize("m", [1, 6])
def test_tensors_without_values_have_shapes(omega: str, m: int) -> None:
    data = [x.detach().to("meta") for x in inputs(m=m)]
    output = F.attention(*data, enable_gqa=True, omega=omega)
    assert output.shape == (2, 4, m, 3)
    assert output.device.type == "meta"
    same = data[1][:, :, :m]
    assert F.attention(same, data[1], data[1], omega=omega).shape == (2, 2, m, 4)


@every_omega
def test_empty(omega: str) -> None:
    for m, n in ((0, 4), (4, 0), (0, 0)):
        data = inputs(m=m, n=n)
        output = F.attention(*data, enable_gqa=True, omega=omega)
        assert output.shape == (2, 4, m, 3)
        assert (output == 0).all()


@every_omega
def test_nan_in_a_query_affects_its_own_row_only(omega: str) -> None:
    data = [x.detach() for x in inputs()]
    data[0][0, 1, 2] = torch.nan
    output = F.attention(*data, enable_gqa=True, omega=omega)
    assert output[0, 1, 2].isnan().all()
    output[0, 1, 2] = 0
    assert output.isfinite().all()


@pytest.mark.parametrize("omega", ["sparsemax", "1.5-entmax", "2-normmax"])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_dropout_is_unbiased_and_its_gradient_is_the_same_draw(
    omega: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_blocks, "_SPARSE", share)
    data = inputs(b=1, hq=1, h=1, m=4, n=8)
    torch.manual_seed(0)
    one = F.attention(*data, dropout_p=0.4, omega=omega)
    torch.manual_seed(0)
    same = F.attention(*data, dropout_p=0.4, omega=omega)
    assert torch.equal(one, same)
    many = data[0][:, :, :1].expand(-1, -1, 4000, -1)
    mean = F.attention(many, *data[1:], dropout_p=0.4, omega=omega).mean(2)
    wanted = F.attention(*data, omega=omega)[:, :, 0]
    torch.testing.assert_close(mean, wanted, atol=0.1, rtol=0.1)

    def call(*x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return F.attention(*x, dropout_p=0.4, omega=omega)

    assert torch.autograd.gradcheck(call, data)
    assert torch.autograd.gradgradcheck(call, data)


@pytest.mark.parametrize("omega", ["sequential-2-subsets", "2-subsets"])
def test_structured_maps(omega) -> None:
    q, k, v = (x.detach() for x in inputs(hq=2, h=2, n=6))
    output = F.attention(q, k, v, omega=omega)
    weights = hopfy.omega_from(omega)(q @ k.mT / 2)
    torch.testing.assert_close(output, weights @ v)


@pytest.mark.parametrize(
    "omega", ["sequential-2-subsets", "entropic-2-subsets", "0.4-capped", "inf-normmax"]
)
@pytest.mark.parametrize("m", [1, 5])
def test_maps_without_kernels(omega: str, m: int) -> None:
    """Grouped heads, a mask that hides nothing, rows that see nothing or few keys, no keys at all."""
    q, k, v = (x.detach() for x in inputs(m=m, n=7))
    output = F.attention(q, k, v, enable_gqa=True, omega=omega)
    everywhere = torch.ones(m, 7, dtype=torch.bool)
    masked = F.attention(q, k, v, everywhere, enable_gqa=True, omega=omega)
    torch.testing.assert_close(masked, output, atol=1e-12, rtol=1e-12)
    few = torch.arange(7) < torch.tensor([0, 1])[:, None, None, None]
    found = F.attention(q, k, v, few, enable_gqa=True, omega=omega)
    assert (found[0] == 0).all()
    first = v[1, :, :1].repeat_interleave(2, 0).expand(4, m, 3)
    torch.testing.assert_close(found[1], first)
    nothing = F.attention(q, k[:, :, :0], v[:, :, :0], enable_gqa=True, omega=omega)
    assert nothing.shape == output.shape
    assert (nothing == 0).all()


def test_a_function_as_the_map() -> None:
    q, k, v = (x.detach() for x in inputs(hq=2, h=2))
    output = F.attention(q, k, v, omega=lambda scores, mask: F.sparsemax(scores, mask=mask))
    torch.testing.assert_close(output, F.attention(q, k, v, omega="sparsemax"))


@every_omega
def test_autocast(omega: str) -> None:
    data = [x.detach().float() for x in inputs()]
    with torch.autocast("cpu", torch.bfloat16):
        output = F.attention(*data, enable_gqa=True, omega=omega)
    assert output.dtype == torch.bfloat16
    outside = F.attention(*data, enable_gqa=True, omega=omega)
    torch.testing.assert_close(output, outside.bfloat16())


@every_omega
@pytest.mark.parametrize("n", [9, 300])
def test_backward_inside_autocast(omega: str, n: int) -> None:
    """Torch advises against it, and people do it: the gradients keep their digits."""
    data = inputs(m=n, n=n, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        inside = F.attention(*data, enable_gqa=True, omega=omega).float().sum()
        found = torch.autograd.grad(inside, data)
        second = F.attention(*data, enable_gqa=True, omega=omega)
    wanted = torch.autograd.grad(second.float().sum(), data)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype is torch.float32
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@every_omega
def test_forward_mode_agrees_with_backward(omega: str) -> None:
    q, k, v = (x.detach() for x in inputs(hq=2, h=2))
    query = q.requires_grad_()
    output = F.attention(query, k, v, omega=omega)
    tangent, cotangent = torch.randn_like(q), torch.randn_like(output)
    (along,) = torch.autograd.grad(output, query, cotangent)
    _, pushed = torch.func.jvp(
        lambda x: F.attention(x, k, v, omega=omega), (q.detach(),), (tangent,)
    )
    torch.testing.assert_close((pushed * cotangent).sum(), (tangent * along).sum())


@every_omega
@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_many_cotangents_at_once(omega: str, m: int) -> None:
    q, k, v = (x.detach() for x in inputs(b=1, hq=2, h=2, m=m, n=5, e=4))
    whole, rows = (
        torch.autograd.functional.jacobian(
            lambda *x: F.attention(*x, omega=omega), (q, k, v), vectorize=vectorize
        )
        for vectorize in (True, False)
    )
    torch.testing.assert_close(whole, rows)


@every_omega
def test_vmap_equals_a_batch(omega: str) -> None:
    data = [x.detach() for x in inputs(b=3, hq=2, h=2)]
    each = torch.vmap(lambda q, k, v: F.attention(q, k, v, is_causal=True, omega=omega))
    if omega == "3-subsets":
        each = torch.vmap(lambda q, k, v: F.attention(q, k, v, omega=omega))
        torch.testing.assert_close(each(*data), F.attention(*data, omega=omega))
        return
    torch.testing.assert_close(each(*data), F.attention(*data, is_causal=True, omega=omega))


@pytest.mark.parametrize("omega", ["softmax", "1.5-entmax", "2-normmax", "3-subsets"])
def test_compiles_to_one_graph(omega: str) -> None:
    data = inputs(hq=2, h=2, dtype=torch.float32)
    eager = F.attention(*data, omega=omega)
    compiled = torch.compile(
        lambda q, k, v: F.attention(q, k, v, omega=omega), fullgraph=True, backend="aot_eager"
    )
    output = compiled(*data)
    torch.testing.assert_close(output, eager, atol=1e-5, rtol=1e-5)
    for a, b in zip(
        torch.autograd.grad(output.sum(), data),
        torch.autograd.grad(eager.sum(), data),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_exports() -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.attention(q, k, v, is_causal=True)

    data = tuple(x.detach().float() for x in inputs(hq=2, h=2))
    exported = torch.export.export(Module(), data).module()
    torch.testing.assert_close(exported(*data), F.attention(*data, is_causal=True))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": torch.zeros(4)}, ValueError, "shape"),
        ({"query": [1.0]}, TypeError, "torch.Tensor"),
        ({"query": torch.zeros(2, 6, 4, dtype=torch.int64)}, TypeError, "floating"),
        ({"query": torch.zeros(2, 6, 5)}, ValueError, "features"),
        ({"query": torch.zeros(2, 6, 4).double()}, TypeError, "one dtype"),
        ({"query": torch.zeros(2, 6, 4, device="meta")}, TypeError, "one dtype and device"),
        (
            {"attn_mask": torch.zeros(6, 9, dtype=torch.bool, device="meta")},
            TypeError,
            "on the query's device",
        ),
        ({"value": torch.zeros(2, 8, 4)}, ValueError, "one value for each"),
        ({"query": torch.zeros(3, 6, 4)}, ValueError, "same batch"),
        ({"query": torch.zeros(3, 6, 4), "enable_gqa": True}, ValueError, "divide"),
        ({"attn_mask": torch.zeros(6, 9, dtype=torch.int64)}, TypeError, "boolean"),
        ({"attn_mask": torch.zeros(6, 9).double()}, TypeError, "float32"),
        ({"attn_mask": torch.full((6, 9), torch.nan)}, ValueError, "NaN"),
        ({"attn_mask": torch.full((6, 9), torch.inf)}, ValueError, "infinity"),
        ({"attn_mask": torch.zeros(9, 6)}, ValueError, "broadcasts to"),
        ({"dropout_p": 1.5}, ValueError, "dropout_p"),
        ({"scale": float("nan")}, ValueError, "scale"),
        ({"omega": "entmaxx"}, ValueError, "expected"),
        ({"omega": hopfy.Tsallis(torch.tensor([1.5, 1.2, 1.1]))}, ValueError, "broadcast"),
    ],
)
def test_bad_input(change: dict, error: type, message: str) -> None:
    x = torch.zeros(2, 9, 4)
    arguments = {"query": torch.zeros(2, 6, 4), "key": x, "value": x} | change
    with pytest.raises(error, match=message):
        F.attention(**arguments)


def test_is_causal_contradicts_the_lower_right_bias() -> None:
    from torch.nn.attention.bias import causal_lower_right

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bias = causal_lower_right(3, 5)
    q, x = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 5, 2)
    with pytest.raises(ValueError, match="drop is_causal"):
        F.attention(q, x, x, bias, is_causal=True)


@every_omega
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 16, 63, 64, 65, 200])
def test_every_number_of_keys(omega: str, n: int) -> None:
    data = inputs(b=1, hq=2, h=2, n=n)
    torch.testing.assert_close(
        F.attention(*data, omega=omega), judged(data, omega), atol=1e-9, rtol=1e-9
    )


@pytest.mark.parametrize("omega", ["sparsemax", "1.3-entmax", "5-normmax"])
def test_threads_change_nothing(omega: str) -> None:
    data = inputs(b=3, m=70, n=90, d=8, e=8)
    before = torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            output = F.attention(*data, enable_gqa=True, omega=omega)
            answers.append([output, *torch.autograd.grad(output.square().sum(), data)])
    finally:
        torch.set_num_threads(before)
    for one, four in zip(*answers, strict=True):
        torch.testing.assert_close(one, four, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("omega", ["sparsemax", "1.3-entmax", "3-entmax", "5-normmax", "2-subsets"])
def test_scores_that_would_overflow_are_left_to_the_maps(omega: str) -> None:
    q = torch.tensor([[3e30, 0.0]])
    k = torch.tensor([[3e30, 1.0], [1.0, 0.0], [-3e30, 2.0]])
    output = F.attention(q, k[1:], torch.eye(2), omega=omega)
    assert output.tolist() == [[1.0, 0.0]]  # a score of -inf is a masked one


def test_backends_agree() -> None:
    data = inputs()
    expected = F.attention(*data, is_causal=True, enable_gqa=True)
    with hopfy.use_backend("reference"):
        output = F.attention(*data, is_causal=True, enable_gqa=True)
        gradients = torch.autograd.grad(expected.sum(), data, retain_graph=True)
    torch.testing.assert_close(output, expected)
    for a, b in zip(gradients, torch.autograd.grad(output.sum(), data), strict=True):
        torch.testing.assert_close(a, b)


FAR_OMEGAS = {
    "2.5-entmax": ("entmax", 2.5),
    "3-entmax": ("entmax", 3.0),
    "1-subsets": ("ksubsets", 1),
    "3-subsets": ("ksubsets", 3),
    "40-subsets": ("ksubsets", 40),
}


@pytest.mark.parametrize("omega", FAR_OMEGAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("m", [1, 12])
@pytest.mark.parametrize("visible", [None, 20])
def test_long_rows_of_equations_that_are_not_convex(
    omega: str, dtype: torch.dtype, m: int, visible: int | None
) -> None:
    """Few candidates are weighed; some rows see fewer keys than k, some scores are equal."""
    torch.manual_seed(0)
    data = inputs(b=1, hq=2, h=1, m=m, n=2999, d=8, dtype=dtype)
    with torch.no_grad():
        data[1][:, :, 7::50] = data[1][:, :, 7:8]
    mask = None if visible is None else torch.randperm(2999) < visible
    output = F.attention(*data, attn_mask=mask, enable_gqa=True, omega=omega)
    kind, parameter = FAR_OMEGAS[omega]
    q, k, v = (x.detach().double().numpy() for x in data)
    shape = (1, 2, m, 2999)
    allowed = np.broadcast_to(True if mask is None else mask.numpy(), shape)
    wanted, _ = judge.attention(
        q,
        k,
        v,
        kind=kind,
        parameter=np.full(2, parameter),
        allowed=allowed,
        bias=np.zeros(shape),
    )
    close = {"atol": 1e-5 * parameter, "rtol": 1e-4} if dtype is torch.float32 else {}
    torch.testing.assert_close(output.detach().double(), torch.from_numpy(wanted), **close)
    cotangent = torch.randn_like(output)
    dense, _ = F.attention(*data, attn_mask=mask, enable_gqa=True, omega=omega, return_weights=True)
    ours, theirs = (torch.autograd.grad(x, data, cotangent) for x in (output, dense))
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
