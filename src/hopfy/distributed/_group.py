"""Processes that work together, and how a failure of one reaches all.

Each exchange starts with a header of fixed size: whether this process is fine, which exchange it
takes part in, and how much it will send; a small message is in the header itself. A process that
failed sends a header too, then its error message, so all processes raise and none waits for data that
never comes. A process that died is noticed by the transport or by the timeout.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from hopfy.distributed._errors import (
    DisagreementError,
    DistributedError,
    LostProcessError,
    RemoteError,
)
from hopfy.distributed._inputs import digest
from hopfy.distributed._line import Line, line_of
from hopfy.distributed._packing import pack, sizes_in_bytes, unpack
from hopfy.distributed._transport import Traffic, transport_device
from hopfy.distributed._tree import Join, joined_by_tree

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Deal", "Group", "collective"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Deal = Callable[[Sequence[Tensor]], Sequence[Sequence[Tensor]]]
"""From the tensors of this process to those parts of them that go to each process."""

_FINE, _FAILED = 0, 1
_KINDS = ("", "gather", "joined", "MAX", "SUM", "MIN")
"""What follows a header, so that no process waits for another kind of data than it gets."""
_SLOTS = 13
"""Numbers in a header: status, exchange, object, and up to ten sizes or digests."""
_NUMBERS = _SLOTS - 3
_REDUCED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "MAX": torch.amax,
    "MIN": torch.amin,
    "SUM": torch.sum,
}
_SMALL, _SMALL_IN_ALL = 1 << 11, 1 << 16
"""Bytes of a message that have room in a header, and in those of all processes together."""
_WORTH_DEALING = 1 << 12
"""Bytes from one process to another, from which on each receives its own share of a message only."""
_TREE_ABOVE = 1 << 24
"""Bytes that an all-gather may bring to every process before a tree takes its place."""
_MESSAGE = 512
"""Bytes of an error message that other processes see."""
_ADVICE = {
    "queries": " Broadcast them, or pass layout='sharded' for queries that differ.",
    "shape of the queries": " Broadcast them, or pass layout='sharded' for queries that differ.",
    "method and options": " Look for a call that some ranks skip.",
    "object and call": " Look for a call that some ranks skip.",
}


class _Message(NamedTuple):
    """What this process sends, as tensors and as bytes, and how much every process sends.

    ``rows`` are the lengths of the tensors of each process, ``sizes`` their bytes; ``carried`` are
    the bytes that came with the headers.
    """

    own: list[Tensor]
    raw: Tensor
    rows: list[list[int]]
    sizes: list[int]
    carried: Tensor


class Group:
    """The processes of a one-dimensional mesh, or of the default group; one process without either.

    Args:
        mesh: a `DeviceMesh` with one dimension, or None for all processes.
        timeout: seconds that a process waits for the others before it gives up.
        device: where payloads live; collectives run on it where the backend can.
        owner: what uses the group, for error messages; must be the same on all processes.
    """

    def __init__(
        self, mesh: DeviceMesh | None, timeout: float, device: torch.device, owner: str = "Group"
    ) -> None:
        if mesh is not None and mesh.ndim != 1:
            raise ValueError(
                f"expected a mesh with one dimension, got {mesh.ndim}; name the dimension that "
                "the memories are sharded over: mesh['shards']."
            )
        valid = isinstance(timeout, int | float) and timeout > 0
        self._wrong: Exception | None = None  # raised in the first exchange, so that all hear of it
        if not valid:
            self._wrong = ValueError(f"expected a timeout in seconds > 0, got {timeout!r}.")
        self.timeout = float(timeout) if valid else 300.0
        self.owner = owner
        self.traffic = Traffic()
        self.tree_above, self.worth_dealing = _TREE_ABOVE, _WORTH_DEALING
        self._group: Any = None
        self.rank, self.size = 0, 1
        if mesh is not None or (dist.is_available() and dist.is_initialized()):
            self._group = dist.group.WORLD if mesh is None else mesh.get_group()
            self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)
        elif os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
            raise DistributedError(
                f"expected a process group, as torchrun started {os.environ['WORLD_SIZE']} "
                "processes, got none; call torch.distributed.init_process_group('gloo') first, or "
                f"use the class of one process in place of {owner}."
            )
        backend = "" if self._group is None else str(dist.get_backend(self._group))
        self._device = transport_device(backend, device)
        self._object = 0  # its number among all on the process group, once all have agreed on it
        self._announced: Exception | None = None
        self._calls = 0
        self.small = min(_SMALL, _SMALL_IN_ALL // self.size) // 8 * 8

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size})"

    @property
    def _line(self) -> Line:
        return line_of(self._group)

    # ------------------------------------------------------------------ exchanges

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call that ends well on all processes or on none.

        An error between two exchanges takes the place of the next exchange; the last exchange of a
        call carries nothing, so that no process returns before all others have succeeded. Calls of
        other threads wait.
        """
        with self._line.lock:
            self._calls += 1
            try:
                yield
            except Exception as error:
                if self._calls == 1:
                    self.announce(error)
                raise
            else:
                if self._calls == 1:
                    self.together(lambda: None)
            finally:
                self._calls -= 1

    def announce(self, error: Exception) -> None:
        """Let an error of this process take the place of the next exchange, unless all know it."""
        known = isinstance(error, DistributedError) or error is self._announced
        if not known and self._line.lost is None:
            self._checked(functools.partial(_raise, error), lambda _: [])

    def together(self, work: Callable[[], T]) -> T:
        """Run ``work`` here; raise on all processes if it failed on any."""
        return self._checked(work, lambda _: [])[0]

    def agree(self, work: Callable[[], tuple[T, Mapping[str, int]]]) -> T:
        """Run ``work``; raise unless the digests that it gives are equal on all processes."""
        (result, digests), table = self._checked(
            work, lambda found: [digest([self.owner, *found[1]]), *found[1].values()]
        )
        for place, name in enumerate(("object and call", *digests)):
            column = table[:, place]
            if bool((column != column[0]).any()):
                raise DisagreementError(
                    f"expected the same {name} on all {self.size} processes, got different ones; by "
                    f"rank {_told(name, column)}.{_ADVICE.get(name, '')}"
                )
        return result

    def gather(self, work: Callable[[], Sequence[Tensor]]) -> list[list[Tensor]]:
        """The tensors that ``work`` gives on each process, in the order of the ranks.

        They may differ in their first dimension only. What is sent is padded to the largest.
        """

        with self._line.lock:
            return self._gathered(self._packed(work, "gather"))

    def _packed(self, work: Callable[[], Sequence[Tensor]], kind: str) -> _Message:
        """What ``work`` gives here, its bytes, and the sizes that all processes send."""

        def packed() -> tuple[list[Tensor], Tensor]:
            tensors = list(work())
            return tensors, pack(tensors, self._device)

        (own, raw), table = self._checked(
            packed, lambda found: [len(each) for each in found[0]], kind, lambda found: found[1]
        )
        rows = table[:, : len(own)].tolist()
        sizes = [sum(sizes_in_bytes(own, counts)) for counts in rows]
        return _Message(own, raw, rows, sizes, table[:, _NUMBERS:])

    def _gathered(self, message: _Message) -> list[list[Tensor]]:
        own, raw, most = message.own, message.raw, max(message.sizes)
        if self.size == 1:
            return [own]
        if most == 0:
            return [[each[:0] for each in own] for _ in message.rows]
        if most <= self.small:
            parts = message.carried.contiguous().view(torch.uint8)
            self._count(raw.numel(), sum(message.sizes) - raw.numel(), raw.numel())
        else:
            with self._expected():
                buffer = torch.nn.functional.pad(raw, (0, most - raw.numel()))
                parts = raw.new_empty(self.size, most)
                self._run(
                    lambda: dist.all_gather(list(parts), buffer, group=self._group, async_op=True)
                )
            self._count(most, (self.size - 1) * most, raw.numel())
        return [
            own if rank == self.rank else unpack(parts[rank], own, counts)
            for rank, counts in enumerate(message.rows)
        ]

    def joined(
        self, work: Callable[[], Sequence[Tensor]], join: Join, deal: Deal | None = None
    ) -> tuple[list[Tensor], bool]:
        """``join`` of the tensors that ``work`` gives on each process, which is associative.

        By an all-gather, or by a tree where an all-gather would bring more than ``tree_above`` bytes
        to every process. Where ``deal`` makes one part for each process of the tensors, and the parts
        are large, each process receives and joins only its own parts. The second answer tells.
        """
        with self._line.lock:
            message = self._packed(work, "joined")
            large = sum(message.sizes) >= self.worth_dealing * self.size**2
            if self.size > 1 and deal is not None and large:
                return join(self._dealt(message.own, deal)), True
            if self.size > 1 and self.size * max(message.sizes) > self.tree_above:
                with self._expected():
                    return joined_by_tree(self, self._group, message.own, join), False
            return join(self._gathered(message)), False

    def _dealt(self, own: Sequence[Tensor], deal: Deal) -> list[list[Tensor]]:
        """Part r goes to process r; what each process sent here, in the order of the ranks."""
        with self._expected():
            parts = deal(own)
            raw = [pack(part, self._device) for part in parts]
            rows = torch.tensor([[len(each) for each in part] for part in parts])
            theirs = self.moved(torch.empty_like(rows))
            self._all_to_all(theirs, self.moved(rows), None, None)
            counts = theirs.cpu().tolist()
            like = parts[self.rank]
            sizes = [sum(sizes_in_bytes(like, each)) for each in counts]
            buffer = raw[0].new_empty(sum(sizes))
            self._all_to_all(buffer, torch.cat(raw), sizes, [each.numel() for each in raw])
        sent = sum(each.numel() for each in raw) - raw[self.rank].numel()
        self._count(sent, sum(sizes) - sizes[self.rank], sent)
        pieces = torch.split(buffer, sizes)
        return [unpack(piece, like, each) for piece, each in zip(pieces, counts, strict=True)]

    def _all_to_all(
        self, received: Tensor, sent: Tensor, theirs: list[int] | None, ours: list[int] | None
    ) -> None:
        self._run(
            lambda: dist.all_to_all_single(
                received, sent, theirs, ours, group=self._group, async_op=True
            )
        )

    # What `joined_by_tree` needs.

    def run(self, start: Callable[[], Any]) -> None:
        """Start a collective, or a message, and wait for it."""
        self._run(start)

    def moved(self, tensor: Tensor) -> Tensor:
        """On the device that the transport can read."""
        return tensor.to(self._device)

    def packed(self, tensors: Sequence[Tensor]) -> Tensor:
        return pack(tensors, self._device)

    def room(self, like: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
        return torch.empty(sum(sizes_in_bytes(like, counts)), dtype=torch.uint8).to(self._device)

    def unpacked(
        self, buffer: Tensor, like: Sequence[Tensor], counts: Sequence[int]
    ) -> list[Tensor]:
        return unpack(buffer, like, counts)

    def count(self, sent: int, received: int) -> None:
        self._count(sent, received, sent)

    def maximum(self, work: Callable[[], Tensor]) -> Tensor:
        """The elementwise maximum of one tensor per process, of equal shapes."""
        return self._reduced(work, "MAX")

    def total(self, work: Callable[[], Tensor]) -> Tensor:
        """The elementwise sum of one tensor per process, of equal shapes."""
        return self._reduced(work, "SUM")

    def every(self, work: Callable[[], Tensor]) -> Tensor:
        """Whether booleans (...) are True on all processes."""
        return self._reduced(lambda: work().to(torch.uint8), "MIN").bool()

    def _reduced(self, work: Callable[[], Tensor], how: str) -> Tensor:
        with self._line.lock:
            own, table = self._checked(work, lambda found: [found.numel()], how, self._flat_bytes)
            if bool((table[:, 0] != table[0, 0]).any()):
                raise DisagreementError(
                    f"expected tensors of one size on all processes, got {table[:, 0].tolist()}."
                )
            if self.size == 1 or not own.numel():
                return own
            size = own.numel() * own.element_size()
            if size <= self.small:
                parts = table[:, _NUMBERS:].contiguous().view(torch.uint8)[:, :size]
                every = parts.contiguous().view(own.dtype)
                found = _REDUCED[how](every, 0).to(own.dtype).reshape(own.shape).to(own.device)
            else:
                found = self._all_reduced(own, how)
        self._count(size, size, size)
        return found

    def _all_reduced(self, own: Tensor, how: str) -> Tensor:
        with self._expected():
            buffer = own.detach().to(self._device, copy=True).contiguous()
            operation = getattr(dist.ReduceOp, how)
            self._run(lambda: dist.all_reduce(buffer, operation, group=self._group, async_op=True))
        return buffer.to(own.device)

    def _flat_bytes(self, tensor: Tensor) -> Tensor:
        return pack([tensor.detach().reshape(-1)], self._device)

    # ------------------------------------------------------------------ headers

    def _checked(
        self,
        work: Callable[[], T],
        describe: Callable[[T], Sequence[int]],
        kind: str = "",
        message: Callable[[T], Tensor] | None = None,
    ) -> tuple[T, Tensor]:
        """Run ``work`` and exchange headers; raise everywhere if it failed anywhere.

        Returned are its answer and, of each process, the numbers that ``describe`` makes of it, and
        the bytes of ``message`` where they are few.
        """
        with self._line.lock:
            if self._line.lost is not None:
                raise LostProcessError(self._line.lost)
            failure: Exception | None = None
            numbers: list[int] = []
            raw: Tensor | None = None
            try:
                if self._wrong is not None:
                    raise self._wrong
                result = work()
                numbers = [int(number) for number in describe(result)]
                raw = None if message is None or self.size == 1 else message(result)
            except Exception as error:
                failure = error
            if self.size == 1:
                if failure is not None:
                    self._announced = failure
                    raise failure
                return result, torch.tensor([numbers], dtype=torch.int64)
            table = self._headers(failure is None, kind, numbers, raw)
            if bool((table[:, 0] != _FINE).any()):
                self._raise_everywhere(failure, table)
            self._compare(table)
            return result, table[:, 3:]

    def _headers(self, fine: bool, kind: str, numbers: Sequence[int], raw: Tensor | None) -> Tensor:
        """The headers of all processes, (P, slots); all count on from the highest exchange."""
        line = self._line
        exchange = (line.exchanges + 1) * len(_KINDS) + _KINDS.index(kind)
        header = torch.zeros(_SLOTS + self.small // 8, dtype=torch.int64)
        # An object that has no number yet proposes one, as a negative number.
        header[0], header[1] = (_FINE if fine else _FAILED), exchange
        header[2] = self._object or -(line.objects + 1)
        header[3 : 3 + len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        if raw is not None and 0 < raw.numel() <= self.small:
            header[_SLOTS : _SLOTS + raw.numel() // 8] = raw.cpu().view(torch.int64)
        table = self._all_gather(header.to(self._device)).cpu()
        self.traffic.headers += header.numel() * 8
        line.exchanges = int(table[:, 1].max()) // len(_KINDS)
        line.objects = max(line.objects, int(table[:, 2].abs().max()))
        if bool((table[:, 2] < 0).all()):
            self._object = line.objects
            table[:, 2] = self._object
        return table

    def _compare(self, table: Tensor) -> None:
        """Raise unless all processes take part in one exchange of one object."""
        if bool((table[:, 1:3] == table[0, 1:3]).all()):
            return
        said = [
            f"rank {rank}: exchange {number // len(_KINDS)} {_KINDS[number % len(_KINDS)]} of "
            + (f"object {made}" if made > 0 else "a new object")
            for rank, (number, made) in enumerate(table[:, 1:3].tolist())
        ]
        raise DisagreementError(
            "expected all processes to make the same calls of the same objects in the same order, "
            f"got {'; '.join(said)}. Look for a call, or a backward, that some ranks skip, and for "
            "threads that call in another order."
        )

    def _raise_everywhere(self, failure: Exception | None, table: Tensor) -> None:
        text = "" if failure is None else f"{type(failure).__name__}: {failure}"
        raw = text.encode("utf-8", "replace")[:_MESSAGE]
        own = torch.zeros(_MESSAGE, dtype=torch.uint8)
        own[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else own[:0]
        texts = self._all_gather(own.to(self._device)).cpu()
        if failure is not None:
            self._announced = failure
            raise failure
        failed = [rank for rank in range(self.size) if int(table[rank, 0]) != _FINE]
        said = [
            f"rank {rank}: {bytes(texts[rank].tolist()).rstrip(bytes(1)).decode(errors='replace')}"
            for rank in failed
        ]
        raise RemoteError("expected all processes to succeed, got a failure on " + "; ".join(said))

    def _all_gather(self, tensor: Tensor) -> Tensor:
        whole = tensor.new_empty(self.size, tensor.numel())
        self._run(lambda: dist.all_gather(list(whole), tensor, group=self._group, async_op=True))
        return whole

    # ------------------------------------------------------------------ the transport

    def _run(self, start: Callable[[], Any]) -> None:
        try:
            start().wait(timedelta(seconds=self.timeout))
        except (RuntimeError, ValueError) as error:
            lost = (
                f"expected an answer of all {self.size} processes within {self.timeout:g} s, got "
                f"none (rank {self.rank} reports: {str(error).splitlines()[0]}); a process has "
                "died or is stuck. Start all processes again, as torchrun --max-restarts does."
            )
            self._give_up(lost)
            raise LostProcessError(lost) from error
        self.traffic.exchanges += 1

    @contextlib.contextmanager
    def _expected(self) -> Iterator[None]:
        """The others wait for our data: if we cannot send it, they must not wait for long."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, DistributedError) and error is not self._announced:
                self._give_up(
                    f"expected rank {self.rank} to send what the others wait for, got "
                    f"{type(error).__name__}: {error}. Start all processes again."
                )
            raise

    def _give_up(self, why: str) -> None:
        self._line.lost = why
        with contextlib.suppress(Exception):
            self._abort()

    def _abort(self) -> None:
        """Close our connections, so that the others notice before their own timeout."""
        abort = getattr(self._group, "abort", None)
        if abort is not None:
            abort()

    def _count(self, sent: int, received: int, useful: int) -> None:
        self.traffic.sent += sent
        self.traffic.received += received
        self.traffic.useful += useful


def collective(method: F) -> F:
    """A method of an object with a ``_group`` that ends well on all processes or on none."""

    @functools.wraps(method)
    def wrapper(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._group.call():
            return method(self, *arguments, **options)

    return cast(F, wrapper)


def _told(name: str, column: Tensor) -> str:
    """Numbers as they are, everything else by its digest."""
    plain = name.startswith("number of") or name in ("gather_limit", "timeout")
    values = column.tolist()
    return ", ".join(str(v) if plain else f"digest {v & 0xFFFFFFFF:08x}" for v in values)


def _raise(error: Exception) -> Any:
    raise error
