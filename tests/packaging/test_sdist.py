"""The source distribution is whole: whoever unpacks it can run its tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of pyproject.toml")

ROOT = Path(__file__).parents[2]
PARTS = ("src", "tests", "docs", "examples", "benchmarks", ".github")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution of this checkout, built and unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def files_in(folder: Path) -> set[str]:
    """Paths of the files below the folder's parts, without what running leaves behind."""
    return {
        str(path.relative_to(folder))
        for part in PARTS
        for path in (folder / part).rglob("*")
        if path.is_file() and not {"__pycache__", ".hypothesis"} & set(path.parts)
    }


def test_every_file_is_in_it(unpacked: Path) -> None:
    assert files_in(unpacked) == files_in(ROOT)
    beside = {path.name for path in ROOT.iterdir() if path.is_file() and path.name[0] != "."}
    assert {"conftest.py", "Makefile", "pyproject.toml"} <= beside
    for name in beside - {"PKG-INFO"}:  # of an unpacked distribution
        assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_golden_answers_are_small(unpacked: Path) -> None:
    sizes = [path.stat().st_size for path in (unpacked / "tests" / "golden").iterdir()]
    assert len(sizes) == 10
    assert sum(sizes) < 300_000


@pytest.mark.slow
def test_its_own_tests_pass(unpacked: Path) -> None:
    """A part of the tests that reads golden files, pages, examples and the configuration."""
    some = ["tests/nn/test_nn_parity.py", "tests/docs", "tests/packaging", "src/hopfy/paper"]
    environment = {**os.environ, "PYTHONPATH": str(unpacked / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("HOPFY_DATA", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *some],
        cwd=unpacked,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_demo_needs_no_judges_or_linters() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    def packages(extra: str) -> set[str]:
        found = set()
        for each in extras[extra]:
            if each.startswith("hopfy["):
                for other in each.removeprefix("hopfy[").rstrip("]").split(","):
                    found |= packages(other)
            else:
                found.add(each.split(">")[0].split("=")[0].split(";")[0])
        return found

    interface, models = {"typer", "rich", "jinja2"}, {"scikit-learn", "skorch", "tqdm", "optuna"}
    assert packages("demo") == interface | models | {"matplotlib"}
    assert packages("bench") | packages("test") | packages("lint") == packages("dev")
