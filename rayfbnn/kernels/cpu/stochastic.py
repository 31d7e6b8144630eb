"""Compiled steps that draw random numbers themselves: of dynamics with friction, and of Bayes by Backprop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.approximate.adam import FIRST_DECAY, SECOND_DECAY, SMALL
from rayfbnn.approximate.variational import VariationalSettings, rate_of_step
from rayfbnn.arrays import Array
from rayfbnn.kernels.cpu.extension import Kernel
from rayfbnn.kernels.numbers import ChainNumbers, numbers_of_posterior
from rayfbnn.mcmc.friction.steps import Factors
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Target, Trajectory
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class CompiledFriction:
    """`mcmc.friction.steps.FrictionSteps` by compiled code.

    kernel_of  returns the kernel of a posterior for batches of so many cases, 0 for all cases
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
        first_step: int,
        cases: Array | None,
    ) -> tuple[Array, Array]:
        """Return the position and momentum after n_steps steps."""
        assert isinstance(target, Posterior)
        given = _Given.of(target, trajectory.precisions, cases)
        position = trajectory.position
        new_position, new_momentum = np.empty_like(position, order="C"), np.empty_like(position, order="C")
        self.kernel_of(target, given.batch).follow(
            position=position,
            momentum=trajectory.momentum,
            stepsizes=trajectory.stepsizes,
            n_steps=n_steps,
            factors=(factors.first, factors.second, factors.persistence, factors.noise, factors.kick),
            place=streams.place(Purpose.FRICTION, index=first_step),
            chains=streams.chains,
            new_position=new_position,
            new_momentum=new_momentum,
            **given.arguments,
        )
        return new_position, new_momentum


@dataclass(frozen=True)
class CompiledVariational:
    """`approximate.variational.CompiledStep` by compiled code.

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
        cases: Array | None,
    ) -> tuple[dict[str, Array], Array]:
        """Return mean, rho and moments after the steps, and the objective (n_steps, n_starts) of each."""
        assert isinstance(target, Posterior)
        given = _Given.of(target, state["precisions"], cases)
        moved = {name: state[name].copy() for name in ("mean", "rho", "first", "second")}
        n_starts, n_parameters = moved["mean"].shape
        prior_energy, terms = (np.empty((n_steps, n_starts, settings.samples)) for _ in range(2))
        log_widths = np.empty((n_steps, n_starts))
        numbers = range(streams.iteration, streams.iteration + n_steps)
        self.kernel_of(target, given.batch).variational(
            **moved,
            n_steps=n_steps,
            n_draws=settings.samples,
            is_antithetic=settings.antithetic,
            decays=(FIRST_DECAY, SECOND_DECAY, SMALL),
            rates=np.array(
                [
                    (rate_of_step(settings, number), 1 - FIRST_DECAY**number, 1 - SECOND_DECAY**number)
                    for number in numbers
                ]
            ),
            place=streams.place(Purpose.VARIATIONAL),
            chains=streams.chains,
            log_widths=log_widths,
            prior_energy=prior_energy,
            terms=terms,
            **given.arguments,
        )
        with np.errstate(all="ignore"):
            powers, normalisers = given.numbers.inverse_temperature, given.normalisers
            energy = prior_energy - powers[:, None] * (terms + normalisers[..., None])
        return moved, log_widths + n_parameters / 2 - energy.mean(axis=2)


@dataclass(frozen=True)
class _Given:
    """The arguments of kernels that come from the data and the chains.

    batch        number of cases in a batch, 0 for all cases
    normalisers  (n_steps or 1, n_chains): what the terms of the cases of each step leave out
    """

    numbers: ChainNumbers
    batch: int
    arguments: dict[str, Any]
    normalisers: Array

    @staticmethod
    def of(posterior: Posterior, precisions: Array, cases: Array | None) -> _Given:
        """Take the cases (n_steps, n_chains, n) of the batches, or None for all cases."""
        batch = 0 if cases is None else cases.shape[2]
        weighted = posterior.tempered(posterior.n_cases / batch) if batch else posterior
        numbers = numbers_of_posterior(weighted, precisions)
        normalisers = numbers.normaliser[None]
        if cases is not None:
            counts = _counts(posterior, cases)
            of_steps = [posterior.data_model.total_log_normaliser(numbers.noise, n) for n in counts]
            normalisers = np.stack([np.broadcast_to(value, len(precisions)) for value in of_steps])
        return _Given(
            numbers,
            batch,
            {
                "precisions": numbers.precisions,
                "noise": numbers.noise,
                "powers": numbers.inverse_temperature,
                "targets": posterior.targets,
                "weights": posterior.observed,
                "cases": None if cases is None else np.ascontiguousarray(cases, dtype=np.int32),
            },
            normalisers,
        )


def _counts(posterior: Posterior, cases: Array) -> list[Any]:
    """Return the number of cases of each step's batch, or those of each target if some are missing.

    Without missing targets the steps do not differ, and there is one entry.
    """
    if posterior.observed is None:
        return [int(cases.shape[2])]
    observed = np.broadcast_to(posterior.observed, (cases.shape[1], *posterior.observed.shape[-2:]))
    return [
        np.take_along_axis(observed, of_step[:, None, :].astype(np.int64), axis=2).sum(axis=-1)
        for of_step in cases
    ]
