"""Values that are not numbers: texts, dates and JSON-able records, stored as codes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Codec", "codec_for", "described_values"]

_DATES = "mM"


class Codec:
    """A growing vocabulary: entry i is the value with code i.

    Entries are only ever added, so that every snapshot can share one vocabulary.

    Args:
        kind: ``"text"``, ``"bytes"``, ``"record"`` (JSON) or a NumPy date dtype such as
            ``"datetime64[D]"``.
        entries: texts; for records their JSON.
    """

    def __init__(self, kind: str, entries: list[str] | None = None) -> None:
        if kind not in ("text", "bytes", "record") and np.dtype(kind).kind not in _DATES:
            raise ValueError(f"expected a kind of values, got {kind!r}.")
        self.kind = kind
        self.entries: list[str] = []
        self._codes: dict[str, int] = {}
        self.learn(entries or [])

    def learn(self, entries: list[str]) -> None:
        """Give codes to these entries, in this order, where they have none."""
        for entry in entries:
            self._code(entry)

    def planned(self, entries: list[str]) -> list[int]:
        """The codes that different entries have, or would get from `learn`."""
        new = (entry for entry in entries if entry not in self._codes)
        later = {entry: len(self.entries) + place for place, entry in enumerate(new)}
        return [self._codes.get(entry, later.get(entry, -1)) for entry in entries]

    def encoded(self, values: list[Any]) -> Tensor:
        """Codes (M,) int64 of values; new ones join the vocabulary."""
        texts = [self._text(value) for value in values]
        return torch.tensor([self._code(text) for text in texts], dtype=torch.int64, device="cpu")

    def decoded(self, codes: Tensor) -> Any:
        """A NumPy array shaped like the codes; of objects for records."""
        flat = [self.value(int(code)) for code in codes.flatten().tolist()]
        if self.kind == "record":
            array = np.empty(len(flat), dtype=object)
            array[:] = flat
        else:
            array = np.array(flat, dtype=None if self.kind in ("text", "bytes") else self.kind)
        return array.reshape(tuple(codes.shape))

    def value(self, code: int) -> Any:
        """The value with this code."""
        text = self.entries[code]
        if self.kind == "record":
            return json.loads(text)
        if self.kind == "bytes":
            return text.encode("latin-1")
        if self.kind == "text":
            return text
        if "datetime" in self.kind:
            return np.datetime64(text).astype(self.kind)
        return np.array(int(text)).astype(self.kind)[()]

    def _code(self, text: str) -> int:
        if text not in self._codes:
            self._codes[text] = len(self.entries)
            self.entries.append(text)
        return self._codes[text]

    def _text(self, value: Any) -> str:
        if self.kind == "record":
            try:
                return json.dumps(value, sort_keys=True, allow_nan=False)
            except (TypeError, ValueError, RecursionError):
                raise TypeError(
                    f"expected values that JSON can hold (texts, numbers, lists, tables), got "
                    f"{type(value).__name__}."
                ) from None
        if self.kind == "text" and isinstance(value, str):
            return str(value)
        if self.kind == "bytes" and isinstance(value, bytes):
            return value.decode("latin-1")
        if isinstance(value, np.datetime64) and "datetime" in self.kind:
            return str(value.astype(self.kind))
        if isinstance(value, np.timedelta64) and "timedelta" in self.kind:
            return str(value.astype(self.kind).astype(np.int64))
        raise TypeError(
            f"expected values of kind {self.kind}, as stored, got {type(value).__name__}."
        )


def codec_for(values: Any) -> str | None:
    """The kind of a `Codec` that these values need; None for numbers."""
    if isinstance(values, Tensor):
        return None
    if isinstance(values, dict):
        return "record"
    if isinstance(values, list | tuple) and any(isinstance(v, dict) for v in values):
        return "record"
    try:
        raw = np.asarray(values)
    except ValueError:
        return None  # ragged rows, which are refused later
    if isinstance(values, list | tuple) and raw.dtype.kind in "US":
        kinds = {isinstance(v, str | bytes) for v in values}
        if kinds != {True}:  # NumPy would write numbers as texts
            return "record"
    if raw.dtype.kind in _DATES:
        return str(raw.dtype)
    if raw.dtype.kind == "U":
        return "text"
    if raw.dtype.kind == "S":
        return "bytes"
    if raw.dtype.kind == "O":
        flat = raw.reshape(-1).tolist()
        return "text" if flat and all(isinstance(v, str) for v in flat) else "record"
    return None


def described_values(codec: Codec | None, values: Tensor | None) -> list[str]:
    """A line about the values of a memory; none if it has no values."""
    if codec is not None:
        return [f"Values: {codec.kind}, {len(codec.entries)} different ones."]
    if values is None:
        return []
    shape = tuple(values.shape[1:]) or "a number"
    return [f"Values: {values.dtype}, {shape} each."]
