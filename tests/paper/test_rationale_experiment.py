"""``hopfy reproduce rationale``: runs, resumes, compares and draws, with made texts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from hopfy import paper
from hopfy.estimators import ExponentialDecay, Text, Training
from hopfy.paper import rationale
from hopfy.paper._base import Quiet, Store
from hopfy.paper.data import Texts
from hopfy.paper.rationale import RationaleConfig, _texts, _training, experiment
from hopfy.paper.rationale._figures import window
from hopfy.paper.rationale._task import METHODS, OURS, Task

TINY = Task(
    "planted", 0.15, 0.1, hidden=8, lr=1e-2, epochs=3, training=120, test=40, judged=10, seeds=1
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rationale")
    small = RationaleConfig(tasks=(TINY,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rationale.Rationale, "profiles", {"quick": small, "paper": small})
        return paper.reproduce(experiment, folder)


def test_every_method_is_measured(run):
    cells = run.results["cells"]["planted"]
    assert list(cells) == list(METHODS)
    for method, (cell,) in cells.items():
        assert 0 <= cell["score"] <= 1
        assert cell["texts"] == [120, 100, 40]
        assert len(cell["history"]) == cell["epochs"] <= 3
        assert ("overlap" in cell) is (method != "BiLSTM")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_measured_where_labels_are_numbers(method, monkeypatch):
    known = _texts.load(TINY, 0)
    parts = (known.training, known.validation, known.test)
    numbers = [replace(part, labels=0.2 + 0.5 * part.labels.float()) for part in parts]
    monkeypatch.setattr(_training, "load", lambda *_: _texts.Corpus(*numbers))
    found = _training.measure(method, replace(TINY, epochs=1), 0)
    assert 0 <= found["score"] < 1
    for kind in ("selected", "span", "sufficiency", "comprehensiveness"):
        assert (kind in found) is (method != "BiLSTM")


def test_words_per_second_are_known(run):
    (cell,) = run.results["cells"]["planted"]["softmax"]
    words = sum(len(text) for text in _texts.load(TINY, 0).training.texts)
    spent = sum(epoch["dur"] for epoch in cell["history"])
    assert cell["words_per_second"] == pytest.approx(words * cell["epochs"] / spent)


@pytest.mark.parametrize("method", OURS)
def test_the_public_code_adds_what_it_selects(method):
    """Twice the weights are twice the pooled vector before the last projection's bias."""
    torch.manual_seed(0)
    task = replace(TINY, as_reference_code=True, min_epochs=2, epochs=2, patience=1)
    estimator = _training.fitted(method, task, _texts.load(task, 0), 0)
    pooling = estimator.network_.pooling.pooling.eval()
    assert len(estimator.history_) == 2
    x, mask = torch.randn(2, 20, 16), torch.ones(2, 20, dtype=torch.bool)
    pooled, weights = pooling(x, mask=mask, need_weights=True)
    layer = pooling.hopfield
    torch.testing.assert_close(weights.sum(-1).flatten(), torch.tensor([3.0, 3.0]))
    expected = layer.out((weights @ layer.values_in(x).unsqueeze(1)).flatten(1))
    torch.testing.assert_close(pooled, expected)


def test_budgets_are_kept(run):
    """Round 0.15 of 10 to 21 words is 2 or 3 of them."""
    cells = run.results["cells"]["planted"]
    for method in (*OURS, "SPECTRA", "softmax"):
        assert 0.13 <= cells[method][0]["selected"] <= 0.2
    assert run.results["cells"]["planted"]["softmax"][0]["fractional"] == 1.0


def test_the_page_has_rows_pictures_and_a_sentence(run):
    assert [figure.name for figure in run.figures] == ["scores", "highlights"]
    for figure in run.figures:
        assert (run.folder / f"{figure.name}.png").stat().st_size > 1000
    names = [row.name for row in run.rows]
    assert "Written sentences, sequential k-subsets: F1" in names
    assert "Written sentences, k-subsets: words in a span" in names
    assert len(names) == len(set(names))
    assert "written for this page" in experiment.explain(run.results)
    json.dumps(run.results)


