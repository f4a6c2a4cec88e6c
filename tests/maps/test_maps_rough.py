"""Rough use: forks, threads, no cache, no numba, and bad input."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import hopfy
from hopfy import functional as F

SOURCE = Path(hopfy.__file__).parents[1]


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(SOURCE)} | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


class _Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        scores = torch.arange(200_000.0).reshape(2000, 100).sin() * (index + 1)
        return F.entmax(scores, 1.5).sum() + F.ksubsets(scores, 3).sum()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_after_the_parent_used_the_threads() -> None:
    data = _Rows()
    expected = [data[i] for i in range(4)]  # starts the threads of the parent
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    torch.testing.assert_close(list(loader), expected)


def test_eight_threads_at_once() -> None:
    scores = torch.randn(1500, 60)
    expected = F.entmax(scores, 1.5), F.normmax(scores, 5.0), F.ksubsets(scores, 4)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(8):
            answer = F.entmax(scores, 1.5), F.normmax(scores, 5.0), F.ksubsets(scores, 4)
            if not all(torch.equal(a, e) for a, e in zip(answer, expected, strict=True)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_number_of_threads_does_not_change_the_answer() -> None:
    scores = torch.randn(999, 130)
    before = torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            leaf = scores.clone().requires_grad_()
            F.entmax(leaf, 1.3).square().sum().backward()
            answers.append((F.ksubsets(scores, 7), leaf.grad))
    finally:
        torch.set_num_threads(before)
    for answer in answers[1:]:
        assert torch.equal(answer[0], answers[0][0])
        assert torch.equal(answer[1], answers[0][1])


@pytest.mark.parametrize("size", [3, 200])
@pytest.mark.parametrize("first", [-torch.inf, torch.nan])
@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("entmax", 1.3),
        ("entmax", 1.5),
        ("normmax", 2.0),
        ("ksubsets", 2.0),
        ("entropic_ksubsets", 2.0),
        ("capped_sparsemax", 0.5),
    ],
)
def test_a_first_row_without_an_answer_leaves_the_others(
    name: str, parameter: float, first: float, size: int
) -> None:
    """What rows share must not come from the first of them only if that has an answer."""
    scores = torch.randn(4, size, dtype=torch.float64)
    with_first = torch.cat([torch.full((1, size), first, dtype=torch.float64), scores])
    function = getattr(F, name)
    assert torch.equal(function(with_first, parameter)[1:], function(scores, parameter))


def test_without_numba_torch_takes_over_with_one_warning() -> None:
    program = """
import sys, warnings
sys.modules["numba"] = None
import torch
from hopfy import functional as F
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    s = torch.tensor([1.0, 0.5, -1.0], requires_grad=True)
    for _ in range(3):
        F.entmax(s, 1.5).square().sum().backward()
        F.normmax(s, 5.0), F.ksubsets(s, 2), F.sparsemax(s)
weights = [round(w, 5) for w in F.sparsemax(s).tolist()]
print(len([w for w in caught if "numba" in str(w.message)]), weights)
"""
    result = run(program)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "1 [0.75, 0.25, 0.0]"


def test_without_a_place_for_the_cache(tmp_path: Path) -> None:
    """numba refuses to decorate when it finds no writable folder; the kernels compile anyway."""
    program = """
import numba.core.caching
for kind in vars(numba.core.caching).values():
    if hasattr(kind, "_locator_classes"):
        kind._locator_classes = []
