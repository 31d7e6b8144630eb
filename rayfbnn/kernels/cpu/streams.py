"""The random numbers of streams.py on a CPU, from compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels.cpu import extension
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class CompiledStreams(Streams):
    """Streams that draw the same numbers: uniform ones bit for bit, those of single precision to rounding.

    In NumPy ten rounds of Philox are some 150 calls, whatever the number of chains: a quarter of the time of
    an iteration where tables and networks are small.
    """

    def uniform(
        self,
        purpose: Purpose,
        shape: tuple[int, ...] = (),
        *,
        index: int = 0,
        attempt: int = 0,
        first: int = 0,
    ) -> Array:
        """Draw what Streams.uniform draws, bit for bit; in array code if it is not from the first number."""
        if first > 0:
            return super().uniform(purpose, shape, index=index, attempt=attempt, first=first)
        values = np.empty((self.n_chains, prod(shape)))
        extension.write_uniforms(self.place(purpose, index=index, attempt=attempt), self.chains, values)
        return values.reshape(self.n_chains, *shape)

    def single_normal(self, purpose: Purpose, shape: tuple[int, ...] = (), *, index: int = 0) -> Array:
        """Draw what Streams.single_normal draws, to rounding, and what kernels draw, to the bit."""
        values = np.empty((self.n_chains, prod(shape)), dtype=np.float32)
        extension.write_normals(self.place(purpose, index=index), self.chains, values)
        return values.reshape(self.n_chains, *shape)

    def shuffles(self, n: int, purpose: Purpose, n_iterations: int) -> Array:
        """Draw what Streams.shuffles draws."""
        orders = np.empty((n_iterations, self.n_chains, n), dtype=np.int32)
        extension.write_shuffles(self.place(purpose), self.chains, orders)
        return orders
