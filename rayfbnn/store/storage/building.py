"""The hidden folder where a new store is made. Only files that are certainly ours are removed from it.

Anyone may put a link or a folder with the same name there at any time. Therefore the folder is always a new
one, and everything is written and removed through its descriptor. An existing folder is removed only if a
crashed creation left it: it has a marker, and otherwise only files that a creation writes.

The marker is the first file in the folder and the last to be removed. It is locked during a creation, and
removed once the store has its name. If a crash leaves it after that, it is swept like any `.partial` file.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from rayfbnn.errors import StoreBusyError, StoreError, StoreExistsError, StoreForeignError
from rayfbnn.store.storage.protocol import PARTIAL, IsOurs
from rayfbnn.store.storage.system_calls import NO_FOLDER, SystemCalls, translated

PROBE = "probe"
MARKER = re.compile(rf"\.creating\.[0-9a-f]{{32}}{re.escape(PARTIAL)}", re.ASCII)
# Names of half-written files: the final name, the host, its process, and a number.
TEMPORARY = re.compile(rf"\.(.+\..+)-\d+-\d+{re.escape(PARTIAL)}", re.ASCII)
_ATTEMPTS = 100  # to make the folder while other processes make and remove it
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}


class Building:
    """A context that makes a locked folder, and renames it to `place` if it ends without an error.

    On Linux the context's path leads to the folder whatever happens to its name. StoreForeignError, with
    nothing changed, if something foreign has the folder's name or is put into the folder; StoreBusyError
    while another process makes the same store.
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
                with suppress(StoreError), translated("remove", self.path):  # report the first error
                    if self._has_name(self._folder):
                        self._remove(self._folder, self._marker)
                self._raise_named(exc)
                if exc is not error:
                    raise

    def _raise_named(self, error: BaseException) -> None:
        """Raise a StoreError again, with the name of the folder instead of the path by its descriptor."""
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
        """Mark and lock the new folder; return False if another process removed or replaced it."""
        if self._calls.listdir(folder):
            return False
        try:
            lock = self._open(descriptors, self._calls.open_new(self._marker, folder))
            self._calls.flock(lock)
            self._calls.fsync(folder)  # before anything else is in it, because only marked folders are ours
        except OSError:
            with suppress(OSError):  # report the first error
                self._calls.unlink(self._marker, folder)
            with suppress(OSError):
                self._remove_empty(folder)
            raise
        return self._calls.is_same(lock, self._marker, folder) and self._has_name(folder)

    def _clear(self) -> None:
        """Remove a folder with this name if it is ours and its process is gone."""
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
        """Remove a folder with a marker; StoreBusyError while the process that made it is running."""
        if not self._calls.is_file(marker, folder) and self._calls.exists(marker, folder):
            raise self._not_ours(str(marker))
        lock = self._open(descriptors, self._calls.open_file(marker, folder))
        try:
            self._calls.flock(lock)
        except BlockingIOError:
            raise self._busy() from None
        # The process that held the lock may have finished, and the folder may be a store by now.
        if self._calls.is_same(lock, marker, folder) and self._has_name(folder):
            self._remove(folder, marker)

    def _remove(self, folder: int, marker: Path) -> None:
        """Remove a folder with its content; StoreForeignError, with nothing removed, if some is not ours."""
        self._walk(folder, marker, "", is_removing=False)
        self._walk(folder, marker, "", is_removing=True)
        self._calls.fsync(folder)  # files that a power loss left without a marker would look foreign
        self._calls.unlink(marker, folder)
        self._remove_empty(folder)

    def _remove_empty(self, folder: int) -> None:
        """Remove the folder, unless another process has put something into it or removed it."""
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
        """Check that the content of an open folder is ours, or remove it, folder by folder; the marker stays.

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
        """Return True for the name of a file that a creation writes, also of a half-written one."""
        names = [name]
        if half := TEMPORARY.fullmatch(name):  # names of hosts may have dots too
            parts = half[1].split(".")
            names = [".".join(parts[:n]) for n in range(1, len(parts))]
        return any(self._is_ours(prefix + name) or (not prefix and name == PROBE) for name in names)

    def _publish(self) -> None:
        """Rename the folder to `place`, durably; StoreError if another one has its name."""
        new = Path(self._place.name)
        with translated("make", self._place):
            if not self._has_name(self._folder):
                raise self._replaced()
            if self._calls.exists(new, self._parent):
                raise StoreExistsError(f"{self._place}: already exists; choose another path, or remove it")
            self._calls.replace(self._name, new, self._parent, self._parent)
            if not self._calls.is_same(self._folder, new, self._parent):
                if not self._calls.exists(self._name, self._parent):  # a foreign folder gets its name back
                    self._calls.replace(new, self._name, self._parent, self._parent)
                raise self._replaced()
            self._calls.fsync(self._parent)
            with suppress(FileNotFoundError):  # a driver that found the store complete has swept it
                self._calls.unlink(self._marker, self._folder)

    def _replaced(self) -> StoreError:
        return StoreError(f"{self.path}: was replaced while the store was made; look at it, and try again")

    def _has_name(self, folder: int) -> bool:
        return self._calls.is_same(folder, self._name, self._parent)

    def _open_folder(self, descriptors: ExitStack) -> int:
        try:
            return self._open(descriptors, self._calls.open_inner(self._name, self._parent))
        except OSError as exc:
            if exc.errno not in NO_FOLDER:
                raise
            raise StoreForeignError(
                f"{self.path}: is a link or a file, but a new store needs a folder with this name; move it"
                " elsewhere, or remove it"
            ) from exc

    def _open(self, stack: ExitStack, descriptor: int) -> int:
        stack.callback(self._calls.close, descriptor)
        return descriptor

    def _not_ours(self, key: str) -> StoreForeignError:
        return StoreForeignError(
            f"{self.path}: contains {key}, which is not part of an unfinished store; nothing was changed;"
            " move it elsewhere, or remove it"
        )

    def _busy(self) -> StoreBusyError:
        return StoreBusyError(f"{self.path}: another process is making this store")


def hidden_name(store: str) -> str:
    """Return the name of the hidden folder where a store with this name is made."""
    return f".{store}.creating"


def _new_marker() -> Path:
    return Path(f".creating.{os.urandom(16).hex()}{PARTIAL}")
