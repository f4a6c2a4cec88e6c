"""Formulas as MathML, converted when the site is built: readers need no script.

Browsers have drawn MathML by themselves since 2023. The font with the measures of mathematical
typesetting (STIX Two Math) comes with the package ziamath; the part of it that formulas use is
written beside the style sheet.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

# Notation of the paper and of our docstrings that the converter does not know.
MACROS = {r"\bm": r"\mathbf", r"\nonumber": "", r"\tfrac": r"\frac", r"\dfrac": r"\frac"}
MACROS |= {r"\argmax": r"\arg\max", r"\argmin": r"\arg\min"}
COMMAND = re.compile(r"\\[A-Za-z]+")
NAMESPACE = "http://www.w3.org/1998/Math/MathML"
LIMITS = {"max", "min", "sup", "inf"}
RELATIONS = {"\u27fa", "\u21d2", "\u21d4", "\u2190", "\u2192"}
# First letters of the alphabets that MathML Core wants as characters, not as attributes.
ALPHABETS = {
    "bold": {"A": 0x1D400, "a": 0x1D41A, "0": 0x1D7CE},
    "script": {"A": 0x1D49C, "a": 0x1D4B6},
    "double-struck": {"A": 0x1D538, "a": 0x1D552, "0": 0x1D7D8},
}
HOLES = {"\U0001d53a": "ℂ", "\U0001d53f": "ℍ", "\U0001d545": "ℕ", "\U0001d547": "ℙ"}
HOLES |= {"\U0001d548": "ℚ", "\U0001d549": "ℝ", "\U0001d551": "ℤ", "\U0001d49d": "ℬ"}
HOLES |= {"\U0001d4a0": "ℰ", "\U0001d4a1": "ℱ", "\U0001d4a3": "ℋ", "\U0001d4a4": "ℐ"}
HOLES |= {"\U0001d4a7": "ℒ", "\U0001d4a8": "ℳ", "\U0001d4ad": "ℛ"}
# Characters of formulas: Latin, Greek, accents, arrows, operators, letters of the alphabets.
USED = "U+20-7E,U+A0-FF,U+302-338,U+370-3FF,U+2010-2070,U+2100-2194,U+21D0-21D4,U+2200-22FF,"
USED += "U+2308-230B,U+25B3,U+27E8-27FA,U+2A7D-2A7E,U+1D400-1D7FF"


def to_mathml(latex: str, *, block: bool) -> str:
    """The ``<math>`` element of a formula.

    >>> to_mathml("x^2", block=False).startswith("<math")
    True
    """
    source = COMMAND.sub(lambda found: MACROS.get(found.group(), found.group()), latex.strip())
    if block and ("\\\\" in source or "&" in source) and "\\begin" not in source:
        source = rf"\begin{{aligned}}{source}\end{{aligned}}"
    tree = ET.fromstring(convert(source, display="block" if block else "inline"))
    for element in tree.iter():
        _mend(element, block=block)
    ET.register_namespace("", NAMESPACE)
    return ET.tostring(tree, encoding="unicode")


def _mend(element: ET.Element, *, block: bool) -> None:
    """What the converter writes and browsers do not draw, as they draw it."""
    text = element.text or ""
    if text == r"\arg":
        element.tag, element.text = f"{{{NAMESPACE}}}mo", "arg"
        element.attrib.update(lspace="0", rspace="0.1em")
    elif text in RELATIONS:
        element.tag = f"{{{NAMESPACE}}}mo"
        element.attrib.update(lspace="0.28em", rspace="0.28em")
    elif text.startswith("\\"):
        raise ValueError(f"unknown command {text}")
    first = element[0].text if len(element) else None
    if block and element.tag.endswith("}msub") and first in LIMITS:
        element.tag = f"{{{NAMESPACE}}}munder"
    variant = ALPHABETS.get(element.get("mathvariant", ""))
    if variant and len(text) == 1:
        _restyle(element, text, variant)


def _restyle(element: ET.Element, text: str, variant: dict[str, int]) -> None:
    start = "0" if text.isdigit() else "A" if text.isupper() else "a"
    if start in variant and text.isascii():
        letter = chr(variant[start] + ord(text) - ord(start))
        element.text = HOLES.get(letter, letter)
        del element.attrib["mathvariant"]


def _written(node: nodes.Node, *, block: bool) -> str:
    latex = node.astext()
    try:
        return to_mathml(latex, block=block)
    except Exception as problem:  # the converter raises many kinds
        logger.warning("formula %r cannot be converted: %r", latex, problem, location=node)
        return f"<code>{latex}</code>"


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_written(node, block=False))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    anchor = f' id="{node["ids"][0]}"' if node.get("ids") else ""
    self.body.append(f'<div class="formula"{anchor}>{_written(node, block=True)}</div>\n')
    raise nodes.SkipNode


def write_font(app: Sphinx, problem: Exception | None) -> None:
    """The used part of the font, with its tables of mathematical measures."""
    from fontTools import subset

    if problem is not None or app.builder.name != "html":
        return
    source = resources.files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"
    target = Path(app.outdir) / "_static" / "stix-two-math.woff"
    options = [f"--unicodes={USED}", "--flavor=woff", "--layout-features=*"]
    with resources.as_file(source) as font:
        subset.main([str(font), *options, f"--output-file={target}"])


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "mathml"
    app.connect("build-finished", write_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
