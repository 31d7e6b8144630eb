"""Numbers for operations inside an operation, so that no two updates of an iteration share random numbers.

A stream's number of the operation has 32 bits. The lower 17 tell apart all operations of an iteration, those
inside others too, of which a configuration has at most 100,000; the upper 15 tell apart the times that an
inner operation is done.
"""

from __future__ import annotations

from dataclasses import replace

from rayfbnn.streams import Streams

_STAGE = 2**17
ANNEALING = 2**15 - 1  # a stage that no run reaches: with the same seed a run and its evidence share nothing
LAST_STAGE = ANNEALING - 1


def at_stage(streams: Streams, stage: int, *, first_operation: int) -> Streams:
    """The random numbers of inner operations, the first one numbered first_operation; stages count from 1."""
    assert 0 < stage <= ANNEALING and first_operation < _STAGE
    return replace(streams, operation=stage * _STAGE + first_operation)
