"""Grids of configurations: every combination of the values that `--vary key=a,b,c` gives."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

from rayfbnn.errors import ConfigError

_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_FIXED = ("seed", "data", "model.kind", "dtype", "device")
MOST_CONFIGURATIONS = 1000


def grid(vary: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the overrides "key.path=value" of each configuration of a grid; one without any for no grid.

    Raises ConfigError for a text without values, a key or value given twice, and a key that members must
    share.

    vary  texts "key.path=a,b,c"; a comma in brackets, braces or quotes does not separate values
    """
    axes: dict[str, list[str]] = {}
    for text in vary:
        key, equals, rest = text.partition("=")
        key = key.strip()
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f'vary: must be key.path=a,b,c, got "{text}"')
        if key in axes:
            raise ConfigError(f"vary: {key} is given twice; give all its values at once")
        if any(key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in _FIXED):
            raise ConfigError(
                f"vary: {key} cannot be varied: all members of a study have the same cases, kind of targets,"
                " dtype and device, and the study gives them their seeds"
            )
        values = _values(rest)
        if not values or "" in values:
            raise ConfigError(f'vary: {key} has no value, or an empty one, in "{text}"')
        if len(set(values)) < len(values):
            raise ConfigError(f'vary: {key} has the same value twice in "{text}"')
        axes[key] = values
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_CONFIGURATIONS:
        raise ConfigError(f"vary: a study has at most {MOST_CONFIGURATIONS} configurations, got {count}")
    return [
        tuple(f"{key}={value}" for key, value in zip(axes, values, strict=True))
        for values in itertools.product(*axes.values())
    ]


def _values(text: str) -> list[str]:
    """Split a text at its commas, except those in brackets, braces and quotes."""
    values, depth, quote, value = [], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        if character == "," and depth == 0 and not quote:
            values.append(value.strip())
            value = ""
        else:
            value += character
    return [*values, value.strip()] if text.strip() else []
