"""Checks of the built site: it describes every public name and loads nothing from elsewhere.

``python docs/_site/check.py [SITE]`` prints what is wrong and fails if anything is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Attributes whose address the browser fetches by itself; links that wait for a click are not.
FETCHED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "video": ("src", "poster"),
}
QUIET_LINKS = {"canonical", "search", "index", "next", "prev", "author", "license"}
ADDRESS = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)
IN_CSS = re.compile(r"""(?:url\(\s*|@import\s+)['"]?((?:https?:)?//[^'")\s]+)""", re.IGNORECASE)
IN_SCRIPT = re.compile(r"""(?:fetch|import|importScripts|open)\(\s*['"](https?://[^'"]+)""")


class _Resources(HTMLParser):
    """Addresses of other hosts that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.found += IN_CSS.findall(values.get("style", ""))
        if tag == "link" and set(values.get("rel", "").split()) <= QUIET_LINKS:
            return
        for name in FETCHED.get(tag, ()):
            if ADDRESS.match(values.get(name, "")):
                self.found.append(values[name])

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.found += IN_CSS.findall(data)


def external_resources(text: str, kind: str) -> list[str]:
    """What a file of this kind (``.html``, ``.css``, ``.js``) would load from another host."""
    if kind == ".html":
        parser = _Resources()
        parser.feed(text)
        return parser.found
    return (IN_CSS if kind == ".css" else IN_SCRIPT).findall(text)


def foreign(site: Path) -> Iterator[str]:
    """One line for each resource that a page, a style sheet or a script loads from elsewhere."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".js"):
            for address in external_resources(path.read_text(encoding="utf-8"), path.suffix):
                yield f"{path.relative_to(site)} loads {address}"


def public_names(snapshot: Path) -> Iterator[str]:
    """Every name on record: modules' names and the members that hopfy's own classes define."""
    for line in snapshot.read_text(encoding="utf-8").splitlines():
        if line.startswith("hopfy") and not line.endswith("(module)"):
            yield re.split(r"[(\s]", line)[0]


def undescribed(site: Path, snapshot: Path) -> list[str]:
    """Public names that have no entry in the API reference."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda _, path: path)
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    return [name for name in public_names(snapshot) if name not in known]


def problems(site: Path) -> list[str]:
    """All that is wrong with the built site."""
    missing = undescribed(site, ROOT / "tests" / "docs" / "public_api.txt")
    return [*foreign(site), *(f"{name} is not in the API reference" for name in missing)]


def main() -> int:
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    found = problems(site)
    print(
        "\n".join(found) or f"{site}: every public name is described, nothing is loaded from afar"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
