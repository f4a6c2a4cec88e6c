"""`hopfy.use_backend`: every backend gives the same answers, and the choice is local."""

from __future__ import annotations

import threading

import pytest
import torch

import hopfy
from hopfy import functional as F
from hopfy._runtime import backends
from hopfy._runtime.backends import backend_for, chosen_backend
from judges.registry import MAPS, Map, every_map


@every_map
def test_the_reference_gives_the_same_weights_and_gradients(map: Map) -> None:
    scores = torch.randn(4, 23, dtype=torch.float64)
    cotangent = torch.randn_like(scores)
    answers = []
    for backend in ("auto", "reference", "cpu"):
        leaf = scores.clone().requires_grad_()
        with hopfy.use_backend(backend):
            weights = map(leaf)
        (gradient,) = torch.autograd.grad(weights, leaf, cotangent)  # outside of the block
        answers.append((weights.detach(), gradient))
    for weights, gradient in answers[1:]:
        torch.testing.assert_close(weights, answers[0][0], rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient, answers[0][1], rtol=1e-9, atol=1e-9)


def test_choices_nest_and_end_with_their_block() -> None:
    assert chosen_backend() == "auto"
    with hopfy.use_backend("reference"):
        with hopfy.use_backend("cpu"):
            assert chosen_backend() == "cpu"
        assert chosen_backend() == "reference"
        with pytest.raises(ZeroDivisionError), hopfy.use_backend("auto"):
            raise ZeroDivisionError
        assert chosen_backend() == "reference"
    assert chosen_backend() == "auto"


def test_one_object_can_be_entered_again_and_decorate() -> None:
    choice = hopfy.use_backend("reference")
    with choice, choice:
        assert chosen_backend() == "reference"
    assert chosen_backend() == "auto"

    @choice
    def depth(n: int) -> int:
        assert chosen_backend() == "reference"
        return 0 if n == 0 else 1 + depth(n - 1)

    assert depth(3) == 3
    assert chosen_backend() == "auto"


def test_a_choice_stays_in_its_thread() -> None:
    seen = []
    with hopfy.use_backend("reference"):
        thread = threading.Thread(target=lambda: seen.append(chosen_backend()))
        thread.start()
        thread.join()
    assert seen == ["auto"]


def test_the_backward_pass_uses_the_backend_of_the_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = torch.randn(3, 5, requires_grad=True)
    with hopfy.use_backend("reference"):
        loss = F.sparsemax(scores).square().sum()
    monkeypatch.setattr("hopfy._kernels.entmax.cpu.vjp", None)  # calling it would fail
    loss.backward()
    assert scores.grad is not None


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(ValueError, match="'auto', 'reference', 'cpu', 'triton', got 'numba'"):
        hopfy.use_backend("numba")


@pytest.mark.parametrize(("name", "package"), [("cpu", "numba"), ("triton", "triton")])
def test_a_missing_package_is_named(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, f"{package}_is_available", lambda: False)
    with pytest.raises(RuntimeError, match=f"needs {package}.*pip install '?{package}"):
        hopfy.use_backend(name).__enter__()
    assert chosen_backend() == "auto"


def test_without_numba_every_map_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(4, 9)
    expected = [map(scores) for map in MAPS]
    monkeypatch.setattr(backends, "numba_is_available", lambda: False)
    assert backend_for(scores) == "reference"
    for map, weights in zip(MAPS, expected, strict=True):
        torch.testing.assert_close(map(scores), weights, rtol=0, atol=1e-5)


def test_what_serves_which_tensor() -> None:
    plain = torch.randn(3)
    assert backend_for(plain) == backend_for(torch.nn.Parameter(plain)) == "cpu"
    assert backend_for(plain.double()) == "cpu"
    assert backend_for(plain.half()) == backend_for(plain.to("meta")) == "reference"

    class Marked(torch.Tensor):
        pass

    assert backend_for(plain.as_subclass(Marked)) == "reference"
    seen = []
    torch.vmap(lambda row: seen.append(backend_for(row)) or row)(torch.randn(2, 3))
    assert seen == ["reference"]
    with torch._subclasses.FakeTensorMode() as mode:
        assert backend_for(mode.from_tensor(plain)) == "reference"
        assert F.ksubsets(mode.from_tensor(plain), 2).shape == (3,)


def test_triton_serves_the_cpu_only_when_it_interprets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "triton_is_available", lambda: True)
    scores = torch.randn(3)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with hopfy.use_backend("triton"):
        assert backend_for(scores) == "reference"
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        assert backend_for(scores) == "triton"
    assert backend_for(scores) == "cpu"
