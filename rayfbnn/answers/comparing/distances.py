"""Distances of an approximate predictive distribution from the exact one, case by case."""

from __future__ import annotations

import numpy as np
import scipy.special

from rayfbnn.answers.comparing.functions import Functions
from rayfbnn.arrays import Array


def distances(approximate: Functions, exact: Functions) -> dict[str, Array]:
    """Return each distance by name.

    For labels these are total_variation, kl and agreement, (n_cases,), as the functions of these names return
    them, averaged over the targets of a case. For numbers they are w2 of the draws of each output and
    mean_difference, the squared difference of the means, (n_cases * n_outputs,), in standard deviations of
    the exact draws. Both kinds have log_sd_ratio, (n_cases * n_functions,), the log of the ratio of the
    standard deviations of log odds or outputs over draws.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = {"log_sd_ratio": np.log(approximate.spread / exact.spread).ravel()}
        if exact.outputs is None or approximate.outputs is None:
            assert approximate.probabilities is not None and exact.probabilities is not None
            q, p = approximate.probabilities, exact.probabilities
            return {
                "total_variation": total_variation(p, q).mean(axis=1),
                "kl": kl(p, q).mean(axis=1),
                "agreement": agreement(p, q).mean(axis=1),
            } | ratio
        difference = approximate.outputs.mean(axis=2, dtype=np.float64) - exact.outputs.mean(
            axis=2, dtype=np.float64
        )
        return {
            "w2": (w2(approximate.outputs, exact.outputs) / exact.spread).ravel(),
            "mean_difference": np.square(difference / exact.spread).ravel(),
        } | ratio


def total_variation(p: Array, q: Array) -> Array:
    """Return sum |p - q| / 2 over labels, (...), of distributions (..., n_labels)."""
    return np.abs(p - q).sum(axis=-1) / 2


def kl(p: Array, q: Array) -> Array:
    """Return sum p log(p/q) over labels, (...), of distributions (..., n_labels); infinite where q is 0."""
    return np.asarray(scipy.special.rel_entr(p, q).sum(axis=-1))


def agreement(p: Array, q: Array) -> Array:
    """Return 1 where both distributions (..., n_labels) have the same most probable label, else 0."""
    return (p.argmax(axis=-1) == q.argmax(axis=-1)).astype(np.float64)


def w2(first: Array, second: Array) -> Array:
    """Return the Wasserstein distance of order 2 between two samples (..., n_draws) of numbers, (...).

    W2^2 is the integral over u in (0, 1) of the squared difference of the samples' quantile functions, which
    are steps of widths 1/n; the samples may have different sizes (Villani 2003, "Topics in Optimal
    Transportation", eq. 2.47).
    """
    sizes = first.shape[-1], second.shape[-1]
    # With whole numbers, common ends of steps are exactly equal.
    step_ends = [np.arange(1, n + 1) * (sizes[0] * sizes[1] // n) for n in sizes]
    ends = np.union1d(*step_ends)
    widths = np.diff(ends, prepend=0) / (sizes[0] * sizes[1])
    a, b = (
        np.sort(sample, axis=-1)[..., np.searchsorted(of_sample, ends)].astype(np.float64)
        for sample, of_sample in zip((first, second), step_ends, strict=True)
    )
    return np.sqrt(np.square(a - b) @ widths)
