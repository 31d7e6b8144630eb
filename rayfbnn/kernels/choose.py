"""Chooses the backend of a posterior's trajectories: a kernel if one covers it, otherwise array code."""

from __future__ import annotations

import os
from socket import gethostname

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.kernels.backend import Backend, Compiled, NotCovered, Reducer
from rayfbnn.kernels.numbers import posterior_behind
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.architecture import ModelSpec, NetworkSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Advance, Target
from rayfbnn.streams import Streams

VARIABLE = "RAYFBNN_KERNELS"
"""The environment variable that selects a backend by its keyword; any other value is an error.

"plain" selects array code, "launches" selects CUDA without graphs, and the name of an instruction set (such
as AVX2) selects the code compiled for it.
"""
ARRAY_CODE = {"cpu": "plain NumPy", "gpu": "plain CuPy"}
"""The name of array code on each device, which runs every target that no kernel covers."""
_WHY_FORCED = {"cpu": f"{VARIABLE} is plain", "gpu": "array code is forced"}


def backends(device: str, *, max_shared_bytes: int | None = None) -> tuple[Backend, ...]:
    """Return the backends that can replace array code on a device, in the order they are tried.

    device            "cpu" or "gpu"
    max_shared_bytes  shared memory of a block, for a CUDA device other than the current one
    """
    if device == "cpu":
        from rayfbnn.kernels.cpu import advance as cpu

        return cpu.backends()
    from rayfbnn.kernels.cuda import advance as cuda

    return cuda.backends(max_shared_bytes)


def advance_for(
    target: Target,
    *,
    recorded: str | None = None,
    device: str | None = None,
    max_shared_bytes: int | None = None,
) -> tuple[Advance, str]:
    """Return the code that runs a target's trajectories, and its name for people and stores.

    On a CPU this is compiled code if any is available: it was at least as fast as array code on every shape
    that was measured (docs/benchmarks.md). The Advance of a posterior also runs its marginals.

    target    a posterior, or one of its marginals; the kernel of a marginal has a different name
    recorded  the name of the kernel that a run started with; it is kept if this machine has it
    device    "cpu" or "gpu", which does not need to hold the target's arrays; None for the one that does
    max_shared_bytes  as for `backends`
    """
    compiled = compiled_for(target, recorded=recorded, device=device, max_shared_bytes=max_shared_bytes)
    return compiled.advance, compiled.name


def compiled_for(
    target: Target,
    *,
    recorded: str | None = None,
    device: str | None = None,
    max_shared_bytes: int | None = None,
) -> Compiled:
    """Return the code that `advance_for` chooses, together with its code for single kicks."""
    if device is None:
        device = "cpu" if array_namespace(posterior_behind(target).inputs) is np else "gpu"
    if recorded is not None and _is_array_code(recorded):
        return Compiled(leapfrog.advance, recorded)
    candidates = _candidates(backends(device, max_shared_bytes=max_shared_bytes), recorded)
    refusal = NotCovered(_WHY_FORCED[device])
    for number, backend in enumerate(candidates):
        # A run uses one backend for all its targets, so a marginal needs one that covers its posterior.
        compiled = backend.check(posterior_behind(target)) or backend.compile(target)
        if not isinstance(compiled, NotCovered):
            return compiled
        refusal = compiled if number == 0 else refusal
    return Compiled(leapfrog.advance, _array_code(device, refusal))


def reducer_for(posterior: Posterior, inputs: Array, *, device: str = "cpu") -> Reducer | None:
    """Return the compiled sums over draws at inputs (n_cases, n_inputs), or None for array code on the host.

    posterior, inputs  on the host, for both devices
    """
    if device == "gpu":
        if _keyword() == "plain":
            return None
        from rayfbnn.kernels.cuda import reducing as cuda

        return cuda.reducer(posterior, inputs)
    best = next(iter(_candidates(backends("cpu"), None)), None)
    if best is None:
        return None
    from rayfbnn.kernels.cpu import reducing as cpu

    return cpu.reducer(posterior, inputs, best.keyword)


def streams_class(device: str) -> type[Streams]:
    """Return the fastest class of streams on a device. All classes draw the same bits as uniform numbers."""
    if device != "cpu":
        from rayfbnn.kernels.cuda.streams import DeviceStreams

        return DeviceStreams
    from rayfbnn.kernels.cpu import compiled_module

    return (
        compiled_module.CompiledStreams
        if compiled_module.has_uniforms() and _keyword() != "plain"
        else Streams
    )


def name_for(network: NetworkSpec, model: ModelSpec, *, n_targets: int, device: str) -> str:
    """Return the backend name that a store records before data and memory limits are known."""
    target = None
    # Some other data models need their data, which is not known yet: survival targets are times.
    if data_model_from_spec(model).compiled_name is not None:
        nothing = np.zeros((1, network.inputs)), np.zeros((1, n_targets))
        target = Posterior.from_spec(network, model, *nothing)
    refusal = NotCovered(_WHY_FORCED[device])
    for number, backend in enumerate(_candidates(backends(device), recorded=None)):
        answer = NotCovered(f"{model.kind} targets") if target is None else backend.check(target)
        if answer is None:
            return backend.name
        refusal = answer if number == 0 else refusal
    return _array_code(device, refusal)


def is_available(name: str) -> bool:
    """Return True if this machine and environment can continue a run with the kernel of this name."""
    if _is_array_code(name):
        return True
    every_backend = (backend for device in ARRAY_CODE for backend in backends(device))
    return _keyword() != "plain" and any(backend.name == name for backend in every_backend)


def _array_code(device: str, refusal: NotCovered) -> str:
    """Return the name that a store records when no kernel could be used: at most 200 characters of ASCII."""
    reason = "".join(character if " " <= character <= "~" else "?" for character in refusal.reason)
    return f"{ARRAY_CODE[device]} ({reason if len(reason) < 180 else reason[:177] + '...'})"


def _is_array_code(name: str) -> bool:
    """Return True if a recorded name denotes array code, with or without a reason after the name."""
    return name.startswith(tuple(ARRAY_CODE.values()))


def _candidates(offered: tuple[Backend, ...], recorded: str | None) -> tuple[Backend, ...]:
    """Return the backends to try, in order; none if the environment asks for array code."""
    keyword = _keyword()
    if keyword == "plain":
        return ()
    kept = tuple(backend for backend in offered if backend.name == recorded)
    wanted = tuple(backend for backend in offered if keyword and backend.keyword == keyword)
    return kept or wanted or offered


def _keyword() -> str:
    """Return the keyword set in the environment, or ""; raise ConfigError if no backend here has it."""
    keyword = os.environ.get(VARIABLE, "")
    if not keyword:
        return ""
    every_backend = (*backends("gpu"), *backends("cpu"))
    keywords = ["plain", *dict.fromkeys(backend.keyword for backend in every_backend if backend.keyword)]
    if keyword not in keywords:  # a worker may have another machine's environment
        raise ConfigError(f"{VARIABLE}: must be {' or '.join(keywords)} on {gethostname()}, got {keyword}")
    return keyword
