"""HTML of tables, lists and verdicts, with all text from users escaped.

Notebooks show the HTML as it is; the report has a style for its classes.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

from rayfbnn.numerals import plain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Html:
    """Text that is HTML already, and must not be escaped again."""

    text: str


Cell = object  # text, a number, None for an unknown value, or Html


def escaped(cell: Cell) -> str:
    """Return a cell as HTML: escaped text, numbers with four digits, and "-" for an unknown value."""
    if isinstance(cell, Html):
        return cell.text
    return html.escape(cell_text(cell))


def cell_text(cell: Cell) -> str:
    """Return a cell as text: numbers with four digits, and "-" for an unknown value."""
    if cell is None:
        return "-"
    if isinstance(cell, bool | str) or not isinstance(cell, Real):
        return str(cell)
    value = float(cell)
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return str(value)
    if (value.is_integer() or abs(value) >= 1e4) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return plain(value, 4)


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table with the names of its rows in the first column; numbers are aligned to the right."""
    rows = list(rows)
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    head = "".join(_heading(name, column) for name, column in zip(header, columns, strict=True))
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def frame(rows: pd.DataFrame, name: str) -> str:
    """Return a data frame as a table; `name` is the heading of its index."""
    return table((name, *rows.columns), list(rows.itertuples(name=None)))


def pairs(rows: Mapping[str, Cell]) -> str:
    """Return a table of names and values, without unknown values."""
    body = "".join(f"<tr>{_row((name, cell))}</tr>" for name, cell in rows.items() if cell is not None)
    return f'<div class="table"><table class="pairs"><tbody>{body}</tbody></table></div>'


def items(sentences: Iterable[str]) -> str:
    """Return sentences as a list, or "" for no sentences."""
    lines = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{lines}</ul>" if lines else ""


def paragraph(text: str) -> str:
    """Return a text as a paragraph, or "" for an empty text."""
    return f"<p>{html.escape(text)}</p>" if text else ""


def preformatted(text: str, *, summary: str = "") -> str:
    """Return lines of text as they are, hidden behind a summary if one is given."""
    lines = f"<pre>{html.escape(text)}</pre>"
    return f"<details><summary>{html.escape(summary)}</summary>{lines}</details>" if summary else lines


def grade_badge(grade: str, *, is_ok: bool) -> Html:
    """Return a grade of a verdict, marked as good or bad."""
    kind = "good" if is_ok else "bad"
    return Html(f'<strong class="grade {kind}">{html.escape(grade)}</strong>')


def verdict(subject: str, grade: str, *, is_ok: bool, sentences: Sequence[str], advice: Sequence[str]) -> str:
    """Return a verdict: the grade, the sentences that explain it, and the advice."""
    heading = f"<p>{html.escape(subject)}: {grade_badge(grade, is_ok=is_ok).text}</p>"
    todo = f"<p>What to do:</p>{items(advice)}" if advice else ""
    return f'<div class="verdict">{heading}{items(sentences)}{todo}</div>'


def _heading(name: str, column: Sequence[Cell]) -> str:
    """Return the heading of a column, to the right above numbers."""
    kind = ' class="number"' if column and all(map(_is_number, column)) else ""
    return f'<th scope="col"{kind}>{html.escape(name)}</th>'


def _row(cells: Sequence[Cell]) -> str:
    first, *others = cells
    return f'<th scope="row">{escaped(first)}</th>' + "".join(_cell(cell) for cell in others)


def _cell(cell: Cell) -> str:
    kind = ' class="number"' if _is_number(cell) else ""
    return f"<td{kind}>{escaped(cell)}</td>"


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, Real) and not isinstance(cell, bool))
