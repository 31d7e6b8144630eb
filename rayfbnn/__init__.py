"""Sampling from the posterior of Bayesian neural networks: many chains, resumable to the bit.

`help(rayfbnn)` lists the verbs; `help(rayfbnn.sample)` explains one of them. Every public name is
imported when it is first used, so that `import rayfbnn` alone is quick and needs nothing but Python.
"""

from __future__ import annotations

from importlib import import_module

from rayfbnn.version import __version__ as __version__

TYPE_CHECKING = False  # that of `typing`, whose import takes a third of the time before `cli` handles signals
if TYPE_CHECKING:
    from typing import Any

    from rayfbnn.errors import RayFBNNError as RayFBNNError
    from rayfbnn.run.running import RunSummary as RunSummary
    from rayfbnn.run.status import Status as Status
    from rayfbnn.spec import RunSpec as RunSpec
    from rayfbnn.study import Study as Study
    from rayfbnn.verbs.benchmarking import bench as bench
    from rayfbnn.verbs.checking import check as check
    from rayfbnn.verbs.checking import diagnose as diagnose
    from rayfbnn.verbs.checking import verify as verify
    from rayfbnn.verbs.comparing import compare as compare
    from rayfbnn.verbs.predicting import loo as loo
    from rayfbnn.verbs.predicting import predict as predict
    from rayfbnn.verbs.reporting import plot as plot
    from rayfbnn.verbs.reporting import report as report
    from rayfbnn.verbs.sampling import resume as resume
    from rayfbnn.verbs.sampling import sample as sample
    from rayfbnn.verbs.sampling import sample_or_resume as sample_or_resume
    from rayfbnn.verbs.serving import export as export
    from rayfbnn.verbs.serving import function_values as function_values
    from rayfbnn.verbs.serving import load as load
    from rayfbnn.verbs.serving import open as open
    from rayfbnn.verbs.serving import to_datatree as to_datatree
    from rayfbnn.verbs.showing import show as show
    from rayfbnn.verbs.showing import status as status
    from rayfbnn.verbs.without_chains import evidence as evidence
    from rayfbnn.verbs.without_chains import prior as prior
    from rayfbnn.verbs.without_chains import reject as reject

# The public classes and the modules that have them. The verbs are those that rayfbnn/api.py names.
_CLASSES = {
    "RayFBNNError": "rayfbnn.errors",
    "RunSpec": "rayfbnn.spec",
    "RunSummary": "rayfbnn.run.running",
    "Status": "rayfbnn.run.status",
    "Study": "rayfbnn.study",
}


def __getattr__(name: str) -> Any:
    api = import_module("rayfbnn.api")
    if name == "__all__":
        return __dir__()
    if name not in _CLASSES and name not in api.__all__:
        raise AttributeError(f"module 'rayfbnn' has no attribute '{name}'")
    return getattr(import_module(_CLASSES.get(name, "rayfbnn.api")), name)


def __dir__() -> list[str]:
    return sorted(["__version__", *_CLASSES, *import_module("rayfbnn.api").__all__])
