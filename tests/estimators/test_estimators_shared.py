"""What the estimators share: bags, the network for them, the training loop, and files."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import hopfy

pytest.importorskip("skorch")

from hopfy._files.tensors import FileFormat
from hopfy.estimators import _files
from hopfy.estimators._bag_network import (
    BagNetwork,
    GatedAttentionPooling,
    MaxPooling,
    MeanPooling,
    cnn,
    features_after,
    hopfield_pooling,
    mlp,
)
from hopfy.estimators._bags import Bags, pack
from hopfy.estimators._training import (
    ClassLoss,
    ExponentialDecay,
    Labeled,
    ReduceOnPlateau,
    Training,
    hold_out,
    outputs_of,
    seeded,
    train,
)
from hopfy.structures import SequentialKSubsets

OMEGAS = ["softmax", "sparsemax", "1.5-entmax", "5-normmax", "2-subsets", "sequential-2-subsets"]


def ragged(count: int = 7, size: int = 5, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [
        generator.normal(size=(n, size)).astype("float32")
        for n in generator.integers(1, 6, size=count)
    ]


# ---------------------------------------------------------------------------------- bags


def test_a_batch_holds_each_instance_once_and_finds_it_again():
    bags = ragged()
    packed = pack(bags)
    for numbers in ([0], [6, 2, 2, 5], list(range(7))):
        batch = packed.batch(numbers)
        assert len(batch["instances"]) == sum(len(bags[number]) for number in numbers)
        for row, number in enumerate(numbers):
            mask = batch["mask"][row]
            assert mask.tolist() == [slot < len(bags[number]) for slot in range(len(mask))]
            found = batch["instances"][batch["places"][row][mask]]
            assert np.array_equal(found, bags[number])


def test_bags_by_id_equal_bags_in_a_list():
    bags = ragged()
    order = np.random.default_rng(1).permutation(sum(map(len, bags)))
    ids = np.repeat(list("gfedcba"), [len(bag) for bag in bags])
    # A mixed order: bags by first appearance, instances as they come.
    table, mixed = np.concatenate(bags)[order], ids[order]
    first = list(dict.fromkeys(mixed))
    expected = [table[mixed == one] for one in first]
    found = pack(table, mixed)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


def test_bags_are_a_sequence():
    bags = pack(ragged())
    assert isinstance(bags, Bags)
    assert pack(bags)[3].equal(bags[3])
    assert len(bags[1:3]) == 2
    assert [len(bag) for bag in bags] == bags.lengths.tolist()
    assert torch.equal(bags[-1], bags[6])
    with pytest.raises(IndexError):
        bags[7]


@pytest.mark.parametrize(
    ("bags", "error", "message"),
    [
        ([np.ones((2, 3)), np.ones((0, 3))], ValueError, "instance in bag 1, got an empty bag"),
        ([np.ones((2, 3)), np.ones((1, 4))], ValueError, r"shape \(3,\) .* got \(4,\) in bag 1"),
        ([np.ones((2, 3)), [[1, np.nan, 2]]], ValueError, "finite features in bag 1, got NaN"),
        ([[[np.inf]]], ValueError, "finite features in bag 0, got infinity"),
        ([], ValueError, "at least one bag, got none"),
        ([[["a"]]], ValueError, "bag 0 to be an array of numbers"),
        ([[[1.0], [1.0, 2.0]]], ValueError, "bag 0 to be an array of numbers"),
        ([3.0], ValueError, "bag 0 of shape"),
        (np.ones(3), ValueError, "expected bags as a list of arrays"),
        (7, TypeError, "expected bags as a list of arrays, got int"),
        ([np.ones((2, 0))], ValueError, "at least one feature in bag 0"),
        ([np.ones((2, 1)) * 1j], ValueError, "Complex data not supported"),
    ],
)
def test_bad_bags_are_named_in_one_message(bags, error, message):
    with pytest.raises(error, match=message):
        pack(bags)


def test_bags_that_were_put_together_by_hand_are_checked_too():
    rows = torch.ones(3, 2)
    with pytest.raises(ValueError, match="instance in bag 1, got an empty bag"):
        Bags(rows, torch.tensor([3, 0]))
    with pytest.raises(ValueError, match="lengths that sum to the 3 instances, got 4"):
        Bags(rows, torch.tensor([2, 2]))
    with pytest.raises(ValueError, match="finite features in the bags, got NaN in its instance 0"):
        pack(Bags(rows * torch.nan, torch.tensor([3])))
    assert pack(Bags(rows.double(), torch.tensor([3]))).instances.dtype is torch.float32


def test_ids_must_fit_the_instances():
    with pytest.raises(ValueError, match="one bag id for each of 3 instances"):
        pack(np.ones((3, 2)), [0, 1])


# ---------------------------------------------------------------------------------- networks


def poolings(size: int = 8) -> dict[str, nn.Module]:
    made = {omega: hopfield_pooling(size, heads=3, omega=omega) for omega in OMEGAS}
    return {
        **made,
        "mean": MeanPooling(),
        "max": MaxPooling(),
        "gated": GatedAttentionPooling(size),
    }


@pytest.mark.parametrize("name", [*OMEGAS, "mean", "max", "gated"])
def test_batched_equals_one_by_one_in_any_order(name):
    with seeded(0):
        network = BagNetwork(mlp((5,), 8), poolings()[name], nn.Linear(8, 2)).eval()
    bags = ragged()
    packed = pack(bags)
    together = network(**packed.batch(range(7)))
    weights = network.weights(**packed.batch(range(7)))
    assert weights.shape == (7, 3 if name in OMEGAS else 1, int(packed.lengths.max()))
    for number, bag in enumerate(bags):
        order = np.random.default_rng(number).permutation(len(bag))
        if name.startswith("sequential"):
            order = np.arange(len(bag))
        alone = pack([bag[order]]).batch([0])
        torch.testing.assert_close(together[number], network(**alone)[0], rtol=1e-5, atol=1e-6)
        own = network.weights(**alone)[0]
        torch.testing.assert_close(
            weights[number][:, : len(bag)][:, order], own, rtol=1e-5, atol=1e-6
        )
        assert not weights[number][:, len(bag) :].any()


def test_small_poolings_are_their_formulas():
    x, mask = torch.randn(2, 4, 3), torch.tensor([[True] * 4, [True, True, False, False]])
    gated = GatedAttentionPooling(3, hidden=6)
    for row, count in ((0, 4), (1, 2)):
        bag = x[row, :count]
        torch.testing.assert_close(MeanPooling()(x, mask)[row], bag.mean(0))
        torch.testing.assert_close(MaxPooling()(x, mask)[row], bag.max(0).values)
        rows = [
            gated.score.weight[0] @ (gated.content(h).tanh() * gated.gate(h).sigmoid()) for h in bag
        ]
        shares = torch.stack(rows).exp() / torch.stack(rows).exp().sum()
        torch.testing.assert_close(gated(x, mask)[row], shares @ bag)


def test_the_papers_cnn_has_the_papers_layers():
    sizes = [tuple(p.shape) for p in cnn((28, 28)).parameters() if p.ndim > 1]
    assert sizes == [(20, 1, 5, 5), (50, 20, 5, 5), (500, 800)]
    assert cnn((3, 20, 17), 9)(torch.randn(4, 3, 20, 17)).shape == (4, 9)
    with pytest.raises(ValueError, match="sides of at least 16"):
        cnn((8, 8))


def test_an_embedding_must_keep_the_instances_apart():
    assert features_after(nn.Linear(3, 4), torch.randn(5, 3)) == 4
    with pytest.raises(ValueError, match=r"features of shape \(2, size\), got \(8,\)"):
        features_after(nn.Flatten(0), torch.randn(5, 4))


# ---------------------------------------------------------------------------------- training


class Rows:
    """Rows of a matrix as samples."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, numbers):
        return {"input": self.rows[list(numbers)]}


