"""A minute and a half of the soak; an hour of it is `python -m tests.soak.soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.soak import soak


@pytest.mark.long
@pytest.mark.ray
def test_disturbed_runs_lose_and_repeat_no_draw(tmp_path: Path) -> None:
    line = soak(tmp_path, seconds=90, seed=1)
    assert " 0 lost, 0 repeated" in line
