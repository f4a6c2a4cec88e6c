"""Sharded networks give the answers of one network, on real gloo process groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

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


@pytest.mark.parametrize("how", ["by a tree", "dealt"])
@pytest.mark.parametrize("dtype", [torch.float32, _slow(torch.float64)], ids=str)
def test_bits_hold_in_large_problems(processes: Processes, dtype: torch.dtype, how: str) -> None:
    processes.run(sharded.bits_hold_in_large_problems, dtype, how)


def test_sharded_queries_get_their_own_answers(processes: Processes) -> None:
    processes.run(sharded.sharded_queries_get_their_own_answers)


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_gradients_are_those_of_one_process(processes: Processes, layout: str) -> None:
    processes.run(sharded.gradients_are_those_of_one_process, "single", layout)


@pytest.mark.parametrize("name", sharded.STATES)
def test_states_are_those_of_one_process(processes: Processes, name: str) -> None:
    processes.run(sharded.states_are_those_of_one_process, name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [name for name in sharded.STATES if "sign" not in name])
def test_halves_are_those_of_one_process(three: Processes, name: str, dtype: torch.dtype) -> None:
    three.run(sharded.halves_are_those_of_one_process, name, dtype)


@pytest.mark.parametrize("layout", ["replicated", _slow("sharded")])
def test_gradient_modes_are_those_of_one_process(processes: Processes, layout: str) -> None:
    processes.run(sharded.gradient_modes_are_those_of_one_process, layout)


def test_a_network_comes_from_a_dtensor(processes: Processes) -> None:
    processes.run(sharded.comes_from_a_dtensor)


def test_a_network_comes_from_files(processes: Processes, tmp_path: Path) -> None:
    whole = sharded.memories_of(torch.float32)
    numpy.save(tmp_path / "first.npy", whole[:5].numpy())
    save_file({"memories": whole[5:6].clone(), "other": whole}, tmp_path / "second.safetensors")
    save_file({"anything": whole[6:].clone()}, tmp_path / "third.safetensors")
    names = ["first.npy", "second.safetensors", "third.safetensors"]
    processes.run(sharded.comes_from_files, [str(tmp_path / name) for name in names])


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_a_mesh_dimension_is_enough(pool: Callable[[int], Processes], size: int) -> None:
    pool(size).run(sharded.shares_a_mesh_dimension)


def test_sequential_subsets_are_exact_or_refused(processes: Processes) -> None:
    processes.run(sharded.sequential_is_exact_or_refused)
