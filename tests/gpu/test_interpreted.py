"""The Triton kernels under Triton's interpreter, in a process of its own.

Whether kernels are interpreted is decided when they are decorated, so the laws run in a process that
sets ``TRITON_INTERPRET`` before anything is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hopfy

pytest.importorskip("triton")
HERE = Path(__file__).parent
PATHS = (str(Path(hopfy.__file__).parents[1]), str(HERE / "interpreted"))


def run(laws: str, select: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning", "-m", select]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(HERE / "interpreted" / laws)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(PATHS), "TRITON_INTERPRET": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=5400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


LAWS = ["rows.py", "attention.py", "races.py", "devices.py", "bench.py"]


@pytest.mark.parametrize("laws", LAWS)
def test_laws(laws: str) -> None:
    run(laws, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("laws", ["rows.py", "attention.py", "devices.py", "bench.py"])
def test_more_laws(laws: str) -> None:
    run(laws, "slow")
