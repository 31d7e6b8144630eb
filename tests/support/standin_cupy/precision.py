"""CuPy's compute types of products, and what TF32 does to their operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.standin_cupy.memory import Numbers

COMPUTE_TYPES = {"COMPUTE_TYPE_FP32": 4, "COMPUTE_TYPE_TF32": 7}
_chosen: dict[np.dtype[Any], int] = {}


def get_compute_type(dtype: np.dtype[Any]) -> int:
    return _chosen.get(np.dtype(dtype), 0)


def set_compute_type(dtype: Any, kind: int) -> None:
    _chosen[np.dtype(dtype)] = kind


def is_tf32() -> bool:
    """Return True if CuPy computes products of two float32 matrices, which are no batch, in TF32."""
    return get_compute_type(np.dtype(np.float32)) == COMPUTE_TYPES["COMPUTE_TYPE_TF32"]


def in_tf32(values: Numbers) -> Numbers:
    """Float32 numbers with the ten bits after the point that TF32 keeps, rounded to nearest."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)
