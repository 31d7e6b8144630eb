"""How many files of the package a short run, a prediction and a diagnosis enter in a warm process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rayfbnn
from rayfbnn import api
from tests.support.small import small_spec

PACKAGE = str(Path(rayfbnn.__file__).parent)
HERE: dict[str, Any] = {"workers": 0, "progress": False}
MOST_FILES = {"sample": 88, "predict": 78, "diagnose": 72}  # these may only fall


def files_entered(call: Callable[[], object]) -> set[str]:
    """The files of the package with a function that is called, in any thread."""
    files: set[str] = set()

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return files


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], object]]:
    """The verbs, each of which has been called once."""
    folder = tmp_path_factory.mktemp("entered")
    spec, run, cases = small_spec(folder), folder / "run.zarr", folder / "train.csv"
    api.sample(spec, run, **HERE)
    api.predict(run, data=cases)
    api.diagnose(run)
    return {
        "sample": lambda: api.sample(spec, folder / "second.zarr", **HERE),
        "predict": lambda: api.predict(run, data=cases),
        "diagnose": lambda: api.diagnose(run),
    }


@pytest.mark.parametrize("verb", MOST_FILES)
def test_a_verb_enters_ever_fewer_files(verb: str, calls: dict[str, Callable[[], object]]) -> None:
    assert len(files_entered(calls[verb])) <= MOST_FILES[verb]
