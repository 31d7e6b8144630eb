"""Parameters of tests of which some are of the long tests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest


def some_long(names: Collection[str], long: Collection[str]) -> list[Any]:
    """The names as parameters, those in `long` marked so; all of these must be among the names."""
    assert set(long) <= set(names), set(long) - set(names)
    return [pytest.param(name, marks=pytest.mark.long) if name in long else name for name in names]
