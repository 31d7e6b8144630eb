"""Files that take long to make and depend only on text, kept from one run of the tests to the next."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "made"


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


class CachedFiles:
    """A folder of cached files, shared by the processes of pytest-xdist.

    What all files depend on (a compiler's version, its options) gives the folder its name, so that files of
    another compiler are in another folder. `rm -r .pytest_cache/made` removes all of them.
    """

    def __init__(self, kind: str, *depends_on: str) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.path = FOLDER / f"{kind}-{digest(*depends_on)}"
        self.path.mkdir(exist_ok=True)

    def file(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the path of the file with this name; `make` writes it to a path if it is not there yet."""
        path = self.path / name
        if path.exists():
            return path
        with tempfile.TemporaryDirectory(dir=self.path) as folder:
            unfinished = Path(folder) / name
            make(unfinished)
            # The file appears at once, so that another process sees the whole file or none.
            unfinished.replace(path)
        return path
