"""The keys of an approximation's table in a configuration: the right values, as a check and in words."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

_LIMITS = "limits"
_MOST_WHOLE = 2**31 - 1  # compiled code counts steps in 32 bits


@dataclass(frozen=True)
class Limits:
    """The limits of a number.

    words         the right values, as a message ends with them: "must be <words>, got 0"
    least, most   bounds that are allowed themselves
    above, below  bounds that are not allowed themselves
    """

    words: str
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def allow(self, value: float) -> bool:
        """Return True if the value is within the limits; NaN and infinity never are."""
        return self.least <= value <= self.most and self.above < value < self.below


STARTS = Limits("a whole number from 1 to 100000", least=1, most=100_000)
COUNT = Limits("a whole number of at least 1", least=1, most=_MOST_WHOLE)
DRAWS = Limits("a whole number of at least 1, such as 1000", least=1, most=_MOST_WHOLE)
POSITIVE = Limits("a positive number, such as 0.01", above=0)
SHARE = Limits("a number of at least 0 and below 1", least=0, below=1)


def key(default: Any, limits: Limits) -> Any:
    """Return the dataclass field of a key that is a number within limits; None may be a default as well.

    Keys that are true or false, or one of several texts, need no limits, because their types are enough.
    """
    return dataclasses.field(default=default, metadata={_LIMITS: limits})


def limits_of(kind: type) -> dict[str, Limits]:
    """Return the limits of an approximation's keys by name, for those keys that have limits."""
    keys = dataclasses.fields(kind)
    return {one.name: one.metadata[_LIMITS] for one in keys if _LIMITS in one.metadata}


def right_values(kind: type) -> dict[str, str]:
    """Return the right values of each key of an approximation in words."""
    types, limits = get_type_hints(kind), limits_of(kind)
    names = [one.name for one in dataclasses.fields(kind)]
    return {name: limits[name].words if name in limits else _choices(types[name]) for name in names}


def _choices(type_of_key: Any) -> str:
    return "true or false" if type_of_key is bool else one_of(get_args(type_of_key))


def one_of(choices: tuple[str, ...]) -> str:
    """Return choices in words, such as: "adam", "sgd" or "leapfrog"."""
    *first, last = (f'"{choice}"' for choice in choices)
    return f"{', '.join(first)} or {last}" if first else last
