"""The targets that kernels run, and the numbers of each chain that kernels receive for them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model import prior, regression
from rayfbnn.model.integrated import OutputMarginal, WithoutOutputs, WithoutPrecisions
from rayfbnn.model.output_layer import with_columns
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Target

KernelTarget: TypeAlias = Posterior | WithoutPrecisions | WithoutOutputs
"""The kinds of targets that kernels can run."""

T = TypeVar("T")


def posterior_behind(target: Target) -> Posterior:
    """Return the posterior of a target or of its marginal; raise TypeError for other targets."""
    if isinstance(target, Posterior):
        return target
    if isinstance(target, WithoutPrecisions):
        return target.posterior
    if isinstance(target, WithoutOutputs):
        return target.marginal.posterior
    raise TypeError("target: must be a posterior, or a posterior with outputs or precisions integrated out")


class TargetCache(Generic[T]):
    """Values that depend on a target's network, priors and inputs, but not on its data or temperature.

    A posterior that is tempered or has other data shares its parts with the posterior it was made from, so
    it shares the value too. The value of a target with outputs or precisions integrated out belongs to its
    marginal.
    """

    def __init__(self) -> None:
        # The key is the identity of the parts. The entry keeps them, because a freed id could be reused.
        self._of_posteriors: dict[Hashable, tuple[tuple[Any, ...], T]] = {}
        self._of_marginals: WeakKeyDictionary[OutputMarginal | WithoutPrecisions, dict[Hashable, T]] = (
            WeakKeyDictionary()
        )

    def of(self, target: KernelTarget, variant: Hashable, make: Callable[[], T]) -> T:
        """Return the value for a target and a variant, such as a number of blocks; make it if it is new."""
        if isinstance(target, Posterior):
            parts = target.inputs, target.wiring, target.model, target.parameter_layout
            key = (variant, *map(id, parts))
            if key not in self._of_posteriors:
                self._of_posteriors[key] = parts, make()
            return self._of_posteriors[key][1]
        marginal = target.marginal if isinstance(target, WithoutOutputs) else target
        values = self._of_marginals.setdefault(marginal, {})
        if variant not in values:
            values[variant] = make()
        return values[variant]


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


def numbers_of_posterior(target: Target, precisions: Array) -> ChainNumbers:
    """Return each chain's numbers given its precisions (n_chains, n_precisions).

    Common precisions that are integrated out count as 1.
    """
    xp, posterior = array_namespace(precisions), posterior_behind(target)
    if isinstance(target, WithoutPrecisions):
        precisions = with_columns(precisions, target.groups, value=1.0)
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
