"""The hidden folder in which a new store is made, and of which nothing is removed but what is proven ours.

Someone may have put a link or a folder of that name there before, and may put one there at any time. So the
folder is always a new one, everything is written and removed through its descriptor, and what has its name
is removed only if it is what a creation that crashed has left: it has a marker, and beside that nothing but
what a creation writes.

The marker is the first file in the folder and the last that is removed. It is locked while a creation goes
on, and ends with the store's new name: one that is left after that is a `.partial` file like others.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from rayfbnn.errors import StoreBusyError, StoreError, StoreExistsError, StoreForeignError
from rayfbnn.store.storage.os_errors import NO_FOLDER, translated
from rayfbnn.store.storage.protocol import PARTIAL, IsOurs
from rayfbnn.store.storage.system_calls import SystemCalls

PROBE = "probe"
MARKER = re.compile(rf"\.creating\.[0-9a-f]{{32}}{re.escape(PARTIAL)}", re.ASCII)
# Names of half-written files: the name that they were to have, the host, its process, and a number.
TEMPORARY = re.compile(rf"\.(.+\..+)-\d+-\d+{re.escape(PARTIAL)}", re.ASCII)
_ATTEMPTS = 100  # to make the folder while other processes make and remove it
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}


class Building:
    """A context that gives a new folder, locked, and renames it to `place` if it ends without an error.

    A path of the folder is given that stays the folder's, whatever happens to its name, where the system has
    such paths. StoreForeignError, with nothing changed, if something that is not ours has the folder's name,
    or comes into it; StoreBusyError while another process makes the same store.
    """

    def __init__(self, calls: SystemCalls, place: Path, is_ours: IsOurs) -> None:
        self._calls, self._place, self._is_ours = calls, place, is_ours
        self.path = place.parent / hidden_name(place.name)
        self._name = Path(self.path.name)
        self._marker = _new_marker()

    def __enter__(self) -> Path:
        with ExitStack() as stack:
            with translated("make", self.path):
                self._parent = self._open(stack, self._calls.open_folder(self._place.parent))
                self._folder = self._new_folder(stack)
            self._descriptors = stack.pop_all()
        self._inside = self._calls.inside(self._folder, self.path)
        return self._inside

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._descriptors:
            try:
                if error is not None:
                    raise error
                self._publish()
            except (Exception, KeyboardInterrupt) as exc:
                with suppress(StoreError), translated("remove", self.path):  # the first error is reported
                    if self._has_name(self._folder):
                        self._remove(self._folder, self._marker)
                self._raise_named(exc)
                if exc is not error:
                    raise

    def _raise_named(self, error: BaseException) -> None:
        """Raise a StoreError again whose text has the name of the folder, not the path by its descriptor."""
        text, inside = str(error), str(self._inside)
        if isinstance(error, StoreError) and inside != str(self.path) and inside in text:
            raise type(error)(text.replace(inside, str(self.path))) from error

    def _new_folder(self, stack: ExitStack) -> int:
        """Make, mark and lock the folder, and return its descriptor."""
        for _ in range(_ATTEMPTS):
            try:
                self._calls.mkdir(self._name, self._parent)
            except FileExistsError:
                self._clear()
                continue
            with ExitStack() as descriptors, suppress(FileNotFoundError, BlockingIOError):
                folder = self._open_folder(descriptors)
                if self._is_marked(folder, descriptors):
                    stack.push(descriptors.pop_all())
                    return folder
        raise self._busy()

    def _is_marked(self, folder: int, descriptors: ExitStack) -> bool:
        """Mark and lock the folder that was just made; False if another process removed or replaced it."""
        if self._calls.listdir(folder):
            return False
        try:
            lock = self._open(descriptors, self._calls.open_new(self._marker, folder))
            self._calls.flock(lock)
            self._calls.fsync(folder)  # before anything else is in it, which is not ours without a marker
        except OSError:
            with suppress(OSError):  # the first error is the one to report
                self._calls.unlink(self._marker, folder)
            with suppress(OSError):
                self._remove_empty(folder)
            raise
        return self._calls.is_same(lock, self._marker, folder) and self._has_name(folder)

    def _clear(self) -> None:
        """Remove what has the folder's name if it is ours and its process is gone."""
        with ExitStack() as descriptors, suppress(FileNotFoundError):  # another process may be faster
            folder = self._open_folder(descriptors)
            names = self._calls.listdir(folder)
            if not self._has_name(folder):
                return
            if not names:
                self._remove_empty(folder)
                return
            markers = [name for name in names if MARKER.fullmatch(name)]
            if len(markers) != 1:
                raise self._not_ours(next(name for name in sorted(names) if name not in markers[:1]))
            self._clear_marked(descriptors, folder, Path(markers[0]))

    def _clear_marked(self, descriptors: ExitStack, folder: int, marker: Path) -> None:
        """Remove a folder with a marker; StoreBusyError while the process that made it is at work."""
        if not self._calls.is_file(marker, folder) and self._calls.exists(marker, folder):
            raise self._not_ours(str(marker))
        lock = self._open(descriptors, self._calls.open_file(marker, folder))
        try:
            self._calls.flock(lock)
        except BlockingIOError:
            raise self._busy() from None
        # The process that held the lock may have ended its work, and the folder be a store by now.
        if self._calls.is_same(lock, marker, folder) and self._has_name(folder):
            self._remove(folder, marker)

    def _remove(self, folder: int, marker: Path) -> None:
        """Remove a folder of ours and all in it; StoreForeignError, before that, if something is not ours."""
        self._walk(folder, marker, "", is_removing=False)
        self._walk(folder, marker, "", is_removing=True)
        self._calls.fsync(folder)  # what is left without a marker after a loss of power would not be ours
        self._calls.unlink(marker, folder)
        self._remove_empty(folder)

    def _remove_empty(self, folder: int) -> None:
        """Remove the folder, unless another process has just put something into it, or removed it."""
        if not self._has_name(folder):
            return
        try:
            self._calls.rmdir(self._name, self._parent)
        except FileNotFoundError:
            pass
        except OSError as exc:
            if exc.errno not in _NOT_EMPTY | NO_FOLDER:
                raise

    def _walk(self, folder: int, marker: Path, prefix: str, *, is_removing: bool) -> None:
        """Check that all in an open folder is ours, folder by folder, or remove it; the marker stays.

        prefix  key of the folder in the store, with "/" at its end
        """
        for text in sorted(self._calls.listdir(folder)):
            name, key = Path(text), prefix + text
            if name == marker and not prefix:
                continue
            if self._calls.is_directory(name, folder) and self._is_ours(f"{key}/"):
                with ExitStack() as descriptors:
                    inner = self._open(descriptors, self._calls.open_inner(name, folder))
                    self._walk(inner, marker, f"{key}/", is_removing=is_removing)
                if is_removing:
                    self._calls.rmdir(name, folder)
            elif self._calls.is_file(name, folder) and self._is_file_of_ours(prefix, text):
                if is_removing:
                    self._calls.unlink(name, folder)
            else:
                raise self._not_ours(key)

    def _is_file_of_ours(self, prefix: str, name: str) -> bool:
        """Return True for the name of a file that a creation writes, or that it has half written."""
        names = [name]
        if half := TEMPORARY.fullmatch(name):  # names of hosts may have dots too
            parts = half[1].split(".")
            names = [".".join(parts[:n]) for n in range(1, len(parts))]
        return any(self._is_ours(prefix + name) or (not prefix and name == PROBE) for name in names)

    def _publish(self) -> None:
        """Rename the folder to `place`, durably; StoreError if it is not the one that was made."""
        new = Path(self._place.name)
        with translated("make", self._place):
            if not self._has_name(self._folder):
                raise self._replaced()
            if self._calls.exists(new, self._parent):
                raise StoreExistsError(f"{self._place}: already exists; choose another path, or remove it")
            self._calls.replace(self._name, new, self._parent, self._parent)
            if not self._calls.is_same(self._folder, new, self._parent):
                if not self._calls.exists(self._name, self._parent):  # what is not ours goes back
                    self._calls.replace(new, self._name, self._parent, self._parent)
                raise self._replaced()
            self._calls.fsync(self._parent)
            self._calls.unlink(self._marker, self._folder)

    def _replaced(self) -> StoreError:
        return StoreError(f"{self.path}: was replaced while the store was made; look at it, and try again")

    def _has_name(self, folder: int) -> bool:
        """Return True if an open folder is the one that has the name."""
        return self._calls.is_same(folder, self._name, self._parent)

    def _open_folder(self, descriptors: ExitStack) -> int:
        try:
            return self._open(descriptors, self._calls.open_inner(self._name, self._parent))
        except OSError as exc:
            if exc.errno not in NO_FOLDER:
                raise
            raise StoreForeignError(
                f"{self.path}: is a link or a file where a new store is to be made; move it elsewhere,"
                " or remove it"
            ) from exc

    def _open(self, stack: ExitStack, descriptor: int) -> int:
        stack.callback(self._calls.close, descriptor)
        return descriptor

    def _not_ours(self, key: str) -> StoreForeignError:
        return StoreForeignError(
            f"{self.path}: has {key}, which is not left from the making of a store, so nothing in it was"
            " changed; move it elsewhere, or remove it"
        )

    def _busy(self) -> StoreBusyError:
        return StoreBusyError(f"{self.path}: another process is making this store")


def hidden_name(store: str) -> str:
    """Return the name of the folder in which a store of this name is made, and which a crash leaves."""
    return f".{store}.creating"


def _new_marker() -> Path:
    return Path(f".creating.{os.urandom(16).hex()}{PARTIAL}")
