"""The allowed ranges of a configuration's numbers, which keep precisions finite."""

from __future__ import annotations

import math

from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import PriorSpec
from rayfbnn.numerals import read_number

SCALE_RANGE = (1e-12, 1e12)  # of a width; its square times any n must stay inside float32's range
_ALPHA_RANGE = (1e-6, 1e6)  # below, a precision's logarithm overflows; above, alpha is practically infinite


def check_prior(key: str, text: str, prior: PriorSpec, *, n_sources: int) -> None:
    """Raise ConfigError naming `key` if a prior's width, alphas or scaled mean precision are out of range.

    text  the prior as written, for the message
    """
    low, high = SCALE_RANGE
    if not low <= prior.width <= high:
        raise ConfigError(f'{key}: width out of range, got "{text}"; it must be from {low:g} to {high:g}')
    other = prior.rectified if prior.mixture is None else prior.mixture[1]
    if other is not None and not low <= other <= high:
        raise ConfigError(f'{key}: number out of range, got "{text}"; it must be from {low:g} to {high:g}')
    low, high = _ALPHA_RANGE
    if not all(low <= alpha <= high or math.isinf(alpha) for alpha in prior.alphas):
        raise ConfigError(
            f'{key}: alpha out of range, got "{text}"; it must be from {low:g} to {high:g}, '
            "or left out for infinity"
        )
    try:
        is_finite = 1e-30 < prior.mean_precision(n_sources) < 1e30
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise ConfigError(
            f"{key}: scaling for {n_sources} source units takes the mean precision out of the range 1e-30 to "
            f'1e30, got "{text}"; use a larger alpha or no x'
        )


def adjustment_alpha(text: str, *, key: str) -> float:
    """Return the alpha of a layer's adjustments. They have only an alpha, because their mean is one."""
    low, high = _ALPHA_RANGE
    try:
        alpha = read_number(text)
    except ValueError:
        alpha = math.nan
    if not low <= alpha <= high:
        raise ConfigError(
            f'{key}: adjustments have only an alpha, got "{text}"; it must be a number from {low:g} to '
            f'{high:g}, such as 3, or "-" for none'
        )
    return alpha