def line(count: int = 60) -> tuple[Rows, torch.Tensor]:
    rows = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return Rows(rows), (rows @ torch.tensor([1.0, -2.0, 0.5])).unsqueeze(1)


def test_training_minimizes_the_loss_and_repeats_itself():
    samples, targets = line()
    found = []
    for _ in range(2):
        before = torch.random.get_rng_state()
        with seeded(3):
            module = nn.Linear(3, 1)
            settings = Training(
                max_epochs=40,
                batch_size=8,
                lr=0.1,
                weight_decay=0.0,
                schedule=ExponentialDecay(0.95),
            )
            history = train(module, nn.MSELoss(), Labeled(samples, targets), settings)
        assert torch.equal(before, torch.random.get_rng_state())
        found.append(module.weight.detach())
    assert len(history) == 40
    assert history[-1]["train_loss"] < 1e-3
    assert torch.equal(*found)
    torch.testing.assert_close(outputs_of(module, samples), targets, rtol=0, atol=0.1)


class Scripted:
    """Scores that follow a script, and the weights that were there."""

    def __init__(self, module: nn.Linear, scores: list[float]) -> None:
        self.module, self.scores, self.weights = module, iter(scores), []

    def __call__(self, outputs, targets):
        assert outputs.shape == targets.shape == (12, 1)
        assert not outputs.requires_grad
        self.weights.append(self.module.weight.detach().clone())
        return next(self.scores)


