"""Numbers for JSON, which has no NaN and no infinity."""

from __future__ import annotations

import math


def known(value: float) -> float | None:
    """Return the number unchanged, or None (null) if it is not finite."""
    return value if math.isfinite(value) else None
