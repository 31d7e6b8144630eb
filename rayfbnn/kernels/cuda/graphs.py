"""CUDA graphs: functions of arrays on a device, recorded once and then launched as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any

from rayfbnn.arrays import Array, array_namespace

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Records a function without running it, and returns one that repeats it on the same memory."""

# Number of recordings to keep, the most recently used ones. Each holds memory for its arguments, its result
# and all intermediate values, even while it is not launched.
_N_KEPT = 2


def cuda_graph(function: Callable[[], None]) -> Callable[[], None]:
    """Capture everything that the function launches; the result launches it on the then current stream.

    The function must have run once before, and must not read anything back or load any code. Its memory comes
    from a pool that belongs to the graph. Nothing else uses this memory while the graph exists.
    """
    import cupy

    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    with stream, cupy.cuda.using_allocator(pool.malloc):
        stream.begin_capture()  # relaxed: the pool may ask the device for memory
        try:
            function()
        except BaseException:
            with suppress(RuntimeError):  # the first error is the one to report
                stream.end_capture()
            raise
        graph = stream.end_capture()
    return partial(_launch, graph, pool)


def _launch(graph: Any, pool: Any) -> None:
    """Launch the graph. The pool is an argument only to keep it alive as long as the graph."""
    graph.launch()


class Recording:
    """A recorded function of arrays. Its arguments and result stay at the same place in memory.

    arguments  the copies that the function reads; write to them before a launch
    """

    def __init__(self, function: Callable[..., Array], arguments: tuple[Array, ...], record: Record) -> None:
        """Run the function once, then record it."""
        self._function = function
        self.arguments = tuple(values.copy() for values in arguments)
        self._result = function(*self.arguments).copy()  # compiles and loads all code
        self._result.fill(float("nan"))
        self._launch = record(self._compute)

    def _compute(self) -> None:
        self._result[...] = self._function(*self.arguments)

    def load(self, *arguments: Array) -> None:
        """Copy new values into the arguments."""
        for place, values in zip(self.arguments, arguments, strict=True):
            place[...] = values

    def launch(self) -> Array:
        """Return the function's value for the current arguments. The next launch overwrites it."""
        self._launch()
        return self._result


class Recordings:
    """The recordings in use. After one failure no more are made, because the next would fail as well."""

    def __init__(self, record: Record = cuda_graph) -> None:
        """Start empty; `record` may be a substitute for CUDA graphs."""
        self._record = record
        self._kept: dict[Hashable, Recording] = {}
        self._has_failed = False

    def of(
        self,
        key: Hashable,
        function: Callable[..., Array],
        arguments: tuple[Array, ...],
        *,
        plain: Callable[..., Array],
        tolerance: float,
    ) -> Recording | None:
        """Return the recording of a function with these arguments loaded, or None if it cannot be recorded.

        A new recording is launched and compared with `plain`, because a launch that was not captured would
        otherwise be missing without an error. The result may differ by `tolerance` times the largest number.

        key  everything that the function depends on other than its arguments, including their shapes
        """
        if self._has_failed:
            return None
        recording = self._kept.pop(key, None)
        if recording is None:
            while len(self._kept) >= _N_KEPT:  # before the new one takes memory
                del self._kept[next(iter(self._kept))]
            try:
                recording = Recording(function, arguments, self._record)
                difference = _difference(recording.launch(), plain(*arguments))
            # Errors of CUDA; too little memory; no library; a library or a CuPy that lacks the function;
            # matrices that cublas.product refuses.
            except (RuntimeError, MemoryError, OSError, AttributeError, ValueError) as error:
                self._give_up(f"{type(error).__name__}: {error}")
                return None
            if not difference <= tolerance:
                self._give_up(f"a graph's result is wrong by {difference:.2g} of its largest number")
                return None
        self._kept[key] = recording  # the most recently used is at the end
        recording.load(*arguments)
        return recording

    def _give_up(self, reason: str) -> None:
        self._has_failed = True
        self._kept.clear()
        warnings.warn(
            f"CUDA graphs cannot be used, so kernels are launched one by one: {reason}", stacklevel=3
        )


def _difference(values: Array, expected: Array) -> float:
    """Return the largest difference between finite numbers, relative to the largest of them."""
    xp = array_namespace(values)
    counts = xp.isfinite(expected)
    scale = xp.where(counts, xp.abs(expected), 0).max()
    return float(xp.where(counts, xp.abs(values - expected), 0).max() / xp.maximum(scale, 1e-300))
