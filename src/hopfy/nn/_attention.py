"""Multi-head attention whose weights come from any regularizer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hopfy._checks import values_can_be_read
from hopfy.nn._association import Association
from hopfy.nn._heads import blank, merge, split
from hopfy.omega import Omega

__all__ = ["HopfieldAttention"]


class HopfieldAttention(nn.MultiheadAttention):
    r"""`torch.nn.MultiheadAttention` with another map in place of softmax.

    Constructor, call, parameters and state dict are those of `torch.nn.MultiheadAttention`: it can
    take its place in a model, and load its weights. So are the masks, which are **True where a key
    must not be attended to**, the opposite of the other layers. A query with nothing to attend to
    gives zeros instead of NaN, and the weights returned are those before dropout. The arguments up to
    ``dtype`` are those of `torch.nn.MultiheadAttention`.

    Args:
        omega: the map: an `Omega`, a name, or a module such as `LearnableAlpha`.
        beta: a number, one per head, an `nn.Parameter` or `LearnableBeta`; by default
            ``1 / sqrt(head size)``.
        max_steps, tol: updates of the queries before they read out the values; see `Hopfield`.

    >>> import torch, hopfy
    >>> attention = hopfy.nn.HopfieldAttention(16, 4, batch_first=True, omega="1.5-entmax")
    >>> x = torch.randn(2, 5, 16)
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 5, 5]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        omega: Omega | str | nn.Module = "1.5-entmax",
        beta: float | Tensor | nn.Module | None = None,
        max_steps: int = 1,
        tol: float = 0.0,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device,
            dtype,
        )
        # torch's encoder layers bypass the forward of an attention, for softmax in C++, unless it
        # has a hook.
        self.register_forward_pre_hook(_called_by_torch)
        self.association = Association(
            num_heads,
            omega=omega,
            beta=1 / math.sqrt(self.head_dim) if beta is None else beta,
            max_steps=max_steps,
            tol=tol,
            dropout=self.dropout,
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `torch.nn.MultiheadAttention.forward`: masks are True, or -inf, where not to attend.

        ``is_causal`` without ``attn_mask`` masks the future; with it, it is only a hint.
        """
        if query.is_nested:
            return self._nested(query, key, value, key_padding_mask, attn_mask, is_causal)
        queries, memories, values = self._project(query, key, value)
        extra = (self.bias_k is not None) + bool(self.add_zero_attn)
        keep, offset = self._masks(queries, memories, key_padding_mask, attn_mask, extra)
        causal = is_causal and attn_mask is None
        if causal and extra:  # the appended keys are visible to every query
            shape = queries.shape[2], memories.shape[2]
            seen = torch.ones(shape, dtype=torch.bool, device=queries.device).tril()
            seen[:, -extra:] = True
            keep, causal = seen if keep is None else keep & seen, False
        mask = keep if offset is None else offset
        if offset is not None and keep is not None:
            mask = offset.masked_fill(~keep, -torch.inf)
        found, weights = self.association(
            queries, memories, values, mask, need_weights=need_weights, is_causal=causal
        )
        output = blank(self.out_proj(merge(found)), _beside_heads(keep))
        if query.ndim == 2:
            output = output.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights.squeeze(0) if query.ndim == 2 else weights
        return output, weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, memories and values of the heads (batch, heads, length, features)."""
        self._check(query, key, value)
        together = query is key and key is value and self._qkv_same_embed_dim
        if query.ndim == 2:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        linear = nn.functional.linear
        if together:
            packed = linear(query, self.in_proj_weight, self.in_proj_bias)
            heads = packed.view(*packed.shape[:2], 3, self.num_heads, self.head_dim)
            projected = list(heads.permute(2, 0, 3, 1, 4).contiguous().unbind())
        else:
            matrices = (
                self.in_proj_weight.chunk(3)
                if self._qkv_same_embed_dim
                else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            )
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            inputs = (query, key, value)
            threes = zip(inputs, matrices, biases, strict=True)
            projected = [split(linear(*three), self.num_heads) for three in threes]
        for position, extra in ((1, self.bias_k), (2, self.bias_v)):
            x = projected[position]
            if extra is not None:
                own = split(extra, self.num_heads).expand(x.shape[0], -1, -1, -1)
                x = torch.cat([x, own], 2)
            if self.add_zero_attn:
                x = nn.functional.pad(x, (0, 0, 0, 1))
            projected[position] = x
        return projected

    def _masks(
        self,
        queries: Tensor,
        memories: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        extra: int,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Where attention is allowed, and what to add to the scores, or None for no change."""
        batch, length, keys = queries.shape[0], queries.shape[2], memories.shape[2]
        given = keys - extra
        keep: Tensor | None = None
        offset: Tensor | None = None
        pairs: list[tuple[int, ...]] = [(length, given), (batch * self.num_heads, length, given)]
        padding: list[tuple[int, ...]] = [(batch, given)]
        for mask, name, shapes in (
            (key_padding_mask, "key_padding_mask", padding),
            (attn_mask, "attn_mask", pairs),
        ):
            if mask is None:
                continue
            if name == "key_padding_mask" and mask.ndim == 1:
                mask = mask.unsqueeze(0)
            allowed, added = _read_mask(mask, name, shapes)
            allowed, added = (_lift(x, name, batch, extra) for x in (allowed, added))
            if allowed is not None:
                keep = allowed if keep is None else keep & allowed
            if added is not None:
                offset = added if offset is None else offset + added
        return keep, offset

    def _nested(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, None]:
        """Self-attention of sequences of different lengths in one nested tensor."""
        if not (query is key and key is value) or not self.batch_first:
            raise ValueError(
                "expected a nested tensor to attend to itself with batch_first=True, got others; "
                "pass padded tensors and a key_padding_mask."
            )
        if key_padding_mask is not None or attn_mask is not None:
            raise ValueError(
                "expected no mask with a nested tensor, whose lengths say which keys there are, got "
                "one; pass padded tensors to use a mask."
            )
        parts = query.unbind()
        found: list[Tensor] = list(parts)
        # Sequences of equal lengths together: nothing is padded.
        by_length: dict[int, list[int]] = {}
        for i, part in enumerate(parts):
            by_length.setdefault(len(part), []).append(i)
        for members in by_length.values():
            x = torch.stack([parts[i] for i in members])
            output, _ = self.forward(x, x, x, need_weights=False, is_causal=is_causal)
            for i, part in zip(members, output.unbind(), strict=True):
                found[i] = part
        layout: Any = query.layout
        return torch.nested.as_nested_tensor(found, layout=layout), None

    def merge_masks(self, *_: Any) -> Any:
        """Torch's C++ attention asks for this, and would compute softmax."""
        raise RuntimeError(
            "expected HopfieldAttention to be called by its forward, got torch's fast path for "
            "softmax; keep the hooks of this module, or call "
            "torch.backends.mha.set_fastpath_enabled(False)."
        )

    def __prepare_scriptable__(self) -> Any:
        raise TypeError(
            "expected HopfieldAttention to be compiled with torch.compile or torch.export, got "
            "torch.jit.script; TorchScript knows neither its maps nor its kernels."
        )

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        sizes = (self.embed_dim, self.kdim, self.vdim)
        for name, x, size in zip(
            ("query", "key", "value"), (query, key, value), sizes, strict=True
        ):
            if x.ndim not in (2, 3) or x.ndim != query.ndim:
                raise ValueError(
                    "expected query, key and value to be all 2-d or all 3-d, got "
                    f"{query.ndim}-d, {key.ndim}-d and {value.ndim}-d."
                )
            if x.shape[-1] != size:
                raise ValueError(f"expected {name} with {size} features, got {x.shape[-1]}.")
        samples = 0 if self.batch_first else 1
        same_batch = query.ndim == 2 or query.shape[samples] == key.shape[samples]
        if key.shape[:-1] != value.shape[:-1] or not same_batch:
            raise ValueError(
                "expected key and value of the same length and the batch size of query, got shapes "
                f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)} "
                f"(batch_first={self.batch_first})."
            )


