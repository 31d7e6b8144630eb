"""Settings that every test needs before NumPy or Ray is imported."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Two threads are slower than one on products this small, and several processes share the cores.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
# Keeps Ray on the loopback interface; read when Ray is imported.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

os.environ.pop("COLUMNS", None)  # lines of output are not folded, unless a test sets their width

# A failing assertion in a helper shows its values, as in a test.
pytest.register_assert_rewrite("tests.support")
from tests.support.devices import cupy  # noqa: E402, F401, a fixture
from tests.support.output.undrawn import undrawn_pictures  # noqa: E402, F401, a fixture

# Derandomised: a test that passes goes on passing until the code changes.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of tests/correctness/test_cells.py, which page.py uses."""
    parser.addoption("--p-values", metavar="FILE", help="append what each cell gave to FILE, a line of JSON")
    parser.addoption("--seed", type=int, default=0, help="other than 0: new random numbers for the cells")


@pytest.hookimpl(tryfirst=True)  # before the hook of pytest-xdist, which reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that use Ray in one of several processes; skip tests of a device where there is none."""
    from rayfbnn.arrays import gpu_is_available

    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))
    if gpu_is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs CuPy and a device"))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at all that was imported and collected, again and again."""
    gc.freeze()


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Start Ray once, on the loopback interface, with five processors whatever the machine has."""
    from rayfbnn.run.on_ray import cluster

    ray, _ = cluster.connect(5, None)
    yield
    ray.shutdown()
