"""Describes all settings of an approximation, including defaults."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayfbnn.approximate.approximation import Approximation


def describe_fit(approximation: Approximation) -> list[str]:
    """Return three lines for the method and its starts, and one line for each setting."""
    lines = [
        f"Method: {approximation.name}, {approximation.title}",
        "  this is an approximation: its draws are not from the posterior",
        f"  {approximation.starts} starts of at most {approximation.n_steps} steps, then"
        f" {approximation.draws} independent draws each",
    ]
    for name, value in asdict(approximation).items():
        if name not in ("starts", "draws"):
            written = "all" if value is None else str(value).lower() if isinstance(value, bool) else value
            lines.append(f"  {name:<12}{written}")
    return lines
