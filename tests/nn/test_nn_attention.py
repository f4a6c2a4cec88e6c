"""All layers attend by `F.attention`: no weights are computed anywhere else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hopfy
from hopfy import functional as F
from hopfy.nn import (
    Hopfield,
    HopfieldAttention,
    HopfieldDecoderLayer,
    HopfieldEncoderLayer,
    HopfieldLookup,
    HopfieldPooling,
    SparseCache,
)

SIZE, HEADS, LENGTH = 8, 2, 6
# Public names that attend to nothing; a layer that is added must stand here or in CASES.
NO_LAYERS = {
    "CacheStats": "numbers",
    "Entmax": "a map of scores that are given",
    "KSubsetsMap": "a map of scores that are given",
    "LearnableAlpha": "a parameter of a map",
    "LearnableBeta": "a parameter of a map",
    "Normmax": "a map of scores that are given",
    "ShareOfLength": "the k of a map",
    "Sizes": "numbers",
    "Softmax": "a map of scores that are given",
    "Sparsemax": "a map of scores that are given",
    "from_hflayers": "makes one of the layers",
}


class Watched(nn.Module):
    """Sparsemax that refuses to be called outside of `F.attention`."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.calls = False, 0

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        assert self.inside, "weights are computed outside of F.attention"
        self.calls += 1
        return F.sparsemax(scores, mask=mask)


def tokens() -> Tensor:
    return torch.randn(3, LENGTH, SIZE)


def some() -> Tensor:
    return torch.arange(LENGTH) < torch.tensor([6, 2, 4])[:, None]


def hopfield(omega: Any, call: dict | None = None, **options: Any) -> Any:
    return Hopfield(SIZE, HEADS, omega=omega, **options)(tokens(), tokens(), **(call or {}))


def pooled(omega: Any, **options: Any) -> Any:
    layer = HopfieldPooling(SIZE, HEADS, omega=omega, **options)
    return layer(tokens(), mask=some())


def attended(omega: Any, call: dict | None = None, **options: Any) -> Any:
    layer = HopfieldAttention(SIZE, HEADS, batch_first=True, omega=omega, **options)
    x = tokens()
    return layer(x, x, x, **(call or {}))


def nested(omega: Any) -> Any:
    layer = HopfieldAttention(SIZE, HEADS, batch_first=True, omega=omega)
    x = torch.nested.nested_tensor([torch.randn(n, SIZE) for n in (6, 2, 4)], layout=torch.jagged)
    return layer(x, x, x, need_weights=False)


def encoded(omega: Any, training: bool) -> Any:
    layer = HopfieldEncoderLayer(SIZE, HEADS, 16, batch_first=True, omega=omega)
    with torch.set_grad_enabled(training):
        return layer.train(training)(tokens(), src_key_padding_mask=~some())


def decoded(omega: Any) -> Any:
    layer = HopfieldDecoderLayer(SIZE, HEADS, 16, batch_first=True, omega=omega)
    return layer(tokens(), tokens())


def from_cache(omega: Any) -> Any:
    cache = SparseCache()
    cache.append(*torch.randn(2, 1, HEADS, LENGTH, SIZE))
    return cache.attend(torch.randn(1, HEADS, 1, SIZE), omega)


CASES: dict[str, dict[str, Callable[[Any], Any]]] = {
    "Hopfield": {
        "plain": hopfield,
        "mask": lambda omega: hopfield(omega, {"mask": some()}),
        "weights": lambda omega: hopfield(omega, {"need_weights": True}),
        "causal": lambda omega: hopfield(omega, {"is_causal": True}),
        "steps": lambda omega: hopfield(omega, max_steps=3),
        "steps until they settle": lambda omega: hopfield(omega, max_steps=3, tol=1e-3),
        "state": lambda omega: hopfield(omega, state="ball"),
        "dropout": lambda omega: hopfield(omega, dropout=0.5),
        "map of one call": lambda omega: hopfield("softmax", {"omega": omega}),
    },
    "HopfieldPooling": {
        "few queries": pooled,
        "many queries": lambda omega: pooled(omega, queries=9),
        "steps": lambda omega: pooled(omega, max_steps=2),
    },
    "HopfieldLookup": {
        "plain": lambda omega: HopfieldLookup(SIZE, HEADS, memories=5, omega=omega)(tokens()),
        "values": lambda omega: HopfieldLookup(SIZE, HEADS, memories=5, values=True, omega=omega)(
            tokens()
        ),
    },
    "HopfieldAttention": {
        "plain": attended,
        "no weights": lambda omega: attended(omega, {"need_weights": False}),
        "padding": lambda omega: attended(omega, {"key_padding_mask": ~some()}),
        "more keys": lambda omega: attended(
            omega,
            {"is_causal": True, "key_padding_mask": ~some()},
            add_bias_kv=True,
            add_zero_attn=True,
        ),
        "nested": nested,
    },
    "HopfieldEncoderLayer": {
        "training": lambda omega: encoded(omega, True),
        "inference": lambda omega: encoded(omega, False),
    },
    "HopfieldDecoderLayer": {"plain": decoded},
    # Its compiled step, which serves entmax and normmax, is compared with F.attention in
    # test_sparse_cache.py: it reads codes of keys instead of computing all scores.
    "SparseCache": {"other maps": from_cache},
}


def test_every_public_name_is_a_case_or_attends_to_nothing() -> None:
    assert set(hopfy.nn.__all__) == set(CASES) | set(NO_LAYERS)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_weights_are_computed_by_attention_alone(
    name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    omega, attend = Watched(), F.attention

    def watched(*arguments: Any, **options: Any) -> Any:
        omega.inside = True
        try:
            return attend(*arguments, **options)
        finally:
            omega.inside = False

    monkeypatch.setattr(F, "attention", watched)
    CASES[name][case](omega)
    assert omega.calls > 0


def test_the_function_has_the_signature_of_torchs() -> None:
    """Names, order and defaults: calls written for torch's function work as they are."""
    ours = list(inspect.signature(F.attention).parameters.values())[:8]
    wanted = {
        "query": inspect.Parameter.empty,
        "key": inspect.Parameter.empty,
        "value": inspect.Parameter.empty,
        "attn_mask": None,
        "dropout_p": 0.0,
        "is_causal": False,
        "scale": None,
        "enable_gqa": False,
    }
    assert {each.name: each.default for each in ours} == wanted
    assert [each.name for each in ours] == list(wanted)
