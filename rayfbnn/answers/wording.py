"""How results write names or numbers, in sentences or in JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

_NAMED = 3
MOST_NUMBERED = 8  # chains


def listed(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def numbered(chains: Sequence[int]) -> str:
    """Return "chain 3", "chains 3 and 7", or the first of many and how many more there are."""
    words = [str(chain) for chain in chains[:MOST_NUMBERED]]
    if len(chains) > MOST_NUMBERED:
        return f"chains {', '.join(words)} and {len(chains) - MOST_NUMBERED} more"
    if len(words) == 1:
        return f"chain {words[0]}"
    return f"chains {', '.join(words[:-1])} and {words[-1]}"


def known(value: float) -> float | None:
    """Return the number unchanged, or None (null) if it is not finite."""
    return value if math.isfinite(value) else None
