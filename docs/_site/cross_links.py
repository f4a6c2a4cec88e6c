"""Links that are made for the writer: short names in docstrings, equations and propositions.

Docstrings write `sparsemax` or `HopfieldNetwork.retrieve`; where one object of the library ends in
that name, it becomes a link. ``Eq. 8`` and ``Prop. 2`` in a docstring lead to the page of equations.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.nodes import make_refnode

CITED = re.compile(r"(?<![\w`])(Eq|Prop|Def|Alg)\. (\d+)(?![\w`])")
IN_CODE = re.compile(r"^\s*(>>>|\.\.\. )")
# Shapes such as (..., *event) are no emphasis.
STARRED = re.compile(r"(?<![\w*\\`])\*(?=(event|factor|batch|shape)\b)")
# Methods that scikit-learn adds to estimators, with references to its own glossary.
REQUEST = re.compile(r"(set_\w+_request|get_metadata_routing)$")


def process_docstring(
    app: Sphinx, kind: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Turn ``Eq. 8`` into a link, outside of code and tables; write stars of shapes as they are."""
    in_table = False
    for number, line in enumerate(lines):
        if line.strip().startswith("===="):
            in_table = bool(number + 1 < len(lines) and lines[number + 1].strip())
        if in_table or IN_CODE.match(line):
            continue
        line = STARRED.sub(r"\\*", line)
        if ":math:" not in line and r"\text" not in line:
            line = CITED.sub(_reference, line)
        lines[number] = line


def skip_member(
    app: Sphinx, kind: str, name: str, thing: object, skip: bool, options: object
) -> bool | None:
    return True if REQUEST.match(name) else None


def _reference(found: re.Match[str]) -> str:
    kind, number = found.groups()
    return f":ref:`{kind}. {number} <{kind.lower()}-{number}>`"


def resolve_short_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """The one object of the library whose full name ends in the short one, if there is one."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removeprefix("F.").rstrip("()")
    objects = env.get_domain("py").objects
    found = [name for name in objects if name == target or name.endswith(f".{target}")]
    found = [name for name in found if not objects[name].aliased]
    first = [name for name in found if name.count(".") == min(n.count(".") for n in found)]
    if len(first) != 1:
        return None
    entry = objects[first[0]]
    return make_refnode(
        app.builder, node["refdoc"], entry.docname, entry.node_id, content, first[0]
    )


def _whole_text(parser: GoogleDocstring) -> tuple[str, list[str]]:
    """The type (none) and the text of a property: a colon in its first line is only a colon."""
    return "", parser._dedent(parser._consume_to_end())


def setup(app: Sphinx) -> dict[str, Any]:
    GoogleDocstring._consume_inline_attribute = _whole_text  # type: ignore[method-assign]
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("missing-reference", resolve_short_name)
    return {"parallel_read_safe": True}
