"""The data layer: where files are looked for, how they are checked, what is said without them."""

from __future__ import annotations

import gzip
import hashlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from hopfy.paper import data
from hopfy.paper.data import Dataset, MissingDataError, RemoteFile, _mnist
from hopfy.paper.data._files import cache_folder
from hopfy.paper.data._idx import read_idx

IMAGES = torch.arange(2 * 28 * 28).reshape(2, 28, 28).remainder(251).to(torch.uint8)
LABELS = torch.tensor([7, 2], dtype=torch.uint8)


def idx_bytes(array: torch.Tensor) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(bytes((0, 0, 8, array.ndim)) + sizes + array.numpy().tobytes(), mtime=0)


CONTENT = {
    f"{split}-{kind}": idx_bytes(array)
    for split in ("train", "t10k")
    for kind, array in (("images-idx3-ubyte.gz", IMAGES), ("labels-idx1-ubyte.gz", LABELS))
}


def tiny(*mirrors: str) -> Dataset:
    """A data set called mnist with the tiny files above."""
    files = tuple(
        RemoteFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in CONTENT.items()
    )
    return Dataset("mnist", "two images", files, mirrors or ("http://127.0.0.1:9",))


def fill(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFY_DATA", str(tmp_path / "given"))
    monkeypatch.setattr("hopfy.paper.data._files.cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """The address of a web server on this machine that has the tiny files."""

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

    fill(tmp_path / "web")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=tmp_path / "web"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("place", ["given", "cache"])
def test_mnist_is_read_from_the_given_folder_or_the_cache(tmp_path, monkeypatch, place):
    folder = fill(tmp_path / place / "mnist")
    monkeypatch.setattr(_mnist, "MNIST", tiny())
    assert tiny().where() == folder
    for split in ("train", "test"):
        images, labels = data.mnist(split)
        assert torch.equal(images, IMAGES)
        assert labels.tolist() == [7, 2]
        assert labels.dtype == torch.int64


def test_the_given_folder_comes_before_the_cache(tmp_path):
    fill(tmp_path / "cache" / "mnist")
    given = fill(tmp_path / "given" / "mnist")
    assert tiny().path("t10k-labels-idx1-ubyte.gz").parent == given


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    folder = fill(tmp_path / "given" / "mnist")
    (folder / "train-images-idx3-ubyte.gz").write_bytes(idx_bytes(IMAGES + 1))
    monkeypatch.setattr(_mnist, "MNIST", tiny())
    with pytest.raises(MissingDataError, match=r"expected .* with SHA-256 .*, got"):
        data.mnist("train")


def test_files_are_downloaded_once(tmp_path, mirror):
    found = tiny("http://127.0.0.1:9", mirror)  # the first mirror is down
    assert found.where() is None
    assert found.fetch() == tmp_path / "cache" / "mnist"
    assert found.where() == tmp_path / "cache" / "mnist"
    assert tiny("http://127.0.0.1:9").fetch() == tmp_path / "cache" / "mnist"


def test_a_download_with_the_wrong_checksum_is_not_kept(tmp_path, mirror):
    right = tiny(mirror)
    file = RemoteFile("train-labels-idx1-ubyte.gz", 1, "0" * 64)
    wrong = Dataset("mnist", "wrong", (file,), right.mirrors)
    with pytest.raises(MissingDataError):
        wrong.fetch()
    assert not (tmp_path / "cache" / "mnist" / file.name).exists()


def test_without_a_network_one_message_says_what_to_do():
    with pytest.raises(MissingDataError) as caught:
        tiny().fetch()
    message = str(caught.value)
    assert "hopfy data fetch mnist" in message
    assert "HOPFY_DATA" in message
    assert "\n" not in message


def test_unknown_names_are_named():
    with pytest.raises(ValueError, match=r"expected a data set among mnist, .* got 'mnst'"):
        data.dataset("mnst")
    with pytest.raises(ValueError, match="expected a file of mnist among"):
        tiny().path("other.gz")
    with pytest.raises(ValueError, match="'train' or 'test', got 'valid'"):
        data.mnist("valid")


def test_the_cache_follows_the_system(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "hopfy"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"not gzip", "complete gzip"),
        (idx_bytes(IMAGES)[:-20], "complete gzip"),
        (gzip.compress(b"\0\0\x0d\x01\0\0\0\0"), "unsigned bytes"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"), r"expected 5 entries .* got 3"),
    ],
    ids=["not packed", "cut", "another type", "too short"],  # packed bytes hold the time of day
)
def test_damaged_files_are_named(tmp_path, content, complaint):
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        read_idx(path)


def test_the_checksum_depends_on_every_file():
    whole = tiny()
    files = (*whole.files[:-1], RemoteFile(whole.files[-1].name, 1, "0" * 64))
    assert Dataset("mnist", "", files, ()).checksum != whole.checksum


def test_bundled_digits():
    images, labels = data.digits()
    assert images.shape == (1797, 8, 8)
    assert int(images.max()) == 16
    assert sorted(set(labels.tolist())) == list(range(10))


REAL = os.environ.get("HOPFY_DATA") or "missing"


@pytest.mark.skipif(not Path(REAL, "mnist").is_dir(), reason="MNIST is not in $HOPFY_DATA")
def test_the_real_mnist(monkeypatch):
    monkeypatch.setenv("HOPFY_DATA", REAL)
    train, test = data.mnist("train"), data.mnist("test")
    assert train.images.shape == (60_000, 28, 28)
    assert test.images.shape == (10_000, 28, 28)
    assert train.labels[:3].tolist() == [5, 0, 4]
    assert abs(train.images.double().mean().item() / 255 - 0.1307) < 1e-4
