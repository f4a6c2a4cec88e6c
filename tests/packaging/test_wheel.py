"""The wheel is whole, and passes the tests of the source distribution where nothing else is hopfy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of pyproject.toml")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=180)
    return folder


def test_every_module_and_data_file_is_in_the_wheel(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "hopfy").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
    assert "hopfy/py.typed" in names


def test_the_metadata_says_what_people_look_for(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if name.endswith("METADATA")]
        text = content.read(name).decode()
    for label in ("Documentation", "Source", "Issues", "Changelog"):
        assert f"Project-URL: {label}, https://" in text
    for classifier in ("Operating System :: MacOS", "Typing :: Typed"):
        assert f"Classifier: {classifier}" in text
    assert "License-Expression: MIT" in text


def test_the_workflows_try_every_supported_python() -> None:
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    supported = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), flags=re.MULTILINE)
    assert len(supported) == 4
    assert all(f'"{version}"' in text for version in supported)
    (oldest,) = [each for each in PROJECT["dependencies"] if each.startswith("torch")]
    assert f'"{oldest.removeprefix("torch>=")}.*"' in text


def test_the_citation_names_the_paper_and_the_project() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert "cff-version: 1.2.0" in text
    assert PROJECT["urls"]["Source"] in text
    assert PROJECT["urls"]["Paper"] in text


def test_the_changelog_has_the_version() -> None:
    source = (ROOT / "src" / "hopfy" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', source, flags=re.MULTILINE)
    headings = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", headings, re.MULTILINE)


@pytest.mark.slow
def test_the_wheel_passes_tests_in_an_environment_of_its_own(built: Path, tmp_path: Path) -> None:
    """Dependencies are those of this environment, on the path behind the wheel; its hopfy is not."""
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    (place,) = (each for each in home.rglob("site-packages") if each.is_dir())
    zipfile.ZipFile(wheel).extractall(place)
    (place / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    with tarfile.open(sdist) as content:
        content.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HOPFY_DATA")}
    clean["OMP_NUM_THREADS"] = "1"
    where = subprocess.run(
        [str(python), "-c", "import hopfy; print(hopfy.__file__)"],
        env=clean, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(place)
    some = ["tests/nn/test_nn_parity.py", "tests/docs/test_public_api.py", "tests/losses"]
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *some],
        env=clean, cwd=unpacked, capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
