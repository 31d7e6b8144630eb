"""Removes the folders of temporary stores, also when the process that made them is killed.

This file is also the program of the watcher: a process that waits at a pipe until its owner, which alone
has the other end, is gone. It imports only the standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

_pipes: list[int] = []  # to the watcher of this process; the watcher acts when they are closed


def watch(folder: str) -> None:
    """Tell the watcher of this process about a folder. There is none if the system starts no process."""
    line = f"{identity(os.lstat(folder))} ".encode() + os.fsencode(folder) + b"\0"
    with suppress(OSError):
        if not _pipes:
            _pipes.append(_start())
        os.write(_pipes[0], line)


def _start() -> int:
    """Start a watcher. Return the end of its pipe."""
    read, write = os.pipe()
    try:
        watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # keeps the signals of a terminal away
        )
    except OSError:
        os.close(write)
        raise
    finally:
        os.close(read)
    watcher.returncode = 0  # it outlives this process, which does not wait for it
    return write


def _leave_to_parent() -> None:
    """Close a fork's copy of the pipe, because the watcher is the parent's."""
    while _pipes:
        os.close(_pipes.pop())


os.register_at_fork(after_in_child=_leave_to_parent)


def identity(made: os.stat_result) -> str:
    """Return the device and number of a folder, which distinguish it from a later one of its name."""
    return f"{made.st_dev}:{made.st_ino}"


def remove(folder: str, made: str) -> None:
    """Remove a folder with this identity, but no other folder that may have its name by now.

    It gets a hidden name first, and is therefore gone at once, and whole.
    """
    parent, name = os.path.split(folder)
    hidden = os.path.join(parent, f".{name}")
    with suppress(OSError):  # hidden already by a process that was then killed
        if identity(os.lstat(folder)) == made:
            os.rename(folder, hidden)
    with suppress(OSError):
        descriptor = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if identity(os.fstat(descriptor)) == made:
                _empty(descriptor)
                os.rmdir(hidden)
        finally:
            os.close(descriptor)


def _empty(folder: int) -> None:
    """Remove everything in an open folder; links are removed, not followed."""
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except OSError:  # it is a folder
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def main() -> None:
    """Wait until the owner is gone, and remove the folders that it has left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    for line in sys.stdin.buffer.read().split(b"\0")[:-1]:
        made, _, folder = line.partition(b" ")
        remove(os.fsdecode(folder), made.decode())


if __name__ == "__main__":
    main()
