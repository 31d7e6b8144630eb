"""The log marginal likelihood of a run's model, by annealed importance sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import device_namespace, to_host
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.markup import tables
from rayfbnn.mcmc.dynamic import Dynamic
from rayfbnn.mcmc.operation import Operation, automatic, unrolled
from rayfbnn.mcmc.tempering.annealing import annealed_log_weights, inverse_temperatures, normaliser
from rayfbnn.mcmc.tempering.simulated_tempering import SimulatedTempering
from rayfbnn.mcmc.tempering.tempered_transition import TemperedTransition
from rayfbnn.run.sampler import build_posterior
from rayfbnn.spec.defaults import default_annealing

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec

_RUNS_PER_BATCH = 50


@dataclass(frozen=True)
class Evidence:
    """An estimate of the log marginal likelihood, with its error and the settings of the runs behind it.

    Attributes
    ----------
    log_marginal_likelihood
        The estimate, for the targets on the scale of the data file, in nats.
    standard_error
        Standard error of the estimate, no better than a guess if effective_runs is small.
    effective_runs
        Number of equally weighted runs that would be as good.
    runs
        Number of chains. Each went through the temperatures once.
    temperatures, power
        The settings of the inverse temperatures.
    path
        For each temperature except the first: the inverse temperature b, the log of the integral of
        prior * likelihood**b on the network's scale, and its standard error.
    """

    log_marginal_likelihood: float
    standard_error: float
    effective_runs: float
    runs: int
    temperatures: int
    power: float
    path: tuple[tuple[float, float, float], ...]

    def _repr_html_(self) -> str:
        """Return the estimate as HTML, for notebooks."""
        return tables.pairs(
            {
                "log marginal likelihood": self.log_marginal_likelihood,
                "standard error": self.standard_error,
                "effective runs": self.effective_runs,
                "runs": self.runs,
                "temperatures": self.temperatures,
            }
        )


def evidence(
    spec: RunSpec,
    dataset: Dataset,
    *,
    temperatures: int,
    power: float,
    runs: int | None = None,
    operations: tuple[Operation, ...] | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Evidence:
    """Estimate the log marginal likelihood: run each chain once through the temperatures.

    The operations are applied once at each temperature.

    runs         number of chains, in batches of 50; None for the number and batches of the configuration
    operations   None for those of the configuration's last phase, or of `default_annealing` without phases
    on_progress  called with the share of the work that is done
    """
    per_batch = spec.chains_per_batch if runs is None else _RUNS_PER_BATCH
    runs = spec.chains if runs is None else runs
    if operations is None:
        is_default = "phase" not in spec.model_fields_set
        operations = default_annealing() if is_default else spec.phase[-1].operations
    _check_operations(operations)
    posterior = build_posterior(spec, dataset, device=spec.device)
    advance, _ = choose.advance_for(posterior)
    xp = device_namespace(spec.device)
    ladder = inverse_temperatures(temperatures, power=power)
    parts = []
    for first in range(0, runs, per_batch):
        chains = range(first, min(first + per_batch, runs))
        streams = choose.streams_class(spec.device)(spec.seed, xp.asarray(np.array(chains, dtype=np.uint64)))

        def done(number: int, before: int = first, n: int = len(chains)) -> None:
            on_progress((before + n * number / temperatures) / runs)

        log_weights = annealed_log_weights(
            posterior.initial_state(streams, sigmas=None),
            streams,
            target=posterior,
            operations=operations,
            inverse_temperatures=ladder,
            advance=advance,
            on_progress=done,
        )
        parts.append(to_host(log_weights))
    normalisers = [normaliser(row) for row in np.concatenate(parts, axis=1)[1:]]
    return Evidence(
        log_marginal_likelihood=normalisers[-1].log_value - dataset.log_scale,
        standard_error=normalisers[-1].standard_error,
        effective_runs=normalisers[-1].effective_runs,
        runs=runs,
        temperatures=temperatures,
        power=power,
        path=tuple(
            (b, estimate.log_value, estimate.standard_error)
            for b, estimate in zip(ladder[1:], normalisers, strict=True)
        ),
    )


def _check_operations(operations: tuple[Operation, ...]) -> None:
    """Raise ConfigError for operations that tune, change their distribution, or change the temperature."""
    for tuned in automatic(operations):
        raise ConfigError(
            "phase[-1].operations: annealed importance sampling does not tune, got"
            f' "auto" in {tuned.op}; give steps and stepsize as numbers'
        )
    for operation in unrolled(operations):
        if isinstance(operation, Dynamic | SimulatedTempering | TemperedTransition):
            raise ConfigError(
                "phase[-1].operations: annealed importance sampling needs exact updates that do not temper,"
                f" got {operation.op}; use hybrid"
            )
