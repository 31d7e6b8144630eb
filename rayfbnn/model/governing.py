"""The precisions of each chain in the form that densities and stepsizes need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rayfbnn.arrays import Array
from rayfbnn.model.layout import PrecisionLayout
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.prior import noise_precisions, parameter_precisions


@dataclass(frozen=True, eq=False)
class Governing:
    """The precisions that govern each parameter and each target.

    parameters  (n_chains, n_parameters), see `prior.parameter_precisions`
    noise       (n_chains, n_targets), see `prior.noise_precisions`
    counts      see `Posterior.counts`
    """

    parameters: Array
    noise: Array
    data_model: DataModel
    counts: Array | int

    @staticmethod
    def from_precisions(
        precisions: Array, layout: PrecisionLayout, data_model: DataModel, counts: Array | int
    ) -> Governing:
        """Return what the precisions (n_chains, n_precisions) govern."""
        parameters, noise = parameter_precisions(precisions, layout), noise_precisions(precisions, layout)
        return Governing(parameters, noise, data_model, counts)

    @cached_property
    def normaliser(self) -> Array:
        """The log normalising constant, which the terms of the cases omit, (n_chains,)."""
        return self.data_model.total_log_normaliser(self.noise, self.counts)
