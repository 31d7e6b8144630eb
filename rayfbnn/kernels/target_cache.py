"""A cache of compiled code by target."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from rayfbnn.model.integrated import OutputMarginal, WithoutOutputs, WithoutPrecisions
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
        """Start empty."""
        # The key is the identity of the parts. The entry keeps them, because a freed id could be reused.
        self._of_posteriors: dict[Hashable, tuple[tuple[Any, ...], T]] = {}
        self._of_marginals: WeakKeyDictionary[OutputMarginal | WithoutPrecisions, dict[Hashable, T]] = (
            WeakKeyDictionary()
        )

    def get(self, target: KernelTarget, variant: Hashable) -> T | None:
        """Return the value for a target and a variant, such as a number of blocks, or None."""
        if isinstance(target, Posterior):
            entry = self._of_posteriors.get((variant, *map(id, _parts(target))))
            return None if entry is None else entry[1]
        return self._of_marginals.get(_marginal(target), {}).get(variant)

    def keep(self, target: KernelTarget, variant: Hashable, value: T) -> T:
        """Keep the value for later calls of `get`, and return it."""
        if isinstance(target, Posterior):
            parts = _parts(target)
            self._of_posteriors[(variant, *map(id, parts))] = parts, value
        else:
            self._of_marginals.setdefault(_marginal(target), {})[variant] = value
        return value


def _parts(posterior: Posterior) -> tuple[Any, ...]:
    return posterior.inputs, posterior.wiring, posterior.model, posterior.parameter_layout


def _marginal(target: WithoutPrecisions | WithoutOutputs) -> OutputMarginal | WithoutPrecisions:
    return target.marginal if isinstance(target, WithoutOutputs) else target
