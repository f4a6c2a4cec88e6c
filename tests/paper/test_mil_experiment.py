"""Table 2 on small settings: protocol, claims, resuming, sharing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import scipy.stats
import torch

from hopfy import paper
from hopfy.paper import reproduce
from hopfy.paper._published import MIL as PUBLISHED
from hopfy.paper._store import Store
from hopfy.paper.data import digits
from hopfy.paper.mil import MIL, MILConfig
from hopfy.paper.mil import _factors as factors
from hopfy.paper.mil._benchmarks import stack_of
from hopfy.paper.mil._claims import claims, comparison, mcnemar
from hopfy.paper.mil._digits import LENGTHS, DigitTask, bags_of
from hopfy.paper.mil._networks import METHODS, BagModel
from hopfy.paper.mil._stacked_training import StackedSettings
from hopfy.paper.mil._text import explanation
from hopfy.paper.mil._work import Work

QUICK = MIL.profiles["quick"]
GRID = replace(QUICK.digits, size=(16,), epochs=2)
TINY = replace(
    QUICK,
    least=(2,),
    methods=("softmax", "2-subsets", "mean"),
    bags=40,
    held_out=20,
    digits=replace(GRID, lr=(3e-3, 1e-9), beta=(0.25, 1.0)),
)


class TinyMIL(MIL):
    profiles = {"quick": TINY}  # noqa: RUF012


class FewerSeeds(MIL):
    profiles = {"quick": replace(TINY, seeds=1)}  # noqa: RUF012


def test_a_tiny_run_chooses_by_validation_and_resumes(tmp_path, monkeypatch):
    run = reproduce(TinyMIL(), tmp_path)
    cells = {cell["method"]: cell for cell in run.results["cells"]}
    assert list(cells) == ["softmax", "2-subsets", "mean"]
    assert [cells[name]["tried"] for name in cells] == [4, 4, 2]  # beta means nothing to the mean
    for cell in cells.values():
        assert len(cell["test"]) == len(cell["right"]) == 2
        for score, right in zip(cell["test"], cell["right"], strict=True):
            assert score == pytest.approx(100 * right.count("1") / 20)
    parts = [json.loads(path.read_text()) for path in (tmp_path / "mil" / "parts").glob("*.json")]
    tried = next(p["result"] for p in parts if p["part"] == "K=2 softmax run 0")
    assert cells["softmax"]["validation"][0] == max(one["validation"][0] for one in tried)

    def never(*_: object) -> None:
        raise AssertionError("this was computed before")

    monkeypatch.setattr("hopfy.paper.mil._work.train_on_digits", never)
    assert reproduce(TinyMIL(), tmp_path).results == run.results
    for path in (tmp_path / "mil" / "parts").glob("*.json"):
        path.unlink()
    assert reproduce(TinyMIL(), tmp_path).results == run.results  # from the journal
    fewer = reproduce(FewerSeeds(), tmp_path).results
    assert [cell["test"] for cell in fewer["cells"]] == [
        cell["test"][:1] for cell in run.results["cells"]
    ]


def test_the_time_left_is_judged_by_what_a_point_costs(tmp_path):
    """A step takes as long as it has parameters; four seeds take four times as long as one."""
    profile = replace(MIL.profiles["animals"], methods=("softmax",), animals=("fox",))
    work = Work(profile, "", Store(tmp_path))
    (cell,) = work.cells
    points = profile.benchmarks.points("softmax")
    costs = [profile.benchmarks.cost(point) for point in points]
    assert work.size(cell, 0) == len(points) == 96
    assert work.cost(cell, 0) == pytest.approx(sum(costs))
    assert work.cost(cell, 1) == pytest.approx(4 * sum(costs) / 96)
    small, large = ({**points[0], "size": size, "head_size": 2 * size} for size in (32, 128))
    assert profile.benchmarks.cost(large) > 4 * profile.benchmarks.cost(small)
    one = replace(profile.benchmarks, batch_size=1)
    assert one.cost(points[0]) == 16 * profile.benchmarks.cost(points[0])


def test_what_is_finished_so_far_can_be_seen(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="at least one finished cell"):
        reproduce(TinyMIL(), tmp_path, so_far=True)
    whole = reproduce(FewerSeeds(), tmp_path)

    def never(*_: object) -> None:
        raise AssertionError("nothing may be computed")

    monkeypatch.setattr("hopfy.paper.mil._work.train_on_digits", never)
    partial = reproduce(TinyMIL(), tmp_path, so_far=True)
    assert partial.results["cells"] == whole.results["cells"]
    assert partial.rows[0].name == "K=2, softmax (1 seed)"
    assert (partial.folder / "mil.png").is_file()
    with pytest.raises(ValueError, match="partial results, got theory"):
        reproduce(paper.load("theory"), tmp_path, so_far=True)


def test_workers_find_the_same(tmp_path):
    alone = reproduce(TinyMIL(), tmp_path / "alone").results
    together = reproduce(TinyMIL(), tmp_path / "together", workers=2).results
    for one, other in zip(alone["cells"], together["cells"], strict=True):
        assert one["test"] == other["test"]
        assert one["settings"] == other["settings"]


def test_workers_are_for_experiments_that_can_share(tmp_path):
    with pytest.raises(ValueError, match="expected 1 worker for table1, got 2"):
        reproduce(paper.load("table1"), tmp_path, workers=2)
    with pytest.raises(ValueError, match="at least 1 worker, got 0"):
        reproduce(TinyMIL(), tmp_path, workers=0)


def test_no_image_is_in_two_of_the_three_sets_of_bags():
    bags = bags_of(DigitTask("digits", 3, 40, 20, seed=1))
    images = {name: each.batch(range(len(each)))["instances"] for name, each in bags.items()}
    seen = {name: {row.numpy().tobytes() for row in each} for name, each in images.items()}
    whole = {image.numpy().tobytes() for image in digits().images}
    assert len(whole) == len(digits().images)  # no image comes twice in the data itself
    assert not seen["training"] & seen["validation"]
    assert not seen["training"] & seen["test"]
    assert not seen["validation"] & seen["test"]


def test_seeds_have_bags_of_their_own():
    one, other = (bags_of(DigitTask("digits", 3, 40, 20, seed=seed))["test"] for seed in (0, 1))
    assert not torch.equal(one.batch([0])["instances"], other.batch([0])["instances"])


def test_the_paper_profile_is_the_papers_grid():
    paper = MIL.profiles["paper"]
    assert paper == MILConfig()
    assert len(paper.digits.points("softmax")) == 192
    assert len(paper.benchmarks.points("5-normmax")) == 96
    assert len(paper.digits.points("gated")) == 8
    assert len(paper.digits.points("mean")) == 4
    assert (paper.seeds, paper.animal_seeds, paper.folds) == (5, 5, 10)
    assert (paper.bags, paper.held_out) == (2000, 500)
    assert set(paper.least) == set(LENGTHS)


def test_a_point_becomes_a_network():
    benchmarks, of_digits = MIL.profiles["paper"].benchmarks, MIL.profiles["paper"].digits
    point = benchmarks.points("3-subsets")[-1]
    network = benchmarks.model("3-subsets", point).network((230,))
    hopfield = network.pooling.hopfield
    assert hopfield.heads == 12
    assert hopfield.association.beta == 10.0
    assert hopfield.association.dropout == 0.75
    norm, memories_in = hopfield.memories_in
    assert norm.normalized_shape == (128,)
    assert memories_in.weight.shape == (12 * 64, 128)
    cnn = of_digits.model("softmax", of_digits.points("softmax")[0]).network((28, 28))
    kernels = [tuple(p.shape) for p in cnn.embedding.parameters() if p.ndim == 4]
    assert kernels == [(20, 1, 5, 5), (50, 20, 5, 5)]
    assert cnn.head.weight.shape == (1, 500)


@pytest.mark.parametrize("pairs", [(5, 0), (9, 2), (3, 3), (0, 0), (1, 12)])
def test_mcnemar_is_the_exact_binomial_test(pairs):
    wins, losses = pairs
    one = {"right": ["1" * wins + "0" * losses, "1101"]}
    other = {"right": ["0" * wins + "1" * losses, "1101"]}
    total = wins + losses
    expected = scipy.stats.binomtest(wins, total).pvalue if total else 1.0
    assert mcnemar(one, other) == pytest.approx(expected)
    assert mcnemar(one, other) == mcnemar(other, one)


def results(source: str = "mnist", **right: str) -> dict:
    cells = [
        {
            "task": "K=3",
            "method": name,
            "right": [bits],
            "test": [100 * bits.count("1") / len(bits)],
        }
        for name, bits in right.items()
    ]
    return {"source": source, "tasks": ["K=3"], "cells": cells}


def test_claims_hold_or_do_not():
    good, bad = "1" * 95 + "0" * 5, "1" * 70 + "0" * 30
    holds = claims(results(**{"softmax": bad, "3-subsets": good, "5-normmax": bad}))
    assert [row.ours for row in holds] == [1.0, 1.0]
    assert [row.agrees for row in holds] == [True, True]
    fails = claims(results(**{"softmax": good, "3-subsets": bad, "5-normmax": bad}))
    assert [row.ours for row in fails] == [0.0, 0.0]
    assert [row.agrees for row in fails] == [False, False]
    tied = claims(results(**{"softmax": good, "3-subsets": good[:-1] + "0", "5-normmax": bad}))
    assert [row.ours for row in tied] == [0.0, 0.0]
    elsewhere = claims(results("digits", **{"softmax": good, "3-subsets": bad}))
    assert [row.agrees for row in elsewhere] == [None, None]


def test_numbers_are_judged_beside_the_papers():
    row, baseline = comparison(results(softmax="1" * 90 + "0" * 10, mean="1" * 100))
    assert (row.ours, row.paper, row.tol, row.agrees) == (90.0, 91.1, 2.0, True)
    assert "paper ± 0.5" in row.name
    assert baseline.paper is None
    assert comparison(results("digits", softmax="10"))[0].paper is None


def test_the_report_counts_what_differs():
    higher = results(softmax="1" * 95 + "0" * 5)
    assert "1 are higher than the paper's and 0 lower. The page docs/reproduce.md" in explanation(
        higher
    )
    fox = {"task": "fox", "method": "softmax", "right": [], "test": [60.0]}
    lower = {**higher, "tasks": ["fox"], "cells": [fox]}
    assert "0 are higher than the paper's and 1 lower" in explanation(lower)
    assert "0 of 1 means" in explanation(lower)


def test_every_published_method_is_here():
    assert METHODS[:8] == tuple(row.omega for row in PUBLISHED)
    assert all(len(row.cells) == 7 for row in PUBLISHED)


def test_results_are_named_by_what_they_depend_on(tmp_path):
    def names(**changes: object) -> list[str]:
        config = replace(MIL.profiles["laptop"], least=(3,), methods=("softmax",), **changes)
        work = Work(config, "data", Store(tmp_path / "parts"))
        return [work._name(cell, work._points(cell, 0)) for cell in work.cells]

    digits, fox, *_ = names()
    assert names(seeds=1) == [digits, fox, *_]
    assert names(standardize=True)[0] == digits
    assert names(standardize=True)[1] != fox
    assert names(digits=replace(MIL.profiles["laptop"].digits, normalize=True))[0] != digits


def test_every_factor_changes_one_setting(monkeypatch):
    seen = []

    def train(animal, seeds, folds, models, training, *, standardize):
        seen.append((*models, StackedSettings(**training), standardize))
        return [{"test": [50.0]}]

    monkeypatch.setattr(factors, "train_on_benchmark", train)
    for factor in factors.ANIMALS:
        assert factors.on_animal("fox", factor) == [50.0]
    assert len({str(each) for each in seen}) == len(factors.ANIMALS)
    laptop = MIL.profiles["laptop"]
    point = next(p for p in laptop.benchmarks.points("softmax") if p["beta"] == 1.0)
    training = StackedSettings(**laptop.benchmarks.training(point))
    assert seen[0] == (laptop.benchmarks.model("softmax", point), training, laptop.standardize)
    lines = list(factors._lines(["fox"]))
    assert lines[1] == "fox, no layer norms: 50.0 ± 0.0"


def test_the_reference_search_is_the_public_codes():
    public, paper = (MIL.profiles[name].benchmarks for name in ("reference-search", "paper"))
    assert len(public.points("softmax")) == 96
    point = public.points("3-subsets")[0]
    assert point["lr"] == 1e-3
    assert public.training(point)["batch_size"] == 1
    assert public.training(point)["choose"] == "last"
    assert public.training(point)["same_order"]
    assert public.model("3-subsets", point).public
    assert public.model("3-subsets", point).begin == 42
    assert not paper.model("3-subsets", point).public
    assert MIL.profiles["reference-code"].digits.normalize
    assert not MIL.profiles["laptop"].digits.normalize


def test_the_profiles_of_one_part_leave_the_other_out():
    for name in ("night", "laptop-search", "reference-code"):
        assert MIL.profiles[name].least
        assert not MIL.profiles[name].animals
    for name in ("animals", "reference-animals", "reference-search"):
        assert MIL.profiles[name].animals
        assert not MIL.profiles[name].least


def test_reference_animals_is_a_cut_of_the_reference_search():
    public, short = (
        MIL.profiles[name].benchmarks for name in ("reference-search", "reference-animals")
    )
    points = short.points("softmax")
    assert len(points) == 6
    assert all(point in public.points("softmax") for point in points)
    assert short.training(points[0]) == public.training(points[0])


@pytest.mark.parametrize(
    ("searching", "fixed", "runs"),
    [("night", "reference-code", 16), ("laptop-search", "laptop", 9)],
)
def test_a_search_on_digits_trains_like_its_profile(searching, fixed, runs):
    search, one = MIL.profiles[searching], MIL.profiles[fixed].digits
    tried = search.digits.points("3-subsets")
    assert len(tried) + search.seeds - 1 == runs
    (point,) = one.points("3-subsets")
    assert search.digits.training(tried[0]) == one.training(point)
    assert search.digits.normalize == one.normalize


def test_one_setting_is_changed_at_a_time():
    """From that of the laptop profile; each value of each axis is tried."""
    grid = MIL.profiles["laptop-search"].digits
    (own,) = MIL.profiles["laptop"].digits.points("softmax")
    tried = grid.points("softmax")
    changed = [{name: value for name, value in p.items() if value != own[name]} for p in tried]
    assert changed[0] == {}
    assert sorted(map(str, changed[1:])) == sorted(
        map(str, [{"heads": 16}, {"beta": 2.0}, {"beta": 8.0}, {"dropout": 0.75}])
    )
    assert len(replace(grid, one_at_a_time=False).points("softmax")) == 12


def test_the_public_networks_begin_alike_with_small_weights():
    model = BagModel("2-subsets", 8, heads=2, head_size=64, normalize=True, public=True, begin=42)
    one, other = (stack_of([model], (5,), [seed], 1).networks[0] for seed in (0, 3))
    for (name, mine), (_, theirs) in zip(
        one.named_parameters(), other.named_parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
        if name.startswith("pooling") and mine.ndim > 1 and mine.numel() > 100:
            assert float(mine.detach().std()) == pytest.approx(0.02, rel=0.2)
    assert isinstance(one.head[0], torch.nn.ReLU)


def test_the_digits_of_the_factors_are_those_of_the_laptop_profile(monkeypatch):
    seen = []

    def train(task, model, training):
        seen.append((model, training))
        return {"test": [90.0]}

    monkeypatch.setattr(factors, "train_on_digits", train)
    for factor in factors.DIGITS:
        factors.on_digits(factor)
    laptop = MIL.profiles["laptop"].digits
    point = laptop.points("softmax")[0]
    assert seen[0][0] == laptop.model("softmax", point)
    assert seen[0][1].items() <= laptop.training(point).items()
    assert [model.normalize for model, _ in seen] == [False, True, False, True]


def test_missing_animals_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFY_DATA", str(tmp_path))
    monkeypatch.setattr("hopfy.paper.data._files.cache_folder", lambda: tmp_path)
    from hopfy.paper import data

    with pytest.raises(data.MissingDataError, match="mil is missing its file fox"):
        data.mil_benchmark("fox")
