"""Patterns that processes want to store: checked, compared, and shared out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy.distributed._errors import DisagreementError
from hopfy.distributed._group import Group
from hopfy.distributed._inputs import QueryLayout, check_layout, digest
from hopfy.distributed._stored_patterns import StoredPatterns, routed
from hopfy.memory.parts import (
    ArrayLike,
    Codec,
    as_ids,
    as_patterns,
    as_values,
    codec_for,
    codes_of,
)

__all__ = ["NewPatterns", "offered"]


class NewPatterns(NamedTuple):
    """What this process is to store, and what all processes know about the rest.

    Attributes:
        patterns: (m, D), those of this process.
        values: (m, ...) numbers or codes, or None.
        codec: of the codes; its words are those of all processes.
        ids: (M,) of all processes, in the order of storing; None: counted on.
        first: where this process's own start among them.
        total: M.
        answer: the first and last of the ids that the caller gets back.
    """

    patterns: Tensor
    values: Tensor | None
    codec: Codec | None
    ids: Tensor | None
    first: int
    total: int
    answer: slice


class _Checked(NamedTuple):
    patterns: Tensor
    values: Tensor | None
    codec: Codec | None
    ids: Tensor | None


def offered(
    given: tuple[ArrayLike, ArrayLike | None, ArrayLike | None],
    layout: QueryLayout,
    held: StoredPatterns | None,
    codec: Codec | None,
    counts: list[int],
    group: Group,
) -> NewPatterns:
    """Check what was given on every process and share it out; raises on all or on none.

    ``held`` and ``codec`` are what is stored already; ``counts`` are the patterns of each process.
    """

    def check() -> tuple[_Checked, Mapping[str, int]]:
        check_layout(layout)
        checked = _checked(given, held, codec)
        same = {"layout": digest(layout)}
        if layout == "replicated":
            same |= {
                "patterns": digest(checked.patterns),
                "values": digest(None if checked.values is None else checked.values),
                "words of the values": digest(checked.codec and checked.codec.entries),
                "ids": digest(checked.ids),
            }
        return checked, same

    checked = group.agree(check)
    if layout == "sharded":
        return _of_each(checked, group)
    shares = routed(counts, len(checked.patterns))
    first = sum(shares[: group.rank])
    own = slice(first, first + shares[group.rank])
    values = None if checked.values is None else checked.values[own]
    total = len(checked.patterns)
    return NewPatterns(
        checked.patterns[own], values, checked.codec, checked.ids, first, total, slice(0, total)
    )


def _checked(
    given: tuple[ArrayLike, ArrayLike | None, ArrayLike | None],
    held: StoredPatterns | None,
    codec: Codec | None,
) -> _Checked:
    patterns, values, ids = given
    size = None if held is None else held.patterns.shape[1]
    rows = as_patterns(patterns, size, None if held is None else held.rows.dtype).cpu()
    stored, words = _checked_values(values, len(rows), held, codec)
    numbers = None if ids is None else as_ids(ids)
    if numbers is not None and len(numbers) != len(rows):
        raise ValueError(
            f"expected one id for each of the {len(rows)} patterns, got {len(numbers)}."
        )
    return _Checked(rows, stored, words, numbers)


def _checked_values(
    values: ArrayLike | None, count: int, held: StoredPatterns | None, codec: Codec | None
) -> tuple[Tensor | None, Codec | None]:
    """Numbers, or codes in a vocabulary of the given values alone."""
    like = None if held is None else held.values
    if values is None and like is not None and not count:
        return like[:0], codec and Codec(codec.kind)
    if held is not None and (values is None) != (like is None):
        stored, came = ("without", "some") if like is None else ("with", "none")
        raise ValueError(
            f"expected patterns {stored} values, as all that are stored, got {came}; give values "
            "for all patterns or for none."
        )
    if values is None:
        return None, None
    kind = codec_for(values) if codec is None else codec.kind
    if kind is not None:
        if codec is None and like is not None:
            raise TypeError(f"expected values of dtype {like.dtype}, as stored, got {kind} values.")
        words = Codec(kind)
        return codes_of(words, values, count), words
    return as_values(values, count, like).cpu(), None


def _of_each(checked: _Checked, group: Group) -> NewPatterns:
    """Each process keeps its own patterns; the order of storing is that of the ranks."""
    about = _about(checked)
    parts = group.gather(lambda: [_as_bytes([len(checked.patterns), about])])
    said = [json.loads(bytes(part[0].tolist())) for part in parts]
    filled = [(rank, what) for rank, (count, what) in enumerate(said) if count]
    for rank, what in filled[1:]:
        if what != filled[0][1]:
            raise DisagreementError(
                "expected patterns, values and ids of one kind on all processes, got "
                f"{_described(filled[0][1])} on rank {filled[0][0]} and {_described(what)} on rank "
                f"{rank}."
            )
    if filled and not len(checked.patterns):
        checked = _empty_like(checked, filled[0][1])
    counts = [count for count, _ in said]
    first = sum(counts[: group.rank])
    ids = None
    if filled and filled[0][1]["ids"]:
        empty = torch.zeros(0, dtype=torch.int64)
        own = empty if checked.ids is None else checked.ids
        ids = torch.cat([part[0] for part in group.gather(lambda: [own])])
    codec, values = checked.codec, checked.values
    if filled and filled[0][1]["words"] is not None:
        codec, values = _joined_words(checked, filled[0][1]["words"], group)
    answer = slice(first, first + counts[group.rank])
    return NewPatterns(checked.patterns, values, codec, ids, first, sum(counts), answer)


def _empty_like(checked: _Checked, what: dict[str, Any]) -> _Checked:
    """Nothing, of the kind that the others store."""
    dtype = getattr(torch, what["dtype"].removeprefix("torch."))
    values = None
    if what["values"] is not None:
        name, *tail = what["values"]
        values = torch.empty(0, *tail, dtype=getattr(torch, name.removeprefix("torch.")))
    return checked._replace(patterns=torch.empty(0, what["size"], dtype=dtype), values=values)


def _about(checked: _Checked) -> dict[str, Any]:
    values = checked.values
    return {
        "size": checked.patterns.shape[1],
        "dtype": str(checked.patterns.dtype),
        "values": None if values is None else [str(values.dtype), *values.shape[1:]],
        "words": None if checked.codec is None else checked.codec.kind,
        "ids": checked.ids is not None,
    }


def _described(what: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in what.items())


def _joined_words(checked: _Checked, kind: str, group: Group) -> tuple[Codec, Tensor]:
    """One vocabulary of all processes' words, and our codes in it."""
    own = [] if checked.codec is None else checked.codec.entries
    parts = group.gather(lambda: [_as_bytes(own)])
    joined = Codec(kind)
    for part in parts:
        joined.learn(json.loads(bytes(part[0].tolist())))
    place = {word: code for code, word in enumerate(joined.entries)}
    table = torch.tensor([place[word] for word in own], dtype=torch.int64)
    codes = torch.zeros(0, dtype=torch.int64) if checked.values is None else checked.values
    return joined, table[codes] if len(table) else codes.long()


def _as_bytes(thing: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(thing).encode()), dtype=torch.uint8)
