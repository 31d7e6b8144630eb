"""Parameters that run only in the long tests, and counts of calls."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest


def some_long(names: Collection[Any], long: Collection[Any]) -> list[Any]:
    """Parameters of which those in `long` get the mark `long`; each of these must be among the names."""
    assert set(long) <= set(names), set(long) - set(names)
    return [pytest.param(name, marks=pytest.mark.long) if name in long else name for name in names]


def long_but(quick: Collection[tuple[Any, ...]], *values: Collection[Any]) -> list[Any]:
    """All combinations of the values as parameters, all marked `long` except the quick ones."""
    every = list(itertools.product(*values))
    assert set(quick) <= set(every), set(quick) - set(every)
    return [
        pytest.param(*combination, marks=() if combination in quick else pytest.mark.long)
        for combination in every
    ]


def count_calls(of: type, monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """Return the number of calls of each method, which grows as they are called."""
    calls: Counter[str] = Counter()
    for name in names:
        original = getattr(of, name)

        def counted(*arguments: Any, _name: str = name, _original: Any = original, **options: Any) -> Any:
            calls[_name] += 1
            return _original(*arguments, **options)

        monkeypatch.setattr(of, name, counted)
    return calls
