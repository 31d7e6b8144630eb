"""Recognises how values may be written: levels, dates, and numbers in dress, such as "5 %" or "12:30"."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from rayfbnn.errors import at_most_ten, visible_name
from rayfbnn.numerals import has_other_digits, read_number

_LARGEST_WHOLE = 2.0**53  # from here on, neighbouring integers are one floating-point number
_TRUTH_WORDS = {"true": "True", "t": "True", "false": "False", "f": "False"}
_LEADING_ZERO = re.compile(r"[-+]?0+\d")


def level_text(value: object) -> str:
    """Return the text that identifies a level: a text itself, "3" for the numbers 3 and 3.0, or "True".

    Integers keep all their digits, and control characters are escaped.
    """
    if isinstance(value, str):
        return visible_name(value.strip())
    if isinstance(value, (bool, np.bool_)):
        return str(value)
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating, Decimal)) and math.isfinite(value):
        # The shortest text of a float32 is that of the number it was written as.
        return str(int(value)) if value == int(value) else repr(float(str(value)))
    return visible_name(str(value).strip())


def is_ambiguous(value: object) -> bool:
    """Return True for a floating-point number so large that it may stand for several integers."""
    return isinstance(value, (float, np.floating)) and _LARGEST_WHOLE <= abs(float(value)) < math.inf


def plain_number(text: str) -> str | None:
    """Return a number in its plain form, such as "3" for "3.0" and "+3e0"; None for any other text.

    Integers keep all their digits.
    """
    try:
        value = read_number(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    exact = Decimal(text.strip())
    return str(int(exact)) if value == 0 or exact == int(exact) else repr(value)


def in_one_spelling(texts: Sequence[str | None]) -> list[str | None]:
    """Return the texts of a column's cells with one text for each level.

    A number or a truth value that is written in several ways, such as 3 and 3.0, or True and TRUE, gets its
    plain form. If nothing is written in several ways, all texts stay. Numbers with leading zeros are codes,
    and stay too.
    """
    distinct = {text for text in texts if text is not None}
    plain = {text: text if _LEADING_ZERO.match(text) else plain_number(text) or text for text in distinct}
    if distinct and all(text.lower() in _TRUTH_WORDS for text in distinct):
        plain = {text: _TRUTH_WORDS[text.lower()] for text in distinct}
    if len(set(plain.values())) == len(distinct):
        return list(texts)
    return [None if text is None else plain[text] for text in texts]


def order_of_levels(text: str) -> tuple[Decimal, str]:
    """Return the key that sorts levels that are numbers by value."""
    return Decimal(text), text


def place_finder(levels: Sequence[str]) -> Callable[[object], int | None]:
    """Return a function that finds the place of a cell's level, counted from 0; None for an unknown level.

    A text is first looked up as it is. A number is then looked up by value, so that 3.0 finds "3" and 1234
    finds "01234". If all levels are truth values, or all are 0 or 1, truth values and 0 and 1 find each
    other.
    """
    found: dict[str, int | None] = {level: place for place, level in enumerate(levels)}
    by_number = _unambiguous([plain_number(level) for level in levels])
    truths = [truth_of(level) for level in levels]
    by_truth = {} if None in truths else _unambiguous(truths)

    def place(value: object) -> int | None:
        text = level_text(value)
        if text not in found:
            shortest = repr(float(value)) if isinstance(value, np.floating) else None
            by_value = by_number.get(plain_number(text), by_number.get(shortest))
            found[text] = by_truth.get(truth_of(text)) if by_value is None else by_value
        return found[text]

    return place


def _unambiguous(texts: Sequence[str | None]) -> dict[str | None, int]:
    counts = Counter(texts)
    return {text: place for place, text in enumerate(texts) if text is not None and counts[text] == 1}


def truth_of(text: str) -> str | None:
    """Return "1" or "0" for a text that means true or false, in words or as a number, or None."""
    word = _TRUTH_WORDS.get(text.lower())
    if word is not None:
        return str(int(word == "True"))
    number = plain_number(text)
    return number if number in ("0", "1") else None


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


_MOSTLY = 0.9  # a column with this share of numbers in dress is a column of numbers
_LONGEST = 60  # characters
_TIME = re.compile(r"\d{1,3}:\d\d(:\d\d(\.\d+)?)?( ?[ap]\.?m\.?)?", re.IGNORECASE)
_TWO_NUMBERS = re.compile(r"[\d.]+ ?(/|±|\+/-) ?[\d.]+")
_MIXED = re.compile(
    r"\d+ ?('|′|ft|feet|h|hr|hrs|hours?|m|min|lbs?|st|y|yrs?|years?),? ?\d{1,2}(\.\d+)?"
    r" ?(['\"″]*|in|inch|inches|m|min|minutes?|s|sec|oz|mo|months?)"
)
_BLANK = "\u00a0\u2007\u2009\u202f "
_APOSTROPHES = "'\u2019`\u00b4"
_MINUS = "\u2212\u2013\u2014\ufe63\uff0d\u2010\u2011"
_CURRENCIES = frozenset(
    "$ € £ ¥ ₹ ₩ ₽ ₺ ₪ ฿ ¢ US$ A$ C$ R$ kr zł Fr. Rs Rs. USD EUR GBP JPY CNY CHF INR CAD AUD NZD SEK NOK DKK"
    " PLN CZK HUF BRL MXN ZAR KRW TRY RUB SGD HKD".split()
)
_COMPARISONS = frozenset("< > <= >= ≤ ≥ ~ ≈ ± = ca. ca c. +".split())
_UNITS = frozenset(
    "kg g mg µg μg ug ng t lb lbs oz m cm mm µm nm km in inch inches ft yd mi mile miles l L ml mL dl µl"
    " s sec secs second seconds ms min mins minute minutes h hr hrs hour hours d day days week weeks wk month"
    " months mo year years yr yrs y k K M B bn mn million billion thousand ppm ppb ° °C °F C F K Pa kPa hPa"
    " bar W kW MW kWh V A mA Hz kHz MHz GHz J kJ cal kcal N KB MB GB TB rpm mph km/h m/s bpm mmHg mmol/L"
    " mg/dL mg/dl".split()
)
_NUMBER = re.compile(
    rf"(?P<open>\()?\s*(?P<before>[^\d.,()]*)(?P<inner>\()?\s*(?P<number>[.,]?\d(?:[\d.,_{_BLANK}{_APOSTROPHES}]*\d)?[.,]?"
    rf"(?:[eE][-+]?\d+)?)(?P<after>[^\d()]{{0,20}}(?:(?<=[A-Za-z^])-?[1-4][^\d()]{{0,5}})?)(?P<close>\))?"
)
_GROUPED = re.compile(
    rf"\d{{1,3}}(?:([,._{_BLANK}{_APOSTROPHES}])\d{{3}})(?:\1\d{{3}})*(?P<decimals>[.,]\d*)?"
)
_PLAIN = re.compile(r"\d+\.?\d*|\.\d+")
_DECIMAL_COMMA = re.compile(r"\d*,\d+")


class Undressed(NamedTuple):
    """A number in dress.

    plain  the number in figures, or "" if the text does not say it
    seen   what dresses it, in words, such as "a percent sign"
    unit   the unit, or ""
    """

    plain: str
    seen: tuple[str, ...]
    unit: str = ""


def undress(text: str) -> Undressed | None:
    """Return the number that a text dresses; None for a bare number, and for any other text."""
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    if has_other_digits(text):
        return Undressed("", ("in digits of another script",))
    if is_date(text):
        return Undressed("", ("a date",))
    if _TIME.fullmatch(text):
        return Undressed("", ("a time",))
    if _TWO_NUMBERS.fullmatch(text):
        return Undressed("", ("two numbers",))
    if _MIXED.fullmatch(text):
        return Undressed("", ("a number in two units",))
    match = _NUMBER.fullmatch(text)
    return None if match is None else _undressed(match)


def _undressed(match: re.Match[str]) -> Undressed | None:
    """Return the number in the parts of a text, or None if a part does not belong to a number."""
    before, after = (match[part].strip(_BLANK + "\t") for part in ("before", "after"))
    n_open = bool(match["open"]) + bool(match["inner"])
    has_brackets = n_open == 1 and bool(match["close"])
    words = re.findall(r"[A-Za-z.]+\$?|[<>]=|\S", before)
    seen_before, seen_after = [_seen_before(word) for word in words], _seen_after(after, bool(words))
    if None in seen_before or seen_after is None or n_open != bool(match["close"]):
        return None
    seen = ["brackets for negative numbers"] if has_brackets else []
    seen += [one for one in (*seen_before, seen_after) if one]
    plain = _figures(match["number"], seen)
    is_negative = has_brackets or any(sign in _MINUS + "-" for sign in (*words, after) if sign)
    unit = after if seen_after == f"a unit ({after})" else ""
    dress = tuple(dict.fromkeys(seen))
    return Undressed("-" * is_negative + plain, dress, unit) if plain and dress else None


def _seen_before(word: str) -> str | None:
    """Return what a word before a number is, "" for an ordinary sign, or None if it is part of a code."""
    if word in ("-", "+"):
        return ""
    if word in _MINUS:
        return f"a minus sign that is not a hyphen (U+{ord(word):04X})"
    if word in _CURRENCIES:
        return f"a currency ({word})"
    if word in _COMPARISONS:
        return f"a sign of comparison ({word})"
    return "quotation marks" if word in _APOSTROPHES + '"' else None


def _seen_after(after: str, has_before: bool) -> str | None:
    """Return what follows a number, "" for nothing, or None if it makes the number a code or a range."""
    signs = {"": "", "%": "a percent sign", "‰": "a per mille sign"}
    if after in signs:
        return signs[after]
    if after in _CURRENCIES:
        return f"a currency ({after})"
    if after in _MINUS + "-":
        return "a minus sign at the end"
    if has_before and set(after) <= set(_APOSTROPHES + '"'):
        return "quotation marks"
    if re.match(r"[-–/:,;._]", after):
        return None
    if any(letter.isalpha() or letter == "°" for letter in after):
        return f"a unit ({after})"
    return f"a sign at the end ({after})"


def _figures(number: str, seen: list[str]) -> str:
    """Return a number with a decimal point and without separators, or "" if it is none; add to `seen`."""
    number, exponent = (re.split(r"(?=[eE])", number, maxsplit=1) + [""])[:2]
    if _PLAIN.fullmatch(number):
        return number + exponent
    grouped = _GROUPED.fullmatch(number)
    if grouped is None or (grouped[1] == grouped["decimals"][:1] if grouped["decimals"] else False):
        if not _DECIMAL_COMMA.fullmatch(number):
            return ""
        seen.append("a comma")
        return number.replace(",", ".") + exponent
    separator, decimals = grouped[1], (grouped["decimals"] or "").replace(",", ".")
    if separator == "." and not decimals and number.count(".") == 1:
        return number + exponent
    names = {",": "a comma", ".": "points between thousands", "_": "underscores"}
    blank_or_quote = "blanks in the number" if separator in _BLANK else "apostrophes between thousands"
    seen.append(names.get(separator, blank_or_quote))
    if decimals and "," in number[-len(decimals) :]:
        seen.append("a decimal comma")
    whole = number[: len(number) - len(decimals)]
    return whole.replace(separator, "") + decimals + exponent


def mostly_dressed(texts: Sequence[str]) -> bool:
    """Return True if texts without a bare number are numbers in dress, but for a few of them.

    Numbers with different endings, such as 5a and 5b, are codes unless the endings are usual units.
    """
    counts = Counter(texts)
    undressed = {text: undress(text) for text in counts}
    n_dressed = sum(count for text, count in counts.items() if undressed[text] is not None)
    units = {one.unit.rstrip("s.") for one in undressed.values() if one is not None and one.unit}
    full = {one.unit for one in undressed.values() if one is not None}
    return n_dressed >= _MOSTLY * len(texts) and (len(units) < 2 or full <= _UNITS | {""})


_ADVICE = {
    "in digits of another script": "write numbers with the digits 0 to 9",
    "a date": "give a date as a number, such as days since the first one, or leave the column out",
    "a time": "give a time as one number, such as minutes",
    "two numbers": "give each number a column of its own",
    "a number in two units": "write one number in one unit",
}


def dress_of(text: str, others: Sequence[str]) -> tuple[str, str] | None:
    """Return the dress of a text in words, such as "has a percent sign", and how to write the number instead.

    The advice suits all texts of the column, `others`, bare numbers included. None for any other text.
    """
    one = undress(text)
    if one is None:
        return None
    if one.seen[0] in _ADVICE:
        return f"is {one.seen[0]}", _ADVICE[one.seen[0]]
    if "a comma" in one.seen:
        return _comma(text, one, others)
    units = {other.unit for other in map(undress, dict.fromkeys(others)) if other is not None and other.unit}
    advice = f"write the number alone ({one.plain})"
    if one.seen == ("a percent sign",) and any(plain_number(other) is not None for other in others):
        advice = (
            f"write all numbers in one way, as shares or in percent ({text} is {float(one.plain) / 100:g})"
        )
    elif len({unit.rstrip("s.") for unit in units}) > 1:
        listed = ", ".join(at_most_ten(sorted(units)))
        advice = f"convert all to one unit ({listed} occur) and write the number alone"
    return f"has {' and '.join(one.seen)}", advice


def _comma(text: str, one: Undressed, others: Sequence[str]) -> tuple[str, str]:
    """Return the advice about a comma in a number, which may separate thousands or be a decimal comma."""
    bare = [re.sub(r"[^\d.,]", "", other) for other in others]
    with_comma = [number for number in bare if "," in number]
    are_decimal = any(
        re.fullmatch(r"(0|\d{4,})?,\d+|\d+,(\d\d?|\d{4,})|[\d.]*\..*,\d*", number) for number in with_comma
    )
    are_thousands = any(re.search(r",.*[,.]", number) for number in with_comma) or any(
        "." in number or (number.isdecimal() and len(number) <= 3) for number in bare if "," not in number
    )
    more = ", ".join(what for what in one.seen if what != "a comma")
    number = re.search(r"[\d.]*,[\d.,]*(?:[eE][-+]?\d+)?", text)
    figures = "-" * one.plain.startswith("-") + (number[0] if number else text)
    without, point = figures.replace(",", ""), figures.replace(".", "").replace(",", ".")
    also = f" and leave out {more}" if more else ""
    if are_decimal:
        return "has a decimal comma", f"write a decimal point instead of the comma{also} ({point})"
    if are_thousands:
        return "has commas between thousands", f"remove the commas{also} ({without})"
    return "has a comma", (
        f"if commas separate thousands, remove them{also} ({without}); if they are decimal commas, write"
        f" decimal points ({point}), or for a CSV file set data.decimal"
    )
