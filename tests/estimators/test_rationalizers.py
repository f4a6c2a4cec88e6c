"""The compared rationalizers: laws that every one keeps, and what is special about each."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
import torch
from torch import nn

from hopfy import functional as F
from hopfy.estimators import RationaleClassifier, Training, faithfulness
from hopfy.estimators._rationale_network import METHODS, RationaleOptions, build_network
from hopfy.estimators._rationalizers import COMPARED, HardKumaNetwork
from hopfy.estimators._stochastic_rationalizers import (
    STOCHASTIC,
    ScoreFunctionNetwork,
    best_span,
    best_words,
)

EVERY = {**METHODS, **COMPARED, **STOCHASTIC}
OPTIONS = RationaleOptions(share=0.4, hidden=6, dropout=0.0, word_dropout=0.0)


@pytest.fixture(params=EVERY)
def network(request):
    return EVERY[request.param](nn.Embedding(30, 5, padding_idx=0), 3, OPTIONS)


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([7, 4, 1, 10])
    ids = torch.randint(1, 30, (4, 10))
    return torch.where(torch.arange(10) < lengths[:, None], ids, 0), lengths


def test_padding_is_never_selected_and_changes_nothing(network):
    ids, lengths = texts()
    network.eval()
    logits, weights = network.explain(ids, lengths)
    assert logits.shape == (4, 3)
    assert bool((weights[torch.arange(10) >= lengths[:, None]] == 0).all())
    assert bool(((weights >= 0) & (weights <= 1 + 1e-6)).all())
    for row, length in enumerate(lengths.tolist()):
        alone = network.explain(ids[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(alone[0][0], logits[row], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(alone[1][0], weights[row, :length], atol=1e-3, rtol=0)


def test_every_trained_parameter_gets_a_gradient(network):
    """Scores are drawn wide enough to choose; the frozen word vectors are the only exception."""
    ids, lengths = texts()
    logits = network(ids, lengths)
    network.objective(logits.square().sum(-1)).backward()
    silent = [
        name
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not bool(parameter.grad.isfinite().all())
    ]
    # One query has no need of the bias that all its scores share.
    assert [name for name in silent if "memories_in.bias" not in name] == []


def test_methods_are_found_by_name():
    for name, function in EVERY.items():
        found = build_network(name, nn.Embedding(9, 4), 2, OPTIONS)
        assert type(found) is type(function(nn.Embedding(9, 4), 2, OPTIONS))
    with pytest.raises(ValueError, match=r"'HardKuma'.*got 'SoftKuma'"):
        build_network("SoftKuma", nn.Embedding(9, 4), 2, OPTIONS)


@pytest.mark.parametrize(
    "method", ["HardKuma", "SPECTRA", "fusedmax", "SFE with baseline, top-k", "Gumbel, top-k"]
)
def test_estimators_take_every_method_and_can_be_judged(method):
    texts = ["a good film tonight", "what a bad film", "a good old story", "a bad plot again"] * 10
    model = RationaleClassifier(
        method=method,
        share=0.25,
        vectors=8,
        hidden=8,
        training=Training(lr=0.03, max_epochs=12, patience=12),
        random_state=0,
    ).fit(texts, [1, 0, 1, 0] * 10)
    assert model.score(texts, [1, 0, 1, 0] * 10) == 1.0
    found = faithfulness(model, texts)
    assert all(-1 <= value <= 1 for value in found)
    if method == "fusedmax":  # the others may tell a class by the place of the selected word
        assert found.sufficiency < found.comprehensiveness


@pytest.mark.parametrize("name", ["k-subsets", "sequential k-subsets", "SPECTRA", *STOCHASTIC])
def test_the_budget_is_kept(name):
    ids, lengths = texts()
    network = EVERY[name](nn.Embedding(30, 5, padding_idx=0), 2, OPTIONS).eval()
    weights = network.explain(ids, lengths)[1]
    torch.testing.assert_close(weights.sum(-1), torch.tensor([3.0, 2.0, 1.0, 4.0]))


@pytest.mark.parametrize("name", ["SPECTRA", "HardKuma", *STOCHASTIC])
def test_hidden_words_say_nothing(name):
    """Another word in the place of one that is not selected leaves the predictor as it was."""
    ids, lengths = texts()
    network = EVERY[name](nn.Embedding(30, 5, padding_idx=0), 2, OPTIONS).eval()
    words = network.embedding(ids)
    weights = network.explain(ids, lengths)[1]
    other = torch.where(weights.unsqueeze(-1) == 0, torch.randn_like(words), words)
    seen = [network.predictor(w * weights.unsqueeze(-1), lengths) for w in (words, other)]
    torch.testing.assert_close(*seen)


# ----------------------------------------------------------------------------------- HardKuma


def hardkuma(share: float = 0.3) -> HardKumaNetwork:
    return HardKumaNetwork(nn.Embedding(30, 5), 2, RationaleOptions(share=share, hidden=6))


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1.0, 1.0), (2.0, 0.7), (0.8, 3.0)])
def test_probabilities_of_the_gates_are_those_of_the_draws(a, b):
    network, count = hardkuma(), 200_000
    shape = [torch.full((count,), value, dtype=torch.float64) for value in (a, b)]
    gates = network.stretch(network.draw(*shape))
    closed = network.cumulative(*(s[:1] for s in shape), -network.low)
    opened = 1 - network.cumulative(*(s[:1] for s in shape), 1 - network.low)
    error = 4 * 0.5 / math.sqrt(count)
    assert float((gates == 0).double().mean()) == pytest.approx(float(closed), abs=error)
    assert float((gates == 1).double().mean()) == pytest.approx(float(opened), abs=error)
    raw = network.draw(*shape).mean()
    beta = math.exp(math.lgamma(1 + 1 / a) + math.lgamma(b) - math.lgamma(1 + 1 / a + b))
    assert float(raw) == pytest.approx(b * beta, abs=error)


def test_draws_have_the_gradient_of_their_formula():
    network = hardkuma()
    a = torch.tensor([0.7, 1.5], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.9, 2.0], dtype=torch.float64, requires_grad=True)

    def draw(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return network.draw(a, b)

    assert torch.autograd.gradcheck(draw, (a, b))


@pytest.mark.parametrize("pull", [-1.0, 0.3])
def test_the_penalty_holds_the_share_at_the_budget(pull):
    """Whether the rest of the loss opens gates or closes them."""
    network = hardkuma(share=0.3).train()
    ids, lengths = torch.randint(1, 30, (8, 20)), torch.full((8,), 20)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005)
    distances = []
    for _ in range(200):
        gates = network.explain(ids, lengths)[1]
        distances.append(float(network.penalty().detach()))
        optimizer.zero_grad()
        (network.penalty() + 0.5 * pull * gates.mean()).backward()
        optimizer.step()
    assert sum(distances[-50:]) / 50 < 0.05


# ------------------------------------------------------------------------------- faithfulness


class Counting:
    """Class 1 with the share of the word "good"; its rationale is every "good"."""

    class Answer:
        def __init__(self, tokens) -> None:
            self.tokens = tokens
            self.spans = [(n, n + 1) for n, token in enumerate(tokens) if token == "good"]

    def rationale(self, texts):
        return [self.Answer(text.tokens) for text in texts]

    def predict_proba(self, texts):
        shares = np.array([text.count("good") / max(1, len(text)) for text in texts])
        return np.stack([1 - shares, shares], 1)


class CountingNumber(Counting):
    predict_proba = None

    def __getattribute__(self, name):
        if name == "predict_proba":
            raise AttributeError
        return object.__getattribute__(self, name)

    def predict(self, texts):
        return np.array([text.count("good") / max(1, len(text)) for text in texts])


def test_faithfulness_of_a_classifier():
    texts = ["good good good film", ["bad", "film", "good", "no", "way"]]
    # Class 1 for the first (0.75 to 1 and to 0), class 0 for the second (0.8 to 0 and to 1).
    found = faithfulness(Counting(), texts)
    assert found.sufficiency == pytest.approx((0.75 - 1 + 0.8 - 0) / 2)
    assert found.comprehensiveness == pytest.approx((0.75 - 0 + 0.8 - 1) / 2)


def test_faithfulness_of_a_regressor_is_how_far_it_moves():
    found = faithfulness(CountingNumber(), ["good good good film"])
    assert found == pytest.approx((0.25, 0.75))


def test_faithfulness_leaves_out_what_has_no_words():
    assert faithfulness(Counting(), ["", "good film"]) == faithfulness(Counting(), ["good film"])
    with pytest.raises(ValueError, match="expected at least one text with words"):
        faithfulness(Counting(), [""])


# ------------------------------------------------------------------- score function and Gumbel


def test_the_best_words_and_the_best_span_are_those_of_an_enumeration():
    generator = torch.Generator().manual_seed(0)
    for length in range(1, 8):
        scores = torch.randn(20, length, generator=generator)
        for k in range(1, length + 1):
            budget = torch.full((20,), k)
            for choose, allowed in ((best_words, combinations), (best_span, _spans)):
                chosen = choose(scores, budget)
                every = [list(places) for places in allowed(range(length), k)]
                best = torch.stack([scores[:, places].sum(-1) for places in every]).amax(0)
                torch.testing.assert_close((chosen * scores).sum(-1), best)
                assert bool((chosen.sum(-1) == k).all())


def _spans(places, k):
    return [places[first : first + k] for first in range(len(places) - k + 1)]


def test_a_span_is_the_limit_of_sequential_subsets():
    scores = torch.randn(50, 9, dtype=torch.float64)
    chosen = best_span(scores, torch.full((50,), 3))
    limit = F.sequential_ksubsets(1e4 * scores, 3, 1e6)
    torch.testing.assert_close(chosen, limit, atol=1e-9, rtol=0)


@pytest.mark.parametrize("memory", [None, 0.9])
def test_the_score_function_estimates_the_gradient_of_the_expected_loss(memory):
    """Against the sum over all subsets of four words."""
    network = ScoreFunctionNetwork(nn.Embedding(9, 4), 2, OPTIONS, memory=memory).train()
    network.share = 0.5
    scores = torch.tensor([0.3, -1.0, 0.7, 0.1], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for bits in product((0.0, 1.0), repeat=4):
        taken = torch.tensor(bits, dtype=torch.float64)
        likely = torch.where(taken == 1, scores.sigmoid(), 1 - scores.sigmoid()).prod()
        expected = expected + likely * (taken @ values).square()
    (wanted,) = torch.autograd.grad(expected, scores)
    rows, rounds = 20_000, 10
    total = torch.zeros(4, dtype=torch.float64)
    for _ in range(rounds):
        drawn = network.draw(scores.expand(rows, 4), torch.ones(rows, 4, dtype=torch.bool))
        objective = network.objective((drawn @ values).square()) - network.penalty()
        total += torch.autograd.grad(objective, scores)[0] / rounds
    torch.testing.assert_close(total, wanted, atol=0.15, rtol=0)
