"""The verbs as commands of the shell, with the same names and parameters as in Python.

The commands (commands.py) are imported when they are needed, because a signal must find its handler in place
before Python begins to import them.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False  # as in the package's __init__.py
if TYPE_CHECKING:
    from typing import Any

    from rayfbnn.cli.commands import INTERRUPTED, NOT_CONVERGED, START_AGAIN, app

__all__ = ["INTERRUPTED", "NOT_CONVERGED", "START_AGAIN", "app", "main"]


def main() -> None:
    """Run the program `rayfbnn` with the arguments of the shell."""
    gc.set_threshold(100_000)  # imports make many objects, and nearly all of them stay

    from rayfbnn.run.signals import code_of_stopped, exit_on_signal

    command = sys.argv[2:3] if sys.argv[1:2] == ["study"] else sys.argv[1:2]
    with exit_on_signal(code_of_stopped("".join(command))):
        from rayfbnn.cli import commands

        commands.main()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rayfbnn.cli import commands

    return getattr(commands, name)
