"""Reads Parquet files after a check that they fit into memory, which trusts no size in the footer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from rayfbnn.data.paths import LARGEST_RATIO, check_columns
from rayfbnn.data.raw_table import without_labels
from rayfbnn.errors import DataError
from rayfbnn.memory import bytes_text, memory_of_machine

if TYPE_CHECKING:
    import pandas as pd


DICTIONARY, DELTA_LENGTH, DELTA_BYTES = frozenset((2, 8)), 6, 7  # numbers of encodings
_HEADER_BYTES = 512  # an ordinary header is shorter
_MOST_NESTED = 16
_PADDING = 100  # bytes that PyArrow reads behind a column, for files of an old writer

_Wanted: TypeAlias = Mapping[tuple[int, int], Any]  # the fields to keep by number and type, with their parts
_INT, _LONG, _BYTES, _LIST, _STRUCT = 5, 6, 8, 9, 12  # types of fields
_PATH, _SIZE, _PAGES, _FIRST = (3, _LIST), (7, _LONG), (9, _LONG), (11, _LONG)  # of a column
_COLUMNS, _PAGE_ROWS = (1, _LIST), (3, _LONG)  # of a group of rows
_COLUMN = (3, _STRUCT)
_GROUPS = (4, _LIST)
_FOOTER: _Wanted = {
    _GROUPS: {_COLUMNS: {_COLUMN: {_PATH: {}, _SIZE: {}, _PAGES: {}, _FIRST: {}}}, _PAGE_ROWS: {}},
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
    n_rows = group.get(_PAGE_ROWS, -1)
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


_ALWAYS_TAKEN = 64_000_000  # bytes of cells, which are held more than once while reading
_COPIES = 2  # of the cells: one while reading, one in the table
_LEAST_ENTRIES, _MOST_ENTRIES = 10_000, 300_000  # of a list in the footer
_TEXT = "BYTE_ARRAY"
_NUMBER_BYTES, _DECIMAL_BYTES = 8, 24  # at least, for a cell that is not text
_NESTED_BYTES = 256  # at least, for a list or a structure, which becomes a Python object
_ROWS = 65_536  # read at a time
_MOST_AT_ONCE = 32 * 2**20  # bytes of texts that are expanded at a time to count them


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a file as a table with numbered rows; raise DataError if it is damaged or too large."""
    import pyarrow.parquet

    try:
        check_parquet_size(path)
        # Without `partitioning`, folders with names such as year=2024 would add columns.
        table = pyarrow.parquet.read_table(path, partitioning=None)
        table.validate(full=True)  # texts must be UTF-8, for example
        frame: pd.DataFrame = without_labels(table)[0]
    except DataError:
        raise
    except Exception as exc:  # damage can raise anything in PyArrow and pandas
        reason = " ".join(str(exc).split()) or type(exc).__name__
        raise DataError(f"{path}: cannot be read: {reason[:300]}; write the file again, or as CSV") from exc
    return frame


def check_parquet_size(path: Path) -> None:
    """Raise DataError for a Parquet file that is too large for memory, or a small file of a huge table.

    A file can store one long text for millions of cells, so the sizes that it declares say little about its
    content. Texts are counted without expanding them. Raises ValueError if the file is not a Parquet file.
    """
    size, memory = path.stat().st_size, memory_of_machine()
    most = max(_ALWAYS_TAKEN, LARGEST_RATIO * size)
    n_bytes = 0
    for n in unpacked_sizes(path):
        n_bytes += n
        if n_bytes > most:
            raise DataError(
                f"{path}: a Parquet file of {bytes_text(size)} that holds more than {bytes_text(most)},"
                " unlike any ordinary table; write it without repeated texts if you trust it"
            )
        if n_bytes * _COPIES > memory:
            raise DataError(
                f"{path}: holds more than {bytes_text(n_bytes)}; reading it takes"
                f" {bytes_text(n_bytes * _COPIES)} of memory, but this machine has {bytes_text(memory)}; use"
                " fewer rows or columns"
            )


def unpacked_sizes(path: Path) -> Iterator[int]:
    """Yield the bytes of all cells in portions. Counting a portion takes little memory."""
    import pyarrow.parquet

    # PyArrow makes room for as many entries of a list as the footer claims to have.
    most = max(_LEAST_ENTRIES, min(_MOST_ENTRIES, path.stat().st_size))
    with pyarrow.parquet.ParquetFile(path, thrift_container_size_limit=most) as file:
        metadata = file.metadata
        n_nested = sum(map(pyarrow.types.is_nested, file.schema_arrow.types))
    check_columns(path, metadata.num_columns)
    columns = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    groups = pages_of_groups(path, [column.path for column in columns])
    for group in groups:
        for column, pages in zip(columns, group, strict=True):
            # The pages of a column, including its dictionary, are read whole.
            least = _DECIMAL_BYTES if column.logical_type.type == "DECIMAL" else _NUMBER_BYTES
            yield max(pages.n_bytes, pages.n_values * max(least, column.length))
        yield n_nested * group[0].n_rows * _NESTED_BYTES if group else 0
    texts = [place for place, column in enumerate(columns) if column.physical_type == _TEXT]
    dictionaries = [
        columns[place].path
        for place in texts
        if not any(group[place].encodings & {DELTA_BYTES, DELTA_LENGTH} for group in groups)
    ]
    with pyarrow.parquet.ParquetFile(path, metadata=metadata, read_dictionary=dictionaries) as file:
        for number, group in enumerate(groups):
            for place in texts:
                yield from _of_texts(file, number, columns[place].path, group[place])


def _of_texts(file: Any, group: int, column: str, pages: Pages) -> Iterator[int]:
    """Yield the bytes that a column's texts in a group of rows take beyond the size of its pages."""
    # A text may share its beginning with the previous one. Other pages without a dictionary have full texts.
    is_shared = DELTA_BYTES in pages.encodings
    if not is_shared and not pages.encodings & DICTIONARY:
        return
    rows = max(1, min(_ROWS, _MOST_AT_ONCE // max(1, pages.n_bytes))) if is_shared else _ROWS
    extra = -pages.n_bytes
    for batch in file.iter_batches(rows, row_groups=[group], columns=[column]):
        extra += sum(map(_bytes_of_texts, batch.columns))
        yield max(0, extra)
        extra = min(0, extra)


def _bytes_of_texts(array: Any) -> int:
    """Return the bytes of an array's texts; a dictionary's text counts once for each of its uses."""
    import pyarrow as pa
    import pyarrow.compute as pc

    while pa.types.is_nested(array.type) or isinstance(array, pa.ExtensionArray):
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_struct(array.type):
            return sum(map(_bytes_of_texts, array.flatten()))
        else:
            array = array.values
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)
    elif isinstance(array, pa.StringArray | pa.BinaryArray | pa.LargeStringArray | pa.LargeBinaryArray):
        lengths = pc.binary_length(array)
    else:  # numbers
        return int(array.nbytes)
    return int(pc.sum(lengths).as_py() or 0)
