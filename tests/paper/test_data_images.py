"""CIFAR-10 and Tiny ImageNet: read from small archives made here in the published layouts."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hopfy.paper import data
from hopfy.paper.data._cifar10 import read_cifar10
from hopfy.paper.data._tiny_imagenet import read_tiny_imagenet

RECORDS = np.random.default_rng(0).integers(0, 256, (4, 3073), dtype=np.uint8)
RECORDS[:, 0] = [3, 0, 9, 5]


def cifar(path: Path, **files: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_cifar_records_become_images_in_order(tmp_path):
    archive = cifar(
        tmp_path / "c.tar.gz", two=RECORDS[2:].tobytes(), one=RECORDS[:2].tobytes(), rest=b"x"
    )
    images, labels = read_cifar10(archive, ["one.bin", "two.bin"])
    assert labels.tolist() == [3, 0, 9, 5]
    assert images.shape == (4, 3, 32, 32)
    # The green value of the pixel in row 5, column 7 of the second image.
    assert int(images[1, 1, 5, 7]) == int(RECORDS[1, 1 + 1024 + 5 * 32 + 7])


def test_damaged_cifar_archives_are_refused(tmp_path):
    whole = cifar(tmp_path / "c.tar.gz", one=RECORDS.tobytes())
    with pytest.raises(ValueError, match=r"expected six\.bin"):
        read_cifar10(whole, ["six.bin"])
    cut = cifar(tmp_path / "cut.tar.gz", one=RECORDS.tobytes()[:-1])
    with pytest.raises(ValueError, match=r"records of 3073 bytes in one\.bin, got 12291"):
        read_cifar10(cut, ["one.bin"])
    (tmp_path / "half.tar.gz").write_bytes(whole.read_bytes()[:200])
    with pytest.raises(ValueError, match="damaged"):
        read_cifar10(tmp_path / "half.tar.gz", ["one.bin"])


CLASSES = ("n02", "n01")


def picture(color: tuple[int, int, int], size: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), color).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def tiny(path: Path, size: int = 64, classes: tuple[str, ...] = CLASSES) -> Path:
    root = "tiny-imagenet-200"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}/wnids.txt", "\n".join(classes))
        for number, kind in enumerate(CLASSES):
            for place in range(3):
                color = (200 * number, 80 * place, 10)
                name = f"{root}/train/{kind}/images/{kind}_{place}.JPEG"
                archive.writestr(name, picture(color, size))
        archive.writestr(f"{root}/val/images/val_0.JPEG", picture((0, 0, 250), size))
        archive.writestr(f"{root}/val/val_annotations.txt", "val_0.JPEG\tn01\t0\t0\t63\t63\n")
    return path


def test_tiny_imagenet_is_read_class_by_class(tmp_path):
    archive = tiny(tmp_path / "t.zip")
    images, labels = read_tiny_imagenet(archive, "train", per_class=2)
    assert labels.tolist() == [0, 0, 1, 1]
    assert images.shape == (4, 3, 64, 64)
    assert images.dtype is torch.uint8
    wanted = torch.tensor([[0, 0, 10], [0, 80, 10], [200, 0, 10], [200, 80, 10]])
    assert (images.float().mean((2, 3)) - wanted).abs().max() < 4  # what JPEG loses
    images, labels = read_tiny_imagenet(archive, "validation")
    assert labels.tolist() == [1]
    assert float(images[0, 2].float().mean()) > 240


def test_damaged_tiny_imagenet_archives_are_refused(tmp_path):
    with pytest.raises(ValueError, match="64 x 64 pixels, got \\(32, 32\\)"):
        read_tiny_imagenet(tiny(tmp_path / "small.zip", 32), "train")
    with pytest.raises(ValueError, match="got one of 'n01'"):
        read_tiny_imagenet(tiny(tmp_path / "class.zip", classes=("n02",)), "train")
    (tmp_path / "half.zip").write_bytes(tiny(tmp_path / "t.zip").read_bytes()[:500])
    with pytest.raises(ValueError, match="expected the archive of Tiny ImageNet"):
        read_tiny_imagenet(tmp_path / "half.zip", "train")


@pytest.mark.parametrize(
    ("load", "name"), [(data.cifar10, "cifar10"), (data.tiny_imagenet, "tiny_imagenet")]
)
def test_a_file_with_another_checksum_is_refused(load, name, tmp_path, monkeypatch):
    file = data.dataset(name).files[0].name
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_bytes(b"something else")
    monkeypatch.setenv("HOPFY_DATA", str(tmp_path))
    with pytest.raises(data.MissingDataError, match="SHA-256"):
        load()
    with pytest.raises(ValueError, match="expected split"):
        load("other")
