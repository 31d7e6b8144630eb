"""Reads from a Parquet file how much PyArrow will unpack: where columns are, and the sizes of pages.

The footer states these sizes too, but PyArrow does not compare them. The footer is read here because the
objects that PyArrow makes of it end the process for some damaged files. All are structures in the compact
protocol of Thrift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

DICTIONARY, DELTA_LENGTH, DELTA_BYTES = frozenset((2, 8)), 6, 7  # numbers of encodings
_HEADER_BYTES = 512  # an ordinary header is shorter
_MOST_NESTED = 16
_PADDING = 100  # bytes that PyArrow reads behind a column, for files of an old writer

_Wanted: TypeAlias = Mapping[tuple[int, int], Any]  # the fields to keep by number and type, with their parts
_INT, _LONG, _BYTES, _LIST, _STRUCT = 5, 6, 8, 9, 12  # types of fields
_PATH, _SIZE, _PAGES, _FIRST = (3, _LIST), (7, _LONG), (9, _LONG), (11, _LONG)  # of a column
_COLUMNS, _ROWS = (1, _LIST), (3, _LONG)  # of a group of rows
_COLUMN = (3, _STRUCT)
_GROUPS = (4, _LIST)
_FOOTER: _Wanted = {
    _GROUPS: {_COLUMNS: {_COLUMN: {_PATH: {}, _SIZE: {}, _PAGES: {}, _FIRST: {}}}, _ROWS: {}},
}
_UNPACKED, _PACKED = (2, _INT), (3, _INT)  # of a page
_VALUES, _ENCODING, _ENCODING_2 = (1, _INT), (2, _INT), (4, _INT)
_KINDS = {(5, _STRUCT): _ENCODING, (7, _STRUCT): _ENCODING, (8, _STRUCT): _ENCODING_2}  # pages of values
_PAGE: _Wanted = {
    _UNPACKED: {},
    _PACKED: {},
    **{kind: {_VALUES: {}, encoding: {}} for kind, encoding in _KINDS.items()},
}


@dataclass(frozen=True)
class Pages:
    """The pages of one column in one group of rows.

    n_bytes    their size without compression
    n_values   the number of values, including a dictionary, and at least the number of rows
    n_rows     the number of rows in the group
    encodings  the numbers of all encodings
    """

    n_bytes: int
    n_values: int
    n_rows: int
    encodings: frozenset[int]


def pages_of_groups(path: Path, names: Sequence[str]) -> list[list[Pages]]:
    """Return the pages of each column in each group of rows; raise ValueError if the file is damaged.

    names  names of the columns, as paths in the schema
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(size - 8)
        n_bytes = int.from_bytes(file.read(4), "little")
        if n_bytes > size - 8:
            raise ValueError("its footer is longer than the file")
        file.seek(size - 8 - n_bytes)
        try:
            footer = _Compact(file.read(n_bytes)).struct(_FOOTER)
        except IndexError:
            raise ValueError("its footer is cut off") from None
        return [_pages_of_group(file, group, names, size) for group in footer.get(_GROUPS, [])]


def _pages_of_group(file: BinaryIO, group: Any, names: Sequence[str], size: int) -> list[Pages]:
    columns = [column.get(_COLUMN, {}) for column in group.get(_COLUMNS, [])]
    if [b".".join(column.get(_PATH, [])).decode() for column in columns] != list(names):
        raise ValueError("its footer has two names for one column")
    n_rows = group.get(_ROWS, -1)
    if n_rows < 0:
        raise ValueError("a group of rows has no number of rows")
    return [_pages_of_column(file, column, n_rows, size) for column in columns]


def _pages_of_column(file: BinaryIO, column: Any, n_rows: int, size: int) -> Pages:
    """Read the headers of the pages of a column, which must lie within the file."""
    start = column.get(_PAGES, -1)
    if 0 < column.get(_FIRST, 0) < start:  # a dictionary
        start = column[_FIRST]
    end = start + column.get(_SIZE, -1)
    if not 0 <= start <= end <= size:
        raise ValueError("a column lies outside the file")
    n_bytes, n_values, encodings = 0, 0, set()
    while start < end:
        page, start = _page(file, start, end)
        start += page.get(_PACKED, -1)
        if min(page.get(_UNPACKED, -1), page.get(_PACKED, -1)) < 0 or start > end + _PADDING:
            raise ValueError("a page has a wrong size")
        n_bytes += page[_UNPACKED]
        for kind, encoding in _KINDS.items():
            part = page.get(kind, {})
            n_values += max(0, part.get(_VALUES, 0))
            encodings.add(part.get(encoding, 0))
    return Pages(n_bytes, max(n_values, n_rows), n_rows, frozenset(encodings))


def _page(file: BinaryIO, start: int, end: int) -> tuple[dict[Any, Any], int]:
    """Return the fields of the header of a page at `start`, and where it ends."""
    size = _HEADER_BYTES
    while True:
        file.seek(start)
        reader = _Compact(file.read(min(size, end - start)))
        try:
            return reader.struct(_PAGE), start + reader.place
        except IndexError:
            if size >= end - start:
                raise ValueError("the header of a page is cut off") from None
            size *= 16  # it has statistics of long texts


class _Compact:
    """Reads structures. As in PyArrow, a field with an unexpected type is passed over."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def struct(self, wanted: _Wanted | None, depth: int = 0) -> dict[tuple[int, int], Any]:
        """Return the wanted fields of a structure; raise IndexError if the data end before it does."""
        fields = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            key = number, head & 15
            parts = wanted.get(key) if wanted else None
            value = self._value(head & 15, parts, depth)
            if parts is not None:
                fields[key] = value
        return fields

    def _value(self, kind: int, wanted: _Wanted | None, depth: int) -> Any:
        if kind in (4, _INT, _LONG):
            return self._integer()
        if kind == _BYTES:
            length = self._varint()
            self.place += length
            self._check_place()
            return None if wanted is None else self._data[self.place - length : self.place]
        if depth > _MOST_NESTED:
            raise ValueError("its structures are nested too deeply")
        if kind == _STRUCT:
            return self.struct(wanted, depth + 1)
        if kind in (_LIST, 10):
            return self._list(wanted, depth + 1)
        if kind not in (1, 2, 3, 7):
            raise ValueError("a field has an unknown type")
        self.place += {3: 1, 7: 8}.get(kind, 0)  # a truth value is in the type of its field
        self._check_place()
        return None

    def _list(self, wanted: _Wanted | None, depth: int) -> list[Any]:
        head = self._byte()
        kind = head & 15
        length = self._varint() if head >> 4 == 15 else head >> 4
        values = []
        for _ in range(length):
            value = self._byte() if kind in (1, 2) else self._value(kind, wanted, depth)
            if wanted is not None:
                values.append(value)
        return values

    def _check_place(self) -> None:
        if self.place > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        value = self._data[self.place]
        self.place += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) > 127:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number has more than 64 bits")
        return value | byte << shift

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
