"""Recognises dates and periods written as text, such as "31 Jan 2026", "2024-W07" or "Q1 2024"."""

from __future__ import annotations

import re

_YEAR = r"(?:1[5-9]|20|21)\d\d"  # digits that can be told from the number of a product
_SHORT = r"['\u2019]?\d\d"  # 24 for 2024
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*[.,]? )?"
_DAY = r"(?:[0-2]?\d|3[01])(?:st|nd|rd|th|\.)?"
_GAP = r"(?:, ?|[-\u2013 /._:])"
_SEASON = r"(?:spring|summer|autumn|fall|winter)"
_WORDS = r"(?:quarter|qtr|half|semester|trimester|term|month|week|wk|kw|cw)"
# A part of a year: one that a year may follow or precede without a gap, and one that needs a gap.
_CLOSE = r"(?:q[1-4]|[hs][12]|[wm]\d\d?)"
_ORDINAL = r"(?:[1-4](?:st|nd|rd|th)?|first|second|third|fourth)"
_PART = rf"(?:{_CLOSE}|[tp]\d\d?|{_WORDS}\.?[ -]?\d\d?|{_ORDINAL} {_WORDS})"
_FISCAL = rf"(?:[fc]y[ -]?(?:{_YEAR}(?:[-/]\d\d(?:\d\d)?)?|{_SHORT}))"

_DATES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\d{4}([-/.])\d\d?\1\d\d?([t ].*)?",
        r"\d\d?([./-])\d\d?\1(\d{4}|\d{2})( .*)?",
        r"\d{4}-(0[1-9]|1[0-2])",
        rf"{_YEAR}[-/](0?[1-9]|1[0-2])",
        rf"(0?[1-9]|1[0-2])[-/]{_YEAR}",
        r"\d{4}年(\d\d?月(\d\d?日)?)?",
        # months by name, in any language that begins them so
        r"(\d\d?\.? |\d\d?-)?(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?( \d\d?,)?[ -]\d{2,4}",
        rf"{_WEEKDAY}({_DAY}(?: of )?{_GAP}?)?{_MONTH}{_GAP}?({_YEAR}|{_SHORT})( .*)?",
        rf"{_WEEKDAY}({_DAY}(?: of )?{_GAP}?{_MONTH}|{_MONTH}{_GAP}{_DAY})({_GAP}({_YEAR}|{_SHORT})( .*)?)?",
        rf"{_YEAR}{_GAP}?{_MONTH}({_GAP}?{_DAY})?",
        # parts of years
        rf"({_YEAR}|{_FISCAL}){_GAP}?{_CLOSE}(-[1-7])?",
        rf"({_YEAR}|{_FISCAL}){_GAP}({_PART}|{_SEASON})",
        rf"{_PART}(?:{_GAP}| of ){_YEAR}|{_CLOSE}{_GAP}?{_FISCAL}|{_PART}{_GAP}{_FISCAL}",
        rf"q[1-4]({_YEAR}|{_GAP}?['\u2019]\d\d|[-/ ]\d\d)|[hs][12]{_GAP}?['\u2019]\d\d",
        rf"([1-4]q|[12]h){_GAP}?({_YEAR}|{_SHORT})|({_YEAR}){_GAP}?([1-4]q|[12]h)",
        rf"{_SEASON}(?: of )?{_GAP}?{_YEAR}([-/]\d\d(\d\d)?)?",
        _FISCAL,
    )
]
_TWO_YEARS = re.compile(rf"({_YEAR})[-\u2013/](\d\d)?(\d\d)")


def is_date(text: str) -> bool:
    """Return True for a text that is a date, or a period of a certain year; months alone are no dates."""
    if any(date.fullmatch(text) for date in _DATES):
        return True
    years = _TWO_YEARS.fullmatch(text)  # a season, such as 2023/24
    if years is None:
        return False
    following = str(int(years[1]) + 1)
    return years[3] == following[2:] and years[2] in (None, following[:2])
