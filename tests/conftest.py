"""Settings that every test needs before NumPy or Ray is imported."""

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Two threads are slower than one on products this small, and several processes share the cores.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
# Keeps Ray on the loopback interface; read when Ray is imported.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

# Stores are written to memory: a run of a tenth of a second waits for the disk two hundred times.
_MEMORY, _ENOUGH = Path("/dev/shm"), 4 * 2**30  # bytes
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH:
    if not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:  # some tests run scripts that they have written
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

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


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Give SIGHUP its usual effect in a test and in processes that it starts, even if `nohup` ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the quick tests of a file in one process, which makes what they share once."""
    if config.getvalue("dist") != "loadgroup" or config.option.markexpr != "not long":
        return None  # a file has many long tests, which are for whoever is free
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = super()._split_scope(nodeid)
            return nodeid.partition("::")[0] if group == nodeid else group

    return ByFile(config, log)


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