import torch
from hopfy import functional as F
print(F.ksubsets(torch.tensor([3.0, 1.0, 0.5, -1.0]), 2).tolist())
"""
    result = run(program, HOME=str(tmp_path / "nowhere"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[1.0, 0.75, 0.25, 0.0]"


def test_importing_hopfy_does_not_import_numba() -> None:
    result = run("import sys, hopfy; print('numba' in sys.modules, 'sympy' in sys.modules)")
    assert result.stdout.split()[0] == "False", result.stderr


INTEGERS = torch.tensor([1, 2, 3])
SCORES = torch.randn(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.sparsemax([1.0, 2.0]), TypeError, "expected scores to be a torch.Tensor, got list"),
        (lambda: F.sparsemax(INTEGERS), TypeError, "floating dtype, got torch.int64"),
        (lambda: F.entmax(SCORES.to(torch.complex64)), TypeError, "floating dtype, got torch.complex64"),
        (lambda: F.softmax(torch.tensor(1.0)), ValueError, "at least one dimension"),
        (lambda: F.entmax(SCORES, 0.5), ValueError, "expected alpha >= 1 .*, got 0.5"),
        (lambda: F.entmax(SCORES, float("nan")), ValueError, "expected alpha >= 1 .*, got nan"),
        (lambda: F.entmax(SCORES, "2"), TypeError, "expected alpha to be a number or a tensor, got '2'"),
        (lambda: F.entmax(SCORES, True), TypeError, "expected alpha to be a number"),
        (lambda: F.entmax(SCORES, torch.tensor([1.5, 0.9])), ValueError, "every alpha .*, got 0.9"),
        (lambda: F.entmax(SCORES, torch.ones(5)), ValueError, r"broadcast over the rows \(2,\)"),
        (lambda: F.entmax(SCORES, torch.ones(2, 3)), ValueError, r"got shape \(2, 3\)"),
        (lambda: F.normmax(SCORES, 1.0), ValueError, "expected alpha > 1 .*, got 1.0"),
        (lambda: F.ksubsets(SCORES, 4), ValueError, "k between 0 and the row's size 3, got 4"),
        (lambda: F.ksubsets(SCORES, -1), ValueError, "k between 0 and the row's size 3, got -1"),
        (lambda: F.ksubsets(SCORES, torch.tensor([1, 7])), ValueError, "every k .*, got 7"),
        (
            lambda: F.ksubsets(SCORES, 2, mask=torch.tensor([[True] * 3, [True, False, False]])),
            ValueError,
            "row 1 has fewer",
        ),
        (lambda: F.entropic_ksubsets(SCORES, 4), ValueError, "k between 0 and the row's size 3, got 4"),
        (
            lambda: F.entropic_ksubsets(SCORES, 2, mask=torch.tensor([[True] * 3, [True, False, False]])),
            ValueError,
            "row 1 has fewer",
        ),
        (lambda: F.capped_sparsemax(SCORES, -0.1), ValueError, "expected upper >= 0, got -0.1"),
        (lambda: F.capped_sparsemax(SCORES, SCORES - 9), ValueError, "expected every upper >= 0, got"),
        (lambda: F.capped_sparsemax(SCORES, 0.3), ValueError, "row 1 add up to less"),
        (lambda: F.capped_sparsemax(SCORES, torch.ones(2)), ValueError, r"broadcast .* got shape \(2,\)"),
        (lambda: hopfy.omega.EntropicKSubsets(-1), ValueError, "expected k >= 0, got -1"),
        (lambda: hopfy.omega.EntropicKSubsets(float("inf")), ValueError, "at most the number of entries"),
        (lambda: hopfy.omega.Capped(float("nan")), ValueError, "expected upper >= 0, got nan"),
        (lambda: F.softmax(SCORES, dim=2), IndexError, r"dim in \[-2, 1\] .*, got 2"),
        (lambda: F.softmax(SCORES, dim=1.0), TypeError, "dim to be an integer, got 1.0"),
        (lambda: F.softmax(SCORES, mask=torch.ones(2, 3)), TypeError, "boolean tensor .*, got torch.float32"),
        (
            lambda: F.softmax(SCORES, mask=torch.ones(4, dtype=torch.bool)),
            ValueError,
            r"broadcasts to the scores' shape \(2, 3\), got shape \(4,\)",
        ),
        (lambda: hopfy.Tsallis(0.0), ValueError, "expected alpha >= 1"),
        (lambda: hopfy.Norm(1), ValueError, "expected alpha > 1"),
        (lambda: hopfy.structures.KSubsets(-2), ValueError, "expected k >= 0, got -2"),
        (lambda: hopfy.omega_from("softermax"), ValueError, "expected a name such as .*, got 'softermax'"),
        (lambda: hopfy.omega_from(3), TypeError, "expected a name such as .*, got 3"),
        (lambda: hopfy.FenchelYoungLoss("softmax", reduction="max"), ValueError, "reduction .* got 'max'"),
        (
            lambda: hopfy.FenchelYoungLoss("softmax")(SCORES, torch.tensor([0, 3])),
            IndexError,
            r"class indices in \[0, 2\], got 3",
        ),
        (
            lambda: hopfy.FenchelYoungLoss("softmax")(SCORES, torch.tensor([0, 1, 2])),
            ValueError,
            r"class indices of shape \(2,\)",
        ),
        (
            lambda: hopfy.Shannon().loss(SCORES, torch.ones(5)),
            ValueError,
            r"target that broadcasts .* got shape \(5,\)",
        ),
    ],
)  # fmt: skip
def test_bad_input_gets_one_message(call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        call()
    message = str(raised.value)
    assert message.endswith(".")
    assert "\n" not in message
