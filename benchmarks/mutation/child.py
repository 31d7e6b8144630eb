"""Tests run on one mutant, in a process of their own that begins with the libraries imported."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType

import hypothesis
import pytest

from benchmarks.mutation.mutants import PACKAGE

# What the package and its tests import from elsewhere. The package itself is imported by each child.
_LIBRARIES = (
    "numpy scipy.special scipy.stats scipy.linalg scipy.optimize scipy.integrate pandas pydantic zarr"
)
_MOST_BYTES = 8 * 2**30
_LONGEST = 600  # seconds by the clock, whatever else this machine does


# No search for the smallest example that fails.
_PHASES = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
hypothesis.settings.register_profile(
    "mutants", derandomize=True, deadline=None, database=None, phases=_PHASES
)


def import_libraries() -> None:
    """Import what every child needs, once."""
    for name in _LIBRARIES.split():
        importlib.import_module(name)


def run_tests(tests: Sequence[str], *, seconds: float, file: str = "", code: CodeType | None = None) -> str:
    """Run tests up to the first that fails, with `code` in place of that of a file of the package.

    Returns its name, or "" if all pass. If the process ends otherwise, which it does beyond so many seconds
    on the processor, returns what waitpid says of it.
    """
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.setsid()
        _run_and_exit(tests, file, code, int(seconds), writer)
    os.close(writer)
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # what tests have left behind
    with open(reader) as failed:
        return failed.read() or (f"status {status}" if status else "")


def _run_and_exit(tests: Sequence[str], file: str, code: CodeType | None, seconds: int, writer: int) -> None:
    exit_code = 70
    try:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
        signal.alarm(_LONGEST)
        for name in [name for name in sys.modules if name.startswith(("rayfbnn.", "tests."))]:
            if not name.endswith("._cpu"):  # a compiled module is loaded once
                del sys.modules[name]
        if code is not None:
            sys.meta_path.insert(0, _Finder(file, code))
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "mutants"]
        exit_code = pytest.main([*options, *tests], plugins=[_Reporter(writer)])
    finally:
        os._exit(exit_code)


class _Reporter:
    """Writes the name of the test that fails."""

    def __init__(self, writer: int) -> None:
        self._writer = writer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._writer, report.nodeid.encode())


class _Finder(SourceFileLoader):
    """Finds and loads one module of the package, with other code than its file's."""

    def __init__(self, file: str, code: CodeType) -> None:
        super().__init__("rayfbnn." + file.removesuffix(".py").replace("/", "."), str(PACKAGE / file))
        self._code = code

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        return self._code
