"""Facts: the sentences, tables, lists and verdicts of an answer, each as text for a terminal and as HTML.

Notebooks show the HTML as it is; the report has a style for its classes. All text from users is escaped.
"""

from __future__ import annotations

import html
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from rayfbnn.numerals import plain
from rayfbnn.output.lines import table_text, width_up_to

if TYPE_CHECKING:
    import pandas as pd


class Badge(NamedTuple):
    """A grade of a verdict, which HTML marks as good or bad."""

    grade: str
    is_ok: bool


Cell: TypeAlias = object  # text, a number, None for an unknown value, or a Badge


class Paragraph(NamedTuple):
    """A sentence or several, or a grade alone."""

    content: str | Badge


class Sentences(NamedTuple):
    """A list of sentences."""

    sentences: Sequence[str]


class Lines(NamedTuple):
    """Lines of text that stay as they are; HTML hides them behind the summary, if there is one."""

    text: str
    summary: str = ""


class Pairs(NamedTuple):
    """Names and values; unknown values are left out."""

    rows: Mapping[str, Cell]


class TableFact(NamedTuple):
    """A table with the names of its rows in the first column.

    header, rows  names of the columns, and cells
    title         above the table
    digits        significant digits of its numbers
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    digits: int = 4

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, name: str) -> TableFact:
        """Return a data frame as a table; `name` is the heading of its index."""
        return cls((name, *map(str, frame.columns)), list(frame.itertuples(name=None)))


class Judgement(NamedTuple):
    """A verdict: its subject and grade, the sentences that explain it, and the advice."""

    subject: str
    badge: Badge
    sentences: Sequence[str]
    advice: Sequence[str]


class Html(NamedTuple):
    """HTML without text, such as pictures."""

    html: str


Fact: TypeAlias = Paragraph | Sentences | Lines | Pairs | TableFact | Judgement | Html


class Answer(ABC):
    """The base of the answers of verbs: `print` shows the facts as text, and a notebook as HTML."""

    @abstractmethod
    def facts(self) -> Sequence[Fact]:
        """Return the facts of the answer in the order of output."""

    def to_text(self) -> str:
        """Return the facts as text that fits on the lines of standard output."""
        return text_of(self.facts())

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return html_of(tables_last(self.facts()))


def text_of(facts: Iterable[Fact]) -> str:
    """Return facts as text, with an empty line between them except between paragraphs."""
    text, before = "", None
    for fact in facts:
        if shown := _text(fact):
            gap = "\n" if isinstance(fact, Paragraph) and isinstance(before, Paragraph) else "\n\n"
            text, before = f"{text}{gap if text else ''}{shown}", fact
    return text


def _text(fact: Fact) -> str:
    match fact:
        case Paragraph(content):
            return cell_text(content)
        case Sentences(sentences):
            return "\n".join(wrapped(sentences, "  "))
        case Pairs(rows):
            width = max(18, 2 + max(map(len, rows), default=0))
            known = {name: cell for name, cell in rows.items() if cell is not None}
            return "\n".join(f"{name:<{width}}{cell_text(cell)}" for name, cell in known.items())
        case TableFact(header, rows, title, digits):
            cells = [[cell_text(cell, digits) for cell in row] for row in rows]
            return "\n".join([*([title] if title else []), table_text(header, cells)])
        case Judgement(subject, badge, sentences, advice):
            todo = ["  what to do:", *wrapped(advice, "  - ")] if advice else []
            return "\n".join([f"{subject}: {badge.grade}", *wrapped(sentences, "  "), *todo])
    return fact.text if isinstance(fact, Lines) else ""


def tables_last(facts: Iterable[Fact]) -> list[Fact]:
    """Return facts with tables last, because a page is read from its top, and a terminal from its end."""
    return sorted(facts, key=lambda fact: isinstance(fact, TableFact))


def html_of(facts: Iterable[Fact]) -> str:
    """Return facts as HTML, with all text from users escaped."""
    return "".join(map(_html, facts))


def _html(fact: Fact) -> str:
    match fact:
        case Paragraph(content):
            return f"<p>{_escaped(content)}</p>" if content else ""
        case Sentences(sentences):
            lines = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
            return f"<ul>{lines}</ul>" if lines else ""
        case Lines(text, summary):
            lines = f"<pre>{html.escape(text)}</pre>"
            if not summary:
                return lines
            return f"<details><summary>{html.escape(summary)}</summary>{lines}</details>"
        case Pairs(rows):
            body = "".join(_row((name, cell)) for name, cell in rows.items() if cell is not None)
            return f'<div class="table"><table class="pairs"><tbody>{body}</tbody></table></div>'
        case TableFact():
            return _table(fact)
        case Judgement(subject, badge, sentences, advice):
            todo = f"<p>What to do:</p>{_html(Sentences(advice))}" if advice else ""
            heading = f"<p>{html.escape(subject)}: {_escaped(badge)}</p>"
            return f'<div class="verdict">{heading}{_html(Sentences(sentences))}{todo}</div>'
        case Html(text):
            return text


def _table(fact: TableFact) -> str:
    columns = zip(*fact.rows, strict=True) if fact.rows else [()] * len(fact.header)
    head = "".join(
        f'<th scope="col"{_alignment(column)}>{html.escape(name)}</th>'
        for name, column in zip(fact.header, columns, strict=True)
    )
    caption = f"<caption>{html.escape(fact.title)}</caption>" if fact.title else ""
    body = "".join(_row(row, fact.digits) for row in fact.rows)
    table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="table">{table}</div>'


def _row(cells: Sequence[Cell], digits: int = 4) -> str:
    first, *others = cells
    columns = "".join(f"<td{_alignment([cell])}>{_escaped(cell, digits)}</td>" for cell in others)
    return f'<tr><th scope="row">{_escaped(first)}</th>{columns}</tr>'


def _alignment(cells: Sequence[Cell]) -> str:
    """Return the class of cells if all are numbers or unknown, and otherwise nothing."""
    are_numbers = [cell is None or (isinstance(cell, Real) and not isinstance(cell, bool)) for cell in cells]
    return ' class="number"' if are_numbers and all(are_numbers) else ""


def _escaped(cell: Cell, digits: int = 4) -> str:
    text = html.escape(cell_text(cell, digits))
    if not isinstance(cell, Badge):
        return text
    return f'<strong class="grade {"good" if cell.is_ok else "bad"}">{text}</strong>'


def cell_text(cell: Cell, digits: int = 4) -> str:
    """Return a cell as text: numbers with some significant digits, and "-" for an unknown value."""
    if cell is None:
        return "-"
    if isinstance(cell, Badge):
        return cell.grade
    if isinstance(cell, bool | str) or not isinstance(cell, Real):
        return str(cell)
    value = float(cell)
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return str(value)
    if (value.is_integer() or abs(value) >= 1e4) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return plain(value, digits)


def with_error(value: float, error: float | None, digits: int) -> str:
    """Return a number and its standard error, if it has one: "0.1234 +- 0.02"."""
    return plain(value, digits) + ("" if error is None else f" +- {plain(error, 2)}")


def updates_text(
    acceptance: float | None, warmup_acceptance: float | None, divergences: int, warmup_divergences: int
) -> str:
    """Describe acceptance and divergences in the iterations kept for the posterior, and in the warm-up.

    Acceptance is omitted for fits and other runs that proposed nothing.
    """
    text = f"divergences {divergences} (warm-up {warmup_divergences})"
    if acceptance is None and warmup_acceptance is None:
        return text
    return f"acceptance {_share(acceptance)} (warm-up {_share(warmup_acceptance)}), {text}"


def _share(acceptance: float | None) -> str:
    if acceptance is None:
        return "-"
    return f"{acceptance:.0%}" if acceptance >= 0.01 or acceptance == 0 else f"one in {1 / acceptance:,.0f}"


def wrapped(sentences: Iterable[str], first: str, at_most: int = 100) -> list[str]:
    """Wrap sentences to lines of at most 100 characters that fit, with later lines indented by four."""
    return [
        line
        for sentence in sentences
        for line in textwrap.wrap(
            sentence,
            width_up_to(at_most),
            initial_indent=first,
            subsequent_indent="    ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    ]


def limits(thresholds: Mapping[str, float]) -> Paragraph:
    """Return the limits that quantities are compared with."""
    return Paragraph(f"thresholds: {', '.join(f'{name} {value:g}' for name, value in thresholds.items())}")
