"""The energy transformer of the examples: its energy falls, and it learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parents[2] / "examples" / "energy_transformer.py"
SPEC = importlib.util.spec_from_file_location("energy_transformer", PATH)
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)


@pytest.mark.parametrize("omega", ["softmax", "1.5-entmax", "sparsemax", "5-normmax"])
def test_the_energy_falls(omega: str) -> None:
    torch.manual_seed(0)
    block = example.EnergyTransformerBlock(12, omega=omega, step_size=0.02, steps=10).eval()
    _, energies = block.descend(torch.randn(3, 6, 12))
    falls = torch.stack(energies).diff(dim=0)
    assert (falls <= 1e-4).all()
    assert (falls.sum(0) < -0.01).all()


def test_softmax_attention_is_log_sum_exp() -> None:
    """The published energy, written out for one head."""
    torch.manual_seed(0)
    block = example.EnergyTransformerBlock(5, heads=1, omega="softmax").double()
    g = torch.randn(4, 5, dtype=torch.float64)
    layer = block.attention
    beta = layer.association.beta
    scores = beta * layer.queries_in(g) @ layer.memories_in(g).T
    scores.fill_diagonal_(-torch.inf)
    expected = -torch.logsumexp(scores, -1).sum() / beta
    torch.testing.assert_close(block.attention_energy(g), expected)


def test_tokens_are_treated_alike() -> None:
    torch.manual_seed(0)
    block = example.EnergyTransformerBlock(8).eval()
    x, order = torch.randn(2, 5, 8), torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(block(x[:, order]), block(x)[:, order], rtol=1e-4, atol=1e-5)


def test_it_learns_to_fill_in() -> None:
    pytest.importorskip("sklearn")
    before, after = example.train(updates=25)
    assert after < 0.8 * before