@pytest.mark.parametrize(
    ("scores", "epochs", "best"),
    [
        ([1, 2, 2, 2, 9], 4, 1),  # equal is no improvement
        ([1, 3, 2, 4, 1, 2, 9], 6, 3),  # misses are counted anew
        ([1, 2, 3, 4, 5, 6, 7], 7, 6),
        ([5, 4, 3, 9, 9, 9, 9], 3, 0),
    ],
)
def test_early_stopping_brings_back_the_best_epoch(scores, epochs, best):
    samples, targets = line()
    training, validation = hold_out(60, 0.2, seed=0)
    module = nn.Linear(3, 1)
    script = Scripted(module, scores)
    history = train(
        module,
        nn.MSELoss(),
        Labeled(samples, targets, training),
        Training(max_epochs=7, patience=2),
        validation=Labeled(samples, targets, validation),
        score=script,
    )
    assert [epoch["valid_score"] for epoch in history] == scores[:epochs]
    assert torch.equal(module.weight, script.weights[best])
    assert len({tuple(weight.flatten().tolist()) for weight in script.weights}) == epochs


@pytest.mark.parametrize(
    ("patience", "min_epochs", "epochs"),
    [(2, 1, 3), (2, 4, 4), (1, 5, 5), (3, 2, 4), (2, 7, 7), (None, 3, 7)],
)
def test_training_does_not_stop_before_min_epochs(patience, min_epochs, epochs):
    samples, targets = line()
    training, validation = hold_out(60, 0.2, seed=0)
    module = nn.Linear(3, 1)
    script = Scripted(module, [7, 6, 5, 4, 3, 2, 1])
    history = train(
        module,
        nn.MSELoss(),
        Labeled(samples, targets, training),
        Training(max_epochs=7, min_epochs=min_epochs, patience=patience),
        validation=Labeled(samples, targets, validation),
        score=script,
    )
    assert len(history) == epochs
    assert torch.equal(module.weight, script.weights[0])


def test_the_validation_loss_decides_by_default():
    samples, targets = line()
    rows = np.arange(60)
    module = nn.Linear(3, 1)
    settings = Training(
        max_epochs=200, lr=0.5, patience=3, clip=None, schedule=ReduceOnPlateau(0.9, 1)
    )
    history = train(
        module,
        nn.MSELoss(),
        Labeled(samples, targets, rows[:50]),
        settings,
        validation=Labeled(samples, targets, rows[50:]),
    )
    losses = [epoch["valid_loss"] for epoch in history]
    best = int(np.argmin(losses))
    assert len(losses) == best + 1 + 3
    found = nn.functional.mse_loss(outputs_of(module, samples)[50:], targets[50:])
    assert found.item() == pytest.approx(losses[best])


def test_a_diverging_loss_is_an_error():
    samples, targets = line()
    with pytest.raises(
        ValueError, match=r"training loss to stay finite, got .* lower the learning"
    ):
        train(
            nn.Linear(3, 1),
            nn.MSELoss(),
            Labeled(samples, targets * torch.nan),
            Training(max_epochs=2),
        )


def test_an_interruption_is_not_swallowed():
    samples, targets = line()

    class Interrupted(nn.Linear):
        def forward(self, input):  # noqa: ARG002
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Interrupted(3, 1), nn.MSELoss(), Labeled(samples, targets), Training(max_epochs=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_epochs": 0}, "max_epochs to be an integer of at least 1"),
        ({"min_epochs": 0}, "min_epochs to be an integer of at least 1"),
        ({"batch_size": 2.5}, "batch_size to be an integer"),
        ({"patience": 0}, "patience to be an integer"),
        ({"lr": 0.0}, "lr to be a finite number above 0"),
        ({"weight_decay": -1.0}, "weight_decay to be a finite number of at least 0"),
    ],
)
def test_bad_training_settings_are_one_message(options, message):
    with pytest.raises(ValueError, match=message):
        Training(**options).resolved()


