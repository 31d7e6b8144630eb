"""Twenty kills at random moments, resumed with other numbers of workers: see kill_and_resume.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kill_and_resume import kill_and_resume


@pytest.mark.long
@pytest.mark.ray
def test_a_run_killed_twenty_times_ends_with_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    kill_and_resume(tmp_path, moments=20, seed=1, iterations=300)
