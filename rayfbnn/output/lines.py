"""Text for lines of limited width: how wide they may be, folding at spaces, and tables that fit."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    pass

_LEAST_WIDTH = 20
_GAP = "  "
_PART_OF_NAMES = 6  # names of rows get at least this part of the width, or all that they need


def line_width(stream: TextIO | None = None) -> int | None:
    """Return how many characters fit on a line of a stream, standard output by default; None for no limit.

    It is COLUMNS of the environment if that is set, and otherwise the width of a terminal. Lines of files
    and pipes may have any length.
    """
    stream = sys.stdout if stream is None else stream
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and int(columns) > 0:
        return max(int(columns), _LEAST_WIDTH)
    with suppress(OSError, ValueError, AttributeError):
        if stream.isatty():
            return max(os.get_terminal_size(stream.fileno()).columns, _LEAST_WIDTH)
    return None


def terminal_height() -> int | None:
    """Return the number of lines of the terminal on standard output; None if it is no terminal."""
    with suppress(OSError, ValueError, AttributeError):
        if sys.stdout.isatty():
            return shutil.get_terminal_size().lines
    return None


def width_up_to(at_most: int) -> int:
    """Return the width of lines on standard output, and `at_most` where they may have any length."""
    width = line_width()
    return at_most if width is None else min(at_most, width)


def folded(text: str, width: int | None) -> str:
    """Return the text with lines of at most `width` characters, broken at spaces and never inside a word.

    The parts of a line that is broken are indented by two more characters than the line.
    """
    if width is None or len(text) <= width:
        return text
    return "\n".join(part for line in text.split("\n") for part in _folded_line(line, width))


def _folded_line(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip(" "))]
    if len(line) <= width or len(indent) + 2 > width // 2 or not line.isprintable():
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
    )


def shortened(text: str, at_most: int = 40) -> str:
    """Return a text with "…" instead of its middle if it has more than `at_most` characters."""
    if len(text) <= at_most:
        return text
    n_end = (at_most - 1) // 2
    return f"{text[: at_most - 1 - n_end]}…{text[-n_end:]}"


def all_shortened(names: Sequence[str], at_most: int = 40) -> list[str]:
    """Return shortened names that stay different.

    Their middles or ends are left out. If that makes two equal, their numbers in the list follow.
    """
    for cut in (shortened, _without_end):
        texts = [cut(name, at_most) for name in names]
        if len(set(texts)) == len(set(names)):
            return texts
    return [
        name if len(name) <= at_most else f"{_without_end(name, at_most - 7)} ({number})"
        for number, name in enumerate(names, 1)
    ]


def _without_end(text: str, at_most: int) -> str:
    return text if len(text) <= at_most else f"{text[: at_most - 1]}…"


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> str:
    """Return a table with its first column to the left and the others to the right.

    If it is too wide for the lines, long names of rows get separate lines, above the other cells. If
    these are too wide too, they are divided into several tables below each other.

    width  of lines; that of standard output by default
    """
    width = line_width() if width is None else width
    cells = [list(row) for row in (header, *rows)]
    if width is not None:  # a name that no line holds is cut
        cells[0] = all_shortened(cells[0], max(width // 2, _LEAST_WIDTH))
        names = all_shortened([row[0] for row in cells[1:]], max(4 * width, _LEAST_WIDTH))
        cells[1:] = [[name, *row[1:]] for name, row in zip(names, cells[1:], strict=True)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is None:
        return "\n".join(_block(cells, widths, range(1, len(widths)), widths[0]))
    blocks = [_block(cells, widths, columns, room) for columns, room in _divided(widths, width)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _divided(widths: Sequence[int], width: int) -> Iterator[tuple[range, int]]:
    """Yield the columns of each table that fits, and how many characters it has for names."""
    least = min(widths[0], width // _PART_OF_NAMES)
    first = 1
    while first < len(widths):
        last = first + 1
        while last < len(widths) and least + _taken(widths[first : last + 1]) <= width:
            last += 1
        yield range(first, last), max(least, width - _taken(widths[first:last]))
        first = last


def _taken(widths: Sequence[int]) -> int:
    return sum(len(_GAP) + width for width in widths)


def _block(cells: Sequence[Sequence[str]], widths: Sequence[int], columns: range, room: int) -> list[str]:
    """Return the lines of some columns, with names that are longer than `room` on separate lines."""
    pad = min(room, widths[0])
    lines = []
    for row in cells:
        name = row[0]
        if len(name) > pad:
            lines.append(name)
            name = ""
        aligned = (row[column].rjust(widths[column]) for column in columns)
        lines.append(_GAP.join([name.ljust(pad), *aligned]).rstrip())
    return lines
