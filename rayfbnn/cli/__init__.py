"""The verbs as commands of the shell, with the names and parameters that they have in Python."""

# Each import registers its commands, which `rayfbnn --help` lists in this order.
from rayfbnn.cli import sampling  # isort: split

from rayfbnn.cli import jobs  # isort: split

from rayfbnn.cli import results  # isort: split

from rayfbnn.cli import inspection  # isort: split

from rayfbnn.cli import independent  # isort: split

from rayfbnn.cli import comparing  # isort: split

from rayfbnn.cli import study  # isort: split

from rayfbnn.cli import demonstration
from rayfbnn.cli.program import INTERRUPTED, NOT_CONVERGED, START_AGAIN, app, main

__all__ = [
    "INTERRUPTED",
    "NOT_CONVERGED",
    "START_AGAIN",
    "app",
    "comparing",
    "demonstration",
    "independent",
    "inspection",
    "jobs",
    "main",
    "results",
    "sampling",
    "study",
]
