"""The program with all of its commands; importing the file of a command registers it."""

# `rayfbnn --help` lists the commands in this order.
from rayfbnn.cli import sampling  # isort: split

from rayfbnn.cli import jobs  # isort: split

from rayfbnn.cli import results  # isort: split

from rayfbnn.cli import inspection  # isort: split

from rayfbnn.cli import without_chains  # isort: split

from rayfbnn.cli import comparing  # isort: split

from rayfbnn.cli import study  # isort: split

from rayfbnn.cli import demonstration
from rayfbnn.cli.program import NOT_CONVERGED, app, main
from rayfbnn.run.signals import INTERRUPTED, START_AGAIN

__all__ = [
    "INTERRUPTED",
    "NOT_CONVERGED",
    "START_AGAIN",
    "app",
    "comparing",
    "demonstration",
    "inspection",
    "jobs",
    "main",
    "results",
    "sampling",
    "study",
    "without_chains",
]
