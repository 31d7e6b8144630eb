"""The functions of CUDA source text, compiled by CuPy for the current device when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from rayfbnn.kernels.cuda.generate import source_of
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan
from rayfbnn.kernels.network_plan import NetworkPlan


class CudaFunction(Protocol):
    """A compiled function, with the call signature of CuPy's functions."""

    def __call__(
        self, grid: tuple[int], block: tuple[int], arguments: Sequence[Any], *, shared_mem: int = 0
    ) -> Any:
        """Launch the function on the current stream."""


Build = Callable[[str, str, int], CudaFunction]
"""Compiles a function from a source text, the function's name, and the bytes of shared memory it needs."""


def build_once(source: str, name: str, shared_bytes: int) -> CudaFunction:
    """Return a function of the current device, compiled at its first use; CuPy keeps it on disk as well."""
    import cupy

    return _built(int(cupy.cuda.runtime.getDevice()), source, name, shared_bytes)


@cache
def _built(device: int, source: str, name: str, shared_bytes: int) -> CudaFunction:
    """Compile a function. The source contains everything a kernel depends on: the plans and the dtype."""
    function = _module(device, source).get_function(name)
    if shared_bytes > 48 * 1024:  # a kernel must request more than this explicitly
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function  # type: ignore[no-any-return]


@cache
def _module(device: int, source: str) -> Any:
    """Return the compiled module of a source, with all its functions."""
    import cupy

    return cupy.RawModule(code=source, options=("--std=c++17",))


def shared_memory_of_device() -> int:
    """Return the bytes of shared memory that a block of the current device can request."""
    import cupy

    return int(cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])


@dataclass(frozen=True, eq=False)
class SourceFunctions:
    """The functions of a network's source for a plan, each compiled at its first launch.

    more_constants  further lines of the source
    kept            the compiled functions, by name and by whether they are for weighted targets
    """

    network: NetworkPlan
    plan: LaunchPlan
    dtype: str
    build: Build
    more_constants: tuple[str, ...] = ()
    kept: dict[tuple[str, bool], CudaFunction] = field(default_factory=dict)

    def launch(
        self,
        name: str,
        n_blocks: int,
        *arguments: Any,
        threads: int | None = None,
        is_weighted: bool = False,
    ) -> None:
        """Launch a function, with the plan's number of threads in a block unless `threads` is given."""
        if n_blocks == 0:  # a layer without units
            return
        # Looking up a function by its source takes longer than launching it.
        function = self.kept.get((name, is_weighted))
        shared_bytes = self.plan.shared_bytes
        if function is None:
            source = source_of(
                self.network,
                self.plan,
                dtype=self.dtype,
                is_weighted=is_weighted,
                more_constants=self.more_constants,
                launched=name,
            )
            function = self.kept[name, is_weighted] = self.build(source, name, shared_bytes)
        function((n_blocks,), (threads or self.plan.threads,), arguments, shared_mem=shared_bytes)