def test_a_part_depends_on_its_own_task_only(tmp_path, monkeypatch):
    calls = []

    def count(method: str, task: Task, seed: int) -> dict[str, object]:
        calls.append((task.share, method, seed))
        return {"score": 1.0}

    monkeypatch.setattr(_training, "measure", count)
    one, two = replace(TINY, methods=OURS), replace(TINY, share=0.3, methods=("BiLSTM",))

    def go(*tasks: Task) -> Store:
        store = Store(tmp_path, {"config": [str(task) for task in tasks], "hopfy": "1"})
        experiment.run(RationaleConfig(tasks=tasks), store, Quiet())
        return store

    assert go(one).computed == 2
    assert go(one, two).computed == 1
    assert go(*(replace(task, seeds=2) for task in (two, one))).computed == 3
    more = replace(one, methods=(*OURS, "softmax"))
    assert go(more).computed == 1
    assert len(calls) == 7
    store = Store(tmp_path, {"hopfy": "1"})
    whole = replace(more, methods=METHODS)
    found = experiment.so_far(RationaleConfig(tasks=(whole, two)), store)["cells"]["planted"]
    assert list(found) == [*OURS, "softmax", "BiLSTM"]
    assert len(calls) == 7
    with pytest.raises(ValueError, match="got none yet"):
        experiment.so_far(RationaleConfig(tasks=(replace(TINY, share=0.5),)), store)


class Told:
    """Keeps what a run tells about its progress."""

    def begin(self, _: str, total: float, cost: float | None = None) -> None:
        self.total, self.cost, self.steps = total, cost, []

    def advance(self, amount: float = 1.0, cost: float | None = None) -> None:
        self.steps.append((amount, cost))


def test_finished_cells_are_shown_at_once_and_long_ones_cost_more(tmp_path, monkeypatch):
    order = []

    def measure(method: str, task: Task, seed: int) -> dict[str, object]:
        order.append((task.hidden, method, seed))
        return {"score": float(seed)}

    monkeypatch.setattr(_training, "measure", measure)
    small = replace(TINY, methods=("SPECTRA", "softmax"), seeds=2)
    large = replace(small, hidden=200)
    store = Store(tmp_path, {"hopfy": "1"})
    experiment.run(RationaleConfig(tasks=(large,)), store, Quiet())
    assert len(order) == 4
    told = Told()
    found = experiment.run(RationaleConfig(tasks=(small, large)), store, told)
    assert len(order) == 8
    assert told.total == sum(amount for amount, _ in told.steps) == 8
    costs = [cost for _, cost in told.steps]
    assert told.cost == pytest.approx(sum(costs))
    assert min(costs[:4]) > max(costs[4:])  # the large networks, finished before
    assert costs[2] < costs[0] < 2 * costs[2]  # SPECTRA has two LSTMs, and the rest of a step once
    assert [run["score"] for run in found["cells"]["planted"]["softmax"]] == [0, 1, 0, 1]


