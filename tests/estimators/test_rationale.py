"""Classifiers and regressors with rationales: the laws of issue 8."""

from __future__ import annotations

import copy
import json
import re
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

pytest.importorskip("skorch")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from hopfy._files import tensors as tensor_file
from hopfy.estimators import (
    NoKnownWordsWarning,
    Rationale,
    RationaleClassifier,
    RationaleModule,
    RationaleRegressor,
    WordVectors,
)
from hopfy.estimators._files import _NETWORK
from hopfy.estimators._highlight import Rationales, as_spans, html_page, visible
from hopfy.estimators._rationale_network import hopfield_network
from hopfy.estimators._text import Text, tokenize

PLAIN = ["the", "a", "film", "story", "plot", "actor", "scene", "night", "music", "old", "of"]
PLAIN += ["and", "in", "it", "was", "this", "that", "we", "saw", "with", "some"]
GOOD, BAD = ["great", "superb", "lovely"], ["dull", "awful", "boring"]
METHODS = ["sequential k-subsets", "k-subsets"]
QUICK = {"vectors": 16, "hidden": 32, "training__lr": 3e-3, "share": 0.1, "random_state": 0}
TINY = {"vectors": 4, "hidden": 4, "training__max_epochs": 1, "random_state": 0}


def classifier(**parameters: object) -> RationaleClassifier:
    """With these parameters, those of groups by their nested names."""
    return RationaleClassifier().set_params(**parameters)


def regressor(**parameters: object) -> RationaleRegressor:
    """The same."""
    return RationaleRegressor().set_params(**parameters)


