"""Memory that was freed does not stay with the C library of a worker that has read its cases."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rayfbnn import memory

CODE = """
from pathlib import Path
from rayfbnn.memory import give_back_freed_memory

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))  # kB

pieces = [b"x" * 60_000 for _ in range(1000)]
last = b"x" * 60_000  # behind them all, so that the C library keeps what is freed before it
del pieces
before = held()
give_back_freed_memory()
print(before - held())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not the C library of GNU")
def test_freed_memory_is_given_back() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) > 50_000  # of 60,000 kB


def test_a_c_library_that_cannot_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    memory.give_back_freed_memory()
