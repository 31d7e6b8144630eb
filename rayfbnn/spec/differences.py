"""The differences between two configurations, key by key."""

from __future__ import annotations

from typing import Any

from rayfbnn.spec.messages import short
from rayfbnn.spec.run_spec import RunSpec


def differences(stored: RunSpec, asked: RunSpec) -> list[str]:
    """Return a line, with both values, for every key that differs between two configurations.

    No key is ignored: equal configurations give an empty list, and others do not.
    """
    old, new = settings(stored), settings(asked)
    keys = list(dict.fromkeys([*old, *new]))
    return [
        f"{key}: was {short(old[key]) if key in old else 'absent'}, "
        f"now {short(new[key]) if key in new else 'absent'}"
        for key in keys
        if key not in old or key not in new or old[key] != new[key]
    ]


def settings(spec: RunSpec) -> dict[str, Any]:
    """Return every value of a configuration by its full key, such as "phase[0].iterations"."""
    return _leaves(spec.to_dict(), "")


def _leaves(value: Any, key: str) -> dict[str, Any]:
    """Return every value below `key` that is neither a table nor a list of tables, by its full key."""
    if isinstance(value, dict):
        items = [(f"{key}.{name}" if key else name, inner) for name, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        items = [(f"{key}[{index}]", inner) for index, inner in enumerate(value)]
    else:
        return {key: value}
    return {name: leaf for path, inner in items for name, leaf in _leaves(inner, path).items()}
