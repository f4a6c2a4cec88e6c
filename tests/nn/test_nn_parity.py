"""Layers with softmax equal torch's attention and the public hopfield-layers package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import hopfy
from hopfy.nn import (
    Hopfield,
    HopfieldAttention,
    HopfieldDecoderLayer,
    HopfieldEncoderLayer,
    HopfieldLookup,
    HopfieldPooling,
    from_hflayers,
)

GOLDEN = {
    "hopfield_cross_beta": Hopfield,
    "hopfield_default": Hopfield,
    "hopfield_padding": Hopfield,
    "hopfield_static_plain": Hopfield,
    "hopfield_steps3": Hopfield,
    "lookup_default": HopfieldLookup,
    "pooling_default": HopfieldPooling,
    "pooling_mil": HopfieldPooling,
}


def read(path: Path) -> tuple[dict, dict, dict]:
    with safe_open(path, "pt") as file:
        kwargs = json.loads(file.metadata()["kwargs"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    prefix = "state_dict."
    state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    rest = {k: v for k, v in tensors.items() if not k.startswith(prefix)}
    return kwargs, state, rest


@pytest.mark.parametrize("name", GOLDEN)
def test_equals_hopfield_layers(golden: Path, name: str) -> None:
    kwargs, state, data = read(golden / f"{name}.safetensors")
    layer = from_hflayers(state, **kwargs).eval()
    assert type(layer) is GOLDEN[name]
    mask = data.get("padding_mask_true_is_padding")
    mask = None if mask is None else ~mask
    if type(layer) is Hopfield:
        inputs = (data["state_pattern"], data["stored_pattern"], data["pattern_projection"])
    else:
        inputs = (data["input"],)
    output, weights = layer(*inputs, mask=mask, need_weights=True)
    torch.testing.assert_close(output, data["output"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights, data["association"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(*inputs, mask=mask), output)


def test_every_golden_layer_is_listed(golden: Path) -> None:
    files = {p.stem for kind in ("hopfield", "pooling", "lookup") for p in golden.glob(f"{kind}_*")}
    assert files == set(GOLDEN)


def test_converter_names_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="got flux"):
        from_hflayers({}, flux=1)
    with pytest.raises(ValueError, match="q_proj_weight"):
        from_hflayers({}, input_size=4)
    with pytest.raises(ValueError, match="add_zero_association=False"):
        from_hflayers({}, input_size=4, add_zero_association=True)
    with pytest.raises(ValueError, match="batch_first=True"):
        from_hflayers({}, input_size=4, batch_first=False)


def their_state(heads: int, head: int, size: int, connected: bool = False) -> dict:
    wide = heads * head
    core = "association_core."
    state = {
        core + "q_proj_weight": torch.randn(wide, size),
        core + "k_proj_weight": torch.randn(wide, size),
        core + "v_proj_weight": torch.randn(wide, wide if connected else size),
        core + "in_proj_bias": torch.randn(3 * wide),
        core + "out_proj.weight": torch.randn(size, wide),
        core + "out_proj.bias": torch.randn(size),
        core + "p_norm_weight": torch.randn(head),
        core + "p_norm_bias": torch.randn(head),
    }
    for role in ("stored_pattern", "state_pattern", "pattern_projection"):
        state |= {f"norm_{role}.weight": torch.randn(size), f"norm_{role}.bias": torch.randn(size)}
    return state


def test_converter_composes_the_rarer_options() -> None:
    """Written out by hand: connected values, a norm in the association space, an activation."""
    heads, head, size = 2, 3, 4
    state = their_state(heads, head, size, connected=True)
    layer = from_hflayers(
        state,
        input_size=size,
        hidden_size=head,
        num_heads=heads,
        scaling=0.5,
        pattern_projection_as_connected=True,
        normalize_hopfield_space=True,
        normalize_hopfield_space_affine=True,
        association_activation="tanh",
    )
    x = torch.randn(2, 5, size)
    core = "association_core."
    bias = state[core + "in_proj_bias"].chunk(3)

    def norm(y: torch.Tensor, role: str) -> torch.Tensor:
        w, b = state[f"norm_{role}.weight"], state[f"norm_{role}.bias"]
        return nn.functional.layer_norm(y, (size,), w, b)

    def project(y: torch.Tensor, letter: str, part: int) -> torch.Tensor:
        return nn.functional.linear(y, state[f"{core}{letter}_proj_weight"], bias[part])

    def by_head(y: torch.Tensor, normed: bool) -> torch.Tensor:
        y = y.reshape(2, 5, heads, head).transpose(1, 2)
        if not normed:
            return y
        w, b = state[core + "p_norm_weight"], state[core + "p_norm_bias"]
        return nn.functional.layer_norm(y, (head,), w, b)

    q = by_head(project(norm(x, "state_pattern"), "q", 0), True)
    k = by_head(project(norm(x, "stored_pattern"), "k", 1), True)
    v = by_head(project(project(norm(x, "pattern_projection"), "k", 1), "v", 2), False)
    found = (torch.softmax(0.5 * q @ k.mT, -1) @ v).transpose(1, 2).reshape(2, 5, -1)
    out = nn.functional.linear(
        found, state[core + "out_proj.weight"], state[core + "out_proj.bias"]
    )
    torch.testing.assert_close(layer(x), out.tanh(), atol=1e-5, rtol=1e-5)


def test_converter_takes_another_omega() -> None:
    layer = from_hflayers(
        their_state(2, 3, 4), omega="sparsemax", input_size=4, hidden_size=3, num_heads=2
    )
    _, weights = layer(torch.randn(2, 5, 4), need_weights=True)
    assert (weights == 0).any()


TORCH_KINDS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "other sizes": {"kdim": 6, "vdim": 10},
    "appended keys": {"add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("masks", ["none", "padding", "pairs", "heads", "float"])
@pytest.mark.parametrize("kind", TORCH_KINDS)
def test_equals_torch_attention(kind: str, masks: str, average: bool) -> None:
    options = TORCH_KINDS[kind]
    theirs = nn.MultiheadAttention(8, 2, **options).double()
    for parameter in theirs.parameters():  # biases start at zero, which would hide them
        nn.init.normal_(parameter)
    ours = HopfieldAttention(8, 2, **options, omega=hopfy.Shannon()).double()
    assert ours.load_state_dict(theirs.state_dict()) == nn.modules.module._IncompatibleKeys([], [])
    batch, length, keys = 3, 4, 5
    shape = (batch, length) if options.get("batch_first") else (length, batch)
    key_shape = (batch, keys) if options.get("batch_first") else (keys, batch)
    inputs = [
        torch.randn(*shape, 8).double(),
        torch.randn(*key_shape, options.get("kdim", 8)).double(),
        torch.randn(*key_shape, options.get("vdim", 8)).double(),
    ]
    call: dict = {"average_attn_weights": average}
    padding = torch.arange(keys).expand(batch, -1) >= torch.tensor([[5], [3], [1]])
    if masks == "padding":
        call["key_padding_mask"] = padding
    elif masks == "pairs":
        call["attn_mask"] = torch.ones(length, keys, dtype=torch.bool).triu(1)
    elif masks == "heads":
        call["attn_mask"] = torch.rand(batch * 2, length, keys) > 0.7
        call["attn_mask"][..., 0] = False
    elif masks == "float":
        call["attn_mask"] = torch.randn(length, keys).double()
        call["key_padding_mask"] = torch.zeros(batch, keys).double()
        call["key_padding_mask"].masked_fill_(padding, -torch.inf)
    theirs_in = [x.clone().requires_grad_() for x in inputs]
    ours_in = [x.clone().requires_grad_() for x in inputs]
    wanted, wanted_weights = theirs(*theirs_in, **call)
    got, got_weights = ours(*ours_in, **call)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(got_weights, wanted_weights)
    alone, nothing = ours(*inputs, **call, need_weights=False)
    assert nothing is None
    torch.testing.assert_close(alone, wanted)
    cotangent = torch.randn_like(wanted)
    wanted.backward(cotangent)
    got.backward(cotangent)
    for a, b in zip(ours_in, theirs_in, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_equals_torch_attention_without_batch() -> None:
    theirs = nn.MultiheadAttention(8, 2)
    ours = HopfieldAttention(8, 2, omega="softmax")
    ours.load_state_dict(theirs.state_dict())
    x, padding = torch.randn(5, 8), torch.tensor([False, False, False, True, True])
    for a, b in zip(ours(x, x, x, padding), theirs(x, x, x, padding), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_equals_torch(training: bool, batch_first: bool) -> None:
    options = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": batch_first}
    theirs = nn.TransformerEncoderLayer(8, 2, **options).train(training)
    ours = HopfieldEncoderLayer(8, 2, **options, omega="softmax").train(training)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 3, 8)
    padding = torch.tensor([[False, False, False], [False, False, True], [False, True, True]])
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    torch.testing.assert_close(
        ours(x, src_key_padding_mask=padding), theirs(x, src_key_padding_mask=padding)
    )
    torch.testing.assert_close(
        ours(x, src_mask=causal, is_causal=True), theirs(x, src_mask=causal, is_causal=True)
    )


def test_decoder_equals_torch() -> None:
    options = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
    theirs = nn.TransformerDecoderLayer(8, 2, **options)
    ours = HopfieldDecoderLayer(8, 2, **options, omega="softmax")
    ours.load_state_dict(theirs.state_dict())
    target, memory = torch.randn(3, 4, 8), torch.randn(3, 6, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    torch.testing.assert_close(
        ours(target, memory, tgt_mask=causal), theirs(target, memory, tgt_mask=causal)
    )


@pytest.mark.parametrize("training", [True, False])
def test_torch_never_bypasses_the_map(training: bool) -> None:
    """In evaluation mode torch's own encoder has a softmax of its own in C++."""
    sparse = HopfieldEncoderLayer(8, 2, 16, 0.0, batch_first=True, beta=5.0).train(training)
    dense = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).train(training)
    dense.load_state_dict(sparse.state_dict())
    stack = nn.TransformerEncoder(sparse, 1, enable_nested_tensor=False).train(training)
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(stack(x), sparse(x))
        assert (sparse(x) - dense(x)).abs().max() > 1e-3
