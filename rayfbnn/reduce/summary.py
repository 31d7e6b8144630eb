"""Records of cases to predict, and of the summaries of their predictive distributions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.transforms import TargetUnits
from rayfbnn.draws.view import Draws
from rayfbnn.model.likelihood.data_model import QUANTILES


@dataclass(frozen=True)
class Cases:
    """Some cases to predict.

    inputs   (n_cases, n_inputs), standardised
    targets  (n_cases, n_targets), standardised and NaN if missing; None if they are not known
    """

    inputs: Array
    targets: Array | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def some(self, at: slice | Array) -> Cases:
        """Return the cases at a slice or at numbers."""
        return Cases(self.inputs[at], None if self.targets is None else self.targets[at])


@dataclass(frozen=True)
class Summary:
    """The predictive distributions at some cases, on the network's scale, (n_cases, n_values) each.

    A value is a target, or the probability of a label.

    mean, sd         of the mixture over all draws
    mcse             Monte Carlo error of the mean; NaN below 4 draws a chain
    log_probability  (n_cases,): log of the mean over draws of the joint density of a case's targets; None
                     without targets
    quantiles        by name, for targets that are numbers
    modes, mass      the most probable value and its probability, for counts
    curves           further columns by name, (n_cases,) each
    exponentials     "mean", "sd" and "mcse" of targets on a log scale, in the units of the data file; empty
                     if there are none
    """

    mean: Array
    sd: Array
    mcse: Array
    log_probability: Array | None
    quantiles: dict[str, Array] = field(default_factory=dict)
    modes: Array = None
    mass: Array = None
    curves: dict[str, Array] = field(default_factory=dict)
    exponentials: dict[str, Array] = field(default_factory=dict)

    def in_file_units(self, units: TargetUnits) -> Summary:
        """Return the same for targets in the units of the data file.

        Mean, sd and mcse are NaN for a target on a log scale that has no mean. The log probability remains
        that on the network's scale.
        """
        moments = {
            "mean": self.mean * units.scale + units.center,
            "sd": self.sd * units.scale,
            "mcse": self.mcse * units.scale,
        }
        for name, values in self.exponentials.items():
            moments[name] = np.where(units.is_log, values, moments[name])
        return replace(
            self,
            **moments,
            quantiles={name: units.to_file(values) for name, values in self.quantiles.items()},
            modes=None if self.modes is None else units.to_file(self.modes),
            exponentials={},
        )

    @property
    def point(self) -> Array:
        """The prediction of each value, (n_cases, n_values): its mean, or its median if it has no mean."""
        if "median" not in self.quantiles:
            return self.mean
        return np.where(np.isnan(self.mean), self.quantiles["median"], self.mean)


def quantiles_of_points(run: Draws) -> dict[str, float]:
    """Return the quantiles that `Summary.point` needs: the median if a target of a run may have no mean."""
    has_means = run.spec.data_model.has_exponential_moments or not run.data.target_units.has_logs
    return {} if has_means else {"median": QUANTILES["median"]}


def joined(parts: Iterable[tuple[slice, Summary]]) -> Summary:
    """Return the summaries of all cases as one, in the order of the cases."""
    found = [vars(summary) for _, summary in parts]
    return Summary(**{name: _concatenated([one[name] for one in found]) for name in found[0]})


def _concatenated(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: np.concatenate([value[name] for value in values]) for name in values[0]}
    return None if values[0] is None else np.concatenate(values)
