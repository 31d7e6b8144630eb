"""Sampling from the posterior of Bayesian neural networks: many chains, resumable to the bit.

`help(rayfbnn)` lists the verbs; `help(rayfbnn.sample)` explains one of them. Every public name is
imported when it is first used, so that `import rayfbnn` alone is quick and needs nothing but Python.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from rayfbnn.version import __version__ as __version__

TYPE_CHECKING = False  # that of `typing`, whose import takes a third of the time before `cli` handles signals
if TYPE_CHECKING:
    from typing import Any

    from rayfbnn.api import *  # noqa: F403
    from rayfbnn.errors import RayFBNNError as RayFBNNError
    from rayfbnn.run.running import RunSummary as RunSummary
    from rayfbnn.run.status import Status as Status
    from rayfbnn.spec import RunSpec as RunSpec
    from rayfbnn.study import Study as Study

# The public classes and the modules that have them. The verbs are whatever rayfbnn/api.py imports.
_CLASSES = {
    "RayFBNNError": "rayfbnn.errors",
    "RunSpec": "rayfbnn.spec",
    "RunSummary": "rayfbnn.run.running",
    "Status": "rayfbnn.run.status",
    "Study": "rayfbnn.study",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name in _CLASSES:
        return getattr(import_module(_CLASSES[name]), name)
    # `from rayfbnn import cli` asks here before it imports the folder, and must not load the verbs.
    is_verb = not name.startswith("_") and find_spec(f"rayfbnn.{name}") is None
    verb = vars(import_module("rayfbnn.api")).get(name) if is_verb else None
    if verb is None:
        raise AttributeError(f"module 'rayfbnn' has no attribute '{name}'")
    return verb


def __dir__() -> list[str]:
    verbs = (name for name in vars(import_module("rayfbnn.api")) if not name.startswith("_"))
    return sorted(["__version__", *_CLASSES, *verbs])
