"""Without Ray, Zarr and CuPy the package, every --help and most tests still work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayfbnn.cli import app

ROOT = Path(__file__).parents[2]
BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "zarr", "cupy", "cupyx"):
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by this test)", name=name)

sys.meta_path.insert(0, Absent())
"""
# Keeps the first case of each test: what a test imports does not depend on its parameters.
FIRST_CASES = """
class FirstCases:
    @pytest.hookimpl(trylast=True)  # when the long cases have been left out
    def pytest_collection_modifyitems(self, items):
        items[:] = {item.nodeid.partition("[")[0]: item for item in reversed(items)}.values()
"""
VERBS = [command.callback.__name__ for command in app.registered_commands if command.callback]
# Tests that need a store, and those of documents and layers, whose programs are not kept from importing.
LEFT_OUT = [
    "faults",
    "project",
    "run",
    "sklearn",
    "store",
    "study",
    "verbs/test_api.py",
    "verbs/test_cli.py",
]


def python(code: str, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that cannot import the three."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code, *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_the_block_holds() -> None:
    assert "blocked by this test" in python("import zarr").stderr


def test_every_public_name_is_there() -> None:
    result = python("import rayfbnn\nfor name in rayfbnn.__all__: getattr(rayfbnn, name)")
    assert result.returncode == 0, result.stderr


def test_estimators_say_what_to_install() -> None:
    """Nothing but the estimators needs scikit-learn."""
    without = BLOCK.replace('"ray"', '"sklearn"')
    code = "import rayfbnn.api\nimport rayfbnn.sklearn"
    result = subprocess.run(
        [sys.executable, "-c", without + code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "No module named 'sklearn'" in result.stderr
    assert result.stderr.strip().endswith(
        "ImportError: rayfbnn.sklearn: scikit-learn 1.6 or later is not installed; install rayfbnn[sklearn]"
    )


def test_help() -> None:
    """One Python shows the help of the program and of every verb, as each start takes a second."""
    code = """
from typer.testing import CliRunner
from rayfbnn.cli import app

for arguments in [[], *([verb] for verb in sys.argv[1:])]:
    result = CliRunner().invoke(app, [*arguments, "--help"])
    assert result.exit_code == 0 and "Usage" in result.stdout, (arguments, result.output)
    print("shown:", *arguments)
"""
    result = python(code, *VERBS)
    assert result.returncode == 0, result.stderr
    assert len(VERBS) > 10 and result.stdout.count("shown:") == 1 + len(VERBS)


def test_show_of_a_configuration() -> None:
    result = python("from rayfbnn.cli import main\nmain()", "show", "examples/robot_arm/hybrid.toml")
    assert result.returncode == 0, result.stderr
    assert "82 parameters" in result.stdout


def test_a_chain_runs_from_a_file_to_draws() -> None:
    """Data, model and sampler work together without a store, as on a machine with a kernel."""
    code = """
import numpy as np
from rayfbnn import RunSpec
from rayfbnn.mcmc.schedule import (build_iteration, run)
from rayfbnn.data import read_dataset
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.streams import Streams

spec = RunSpec.from_toml("examples/robot_arm/hybrid.toml", ["phase[1].operations[0].times=2"])
data = read_dataset(spec)
network, model = spec.network, spec.model
posterior = SampledPosterior.from_spec(network, model, data.inputs, data.targets, dtype=spec.dtype)
streams = Streams(seed=1, chains=np.arange(2, dtype=np.uint64))
updates = {"sample-sigmas": posterior.sample_sigmas, "sample-noise": posterior.sample_noise}
iteration = build_iteration(spec.phase[1].operations, target=posterior, updates=updates)
state = posterior.initial_state(streams, sigmas=0.5)
for number, state, info in run(state, streams, iteration=iteration, first=1, count=3):
    assert np.isfinite(state.position).all()
assert number == 3
"""
    result = python(code)
    assert result.returncode == 0, result.stderr


def pytest_without(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    ignored = [f"--ignore=tests/{name}" for name in LEFT_OUT]
    code = f"import pytest\n{FIRST_CASES}\nsys.exit(pytest.main(sys.argv[1:], plugins=[FirstCases()]))"
    return python(code, "-q", "-p", "no:cacheprovider", *ignored, *arguments, timeout=timeout)


@pytest.mark.long
def test_tests_outside_run_can_be_collected() -> None:
    result = pytest_without("--collect-only", "tests")
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.long
@pytest.mark.parametrize(
    "tests", [["tests/kernels"], ["tests", "--ignore=tests/kernels"]], ids=["kernels", "others"]
)
def test_tests_outside_run_pass(tests: list[str]) -> None:
    """Only the first case of each test runs."""
    result = pytest_without("--ignore=tests/verbs/test_optional.py", *tests, timeout=1200)
    assert result.returncode == 0, result.stdout[-3000:]
