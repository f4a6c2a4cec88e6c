"""The console script: quick answers without torch, and messages about missing packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hopfy_command

SOURCE = Path(hopfy_command.__file__).parent
# Runs the script with some packages hidden, and says which of the slow ones were imported.
SCRIPT = """
import sys
from importlib.abc import MetaPathFinder

hidden = set(sys.argv[1].split(","))
class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

real = __import__("importlib.util").util.find_spec
__import__("importlib.util").util.find_spec = lambda name: None if name in hidden else real(name)
import hopfy_command
sys.argv = ["hopfy", *sys.argv[2:]]
try:
    hopfy_command.main()
finally:
    print("torch" in sys.modules)
"""


def run(hidden: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own."""
    call = [sys.executable, "-c", SCRIPT, hidden, *arguments]
    return subprocess.run(
        call, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(SOURCE)}
    )


@pytest.mark.parametrize(
    ("hidden", "command", "extra"),
    [
        ("panel", "explore", "explore"),
        ("bokeh", "explore", "explore"),
        ("matplotlib", "demo", "demo"),
        ("sklearn", "reproduce", "demo"),
        ("faiss", "bench", "bench"),
        ("typer", "data", "cli"),
    ],
)
def test_a_missing_package_is_one_line_without_torch(hidden, command, extra):
    result = run(hidden, command)
    assert result.returncode != 0
    assert result.stdout.strip() == "False"
    (line,) = result.stderr.strip().splitlines()
    assert hidden in line
    assert line.endswith(f"pip install 'hopfy[{extra}]'")


def test_the_version_needs_no_torch():
    import hopfy

    result = run("panel", "--version")
    assert result.stdout.splitlines() == [f"hopfy {hopfy.__version__}", "False"]


def test_help_needs_no_extra_but_the_command_line():
    assert hopfy_command.missing_extra(["explore", "--help"]) is None
    assert hopfy_command.missing_extra([]) is None
