"""Between the features of the outside and the heads of the association space."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = [
    "Copies",
    "PerHead",
    "Sizes",
    "blank",
    "features_of",
    "head_mask",
    "merge",
    "projection",
    "split",
    "which_to_normalize",
]


@dataclass(frozen=True)
class Sizes:
    """Numbers of features, where they are not all the same.

    Only ``queries`` has to be given: ``memories`` defaults to it, ``values`` to ``memories``,
    ``output`` to ``queries``, ``head`` to ``queries / heads`` and ``value_head`` to ``head``.

    >>> from hopfy.nn import Hopfield, Sizes
    >>> layer = Hopfield(Sizes(queries=16, memories=12, values=10, head=8, output=6), heads=2)
    """

    queries: int
    memories: int | None = None
    values: int | None = None
    head: int | None = None
    value_head: int | None = None
    output: int | None = None

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
                raise TypeError(f"expected the size of {name} to be an integer, got {size!r}.")
            if size is not None and size < 1:
                raise ValueError(f"expected the size of {name} to be positive, got {size}.")

    def complete(self, heads: int) -> tuple[int, int, int, int, int, int]:
        """All six sizes, in the order of the fields."""
        memories = self.memories or self.queries
        if self.head is None and self.queries % heads:
            raise ValueError(
                f"expected a size that the {heads} heads divide, got {self.queries}; "
                "choose the head size yourself with Sizes(queries=..., head=...)."
            )
        head = self.head or self.queries // heads
        return (
            self.queries,
            memories,
            self.values or memories,
            head,
            self.value_head or head,
            self.output or self.queries,
        )


def projection(size: int, heads_size: int, bias: bool, normalize: bool) -> nn.Module:
    """A linear map into the association space, after a layer norm if asked for."""
    linear = nn.Linear(size, heads_size, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.LayerNorm(size), linear) if normalize else linear


def features_of(part: nn.Module) -> int | None:
    """How many features a projection takes; None if it takes any number."""
    for module in part.modules():
        if isinstance(module, nn.Linear):
            return module.in_features
        if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
            return module.normalized_shape[0]
    return None


def which_to_normalize(normalize: bool | Collection[str]) -> frozenset[str]:
    """The inputs that pass a layer norm first."""
    known = frozenset({"queries", "memories", "values"})
    if isinstance(normalize, bool):
        return known if normalize else frozenset()
    chosen = frozenset([normalize] if isinstance(normalize, str) else normalize)
    if not chosen <= known:
        raise ValueError(
            'expected normalize to be True, False or some of "queries", "memories", "values", '
            f"got {normalize!r}."
        )
    return chosen


class Copies(nn.Module):
    """Every head sees the same features: (..., D) -> (..., heads * D)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat(*(1,) * (x.ndim - 1), self.heads)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


class PerHead(nn.Module):
    """Apply a module to the features of each head alone, such as a layer norm."""

    def __init__(self, heads: int, module: nn.Module) -> None:
        super().__init__()
        self.heads, self.module = heads, module

    def forward(self, x: Tensor) -> Tensor:
        by_head = x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        return self.module(by_head).flatten(-2)  # type: ignore[no-any-return]


def split(x: Tensor, heads: int) -> Tensor:
    """(..., L, heads * D) -> (..., heads, L, D)."""
    if x.shape[-1] % heads:
        raise ValueError(
            f"expected a number of features that the {heads} heads divide, got {x.shape[-1]}."
        )
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-2, -3)


def merge(x: Tensor) -> Tensor:
    """(..., heads, L, D) -> (..., L, heads * D)."""
    return x.transpose(-2, -3).flatten(-2)


def head_mask(mask: object, batch: tuple[int, ...], heads: int, rows: tuple[int, int]) -> Tensor:
    """A mask for the memories, the pairs or the heads, lifted to (..., heads, M, N).

    With B for the batch shape these are (*B, N), (*B, M, N) and (*B, heads, M, N); the number of
    dimensions tells them apart, and any size may be 1. A mask (L, L) for a batch of L samples could
    mean (batch, memories) or (queries, memories), and is refused.
    """
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"expected mask to be a boolean tensor (True = may be selected), got {came}."
        )
    queries, memories = rows
    shapes = [(*batch, memories), (*batch, queries, memories), (*batch, heads, queries, memories)]
    extra = mask.ndim - len(batch) - 1
    if extra not in (0, 1, 2) or any(
        size not in (1, wanted) for size, wanted in zip(mask.shape, shapes[extra], strict=True)
    ):
        raise ValueError(
            f"expected a mask of shape {shapes[0]} (memories), {shapes[1]} (pairs) or {shapes[2]} "
            f"(heads), got {tuple(mask.shape)}; a mask for all samples starts with size 1."
        )
    if extra == 0:
        if batch and mask.shape[-2] == queries > 1:
            raise ValueError(
                f"expected a mask whose shape says what it is for, got {tuple(mask.shape)}, which "
                f"may be (batch, memories) or (queries, memories) for {queries} samples with "
                f"{queries} queries each; write mask.unsqueeze(-2) for the memories of each sample, "
                "mask.unsqueeze(0) for pairs in every sample, or is_causal=True."
            )
        return mask[..., None, None, :]
    return mask.unsqueeze(-3) if extra == 1 else mask


def blank(output: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros, and zero gradient, where no head of a query had anything to select."""
    if mask is None:
        return output
    something = mask.any(-1).any(-2).unsqueeze(-1)  # (..., M or 1, 1)
    return torch.where(something, output, 0.0)
