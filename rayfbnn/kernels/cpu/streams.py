"""The random numbers of streams.py, drawn by compiled code on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels.cpu import compiled_module
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class CompiledStreams(Streams):
    """Streams that draw the numbers of `Streams`: uniforms bit for bit, single precision to rounding.

    In NumPy ten rounds of Philox take some 150 calls for any number of chains. For small tables and networks
    that is a quarter of the time of an iteration.
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
        """Draw the numbers of Streams.uniform bit for bit; array code draws them if `first` is not 0."""
        if first > 0:
            return super().uniform(purpose, shape, index=index, attempt=attempt, first=first)
        values = np.empty((self.n_chains, prod(shape)))
        compiled_module.write_uniforms(self.place(purpose, index=index, attempt=attempt), self.chains, values)
        return values.reshape(self.n_chains, *shape)

    def single_normal(self, purpose: Purpose, shape: tuple[int, ...] = (), *, index: int = 0) -> Array:
        """Draw the numbers of Streams.single_normal to rounding, and those of the kernels bit for bit."""
        values = np.empty((self.n_chains, prod(shape)), dtype=np.float32)
        compiled_module.write_normals(self.place(purpose, index=index), self.chains, values)
        return values.reshape(self.n_chains, *shape)

    def shuffle(self, n: int, purpose: Purpose) -> Array:
        """Draw the permutations of Streams.shuffle."""
        order = np.empty((self.n_chains, n), dtype=np.int32)
        compiled_module.write_shuffles(self.place(purpose), self.chains, order[None])
        return order
