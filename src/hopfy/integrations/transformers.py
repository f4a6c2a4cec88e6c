"""Any map in the attention of Hugging Face models.

>>> from hopfy.integrations.transformers import register  # doctest: +SKIP
>>> register("hopfy", omega="1.5-entmax")  # doctest: +SKIP
>>> model.set_attn_implementation("hopfy")  # doctest: +SKIP
>>> model.set_attn_implementation("sdpa")  # back again  # doctest: +SKIP
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from hopfy import functional as F
from hopfy.nn import CacheStats, SparseCache
from hopfy.omega import Omega, omega_from

__all__ = ["register", "sparse_cache"]

_MARK = "_hopfy_cache"
# Arguments that change the scores in ways that this attention does not know.
_UNKNOWN = {
    "block_indices": "blocks of keys that the model chooses",
    "cache": "a paged cache",
}


def register(name: str = "hopfy", omega: Omega | str | nn.Module = "1.5-entmax") -> None:
    """Make ``model.set_attn_implementation(name)`` use this map, in every model.

    The attention and its masks are registered together: a model whose attention has no registered
    mask would lose causality without a word. Registering a name again replaces its map for all
    models that use it, which is how alpha is annealed during training.

    Args:
        name: how models ask for it; any but the names that transformers itself uses.
        omega: an `hopfy.Omega`, a name, or a module such as `hopfy.nn.LearnableAlpha` (one for all
            layers, with as many alphas as heads or one).
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    known: Any = AttentionInterface
    there = known._global_mapping.get(name)
    if name == "eager" or not (there is None or isinstance(there, _Attention)):
        raise ValueError(
            f'expected a name that transformers does not use itself, got {name!r}; try "hopfy".'
        )
    chosen = omega if isinstance(omega, nn.Module) else omega_from(omega)
    AttentionInterface.register(name, _Attention(chosen))
    AttentionMaskInterface.register(name, sdpa_mask)


class _Attention:
    """A function of transformers' attention interface."""

    def __init__(self, omega: Omega | nn.Module) -> None:
        self.omega = omega

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Queries (B, Hq, M, D), keys and values (B, H, N, D); the output is (B, M, Hq, D)."""
        for argument, what in _UNKNOWN.items():
            if options.get(argument) is not None:
                raise ValueError(
                    f"expected a model without {what}, got {argument}={options[argument]!r}; use "
                    'attn_implementation="eager" for it.'
                )
        if is_causal is None:
            is_causal = bool(getattr(module, "is_causal", True))
        is_causal = bool(query.shape[2] > 1 and attention_mask is None and is_causal)
        if position_bias is not None:
            attention_mask = _with_bias(attention_mask, position_bias)
        need_weights = _wants_weights(module, options)
        omega: Any = self.omega
        cache: SparseCache | None = getattr(key, _MARK, None)
        if softcap is not None or s_aux is not None:
            bias = None
            if attention_mask is not None and attention_mask.is_floating_point():
                bias, attention_mask = attention_mask, None
            omega, cache = _OfOtherScores(omega, softcap, s_aux, bias), None
        if cache is not None and query.shape[2] == 1 and not (need_weights or dropout):
            found = cache.attend(query, omega, scale=scaling, mask=attention_mask)
            return found.transpose(1, 2).contiguous(), None
        found = F.attention(
            query,
            key,
            value,
            attention_mask,
            dropout,
            is_causal,
            scaling,
            key.shape[1] != query.shape[1],
            omega=omega,
            return_weights=need_weights,
        )
        output, weights = found if need_weights else (found, None)
        return output.transpose(1, 2).contiguous(), weights


class _OfOtherScores:
    r"""A map of what a model makes of its scores: :math:`c \tanh(\theta / c) + b`, and a sink.

    The sink is one more score for each head whose weight is dropped; it is always visible. All scores
    of a call exist at once.
    """

    def __init__(
        self,
        omega: Omega | nn.Module,
        softcap: float | None,
        sinks: Tensor | None,
        bias: Tensor | None,
    ) -> None:
        self.omega, self.softcap, self.sinks, self.bias = omega, softcap, sinks, bias

    def __call__(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weights (B, Hq, M, N) of the scores; the mask is True where a key takes part."""
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias
        count = scores.shape[-1]
        if self.sinks is not None:
            sinks = self.sinks.to(scores).reshape(-1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], -1)
            if mask is not None:
                mask = nn.functional.pad(mask.expand(*scores.shape[:-1], count), (0, 1), value=True)
        visible = scores.detach() > torch.finfo(scores.dtype).min / 2
        visible = visible if mask is None else visible & mask
        omega = self.omega
        if isinstance(omega, Omega):
            omega = omega.clip(visible.sum(-1, keepdim=True))
        weights: Tensor = omega(scores, visible)
        return weights[..., :count]


def sparse_cache() -> Any:
    """A cache for ``model.generate(..., past_key_values=sparse_cache())``.

    An encoder-decoder model takes two: ``EncoderDecoderCache(sparse_cache(), sparse_cache())``.

    Decoding steps of a registered attention then read only the keys that can have weight, see
    `hopfy.nn.SparseCache`; the tokens are those of any other cache. ``cache.stats()`` says how many
    keys were read. Beam search and cropping encode the keys again.
    """
    from transformers import cache_utils

    parts: Any = cache_utils

    class SparseCacheOfLayers(parts.Cache):  # type: ignore[misc]
        """One `SparseLayer` for each layer of a model."""

        def stats(self) -> CacheStats:
            """What the decoding steps of all layers have cost."""
            parts = [layer.store.stats() for layer in self.layers]
            return CacheStats(*(sum(counts) for counts in zip(*parts, strict=True)))

    return SparseCacheOfLayers(layer_class_to_replicate=_sparse_layer())


@cache
def _sparse_layer() -> Any:
    """The class of the cache's layers, defined when transformers is imported."""
    from transformers import cache_utils

    parts: Any = cache_utils

    class SparseLayer(parts.DynamicLayer):  # type: ignore[misc]
        """A layer of the cache: all keys and values, with codes beside them."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.store = SparseCache()

        def update(
            self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            if self.get_seq_length() != len(self.store):  # cropped, reordered or repeated
                self._encode_again()
            self.store.append(key_states, value_states)
            self.keys, self.values = self.store.keys, self.store.values
            setattr(self.keys, _MARK, self.store)  # how the attention finds it
            return self.keys, self.values

        def _encode_again(self) -> None:
            if self.get_seq_length():
                self.store.replace(self.keys, self.values)
            else:
                self.store = SparseCache()

        def reset(self) -> None:
            super().reset()
            self.store = SparseCache()

        def reorder_cache(self, beam_idx: Tensor) -> None:
            super().reorder_cache(beam_idx)
            self._encode_again()

        def batch_repeat_interleave(self, repeats: int) -> None:
            super().batch_repeat_interleave(repeats)
            self._encode_again()

        def batch_select_indices(self, indices: Tensor) -> None:
            super().batch_select_indices(indices)
            self._encode_again()

    return SparseLayer


def _wants_weights(module: nn.Module, options: dict[str, Any]) -> bool:
    config = getattr(module, "config", None)
    return bool(options.get("output_attentions") or getattr(config, "output_attentions", False))


def _with_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    if mask is None:
        return bias
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else bias + mask
