"""The process of an owner has little in its memory besides the cases of its parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small import SMALL, make_store
from tests.support.store.fits import spec_of

pytest.importorskip("ray")
CODE = """
import sys
from rayfbnn.run.on_ray.actors import PartsWorker
PartsWorker(sys.argv[1]).hold([1])
heavy = {"scipy", "pandas", "xarray", "matplotlib", "typer"} & set(sys.modules)
assert not heavy, heavy
"""


def test_an_owner_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    phase = [{"iterations": 2, "operations": [{"op": "hybrid", "steps": 2, "stepsize": 0.2}]}]
    spec = spec_of("real", tmp_path, data={**SMALL["data"], "parts": 2}, phase=phase)
    store = make_store(tmp_path / "run.zarr", spec)
    result = subprocess.run(
        [sys.executable, "-c", CODE, str(store.path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