def reviews(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Plain words, and one word that decides, anywhere."""
    rng = np.random.default_rng(seed)
    texts = []
    for number in range(count):
        words = rng.choice(PLAIN, rng.integers(6, 14)).tolist()
        words.insert(int(rng.integers(len(words) + 1)), str(rng.choice([BAD, GOOD][number % 2])))
        texts.append(" ".join(words))
    return texts, np.array(["bad", "good"])[np.arange(count) % 2]


TEXTS, LABELS = reviews(200, 0)
NEW, NEW_LABELS = reviews(60, 1)


@pytest.fixture(scope="module", params=METHODS)
def fitted(request: pytest.FixtureRequest) -> RationaleClassifier:
    return classifier(method=request.param, **QUICK).fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def tiny() -> RationaleClassifier:
    return classifier(**TINY).fit(TEXTS[:20], LABELS[:20])


class TestLearning:
    def test_it_learns_and_shows_words_that_decide(self, fitted: RationaleClassifier) -> None:
        assert fitted.score(NEW, NEW_LABELS) > 0.9
        found = fitted.rationale(NEW)
        deciding = [{*GOOD, *BAD} & {r.tokens[n] for n in r.selected} for r in found]
        # One of ten words by chance; the LSTM may carry the word to a neighbor's state.
        assert np.mean([bool(words) for words in deciding]) > 0.4

    def test_probabilities_agree_with_predictions(self, fitted: RationaleClassifier) -> None:
        probabilities = fitted.predict_proba(NEW)
        np.testing.assert_allclose(probabilities.sum(1), 1)
        predicted = fitted.predict(NEW)
        assert (fitted.classes_[probabilities.argmax(1)] == predicted).all()
        found = fitted.rationale(NEW)
        assert [each.prediction for each in found] == predicted.tolist()
        np.testing.assert_allclose([each.probability for each in found], probabilities.max(1))

    @pytest.mark.parametrize("bounds", [None, (0.0, 10.0)])
    def test_a_regressor_learns(self, bounds: tuple[float, float] | None) -> None:
        rng = np.random.default_rng(0)
        ratings = np.where(LABELS == "good", 8.0, 2.0) + rng.normal(0, 0.2, len(LABELS))
        reg = regressor(bounds=bounds, **QUICK).fit(TEXTS, ratings)
        assert reg.score(NEW, np.where(NEW_LABELS == "good", 8.0, 2.0)) > 0.7
        assert reg.predict(NEW).shape == (60,)
        found = reg.rationale(NEW[:3])
        np.testing.assert_allclose([each.prediction for each in found], reg.predict(NEW[:3]))
        assert found[0].probability is None

    def test_bounded_predictions_stay_inside(self) -> None:
        reg = regressor(bounds=(0, 1), **{**QUICK, "training__lr": 0.1, "training__max_epochs": 4})
        reg.fit(TEXTS[:40], np.arange(40) % 2)
        predicted = reg.predict(NEW)
        assert predicted.min() >= 0
        assert predicted.max() <= 1

    def test_the_same_seed_gives_the_same_fit_and_leaves_torch_alone(self) -> None:
        state = torch.get_rng_state()
        one, two, other = (
            classifier(**{**TINY, "random_state": seed}).fit(TEXTS[:40], LABELS[:40])
            for seed in (3, 3, 4)
        )
        assert torch.equal(torch.get_rng_state(), state)
        np.testing.assert_array_equal(one.predict_proba(NEW), two.predict_proba(NEW))
        assert (one.predict_proba(NEW) != other.predict_proba(NEW)).any()

    def test_frozen_vectors_stay_and_serve_words_unseen_in_training(self) -> None:
        rng = np.random.default_rng(0)
        words = ["unseen", *PLAIN, *GOOD, *BAD, "never"]
        vectors = WordVectors(words, rng.normal(size=(len(words), 6)))
        clf = classifier(**{**TINY, "vectors": vectors, "words__keep_words": 1})
        clf.fit(TEXTS[:40], LABELS[:40])
        assert "unseen" in clf.vocabulary_
        assert "never" not in clf.vocabulary_
        embedding = next(m for m in clf.network_.modules() if isinstance(m, torch.nn.Embedding))
        np.testing.assert_allclose(embedding.weight[2], vectors.matrix[0], rtol=1e-6)
        assert not embedding.weight[:2].any()

    def test_early_stopping_on_texts_of_ones_own(self) -> None:
        clf = classifier(**{**QUICK, "training__max_epochs": 40, "training__patience": 2})
        clf.fit(TEXTS, LABELS, validation=(NEW, NEW_LABELS))
        scores = [epoch["valid_score"] for epoch in clf.history_]
        assert clf.n_iter_ < 40
        assert scores.index(max(scores)) == len(scores) - 3  # the best, and two in vain
        with pytest.raises(ValueError, match="expected validation labels among those of training"):
            clf.fit(TEXTS, LABELS, validation=(NEW[:1], ["fair"]))

    def test_class_weights_and_three_classes(self) -> None:
        clf = classifier(class_weight="balanced", **TINY)
        labels = np.arange(30) % 3
        assert clf.fit(TEXTS[:30], labels).predict_proba(NEW).shape == (60, 3)
        assert clf.set_params(class_weight={0: 1.0, 1: 2.0, 2: 1.0}).fit(TEXTS[:30], labels)

    def test_progress_is_shown_on_demand(self, capsys: pytest.CaptureFixture[str]) -> None:
        classifier(**TINY).fit(TEXTS[:20], LABELS[:20])
        assert capsys.readouterr().err == ""
        classifier(verbose=True, **TINY).fit(TEXTS[:20], LABELS[:20])
        assert "training" in capsys.readouterr().err


class TestSelection:
    def test_exactly_round_of_share_times_length(self, fitted: RationaleClassifier) -> None:
        for each in fitted.rationale(NEW):
            length = len(each.tokens)
            assert each.k == max(1, round(0.1 * length))
            np.testing.assert_allclose(each.weights.sum(), each.k, atol=1e-4)
            whole = int((each.weights > 1 - 1e-6).sum())
            assert each.fractional == len(each.selected) - whole
            assert each.fractional == 0 or whole < each.k < len(each.selected)
            if each.fractional == 0:
                assert len(each.selected) == each.k

    def test_a_warm_temperature_reports_its_fractions(self) -> None:
        clf = classifier(
            **{**QUICK, "selection__test_temperature": 10.0, "training__max_epochs": 1}
        )
        found = clf.fit(TEXTS, LABELS).rationale(NEW)
        assert all(each.fractional > 1 for each in found)
        assert all(len(each.selected) > each.k for each in found)

    def test_batched_is_one_by_one(self, fitted: RationaleClassifier) -> None:
        texts = [*NEW[:9], " ".join(NEW[:20]), "great"]
        together = fitted.predict_proba(texts)
        alone = np.concatenate([fitted.predict_proba([text]) for text in texts])
        np.testing.assert_allclose(together, alone, atol=1e-5)
        for text, each in zip(texts, fitted.rationale(texts), strict=True):
            np.testing.assert_allclose(each.weights, fitted.rationale([text])[0].weights, atol=1e-2)
            assert len(each.weights) == len(each.tokens)

    def test_strings_and_their_tokens_are_the_same(self, fitted: RationaleClassifier) -> None:
        tokens = [list(tokenize(text).tokens) for text in NEW]
        np.testing.assert_array_equal(fitted.predict_proba(NEW), fitted.predict_proba(tokens))
        np.testing.assert_array_equal(
            fitted.predict_proba(NEW), fitted.predict_proba(np.array(NEW, dtype=object))
        )

    def test_ten_thousand_words(self, fitted: RationaleClassifier) -> None:
        words = np.random.default_rng(0).choice([*PLAIN, *GOOD], 10_000).tolist()
        found = fitted.rationale([words, "a great film"])
        assert found[0].k == 1000
        np.testing.assert_allclose(found[0].weights.sum(), 1000, rtol=1e-5)
        assert "<mark" in found._repr_html_()

    def test_training_with_ten_thousand_words(self) -> None:
        words = np.random.default_rng(0).choice(PLAIN, 10_000).tolist()
        clf = classifier(**TINY).fit([words, *TEXTS[:40]], ["bad", *LABELS[:40]])
        assert clf.rationale([words])[0].k == 2000


class TestNothingToGoBy:
    def test_empty_and_unknown_texts_answer_with_the_prior(self) -> None:
        clf = classifier(**TINY).fit(TEXTS[:30], np.arange(30) % 3 == 0)
        with pytest.warns(NoKnownWordsWarning, match=r"3 of 4 texts .* \(number 0, 1, 3\)"):
            probabilities = clf.predict_proba(["", "zzz yyy", "a film", []])
        np.testing.assert_allclose(probabilities[[0, 1, 3]], [[2 / 3, 1 / 3]] * 3)
        with pytest.warns(NoKnownWordsWarning):
            found = clf.rationale(["", "zzz yyy"])
        assert [each.prediction for each in found] == [False, False]
        assert [each.spans for each in found] == [[], []]
        assert [each.weights.tolist() for each in found] == [[], [0, 0]]
        assert str(found[1]) == "zzz yyy"
        assert "zzz yyy" in found._repr_html_()

    def test_a_regressor_answers_with_the_mean(self) -> None:
        reg = regressor(**TINY).fit(TEXTS[:20], np.arange(20.0))
        with pytest.warns(NoKnownWordsWarning, match="the mean of the training targets"):
            assert reg.predict(["", "film"])[0] == 9.5

    def test_no_texts_give_no_answers(self, tiny: RationaleClassifier) -> None:
        assert tiny.predict([]).shape == (0,)
        assert tiny.predict_proba([]).shape == (0, 2)
        assert tiny.rationale([]) == []

    def test_training_leaves_them_out_with_a_warning(self) -> None:
        with pytest.warns(NoKnownWordsWarning, match="2 of 22 training texts"):
            clf = classifier(**TINY).fit([*TEXTS[:20], "", "zzz"], [*LABELS[:20], *"xx"])
        assert clf.classes_.tolist() == ["bad", "good", "x"]
        with pytest.raises(ValueError, match="expected at least one training text with a word"):
            clf.fit(["", "zzz"], [0, 1])


class TestBadInput:
    @pytest.mark.parametrize(
        ("texts", "labels", "message"),
        [
            ("one string", [0], "expected a list of texts, got a single string"),
            (["fine", None], [0, 1], "expected every text to be a string .* NoneType"),
            ([3.5, "fine"], [0, 1], "expected every text to be a string .* float"),
            ([["a", 2]], [0], "a token of type int in text 0"),
            (["a", "b"], None, "expected one target in y for each text, got None"),
            (["a", "b"], [0, None], "expected a target in y for every text"),
            (["a", "b"], [0.0, float("nan")], "expected a target in y for every text"),
            (["a", "b"], ["good", float("nan")], "got none for text 1"),
            (["a", "b"], np.array([0.0, np.inf]), "infinity"),
            (["a", "b"], 3, "expected y"),
            (["a", "b"], [0], "expected one target for each of 2 texts, got 1"),
            (["a", "b"], [[0, 1], [1, 0]], "1d array"),
            (["a", "b"], ["same", "same"], "got one class only: 'same'"),
            (["a", "b"], [0.5, 0.25], "Unknown label type"),
            ([], [], "expected at least one text"),
        ],
    )
    def test_fit_says_what_is_wrong(self, texts: object, labels: object, message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            classifier(**TINY).fit(texts, labels)

    @pytest.mark.parametrize(
        ("parameter", "value"),
        [
            ("method", "guess"),
            ("share", 0),
            ("vectors", 0),
            ("vectors", True),
            ("vectors", "/no/such/file"),
            ("words__min_count", 0),
            ("words__keep_words", -1),
            ("hidden", 0),
            ("selection__temperature", 0.0),
            ("dropout", 1.0),
            ("training__batch_size", 0),
            ("training__max_epochs", 1.5),
            ("training__lr", 0.0),
            ("training__validation_share", 1.0),
        ],
    )
    def test_a_wrong_parameter_is_one_message(self, parameter: str, value: object) -> None:
        with pytest.raises((TypeError, ValueError, FileNotFoundError), match="expected"):
            classifier(**{**TINY, parameter: value}).fit(TEXTS[:20], LABELS[:20])

    def test_targets_of_a_regressor(self) -> None:
        reg = regressor(bounds=(0, 1), **TINY)
        with pytest.raises(ValueError, match=r"expected y within the bounds \(0, 1\)"):
            reg.fit(["a b", "b a"], [0.5, 2.0])
        with pytest.raises(ValueError, match="expected y to be numbers"):
            reg.fit(["a b", "b a"], ["low", "high"])
        with pytest.raises(ValueError, match="expected bounds to be None or finite numbers"):
            reg.set_params(bounds=(1, 0)).fit(["a b", "b a"], [0.5, 0.2])

    def test_a_failed_fit_leaves_no_half_of_a_model(self) -> None:
        clf = classifier(**TINY).fit(TEXTS[:20], LABELS[:20])
        with pytest.raises(ValueError, match="expected method"):
            clf.set_params(method="guess").fit(["other words"] * 4, [0, 1] * 2)
        with pytest.raises(ValueError, match="not fitted"):
            clf.predict(NEW)

    def test_parameters_set_after_fit_wait_for_the_next(self, tiny: RationaleClassifier) -> None:
        before = [each.k for each in tiny.rationale(NEW)]
        try:
            assert [each.k for each in tiny.set_params(share=1.0).rationale(NEW)] == before
        finally:
            tiny.set_params(share=0.2)

    def test_before_fit(self, tmp_path) -> None:
        for call in ("predict", "predict_proba", "rationale", "explain_html"):
            with pytest.raises(ValueError, match="not fitted"):
                getattr(RationaleClassifier(), call)(["a"])
        with pytest.raises(ValueError, match="not fitted"):
            RationaleClassifier().save(tmp_path / "model")

    def test_human_spans(self, tiny: RationaleClassifier) -> None:
        for wrong in ([[(2, 2)]], [[(0, 9)]], [[(-1, 1)]], [[3]], [[("a", "b")]]):
            with pytest.raises(ValueError, match="expected a span of tokens"):
                tiny.explain_html(["a great film"], wrong)
        with pytest.raises(ValueError, match="expected human_spans for each of 1 texts, got 2"):
            tiny.explain_html(["a great film"], [[], []])
        with pytest.raises(TypeError, match="expected human_spans to be a list"):
            as_spans(3, [1])


class _Parsed(HTMLParser):
    """Which tags a page has, and the text inside its paragraphs."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.paragraphs: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag == "p":
            self._inside = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.paragraphs[-1] += data


HOSTILE = [
    "<script>alert(1)</script> a great film",
    '"><img src=x onerror=alert(1)> & &amp; &lt;b&gt;',
    "</p></article><style>*{display:none}</style>",
    "{{ 7 * 7 }} {% raw %} a ‮ film\n\nsecond line\t.",
]


class TestHighlights:
    def test_text_with_tags_and_scripts_stays_text(self, tiny: RationaleClassifier) -> None:
        tokens = [[*text.split(), "<b onclick=x>"] for text in HOSTILE]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoKnownWordsWarning)
            page = tiny.explain_html([*HOSTILE, *tokens], title="<script>title</script>")
            fragment = tiny.rationale(HOSTILE)._repr_html_()
        parsed = _Parsed(page)
        shown = [text.replace("\u202e", "⟨U+202E⟩") for text in HOSTILE]
        assert parsed.paragraphs[: len(HOSTILE)] == shown
        allowed = {"html", "head", "meta", "title", "style", "body", "main", "h1", "div", "span"}
        assert set(parsed.tags) <= allowed | {"mark", "article", "header", "b", "bdi", "p"}
        known = {"lang", "charset", "name", "content", "class", "style", "dir"}
        assert set(parsed.attributes) <= known
        assert "49" not in "".join(parsed.paragraphs)
        assert _Parsed(fragment).paragraphs == shown

    def test_hostile_class_names_and_methods_stay_text(self) -> None:
        clf = classifier(**TINY)
        clf.fit(TEXTS[:20], np.where(LABELS[:20] == "good", "<i>good</i>", "<i>bad</i>"))
        assert "<i>" not in clf.explain_html(NEW[:4])

    def test_the_figure_of_the_paper(self) -> None:
        """Highlight = selected, underlined = marked by people, red = selected but not marked."""
        text = Text(("nice", "dark", "head", ",", "thin", "body"))
        weights = np.array([1.0, 1.0, 0.0, 0.0, 0.5, 0.0])
        card = Rationale(text, weights, 2, "good", 0.9, human=[(1, 3)])
        fragment = card._repr_html_()
        marks = re.findall(
            r'<mark(?: class="(\w+)")? style="--level: (\d+)"><bdi>([^<]*)', fragment
        )
        assert [mark for mark in marks if mark[2].strip()][-3:] == [
            ("wrong", "10", "nice"),
            ("human", "10", "dark"),
            ("wrong", "5", "thin"),
        ]
        assert '<span class="human"><bdi> head</bdi></span>' in fragment
        assert _Parsed(fragment).paragraphs == ["nice dark head, thin body"]
        assert "precision 0.33, recall 0.50, F1 0.40" in fragment
        assert "3 of 6 words, 1 in part" in fragment
        assert card.overlap is not None
        assert card.overlap.f1 == pytest.approx(0.4)

    @pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\u200b", "\ufeff", "\u00ad", "\x07"])
    def test_characters_that_are_not_seen_are_shown(self, hidden: str) -> None:
        """An override or a zero-width blank in a text cannot change how the rest of it looks."""
        number = f"⟨U+{ord(hidden):04X}⟩"
        card = Rationale(Text(("go" + hidden + "od", "film")), np.array([1.0, 0.0]), 1, hidden)
        assert str(card) == f"[go{number}od] film"
        fragment = card._repr_html_()
        assert hidden not in fragment
        assert f"<bdi>go{number}od</bdi></mark>" in fragment
        assert f"<b><bdi>{number}</bdi></b>" in fragment

    def test_every_piece_of_text_is_isolated(self) -> None:
        """Words of either direction keep their own order and leave that of the others alone."""
        words = ("سلام", "good", "عالم", "12", "film")
        fragment = Rationale(Text(words), np.array([1.0, 0, 0, 1, 0]), 2, "مرحبا")._repr_html_()
        (paragraph,) = re.findall(r"<p .*?</p>", fragment, re.DOTALL)
        assert paragraph.startswith('<p dir="auto">')
        assert re.sub(r"<bdi>[^<]*</bdi>|<[^>]*>", "", paragraph).strip() == ""
        assert "<b><bdi>مرحبا</bdi></b>" in fragment

    def test_joiners_stay_where_scripts_and_emoji_need_them(self) -> None:
        for text in ("می\u200cخواهم", "\U0001f468\u200d\U0001f469"):
            assert visible(text) == text
        assert visible("ab\u200dc\u200c") == "ab⟨U+200D⟩c⟨U+200C⟩"

    def test_without_human_spans_nothing_is_called_a_mismatch(self) -> None:
        card = Rationale(Text(("a", "b")), np.array([1.0, 0.0]), 1, 0.73251)
        assert 'class="wrong"' not in card._repr_html_()
        assert "0.7325" in card._repr_html_()
        assert card.overlap is None

    def test_neighbors_share_one_highlight(self) -> None:
        card = Rationale(tokenize("so very  good a film"), np.array([0, 1, 1, 0, 0.0]), 2, "x")
        assert '<mark style="--level: 10"><bdi>very  good</bdi></mark>' in card._repr_html_()
        assert str(card) == "so [very  good] a film"
        assert card.spans == [(1, 3)]
        assert card.phrases == ["very  good"]

    def test_lists_of_tokens_read_like_text(self) -> None:
        tokens = Text(("It", "is", "n't", "bad", "(", "really", ")", ",", "it", "'s", "ok", "."))
        card = Rationale(tokens, np.zeros(12), 1, "x")
        assert str(card) == "It isn't bad (really), it's ok."

    def test_half_a_character_can_still_be_written(self, tmp_path) -> None:
        page = html_page([Rationale(Text(("\ud800",)), np.ones(1), 1, "x")])
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        assert (tmp_path / "page.html").read_text(encoding="utf-8") == page

    def test_an_empty_text_has_a_card(self) -> None:
        cards = Rationales([Rationale(tokenize("  "), np.zeros(0), 0, "x")])
        assert "0 of 0 words" in cards._repr_html_()
        assert html_page([]).startswith("<!doctype html>")

    def test_the_page_loads_nothing(self, tiny: RationaleClassifier) -> None:
        page = tiny.explain_html(NEW[:3])
        assert not re.search(r"https?:|<script|<link|@import|url\(", page)


