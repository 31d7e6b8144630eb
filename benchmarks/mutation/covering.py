"""A plugin of pytest that records which functions of the package each passing test calls, and its seconds."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Generator
from types import CodeType, FrameType

import pytest

from benchmarks.mutation.mutants import PACKAGE

_CALLED: set[CodeType] = set()
_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.addoption(
        "--functions-of-tests", required=True, help="append a line of JSON for each test to FILE"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Trace the calls of one test, its fixtures included, and record them."""
    _CALLED.clear()
    start = time.process_time()
    threading.settrace(_trace)
    sys.settrace(_trace)
    result = yield
    sys.settrace(None)
    threading.settrace(None)
    seconds = round(time.process_time() - start, 3)
    functions = sorted({name for code in set(_CALLED) if (name := _name(code))})
    if not item.stash.get(_FAILED, False):
        with open(item.config.getoption("--functions-of-tests"), "a") as file:
            line = {"test": item.nodeid, "seconds": seconds, "functions": functions}
            file.write(json.dumps(line) + "\n")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a test passed in all its phases."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or not report.passed
    return report


def _trace(frame: FrameType, event: str, argument: object) -> None:
    _CALLED.add(frame.f_code)


def _name(code: CodeType) -> str:
    """Return "file:outermost function", or "" outside the package."""
    file = code.co_filename.removeprefix(f"{PACKAGE}/")
    return "" if file == code.co_filename else f"{file}:{code.co_qualname.split('.<locals>')[0]}"
