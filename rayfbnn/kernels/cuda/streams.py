"""The random numbers of streams.py, drawn by kernels in one launch for each request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.cuda.build import Build, build_once
from rayfbnn.streams import Purpose, Streams, Use

SOURCE = (Path(__file__).parent / "source" / "random.cu").read_text()
_THREADS = 128


@dataclass(frozen=True)
class DeviceStreams(Streams):
    """Streams of chains on a device: words and uniforms as in `Streams` bit for bit, the rest to rounding.

    In array code a request takes dozens of launches, and a rejection loop waits after every round to learn
    whether all chains are done.

    build  compiles the source, by default for the current device
    """

    build: Build = build_once

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
        return self._draw("uniforms", self._use(purpose, index, attempt), shape)

    def normal(
        self, purpose: Purpose, shape: tuple[int, ...] = (), *, index: int = 0, attempt: int = 0
    ) -> Array:
        """Draw the numbers of Streams.normal, to rounding."""
        return self._draw("normals", self._use(purpose, index, attempt), shape, per_thread=2)

    def log_gamma(
        self,
        gamma_shape: Array | float,
        purpose: Purpose,
        shape: tuple[int, ...] = (),
        *,
        index: int = 0,
        first: int = 0,
    ) -> Array:
        """Draw the numbers of Streams.log_gamma, to rounding; NaN where it would give up."""
        if first > 0:
            return super().log_gamma(gamma_shape, purpose, shape, index=index, first=first)
        return self._draw("log_gammas", self._use(purpose, index, 0), shape, gamma_shape)

    def log_gammas(self, gamma_shapes: Array, uses: Sequence[Use]) -> Array:
        """Draw the numbers of Streams.log_gammas, in one launch for each use."""
        ends = [0, *accumulate(use.n for use in uses)]
        drawn = [
            self.log_gamma(
                gamma_shapes[:, start : start + use.n],
                use.purpose,
                (use.n,),
                index=use.index,
                first=use.first,
            )
            for start, use in zip(ends, uses, strict=False)
        ]
        return array_namespace(self.chains).concatenate(drawn, axis=1)

    def hyperbolic(self, a: Array | float, omega: Array, purpose: Purpose, *, index: int) -> Array:
        """Draw the numbers of hyperbolic_variable, to rounding; NaN where it would give up."""
        return self._draw("hyperbolics", self._use(purpose, index, 0), omega.shape[1:], a, omega)

    def polya_gamma(self, z: Array, purpose: Purpose, *, index: int) -> Array:
        """Draw the numbers of polya_gamma, to rounding; NaN where it would give up."""
        return self._draw("polya_gammas", self._use(purpose, index, 0), z.shape[1:], z)

    def permutation(self, n: int, purpose: Purpose) -> Array:
        """Draw the numbers of Streams.permutation. CuPy's argsort would wait for the device."""
        values = self.uniform(purpose, (n,))
        result = array_namespace(values).empty(values.shape, dtype=np.int64)
        kernel = self.build(SOURCE, "sorted_places", 0)
        arguments = (values, np.int32(self.n_chains), np.int32(n), result)
        kernel((-(-result.size // _THREADS),), (_THREADS,), arguments)
        return result

    def shuffle(self, n: int, purpose: Purpose) -> Array:
        """Draw the permutations of Streams.shuffle."""
        xp = array_namespace(self.chains)
        order = xp.empty((self.n_chains, n), dtype=np.int32)
        arguments: list[Any] = [np.uint32(word) for word in self.place(purpose)]
        arguments += [xp.ascontiguousarray(self.chains, dtype=xp.uint64)]
        arguments += [np.int32(self.n_chains), np.int32(n), np.int32(1), order]
        kernel = self.build(SOURCE, "shuffles", 0)
        kernel((-(-self.n_chains // _THREADS),), (_THREADS,), arguments)
        return order

    def _draw(
        self, name: str, use: int, shape: tuple[int, ...], *values: Array | float, per_thread: int = 1
    ) -> Array:
        """Draw numbers for each chain, (n_chains, *shape); `values` are broadcast to this shape."""
        xp, n = array_namespace(self.chains), math.prod(shape)
        result = xp.empty((self.n_chains, *shape))
        n_threads = self.n_chains * -(-n // per_thread)
        if n_threads == 0:
            return result
        full = [
            xp.full(result.shape, float(value))  # created on the device
            if isinstance(value, int | float)
            else xp.broadcast_to(value, result.shape)
            for value in values
        ]
        arguments: list[Any] = [np.uint32(word) for word in (self.seed, use, self.operation, self.iteration)]
        arguments += [xp.ascontiguousarray(self.chains, dtype=xp.uint64)]
        arguments += [np.int32(self.n_chains), np.int32(n)]
        arguments += [xp.ascontiguousarray(value, dtype=xp.float64) for value in full]
        kernel = self.build(SOURCE, name, 0)
        kernel((-(-n_threads // _THREADS),), (_THREADS,), (*arguments, result))
        return result
