"""Counts how often methods of a class are called."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


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
