"""Recording of a stream's work as a graph, which a launch repeats on the same memory.

By CUDA's rules nothing runs meanwhile: what computes a new array is run once for its shape, and the result is
filled with wrong numbers; what changes an array is not run at all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.standin_cupy.memory import Memory, Stream, garbage

Step = Callable[[], Any]


class MemoryPool:
    """cupy.cuda.MemoryPool, of which the stand-in only knows who uses it."""

    def malloc(self, size: int) -> Any:
        raise NotImplementedError("stand-in: memory without an array")


class Graph:
    """cupy.cuda.Graph."""

    def __init__(
        self, steps: list[Step], pool: MemoryPool | None, outside: list[weakref.ref[Memory]]
    ) -> None:
        self._steps, self._outside = steps, outside
        self._pool = None if pool is None else weakref.ref(pool)

    def launch(self, stream: Stream | None = None) -> None:
        if self._pool is not None and self._pool() is None:
            raise AssertionError("a graph is launched whose memory pool is gone")
        if any(memory() is None for memory in self._outside):
            raise AssertionError("a graph is launched that uses an array which is gone")
        for step in self._steps:
            step()


class _Recording:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.pool: MemoryPool | None = None
        self.inside: list[Memory] = []
        self.outside: dict[int, weakref.ref[Memory]] = {}

    def use(self, memories: Iterable[Memory]) -> None:
        for memory in memories:
            if all(memory is not other for other in self.inside):
                self.outside[id(memory)] = weakref.ref(memory)

    def allocate(self, memory: Memory) -> None:
        if _allocators[-1] is None or self.pool not in (None, _allocators[-1]):
            raise AssertionError("arrays of a graph must come from one memory pool of its own")
        self.pool = _allocators[-1]
        self.inside.append(memory)


_recordings: dict[Stream, _Recording] = {}
_allocators: list[MemoryPool | None] = [None]


def recording() -> _Recording | None:
    """The recording of the current stream, if it is being captured."""
    return _recordings.get(Stream.current[-1])


def begin(stream: Stream) -> None:
    if stream is Stream.null or Stream.current[-1] is not stream:
        raise RuntimeError(
            "cudaErrorStreamCaptureUnsupported: only the current stream, and not the null stream"
        )
    if stream in _recordings:
        raise RuntimeError("cudaErrorIllegalState: the stream is captured already")
    _recordings[stream] = _Recording()


def end(stream: Stream) -> Graph:
    captured = _recordings.pop(stream, None)
    if captured is None:
        raise RuntimeError("cudaErrorIllegalState: the stream is not captured")
    return Graph(captured.steps, captured.pool, list(captured.outside.values()))


def refuse(what: str) -> None:
    """Raise what CuPy raises for a call that it does not make on a captured stream."""
    if recording() is not None:
        raise NotImplementedError(f"calling {what} during stream capture is currently unsupported")


def change(step: Step, memories: Iterable[Memory]) -> None:
    """Run a step that changes arrays, or record it."""
    captured = recording()
    if captured is None:
        step()
    else:
        captured.steps.append(step)
        captured.use(memories)


def note(step: Callable[[], Any], result: Any, sources: Iterable[Memory]) -> None:
    """Record the step that computed new memory, given as the stand-in's array; views need no step."""
    captured, sources = recording(), list(sources)
    if captured is None:
        return
    captured.use(sources)
    for place, array in enumerate(result if isinstance(result, tuple | list) else [result]):
        if any(array._memory is memory for memory in sources):
            continue
        captured.allocate(array._memory)
        values = garbage(array._values)

        def repeat(values: Any = values, place: int = place) -> None:
            computed = step()
            values[...] = computed[place] if isinstance(result, tuple | list) else computed

        captured.steps.append(repeat)


@contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    """cupy.cuda.using_allocator, with the method of a pool."""
    pool = getattr(allocator, "__self__", None)
    if allocator is not None and not isinstance(pool, MemoryPool):
        raise NotImplementedError("stand-in: an allocator that is no pool's")
    _allocators.append(pool)
    try:
        yield
    finally:
        _allocators.pop()
