"""Attention over sequences of different lengths, packed one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy.functional._attention import as_map, attend
from hopfy.functional._attention_inputs import as_inputs

__all__ = ["same_lengths", "varlen_attention"]


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    omega: Any = "1.5-entmax",
) -> Tensor:
    r"""`attention` within each of several packed sequences, with no padding anywhere.

    The layout is that of `torch.nn.attention.varlen.varlen_attn` and of flash-attn: the tokens of all
    sequences stand one after the other, and sequence i owns the tokens from ``cu_seqlens[i]`` up to
    ``cu_seqlens[i + 1]``. Sequences of equal lengths are computed together, others one by one; no
    query is multiplied with a key of another sequence.

    Args:
        query: (Tq, Hq, D), the queries of all sequences.
        key: (Tk, H, D).
        value: (Tk, H, E).
        cu_seqlens_q: integers (S + 1,), from 0 to Tq, not decreasing.
        cu_seqlens_k: the same for keys and values; by default ``cu_seqlens_q``.
        dropout_p: the share of the weights that is dropped.
        is_causal: the last query of a sequence sees all of its keys, the one before all but one,
            and so on (aligned at the lower right, as in flash-attn).
        scale: by default ``1 / sqrt(D)``.
        enable_gqa: Hq may be a multiple of H.
        omega: the map, as in `attention`; a tensor alpha has shape (Hq, 1) or ().

    Returns:
        The output (Tq, Hq, E). A query whose sequence has no keys gives zeros.

    >>> import torch
    >>> from hopfy import functional as F
    >>> q, k, v = torch.randn(3, 10, 4, 8).unbind()  # 10 tokens, 4 heads
    >>> F.varlen_attention(q, k, v, torch.tensor([0, 3, 10]), omega="sparsemax").shape
    torch.Size([10, 4, 8])
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or x.ndim != 3:
            came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"expected {name} of shape (tokens, heads, features), got {came}.")
    lengths_q = _lengths(cu_seqlens_q, "cu_seqlens_q", len(query))
    other = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    lengths_k = _lengths(other, "cu_seqlens_k", len(key))
    if len(lengths_q) != len(lengths_k):
        raise ValueError(
            "expected as many sequences of queries as of keys, got "
            f"{len(lengths_q)} and {len(lengths_k)}."
        )
    omega = as_map(omega)
    splits = ((query, lengths_q), (key, lengths_k), (value, lengths_k))
    parts = [torch.functional.split(x, lengths) for x, lengths in splits]
    found: list[Tensor] = [query.new_empty(0)] * len(lengths_q)
    for group in same_lengths(lengths_q, lengths_k):
        q, k, v = (torch.stack([part[i] for i in group.members]).transpose(1, 2) for part in parts)
        inputs = as_inputs(q, k, v, None, dropout_p, False, scale, enable_gqa)
        if is_causal:
            inputs = inputs._replace(causal=group.keys - group.queries)
        output, _ = attend(inputs, omega)
        for i, part in zip(group.members, output.transpose(1, 2).unbind(), strict=True):
            found[i] = part
    if not found:
        return query.new_empty(0, query.shape[1], value.shape[2])
    return torch.cat(found)


class SameLengths(NamedTuple):
    """Sequences with as many queries, and as many keys, as each other."""

    queries: int
    keys: int
    members: list[int]


def same_lengths(queries: list[int], keys: list[int]) -> Iterator[SameLengths]:
    """The sequences, those of equal lengths together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, pair in enumerate(zip(queries, keys, strict=True)):
        groups.setdefault(pair, []).append(i)
    for (m, n), members in groups.items():
        yield SameLengths(m, n, members)


def _lengths(cumulative: Any, name: str, total: int) -> list[int]:
    """Lengths of sequences from where they begin."""
    if not isinstance(cumulative, Tensor) or cumulative.dtype not in (torch.int32, torch.int64):
        came = cumulative.dtype if isinstance(cumulative, Tensor) else type(cumulative).__name__
        raise TypeError(f"expected {name} to be a tensor of int32 or int64, got {came}.")
    if cumulative.ndim != 1 or not len(cumulative):
        raise ValueError(
            f"expected {name} of shape (sequences + 1,), got {tuple(cumulative.shape)}."
        )
    edges = cumulative.tolist()
    lengths = [b - a for a, b in itertools.pairwise(edges)]
    if edges[0] != 0 or edges[-1] != total or min(lengths, default=0) < 0:
        raise ValueError(
            f"expected {name} to rise from 0 to the number of tokens {total}, got {edges}."
        )
    return lengths
