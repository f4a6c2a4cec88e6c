"""Transformer layers with `HopfieldAttention`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hopfy.nn._attention import HopfieldAttention
from hopfy.omega import Omega

__all__ = ["HopfieldDecoderLayer", "HopfieldEncoderLayer"]


class _WithHopfieldAttention(nn.Module):
    """The constructor of torch's layers, with a `HopfieldAttention` in place of each attention."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = nn.functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        omega: Omega | str | nn.Module = "1.5-entmax",
        beta: float | Tensor | nn.Module | None = None,
        max_steps: int = 1,
        tol: float = 0.0,
    ) -> None:
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
            device,
            dtype,
        )
        for name, part in list(self.named_children()):
            if isinstance(part, nn.MultiheadAttention):
                options = {"omega": omega, "beta": beta, "max_steps": max_steps, "tol": tol}
                setattr(self, name, _in_place_of(part, **options))


class HopfieldEncoderLayer(_WithHopfieldAttention, nn.TransformerEncoderLayer):
    r"""`torch.nn.TransformerEncoderLayer` with another map in place of softmax.

    All its arguments, calls, masks and state dicts are torch's; ``omega``, ``beta``, ``max_steps``
    and ``tol`` are those of `HopfieldAttention`.

    >>> import torch, hopfy
    >>> layer = hopfy.nn.HopfieldEncoderLayer(16, 4, batch_first=True, omega="sparsemax")
    >>> layer(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """


class HopfieldDecoderLayer(_WithHopfieldAttention, nn.TransformerDecoderLayer):
    r"""`torch.nn.TransformerDecoderLayer` with another map in place of softmax, in both attentions.

    A module given as ``omega`` or ``beta`` (`LearnableAlpha`, `LearnableBeta`) serves both.

    >>> import torch, hopfy
    >>> layer = hopfy.nn.HopfieldDecoderLayer(16, 4, batch_first=True, omega="5-normmax")
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 9, 16)).shape
    torch.Size([2, 5, 16])
    """


def _in_place_of(attention: nn.MultiheadAttention, **options: Any) -> HopfieldAttention:
    """A `HopfieldAttention` with the sizes and the parameters of ``attention``."""
    weight = attention.out_proj.weight
    replacement = HopfieldAttention(
        attention.embed_dim,
        attention.num_heads,
        dropout=attention.dropout,
        bias=attention.in_proj_bias is not None,
        batch_first=attention.batch_first,
        device=weight.device,
        dtype=weight.dtype,
        **options,
    )
    replacement.load_state_dict(attention.state_dict(), strict=False)
    return replacement
