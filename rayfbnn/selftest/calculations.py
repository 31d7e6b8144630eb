"""The exact tests of `selftest`: random numbers, gradients, agreement with plain NumPy, reversal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np

from rayfbnn.arrays import Array, to_host
from rayfbnn.kernels import choose
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.orders import reversed_order
from rayfbnn.numerals import compared
from rayfbnn.selftest.problems import DTYPES, PROBLEMS, exact_start, started
from rayfbnn.state import Advance, ChainState, Target, Trajectory
from rayfbnn.streams import Purpose, Streams, philox

Judgement = tuple[str, str, bool]  # the value, the allowed values, whether the value is ok
# Distance between the points of a difference, in stepsizes: the largest error over 300 seeds is 1e-7 of the
# largest derivative.
_DIFFERENCE = 1e-3


def known_answers(xp: ModuleType) -> Judgement:
    """Compare Philox4x32-10 with the known answers in the file kat_vectors of Random123."""
    wrong = 0
    for counter, key, expected in KNOWN_ANSWERS:
        words = [xp.full(1, word, dtype=xp.uint64) for word in (*counter, *key)]
        answer = philox((words[0], words[1], words[2], words[3]), (words[4], words[5]))
        wrong += [int(to_host(word)[0]) for word in answer] != list(expected)
    return f"{wrong} wrong", "0 wrong", wrong == 0


KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def gradient_of(name: str, xp: ModuleType, seed: int) -> Judgement:
    """Compare the gradient with central differences of the potential from five points.

    Coordinates are scaled by the stepsizes. The value is the largest error, relative to the largest
    derivative of the chain.
    """
    target, state = started(name, xp, seed)
    stepsizes = target.stepsizes(state.precisions)
    _, gradient = target.potential_and_gradient(state.position, state.precisions)
    gradient = gradient * stepsizes
    largest, worst = abs(gradient).max(axis=1), 0.0
    for parameter in range(target.n_parameters):
        step = xp.zeros_like(state.position)
        step[:, parameter] = _DIFFERENCE * stepsizes[:, parameter]
        near, far = (
            target.potential(state.position + n * step, state.precisions)
            - target.potential(state.position - n * step, state.precisions)
            for n in (1, 2)
        )
        error = abs((8 * near - far) / (12 * _DIFFERENCE) - gradient[:, parameter]) / largest
        worst = max(worst, float(error.max()))
    return _at_most(worst, 1e-6)


def agreement_of(name: str, xp: ModuleType, seed: int) -> Judgement:
    """Compare potentials, gradients and short trajectories with NumPy's array code in float64.

    They are computed in float32 and float64, by array code and by the kernel that runs trajectories here.
    """
    problem, streams = PROBLEMS[name], Streams(seed, np.arange(20, dtype=np.uint64))
    plain = problem.posterior(np, "float64")
    state, data = exact_start(plain, streams)
    target, start = problem.moved(plain.with_targets(data), state, streams)
    stepsizes = 0.3 * target.stepsizes(start.precisions)
    arrays = start.position, start.momentum, start.precisions, stepsizes
    expected = *target.potential_and_gradient(start.position, start.precisions), *_short(target, arrays)
    worst = 0.0
    for dtype, scale in zip(DTYPES, (1e6, 1.0), strict=True):  # errors of 1e-9 and of 1e-3 are allowed
        posterior = problem.posterior(xp, dtype).with_targets(xp.asarray(data))
        streams_here = Streams(seed, xp.arange(20, dtype=xp.uint64))
        state_here = ChainState(*(xp.asarray(array) for array in vars(state).values()))
        target, _ = problem.moved(posterior, state_here, streams_here)
        # Precisions are always in float64.
        cast = [xp.asarray(array.astype(dtype)) for array in arrays]
        cast[2] = xp.asarray(arrays[2])
        advance, _ = choose.advance_for(posterior)
        computed = *target.potential_and_gradient(cast[0], cast[2]), *_short(target, cast, advance)
        for right, value in zip(expected, computed, strict=True):
            size = np.maximum(abs(right).reshape(len(right), -1).max(axis=1), 1.0)
            error = abs(to_host(value) - right).reshape(len(right), -1).max(axis=1) / size
            worst = max(worst, scale * float(error.max()))
    return _at_most(worst, 1e-3)


def _short(
    target: Target, arrays: Sequence[Array], advance: Advance = leapfrog.advance
) -> tuple[Array, Array, Array]:
    """Return position, momentum and potential after two steps."""
    end, potential = advance(target, Trajectory(*arrays), n_steps=2)
    return end.position, end.momentum, potential


def reversal_of(name: str, xp: ModuleType, seed: int) -> Judgement:
    """Take ten steps and ten back, with partial gradients if there are any, and compare with the start."""
    target, state = started(name, xp, seed)
    order = back_order = None
    if not PROBLEMS[name].over:
        order = Streams(seed, xp.arange(20, dtype=xp.uint64)).permutation(3, Purpose.PARTITION_ORDER)
        back_order = reversed_order(order)
    stepsizes = 0.3 * target.stepsizes(state.precisions)
    start = Trajectory(state.position, state.momentum, state.precisions, stepsizes)
    there, _ = leapfrog.advance(target, start, n_steps=10, order=order)
    back, _ = leapfrog.advance(target, replace(there, stepsizes=-stepsizes), n_steps=10, order=back_order)
    worst = max(abs(back.position - state.position).max(), abs(back.momentum - state.momentum).max())
    return _at_most(float(worst), 1e-8)


def _at_most(value: float, limit: float) -> Judgement:
    (text,), most = compared([value], limit, ".1e", ".0e")
    return text, f"below {most}", value < limit
