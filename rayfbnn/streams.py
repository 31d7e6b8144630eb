"""Random numbers that depend only on seed, chain, iteration, operation and purpose.

The generator is counter-based: Philox4x32-10 of Salmon, Moraes, Dror and Shaw (2011), "Parallel random
numbers: as easy as 1, 2, 3". The key is (seed, chain); the counter is (block, purpose with index and attempt,
operation, iteration). The numbers of all chains of a batch are drawn at once, in NumPy or CuPy. A chain's
numbers do not depend on the other chains in its batch, on the worker, or on interruptions of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol, runtime_checkable

from rayfbnn.arrays import Array, array_namespace

MAX_SEED = 2**32 - 1
# Six bits of the counter. A loop that accepts one in two needs more than 64 rounds once in 10**19 times.
_MAX_ATTEMPTS = 64
SHARED = 2**32 - 1  # a number that no chain has, for the draws that all chains of a run share
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ABOVE_MINUS_ONE = -1 + 2.0**-53  # the smallest float64 above -1
_FEWER_ROUNDS = 7  # Philox4x32 passes all tests of Salmon and others with seven rounds


class Purpose(IntEnum):
    """The use of a random number. Never change a value: the draws of every stored run depend on it."""

    INITIAL_PRECISION = 1
    INITIAL_PARAMETER = 2
    MOMENTUM = 3
    ACCEPT = 4
    WINDOW_OFFSET = 5
    WINDOW_STATE = 6
    PARTITION_ORDER = 7
    STEPSIZE = 8
    PROPOSAL = 9
    NOISE_CASE = 10
    NOISE_TARGET = 11
    NOISE_COMMON = 12
    PRECISION_PARAMETER = 13
    PRECISION_UNIT = 14
    PRECISION_COMMON = 15
    TARGET_VALUE = 16
    REJECTION_ACCEPT = 17
    COORDINATE = 20
    SLICE_LEVEL = 21
    SLICE_INTERVAL = 22
    SLICE_POINT = 23
    GRID = 24
    OUTPUT_WEIGHT = 30
    OUTPUT_RESIDUAL = 31
    POLYA_GAMMA = 40
    PERMUTATION = 50
    MINIBATCH = 60
    FRICTION = 61
    VARIATIONAL = 62
    CASE_ORDER = 63
    START = 64
    APPROXIMATE_DRAW = 65
    SHUFFLE = 66
    PLACE = 67


@dataclass(frozen=True)
class Use:
    """A request for n values of each chain; purpose, index and first are those of `Streams.log_gamma`."""

    purpose: Purpose
    index: int
    n: int
    first: int = 0


@dataclass(frozen=True)
class Streams:
    """The random numbers for a batch of chains at one operation of one iteration.

    seed       from 0 to 2**32 - 1
    chains     (n_chains,) uint64: the numbers of the batch's chains in the run
    iteration  counted from 1 through all phases; 0 is for the initial state
    operation  number of the operation in the iteration, with `repeat` written out
    """

    seed: int
    chains: Array
    iteration: int = 0
    operation: int = 0

    @property
    def n_chains(self) -> int:
        """Number of chains in the batch."""
        return int(self.chains.shape[0])

    def at(self, *, iteration: int, operation: int = 0) -> Streams:
        """Return the streams at another iteration and operation."""
        streams = object.__new__(type(self))  # a sixth of the time of `replace`, once for each update
        vars(streams).update(vars(self), iteration=iteration, operation=operation)
        return streams

    def of_some(self, rows: Array) -> Streams:
        """Return the streams of some of the chains, by a mask or by their places in the batch."""
        return replace(self, chains=self.chains[rows])

    def uniform(
        self,
        purpose: Purpose,
        shape: tuple[int, ...] = (),
        *,
        index: int = 0,
        attempt: int = 0,
        first: int = 0,
    ) -> Array:
        """Draw uniform numbers in the open interval (0, 1): float64, (n_chains, *shape).

        index    below 2**18; distinguishes several uses for the same purpose
        attempt  below 64; distinguishes the rounds of a rejection loop
        first    an even number: where the result begins in a longer request with the same numbers
        """
        assert first % 2 == 0, "a block of the counter has two numbers"
        xp = array_namespace(self.chains)
        n = math.prod(shape)
        blocks = range(first // 2, first // 2 + (n + 1) // 2)
        words = philox(self._counter(purpose, index, attempt, blocks=blocks), self._key())
        # 52 random bits, and a half added: neither 0 nor 1 can come from rounding, so logarithms are finite.
        high = xp.stack([words[0], words[2]], axis=-1) >> xp.uint64(6)
        low = xp.stack([words[1], words[3]], axis=-1) >> xp.uint64(6)
        values = (high * 67108864.0 + low + 0.5) / 4503599627370496.0
        return values.reshape(self.n_chains, -1)[:, :n].reshape(self.n_chains, *shape)

    def normal(self, purpose: Purpose, shape: tuple[int, ...] = (), *, index: int = 0) -> Array:
        """Draw standard normal numbers by the Box-Muller transform: float64, (n_chains, *shape)."""
        xp = array_namespace(self.chains)
        n = math.prod(shape)
        pairs = self.uniform(purpose, ((n + 1) // 2, 2), index=index)
        radius = xp.sqrt(-2 * xp.log(pairs[..., 0]))
        angle = (2 * math.pi) * pairs[..., 1]
        values = xp.empty_like(pairs)
        values[..., 0] = radius * xp.cos(angle)
        values[..., 1] = radius * xp.sin(angle)
        return values.reshape(self.n_chains, -1)[:, :n].reshape(self.n_chains, *shape)

    def single_normal(self, purpose: Purpose, shape: tuple[int, ...] = (), *, index: int = 0) -> Array:
        """Draw standard normal numbers of single precision: float32, (n_chains, *shape).

        A block of the counter makes four of them, from two pairs of words w, x of 32 random bits, by the
        Box-Muller transform: u = (w/2 + 1/2)/2**31 with w/2 rounded down gives the radius; the bits of x but
        the lowest give an angle between -pi/2 and pi/2, and the lowest bit the sign of its cosine. Each
        number takes the place of a word, see `_in_groups`. All numbers lie within 6.66 of 0; for a standard
        normal variable the probability of a number outside is 1 in 4e10.
        """
        xp = array_namespace(self.chains)
        n = math.prod(shape)
        words = self._words(n, purpose, index)
        numbers = []
        for w, x in (words[:2], words[2:]):
            radius = xp.sqrt(-2 * xp.log(((w >> xp.uint64(1)) + 0.5) / 2.0**31))
            signed = ((x | xp.uint64(1)) + 0.0 + 2.0**31) % 2.0**32 - 2.0**31
            angle = (math.pi / 2) * signed / 2.0**31
            sign = 1 - 2.0 * (x & xp.uint64(1))
            numbers += [radius * sign * xp.cos(angle), radius * xp.sin(angle)]
        values = _in_groups(xp.stack(numbers, axis=1)).astype(xp.float32)
        return values[:, :n].reshape(self.n_chains, *shape)

    def place(self, purpose: Purpose, *, index: int = 0, attempt: int = 0) -> tuple[int, int, int, int]:
        """Return the place of the numbers for compiled code: seed, use, operation, iteration.

        The use of the next index is larger by 2**14.
        """
        return self.seed, self._use(purpose, index, attempt), self.operation, self.iteration

    def log_gamma(
        self,
        gamma_shape: Array | float,
        purpose: Purpose,
        shape: tuple[int, ...] = (),
        *,
        index: int = 0,
        first: int = 0,
    ) -> Array:
        """Draw logarithms of Gamma(gamma_shape, rate 1) variables: float64, (n_chains, *shape).

        The method is that of Marsaglia and Tsang (2000), "A simple method for generating gamma variables".
        For shapes below one, Gamma(a) = Gamma(a + 1) U**(1/a). The logarithm stays finite if the variable
        itself would underflow (shape 0.0005 is in Neal's examples). gamma_shape is broadcast to (n_chains,
        *shape).

        first  where the result begins in a longer request with the same values
        """
        xp, use = array_namespace(self.chains), Use(purpose, index, math.prod(shape), first)
        shapes = xp.empty((self.n_chains, *shape))
        shapes[...] = gamma_shape
        return self.log_gammas(shapes.reshape(self.n_chains, -1), [use]).reshape(shapes.shape)

    def log_gammas(self, gamma_shapes: Array, uses: Sequence[Use]) -> Array:
        """Draw the numbers of `log_gamma` for several uses side by side, in one rejection loop.

        gamma_shapes and the result are (n_chains, n) float64, where n is the sum of the uses' n.
        """
        xp, a = array_namespace(self.chains), gamma_shapes
        is_small = a < 1
        has_small = bool(is_small.any())
        d = (xp.where(is_small, a + 1, a) if has_small else a) - 1 / 3
        c = 1 / xp.sqrt(9 * d)
        log_d = xp.log(d)
        u = self._uniforms(uses, attempt=0)
        log_v, accepted = _gamma_proposal(d, c, u)
        result, pending = log_d + log_v, ~accepted
        boost = xp.where(is_small, xp.log(u[..., 3]) / a, 0.0) if has_small else 0.0
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            if not bool(pending.any()):
                return result + boost
            if attempt == _MAX_ATTEMPTS:
                break
            # Only chains that still lack a value continue; they are few after the first round.
            rows = xp.flatnonzero(pending.any(axis=1))
            u = self.of_some(rows)._uniforms(uses, attempt=attempt)
            log_v, accepted = _gamma_proposal(d[rows], c[rows], u)
            accepted &= pending[rows]
            result[rows] = xp.where(accepted, log_d[rows] + log_v, result[rows])
            pending[rows] &= ~accepted
        raise AssertionError("64 proposals of Marsaglia and Tsang rejected in a row: probability below 1e-80")

    def _uniforms(self, uses: Sequence[Use], *, attempt: int) -> Array:
        """Draw four uniform numbers for each value of each use, (n_chains, n, 4)."""
        drawn = [
            self.uniform(use.purpose, (use.n, 4), index=use.index, attempt=attempt, first=4 * use.first)
            for use in uses
        ]
        return drawn[0] if len(drawn) == 1 else array_namespace(self.chains).concatenate(drawn, axis=1)

    def integers(self, high: int, purpose: Purpose, shape: tuple[int, ...] = ()) -> Array:
        """Draw uniform integers from 0 to high - 1: int64, (n_chains, *shape)."""
        xp = array_namespace(self.chains)
        return xp.floor(self.uniform(purpose, shape) * high).astype(xp.int64)

    def permutation(self, n: int, purpose: Purpose) -> Array:
        """Draw a random permutation of 0 to n - 1 for each chain, by a sort: int64, (n_chains, n)."""
        return array_namespace(self.chains).argsort(self.uniform(purpose, (n,)), axis=1)

    def shuffle(self, n: int, purpose: Purpose) -> Array:
        """Draw a random permutation of 0 to n - 1 for each chain, by swaps: int32, (n_chains, n).

        The method is that of Fisher and Yates, in the form of Knuth (The Art of Computer Programming, section
        3.4.2, algorithm P), from the other end. Number k goes to a random place from 0 to k, and the number
        at that place moves to place k. The place is w (k + 1)/2**32 rounded down, for a word w of 32 random
        bits, which gives probabilities accurate to one part in 2**32/n. Compiled code needs a fifth of a
        sort's time.
        """
        xp = array_namespace(self.chains)
        words = _in_groups(xp.stack(self._words(n, purpose), axis=1))[:, :n]
        places = (words * xp.arange(1, n + 1, dtype=xp.uint64) >> xp.uint64(32)).astype(xp.int64)
        order = xp.zeros(places.shape, dtype=xp.int32)
        rows = xp.arange(self.n_chains)
        for k in range(n):
            order[:, k] = order[rows, places[:, k]]
            order[rows, places[:, k]] = k
        return order

    def _words(self, n: int, purpose: Purpose, index: int = 0) -> tuple[Array, Array, Array, Array]:
        """Draw at least n words of 32 bits by fewer rounds: four arrays (n_chains, n_blocks) of words."""
        counter = self._counter(purpose, index, 0, blocks=range((n + 63) // 64 * 16))
        return philox(counter, self._key(), rounds=_FEWER_ROUNDS)

    def _key(self) -> tuple[Array, Array]:
        xp = array_namespace(self.chains)
        return xp.uint64(self.seed), self.chains[:, None].astype(xp.uint64)

    def _counter(
        self, purpose: Purpose, index: int, attempt: int, *, blocks: range
    ) -> tuple[Array, Array, Array, Array]:
        xp = array_namespace(self.chains)
        use = self._use(purpose, index, attempt)
        numbers = xp.arange(blocks.start, blocks.stop, dtype=xp.uint64)
        of_chains = xp.broadcast_to(numbers, (self.n_chains, len(blocks)))
        return of_chains, xp.uint64(use), xp.uint64(self.operation), xp.uint64(self.iteration)

    def _use(self, purpose: Purpose, index: int, attempt: int) -> int:
        """Return the word of the counter that holds purpose, index and attempt."""
        use = int(purpose) | attempt << 8 | index << 14
        if not (use <= _MASK and attempt < _MAX_ATTEMPTS and self.iteration <= _MASK):
            raise ValueError(f"stream counter out of range: {index=}, {attempt=}, {self.iteration=}")
        return use


def _in_groups(values: Array) -> Array:
    """Put values from the four words of each block, (n_chains, 4, n_blocks), in the order of compiled code.

    Groups of 64 come from 16 blocks each: value 16 j + i of a group is the j-th of its block i.
    """
    return values.reshape(len(values), 4, -1, 16).swapaxes(1, 2).reshape(len(values), -1)


def _gamma_proposal(d: Array, c: Array, u: Array) -> tuple[Array, Array]:
    """Return log(v) of Marsaglia and Tsang's proposal d v, and whether it is accepted; u is (..., 4)."""
    xp = array_namespace(u)
    logs = xp.log(u)
    z = xp.sqrt(-2 * logs[..., 0]) * xp.cos((2 * math.pi) * u[..., 1])
    cz = c * z
    log_v = 3 * xp.log1p(xp.maximum(cz, _ABOVE_MINUS_ONE))
    v = xp.exp(log_v)
    accepted = (cz > -1) & (logs[..., 2] < z * z / 2 + d * (1 - v + log_v))
    return log_v, accepted