def _own(embedding, outputs, options):
    return hopfield_network(embedding, outputs, options, "sparsemax")


class TestFiles:
    @pytest.mark.parametrize("method", METHODS)
    def test_what_is_loaded_predicts_the_same(self, tmp_path, method: str) -> None:
        clf = classifier(method=method, selection__learn_transition=True, **TINY)
        clf.fit(TEXTS[:20], LABELS[:20]).save(tmp_path / "model")
        same = RationaleClassifier.load(tmp_path / "model")
        np.testing.assert_array_equal(same.predict_proba(NEW), clf.predict_proba(NEW))
        assert same.get_params() == clf.get_params()
        assert same.options_ == clf.options_
        for one, other in zip(same.rationale(NEW), clf.rationale(NEW), strict=True):
            np.testing.assert_array_equal(one.weights, other.weights)
        with pytest.warns(NoKnownWordsWarning):
            np.testing.assert_array_equal(same.predict_proba([""])[0], clf.class_prior_)

    def test_a_regressor(self, tmp_path) -> None:
        reg = regressor(bounds=(0, 20), **TINY).fit(TEXTS[:20], np.arange(20))
        reg.save(tmp_path / "model")
        same = RationaleRegressor.load(tmp_path / "model")
        np.testing.assert_array_equal(same.predict(NEW), reg.predict(NEW))
        assert same.bounds == (0.0, 20.0)
        with pytest.raises(ValueError, match="does not say that it is"):
            RationaleClassifier.load(tmp_path / "model")

    def test_vectors_of_ones_own_come_back_for_another_fit(self, tmp_path) -> None:
        words = [*PLAIN, *GOOD, *BAD]
        matrix = np.random.default_rng(0).normal(size=(len(words), 3)).astype(np.float32)
        clf = classifier(**{**TINY, "vectors": (words, matrix)})
        clf.fit(TEXTS[:20], LABELS[:20]).save(tmp_path / "model")
        same = RationaleClassifier.load(tmp_path / "model")
        np.testing.assert_array_equal(same.vectors.matrix[words.index("film")], matrix[2])
        np.testing.assert_array_equal(same.predict_proba(NEW), clf.predict_proba(NEW))
        again = same.fit(TEXTS[:20], LABELS[:20])
        np.testing.assert_array_equal(again.predict_proba(NEW), clf.predict_proba(NEW))
        trained = {name for name, p in again.network_.named_parameters() if p.requires_grad}
        assert not any("embedding" in name for name in trained)

    def test_a_method_of_ones_own_is_given_again(self, tmp_path) -> None:
        clf = classifier(method=_own, **TINY).fit(TEXTS[:20], LABELS[:20])
        clf.save(tmp_path / "model")
        with pytest.raises(ValueError, match=r"call load\(path, method=...\)"):
            RationaleClassifier.load(tmp_path / "model")
        same = RationaleClassifier.load(tmp_path / "model", method=_own)
        np.testing.assert_array_equal(same.predict_proba(NEW), clf.predict_proba(NEW))
        clf.set_params(method="k-subsets").fit(TEXTS[:20], LABELS[:20]).save(tmp_path / "other")
        with pytest.raises(ValueError, match="expected no method"):
            RationaleClassifier.load(tmp_path / "other", method=_own)

    def test_odd_words_survive(self, tmp_path) -> None:
        odd = ["new\nline", "\x00", "naïve", "😀", '"', "", " ", "\ud800"]
        clf = classifier(**{**TINY, "words__min_count": 1}).fit([odd, odd[::-1]] * 5, [0, 1] * 5)
        clf.save(tmp_path / "model")
        assert (
            RationaleClassifier.load(tmp_path / "model").vocabulary_.words == clf.vocabulary_.words
        )

    def test_damage_is_one_message(self, tmp_path, tiny: RationaleClassifier) -> None:
        tiny.save(tmp_path / "model")
        content = (tmp_path / "model").read_bytes()
        rng = np.random.default_rng(0)
        for trial in range(40):
            broken = bytearray(content)
            broken[int(rng.integers(len(content)))] ^= int(rng.integers(1, 256))
            cut = content[: int(rng.integers(len(content)))]
            (tmp_path / "broken").write_bytes(bytes(broken) if trial % 2 else cut)
            with pytest.raises(ValueError, match="expected"):
                RationaleClassifier.load(tmp_path / "broken")

    @pytest.mark.parametrize(
        "change",
        [
            {"vector_size": 1 << 40},
            {"vector_size": -1},
            {"vector_size": "4"},
            {"learned": 1},
            {"targets": {}},
            {"targets": {"classes": {"dtype": "object", "labels": [[1], [2]]}, "prior": [1, 0]}},
            {"targets": {"classes": {"dtype": "int64", "labels": [0, 1]}, "prior": [2, 3]}},
            {"targets": {"classes": {"dtype": "int64", "labels": [0, 2**80]}, "prior": [0.5, 0.5]}},
            {"targets": {"classes": {"dtype": "int64", "labels": [0, "a"]}, "prior": [0.5, 0.5]}},
            {"targets": {"classes": {"dtype": "str", "labels": 7}, "prior": [0.5, 0.5]}},
            {"vector_size": 2**80},
            {"parameters": {}},
            {"parameters": {"hidden": 2**80}},
            {"parameters": {"hidden": 10**9}},
            {"parameters": {"hidden": "4"}},
            {"parameters": {"method": "os.system"}},
            {"parameters": {"share": 7}},
            {"parameters": {"method": 3}},
        ],
    )
    def test_hostile_settings_with_right_checksums(
        self, tmp_path, tiny: RationaleClassifier, change: dict
    ) -> None:
        tiny.save(tmp_path / "model")
        file = tensor_file.StoredFile(tmp_path / "model", RationaleClassifier._kind)
        settings = {**file.settings, **change}
        if change.get("parameters"):
            settings["parameters"] = {**file.settings["parameters"], **change["parameters"]}
        tensors = {name: tensor_file.Streamed.of(file.tensor(name)) for name in file.entries}
        tensor_file.write(tmp_path / "hostile", RationaleClassifier._kind, tensors, settings)
        with pytest.raises(ValueError, match="expected"):
            RationaleClassifier.load(tmp_path / "hostile")

    @pytest.mark.parametrize("group", ["training", "words", "selection"])
    def test_a_setting_newer_than_the_file_has_its_default(
        self, tmp_path, tiny: RationaleClassifier, group: str
    ) -> None:
        settings = RationaleClassifier._groups[group]
        given = settings().get_params()
        tiny_with = copy.copy(tiny).set_params(**{group: settings(**given)})
        tiny_with.save(tmp_path / "model")
        file = tensor_file.StoredFile(tmp_path / "model", RationaleClassifier._kind)
        tensors = {name: tensor_file.Streamed.of(file.tensor(name)) for name in file.entries}
        for name in given:
            older = json.loads(json.dumps(file.settings))
            del older["parameters"][group][name]
            tensor_file.write(tmp_path / "older", RationaleClassifier._kind, tensors, older)
            loaded = RationaleClassifier.load(tmp_path / "older")
            assert getattr(loaded, group) == settings()

    @pytest.mark.parametrize(
        "words", [b"{}", b"[1, 2]", b"[", b'["a", "a"]', b"\xff", b"[" * 99999]
    )
    def test_hostile_vocabularies(self, tmp_path, tiny: RationaleClassifier, words: bytes) -> None:
        tiny.save(tmp_path / "model")
        file = tensor_file.StoredFile(tmp_path / "model", RationaleClassifier._kind)
        tensors = {name: file.tensor(name) for name in file.entries}
        tensors["vocabulary"] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        streamed = {name: tensor_file.Streamed.of(each) for name, each in tensors.items()}
        tensor_file.write(tmp_path / "bad", RationaleClassifier._kind, streamed, file.settings)
        with pytest.raises(ValueError, match="expected"):
            RationaleClassifier.load(tmp_path / "bad")

    def test_a_device_never_travels_in_a_file(self, tmp_path, tiny: RationaleClassifier) -> None:
        moved = copy.copy(tiny).set_params(device="cpu:0")
        moved.save(tmp_path / "model")
        assert b"cpu:0" not in (tmp_path / "model").read_bytes()
        loaded = RationaleClassifier.load(tmp_path / "model")
        assert loaded.device == RationaleClassifier().device

    def test_nothing_is_pickled(self, tmp_path, tiny: RationaleClassifier) -> None:
        tiny.save(tmp_path / "model")
        content = (tmp_path / "model").read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        assert all(
            name.startswith(_NETWORK)
            for name in header
            if name not in ("__metadata__", "vocabulary")
        )


