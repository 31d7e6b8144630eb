"""A run that nothing disturbs, with which the draws of other runs are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfbnn.run.executor import InProcess
from tests.support.small import make_store, small_spec


@pytest.fixture(scope="package")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the store of the small run, done in this process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    store = make_store(folder / "run.zarr", small_spec(folder))
    with InProcess() as executor:
        list(executor.run(store.path, range(store.n_batches)))
    return store.path
