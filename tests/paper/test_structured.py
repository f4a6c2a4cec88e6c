"""Trials of training with the sequence structure: what is varied, and what judges them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hopfy import functional as F
from hopfy.estimators import Text
from hopfy.estimators.networks import ShareOfWords, Temperature
from hopfy.paper.rationale import _structured
from hopfy.paper.rationale._structured import (
    TRIALS,
    GrowingTransition,
    Trial,
    as_markdown,
    facts_about,
    try_out,
)
from hopfy.paper.rationale._task import Task

DOCS = Path(__file__).parents[2] / "docs"
TINY = Task("planted", 0.15, hidden=8, lr=1e-2, epochs=2, patience=2, training=60, methods=())


def test_the_transition_grows_while_training_and_stays_afterward():
    beta = Temperature(0.5, 0.1)
    select = GrowingTransition(0.25, beta, final=2.0, steps=4)
    scores, mask = torch.randn(2, 1, 1, 12), torch.ones(2, 1, 1, 12, dtype=torch.bool)
    for step in range(1, 7):
        weights = select(scores, mask)
        grown = 2.0 * min(1.0, step / 4)
        k = torch.full((2, 1, 1), 3.0)
        expected = F.sequential_ksubsets(scores, k, grown / 0.5, mask=mask)
        torch.testing.assert_close(weights, expected)
    select.eval()
    torch.testing.assert_close(
        select(scores, mask), F.sequential_ksubsets(scores, k, 2.0 / 0.1, mask=mask)
    )
    assert select.taken == 6


@pytest.mark.parametrize(
    "trial", [Trial("k-subsets"), TRIALS[4], replace(TRIALS[5], normalized=True)]
)
def test_a_trial_is_judged_on_validation_texts_by_the_transition_at_test_time(trial, monkeypatch):
    parts = []
    judge = _structured._judged
    monkeypatch.setattr(
        _structured, "_judged", lambda model, part: parts.append(part) or judge(model, part)
    )
    found = try_out(trial, TINY)
    assert list(found["at_test"]) == ["its own", "0", "1", "4"]
    validation = _structured.load(TINY, 0).validation
    assert [part.texts for part in parts] == [validation.texts] * 4
    assert set(found["facts"]) >= {"deviation", "ranking", "stuck"}
    for judged in found["at_test"].values():
        assert 0 <= judged["overlap"] <= 1
    assert found["at_test"]["4"]["span"] >= found["at_test"]["0"]["span"]
    if trial.name == "k-subsets":
        assert found["transition"] is None
        # With no transition both maps take the same words, up to the temperature's factor of 2.
        assert found["at_test"]["0"]["span"] == pytest.approx(
            found["at_test"]["its own"]["span"], rel=0.05
        )
    elif trial.learned:
        assert found["transition"] != trial.transition


def test_test_texts_are_read_only_on_demand(monkeypatch):
    parts = []
    monkeypatch.setattr(_structured, "_judged", lambda _, part: parts.append(part) or {"f1": 0.5})
    found = try_out(Trial("k-subsets"), TINY, tested=(2.0,))
    corpus = _structured.load(TINY, 0)
    assert [part.texts for part in parts] == [corpus.validation.texts] * 4 + [corpus.test.texts]
    assert found["test"] == {"2": {"f1": 0.5}}
    assert "test" not in try_out(Trial("k-subsets"), TINY)


class Scored:
    """Gives the selection scores that are known."""

    def __init__(self, select, raw):
        self.select, self.raw = select, iter(raw)

    def rationale(self, texts):
        scores = next(self.raw)[None, None, None] * self.select.beta.test_beta
        assert scores.shape[-1] == len(texts[0])
        self.select(scores, torch.ones_like(scores, dtype=torch.bool))


def test_facts_about_known_scores():
    select = ShareOfWords(0.25, Temperature(0.5, 1e-3)).eval()
    words = Text(tuple("abcdefgh"))
    texts, spans = [words, words, words], [[(0, 2)], [], [(6, 8)]]
    part = _structured.Part(texts, torch.tensor([0, 1, 0]), spans)
    clear = torch.tensor([9.0, 9.0, 0, 0, 0, 0, 0, 0])
    tied = torch.zeros(8)
    facts = facts_about(Scored(select, [clear, tied]), select, part)
    assert facts["ranking"] == pytest.approx((1.0 + 0.5) / 2)  # ties count half
    assert facts["smoothed"] == pytest.approx((1.0 + 0.5) / 2)
    assert facts["deviation"] == pytest.approx(9 * (0.25 * 0.75) ** 0.5 / 2)
    assert facts["fractional"] == 4.0  # none of eight, all of eight
    assert facts["stuck"] == 0.5
    assert facts["gradient"] > 0
    assert not select.training
    assert facts_about(None, select, _structured.Part([words], torch.tensor([0]), [[]])) == {}


def test_the_table_has_means_and_their_standard_errors():
    def run(name, overlap):
        judged = {"overlap": overlap, "f1": 0.8, "span": 2.0}
        return {
            "trial": {"name": name},
            "at_test": dict.fromkeys(("its own", "0", "1", "4"), judged),
        }

    table = as_markdown([run("a", 0.2), run("b", 0.5), run("a", 0.3)]).splitlines()
    assert table[0] == "| trained with | 0 at test | 1 at test | 4 at test |"
    cell = "0.250 ± 0.050 (0.800 ± 0.000, 2.0)"
    assert table[2:] == [
        f"| a | {cell} | {cell} | {cell} |",
        "| b |" + " 0.500 (0.800, 2.0) |" * 3,
    ]


def test_the_page_shows_the_record():
    record = json.loads((DOCS / "results" / "rationale-structured.json").read_text("utf-8"))
    assert as_markdown(record["runs"]) in (DOCS / "reproduce.md").read_text("utf-8")


def test_trials_and_their_seed_are_named(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(
        _structured, "try_out", lambda *given, **named: calls.append((*given, named)) or {}
    )
    _structured._main(["transition 1", "k-subsets", "--seed", "2"])
    assert calls == [(TRIALS[n], {"seed": 2, "tested": []}) for n in (2, 0)]
    _structured._main(["--test", "4"])
    assert calls[2:] == [(trial, {"seed": 0, "tested": [4.0]}) for trial in TRIALS]
    record = DOCS / "results" / "rationale-structured.json"
    capsys.readouterr()
    _structured._main(["--table", str(record)])
    assert capsys.readouterr().out.startswith("| trained with |")
    with pytest.raises(KeyError):
        _structured._main(["transition"])