class TestScikitLearn:
    def test_clone_and_parameters(self, tiny: RationaleClassifier) -> None:
        copy = clone(tiny)
        assert copy.get_params() == tiny.get_params()
        assert not hasattr(copy, "network_")
        assert copy.set_params(share=0.3).share == 0.3
        assert repr(classifier(share=0.3)) == "RationaleClassifier(share=0.3)"

    def test_grid_search_inside_a_pipeline(self) -> None:
        steps = [
            ("clean", FunctionTransformer(lambda texts: [text.upper() for text in texts])),
            ("rationale", classifier(**TINY)),
        ]
        search = GridSearchCV(Pipeline(steps), {"rationale__share": [0.1, 0.5]}, cv=2)
        search.fit(TEXTS[:24], LABELS[:24])
        assert search.best_params_["rationale__share"] in (0.1, 0.5)
        assert search.predict(NEW).shape == (60,)
        tokens = [text.split() for text in TEXTS[:24]]
        scores = cross_val_score(regressor(**TINY), tokens, np.arange(24), cv=2)
        assert np.isfinite(scores).all()

    def test_only_texts_are_wanted(self) -> None:
        tags = RationaleClassifier().__sklearn_tags__()
        assert tags.input_tags.string
        assert not tags.input_tags.two_d_array
        assert tags.estimator_type == "classifier"
        assert RationaleRegressor().__sklearn_tags__().estimator_type == "regressor"


