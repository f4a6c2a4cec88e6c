"""Targets of the losses: every structure, in integers and in weights, batched as looped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import FenchelYoungLoss, SparseMAP
from hopfy.structures import (
    AtMostK,
    Chain,
    Grid,
    KSubsets,
    Matching,
    Oracle,
    SequentialKSubsets,
    Structure,
    Tree,
)


@dataclass(frozen=True)
class Case:
    """A structure, the shape of one problem, integer targets of two problems and their bits."""

    name: str
    structure: Structure
    event: tuple[int, ...]
    indices: list[Any]
    bits: list[Any]


def _best_two(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter(-1, scores.topk(2).indices, 1.0)


CASES = [
    Case("subsets", KSubsets(2), (4,), [[0, 2], [3, 1]], [[1, 0, 1, 0], [0, 1, 0, 1]]),
    Case("0/1 rows", KSubsets(2), (4,), [[1, 0, 1, 0], [0, 1, 1, 0]], [[1, 0, 1, 0], [0, 1, 1, 0]]),
    Case("at most", AtMostK(2), (3,), [[2, -100], [0, 1]], [[0, 0, 1], [1, 1, 0]]),
    Case("sequence", SequentialKSubsets(2, 0.5), (4,), [[0, 1], [1, 3]], [[1, 1, 0, 0], [0, 1, 0, 1]]),
    Case("oracle", Oracle(_best_two), (4,), [[0, 1], [1, 3]], [[1, 1, 0, 0], [0, 1, 0, 1]]),
    Case("chain", Chain(0.5), (3, 2), [[0, 1, 1], [1, 1, 0]],
         [[[1, 0], [0, 1], [0, 1]], [[0, 1], [0, 1], [1, 0]]]),
    Case("tree", Tree(), (3, 3), [[0, 0, 1], [1, 1, 1]],
         [[[1, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 0], [0, 1, 0], [0, 1, 0]]]),
    Case("matching", Matching(), (2, 3), [[2, 0], [0, 1]],
         [[[0, 0, 1], [1, 0, 0]], [[1, 0, 0], [0, 1, 0]]]),
    Case("tall matching", Matching(), (3, 2), [[-1, 0, 1], [0, 1, -1]],
         [[[0, 0], [1, 0], [0, 1]], [[1, 0], [0, 1], [0, 0]]]),
    Case("grid", Grid(Chain(0.5), (3, 2)), (6,), [[0, 1, 1], [1, 1, 0]],
         [[1, 0, 0, 1, 0, 1], [0, 1, 0, 1, 1, 0]]),
]  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def _loss(case: Case, reduction: str = "none") -> FenchelYoungLoss:
    return FenchelYoungLoss(SparseMAP(case.structure), reduction=reduction)  # type: ignore[arg-type]


def _definition(omega: SparseMAP, scores: Tensor, bits: Tensor) -> Tensor:
    r""":math:`\Omega^*(\theta) - \langle\theta, y\rangle + \Omega(y)`, from the best score of y alone.

    Scores moved far toward y leave nothing but y, so their conjugate is its score with all factors.
    """
    far = 1e3
    size = bits.flatten(1).sum(1)
    score = omega.conjugate(scores + far * (2 * bits - 1)) + omega.value(bits) - far * size
    return omega.conjugate(scores) + omega.value(bits) - score


@every_case
def test_integers_mean_what_their_bits_mean(case: Case) -> None:
    scores = torch.randn(2, *case.event, dtype=torch.float64, requires_grad=True)
    bits = torch.tensor(case.bits, dtype=torch.float64)
    by_bits = _loss(case)(scores, bits)
    for indices in (torch.tensor(case.indices), np.array(case.indices), case.indices):
        torch.testing.assert_close(_loss(case)(scores, indices), by_bits)
    assert by_bits.shape == (2,)
    (gradient,) = torch.autograd.grad(by_bits.sum(), scores)
    torch.testing.assert_close(gradient, SparseMAP(case.structure)(scores).detach() - bits)


@every_case
@pytest.mark.parametrize("batch", [(), (1,), (2,), (3,), (4,), (2, 3)])
def test_the_loss_of_each_problem_is_counted_once(case: Case, batch: tuple[int, ...]) -> None:
    """Also where the batch is as large as a dimension of the problem."""
    count = max(1, torch.Size(batch).numel())
    scores = torch.randn(count, *case.event, dtype=torch.float64)
    target = torch.tensor(case.indices)[torch.arange(count) % 2]
    looped = torch.stack([_loss(case)(s, t) for s, t in zip(scores, target, strict=True)])
    shaped = scores.reshape(*batch, *case.event), target.reshape(*batch, *target.shape[1:])
    torch.testing.assert_close(_loss(case)(*shaped), looped.reshape(batch))
    torch.testing.assert_close(_loss(case, "sum")(*shaped), looped.sum())
    torch.testing.assert_close(_loss(case, "mean")(*shaped), looped.mean())


@every_case
def test_the_loss_is_its_definition(case: Case) -> None:
    scores = torch.randn(2, *case.event, dtype=torch.float64)
    bits = torch.tensor(case.bits, dtype=torch.float64)
    loss = _loss(case)(scores, torch.tensor(case.indices))
    expected = _definition(SparseMAP(case.structure), scores, bits)
    torch.testing.assert_close(loss, expected, atol=1e-7, rtol=1e-7)
    assert (loss >= 0).all()


@pytest.mark.parametrize(
    ("structure", "event", "target", "kept"),
    [
        (Chain(0.5), (4, 3), [0, 2, 1, -100], (slice(3), slice(None))),
        (Chain(torch.randn(3, 3, dtype=torch.float64)), (4, 3), [-100, 2, 1, 0], (slice(1, 4), slice(None))),
        (Tree(), (4, 4), [1, 1, 1, -100], (slice(3), slice(3))),
        (Matching(), (3, 4), [2, 0, -100], (slice(2), slice(None))),
        (KSubsets(2), (4,), [1, 0, 1, -100], (slice(3),)),
        (SequentialKSubsets(2, 0.5), (4,), [1, 0, 1, -100], (slice(3),)),
    ],
    ids=["chain", "chain from its start", "tree", "matching", "subsets", "sequence"],
)  # fmt: skip
def test_an_ignored_position_is_not_there(structure, event, target, kept) -> None:
    scores = torch.randn(event, dtype=torch.float64)
    loss = FenchelYoungLoss(SparseMAP(structure))
    without = [entry for entry in target if entry != -100]
    torch.testing.assert_close(
        loss(scores, torch.tensor(target)), loss(scores[kept], torch.tensor(without))
    )


def test_a_chain_of_ignored_positions_counts_for_nothing() -> None:
    loss = FenchelYoungLoss(SparseMAP(Chain(0.5)))
    scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    one = loss(scores[:1], torch.tensor([[0, 1, 2]]))
    both = loss(scores, torch.tensor([[0, 1, 2], [-100, -100, -100]]))
    torch.testing.assert_close(one, both)
    both.backward()
    assert scores.grad is not None
    assert (scores.grad[1] == 0).all()


@pytest.mark.parametrize(
    ("omega", "shape", "target"),
    [
        ("sparsemax", (2, 4), torch.full((2, 4), 0.125)),
        ("softmax", (2, 2), torch.tensor([[-0.5, 1.5], [0.5, 0.5]])),
        ("5-normmax", (2, 4), torch.ones(2, 4)),
        ("2-subsets", (2, 4), torch.tensor([0, 1])),
        ("2-subsets", (2, 4), torch.tensor([[0], [1]])),
        ("2-subsets", (1, 4), torch.tensor([[1.5, 0.5, 0.0, 0.0]])),
        ("sequential-2-subsets", (1, 4), torch.tensor([[1, 1, 1, 0]])),
        (SparseMAP(AtMostK(1)), (1, 3), torch.tensor([[1, 1, 0]])),
        (SparseMAP(Chain()), (1, 2, 3), torch.zeros(1, 2, 3)),
        (SparseMAP(Tree()), (1, 2, 2), torch.ones(1, 2, 2)),
        (SparseMAP(Matching()), (1, 2, 2), torch.tensor([[0, 0]])),
    ],
)
def test_targets_outside_the_domain_are_refused(omega, shape, target) -> None:
    with pytest.raises(ValueError, match="expected"):
        FenchelYoungLoss(omega)(torch.randn(shape), target)


@pytest.mark.parametrize(
    ("omega", "shape", "target", "wrong"),
    [
        ("sparsemax", (2, 4), torch.tensor([0, 4]), "4"),
        (SparseMAP(Chain()), (1, 2, 3), torch.tensor([[0, 3]]), "3"),
        (SparseMAP(Tree()), (1, 2, 2), torch.tensor([[-1, 0]]), "-1"),
        ("2-subsets", (1, 4), torch.tensor([[0, 9]]), "9"),
    ],
)
def test_indices_out_of_range_are_named(omega, shape, target, wrong: str) -> None:
    with pytest.raises(IndexError, match=f"got {wrong}"):
        FenchelYoungLoss(omega)(torch.randn(shape), target)


def test_a_wrong_batch_of_states_is_refused() -> None:
    with pytest.raises(ValueError, match="states of the positions"):
        FenchelYoungLoss(SparseMAP(Chain()))(
            torch.randn(2, 3, 4), torch.zeros(3, 3, dtype=torch.int64)
        )


@pytest.mark.parametrize("target", [["a", "b"], [[0, 1], [2]], object()])
def test_what_is_no_target_is_refused(target: object) -> None:
    with pytest.raises(TypeError, match="nested sequence"):
        FenchelYoungLoss("sparsemax")(torch.randn(2, 3), target)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_weights_and_smoothing_are_cross_entropy(reduction: str) -> None:
    scores = torch.randn(6, 4, dtype=torch.float64)
    target = torch.tensor([0, 1, 2, 3, -100, 1])
    weight = torch.tensor([1.0, 2.0, 0.5, 0.0], dtype=torch.float64)
    ours = FenchelYoungLoss("softmax", weight=weight, reduction=reduction)  # type: ignore[arg-type]
    theirs = torch.nn.CrossEntropyLoss(weight=weight, reduction=reduction)
    torch.testing.assert_close(ours(scores, target), theirs(scores, target))

    ours = FenchelYoungLoss("softmax", label_smoothing=0.2)
    theirs = torch.nn.CrossEntropyLoss(label_smoothing=0.2)
    mixed = torch.tensor([0.85, 0.05, 0.05, 0.05], dtype=torch.float64)
    entropy = (mixed * mixed.log()).sum()
    torch.testing.assert_close(ours(scores, target), theirs(scores, target) + entropy)


def test_weights_make_no_sense_for_structures() -> None:
    with pytest.raises(ValueError, match="one class per row"):
        FenchelYoungLoss("2-subsets", label_smoothing=0.1)
    with pytest.raises(ValueError, match="one weight for each of 3 classes"):
        FenchelYoungLoss("sparsemax", weight=torch.ones(2))(torch.randn(1, 3), torch.tensor([0]))


def test_a_loss_moves_its_weights_with_it() -> None:
    loss = FenchelYoungLoss("softmax", weight=torch.ones(3)).to(torch.float64)
    assert loss.weight is not None
    assert loss.weight.dtype is torch.float64
    assert hopfy.FenchelYoungLoss("softmax").weight is None
