"""Sharded networks give the answers of one network, on real gloo process groups."""

from __future__ import annotations

import pytest
import torch

from judges import sharded
from judges.processes import Processes


def _slow(value: object) -> object:
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize("kind", ["empty", "single", _slow("even")])
def test_answers_are_those_of_one_process(processes: Processes, kind: str) -> None:
    processes.run(sharded.answers_are_those_of_one_process, kind, torch.float64)


@pytest.mark.slow
def test_answers_in_single_precision(processes: Processes) -> None:
    processes.run(sharded.answers_are_those_of_one_process, "even", torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bits_are_those_of_one_index(processes: Processes, dtype: torch.dtype) -> None:
    processes.run(sharded.bits_are_those_of_one_index, dtype)


def test_sharded_queries_get_their_own_answers(processes: Processes) -> None:
    processes.run(sharded.sharded_queries_get_their_own_answers)


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_gradients_are_those_of_one_process(processes: Processes, layout: str) -> None:
    processes.run(sharded.gradients_are_those_of_one_process, "single", layout)
