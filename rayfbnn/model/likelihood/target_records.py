"""Records that data models return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rayfbnn.arrays import Array

QUANTILES = {"median": 0.5, "q01": 0.01, "q10": 0.1, "q90": 0.9, "q99": 0.99}
"""The quantiles of a predictive distribution in a table, by column name."""

QuantileScale: TypeAlias = Literal["linear", "log", "whole"]
"""Where quantiles are searched: among all numbers, logarithms of times, or whole numbers."""

Misfit: TypeAlias = Literal["too narrow", "too wide", "varying", "outliers", "skewed", "shifted"]
"""How targets deviate from their predictive distributions: more or less spread than predicted, a spread that
varies with something, a few targets far away, a skewed distribution, or another shape."""


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
