"""Fits of every approximation on a device, with the stand-in for CuPy: they are those of the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.run.executor import InProcess
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec
from tests.support.standin_cupy import log
from tests.support.standin_cupy.install import installed
from tests.support.store.fits import SETTINGS, fit_spec, make_fit, run_all

pytestmark = pytest.mark.long
STATISTICS = ("log_likelihood", "log_prior", "log_q")


@pytest.fixture(autouse=True)
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module


def fitted(folder: Path, method: str, device: str) -> tuple[dict[str, Array], int]:
    """Return the draws of a fit with their densities, and how many operations ran on the device."""
    folder.mkdir()
    store = make_fit(folder / "run.zarr", fit_spec(folder, method, device=device))
    with log.recorded() as entries, InProcess() as executor:
        list(executor.run(store.path, range(store.n_batches)))
    store = Store.open(store.path)
    found = {"positions": store.read_positions(), "precisions": store.read_precisions()}
    return found | {name: store.read_stat(name) for name in STATISTICS}, len(entries)


@pytest.mark.parametrize("method", SETTINGS)
def test_a_fit_is_that_of_the_host(tmp_path: Path, method: str) -> None:
    host, n_of_host = fitted(tmp_path / "host", method, "cpu")
    there, n_there = fitted(tmp_path / "there", method, "gpu")
    assert n_of_host == 0 and n_there > 100
    for name, values in host.items():
        np.testing.assert_allclose(there[name], values, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("integrator", ["splitting", "euler", "langevin"])
def test_dynamics_with_friction_are_those_of_the_host(tmp_path: Path, integrator: str) -> None:
    update = {"op": "sghmc", "steps": 5, "stepsize": 0.1, "batch": 4, "integrator": integrator}
    phase = [{"iterations": 6, "operations": [{"op": "sample-sigmas"}, update]}]
    stores = []
    for device in ("cpu", "gpu"):
        spec = small_spec(tmp_path, device=device, dtype="float64", phase=phase)
        stores.append(run_all(make_store(tmp_path / f"{device}.zarr", spec)))
    host, there = (store.read_positions() for store in stores)
    assert np.ptp(host) > 0
    # The noise has single precision, and compiled code rounds it otherwise than array code.
    np.testing.assert_allclose(there, host, rtol=0, atol=1e-5)
