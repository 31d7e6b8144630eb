"""The random numbers of many chains in a test, by compiled code where the extension is installed."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.streams import Streams


def chain_streams(seed: int, n_chains: int, *, iteration: int = 0) -> Streams:
    """Return the streams of chains 0 to n_chains - 1 on the host: compiled or not, the same bits."""
    return streams_on_array(seed, np.arange(n_chains, dtype=np.uint64), iteration=iteration)


def streams_on_array(seed: int, chains: Array, *, iteration: int = 0) -> Streams:
    """Return the streams of the chains in an array, in array code if that is not one of NumPy's."""
    streams = choose.streams_class("cpu") if isinstance(chains, np.ndarray) else Streams
    return streams(seed, chains, iteration)
