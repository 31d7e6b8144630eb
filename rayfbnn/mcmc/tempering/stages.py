"""Numbers for operations inside an operation, so that no two updates of an iteration share random numbers.

The number of an operation in a stream has 32 bits. The lower 17 tell apart all operations of an iteration,
including those inside others; a configuration has at most 100,000 of them. The upper 15 are the stage, which
tells apart the repetitions of an inner operation.
"""

from __future__ import annotations

from dataclasses import replace

from rayfbnn.streams import Streams

_STAGE = 2**17
# A stage that no run reaches, so that a run and its evidence share no random numbers with the same seed.
ANNEALING = 2**15 - 1
LAST_STAGE = ANNEALING - 1


def at_stage(streams: Streams, stage: int, *, first_operation: int) -> Streams:
    """Return the streams of inner operations at one stage; stages count from 1.

    first_operation  the number of the first inner operation
    """
    assert 0 < stage <= ANNEALING and first_operation < _STAGE
    return replace(streams, operation=stage * _STAGE + first_operation)
