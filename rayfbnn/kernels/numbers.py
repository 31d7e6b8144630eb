"""The numbers of each chain that kernels receive in addition to position and momentum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model import prior, regression
from rayfbnn.model.integrated import WithoutOutputs
from rayfbnn.model.output_layer import with_columns
from rayfbnn.model.posterior import Posterior


@dataclass(frozen=True)
class ChainNumbers:
    """Each chain's numbers for a posterior, all float64.

    precisions  (n_chains, n_parameters): the precision that governs each parameter
    noise       (n_chains, n_targets): the precision that governs each target, within the limits of the data
                model; (n_chains, 0) without noise or dispersion
    inverse_temperature  (n_chains,): the power of the likelihood
    normaliser  (n_chains,): the log normalising constant, which the terms of the cases omit
    """

    precisions: Array
    noise: Array
    inverse_temperature: Array
    normaliser: Array

    def potential(self, prior_energy: Array, terms: Array) -> Array:
        """Return the potential (n_chains,) from the prior's energy and the summed terms of the likelihood."""
        return prior_energy - self.inverse_temperature * (terms + self.normaliser)


@dataclass(frozen=True)
class MarginalNumbers:
    """Each chain's numbers for a posterior without its outputs, all float64.

    precisions  (n_chains, n_parameters): the precisions of the parameters, the factors a where precisions are
                integrated out, and 0 for coordinates that move along
    constant    (n_chains,): the constant part of the energy, which the kernel omits
    """

    precisions: Array
    constant: Array

    def potential(self, prior_energy: Array, terms: Array) -> Array:
        """Return the potential (n_chains,) from the prior's energy and the regression's log density."""
        return prior_energy - terms + self.constant


def numbers_of_posterior(posterior: Posterior, precisions: Array) -> ChainNumbers:
    """Return each chain's numbers given its precisions (n_chains, n_precisions)."""
    xp = array_namespace(precisions)
    with np.errstate(all="ignore"):
        governing = posterior.governing(precisions)
        power = posterior.inverse_temperature
        if isinstance(power, float):
            power = xp.full(len(precisions), power)
        return ChainNumbers(
            precisions=xp.ascontiguousarray(governing.parameters),
            noise=xp.ascontiguousarray(posterior.data_model.bounded(governing.noise)),
            inverse_temperature=xp.ascontiguousarray(power, dtype=xp.float64),
            normaliser=governing.normaliser,
        )


def numbers_of_marginal(target: WithoutOutputs, precisions: Array) -> MarginalNumbers:
    """Return each chain's numbers given its precisions (n_chains, n_precisions)."""
    xp = array_namespace(precisions)
    marginal, data = target.marginal, target.regression
    n_each = data.targets.shape[2]
    constant = -regression.log_normaliser(data)
    if not marginal.layer.is_dual:  # log|A| - log|S|, where the dual form has log|B|
        constant -= 0.5 * n_each * xp.log(data.prior).sum(axis=(1, 2))
    return MarginalNumbers(kept_precisions(target, precisions, integrated=1.0), constant)


def kept_precisions(target: WithoutOutputs, precisions: Array, *, integrated: float) -> Array:
    """Return the precisions (n_chains, n_parameters) of kept parameters, 0 for coordinates that move along.

    integrated  the value to use for common precisions that are integrated out
    """
    marginal = target.marginal
    ruling = prior.parameter_precisions(
        with_columns(precisions, marginal.groups, value=integrated), marginal.posterior.precision_layout
    )
    kept = array_namespace(precisions).zeros((len(ruling), target.n_parameters))
    kept[:, : target.n_kept] = ruling[:, : target.n_kept]
    return kept
