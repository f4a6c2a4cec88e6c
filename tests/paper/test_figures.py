"""The figures' experiments: they run, and the paper's points hold in their numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

pytest.importorskip("matplotlib")

from hopfy import paper, theory
from hopfy.paper import Quiet, Store, fig3
from hopfy.paper import theory as theory_experiment

SMALL = {
    "fig2": {"points": 40},
    "fig1": {},
    "fig3": {"sets": 2, "drawn": 1, "points": 10},
    "theory": {
        "patterns": 40,
        "trials": 1,
        "betas": (1.0, 3.0, 8.0),
        "counts": (10, 40),
        "noises": (0.0, 0.3, 0.9),
        "dimensions": (4, 12),
        "draws": 30,
    },
}


@pytest.fixture(scope="module", params=list(SMALL))
def run(request, tmp_path_factory):
    experiment = paper.load(request.param)
    small = replace(experiment.profiles["quick"], **SMALL[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    results = experiment.run(small, Store(folder / "parts"), Quiet())
    return experiment, results, folder


def test_every_comparable_number_agrees(run):
    experiment, results, _ = run
    rows = experiment.compare(results)
    assert any(row.agrees is not None for row in rows)
    assert [row for row in rows if row.agrees is False] == []


def test_every_figure_is_written_twice_and_explained(run):
    experiment, results, folder = run
    figures = experiment.draw(results, folder)
    assert figures
    for figure in figures:
        assert (folder / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / f"{figure.name}.svg").read_text()
        assert len(figure.caption) > 60
    assert len(experiment.explain(results)) > 60


def test_a_second_run_reads_what_the_first_one_finished(run):
    experiment, results, folder = run
    small = replace(experiment.profiles["quick"], **SMALL[experiment.name])
    store = Store(folder / "parts")
    assert experiment.run(small, store, Quiet()) == results
    assert store.computed == 0


def test_fig2_flags_a_path_that_leaves_the_prediction():
    experiment = paper.load("fig2")
    small = replace(experiment.profiles["quick"], points=5)
    checks = {"exact_up_to": {}, "deviations": {"wrong": 1e-3}}
    from hopfy.paper.fig2 import EXACT_UP_TO

    checks["exact_up_to"] = {name: value * 1.01 for name, value in EXACT_UP_TO.items()}
    assert small.points == 5
    assert not any(row.agrees for row in experiment.compare({"checks": checks}))


def test_fig3_makes_the_papers_points():
    config = replace(paper.load("fig3").profiles["quick"], sets=4, points=16)
    single = [
        fig3._measure(config, name, 10.0)["single_percent"]
        for name in ("1-entmax", "1.5-entmax", "2-entmax")
    ]
    assert single == sorted(single)
    assert single[2] > single[0]
    even = {name: fig3._measure(config, name, 1.0) for name in ("1.5-entmax", "5-normmax")}
    assert even["5-normmax"]["evenness"] > 0.99
    assert even["1.5-entmax"]["evenness"] < 0.95
    assert max(part["largest_rise"] for part in even.values()) < 1e-12


def test_evenness_is_one_for_uniform_averages_only():
    weights = torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.9, 0.1, 0.0]]).double()
    even, size = fig3._evenness(weights)
    assert torch.allclose(even[:2], torch.ones(2).double(), atol=1e-6)
    assert float(even[2]) == pytest.approx(math.exp(0.325083) / 2, abs=1e-5)
    assert size.tolist() == [2, 3, 2]


def test_patterns_that_come_until_two_are_too_close():
    dimension, draw = 6, 3
    count = theory_experiment._until_too_close(dimension, 0, draw)
    stream = theory_experiment._sphere(256, dimension, 0, draw, dimension, 0)
    beta = 1 / theory_experiment.LEAD
    assert bool(theory.is_stationary(stream[:count], "sparsemax", beta).all())
    assert not bool(theory.is_stationary(stream[: count + 1], "sparsemax", beta).all())


def test_fig3_shows_the_papers_own_patterns():
    """Sets 0, 3, 8 and 9 of those drawn one after the other after torch.manual_seed(42)."""
    torch.manual_seed(42)
    sets = [torch.nn.functional.normalize(torch.randn(5, 2).double(), dim=-1) for _ in range(10)]
    for number, place in enumerate((0, 3, 8, 9)):
        assert torch.equal(fig3._patterns(number, seed=5), sets[place])
    assert fig3._patterns(4, 0).shape == (3, 2)
    assert not torch.equal(fig3._patterns(5, 0), fig3._patterns(5, 1))
