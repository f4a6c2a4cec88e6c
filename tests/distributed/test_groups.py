"""Groups of processes: trees, quarrels, and the device that collectives run on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hopfy.distributed import (
    DistributedError,
    RemoteError,
    ShardedHopfieldLookup,
    ShardedHopfieldNetwork,
    ShardedMemory,
    _group,
)
from hopfy.nn import HopfieldLookup
from judges import groups
from judges.processes import Processes


def test_a_tree_joins_what_an_all_gather_joins(processes: Processes) -> None:
    processes.run(groups.joins_by_tree)


@pytest.mark.parametrize("how", ["raises", "raises below", "dies"])
def test_a_failure_in_a_tree_reaches_all(how: str) -> None:
    group = Processes(4, timeout=90)
    try:
        group.start(groups.joins_that_fail, how)
        for name, text, seconds in group.answers([0, 1, 3]):
            if how == "dies":
                assert name == "LostProcessError", text
            else:
                assert name in ("MemoryError", "RemoteError"), text
                assert "no memory left to join" in text
            assert seconds < 20
    finally:
        group.close()


# ------------------------------------------------------------------ objects, threads, lost data


def test_objects_are_told_apart(processes: Processes) -> None:
    processes.run(groups.objects_in_another_order)


def test_threads_may_call(processes: Processes) -> None:
    processes.run(groups.threads_that_call)


def test_what_is_made_differently_is_an_error_on_all(three: Processes) -> None:
    *others, guilty = three.run(groups.made_differently)
    for seen in (*others, guilty):
        for what, (name, text) in seen.items():
            if what == "a bad timeout":
                assert name == ("ValueError" if seen is guilty else "RemoteError"), text
                assert "expected a timeout in seconds > 0, got -1" in text
            else:
                assert name == "DisagreementError", f"{what}: {name} {text}"
    assert "1048576, 1048576, 2097152" in guilty["another limit"][1]


def test_data_that_is_never_sent_is_an_error_on_all() -> None:
    group = Processes(3, timeout=60)
    try:
        group.start(groups.data_that_is_never_sent, 5.0)
        for rank, (name, text, again, seconds) in enumerate(group.answers()):
            assert name == ("MemoryError" if rank == 1 else "LostProcessError"), text
            assert again == "LostProcessError"  # the process group cannot be used any more
            assert seconds < 20
    finally:
        group.close()


def test_a_forgotten_process_group_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun does
    for make in (
        lambda: ShardedHopfieldNetwork(torch.eye(3)),
        lambda: ShardedMemory(beta=1.0),
        lambda: ShardedHopfieldLookup(HopfieldLookup(4, memories=3)),
    ):
        with pytest.raises(DistributedError, match=r"init_process_group\('gloo'\) first"):
            make()


# ------------------------------------------------------------------ the device of the transport


class _OnDevice(Tensor):
    """A tensor that stands for one on the device of the transport."""


class _Done:
    def wait(self, _: Any) -> None:
        return None


def _two_alike(monkeypatch: pytest.MonkeyPatch) -> _group.Group:
    """Rank 0 of two processes that always say the same, over a device of their own."""
    device, move, home = torch.device("cuda"), Tensor.to, Tensor.cpu

    def to(self: Tensor, *where: Any, **options: Any) -> Tensor:
        if where and where[0] == device:
            return self.clone().as_subclass(_OnDevice)
        if where and isinstance(where[0], torch.device):
            return move(self, *where, **options).as_subclass(Tensor)
        return move(self, *where, **options)

    def all_gather(parts: list[Tensor], tensor: Tensor, **_: Any) -> _Done:
        assert all(isinstance(each, _OnDevice) for each in (tensor, *parts))
        for part in parts:
            part.copy_(tensor)
        return _Done()

    def all_reduce(tensor: Tensor, operation: Any, **_: Any) -> _Done:
        assert isinstance(tensor, _OnDevice)
        if operation == torch.distributed.ReduceOp.SUM:
            tensor.mul_(2)
        return _Done()

    def all_to_all_single(received: Tensor, sent: Tensor, *_: Any, **__: Any) -> _Done:
        assert isinstance(sent, _OnDevice)
        assert isinstance(received, _OnDevice)
        half = len(sent) // 2  # the other process deals the same to us
        received.copy_(torch.cat([sent[:half], sent[:half]]))
        return _Done()

    monkeypatch.setattr(_group.dist, "all_to_all_single", all_to_all_single)
    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "cpu", lambda self: home(self).as_subclass(Tensor))
    monkeypatch.setattr(_group.dist, "all_gather", all_gather)
    monkeypatch.setattr(_group.dist, "all_reduce", all_reduce)
    group = _group.Group(None, 5.0, torch.device("cpu"))
    group.size, group._device = 2, device
    return group


@pytest.mark.parametrize("small", [0, 2048])
def test_collectives_see_tensors_on_their_device_only(
    monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    group = _two_alike(monkeypatch)
    group.small = small  # whether messages fit into headers
    ids, scores = torch.arange(3), torch.tensor([0.5, 1.5, -1.0], dtype=torch.float64)
    gathered = group.gather(lambda: [ids, scores])
    joined, _ = group.joined(
        lambda: [ids, scores], lambda parts: [torch.cat(c) for c in zip(*parts, strict=True)]
    )
    group.worth_dealing = 0
    dealt, is_own = group.joined(
        lambda: [ids, scores], lambda parts: [torch.cat(c) for c in zip(*parts, strict=True)],
        lambda own: [[each[:2] for each in own], [each[:2] for each in own]],
    )  # fmt: skip
    assert is_own
    assert torch.equal(dealt[1], torch.cat([scores[:2], scores[:2]]))
    answers = [
        *dealt, *gathered[0], *gathered[1], *joined, group.maximum(lambda: scores),
        group.total(lambda: scores), group.every(lambda: ids > 0),
    ]  # fmt: skip
    assert not any(isinstance(each, _OnDevice) for each in answers)
    assert torch.equal(gathered[1][0], ids)
    assert torch.equal(joined[1], torch.cat([scores, scores]))
    assert torch.equal(group.total(lambda: scores), 2 * scores)
    assert group.every(lambda: ids > 0).tolist() == [False, True, True]
    assert group.agree(lambda: (7, {"number": 7})) == 7


def test_errors_travel_over_the_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    group = _two_alike(monkeypatch)

    def fail() -> None:
        raise MemoryError("none left")

    with pytest.raises(MemoryError, match="none left"):
        group.together(fail)
    monkeypatch.setattr(group, "_all_gather", _failed_elsewhere)
    with pytest.raises(RemoteError, match="rank 1"):
        group.together(lambda: None)


def _failed_elsewhere(_: Tensor) -> Tensor:
    """A table in which rank 1 has the status of a failure."""
    table = torch.zeros(2, 512, dtype=torch.int64)
    table[1, 0] = 1
    return table.to(torch.device("cuda"))