class _Penalized(RationaleModule):
    """A network with a loss of its own, and without a state to speak of."""

    def __init__(self, embedding: torch.nn.Embedding, outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = embedding, torch.nn.Linear(embedding.embedding_dim, outputs)
        self.calls = 0

    def explain(self, ids, lengths):
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        weights = mask / lengths.clamp_min(1)[:, None]
        return self.head((weights.unsqueeze(1) @ self.embedding(ids)).squeeze(1)), weights

    def penalty(self):
        self.calls += 1
        return self.head.weight.pow(2).sum()


class TestOtherMethods:
    @pytest.mark.parametrize(
        "method", ["SPECTRA", "HardKuma", "sparsemax", "fusedmax", "softmax", "BiLSTM"]
    )
    def test_every_method_by_name_has_all_verbs(self, tmp_path, method: str) -> None:
        clf = classifier(method=method, **TINY).fit(TEXTS[:20], LABELS[:20])
        clf.save(tmp_path / "model")
        same = RationaleClassifier.load(tmp_path / "model")
        np.testing.assert_array_equal(same.predict_proba(NEW), clf.predict_proba(NEW))
        for each in same.rationale(NEW):
            assert each.weights.shape == (len(each.tokens),)
            assert each.weights.min() >= 0
            assert each.weights.max() <= 1 + 1e-6

    def test_a_module_of_ones_own_with_a_penalty(self) -> None:
        clf = classifier(method=lambda e, n, _: _Penalized(e, n), **TINY)
        clf.fit(TEXTS[:20], LABELS[:20])
        assert clf.network_.calls > 0
        found = clf.rationale(["a great film"])[0]
        np.testing.assert_allclose(found.weights, 1 / 3, rtol=1e-6)

    def test_anything_else_is_refused(self) -> None:
        with pytest.raises(TypeError, match="expected the method to make a RationaleModule"):
            classifier(method=lambda *_: torch.nn.Linear(1, 1), **TINY).fit(TEXTS[:20], LABELS[:20])
