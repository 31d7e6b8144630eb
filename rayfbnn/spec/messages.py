"""Messages for wrong configurations: each names the key, its value, and the right kind of value."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rayfbnn.mcmc.operations import OPERATIONS

OPERATION_NAMES = tuple(kind.op for kind in OPERATIONS)

WEIGHTS_REFUSED = (
    "cases cannot be weighted: a weighted likelihood is not the posterior of any data set; repeat the rows"
    " that stand for several cases, or use a model whose noise differs between cases"
    ' (model.kind = "heteroscedastic")'
)
_WEIGHTS = ("sample_weight", "sample_weights", "weight", "weights")

_MOST_MESSAGES = 100
_MOST_ERRORS = 100_000


class Right(NamedTuple):
    """The right values of a key in words: of the key itself, and of the elements of a list."""

    words: str
    element: str = ""


Sections: TypeAlias = Mapping[tuple[str, ...], Mapping[str, Right]]
"""Each section, such as ("network", "hidden"), with its keys and their right values."""


_RIGHT_PRIOR = 'a prior in FBM\'s notation, such as "0.5:0.2"'


def messages(error: ValidationError, sections: Sections) -> list[str]:
    """Return a message for each wrong key. Equal messages, as from the members of a union, appear once."""
    if error.error_count() > _MOST_ERRORS:  # pydantic would take long to describe them
        return [f"configuration: {error.error_count()} values are wrong"]
    wrong = error.errors(include_url=False)
    more = len(wrong) - _MOST_MESSAGES
    # pydantic also calls a list too short when its elements are wrong; a line for the elements is enough.
    inside = {details["loc"][:n] for details in wrong for n in range(len(details["loc"]))}
    lines = list(
        dict.fromkeys(
            _message(details, sections)
            for details in wrong[:_MOST_MESSAGES]
            if not (details["type"] == "too_short" and details["loc"] in inside)
        )
    )
    return [*lines, f"and {more} more"] if more > 0 else lines


def _message(details: ErrorDetails, sections: Sections) -> str:
    loc, kind, value = details["loc"], details["type"], details["input"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument", "unknown_key"):
        section = tuple(part for part in loc[:-1] if isinstance(part, str))
        if section == ("data",) and loc[-1] in _WEIGHTS:
            return f"{_path(loc)}: {WEIGHTS_REFUSED}"
        known = details["ctx"]["known"] if kind == "unknown_key" else sections[section]
        hint = nearest(str(loc[-1]), known)
        return f"{_path(loc)}: unknown key{hint}; the keys here are {', '.join(known)}"
    if loc[:2] == ("network", "priors") and len(loc) > 2:
        key, right = _path(loc), _RIGHT_PRIOR
    elif loc[:2] == ("data", "ordered") and len(loc) > 2:
        of_ordered = sections["data",]["ordered"]
        key, right = _path(loc), of_ordered.element if isinstance(loc[-1], int) else of_ordered.words
    else:
        loc, right = right_value(loc, sections)
        key = _path(loc)
    if kind in ("value_error", "operation"):
        text = details["msg"].removeprefix("Value error, ")
        return f"{key}.{text}" if kind == "value_error" else f"{key}: {text}, got {short(value)}"
    if kind == "missing":
        return f"{key}: missing; it must be {right}"
    choices: Collection[str] = OPERATION_NAMES if kind == "operation_name" else ()
    if kind == "literal_error":
        choices = re.findall("'([^']+)'", details["ctx"]["expected"])
    hint = nearest(value, choices) if isinstance(value, str) else ""
    return f"{key}: must be {right}, got {short(value)}{hint}"


def right_value(loc: Iterable[int | str], sections: Sections) -> tuple[tuple[int | str, ...], str]:
    """Return the place of a key without the names that are no keys, and its right values in words.

    Such names are those of a union's members, which pydantic adds, and of columns and groups.
    """
    section: tuple[str, ...] = ()
    right, kept = Right(""), list[int | str]()
    for part in loc:
        if isinstance(part, int):
            kept.append(part)
        elif part in sections.get(section, {}):
            kept.append(part)
            right = sections[section][part]
            section = ("operations",) if part == "operations" else (*section, part)
    is_element = bool(kept) and isinstance(kept[-1], int)
    return tuple(kept), (right.element if is_element else right.words) or "a table of keys"


def _path(loc: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".") or "configuration"


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint with the known name that is most like `name`, or "" if none is."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def short(value: object) -> str:
    """Return a value as messages show it, in at most 80 characters."""
    if isinstance(value, int) and abs(value) >= 2**63:  # Python refuses to print more than 4,300 digits
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        value = value[:200]  # a text may be a megabyte long
    text = json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace").decode()
    return text if len(text) <= 80 else f"{text[:77]}..."
