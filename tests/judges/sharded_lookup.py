"""Laws of lookup layers with sharded memories; the judge is the layer with all memories."""

from __future__ import annotations

import copy
import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import hopfy
from hopfy.distributed import ShardedHopfieldLookup, sharded_parameters
from hopfy.structures import KSubsets, SequentialKSubsets
from judges.broken import _end_at_once, _FailsLater, _run_out_of_memory, _seen

LAYERS: dict[str, dict[str, Any]] = {
    "softmax": {"omega": "softmax", "values": True},
    "sparsemax": {"omega": "sparsemax", "normalize": True},
    "learned alpha": {"omega": lambda: hopfy.nn.LearnableAlpha(2), "values": True},
    "3-subsets": {"omega": hopfy.SparseMAP(KSubsets(3)), "beta": lambda: hopfy.nn.LearnableBeta(2)},
    "sequential": {"omega": hopfy.SparseMAP(SequentialKSubsets(2, transition=0.3))},
    "several steps": {"omega": "1.5-entmax", "max_steps": 3, "beta": 2.0},
    "layer norm": {"omega": "sparsemax", "max_steps": 2, "state": "layer-norm"},
    "until they settle": {"omega": "sparsemax", "max_steps": 4, "tol": 1e-3, "beta": 3.0},
}
MEMORIES = 7


def layer_of(name: str, memories: int = MEMORIES) -> hopfy.nn.HopfieldLookup:
    torch.manual_seed(5)
    options = {
        key: value() if callable(value) and not isinstance(value, hopfy.Omega) else value
        for key, value in LAYERS[name].items()
    }
    return hopfy.nn.HopfieldLookup(8, heads=2, memories=memories, **options).double()


def batch_of(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 8, generator=generator, dtype=torch.float64)


