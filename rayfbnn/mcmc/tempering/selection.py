"""Functions that take some chains out of a batch and put them back. Chains do not depend on their batch."""

from __future__ import annotations

from dataclasses import replace

from rayfbnn.arrays import Array
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams


def taken(state: ChainState, streams: Streams, chosen: Array) -> tuple[ChainState, Streams]:
    """Return the state and streams of the chains that `chosen` selects, by a mask or by indices."""
    part = ChainState(state.position[chosen], state.momentum[chosen], state.precisions[chosen])
    return part, replace(streams, chains=streams.chains[chosen])


def put_back(state: ChainState, part: ChainState, chosen: Array) -> ChainState:
    """Return a copy of the state with the chains that `chosen` selects replaced by the chains of `part`."""
    whole = ChainState(state.position.copy(), state.momentum.copy(), state.precisions.copy())
    whole.position[chosen] = part.position
    whole.momentum[chosen] = part.momentum
    whole.precisions[chosen] = part.precisions
    return whole
