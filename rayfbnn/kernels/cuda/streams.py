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
        return self._draw("uniforms", self.place(purpose, index=index, attempt=attempt), shape)

    def normal(self, purpose: Purpose, shape: tuple[int, ...] = (), *, index: int = 0) -> Array:
        """Draw the numbers of Streams.normal, to rounding."""
        return self._draw("normals", self.place(purpose, index=index), shape, per_thread=2)

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
        return self._draw("log_gammas", self.place(purpose, index=index), shape, gamma_shape)

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
        return self._draw("hyperbolics", self.place(purpose, index=index), omega.shape[1:], a, omega)

    def polya_gamma(self, z: Array, purpose: Purpose, *, index: int) -> Array:
        """Draw the numbers of polya_gamma, to rounding; NaN where it would give up."""
        return self._draw("polya_gammas", self.place(purpose, index=index), z.shape[1:], z)

    def permutation(self, n: int, purpose: Purpose) -> Array:
        """Draw the numbers of Streams.permutation. CuPy's argsort would wait for the device."""
        values = self.uniform(purpose, (n,))
        result = array_namespace(values).empty(values.shape, dtype=np.int64)
        self._launch("sorted_places", result.size, values, np.int32(self.n_chains), np.int32(n), result)
        return result

    def shuffle(self, n: int, purpose: Purpose) -> Array:
        """Draw the permutations of Streams.shuffle."""
        order = array_namespace(self.chains).empty((self.n_chains, n), dtype=np.int32)
        self._launch("shuffles", self.n_chains, *self._at(self.place(purpose), n), np.int32(1), order)
        return order

    def _launch(self, name: str, n_threads: int, *arguments: Any) -> None:
        self.build(SOURCE, name, 0)((-(-n_threads // _THREADS),), (_THREADS,), arguments)

    def _at(self, place: tuple[int, ...], n: int) -> list[Any]:
        """Return the arguments that name a place, the chains, and n numbers for each chain."""
        chains = array_namespace(self.chains).ascontiguousarray(self.chains, dtype=np.uint64)
        return [*(np.uint32(word) for word in place), chains, np.int32(self.n_chains), np.int32(n)]

    def _draw(
        self,
        name: str,
        place: tuple[int, ...],
        shape: tuple[int, ...],
        *values: Array | float,
        per_thread: int = 1,
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
            else xp.ascontiguousarray(xp.broadcast_to(value, result.shape), dtype=xp.float64)
            for value in values
        ]
        self._launch(name, n_threads, *self._at(place, n), *full, result)
        return result
