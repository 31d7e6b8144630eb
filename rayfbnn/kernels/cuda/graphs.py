"""Functions of arrays on a device, recorded once and launched again as one: CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any

from rayfbnn.arrays import Array, array_namespace

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""What makes of a function, without carrying it out, one that does the same again on the same memory."""

# Of the functions used last. A recording holds memory for its arguments, its result and all that it computes
# between them, on the way even when it is not launched.
_N_KEPT = 2


def cuda_graph(function: Callable[[], None]) -> Callable[[], None]:
    """All that the function launches, as one launch on the stream that is current then.

    It may read nothing back and make nothing that must be loaded: it has run once before. Memory that it
    takes comes from a pool of the graph's own, so that nobody else has it as long as the graph lives.
    """
    import cupy

    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    with stream, cupy.cuda.using_allocator(pool.malloc):
        stream.begin_capture()  # relaxed: the pool may ask the device for memory
        try:
            function()
        except BaseException:
            with suppress(RuntimeError):  # the capture is over either way, and why is known already
                stream.end_capture()
            raise
        graph = stream.end_capture()
    return partial(_launch, graph, pool)


def _launch(graph: Any, pool: Any) -> None:
    """`pool` is only held."""
    graph.launch()


class Recording:
    """A function of arrays; those that it reads, copies of `arguments`, and its result stay in place.

    arguments  what it reads: to be written to, and launched
    """

    def __init__(self, function: Callable[..., Array], arguments: tuple[Array, ...], record: Record) -> None:
        self._function = function
        self.arguments = tuple(values.copy() for values in arguments)
        self._result = function(*self.arguments).copy()  # compiles and loads what may not be while recording
        self._result.fill(float("nan"))
        self._launch = record(self._compute)

    def _compute(self) -> None:
        self._result[...] = self._function(*self.arguments)

    def load(self, *arguments: Array) -> None:
        for place, values in zip(self.arguments, arguments, strict=True):
            place[...] = values

    def launch(self) -> Array:
        """The function of what the arguments hold now, until the next launch."""
        self._launch()
        return self._result


class Recordings:
    """The recordings in use; none once one has failed, for then the next would."""

    def __init__(self, record: Record = cuda_graph) -> None:
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
        """That of a function, with these arguments loaded, or None where it cannot be recorded.

        A new one is launched and compared with `plain`, whose result it must have but for `tolerance` of the
        largest number: what was not captured would be missing in silence.

        key  of all that the function depends on beside its arguments, their shapes among it
        """
        if self._has_failed:
            return None
        found = self._kept.pop(key, None)
        if found is None:
            while len(self._kept) >= _N_KEPT:  # before the new one takes memory
                del self._kept[next(iter(self._kept))]
            try:
                found = Recording(function, arguments, self._record)
                difference = _difference(found.launch(), plain(*arguments))
            # Of CUDA; no memory; no library; a library or a CuPy without the function.
            except (RuntimeError, MemoryError, OSError, AttributeError) as error:
                self._give_up(f"{type(error).__name__}: {error}")
                return None
            if not difference <= tolerance:
                self._give_up(f"what a graph computes is off by {difference:.2g}")
                return None
        self._kept[key] = found  # the last one used is at the end
        found.load(*arguments)
        return found

    def _give_up(self, reason: str) -> None:
        self._has_failed = True
        self._kept.clear()
        warnings.warn(f"no CUDA graphs, kernels are launched one by one: {reason}", stacklevel=3)


def _difference(values: Array, expected: Array) -> float:
    """The largest, of the largest number expected; of those that are finite where they should be."""
    xp = array_namespace(values)
    counts = xp.isfinite(expected)
    scale = xp.where(counts, xp.abs(expected), 0).max()
    return float(xp.where(counts, xp.abs(values - expected), 0).max() / xp.maximum(scale, 1e-300))
