"""Names written out in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 3


def listed(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
