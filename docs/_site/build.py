"""Build the site: copy the pages, generate the others, run Sphinx with warnings as errors.

``python docs/_site/build.py [OUTPUT]``; nothing is written into ``docs/``, nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))


def copy_pages(source: Path) -> None:
    """The Markdown pages, the gallery and the files they link to."""
    if source.exists():
        shutil.rmtree(source)
    skip = shutil.ignore_patterns("_site", "__pycache__")
    shutil.copytree(ROOT / "docs", source, ignore=skip)
    for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](", text)
        text = re.sub(r"\]\((CONTRIBUTING|CHANGELOG|SECURITY)\.md", _lowered, text)
        (source / f"{name.lower()}.md").write_text(text, encoding="utf-8")
    for page in source.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(
            re.sub(r"\]\(\.\./(CONTRIBUTING|CHANGELOG|SECURITY)\.md", _lowered, text).replace(
                "](../CITATION.cff", "](CITATION.cff"
            ),
            encoding="utf-8",
        )
    shutil.copy(ROOT / "CITATION.cff", source)


def _lowered(found: re.Match[str]) -> str:
    return f"]({found.group(1).lower()}.md"


def generate(source: Path) -> None:
    """Pages and pictures that are made from the library and from recorded numbers."""
    from pictures import write_pictures
    from recall import write_recall
    from reference import write_reference
    from tables import write_tables

    write_reference(source / "reference")
    write_tables(source / "generated")
    write_pictures(source / "generated")
    write_recall(source / "generated")


def run_sphinx(source: Path, output: Path, *, examples: bool) -> int:
    from sphinx.cmd.build import main

    options = ["-W", "--keep-going", "-q", "-b", "html", "-c", str(Path(__file__).parent)]
    if not examples:
        options += ["-D", "plot_gallery=False"]
    return main([*options, "-d", str(source.parent / "doctrees"), str(source), str(output)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", nargs="?", type=Path, default=ROOT / "site")
    parser.add_argument("--without-examples", action="store_true", help="do not run the gallery")
    options = parser.parse_args()
    os.environ |= {"MPLBACKEND": "agg", "HOPFY_QUIET": "1"}
    source = ROOT / "build" / "docs" / "source"
    copy_pages(source)
    generate(source)
    code = run_sphinx(source, options.output, examples=not options.without_examples)
    if code == 0:
        print(f"The site is in {options.output / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
