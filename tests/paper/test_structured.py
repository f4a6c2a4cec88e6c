"""Trials of training with the sequence structure: what is varied, and what judges them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hopfy import functional as F
from hopfy.estimators.networks import Temperature
from hopfy.paper.rationale import _structured
from hopfy.paper.rationale._structured import TRIALS, GrowingTransition, Trial, try_out
from hopfy.paper.rationale._task import Task

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


def test_trials_and_their_seed_are_named():
    assert _structured._chosen([]) == (TRIALS, 0)
    assert _structured._chosen(["3"]) == (TRIALS, 3)
    assert _structured._chosen(["transition 1", "k-subsets", "2"]) == ([TRIALS[2], TRIALS[0]], 2)
    with pytest.raises(KeyError):
        _structured._chosen(["transition"])