@runtime_checkable
class RejectingStreams(Protocol):
    """Streams that run whole rejection loops on a device, where the host does not wait after each round."""

    def hyperbolic(self, a: Array | float, omega: Array, purpose: Purpose, *, index: int) -> Array:
        """Draw the variables of model/updates/hyperbolic.py."""

    def polya_gamma(self, z: Array, purpose: Purpose, *, index: int) -> Array:
        """Draw the variables of model/likelihood/binary.py."""


def philox(
    counter: tuple[Array, Array, Array, Array], key: tuple[Array, Array], *, rounds: int = 10
) -> tuple[Array, Array, Array, Array]:
    """Apply `rounds` rounds of Philox4x32 to a counter; return four words below 2**32, as uint64.

    The words have the shape of counter[0].
    """
    xp = array_namespace(counter[0])
    mask, half = xp.uint64(_MASK), xp.uint64(32)
    multiplier_0, multiplier_1 = xp.uint64(_MULTIPLIERS[0]), xp.uint64(_MULTIPLIERS[1])
    weyl_0, weyl_1 = xp.uint64(_WEYL[0]), xp.uint64(_WEYL[1])
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for round_number in range(rounds):
        if round_number > 0:
            k0, k1 = (k0 + weyl_0) & mask, (k1 + weyl_1) & mask
        product_0, product_1 = multiplier_0 * c0, multiplier_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> half) ^ c1 ^ k0,
            product_1 & mask,
            (product_0 >> half) ^ c3 ^ k1,
            product_0 & mask,
        )
    return c0, c1, c2, c3
