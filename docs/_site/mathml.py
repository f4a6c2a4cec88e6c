"""Formulas as MathML, converted when the site is built: readers need no script and no font.

Browsers have drawn MathML by themselves since 2023. Inline formulas and blocks keep their LaTeX
source as an annotation, so that a copied formula can be pasted elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

# Notation of the paper and of our docstrings that the converter does not know.
MACROS = {
    r"\bm": r"\mathbf",
    r"\triangle": r"\Delta",
    r"\argmax": r"\operatorname*{arg\,max}",
    r"\argmin": r"\operatorname*{arg\,min}",
    r"\nonumber": "",
    r"\tfrac": r"\frac",
    r"\dfrac": r"\frac",
}
COMMAND = re.compile(r"\\[A-Za-z]+")


def to_mathml(latex: str, *, block: bool) -> str:
    """The ``<math>`` element of a formula.

    >>> to_mathml("x^2", block=False).startswith("<math")
    True
    """
    source = COMMAND.sub(lambda found: MACROS.get(found.group(), found.group()), latex.strip())
    if block and ("\\\\" in source or "&" in source) and "\\begin" not in source:
        source = rf"\begin{{aligned}}{source}\end{{aligned}}"
    return convert(source, display="block" if block else "inline")


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


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
