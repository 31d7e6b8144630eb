"""The kernel that a new run starts with."""

from __future__ import annotations

from rayfbnn.kernels import choose
from rayfbnn.spec import RunSpec


def kernel_name(spec: RunSpec) -> str:
    """Return the name of the code that will run the leapfrog steps of `spec` on this machine.

    The store of the run records the name. Raises ConfigError if the environment asks for a kernel that this
    machine does not have.
    """
    return choose.name_for(spec.network, spec.model, n_targets=len(spec.data.targets), device=spec.device)
