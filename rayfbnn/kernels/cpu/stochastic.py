"""Compiled steps that draw their own random numbers: dynamics with friction, and Bayes by Backprop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rayfbnn.approximate.descent import FIRST_DECAY, SECOND_DECAY, SMALL
from rayfbnn.approximate.variational import Variational
from rayfbnn.arrays import Array
from rayfbnn.kernels.cpu.compiled_module import Kernel
from rayfbnn.kernels.numbers import ChainNumbers, numbers_of_posterior
from rayfbnn.mcmc.sghmc import Factors
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import CaseBatches, Target, Trajectory
from rayfbnn.streams import Purpose, Streams


def friction_steps(
    kernel_of: Callable[[Posterior, int], Kernel],
    target: Target,
    trajectory: Trajectory,
    *,
    factors: Factors,
    streams: Streams,
    n_steps: int,
    batches: CaseBatches | None,
) -> tuple[Array, Array]:
    """Return the position and momentum after n_steps steps, as `mcmc.sghmc.FrictionSteps` does.

    kernel_of  returns the kernel of a posterior for a largest number of cases in a batch, 0 for all cases
    """
    assert isinstance(target, Posterior)
    kernel = kernel_of(target, 0 if batches is None else batches.size)
    given = arguments_of(target, numbers_of_posterior(target, trajectory.precisions))
    position, momentum = (np.empty_like(trajectory.position, order="C") for _ in range(2))
    kernel.follow(
        position=trajectory.position,
        momentum=trajectory.momentum,
        stepsizes=trajectory.stepsizes,
        n_steps=n_steps,
        factors=(factors.first, factors.second, factors.persistence, factors.noise, factors.kick),
        place=streams.place(Purpose.FRICTION),
        chains=streams.chains,
        new_position=position,
        new_momentum=momentum,
        **given,
        **_cases(target, batches, (streams.iteration - 1) * n_steps),
    )
    return position, momentum


def variational_steps(
    kernel_of: Callable[[Posterior, int], Kernel],
    target: Target,
    state: Mapping[str, Array],
    streams: Streams,
    *,
    settings: Variational,
    n_steps: int,
    batches: CaseBatches | None,
) -> tuple[dict[str, Array], Array]:
    """Return what `approximate.variational.CompiledSteps` returns; `kernel_of` as for `friction_steps`."""
    assert isinstance(target, Posterior)
    numbers = numbers_of_posterior(target, state["precisions"])
    moved = {name: state[name].copy() for name in ("mean", "rho", "first", "second")}
    n_starts, n_parameters = moved["mean"].shape
    log_widths, prior_energy, terms = (np.empty((n_steps, n_starts)) for _ in range(3))
    first = streams.iteration - 1
    kernel_of(target, 0 if batches is None else batches.size).variational(
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
        **arguments_of(target, numbers),
        **_cases(target, batches, first),
    )
    with np.errstate(all="ignore"):
        powers, normalisers = numbers.inverse_temperature[None], numbers.normaliser[None]
        if batches is not None:
            sizes = batches.sizes(first, n_steps)[:, None]
            powers = powers * (target.n_cases / sizes)
            normalisers = _normalisers(target, numbers.noise, batches, first, sizes)
        energy = prior_energy - powers * (terms + normalisers)
    return moved, log_widths + n_parameters / 2 - energy


def arguments_of(posterior: Posterior, numbers: ChainNumbers) -> dict[str, Any]:
    """Return the kernels' arguments that come from the data and the chains."""
    return {
        "precisions": numbers.precisions,
        "noise": numbers.noise,
        "powers": numbers.inverse_temperature,
        "targets": posterior.targets,
        "weights": posterior.observed,
    }


def _cases(posterior: Posterior, batches: CaseBatches | None, first: int) -> dict[str, Any]:
    """Return the kernels' arguments for the cases of each step, from batch number `first` on."""
    if batches is None:
        return {"shuffles": None, "first_batch": 0, "records": None}
    return {"shuffles": batches.place(), "first_batch": first, "records": posterior.records}


def _normalisers(posterior: Posterior, noise: Array, batches: CaseBatches, first: int, sizes: Array) -> Array:
    """Return the log normalising constants omitted from each step's terms, (n_steps, n_starts).

    first  the number of the first step's batch
    sizes  (n_steps, 1) the number of cases in each batch
    """
    total = posterior.data_model.total_log_normaliser
    if posterior.observed is None:
        return sizes * total(noise, 1)
    observed = np.broadcast_to(posterior.observed, (len(noise), *posterior.observed.shape[-2:]))
    each = []
    for number in range(first, first + len(sizes)):
        cases = batches.batch(number).astype(np.int64)[:, None]
        each.append(total(noise, np.take_along_axis(observed, cases, axis=2).sum(axis=-1)))
    return np.array(each)
