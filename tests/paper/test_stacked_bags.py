"""Networks trained in one stack are what they would be alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch.func import stack_module_state

from hopfy.estimators._bags import Bags
from hopfy.paper.data import LabeledBags
from hopfy.paper.mil._benchmarks import nested_folds, standardized
from hopfy.paper.mil._networks import METHODS, BagModel
from hopfy.paper.mil._stacked_bags import BETA, DROPOUT, StackedBags, logits
from hopfy.paper.mil._stacked_training import (
    Split,
    Stack,
    StackedSettings,
    _Best,
    area_under_curve,
    clip_each,
    train_stacked,
)

LENGTHS = torch.tensor([1, 4, 2, 7, 3, 5, 2, 6])


def given_to(count: int, **rates: float) -> dict[str, torch.Tensor]:
    own = {BETA: torch.full((count,), 1.5, dtype=torch.float64)}
    return own | {name: torch.full((count,), rate) for name, rate in rates.items()}


def stack_of(
    method: str, count: int = 3, *, normalize: bool = False, public: bool = False
) -> tuple[list[torch.nn.Module], StackedBags]:
    torch.manual_seed(0)
    model = BagModel(method, 6, beta=1.5, heads=2, head_size=4, normalize=normalize, public=public)
    networks = [model.network((5,)).double() for _ in range(count)]
    for network in networks:  # offsets and gains are zeros and ones at first
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    features = torch.randn(count, int(LENGTHS.sum()), 5, dtype=torch.float64)
    return networks, StackedBags(features, LENGTHS)


@pytest.mark.parametrize(("normalize", "public"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("method", METHODS)
def test_stacked_answers_and_gradients_are_those_of_each_network(method, normalize, public):
    networks, bags = stack_of(method, normalize=normalize, public=public)
    chosen = torch.tensor([[0, 3, 2], [1, 1, 7], [5, 0, 4]])
    parameters, _ = stack_module_state(networks)
    pool = BagModel(method, 6, beta=1.5, heads=2, head_size=4, public=public).stacked_pool()
    answers = logits({**parameters, **given_to(3)}, pool, bags.batch(chosen))
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    gradients = torch.autograd.grad(
        (answers * weights).sum(), list(parameters.values()), allow_unused=True
    )
    for number, network in enumerate(networks):
        batch = Bags(bags.features[number], LENGTHS).batch(chosen[number].tolist())
        own = network(**batch).squeeze(-1)
        torch.testing.assert_close(answers[number], own, rtol=1e-9, atol=1e-9)
        (own * weights).sum().backward()
        for (name, parameter), gradient in zip(network.named_parameters(), gradients, strict=True):
            if gradient is None:  # the memories' bias and offset, which no map sees
                assert name.startswith("pooling.hopfield.memories_in")
                assert name.endswith("bias")
                assert parameter.grad.abs().max() < 1e-9
            else:
                torch.testing.assert_close(gradient[number], parameter.grad, rtol=1e-8, atol=1e-9)


def test_dropout_changes_training_only():
    networks, bags = stack_of("softmax")
    parameters, _ = stack_module_state(networks)
    pool = BagModel("softmax", 6, 1.5, 2, 4).stacked_pool()
    batch = bags.batch(torch.zeros(3, 2, dtype=torch.int64) + 3)
    torch.manual_seed(1)
    noisy = logits({**parameters, **given_to(3, dropout=0.5)}, pool, batch)
    plain = logits({**parameters, **given_to(3)}, pool, batch)
    assert not torch.allclose(noisy[:, 0], noisy[:, 1])
    torch.testing.assert_close(plain[:, 0], plain[:, 1])


def train(networks, bags, numbers, changed=None, split_rows=None, pool=None, **settings):
    count = len(networks)
    rows = split_rows or count
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    split = Split(
        torch.arange(4).expand(rows, 4),
        torch.arange(4, 8).expand(rows, 4),
        torch.tensor([0, 1, 6, 7]).expand(rows, 4),
    )
    own = given_to(count, dropout=0.0) | {
        name: torch.tensor(each) for name, each in (changed or {}).items()
    }
    return train_stacked(
        Stack(networks, pool or BagModel("2-subsets", 6, 1.5, 2, 4).stacked_pool(), own),
        StackedBags(bags.features[numbers], LENGTHS),
        labels,
        split,
        StackedSettings(**{"batch_size": 4, **settings}),
        torch.Generator().manual_seed(0),
    )


def test_a_stack_trains_like_its_networks_alone():
    networks, bags = stack_of("2-subsets")
    together = train(networks, bags, [0, 1, 2], max_epochs=8, patience=3, lr=0.02)
    for number, network in enumerate(networks):
        alone = train([network], bags, [number], max_epochs=8, patience=3, lr=0.02)
        assert torch.equal(alone.validation[0], together.validation[number])
        assert torch.equal(alone.test[0], together.test[number])
        assert alone.epochs[0] == together.epochs[number]


@pytest.mark.parametrize("method", ["softmax", "2-normmax", "2-subsets"])
def test_steps_of_one_bag_are_a_plain_loop_over_bags(method):
    """The public code's training, written out with torch's modules, optimizer and clipping."""
    networks, bags = stack_of(method, 2, normalize=True, public=True)
    how = {"max_epochs": 3, "lr": 0.02, "decay": 0.9, "choose": "last", "same_order": True}
    model = BagModel(method, 6, 1.5, 2, 4, normalize=True, public=True)
    found = train(networks, bags, [0, 1], pool=model.stacked_pool(), batch_size=1, **how)
    labels = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    areas = []
    for number, network in enumerate(networks):
        own = Bags(bags.features[number], LENGTHS)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.02, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            for place in torch.rand(1, 4, generator=generator).argsort(1)[0].tolist():
                optimizer.zero_grad()
                logit = network(**own.batch([place])).squeeze()
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, labels[place])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
            schedule.step()
        scores = network(**own.batch([0, 1, 6, 7])).detach().view(1, -1)
        areas.append(area_under_curve(scores, torch.tensor([[0, 1, 0, 1]])))
        kept = {name: each[number] for name, each in found.parameters.items()}
        for name, parameter in network.named_parameters():
            if "memories_in" not in name or not name.endswith("bias"):  # no map sees these
                torch.testing.assert_close(kept[name], parameter.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.test.double(), torch.cat(areas).double())


@pytest.mark.parametrize("choose", ["area", "loss", "last"])
def test_networks_leave_the_stack_one_by_one(choose):
    networks, bags = stack_of("2-subsets", 6)
    how = {"max_epochs": 30, "patience": 2, "lr": 0.05, "choose": choose}
    together = train(networks, bags, list(range(6)), **how)
    for number, network in enumerate(networks):
        alone = train([network], bags, [number], **how)
        assert torch.equal(alone.epochs[0], together.epochs[number])
        torch.testing.assert_close(alone.test[0], together.test[number])
    assert len(set(together.epochs.tolist())) > 1 or choose == "last"


def test_a_stack_of_several_settings_is_the_stacks_of_each():
    networks, bags = stack_of("2-subsets", 2)
    betas = [0.1, 0.1, 5.0, 5.0]
    how = {"max_epochs": 6, "patience": 3, "lr": 0.05}
    both = train([*networks, *networks], bags, [0, 1, 0, 1], {BETA: betas}, split_rows=2, **how)
    for place, beta in enumerate((0.1, 5.0)):
        alone = train(networks, bags, [0, 1], {BETA: [beta, beta]}, **how)
        for one, other in zip(both.parts(2)[place][:3], alone[:3], strict=True):
            torch.testing.assert_close(one, other)
    assert not torch.equal(both.parts(2)[0].test, both.parts(2)[1].test)


def test_dropout_is_each_networks_own():
    networks, bags = stack_of("softmax", 2)
    parameters, _ = stack_module_state(networks)
    pool = BagModel("softmax", 6, 1.5, 2, 4).stacked_pool()
    batch = bags.batch(torch.full((2, 40), 3))
    rates = {DROPOUT: torch.tensor([0.0, 0.5])}
    noisy = logits({**parameters, **given_to(2), **rates}, pool, batch)
    assert float(noisy[0].detach().std()) < 1e-12
    assert float(noisy[1].detach().std()) > 1e-3


def test_a_network_that_has_stopped_stays_stopped():
    best = _Best({"w": torch.zeros(2, 1)}, 2, patience=2)
    history = [(0.5, 0.5), (0.4, 0.6), (0.3, 0.5), (0.9, 0.7)]
    for number, areas in enumerate(history, 1):
        assert best.stopped.tolist() == [number == 4, False]
        best.update({"w": torch.full((2, 1), float(number))}, torch.tensor(areas), torch.ones(2))
    assert best.epoch.tolist() == [1, 4]
    assert best.parameters["w"].flatten().tolist() == [1, 4]


def test_the_best_epoch_is_kept_network_by_network():
    best = _Best({"w": torch.zeros(2, 1)}, 2, patience=5)
    history = [((0.5, 0.9), (1.0, 1.0)), ((0.7, 0.9), (1.0, 0.5)), ((0.6, 0.9), (0.1, 0.7))]
    for number, (areas, losses) in enumerate(history, 1):
        best.update(
            {"w": torch.full((2, 1), float(number))}, torch.tensor(areas), torch.tensor(losses)
        )
    assert best.epoch.tolist() == [2, 2]  # the second by its loss: its areas are all the same
    assert best.parameters["w"].flatten().tolist() == [2, 2]
    assert best.waiting.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("choose", "epochs"), [("area", [2, 4]), ("loss", [3, 1]), ("last", [4, 4])]
)
def test_another_rule_chooses_another_epoch(choose, epochs):
    best = _Best({"w": torch.zeros(2, 1)}, 2, patience=2, choose=choose)
    areas = torch.tensor([[0.5, 0.6], [0.7, 0.5], [0.6, 0.7], [0.6, 0.8]])
    losses = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.3], [0.4, 0.4]])
    for area, loss in zip(areas, losses, strict=True):
        best.update({"w": torch.zeros(2, 1)}, area, loss)
    assert best.epoch.tolist() == epochs
    with pytest.raises(ValueError, match="area, loss or last, got 'test'"):
        StackedSettings(choose="test")


def test_gradients_are_clipped_network_by_network():
    torch.manual_seed(0)
    scale = torch.tensor([0.01, 1.0, 100.0])
    stacked = [torch.zeros(3, 4, 2, requires_grad=True), torch.zeros(3, 5, requires_grad=True)]
    for parameter in stacked:
        parameter.grad = torch.randn(parameter.shape) * scale.view(3, *(1,) * (parameter.ndim - 1))
    expected = []
    for number in range(3):
        own = [torch.zeros(p.shape[1:], requires_grad=True) for p in stacked]
        for parameter, whole in zip(own, stacked, strict=True):
            parameter.grad = whole.grad[number].clone()
        torch.nn.utils.clip_grad_norm_(own, 1.0)
        expected.append([parameter.grad for parameter in own])
    clip_each(stacked, 1.0)
    for number in range(3):
        for parameter, own in zip(stacked, expected[number], strict=True):
            torch.testing.assert_close(parameter.grad[number], own, rtol=1e-4, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=12))
def test_the_area_under_the_curve_is_scikit_learns(pairs):
    scores = torch.tensor([float(score) for score, _ in pairs])
    labels = torch.tensor([int(label) for _, label in pairs])
    if labels.float().mean() in (0, 1):
        labels[0] = 1 - labels[0]
    expected = roc_auc_score(labels.numpy(), scores.numpy())
    found = area_under_curve(torch.stack([scores, -scores]), torch.stack([labels, labels]))
    assert found.tolist() == pytest.approx([expected, 1 - expected])


def test_folds_are_disjoint_stratified_and_test_every_bag_once():
    labels = torch.arange(60) % 2
    split = nested_folds(labels, [3, 4], folds=5)
    assert split.test.shape == (10, 12)
    assert split.validation.shape == (10, 12)
    assert split.training.shape == (10, 36)
    for parts in zip(*split, strict=True):
        assert sorted(torch.cat(parts).tolist()) == list(range(60))
    for seed in (0, 5):
        assert sorted(split.test[seed : seed + 5].flatten().tolist()) == list(range(60))
    for part in split:
        assert bool((labels[part].sum(1) * 2 == part.shape[1]).all())
    assert not torch.equal(split.test[:5], split.test[5:])


def test_scaling_knows_the_training_bags_only():
    torch.manual_seed(0)
    instances = torch.randn(6, 3) * 5 + 2
    instances[:, 2] = 7.0
    instances[5, 2] = 9.0
    bags = LabeledBags(instances, torch.tensor([2, 2, 2]), torch.tensor([0, 1, 0]))
    scaled = standardized(bags, torch.tensor([[0, 1], [1, 0]]))
    own = scaled.features[0, :4]
    torch.testing.assert_close(own[:, :2].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(own[:, :2].std(0), torch.ones(2), atol=1e-5, rtol=0)
    assert scaled.features[0, :, 2].tolist() == [0, 0, 0, 0, 0, 2]
    assert float(scaled.features.abs().max()) <= 3
    torch.testing.assert_close(scaled.features[0], scaled.features[1])
    instances[4:] = 1e6
    torch.testing.assert_close(standardized(bags, torch.tensor([[0, 1]])).features[0, :4], own)
