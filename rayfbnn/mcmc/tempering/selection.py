"""Some chains of a batch, taken out and put back. Chains do not depend on their batch."""

from __future__ import annotations

from dataclasses import replace

from rayfbnn.arrays import Array
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams


def taken(state: ChainState, streams: Streams, chosen: Array) -> tuple[ChainState, Streams]:
    """Return state and streams of the chains that `chosen` selects, by a mask or by their places."""
    part = ChainState(state.position[chosen], state.momentum[chosen], state.precisions[chosen])
    return part, replace(streams, chains=streams.chains[chosen])


def put_back(state: ChainState, part: ChainState, chosen: Array) -> ChainState:
    """Return a copy of the state in which the chains that `chosen` selects are those of `part`."""
    whole = ChainState(state.position.copy(), state.momentum.copy(), state.precisions.copy())
    whole.position[chosen] = part.position
    whole.momentum[chosen] = part.momentum
    whole.precisions[chosen] = part.precisions
    return whole
