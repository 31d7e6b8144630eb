"""CuPy for tests of code that runs on a device: the stand-in, and CuPy where there is a device."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.shim.compiled import needs_gxx
from tests.support.standin_cupy.install import installed


@pytest.fixture(
    params=[
        pytest.param("stand-in", marks=[pytest.mark.long, needs_gxx]),
        pytest.param("device", marks=pytest.mark.gpu),
    ]
)
def cupy(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module `cupy`. A test that passes with the stand-in has not passed on a device."""
    if request.param == "device":
        yield importlib.import_module("cupy")
        return
    with installed() as standin:
        yield standin