def test_quick_falls_back_on_made_texts(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFY_DATA", str(tmp_path))
    monkeypatch.setattr("hopfy.paper.data._files.cache_folder", lambda: tmp_path)
    assert [task.data for task in rationale._tasks(experiment.profiles["quick"])] == ["planted"]
    assert [task.data for task in rationale._tasks(experiment.profiles["demo"])] == ["planted"]
    assert len(rationale._tasks(experiment.profiles["paper"])) == 5


def test_the_paper_profile_has_the_papers_settings():
    tasks = {task.data: task for task in experiment.profiles["paper"].tasks}
    assert {name: task.share for name, task in tasks.items() if name != "eraser_movies"} == {
        "sst": 0.2, "ag_news": 0.2, "imdb": 0.1, "beer": 0.1,
    }  # fmt: skip
    assert tasks["sst"].temperature == 0.1
    assert {tasks[name].temperature for name in ("ag_news", "imdb", "beer")} == {0.05}
    assert {task.hidden for task in tasks.values()} == {200}
    assert {task.lr for task in tasks.values()} == {1e-4}
    assert {task.seeds for task in tasks.values()} == {5}
    whole = {name: task.methods for name, task in tasks.items() if name != "eraser_movies"}
    assert set(whole.values()) == {METHODS}


def test_the_public_code_on_the_laptop_has_fewer_texts_and_the_same_training():
    whole = experiment.profiles["reference-code"].tasks
    small = experiment.profiles["reference-laptop"].tasks
    laptop = {task.data: task for task in experiment.profiles["laptop"].tasks}
    for full, task in zip(whole, small, strict=True):
        same = ("data", "share", "temperature", "dropout", "hidden", "lr", "min_epochs", "epochs")
        assert [getattr(task, name) for name in same] == [getattr(full, name) for name in same]
        texts = ("vectors", "training", "test", "longest")
        known = laptop[task.data]
        assert [getattr(task, name) for name in texts] == [getattr(known, name) for name in texts]
        assert task.as_reference_code
        assert task.seeds == 1
        assert task.own_network is (task.data == "beer")


def test_numbers_are_compared_with_the_papers():
    cells = {"sst": {"k-subsets": [{"score": 0.79}, {"score": 0.81}]},
             "beer": {"SPECTRA": [{"score": 0.02}], "BiLSTM": [{"score": 0.01}]}}  # fmt: skip
    rows = {row.name: row for row in experiment.compare({"cells": cells})}
    assert rows["SST, k-subsets: F1"].ours == pytest.approx(0.8)
    assert rows["SST, k-subsets: F1"].paper == 0.81
    assert rows["Beer, SPECTRA: mean squared error"].paper == 0.017
    assert rows["Beer, BiLSTM: mean squared error"].paper is None


def test_long_texts_keep_their_last_words_and_marks():
    whole = _texts.Part(
        [Text(tuple("abcdef")), Text(("x",))], torch.tensor([0, 1]), [[(0, 1), (1, 4), (5, 6)], []]
    )
    cut = whole.last_words(4)
    assert [text.tokens for text in cut.texts] == [tuple("cdef"), ("x",)]
    assert cut.spans == [[(0, 2), (3, 4)], []]
    assert whole.last_words(0) is whole


def test_beer_has_one_test_set_for_all_seeds(monkeypatch):
    made = Texts([[f"w{n}"] for n in range(50)], torch.arange(50) / 50)
    monkeypatch.setattr("hopfy.paper.data.beer", lambda: made)
    splits = [_texts._beer(seed) for seed in (0, 1)]
    tests = [[text.tokens for text in split[2].texts] for split in splits]
    assert tests[0] == tests[1] == [(f"w{n}",) for n in range(5)]
    for split in splits:
        words = [text.tokens[0] for part in split for text in part.texts]
        assert sorted(words) == sorted(f"w{n}" for n in range(50))


def test_a_regressor_is_trained_on_numbers(monkeypatch):
    def numbers(seed: int):
        return tuple(
            replace(part, labels=0.2 + 0.6 * part.labels) for part in _texts._planted(seed)
        )

    monkeypatch.setitem(_texts._SOURCES, "planted", numbers)
    _texts.load.cache_clear()
    task = replace(TINY, training=400, epochs=8)
    cell = _training.measure("k-subsets", task, 0)
    _texts.load.cache_clear()
    assert cell["score"] < 0.03  # the variance of the labels is 0.09
    assert cell["comprehensiveness"] > cell["sufficiency"]


@pytest.mark.parametrize("as_reference_code", [False, True])
def test_sequential_k_subsets_can_read_the_network_of_k_subsets(as_reference_code):
    task = replace(
        TINY,
        training=200,
        epochs=3,
        test_transition=100.0,
        own_network=False,
        as_reference_code=as_reference_code,
    )
    cell = _training.measure("k-subsets", task, 0)
    (other, read), *rest = cell.pop("also").items()
    assert (other, rest) == ("sequential k-subsets", [])
    assert read["history"] == cell["history"]  # one network
    assert read["span"] > cell["span"]
    assert read["selected"] == pytest.approx(cell["selected"], abs=0.02)
    assert "also" not in _training.measure("k-subsets", replace(task, own_network=True), 0)


def test_the_transition_at_test_time_is_in_units_of_the_raw_scores():
    """It changes what a trained network selects, toward longer spans, and not its training."""
    task = replace(TINY, training=200, epochs=3, own_network=True)
    found = [
        _training.measure("sequential k-subsets", replace(task, test_transition=each), 0)
        for each in (0.0, 100.0)
    ]
    losses = [[epoch["train_loss"] for epoch in each["history"]] for each in found]
    assert losses[0] == losses[1]
    assert found[1]["span"] > found[0]["span"]
    assert found[1]["selected"] == pytest.approx(found[0]["selected"], abs=0.02)
    for profile in ("laptop", "paper"):
        for task in rationale.Rationale.profiles[profile].tasks:
            assert task.test_transition == 1.0


def test_the_window_shows_what_people_marked():
    example = {"tokens": ["w"] * 50, "human": [[3, 5], [30, 39]], "selected": []}
    start = window(example, 12)
    assert start <= 30
    assert start + 12 >= 39
    assert window({**example, "tokens": ["w"] * 5, "human": [[0, 1]]}, 12) == 0


def test_texts_drawn_are_the_same_for_a_seed():
    raw = _texts._planted(0)[0]
    same = [raw.draw(10, 3).texts for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != raw.draw(10, 4).texts
    assert np.array_equal(raw.draw(0, 3).labels, raw.labels)


TOOK = {
    ("sst", "softmax"): 14, ("sst", "SFE, contiguous"): 22, ("beer", "sparsemax"): 21,
    ("beer", "HardKuma"): 39, ("eraser_movies", "sparsemax"): 39, ("eraser_movies", "SPECTRA"): 66,
    ("ag_news", "sequential k-subsets"): 18,
}  # fmt: skip
"""Seconds of processor time of cells of the laptop profile, of one run on a busy machine."""


def test_costs_are_near_what_cells_took(tmp_path):
    tasks = {task.data: task for task in experiment.profiles["laptop"].tasks}
    ratios = []
    for (data, method), seconds in TOOK.items():
        cell = rationale._Cell(tasks[data], method, 0, Store(tmp_path))
        ratios.append(seconds / cell.cost)
    assert max(ratios) < 1.5 * min(ratios), ratios


def test_vectors_come_side_by_side(tmp_path, monkeypatch):
    """The file of one source, the other one by name, in the order of the task."""
    file = tmp_path / "vectors.txt"
    file.write_text("film 1 2\nthe 3 4\n", encoding="utf-8")
    monkeypatch.setattr(_training.data, "glove_100d", lambda: file)
    first, second = _training._side_by_side("glove_100d+glove", ("film", "zzz"))
    assert list(first.words) == ["film"]
    assert second == "glove"
    assert _training._side_by_side("glove", ("film",)) == "glove"


def test_the_learning_rate_decays_if_the_task_says_so():
    corpus = _texts.load(TINY, 0)
    steady, falling = (
        _training.estimator_of("BiLSTM", replace(TINY, decay=decay), corpus, 0).training.schedule
        for decay in (0.0, 0.5)
    )
    assert steady == Training().schedule
    assert falling == ExponentialDecay(0.5)


def test_a_record_keeps_what_a_later_run_lacks():
    """Other data always, other methods if the settings are the same."""
    sst, imdb = (
        {"data": "sst", "share": 0.2},
        {"data": "imdb", "share": 0.1, "methods": ["softmax"]},
    )
    old = {
        "tasks": [sst, imdb],
        "cells": {"sst": {"softmax": [1]}, "imdb": {"softmax": [2], "BiLSTM": [3]}},
    }
    later = {**imdb, "methods": ["SPECTRA"], "decay": Task("", 0).decay}
    found = experiment.merged(old, {"tasks": [later], "cells": {"imdb": {"SPECTRA": [4]}}})
    assert found["tasks"] == [sst, later]
    assert found["cells"]["sst"] == {"softmax": [1]}
    every = {"SPECTRA": [4], "softmax": [2], "BiLSTM": [3]}
    assert list(found["cells"]["imdb"].items()) == list(every.items())
    other = {"tasks": [{**imdb, "lr": 2.0}], "cells": {"imdb": {"softmax": [5]}}}
    assert experiment.merged(old, other)["cells"] == {"sst": {"softmax": [1]}, **other["cells"]}