def mask_of(count: int, memories: int = MEMORIES) -> Tensor:
    """Memories that a sample may select: at least three; one sample may select none."""
    mask = torch.rand(count, 1, memories, generator=torch.Generator().manual_seed(6)) > 0.4
    mask[..., :3] = True
    mask[0, 0, : memories // 2] = False  # nothing on the first processes
    mask[0, 0, memories // 2 :] = True
    return mask


def _loss(output: Tensor) -> Tensor:
    weights = torch.linspace(-1, 2, output[0].numel(), dtype=output.dtype)
    return (output.flatten(1) * weights).sum(1).sin().sum() / len(output)


def _compare(ours: nn.Module, whole: nn.Module, first: int, stop: int, what: str) -> None:
    """Every gradient; of memories and values the rows of this process."""
    wanted = dict(whole.named_parameters())
    for name, parameter in ours.named_parameters():
        plain = name.removeprefix("module.").replace("lookup.", "")
        judge = wanted[plain].grad
        assert judge is not None, name
        if plain in ("memories", "values"):
            judge = judge[first:stop]
        grad = parameter.grad
        grad = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        torch.testing.assert_close(
            grad, judge, rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{what}, {n}: {m}"
        )


def _range(layer: ShardedHopfieldLookup) -> tuple[int, int]:
    return layer._shares.first, layer._shares.stop


def is_the_layer_with_all_memories(rank: int, size: int, name: str, memories: int) -> None:
    """Outputs, weights and gradients, also with masks, for replicated queries."""
    whole = layer_of(name, memories)
    ours = ShardedHopfieldLookup(whole, timeout=60)
    cases = [None] if name == "sequential" else [None, mask_of(4, memories)]
    if memories < MEMORIES:
        cases = [None]
    for mask in cases:
        x, y = batch_of(4, 1).requires_grad_(), batch_of(4, 1).requires_grad_()
        found, judge = ours(x, mask), whole(y, mask)
        torch.testing.assert_close(found, judge)
        whole.zero_grad()
        ours.zero_grad()
        _loss(found).backward()
        _loss(judge).backward()
        torch.testing.assert_close(x.grad, y.grad)
        _compare(ours, whole, *_range(ours), f"{name}, mask {mask is not None}")
        found, judge = ours(x, mask, need_weights=True), whole(y, mask, need_weights=True)
        torch.testing.assert_close(found[1], judge[1])
        torch.testing.assert_close(found[0], judge[0])


class _Model(nn.Module):
    """A model around the lookup, so that gradients go on to other layers."""

    def __init__(self, lookup: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(8, 8).double()
        self.lookup = lookup
        self.last = nn.Linear(8, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lookup(self.first(x)))


def _judged(name: str, batches: list[Tensor]) -> tuple[_Model, Tensor]:
    """The model with all memories after one backward of the mean loss."""
    model = _Model(layer_of(name))
    loss = torch.stack([_loss(model(x)) for x in batches]).mean()
    loss.backward()
    return model, loss.detach()


def _compare_models(ours: nn.Module, judge: _Model, lookup: ShardedHopfieldLookup) -> None:
    for part in ("first", "last"):
        _compare(getattr(ours, part), getattr(judge, part), 0, 0, part)
    _compare(ours.lookup, judge.lookup, *_range(lookup), "lookup")  # type: ignore[arg-type]


def trains_under_ddp(rank: int, size: int, name: str) -> None:
    """One dimension: every process has a batch of its own and a part of the memories."""
    batches = [batch_of(2 + r, 10 + r) for r in range(size)]
    model = _Model(ShardedHopfieldLookup(layer_of(name), layout="sharded", timeout=60))
    names = list(sharded_parameters(model))
    assert names[0] == "lookup.memories"
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    parallel = DistributedDataParallel(model)
    _loss(parallel(batches[rank])).backward()
    judge, _ = _judged(name, batches)
    _compare_models(model, judge, model.lookup)


def trains_under_ddp_over_another_dimension(rank: int, size: int, name: str) -> None:
    """Two dimensions: replicas with batches of their own, each sharded over processes."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replica", "shard"))
    batches = [batch_of(3, 10 + r) for r in range(2)]
    model = _Model(ShardedHopfieldLookup(layer_of(name), mesh["shard"], timeout=60))
    parallel = DistributedDataParallel(model, process_group=mesh["replica"].get_group())
    _loss(parallel(batches[mesh["replica"].get_local_rank()])).backward()
    judge, _ = _judged(name, batches)
    _compare_models(model, judge, model.lookup)


def trains_under_fsdp(rank: int, size: int, name: str) -> None:
    """One dimension: FSDP shards all other parameters, the layer shards its memories."""
    from torch.distributed.fsdp import fully_shard

    batches = [batch_of(3, 10 + r) for r in range(size)]
    model = _Model(ShardedHopfieldLookup(layer_of(name), layout="sharded", timeout=60))
    lookup = model.lookup
    mesh = init_device_mesh("cpu", (size,))
    fully_shard(model, mesh=mesh, ignored_params=set(sharded_parameters(model).values()))
    _loss(model(batches[rank])).backward()
    judge, _ = _judged(name, batches)
    _compare_models(model, judge, lookup)


def learns_like_the_whole_layer(rank: int, size: int) -> None:
    """Some steps of an optimizer lead to the same memories."""
    whole = layer_of("sparsemax")
    ours = ShardedHopfieldLookup(copy.deepcopy(whole), timeout=60)
    for layer in (ours, whole):
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
        for step in range(4):
            optimizer.zero_grad()
            _loss(layer(batch_of(4, step))).backward()
            optimizer.step()
    first, stop = _range(ours)
    torch.testing.assert_close(ours.memories, whole.memories[first:stop])
    torch.testing.assert_close(ours.hopfield.state_dict(), whole.hopfield.state_dict())


def failures(rank: int, size: int) -> dict[str, tuple[str, str]]:
    """What the processes see when the last one does something else."""
    guilty = rank == size - 1
    whole = layer_of("sparsemax")
    ours = ShardedHopfieldLookup(whole, timeout=60)
    x = batch_of(2, 1)
    other = copy.deepcopy(whole)
    with torch.no_grad():
        other.memories[0, 0] += 1
    bad_mask = torch.ones(2, 1, 3, dtype=torch.bool)
    mask = torch.ones(2, 1, MEMORIES, dtype=torch.bool)
    return {
        "other queries": _seen(lambda: ours(x + 1 if guilty else x)),
        "fewer features": _seen(lambda: ours(x[..., :4] if guilty else x)),
        "NaN": _seen(lambda: ours(x * torch.nan if guilty else x)),
        "a bad mask": _seen(lambda: ours(x, bad_mask if guilty else mask)),
        "another layer": _seen(lambda: ShardedHopfieldLookup(other if guilty else whole)),
        "another mode": _seen(lambda: (ours.train(not guilty), ours(x))),
        "all is well": _seen(lambda: (ours.train(), ours(x))),
    }


def traffic(rank: int, size: int, memories: int) -> int:
    """Bytes of one forward with two candidates per query."""
    torch.manual_seed(1)
    whole = hopfy.nn.HopfieldLookup(8, memories=memories, omega="sparsemax", beta=50.0)
    with torch.no_grad():
        whole.memories.zero_()
        whole.memories[[0, memories - 1]] = 1.0
        whole.hopfield.memories_in.weight.copy_(torch.eye(8))
        whole.hopfield.queries_in.weight.copy_(torch.eye(8))
    ours = ShardedHopfieldLookup(whole, timeout=60)
    before = ours.traffic
    with torch.no_grad():
        ours(torch.ones(1, 4, 8))
    dist.barrier()
    return (ours.traffic - before).sent


def out_of_memory(rank: int, size: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """One process has no memory left in the second of several steps; then all is well again."""
    ours = ShardedHopfieldLookup(layer_of("several steps"), timeout=60)
    x = batch_of(2, 1)
    failed = _seen(lambda: ours(x, omega=_FailsLater(rank == 1, _run_out_of_memory)))
    return failed, _seen(lambda: ours(x))


def dies(rank: int, size: int, timeout: float, when: str) -> tuple[str, str, str, float]:
    """The last process kills itself, or raises, in a forward or a backward; what the others see."""
    guilty = rank == size - 1
    ours = ShardedHopfieldLookup(layer_of("several steps"), timeout=timeout)
    x = batch_of(2, 1).requires_grad_()
    begun = time.monotonic()
    if when == "forward":
        seen = _seen(lambda: ours(x, omega=_FailsLater(guilty, _end_at_once)))
    else:
        output = ours(x)
        if guilty:
            output.register_hook(_raised if when == "raise in backward" else _killed)
        seen = _seen(lambda: output.sum().backward())
    again = _seen(lambda: ours(x))
    return (*seen, again[0], time.monotonic() - begun)


def _killed(_: Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raised(_: Tensor) -> None:
    raise ZeroDivisionError("in a backward of one process")
