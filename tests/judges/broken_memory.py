"""What each process sees when one of them fails while it uses a sharded memory."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch

import hopfy
from hopfy.distributed import ShardedMemory
from judges.broken import _end_at_once, _FailsLater, _run_out_of_memory, _seen
from judges.sharded_memory import cues_of, drawn, same_recall


def _filled(timeout: float = 60.0, omega: hopfy.Omega | str = "sparsemax") -> ShardedMemory:
    memory = ShardedMemory(omega, 0.7, timeout=timeout)
    memory.add(drawn(10, 1), torch.arange(10))
    return memory


def bad_inputs(rank: int, size: int) -> dict[str, tuple[str, str]]:
    """The errors of every process, by what the last process does wrong; all can go on afterward."""
    memory, guilty = _filled(), rank == size - 1
    new, cues = drawn(2, 2), cues_of(drawn(10, 1))
    two = torch.arange(2)
    spoiled = new.clone()
    spoiled[1, 2] = torch.nan
    hole = cues.clone()
    hole[0, 0] = torch.nan
    seen = {
        "another length": _seen(lambda: memory.add(new[:, :3] if guilty else new, two)),
        "NaN in a pattern": _seen(lambda: memory.add(spoiled if guilty else new, two)),
        "no values": _seen(lambda: memory.add(new, None if guilty else two)),
        "texts as values": _seen(lambda: memory.add(new, ["a", "b"] if guilty else two)),
        "other patterns": _seen(lambda: memory.add(new + 1 if guilty else new, two)),
        "other values": _seen(lambda: memory.add(new, two + 1 if guilty else two)),
        "other ids": _seen(lambda: memory.add(new, two, [50, 51 + guilty])),
        "another layout": _seen(
            lambda: memory.add(new, two, layout="sharded" if guilty else "replicated")
        ),
        "a bad layout": _seen(
            lambda: memory.add(new, two, layout="here" if guilty else "replicated")  # type: ignore[arg-type]
        ),
        "another dtype of values": _seen(
            lambda: memory.add(new, two.double() if guilty else two, layout="sharded")
        ),
        "other cues": _seen(lambda: memory.recall(cues + 1 if guilty else cues)),
        "cues of another length": _seen(lambda: memory.recall(cues[:, :4] if guilty else cues)),
        "NaN in the cues of one": _seen(lambda: memory.recall(hole if guilty else cues)),
        "another mask": _seen(lambda: memory.recall(cues, cues > (1 if guilty else 0))),
        "a mask of numbers": _seen(lambda: memory.recall(cues, cues if guilty else cues > 0)),
        "bad options": _seen(lambda: memory.recall(cues, max_steps=0 if guilty else 5)),
        "another k": _seen(lambda: memory.neighbors(cues, 2 if guilty else 1)),
        "another method": _seen(
            lambda: memory.remove([3]) if guilty else memory.recall(cues)  # type: ignore[func-returns-value]
        ),
        "other ids to remove": _seen(lambda: memory.remove([4 if guilty else 5])),
        "another beta": _seen(lambda: ShardedMemory(beta=2.0 if guilty else 1.0, timeout=60)),
        "a bad beta": _seen(lambda: ShardedMemory(beta=-2.0 if guilty else 1.0, timeout=60)),
        "another omega": _seen(
            lambda: ShardedMemory("1.5-entmax" if guilty else "sparsemax", 1.0, timeout=60)
        ),
    }
    judge = hopfy.AssociativeMemory("sparsemax", 0.7)
    judge.add(drawn(10, 1), torch.arange(10))
    assert torch.equal(memory.ids, judge.ids)  # nothing was changed
    same_recall(memory.recall(cues), judge.recall(cues))
    return seen


def bad_inputs_of_all(rank: int, size: int) -> dict[str, tuple[str, str]]:
    """The errors of one call that every process makes alike: all get the very same one."""
    memory, cues = _filled(), cues_of(drawn(10, 1))
    hole = cues.clone()
    hole[0, 0] = torch.nan
    empty = ShardedMemory(beta=1.0, timeout=60)
    seen = {
        "unknown id": _seen(lambda: memory.remove([3, 99])),
        "unknown entry": _seen(lambda: memory[99]),
        "taken id": _seen(lambda: memory.add(drawn(1, 2), torch.tensor([1]), [4])),
        "id twice": _seen(lambda: memory.add(drawn(2, 2), torch.tensor([1, 2]), [40, 40])),
        "negative id": _seen(lambda: memory.add(drawn(1, 2), torch.tensor([1]), [-4])),
        "NaN in the cues": _seen(lambda: memory.recall(hole)),
        "k too large": _seen(lambda: memory.neighbors(cues, 11)),
        "empty recall": _seen(lambda: empty.recall(cues)),
        "empty neighbors": _seen(lambda: empty.neighbors(cues)),
        "no such folder": _seen(lambda: ShardedMemory.load("no such folder", timeout=60)),
    }
    assert len(memory) == 10
    return seen


def out_of_memory(rank: int, size: int) -> tuple[tuple[str, str], tuple[str, str], int]:
    """One process has no memory left: in a recall, and while it stores a pattern."""
    memory = _filled(20, _FailsLater(rank == 1, _run_out_of_memory))
    recalled = _seen(lambda: memory.recall(cues_of(drawn(10, 1)), max_steps=20))
    fresh = _filled(20)
    if rank == 1:
        object.__setattr__(fresh._stored.held, "plus", _no_memory)  # type: ignore[union-attr]
    added = _seen(lambda: fresh.add(drawn(4, 2), torch.arange(4)))
    return recalled, added, len(fresh)


def _no_memory(*_: object) -> None:
    raise MemoryError("no memory left for the patterns")


def killed(rank: int, size: int, timeout: float, when: str) -> tuple[str, str, str, float]:
    """The last process kills itself in a recall or in an add; what the others see, and when."""
    guilty = rank == size - 1
    memory = _filled(timeout, _FailsLater(guilty and when == "recall", _end_at_once))
    if guilty and when == "add":
        object.__setattr__(memory._stored.held, "plus", _die)  # type: ignore[union-attr]
    begun = time.monotonic()
    if when == "add":
        seen = _seen(lambda: memory.add(drawn(4, 2), torch.arange(4)))
    else:
        seen = _seen(lambda: memory.recall(cues_of(drawn(10, 1)), max_steps=50))
    again = _seen(lambda: memory.neighbors(cues_of(drawn(10, 1))))
    return (*seen, again[0], time.monotonic() - begun)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def traffic(rank: int, size: int, count: int) -> list[tuple[int, int]]:
    """Bytes of recalls and of a search in ``count`` patterns per process."""
    generator = torch.Generator().manual_seed(rank)
    own = torch.nn.functional.normalize(torch.randn(count, 32, generator=generator))
    own[0] = torch.eye(32)[rank]
    memory = ShardedMemory("sparsemax", 40.0, timeout=60)
    memory.add(own, layout="sharded")
    sent = []
    cue = torch.eye(32)[:1]
    for call in (lambda: memory.recall(cue), lambda: memory.neighbors(cue, 2)):
        call()
        before = memory.traffic
        call()
        after = memory.traffic - before
        sent.append((after.sent, after.headers))
    return sent


def damaged_files(rank: int, size: int, folder: str, how: str) -> tuple[str, str]:
    """What loading says about a folder with one thing wrong in it."""
    memory = _filled()
    memory.save(folder)
    if rank == 0:
        _damage(Path(folder), how)
    memory.neighbors(drawn(1, 1))  # all wait for the damage
    return _seen(lambda: ShardedMemory.load(folder, timeout=60))


def _damage(folder: Path, how: str) -> None:
    files = sorted(folder.glob("shard-*"))
    manifest = folder / "manifest.json"
    if how == "a file is missing":
        files[-1].unlink()
    elif how == "a bit is flipped":
        raw = bytearray(files[-1].read_bytes())
        raw[-3] ^= 1
        files[-1].write_bytes(raw)
    elif how == "a file is cut":
        files[0].write_bytes(files[0].read_bytes()[:-10])
    elif how == "files are exchanged":
        first, last = files[0].read_bytes(), files[-1].read_bytes()
        files[0].write_bytes(last)
        files[-1].write_bytes(first)
    elif how == "the manifest is changed":
        manifest.write_text(manifest.read_text().replace('"next_id": 10', '"next_id": 11'))
    elif how == "the manifest is no JSON":
        manifest.write_text("{")
    else:
        raise ValueError(how)
