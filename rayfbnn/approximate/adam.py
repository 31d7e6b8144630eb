"""Steps of a first-order optimiser: Adam, or plain gradient descent."""

from __future__ import annotations

import math

from rayfbnn.arrays import Array, array_namespace

FIRST_DECAY, SECOND_DECAY, SMALL = 0.9, 0.999, 1e-8


def adam(gradient: Array, first: Array, second: Array, *, number: int) -> tuple[Array, Array, Array]:
    """Return the direction of step `number`, counted from 1, and the two moments after it.

    Kingma and Ba (2015), with decays 0.9 and 0.999. `first` and `second` are zeros before the first step. All
    arrays have the shape of the gradient. The new position is the old one minus the rate times the direction.
    """
    xp = array_namespace(gradient)
    first = FIRST_DECAY * first + (1 - FIRST_DECAY) * gradient
    second = SECOND_DECAY * second + (1 - SECOND_DECAY) * gradient**2
    scale = xp.sqrt(second / (1 - SECOND_DECAY**number)) + SMALL
    return first / (1 - FIRST_DECAY**number) / scale, first, second


def cosine_rate(rate: float, *, number: int, steps: int) -> float:
    """Return the rate of step `number`, counted from 1, which falls from `rate` to zero along a cosine."""
    return rate * (1 + math.cos(math.pi * (number - 1) / steps)) / 2
