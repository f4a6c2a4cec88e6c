"""Texts: read from small made files, and, where the real ones are here, counted."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
import torch

from hopfy.paper import data
from hopfy.paper.data import (
    Dataset,
    MissingDataError,
    RemoteFile,
    _ag_news,
    _beer,
    _eraser,
    _imdb,
    _sst,
)

needs_data = pytest.mark.skipif(
    not os.environ.get("HOPFY_DATA"), reason="the real texts are not here (HOPFY_DATA is unset)"
)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put files of our own in the place of a data set."""
    monkeypatch.setenv("HOPFY_DATA", str(tmp_path))
    monkeypatch.setattr("hopfy.paper.data._files.cache_folder", lambda: tmp_path / "cache")

    def make(module: object, constant: str, **files: bytes) -> None:
        real: Dataset = getattr(module, constant)
        folder = tmp_path / real.name
        folder.mkdir()
        known = []
        for file in real.files:
            content = files.get(file.name.split(".")[0], b"")
            (folder / file.name).write_bytes(content)
            checksum = hashlib.sha256(content).hexdigest()
            known.append(RemoteFile(file.name, len(content), checksum))
        monkeypatch.setattr(module, constant, Dataset(real.name, real.title, tuple(known)))

    return make


def packed(*lines: str) -> bytes:
    return gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0)


def test_sst_keeps_what_is_not_neutral(made):
    trees = ("(3 (2 Quite) (3 good))", "(2 (2 A) (2 film))", "(0 (1 (2 Bad) (2 -LRB-)) (2 1\\/2))")
    made(_sst, "SST", train=packed(*trees))
    texts, labels = data.sst("train")
    assert texts == [["Quite", "good"], ["Bad", "(", "1/2"]]
    assert labels.tolist() == [1, 0]


@pytest.mark.parametrize("line", ["Quite good", "(7 (2 Quite))", "(3 )"])
def test_a_broken_tree_is_refused(line):
    with pytest.raises(ValueError, match="expected a tree"):
        _sst.read_tree(line)


def test_ag_news_reads_both_files_alike(made):
    train = json.dumps({"label": 2, "text": "Oil up . It #39;s &lt;b&gt; high"})
    made(_ag_news, "AG_NEWS", train_subset=packed(train), test=packed('"4","Moon","Back\\soon"'))
    texts, labels = data.ag_news("train")
    assert texts[0].split() == ["Oil", "up", ".", "It", "s", "high"]
    assert labels.tolist() == [2]
    assert data.ag_news("test") == (["Moon . Back soon"], torch.tensor([3]))


def test_imdb_breaks_lines(made):
    made(_imdb, "IMDB", test=packed(json.dumps({"label": 1, "text": "Fine.<br /><br />Yes"})))
    texts, labels = data.imdb("test")
    assert texts == ["Fine.  Yes"]
    assert labels.tolist() == [1]


def test_a_line_that_is_not_json_is_named(made):
    made(_imdb, "IMDB", train=packed(json.dumps({"label": 1, "text": "Fine"}), '{"label": 0}'))
    with pytest.raises(ValueError, match="text, label in line 2"):
        data.imdb("train")


def test_beer_takes_the_aspect(made):
    made(_beer, "BEER", reviews=packed("0.90 0.70 0.60 0.50 0.40\ta dark beer ."))
    assert data.beer().texts == [["a", "dark", "beer", "."]]
    assert data.beer().labels.tolist() == pytest.approx([0.9])
    assert data.beer("overall").labels.tolist() == pytest.approx([0.4])
    with pytest.raises(ValueError, match="expected aspect among appearance"):
        data.beer("price")  # type: ignore[arg-type]


def annotation(**changes: object) -> str:
    whole = {"x": ["a", "dark", "beer"], "y": [0.9, 0.7, 0.6, 0.5, 0.4], "0": [[1, 3], [0, 1]]}
    return json.dumps({**whole, **{str(n): [] for n in range(1, 5)}, **changes})


def test_beer_annotations(tmp_path):
    path = tmp_path / "annotations.json"
    path.write_text(annotation() + "\n" + annotation(**{"0": []}) + "\n")
    found = data.beer_annotations(path)
    assert found.texts == [["a", "dark", "beer"]] * 2
    assert found.spans == [[(0, 1), (1, 3)], []]
    assert found.labels.tolist() == pytest.approx([0.9, 0.9])
    assert data.beer_annotations(path, "aroma").spans == [[], []]


@pytest.mark.parametrize(
    "line", [annotation(**{"0": [[1, 4]]}), annotation(y=[]), annotation(**{"0": 5}), "[]", "{"]
)
def test_broken_beer_annotations_are_refused(tmp_path, line):
    path = tmp_path / "annotations.json"
    path.write_text(annotation() + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"expected .* line 2 of"):
        data.beer_annotations(path)


def documents(**texts: str) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"data/movies/docs/{name}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return whole.getvalue()


def test_eraser_joins_documents_and_marks(made):
    marks = [[{"start_token": 3, "end_token": 5}], [{"start_token": 0, "end_token": 2}] * 2]
    record = {"annotation_id": "neg.txt", "classification": "NEG", "evidences": marks}
    content = documents(neg="a bad\nfilm , really", pos="unused")
    made(_eraser, "ERASER_MOVIES", docs=content, val=packed(json.dumps(record)))
    found = data.eraser_movies("validation")
    assert found.texts == [["a", "bad", "film", ",", "really"]]
    assert found.labels.tolist() == [0]
    assert found.spans == [[(0, 2), (3, 5)]]


@pytest.mark.parametrize("read", [data.sst, data.ag_news, data.imdb, data.eraser_movies])
def test_an_unknown_split_is_refused(read):
    with pytest.raises(ValueError, match="expected split among train"):
        read("exam")


def test_what_no_mirror_holds_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFY_DATA", str(tmp_path))
    monkeypatch.setattr("hopfy.paper.data._files.cache_folder", lambda: tmp_path / "cache")
    with pytest.raises(MissingDataError, match=r"trainDevTestTrees.*HOPFY_DATA.*sst/train"):
        data.sst()


def test_any_packing_of_the_right_content_will_do(tmp_path, monkeypatch):
    content = b"(3 (2 Quite) (3 good))\n"
    file = RemoteFile("train.txt.gz", 1, "0" * 64, hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("HOPFY_DATA", str(tmp_path))
    monkeypatch.setattr(_sst, "SST", Dataset("sst", "one tree", (file,)))
    (tmp_path / "sst").mkdir()
    path = tmp_path / "sst" / "train.txt.gz"
    for level in (1, 9):
        path.write_bytes(gzip.compress(content, level))
        assert len(data.sst().texts) == 1
    for wrong in (gzip.compress(b"(3 (2 Quite) (3 bad))\n"), b"nothing packed"):
        path.write_bytes(wrong)
        with pytest.raises(MissingDataError, match="SHA-256"):
            data.sst()


@needs_data
def test_the_real_sets_have_their_published_sizes():
    sizes = {split: len(data.sst(split).texts) for split in ("train", "validation", "test")}
    assert sizes == {"train": 6920, "validation": 872, "test": 1821}
    assert data.ag_news("test").labels.bincount().tolist() == [1900] * 4
    assert len(data.beer().texts) == 10_000
    test = data.eraser_movies("test")
    assert len(test.texts) == 199
    assert all(stop <= len(t) for t, s in zip(test.texts, test.spans, strict=True) for _, stop in s)
    assert " ".join(test.texts[0][slice(*test.spans[0][0])]) == "i even giggled"
