"""The program `rayfbnn` on a disk that is full now and then: each write may fail, with small probability."""

from __future__ import annotations

import errno
import os
import random

from rayfbnn import cli
from rayfbnn.store.storage.system_calls import SystemCalls

_SHARE = 1 / 400  # of writes that fail


def fill_the_disk() -> None:
    """Let writes fail as they do on a full disk, half of them after a part of the bytes is written."""
    write = SystemCalls.write

    def write_or_fail(self: SystemCalls, descriptor: int, data: memoryview) -> int:
        if random.random() < _SHARE:
            if len(data) > 1 and random.random() < 0.5:
                write(self, descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, descriptor, data)

    SystemCalls.write = write_or_fail  # type: ignore[method-assign]


def main() -> None:
    """Run `rayfbnn` with the arguments of the shell; each process has failures of its own."""
    random.seed(os.getpid())
    fill_the_disk()
    cli.main()
