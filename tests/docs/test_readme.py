"""The examples that a reader meets first run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGES = ["README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_numbers_in_the_comments_are_true() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    import hopfy.functional as F

    claims = re.findall(r"^(F\.\w+\(scores, .*?\)) +#.*?\[([\d., ]+)\]", text, flags=re.MULTILINE)
    assert len(claims) == 2
    for call, numbers in claims:
        scores = torch.tensor([[1.0, 0.5, -1.0, -2.0]])
        answer = eval(call, {"F": F, "scores": scores})
        expected = torch.tensor([[float(n) for n in numbers.split(",")]])
        torch.testing.assert_close(answer, expected, rtol=0, atol=0.006)
