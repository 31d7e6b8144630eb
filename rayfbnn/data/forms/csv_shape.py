"""Explains CSV files that are not a header and rows with commas, with the keys that would read them."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rayfbnn.numerals import read_number

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "blanks"}
_EXCEL = re.compile(r'\s*"?sep=(.)"?\s*', re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+")
_FIRST_LINES = 20  # are searched for the names of columns
_MOST_SHOWN = 60
_MOST_NAMES = 8


@dataclass(frozen=True)
class Lines:
    """The first lines of a file that are not blank, and their numbers, from 1."""

    texts: tuple[str, ...]
    numbers: tuple[int, ...]

    @staticmethod
    def from_texts(texts: Sequence[str], first: int = 1) -> Lines:
        """Return the lines of a file that are not blank; `first` is the number of the first one."""
        kept = [(text.rstrip("\r\n"), number) for number, text in enumerate(texts, first) if text.strip()]
        return Lines(tuple(text for text, _ in kept), tuple(number for _, number in kept))


def excel_separator(line: str) -> str | None:
    """Return the separator that a first line such as "sep=;" declares, as Excel writes it."""
    match = _EXCEL.fullmatch(line)
    return None if match is None else match[1]


def cells_of(line: str, separator: str) -> list[str]:
    """Return the cells of a line."""
    if separator == " ":
        line = re.sub(r"\s+", " ", line.strip())
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return [line]


def usual_separator(lines: Lines, asked: str) -> str | None:
    """Return the separator that divides the last lines into equally many cells; None if none does.

    If there are several, this is the one that divides most of all lines in this way, and the first line into
    most cells.

    asked  the separator to prefer
    """
    ranks = {}
    for separator in dict.fromkeys((asked, *SEPARATORS)):
        if (count := _usual_count(lines, separator)) is not None:
            n_cells = [len(cells_of(text, separator)) for text in lines.texts]
            ranks[separator] = n_cells.count(count), n_cells[0]
    return max(ranks, key=lambda separator: ranks[separator]) if ranks else None


def _usual_count(lines: Lines, separator: str) -> int | None:
    """Return the number of cells, above 1, that most lines have; None if they differ."""
    counts = Counter(len(cells_of(text, separator)) for text in lines.texts[len(lines.texts) // 3 :])
    if not counts:
        return None
    n_cells, n_lines = counts.most_common(1)[0]
    return n_cells if n_cells > 1 and n_lines >= 0.9 * counts.total() else None


def why_no_table(lines: Lines, separator: str) -> str | None:
    """Return what the first lines of a file show, and the keys of [data] that read it; None for nothing.

    separator  the separator that was used
    """
    if not lines.texts:
        return None
    usual = usual_separator(lines, separator)
    if usual is None:
        return None
    n_cells = _usual_count(lines, usual)
    first = next(place for place, text in enumerate(lines.texts) if len(cells_of(text, usual)) == n_cells)
    n_first = len(cells_of(lines.texts[0], usual))
    keys: dict[str, object] = {}
    seen = []
    if usual != separator:
        seen.append(f"the cells are separated by {SEPARATORS[usual]}, not by {SEPARATORS[separator]}")
        keys["separator"] = usual
    is_first_row = _are_numbers(cells_of(lines.texts[first], usual))
    if first == 1 and n_first + 1 == n_cells and is_first_row:
        return _row_names(lines, usual, seen, keys)
    if first == 1 and n_cells == 2 * n_first and usual == ",":
        return (
            f"the header has {n_first} cells and each row has {n_cells}, as if numbers had decimal commas;"
            " save it with decimal points, or with semicolons between the cells"
        )
    if first > 0 and not is_first_row:
        seen.append(
            f"line {lines.numbers[0]} is {_shown(lines.texts[0])}, and the names seem to be in line"
            f" {lines.numbers[first]}"
        )
        keys["skip_rows"] = lines.numbers[first] - 1
    if not seen:
        return None
    if first == 0 and _lacks_header([cells_of(text, usual) for text in lines.texts[:_FIRST_LINES]]):
        seen.append("the first line looks like a case")
        is_short = n_first <= _MOST_NAMES
        keys["header"] = [f"x{number}" for number in range(1, n_first + 1)] if is_short else False
    return f"{'; '.join(seen)}; set {keys_text(keys | _decimal(lines, usual))}"


def _decimal(lines: Lines, separator: str) -> dict[str, object]:
    """Return the key for decimal commas, if there are any in cells that are not separated by commas."""
    cells = (cell for line in lines.texts for cell in cells_of(line, separator))
    is_comma = separator != "," and any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    return {"decimal": ","} if is_comma else {}


def _row_names(lines: Lines, separator: str, seen: list[str], keys: dict[str, object]) -> str:
    """Return the advice about rows that begin with a name, as R's write.table writes them."""
    names = cells_of(lines.texts[0], separator)
    first = [cells_of(text, separator)[0] for text in lines.texts[1:4]]
    keys |= _decimal(lines, separator)
    keys |= {"header": ["row", *names], "skip_rows": lines.numbers[0], "exclude": ["row"]}
    seen.append(
        f"the header has {len(names)} names and each row has {len(names) + 1} cells, as if it began with the"
        f" name of the row ({', '.join(first)}), which R writes"
    )
    short = f"set {keys_text(keys)}" if len(names) <= _MOST_NAMES else 'put "row", before the header'
    return f"{'; '.join(seen)}; write the table without row names (row.names = FALSE), or {short}"


def why_no_name(lines: Lines, name: str, separator: str) -> str:
    """Return why a file may have no column of some name, as the end of a message, or ""."""
    usual = usual_separator(lines, separator) or separator
    for place, text in enumerate(lines.texts[:_FIRST_LINES]):
        if place and name in cells_of(text, usual):
            skip = keys_text({"skip_rows": lines.numbers[place] - 1})
            return f"; the names seem to be in line {lines.numbers[place]}: set {skip}"
    if usual != separator:
        what = why_no_table(lines, separator)
        return f"; {what}" if what else ""
    if lines.texts and _lacks_header([cells_of(text, usual) for text in lines.texts[:_FIRST_LINES]]):
        names = [f"x{number}" for number in range(1, len(cells_of(lines.texts[0], usual)) + 1)]
        names = names if name in names else [*names[:-1], name]
        advice = keys_text({"header": names}) if len(names) <= _MOST_NAMES else 'data.header = ["x1", ...]'
        return f"; the first line looks like a case: if the file has no header, add one, or set {advice}"
    return ""


def _lacks_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return True if the first row has numbers wherever the other rows have them, and there are some."""
    first = [_is_number(cell) for cell in rows[0]]
    rest = [row for row in rows[1:] if len(row) == len(first)]
    if not any(first) or not rest:
        return bool(first) and all(first)
    return all(
        is_number or not all(_is_number(row[place]) for row in rest) for place, is_number in enumerate(first)
    )


def _are_numbers(cells: Sequence[str]) -> bool:
    return any(_is_number(cell) for cell in cells)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(read_number(cell.replace(",", ".")))
    except ValueError:
        return False


def keys_text(keys: dict[str, object]) -> str:
    """Return keys of [data] as they are written in a configuration, joined by "and"."""
    return " and ".join(
        f"data.{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()
    )


def _shown(line: str) -> str:
    return repr(line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 3]}...")
