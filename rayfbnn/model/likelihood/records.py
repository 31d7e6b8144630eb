"""Records that data models return."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayfbnn.arrays import Array

QUANTILES = {"median": 0.5, "q01": 0.01, "q10": 0.1, "q90": 0.9, "q99": 0.99}
"""The quantiles of a predictive distribution in a table, by column name."""


@dataclass(frozen=True)
class TargetRange:
    """The targets that a data model allows.

    is_possible  bool in the shape of the targets; its values for missing targets do not matter
    expected     the requirement in words, for a message such as "a binary target must be 0 or 1"
    """

    is_possible: Array
    expected: str


@dataclass(frozen=True)
class GaussianTargets:
    """Targets with Gaussian noise that replace the data, given auxiliary variables. Missing ones have T = 0.

    precisions  T (n_chains, n_targets, n_cases, or 1 if all cases are alike)
    targets     y (n_chains or 1, n_targets, n_cases), finite everywhere
    """

    precisions: Array
    targets: Array


@dataclass(frozen=True)
class Predictive:
    """The predictive distributions at some cases, each an equally weighted mixture over the draws.

    All values are on the network's scale, and (n_cases, n_targets) unless stated otherwise.

    columns     statistics by name, in the order of the table: mean, median, sd and the other quantiles
    draw_means  (n_cases, n_targets, n_draws): the mean given each draw, used for the Monte Carlo error of
                the predictive mean
    more        columns that follow that error in the table
    expected_errors  probability that the guess of `error_rate` is wrong; None without a guess
    """

    columns: dict[str, Array]
    draw_means: Array
    more: dict[str, Array] = field(default_factory=dict)
    expected_errors: Array | None = None
