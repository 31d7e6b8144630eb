"""Numbers for operations inside an operation, which give each update of an iteration its own random numbers.

The number of an operation in a stream has 32 bits. The lower 17 distinguish all operations of an iteration,
including nested ones; a configuration has at most 100,000 of them. The upper 15 are the stage, which
distinguishes the repetitions of an inner operation.
"""

from __future__ import annotations

from dataclasses import replace

from rayfbnn.streams import Streams

_STAGE = 2**17
# No run reaches this stage, and so a run and its evidence share no random numbers even with the same seed.
ANNEALING = 2**15 - 1
LAST_STAGE = ANNEALING - 1


def at_stage(streams: Streams, stage: int, *, first_operation: int) -> Streams:
    """Return the streams of inner operations at one stage; stages count from 1.

    first_operation  the number of the first inner operation
    """
    assert 0 < stage <= ANNEALING and first_operation < _STAGE
    return replace(streams, operation=stage * _STAGE + first_operation)
