"""The recall experiments: their curves against plain loops, their pictures, their resumption."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hopfy import paper
from hopfy.paper import Store
from hopfy.paper._base import Quiet
from hopfy.paper.recall import _setting
from hopfy.paper.recall._setting import OMEGAS, STATES, Pair, pairs

pytest.importorskip("sklearn")
NAMES = ("capacity", "robustness", "free-recall", "sequential-recall")
SMALL = {
    "capacity": {"sizes": (4, 32), "queries": 4, "betas": (1.0, 0.1)},
    "robustness": {"stored": 16, "noises": (0.0, 3.0)},
    "free-recall": {"stored": 8, "cues": 1},
    "sequential-recall": {"stored": 6},
}


@pytest.fixture(scope="module", params=NAMES)
def run(request, tmp_path_factory):
    experiment = paper.load(request.param)
    small = replace(experiment.profiles["demo"], **SMALL[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    results = experiment.run(small, Store(folder / "parts"), Quiet())
    return experiment, small, results, folder


def test_figures_and_words(run):
    experiment, _, results, folder = run
    for figure in experiment.draw(results, folder):
        assert (folder / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
        assert len(figure.caption) > 60
    assert len(experiment.explain(results)) > 100
    rows = experiment.compare(results)
    assert rows
    assert all(row.ours >= 0 for row in rows)


def test_a_second_run_reads_what_the_first_one_finished(run):
    experiment, small, results, folder = run
    store = Store(folder / "parts")
    assert experiment.run(small, store, Quiet()) == results
    assert store.computed == 0


def test_every_pair_that_makes_sense_is_there():
    found = pairs((1.0, 0.1))
    assert {pair.omega for pair in found} == set(OMEGAS)
    assert {pair.state for pair in found} == set(STATES)
    unbounded = OMEGAS[:4]
    assert not [p for p in found if p.state == "euclidean" and p.omega in unbounded]
    assert len(found) == 2 * 5 + 9 + 2 * 9 + 2 * 9


def test_a_share_is_what_a_plain_loop_counts():
    """Five updates of softmax and of the dense network, written out."""
    config = paper.load("capacity").profiles["quick"]
    images = _setting.draw("digits", 40, 7)
    queries = images[:10].clone()
    queries[:, 32:] = 0.0
    beta = 0.1 * 784 / 64
    state = queries.clone()
    for _ in range(5):
        state = torch.softmax(beta * state @ images.T, -1) @ images
    good = (torch.cosine_similarity(state, images[:10], dim=-1) > 0.9).double().mean()
    assert _setting.recalled(Pair("softmax", "euclidean", 0.1), images, queries, config) == good
    unit = torch.nn.functional.normalize
    memories, state = unit(images, dim=-1).double(), unit(queries, dim=-1).double()
    for _ in range(5):
        state = unit((20 * state @ memories.T).pow(5) @ memories, dim=-1)
    good = (torch.cosine_similarity(state, memories[:10], dim=-1) > 0.9).double().mean()
    assert _setting.recalled(Pair("5-polynomial", "ball", 20.0), images, queries, config) == good


def test_draws_differ_and_repeat():
    one, two = _setting.draw("digits", 5, 1), _setting.draw("digits", 5, 2)
    assert not torch.equal(one, two)
    assert torch.equal(one, _setting.draw("digits", 5, 1))
    assert one.min() >= -1
    assert one.max() <= 1
