"""Files that take long to make and depend only on text, kept from one run of the tests to the next."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "made"
KEPT_SECONDS = 7 * 24 * 3600


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


class CachedFiles:
    """A folder of cached files, shared by the processes of pytest-xdist.

    What all files depend on (a compiler's version, its options) gives the folder its name, so that files of
    another compiler are in another folder. Folders that no test has used for a week are removed.
    """

    def __init__(self, kind: str, *depends_on: str) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.path = FOLDER / f"{kind}-{digest(*depends_on)}"
        self.path.mkdir(exist_ok=True)
        for folder in FOLDER.glob(f"{kind}-*"):
            _remove_unused(folder)

    def file(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the path of the file with this name; `make` writes it to a path if it is not there yet."""
        path = self.path / name
        if path.exists():
            os.utime(path)
            return path
        with tempfile.TemporaryDirectory(dir=self.path) as folder:
            unfinished = Path(folder) / name
            make(unfinished)
            # The file appears at once, so that another process sees the whole file or none.
            unfinished.replace(path)
        return path


def _remove_unused(folder: Path) -> None:
    if folder.is_symlink():  # what it leads to is not ours
        return
    oldest = time.time() - KEPT_SECONDS
    for path in folder.iterdir():
        if path.lstat().st_mtime < oldest:
            is_folder = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path, ignore_errors=True) if is_folder else path.unlink(missing_ok=True)
