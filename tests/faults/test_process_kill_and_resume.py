"""Runs that are killed, or disturbed in every way, lose no draw: benchmarks/soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak.kill_and_resume import kill_and_resume
from benchmarks.soak.soak import soak


@pytest.mark.long
@pytest.mark.ray
def test_a_run_killed_twenty_times_ends_with_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    kill_and_resume(tmp_path, moments=20, seed=1, iterations=300)


@pytest.mark.long
@pytest.mark.ray
def test_disturbed_runs_lose_and_repeat_no_draw(tmp_path: Path) -> None:
    """A minute and a half of the soak; an hour of it is `python -m benchmarks.soak.soak`."""
    line = soak(tmp_path, seconds=90, seed=1)
    assert " 0 lost, 0 repeated" in line
