"""Pictures for tests that look at the figures or at the names of the files, but not into the files."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, BinaryIO

import pytest


def leave_undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out every figure as usual, but write only the signature of a PNG file.

    Drawing takes about four fifths of the time of a picture, most of it for the measuring of text.
    """

    def write_signature(figure: Any, file: BinaryIO, **_: Any) -> None:
        file.write(b"\x89PNG\r\n\x1a\n")

    if find_spec("matplotlib"):
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", write_signature)


@pytest.fixture
def undrawn_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave every picture of a test undrawn."""
    leave_undrawn(monkeypatch)
