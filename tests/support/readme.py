"""The configuration at the beginning of the README."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def first_problem() -> str:
    """The TOML text of the README's block marked `<!-- first-problem -->`."""
    block = re.search(r"<!-- first-problem -->\n```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block is not None
    return block[1]