def test_class_loss_is_cross_entropy_with_the_weights_of_the_classes():
    generator = torch.Generator().manual_seed(0)
    logits, classes = torch.randn(9, 1, generator=generator), torch.arange(9) % 2
    both = torch.cat([torch.zeros_like(logits), logits], 1)
    for weights in (None, torch.tensor([0.3, 2.0])):
        expected = nn.functional.cross_entropy(both, classes, weights)
        torch.testing.assert_close(ClassLoss(weights)(logits, classes), expected)
        torch.testing.assert_close(ClassLoss(weights)(both, classes), expected)


def test_hold_out_keeps_the_shares_of_the_classes():
    classes = np.repeat([0, 1], [90, 30])
    training, validation = hold_out(120, 0.2, 0, classes)
    assert sorted([*training, *validation]) == list(range(120))
    assert np.bincount(classes[validation]).tolist() == [18, 6]
    assert not np.array_equal(validation, hold_out(120, 0.2, 1, classes)[1])
    assert len(hold_out(5, 0.0, 0)[1]) == 0
    assert len(hold_out(1, 0.5, 0)[1]) == 0
    assert len(hold_out(4, 0.25, 0, np.array([0, 0, 0, 1]))[1]) == 1  # too few to stratify
    with pytest.raises(ValueError, match=r"validation share in \[0, 1\)"):
        hold_out(5, 1.0, 0)


# ---------------------------------------------------------------------------------- files

KIND = FileFormat("hopfy.test", 1, "test")


@pytest.mark.parametrize(
    "omega",
    [
        *map(hopfy.omega_from, OMEGAS),
        hopfy.Norm(float("inf")),
        hopfy.Tsallis(1 + 1e-12),
        hopfy.SparseMAP(SequentialKSubsets(4, transition=0.001)),
        hopfy.nn.ShareOfLength(0.2),
        hopfy.nn.ShareOfLength(0.3, functools.partial(SequentialKSubsets, transition=0.001)),
    ],
    ids=str,
)
def test_omegas_come_back_from_their_tables(omega):
    found = _files.omega_from_table(_files.omega_table(omega))
    scores = torch.randn(3, 9)
    assert str(found) == str(omega)
    assert torch.equal(found(scores), omega(scores))


def test_an_omega_without_a_family_has_no_table():
    class Own(hopfy.Tsallis):
        """Without a family of its own."""

    with pytest.raises(TypeError, match="that a file can describe"):
        _files.omega_table(Own(1.5))


@pytest.mark.parametrize("classes", [[0, 1], ["a", "bc"], [False, True], [0.5, 1.5]])
def test_classes_come_back_from_their_tables(classes):
    array = np.asarray(classes)
    found = _files.classes_from(_files.classes_table(array))
    assert found.dtype == array.dtype
    assert found.tolist() == classes


def test_a_network_comes_back_from_its_file(tmp_path):
    path = tmp_path / "network.safetensors"
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    network(torch.randn(5, 3))
    words = torch.tensor([1, 2, 3], dtype=torch.uint8)
    _files.save(path, KIND, network, {"size": 4}, {"words": words})
    file, others = _files.open_file(path, KIND)
    assert file.settings == {"size": 4}
    assert torch.equal(others["words"], words)
    made = _files.build(file, lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    x = torch.randn(2, 3)
    assert torch.equal(made(x), network.eval()(x))


def test_a_file_must_fit_the_network_it_describes(tmp_path):
    path = tmp_path / "network.safetensors"
    _files.save(path, KIND, nn.Linear(3, 4), {})
    file, _ = _files.open_file(path, KIND)
    with pytest.raises(ValueError, match=r"'bias' is .* \(4,\) where .* has nothing"):
        _files.build(file, lambda: nn.Linear(3, 4, bias=False))
    huge = 2**40  # 16 terabytes: refused before anything is allocated
    with pytest.raises(ValueError, match=r"'bias' is .* has .*\(1099511627776,\)"):
        _files.build(file, lambda: nn.Linear(3, huge))
    with pytest.raises(ValueError, match="do not describe a network"):
        _files.build(file, lambda: nn.Linear("x", 4))
    _files.save(path, KIND, nn.Linear(3, 4).requires_grad_(False).apply(_spoil), {})
    with pytest.raises(ValueError, match="its parameters are not finite"):
        _files.build(_files.open_file(path, KIND)[0], lambda: nn.Linear(3, 4))
    with pytest.raises(ValueError, match=r"does not say that it is a hopfy\.other file"):
        _files.open_file(path, FileFormat("hopfy.other", 1, "other"))


def _spoil(module: nn.Linear) -> None:
    module.bias[0] = torch.nan
