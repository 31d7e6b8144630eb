"""Converts errors to the types that scikit-learn expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rayfbnn.errors import RayFBNNError
from rayfbnn.spec.messages import WEIGHTS_REFUSED


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Turn errors about invalid input into ValueError, which scikit-learn expects."""
    try:
        yield
    except RayFBNNError as exc:
        if exc.exit_code != 2:
            raise
        raise ValueError(str(exc)) from exc


def refuse_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise ValueError with the reason for `sample_weight`, and TypeError for unknown parameters."""
    if parameters.get("sample_weight") is not None:
        raise ValueError(f"sample_weight: {WEIGHTS_REFUSED}")
    unknown = [name for name in parameters if name != "sample_weight"]
    if unknown:
        raise TypeError(f"fit() got an unexpected keyword argument '{unknown[0]}'")
