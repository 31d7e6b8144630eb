"""Compiled steps that draw random numbers themselves: of dynamics with friction, and of Bayes by Backprop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.approximate.adam import FIRST_DECAY, SECOND_DECAY, SMALL
from rayfbnn.approximate.variational import VariationalSettings
from rayfbnn.arrays import Array
from rayfbnn.kernels.cpu.extension import Kernel
from rayfbnn.kernels.numbers import ChainNumbers, numbers_of_posterior
from rayfbnn.mcmc.friction.steps import Factors
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import CaseBatches, Target, Trajectory
from rayfbnn.streams import Purpose, Streams

_MOST_ORDERS = 2**18  # bytes of the permutations in a call


@dataclass(frozen=True)
class CompiledFriction:
    """`mcmc.friction.steps.FrictionSteps` by compiled code.

    kernel_of  returns the kernel of a posterior for batches of at most so many cases, 0 for all cases
    """

    kernel_of: Callable[[Posterior, int], Kernel]

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        factors: Factors,
        streams: Streams,
        n_steps: int,
        batches: CaseBatches | None,
    ) -> tuple[Array, Array]:
        """Return the position and momentum after n_steps steps."""
        assert isinstance(target, Posterior)
        kernel = self.kernel_of(target, 0 if batches is None else batches.size)
        given = _given(target, numbers_of_posterior(target, trajectory.precisions))
        first, at, done = (streams.iteration - 1) * n_steps, trajectory, 0
        while done < n_steps:
            n = _n_together(batches, first + done, n_steps - done, len(streams.chains))
            moved = np.empty_like(at.position, order="C"), np.empty_like(at.position, order="C")
            kernel.follow(
                position=at.position,
                momentum=at.momentum,
                stepsizes=at.stepsizes,
                n_steps=n,
                factors=(factors.first, factors.second, factors.persistence, factors.noise, factors.kick),
                place=streams.place(Purpose.FRICTION, index=done),
                chains=streams.chains,
                new_position=moved[0],
                new_momentum=moved[1],
                **given,
                **_orders(batches, first + done, n),
                records=_records(target, batches),
            )
            at, done = at.moved(*moved), done + n
        return at.position, at.momentum


@dataclass(frozen=True)
class CompiledVariational:
    """`approximate.variational.CompiledSteps` by compiled code.

    kernel_of  as for CompiledFriction
    """

    kernel_of: Callable[[Posterior, int], Kernel]

    def __call__(
        self,
        target: Target,
        state: Mapping[str, Array],
        streams: Streams,
        *,
        settings: VariationalSettings,
        n_steps: int,
        batches: CaseBatches | None,
    ) -> tuple[dict[str, Array], Array]:
        """Return mean, rho and moments after the steps, and the objective (n_steps, n_starts) of each."""
        assert isinstance(target, Posterior)
        numbers = numbers_of_posterior(target, state["precisions"])
        moved = {name: state[name].copy() for name in ("mean", "rho", "first", "second")}
        n_starts, n_parameters = moved["mean"].shape
        prior_energy, terms = (np.empty((n_steps, n_starts, settings.samples)) for _ in range(2))
        log_widths = np.empty((n_steps, n_starts))
        orders = _orders(batches, streams.iteration - 1, n_steps)
        self.kernel_of(target, 0 if batches is None else batches.size).variational(
            **moved,
            n_steps=n_steps,
            n_draws=settings.samples,
            is_antithetic=settings.antithetic,
            decays=(FIRST_DECAY, SECOND_DECAY, SMALL),
            schedule=(settings.rate, settings.steps, streams.iteration),
            place=streams.place(Purpose.VARIATIONAL),
            chains=streams.chains,
            log_widths=log_widths,
            prior_energy=prior_energy,
            terms=terms,
            **_given(target, numbers),
            **orders,
            records=_records(target, batches),
        )
        with np.errstate(all="ignore"):
            powers, normalisers = numbers.inverse_temperature[None], numbers.normaliser[None]
            if batches is not None:
                sizes = batches.sizes(streams.iteration - 1, n_steps)
                powers = powers * (target.n_cases / sizes[:, None])
                normalisers = _normalisers(target, numbers.noise, batches, sizes=sizes, **orders)
            energy = prior_energy - powers[..., None] * (terms + normalisers[..., None])
        return moved, log_widths + n_parameters / 2 - energy.mean(axis=2)


def _given(posterior: Posterior, numbers: ChainNumbers) -> dict[str, Any]:
    """Return the arguments of kernels that come from the data and the chains."""
    return {
        "precisions": numbers.precisions,
        "noise": numbers.noise,
        "powers": numbers.inverse_temperature,
        "targets": posterior.targets,
        "weights": posterior.observed,
    }


def _n_together(batches: CaseBatches | None, first: int, most: int, n_chains: int) -> int:
    """Return how many steps to take in a call: `most`, or those up to the end of a few passes."""
    if batches is None:
        return most
    n_passes = max(1, _MOST_ORDERS // (4 * n_chains * batches.n_cases))
    return min(most, n_passes * batches.n_batches - first % batches.n_batches)


def _orders(batches: CaseBatches | None, first: int, n_steps: int) -> dict[str, Any]:
    """Return the arguments of kernels that say which cases each step has."""
    orders, first_batch = (None, 0) if batches is None else batches.passes(first, n_steps)
    return {"orders": orders, "first_batch": first_batch}


def _records(posterior: Posterior, batches: CaseBatches | None) -> Array | None:
    """Return the argument of kernels that batches are taken from."""
    return None if batches is None else posterior.records


def _normalisers(
    posterior: Posterior,
    noise: Array,
    batches: CaseBatches,
    orders: Array,
    first_batch: int,
    sizes: Array,
) -> Array:
    """Return what the terms of each step's cases leave out, (n_steps, n_starts).

    first_batch  the number that the first step's batch has in the first pass of `orders`
    """
    total = posterior.data_model.total_log_normaliser
    if posterior.observed is None:
        different, places = np.unique(sizes, return_inverse=True)
        return np.array([total(noise, int(size)) for size in different])[places]
    observed = np.broadcast_to(posterior.observed, (len(noise), *posterior.observed.shape[-2:]))
    each = []
    for number, size in enumerate(sizes, first_batch):
        one_pass, piece = divmod(number, batches.n_batches)
        begin = batches.n_cases * piece // batches.n_batches
        cases = orders[one_pass, :, None, begin : begin + size].astype(np.int64)
        each.append(total(noise, np.take_along_axis(observed, cases, axis=2).sum(axis=-1)))
    return np.array(each)
