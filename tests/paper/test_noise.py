"""Variance components: simulated ones are found again, and bad shapes are refused."""

from __future__ import annotations

import json

import pytest
import torch

from hopfy.paper.mil import _noise as noise_of
from hopfy.paper.mil._noise import Noise, decompose


def simulated(true: Noise, seeds: int, folds: int, begun: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)

    def normal(variance: float, *shape: int) -> torch.Tensor:
        return variance**0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    return (
        60
        + normal(true.seeds, seeds, 1, 1)
        + normal(true.folds, seeds, folds, 1)
        + normal(true.initializations, 1, 1, begun)
        + normal(true.rest, seeds, folds, begun)
    )


@pytest.mark.parametrize(
    "true", [Noise(4.0, 90.0, 1.0, 20.0), Noise(0.0, 10.0, 5.0, 1.0), Noise(9.0, 0.0, 0.0, 4.0)]
)
def test_simulated_variances_are_found_again(true):
    found = [decompose(simulated(true, 40, 10, 40, seed)) for seed in range(20)]
    for part in Noise._fields:
        mean = sum(getattr(each, part) for each in found) / len(found)
        assert mean == pytest.approx(getattr(true, part), rel=0.15, abs=0.25), part


def test_the_error_is_that_of_simulated_means():
    true = Noise(2.0, 60.0, 3.0, 10.0)
    shared = torch.stack([simulated(true, 5, 10, 1, seed).mean() for seed in range(2000)])
    assert float(shared.std()) == pytest.approx(true.error(5, 10), rel=0.06)


def test_one_initialization_never_averages_out():
    noise = Noise(0.0, 50.0, 1.0, 0.0)
    assert noise.error(10**4, 10) == pytest.approx(1.0, abs=0.01)
    assert noise.error(10**4, 10, initializations=10**5) < 0.03


@pytest.mark.parametrize("shape", [(5, 10), (1, 10, 5), (5, 10, 1)])
def test_too_few_of_anything_is_refused(shape):
    with pytest.raises(ValueError, match="at least 2 seeds, 2 folds and 2 initializations"):
        decompose(torch.zeros(shape))


def test_networks_of_an_animal_are_laid_out_by_seed_fold_and_initialization(monkeypatch):
    def train(animal, seeds, folds, models, training):
        return [
            {
                "folds": [
                    [100 * seed + 10 * fold + model.begin for fold in range(folds)]
                    for seed in seeds
                ]
            }
            for model in models
        ]

    monkeypatch.setattr(noise_of, "train_on_benchmark", train)
    areas = noise_of.on_animal("fox", "softmax", seeds=[0, 1], folds=3, initializations=[0, 4])
    assert areas.shape == (2, 3, 2)
    assert float(areas[1, 2, 1]) == 124
    (line,) = noise_of._lines("fox", ["softmax"])
    found = json.loads(line)
    assert (found["animal"], found["method"]) == ("fox", "softmax")
    assert found["mean"] == pytest.approx(247)  # seeds 0 to 4, folds 0 to 9, initializations 0 to 4
    assert found["error"] <= found["error_of_one_initialization"]
