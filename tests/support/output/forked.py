"""The program in a fork of this process, whose streams are any files, and disks without space."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rayfbnn import cli

CLOSED = -1


def run_forked(
    *arguments: object, stdout: int, stderr: int, before: Callable[[], object] | None = None
) -> int:
    """Return the exit code of `rayfbnn` with descriptors, or CLOSED, as its standard streams.

    before  what the child does first
    """
    child = os.fork()
    if child == 0:
        _be_the_program([str(argument) for argument in arguments], stdout, stderr, before)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be_the_program(
    arguments: list[str], stdout: int, stderr: int, before: Callable[[], object] | None
) -> None:
    """Do what the interpreter does at its start, the program, and what the interpreter does at its end."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        sys.stdout, sys.stderr = _stream(1, stdout), _stream(2, stderr)  # type: ignore[assignment]
        sys.argv = ["rayfbnn", *arguments]
        if before is not None:
            before()
        cli.main()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        code = 120
    os._exit(code)


def _stream(number: int, descriptor: int) -> TextIO | None:
    """Return a standard stream as the interpreter makes it: None if it is closed."""
    if descriptor == CLOSED:
        os.close(number)
        return None
    os.dup2(descriptor, number)
    return open(number, "w", closefd=False, errors="strict" if number == 1 else "backslashreplace")


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path | None]:
    """A new folder with a file system of this size (as `8k`), or None where this user cannot mount one."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    """No file may become larger than so many bytes: writes fail with EFBIG.

    Python keeps no compiled modules meanwhile. It takes a short write for a whole one (seen with 3.11), and
    every later import of that module would fail.
    """
    limits, kept = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = kept
