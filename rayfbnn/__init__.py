"""Sampling from the posterior of Bayesian neural networks: many chains, resumable to the bit.

`help(rayfbnn.api)` lists the verbs; `help(rayfbnn.sample)` explains one of them. Every public name is
imported when it is first used, so that `import rayfbnn` alone is quick and needs nothing but Python.
"""

from __future__ import annotations

from importlib import import_module

from rayfbnn.version import __version__

TYPE_CHECKING = False  # that of `typing`, whose import takes a third of the time before `cli` handles signals
if TYPE_CHECKING:
    from typing import Any

    from rayfbnn.api import (
        bench,
        check,
        compare,
        diagnose,
        evidence,
        export,
        function_values,
        load,
        open,
        plot,
        predict,
        prior,
        reject,
        report,
        resume,
        sample,
        sample_or_resume,
        show,
        status,
        to_datatree,
        verify,
    )
    from rayfbnn.errors import RayFBNNError
    from rayfbnn.run.running import RunSummary
    from rayfbnn.run.status import Status
    from rayfbnn.spec import RunSpec
    from rayfbnn.study import Study

__all__ = [
    "RayFBNNError",
    "RunSpec",
    "RunSummary",
    "Status",
    "Study",
    "__version__",
    "bench",
    "check",
    "compare",
    "diagnose",
    "evidence",
    "export",
    "function_values",
    "load",
    "open",
    "plot",
    "predict",
    "prior",
    "reject",
    "report",
    "resume",
    "sample",
    "sample_or_resume",
    "show",
    "status",
    "to_datatree",
    "verify",
]

_ELSEWHERE = {
    "RayFBNNError": "rayfbnn.errors",
    "RunSpec": "rayfbnn.spec",
    "RunSummary": "rayfbnn.run.running",
    "Status": "rayfbnn.run.status",
    "Study": "rayfbnn.study",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rayfbnn' has no attribute '{name}'")
    return getattr(import_module(_ELSEWHERE.get(name, "rayfbnn.api")), name)


def __dir__() -> list[str]:
    return __all__
