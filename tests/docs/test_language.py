"""Code and docs are written in American spelling and in plain words.

The scan reads words, also those inside identifiers (``regularise_rows`` is three words). What is
allowed is listed here, with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "docs", "tests", "examples")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")
SUFFIXES = {".py", ".md", ".toml", ".yml", ".html", ""}

# Verbs in -ise, by stem: -ise, -ised, -ises, -ising, -iser(s), -isation(s).
STEMS = (
    "analog|apolog|author|capital|categor|central|character|color|compartmental|"
    "critic|custom|digit|discret|emphas|equal|factor|final|formal|general|homogen|"
    "idol|initial|ital|linear|local|maxim|material|memor|minim|mobil|modern|neutral|"
    "normal|optim|organ|parallel|parametr|penal|personal|polar|popular|prior|quant|"
    "random|rational|real|recogn|regular|revital|serial|social|special|stabil|"
    "standard|steril|summar|symbol|symmetr|synchron|token|unit|util|vector|visual|"
    "vocal"
)
VERBS = re.compile(rf"(re|de|un|non|pre)?({STEMS})is(e[drs]?|ers|ing|ations?|able)", re.I)

BRITISH = {
    "colour", "colours", "coloured", "behaviour", "behaviours", "neighbour", "neighbours",
    "neighbouring", "neighbourhood", "favour", "favours", "favoured", "favourite", "honour", "honours",
    "honoured", "labour", "rumour", "vapour", "flavour", "flavours", "centre", "centres", "centred",
    "metre", "metres", "fibre", "theatre", "analyse", "analysed", "analysing",
    "catalogue", "catalogues", "grey", "labelled", "labelling", "modelled", "modelling",
    "travelled", "travelling", "cancelled", "cancelling", "signalled", "signalling", "fulfil",
    "fulfils", "licence", "defence", "offence", "artefact", "artefacts", "judgement", "ageing",
    "learnt", "spelt", "whilst", "amongst", "towards", "afterwards", "programme", "programmes",
    "sceptical", "manoeuvre", "plough", "tyre", "cheque", "enrol", "skilful",
}  # fmt: skip
METAPHORS = (
    r"becomes? a sentence", r"(raise|raises|gets?|is|are|in) (a|one) sentence", r"one_sentence",
    r"\bdoors?\b", r"floors? of the house", r"\bspoils\b", r"\bcannot spoil\b", r"had to say", r"\banybody\b",
    r"\bsomebody\b", r"\bnobody\b", r"\bthe seam\b", r"anybody will ask",
)  # fmt: skip
ALLOWED = {
    ("src/hopfy/nn/_hopfield.py", "normalise"),  # the old name of an argument, refused by name
    ("tests/nn/test_nn.py", "normalise"),
    ("tests/docs/test_renamed.py", "normalise"),
    ("CHANGELOG.md", "normalise"),
}
WORD = re.compile(r"[A-Za-z]+")


def _texts() -> Iterator[tuple[str, str]]:
    own = Path(__file__).resolve()
    paths = [ROOT / name for name in FILES]
    for folder in FOLDERS:
        paths += sorted((ROOT / folder).rglob("*"))
    for path in paths:
        hidden = any(part.startswith(("_build", "__pycache__", ".")) for part in path.parts)
        if path.is_file() and path.suffix in SUFFIXES and not hidden and path.resolve() != own:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def _british(text: str) -> set[str]:
    words = {word.lower() for word in WORD.findall(text)}
    return {word for word in words if word in BRITISH or VERBS.fullmatch(word)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a regulariser that penalises", {"regulariser", "penalises"}),
        ("def initialise_rows(): ...", {"initialise"}),
        ("the Centre of its neighbours", {"centre", "neighbours"}),
        ("raise, noise, precise, otherwise, concise, supervised, realistic, rationales", set()),
        ("analysis, emphasis, normalize, center, neighbor, promise, exercise, advise", set()),
    ],
)
def test_the_scan_tells_the_spellings_apart(text: str, found: set[str]) -> None:
    assert _british(text) == found


def test_the_spelling_is_american() -> None:
    found = {(name, word) for name, text in _texts() for word in _british(text)}
    assert found - ALLOWED == set()


def test_the_words_are_plain() -> None:
    pattern = re.compile("|".join(METAPHORS), re.IGNORECASE)
    found = [(name, match.group()) for name, text in _texts() for match in pattern.finditer(text)]
    assert found == []


UNWRAPPED = {"docs/gpu-resources.md"}
"""Generated, with long lines."""
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = [*(ROOT / name for name in OUTSIDE), *sorted((ROOT / "docs").glob("*.md"))]
# Tables, directives, labels, pictures and indented code cannot be wrapped.
NOT_PROSE = re.compile(r" *\||:|\(.*\)=$|!\[|    ")


def _prose(text: str) -> Iterator[str]:
    fence = None
    for line in text.splitlines():
        mark = line.strip()[:3] if line.strip().startswith(("```", "$$")) else None
        if mark is not None:
            fence = mark if fence is None else None
        elif fence is None and not NOT_PROSE.match(line):
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_prose_is_wrapped(page: Path) -> None:
    if page.relative_to(ROOT).as_posix() in UNWRAPPED:
        pytest.skip("a page with long lines")
    long = [line for line in _prose(page.read_text(encoding="utf-8")) if len(line) > 100]
    assert long == []
