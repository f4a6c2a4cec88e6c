"""Where layers meet torch's own code: masks, encoders, nested tensors, tracing, export."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings

import pytest
import torch
from torch import nn

from hopfy.nn import (
    Hopfield,
    HopfieldAttention,
    HopfieldDecoderLayer,
    HopfieldEncoderLayer,
    HopfieldLookup,
    HopfieldPooling,
)

LAYERS = [
    Hopfield,
    HopfieldAttention,
    HopfieldDecoderLayer,
    HopfieldEncoderLayer,
    HopfieldLookup,
    HopfieldPooling,
]


def padded_batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(3, 6, 8)
    padding = torch.arange(6) >= torch.tensor([6, 2, 4])[:, None]
    return x, padding


@pytest.mark.parametrize("omega", ["sparsemax", "softmax", "2-subsets"])
def test_a_square_mask_on_as_many_samples_is_refused(omega: str) -> None:
    layer = Hopfield(8, 2, omega=omega)
    x = torch.randn(5, 5, 8)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="is_causal=True"):
        layer(x, mask=causal)
    pairs, flag = layer(x, mask=causal[None]), layer(x, is_causal=True)
    torch.testing.assert_close(pairs, flag)
    memories = layer(x, mask=causal[:, None])
    torch.testing.assert_close(memories[1], layer(x[1:2], mask=causal[1:2, None])[0])
    # One sample more, and the mask can only be for memories.
    six = torch.randn(6, 5, 8)
    keep = torch.ones(6, 5, dtype=torch.bool)
    torch.testing.assert_close(layer(six, mask=keep), layer(six))


def test_pooling_reads_a_matrix_as_a_mask_of_entries() -> None:
    pool = HopfieldPooling(8, 2, queries=3)
    x, keep = torch.randn(3, 7, 8), torch.rand(3, 7) > 0.3
    torch.testing.assert_close(pool(x, mask=keep)[1], pool(x[1:2, keep[1]])[0])


@pytest.mark.parametrize("omega", ["sparsemax", "1.5-entmax", "softmax"])
def test_is_causal_never_sees_the_future(omega: str) -> None:
    layer = Hopfield(8, 2, omega=omega)
    x = torch.randn(2, 6, 8)
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[1, 0] = False
    before = layer(x, mask=keep, is_causal=True)
    changed = x.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(layer(changed, mask=keep, is_causal=True)[:, :4], before[:, :4])
    assert (before[1, 0] == 0).all()


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("omega", ["sparsemax", "softmax"])
def test_encoder_in_evaluation_mode_with_padding(omega: str, replaced: bool) -> None:
    """Torch turns the batch into a nested tensor, and has a shortcut that knows only softmax."""
    if replaced:
        layer: nn.Module = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        layer.self_attn = HopfieldAttention(8, 2, batch_first=True, omega=omega)
    else:
        layer = HopfieldEncoderLayer(8, 2, 16, 0.0, batch_first=True, omega=omega)
    x, padding = padded_batch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*nested tensors is in prototype.*")
        encoder = nn.TransformerEncoder(layer, 2).eval()
        with torch.no_grad():
            quick = encoder(x, src_key_padding_mask=padding)
    with torch.enable_grad():
        slow = encoder(x, src_key_padding_mask=padding)
    keep = ~padding
    torch.testing.assert_close(quick[keep], slow[keep])
    alone = encoder(x[1:2, :2])
    torch.testing.assert_close(slow[1:2, :2], alone)


def test_nested_tensors_attend_to_themselves() -> None:
    attention = HopfieldAttention(8, 2, batch_first=True)
    x, padding = padded_batch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([x[i, ~padding[i]] for i in range(3)])
        output = attention(nested, nested, nested)[0].unbind()
        with pytest.raises(ValueError, match="attend to itself"):
            attention(nested, nested.clone(), nested)
    wanted = attention(x, x, x, key_padding_mask=padding)[0]
    for i in range(3):
        torch.testing.assert_close(output[i], wanted[i, ~padding[i]])


@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 5}])
def test_private_parts_that_torch_reads(options: dict) -> None:
    attention = HopfieldAttention(8, 2, batch_first=True, **options)
    reference = nn.MultiheadAttention(8, 2, batch_first=True, **options)
    assert attention._qkv_same_embed_dim is reference._qkv_same_embed_dim
    torch.manual_seed(0)
    attention._reset_parameters()
    torch.manual_seed(0)
    reference._reset_parameters()
    for name, parameter in reference.named_parameters():
        if "out_proj.weight" not in name:
            assert torch.equal(attention.get_parameter(name), parameter)
    again = pickle.loads(pickle.dumps(copy.deepcopy(attention)))
    assert again._qkv_same_embed_dim is reference._qkv_same_embed_dim


def test_torch_never_takes_its_shortcut_for_softmax() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    layer.self_attn = HopfieldAttention(8, 2, batch_first=True, omega="sparsemax")
    layer = pickle.loads(pickle.dumps(layer)).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        quick = layer(x)
    torch.testing.assert_close(quick, layer(x))


def test_script_is_refused_with_the_way_out() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(TypeError, match=r"torch\.compile"):
            torch.jit.script(HopfieldAttention(8, 2))


@pytest.mark.parametrize("make", [lambda: Hopfield(8, 2), lambda: HopfieldPooling(8, 2)])
def test_trace_records_plain_torch(make) -> None:
    layer = make().eval()
    x = torch.randn(2, 5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layer, x)
    other = torch.randn(2, 5, 8)
    torch.testing.assert_close(traced(other), layer(other), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_constructors_name_all_their_arguments(layer: type) -> None:
    kinds = {p.kind for p in inspect.signature(layer).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@pytest.mark.parametrize("value", [-1e4, -1e30, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("omega", ["1.5-entmax", "softmax", "3-normmax", "2-subsets"])
def test_float_padding_masks(omega: str, value: float) -> None:
    attention = HopfieldAttention(8, 2, batch_first=True, omega=omega)
    x, padding = padded_batch()
    added = torch.zeros(3, 6).masked_fill(padding, value)
    wanted = attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    output = attention(x, x, x, key_padding_mask=added, need_weights=False)[0]
    torch.testing.assert_close(output, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("omega", ["1.5-entmax", "2-normmax", "softmax"])
def test_onnx_export(omega: str) -> None:
    pytest.importorskip("onnxscript")
    layer = Hopfield(8, 2, omega=omega).eval()
    x = torch.randn(2, 5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(layer, (x,), dynamo=True, verbose=False)
    domains = {node.domain for node in program.model.graph}
    assert domains <= {"", "pkg.onnxscript.torch_lib", "pkg.onnxscript.torch_lib.common"}