def _called_by_torch(*_: Any) -> None:
    """A hook without effect."""


def _beside_heads(keep: Tensor | None) -> Tensor | None:
    return keep if keep is None or keep.ndim > 2 else keep[None, None]


def _read_mask(
    mask: Any, name: str, shapes: list[tuple[int, ...]]
) -> tuple[Tensor | None, Tensor | None]:
    """Split one of torch's masks into where attention is allowed and what to add to the scores."""
    if not isinstance(mask, Tensor) or not (mask.dtype is torch.bool or mask.is_floating_point()):
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"expected {name} to be boolean (True = not attended to) or floating, got {came}."
        )
    if tuple(mask.shape) not in shapes:
        raise ValueError(
            f"expected {name} of shape {' or '.join(map(str, shapes))}, got {tuple(mask.shape)}."
        )
    if mask.dtype is torch.bool:
        return ~mask, None
    allowed = mask != -torch.inf
    added = torch.where(allowed, mask, 0.0)
    if values_can_be_read(mask) and not mask.requires_grad and not bool(added.any()):
        return allowed, None
    return allowed, added


def _lift(mask: Tensor | None, name: str, batch: int, extra: int) -> Tensor | None:
    """Bring a mask to (batch, heads, queries, keys), with room for keys the layer appends."""
    if mask is None:
        return None
    if extra:
        mask = nn.functional.pad(mask, (0, extra), value=mask.dtype is torch.bool)
    if name == "key_padding_mask":
        return mask[:, None, None, :]
    return mask[None, None] if mask.ndim == 2 else mask.reshape(batch, -1, *mask.shape[1:])
