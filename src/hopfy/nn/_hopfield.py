"""The three layers of the paper's experiments: association, pooling and lookup."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from hopfy._checks import check_count
from hopfy._renamed import renamed_arguments
from hopfy.nn._association import Association
from hopfy.nn._heads import (
    Sizes,
    blank,
    features_of,
    head_mask,
    merge,
    projection,
    split,
    which_to_normalize,
)
from hopfy.omega import Omega
from hopfy.states import State

__all__ = ["Hopfield", "HopfieldLookup", "HopfieldPooling"]


class Hopfield(nn.Module):
    r"""Associate queries with memories and retrieve values:
    :math:`\hat y_\Omega(\beta\, Q X^\top)\, V` in every head, between learned projections.

    Args:
        size: the number of features, or `Sizes` where they differ. Without it nothing is projected
            and the layer has no parameters: the features are split among the heads as they are.
        heads: how many associations run side by side.
        omega: which map makes weights of scores: an `Omega`, a name such as ``"sparsemax"``, or a
            module such as `LearnableAlpha`.
        beta: inverse temperature: a number, one per head, an `nn.Parameter` or `LearnableBeta`;
            by default ``1 / sqrt(head size)``, or 1 if nothing is projected.
        max_steps: updates in the association space; the last one reads out the values.
        tol: a query stops early once its weights move by no more than this.
        dropout: the share of the weights that is dropped while training.
        normalize: which inputs pass a layer norm first: True, False, or some of ``"queries"``,
            ``"memories"``, ``"values"``.
        bias: whether the projections have one.
        state: the regularizer :math:`\Psi` of the states, such as ``hopfy.states.Ball(2.0)``, its name
            (``"layer-norm"``, ``"ball"``, ``"sign"``, ``"tanh"``), or a module such as
            `nn.LayerNorm`: what a head retrieves in a step becomes :math:`\nabla\Psi^*` of it, in
            the association space. ``"layer-norm"`` is attention followed by layer normalization.

    >>> import torch, hopfy
    >>> layer = hopfy.nn.Hopfield(16, heads=2, omega="sparsemax")
    >>> layer(torch.randn(3, 4, 16), torch.randn(3, 9, 16)).shape
    torch.Size([3, 4, 16])
    """

    @renamed_arguments(normalise="normalize")
    def __init__(
        self,
        size: int | Sizes | None = None,
        heads: int = 1,
        *,
        omega: Omega | str | nn.Module = "1.5-entmax",
        beta: float | Tensor | nn.Module | None = None,
        max_steps: int = 1,
        tol: float = 0.0,
        dropout: float = 0.0,
        normalize: bool | Collection[str] = False,
        bias: bool = True,
        state: State | str | nn.Module = "euclidean",
    ) -> None:
        super().__init__()
        check_count(heads, "heads")
        self.heads = heads
        chosen = which_to_normalize(normalize)
        if size is None:
            if chosen:
                raise ValueError("expected a size to normalize, got normalize without a size.")
            self.use(*(nn.Identity() for _ in range(4)))
            default_beta = 1.0
        else:
            sizes = size if isinstance(size, Sizes) else Sizes(size)
            queries, memories, values, head, value_head, output = sizes.complete(heads)
            self.use(
                projection(queries, heads * head, bias, "queries" in chosen),
                projection(memories, heads * head, bias, "memories" in chosen),
                projection(values, heads * value_head, bias, "values" in chosen),
                projection(heads * value_head, output, bias, normalize=False),
            )
            default_beta = 1 / math.sqrt(head)
        self.association = Association(
            heads,
            omega=omega,
            beta=default_beta if beta is None else beta,
            max_steps=max_steps,
            tol=tol,
            dropout=dropout,
            state=state,
        )

    def use(
        self, queries_in: nn.Module, memories_in: nn.Module, values_in: nn.Module, out: nn.Module
    ) -> None:
        """Replace what lies between the features outside and the association space.

        The first three end with ``heads * head size`` features, and ``out`` starts with them.
        """
        self.queries_in, self.memories_in, self.values_in = queries_in, memories_in, values_in
        self.out = out
        self._expected = tuple(features_of(part) for part in (queries_in, memories_in, values_in))

    def forward(
        self,
        queries: Tensor,
        memories: Tensor | None = None,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        need_weights: bool = False,
        omega: Omega | str | nn.Module | None = None,
        is_causal: bool = False,
    ) -> Any:
        """Retrieve values (..., N, E) with queries (..., M, D); ``...`` is the batch, if any.

        Args:
            queries: (..., M, D).
            memories: (..., N, D'), by default the queries. Without batch dimensions they serve
                every sample.
            values: (..., N, E), by default the memories.
            mask: True where a memory may be selected: (..., N) for the memories of each sample,
                (..., M, N) for pairs, (..., heads, M, N) for heads; any size may be 1. With as many
                queries as samples, (..., 1, N) says that it means memories. A query with nothing to
                select gives zeros.
            need_weights: return ``(output, weights)``, weights of shape (..., heads, M, N) as the
                map gave them, before dropout.
            omega: for this call only: for example ``SparseMAP(KSubsets(k))`` with k of
                shape (batch, 1, 1) where every sample has its own k.
            is_causal: query i may select the memories 0 .. i only; a mask holds in addition.

        Returns:
            The output (..., M, output size), or the pair.
        """
        memories = queries if memories is None else memories
        values = memories if values is None else values
        batch = _check_inputs((queries, memories, values), self._expected)
        if mask is not None:
            mask = head_mask(mask, batch, self.heads, (queries.shape[-2], memories.shape[-2]))
        found, weights = self.association(
            split(self.queries_in(queries), self.heads),
            split(self.memories_in(memories), self.heads),
            split(self.values_in(values), self.heads),
            mask,
            omega=omega,
            need_weights=need_weights,
            is_causal=is_causal,
        )
        output = blank(self.out(merge(found)), mask)
        return (output, weights) if need_weights else output


class HopfieldPooling(nn.Module):
    r"""Pool a bag or a sequence with learned queries.

    Args:
        size: the number of features, or `Sizes`.
        heads: how many associations run side by side.
        queries: how many learned queries; their outputs are concatenated.
        omega, beta, max_steps, tol, dropout, normalize, bias, state: those of `Hopfield`.

    >>> import torch, hopfy
    >>> pool = hopfy.nn.HopfieldPooling(16, heads=2, omega="3-subsets")
    >>> bags, mask = torch.randn(4, 11, 16), torch.rand(4, 11) > 0.3
    >>> pool(bags, mask=mask).shape
    torch.Size([4, 16])
    """

    @renamed_arguments(normalise="normalize")
    def __init__(
        self,
        size: int | Sizes,
        heads: int = 1,
        *,
        queries: int = 1,
        omega: Omega | str | nn.Module = "1.5-entmax",
        beta: float | Tensor | nn.Module | None = None,
        max_steps: int = 1,
        tol: float = 0.0,
        dropout: float = 0.0,
        normalize: bool | Collection[str] = False,
        bias: bool = True,
        state: State | str | nn.Module = "euclidean",
    ) -> None:
        super().__init__()
        sizes = size if isinstance(size, Sizes) else Sizes(size)
        self.hopfield = Hopfield(
            sizes,
            heads,
            omega=omega,
            beta=beta,
            max_steps=max_steps,
            tol=tol,
            dropout=dropout,
            normalize=normalize,
            bias=bias,
            state=state,
        )
        self.queries = _learned(queries, sizes.queries, "queries")

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        need_weights: bool = False,
        omega: Omega | str | nn.Module | None = None,
    ) -> Any:
        """Pool ``x`` (..., N, D) to (..., queries * output size).

        ``mask`` is True where an entry takes part: (..., N), or (..., queries, N). With
        ``need_weights`` the weights (..., heads, queries, N) come too; a bag with nothing to select
        gives zeros.
        """
        layer = self.hopfield
        batch = _check_inputs((self.queries, x, x), layer._expected)
        if mask is not None:
            if isinstance(mask, Tensor) and mask.ndim == len(batch) + 1:
                mask = mask.unsqueeze(-2)  # of entries, however many queries there are
            mask = head_mask(mask, batch, layer.heads, (len(self.queries), x.shape[-2]))
        if self._few_queries():
            output, weights = self._pool_then_project(x, mask, omega, need_weights)
            return (output.flatten(-2), weights) if need_weights else output.flatten(-2)
        found = layer(self.queries, x, mask=mask, need_weights=need_weights, omega=omega)
        return (found[0].flatten(-2), found[1]) if need_weights else found.flatten(-2)

    def _few_queries(self) -> bool:
        """Whether it is cheaper to project queries and pooled vectors than every entry of a bag."""
        layer = self.hopfield
        linear = [_linear_of(part) for part in (layer.memories_in, layer.values_in)]
        few = [
            len(self.queries) * layer.heads < own.out_features for own in linear if own is not None
        ]
        association = layer.association
        one_step = association.max_steps == 1 and association.keeps_states
        return len(few) == 2 and all(few) and one_step

    def _pool_then_project(
        self,
        x: Tensor,
        mask: Tensor | None,
        omega: Omega | str | nn.Module | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        r"""The same as `Hopfield`, with the entries left as they are, because
        :math:`q^\top(Kx + b) = [K^\top q;\, q^\top b]^\top [x; 1]` and
        :math:`\sum_i y_i (Vx_i + c) = [V, c] \sum_i y_i [x_i; 1]`.
        """
        layer = self.hopfield
        queries = split(layer.queries_in(self.queries), layer.heads)
        memories, key, key_bias = _unprojected(layer.memories_in, x, layer.heads)
        values, value, value_bias = _unprojected(layer.values_in, x, layer.heads)
        toward = queries @ key
        if key_bias is not None:
            toward = torch.cat([toward, queries @ key_bias.unsqueeze(-1)], -1)
            memories = _with_one(memories)
        values = values if value_bias is None else _with_one(values)
        pooled, weights = layer.association(
            toward.expand(*x.shape[:-2], *toward.shape),
            memories.unsqueeze(-3),
            values.unsqueeze(-3),
            mask,
            omega=omega,
            need_weights=need_weights,
        )
        if value_bias is not None:
            value = torch.cat([value, value_bias.unsqueeze(-1)], -1)
        found = torch.einsum("...hmd,hvd->...hmv", pooled, value)
        return blank(layer.out(merge(found)), mask), weights


class HopfieldLookup(nn.Module):
    r"""Look queries up among learned memories.

    Args:
        size: the number of features, or `Sizes`.
        heads: how many associations run side by side.
        memories: how many are learned.
        values: learn values of their own; by default the memories are retrieved.
        omega, beta, max_steps, tol, dropout, normalize, bias, state: those of `Hopfield`.

    >>> import torch, hopfy
    >>> lookup = hopfy.nn.HopfieldLookup(16, heads=2, memories=5)
    >>> lookup(torch.randn(4, 7, 16)).shape
    torch.Size([4, 7, 16])
    """

    values: nn.Parameter | None

    @renamed_arguments(normalise="normalize")
    def __init__(
        self,
        size: int | Sizes,
        heads: int = 1,
        *,
        memories: int,
        values: bool = False,
        omega: Omega | str | nn.Module = "1.5-entmax",
        beta: float | Tensor | nn.Module | None = None,
        max_steps: int = 1,
        tol: float = 0.0,
        dropout: float = 0.0,
        normalize: bool | Collection[str] = False,
        bias: bool = True,
        state: State | str | nn.Module = "euclidean",
    ) -> None:
        super().__init__()
        sizes = size if isinstance(size, Sizes) else Sizes(size)
        _, memory_size, value_size, *_ = sizes.complete(heads)
        self.hopfield = Hopfield(
            sizes,
            heads,
            omega=omega,
            beta=beta,
            max_steps=max_steps,
            tol=tol,
            dropout=dropout,
            normalize=normalize,
            bias=bias,
            state=state,
        )
        self.memories = _learned(memories, memory_size, "memories")
        if values:
            self.values = _learned(memories, value_size, "memories")
        else:
            self.register_parameter("values", None)

    def forward(
        self,
        queries: Tensor,
        mask: Tensor | None = None,
        *,
        need_weights: bool = False,
        omega: Omega | str | nn.Module | None = None,
    ) -> Any:
        """Retrieve (..., M, output size) for queries (..., M, D); see `Hopfield.forward`."""
        return self.hopfield(
            queries, self.memories, self.values, mask, need_weights=need_weights, omega=omega
        )


def _linear_of(part: nn.Module) -> nn.Linear | None:
    """The linear map of a `projection`, which may have a layer norm in front; None for other modules."""
    if type(part) is nn.Sequential and len(part) == 2 and type(part[0]) is nn.LayerNorm:
        part = part[1]
    return part if type(part) is nn.Linear else None


def _unprojected(part: Any, x: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the linear map of a projection reads, its weight (heads, out / heads, in) and its bias."""
    if isinstance(part, nn.Sequential):
        x, part = part[0](x), part[1]
    bias = None if part.bias is None else part.bias.reshape(heads, -1)
    return x, part.weight.reshape(heads, -1, part.in_features), bias


def _with_one(x: Tensor) -> Tensor:
    """x (..., D) with a one as feature D + 1."""
    return nn.functional.pad(x, (0, 1), value=1.0)


def _learned(count: int, size: int, name: str) -> nn.Parameter:
    check_count(count, name)
    return nn.Parameter(torch.randn(count, size) / math.sqrt(size))


def _check_inputs(
    inputs: tuple[Tensor, Tensor, Tensor], expected: tuple[int | None, ...]
) -> tuple[int, ...]:
    """The batch shape of the association."""
    for name, x, size in zip(("queries", "memories", "values"), inputs, expected, strict=True):
        if not isinstance(x, Tensor):
            raise TypeError(f"expected {name} to be a torch.Tensor, got {type(x).__name__}.")
        if x.ndim < 2:
            raise ValueError(
                f"expected {name} of shape (..., count, features), got {tuple(x.shape)}."
            )
        if size not in (None, x.shape[-1]):
            raise ValueError(f"expected {name} with {size} features, got {x.shape[-1]}.")
    queries, memories, values = inputs
    if memories.shape[-2] != values.shape[-2]:
        raise ValueError(
            f"expected one value for each of the {memories.shape[-2]} memories, "
            f"got {values.shape[-2]} values."
        )
    try:
        return tuple(
            torch.broadcast_shapes(  # type: ignore[no-untyped-call]
                queries.shape[:-2], memories.shape[:-2], values.shape[:-2]
            )
        )
    except RuntimeError:
        raise ValueError(
            "expected queries, memories and values of the same batch, got shapes "
            f"{tuple(queries.shape)}, {tuple(memories.shape)} and {tuple(values.shape)}."
        ) from None
