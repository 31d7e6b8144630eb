"""Parameters of tests of which some are of the long tests."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import pytest


def some_long(names: Collection[str], long: Collection[str]) -> list[Any]:
    """The names as parameters, those in `long` marked so; all of these must be among the names."""
    assert set(long) <= set(names), set(long) - set(names)
    return [pytest.param(name, marks=pytest.mark.long) if name in long else name for name in names]


def long_but(quick: Collection[tuple[Any, ...]], *values: Collection[Any]) -> list[Any]:
    """All combinations of the values as parameters, marked long but for the quick, which are among them."""
    every = list(itertools.product(*values))
    assert set(quick) <= set(every), set(quick) - set(every)
    return [pytest.param(*each, marks=() if each in quick else pytest.mark.long) for each in every]
