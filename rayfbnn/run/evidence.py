"""The log marginal likelihood of a run's model, by annealed importance sampling alone or with ladders."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array, device_namespace, to_host
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.mcmc.dynamic import Dynamic
from rayfbnn.mcmc.ladder.starts import log_weights_of_level
from rayfbnn.mcmc.operation import Operation, automatic, unrolled
from rayfbnn.mcmc.tempering.annealing import annealed_log_weights, inverse_temperatures, normaliser
from rayfbnn.mcmc.tempering.simulated_tempering import SimulatedTempering
from rayfbnn.mcmc.tempering.tempered_transition import TemperedTransition
from rayfbnn.model.ladder_path import path_of
from rayfbnn.numerals import plain
from rayfbnn.output.facts import Answer, Lines, with_error
from rayfbnn.run.sampler import build_posterior, posterior_of_run
from rayfbnn.spec.defaults import default_annealing

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store
    from rayfbnn.streams import Streams

_RUNS_PER_BATCH = 50
_FIRST_RUN = 2**31  # a number that no level of a ladder has


@dataclass(frozen=True)
class FromLadders:
    """The part of an estimate that ladders give: from a level that they have in common to the posterior.

    Attributes
    ----------
    level
        The level in words, such as "noise 1.1".
    log_ratio
        Log Z of the posterior less that of the level: the mean over ladders, in nats.
    standard_error
        Standard error of this mean.
    ladders
        The numbers of those that count. If phases remain, these are those of the heaviest.
    """

    level: str
    log_ratio: float
    standard_error: float
    ladders: tuple[int, ...]


@dataclass(frozen=True)
class Evidence(Answer):
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
        Number of annealing runs. Each went through the temperatures once.
    temperatures, power
        The settings of the inverse temperatures.
    path
        For each temperature except the first: the inverse temperature b, the log of the integral of
        prior * likelihood**b on the network's scale, and its standard error.
    ladders
        The rest, if the annealing runs end at a level; None if they end at the posterior.
    """

    log_marginal_likelihood: float
    standard_error: float
    effective_runs: float
    runs: int
    temperatures: int
    power: float
    path: tuple[tuple[float, float, float], ...]
    ladders: FromLadders | None = None

    def facts(self) -> list[Lines]:
        """Return the estimate with its error, the effective number of runs, and where they end."""
        text = (
            f"log marginal likelihood {with_error(self.log_marginal_likelihood, self.standard_error, 6)}\n"
            f"{self.runs} runs, worth {self.effective_runs:.1f} equally weighted runs"
        )
        if (part := self.ladders) is not None:
            text += (
                f", from the prior to {part.level}\n"
                f"from there to the posterior {part.log_ratio:.2f} +- {plain(part.standard_error, 2)}, by"
                f" Bennett's ratio in {len(part.ladders)} ladders"
            )
        return [Lines(text)]


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
    annealed = partial(
        annealed_log_weights,
        target=posterior,
        operations=operations,
        inverse_temperatures=inverse_temperatures(temperatures, power=power),
        advance=advance,
    )
    return _estimate(
        lambda streams, done: annealed(
            posterior.initial_state(streams, sigmas=None), streams, on_progress=done
        ),
        spec,
        dataset,
        range(runs),
        per_batch,
        temperatures,
        power,
        on_progress,
    )


def evidence_of_ladders(
    store: Store,
    ladders: FromLadders,
    *,
    level: int,
    runs: int,
    temperatures: int,
    power: float,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Evidence:
    """Estimate the log marginal likelihood from ladders, and from annealing runs to one of their levels.

    log p(targets) = log Z of the level, by annealed importance sampling, + the log ratio of the ladders

    level        number of the level that the ladders' log ratio begins with
    runs         number of annealing runs, in batches of 50
    on_progress  called with the share of the work that is done
    """
    posterior = posterior_of_run(store)
    advance, _ = choose.advance_for(posterior)
    annealed = _estimate(
        lambda streams, done: log_weights_of_level(
            path_of(posterior),
            store.tuning.ladder_rounds()[-1].settings,
            streams,
            level=level,
            inverse_temperatures=inverse_temperatures(temperatures, power=power),
            advance=advance,
            on_progress=done,
        ),
        store.spec,
        store.data,
        range(_FIRST_RUN, _FIRST_RUN + runs),
        _RUNS_PER_BATCH,
        temperatures,
        power,
        on_progress,
    )
    return replace(
        annealed,
        log_marginal_likelihood=annealed.log_marginal_likelihood + ladders.log_ratio,
        standard_error=math.hypot(annealed.standard_error, ladders.standard_error),
        ladders=ladders,
    )


def _estimate(
    annealed: Callable[[Streams, Callable[[int], None]], Array],
    spec: RunSpec,
    data: Dataset,
    runs: range,
    per_batch: int,
    temperatures: int,
    power: float,
    on_progress: Callable[[float], None],
) -> Evidence:
    """Estimate the log marginal likelihood from batches of runs with these numbers.

    annealed     returns the log weights of a batch, (n_temperatures, n_chains), and reports the temperatures
                 that are complete
    on_progress  called with the share of the work that is done
    """
    xp, parts = device_namespace(spec.device), []
    for first in range(0, len(runs), per_batch):
        numbers = runs[first : first + per_batch]
        streams = choose.streams_class(spec.device)(spec.seed, xp.asarray(np.array(numbers, dtype=np.uint64)))

        def done(number: int, before: int = first, n: int = len(numbers)) -> None:
            on_progress((before + n * number / temperatures) / len(runs))

        parts.append(to_host(annealed(streams, done)))
    log_weights = np.concatenate(parts, axis=1)
    powers = inverse_temperatures(temperatures, power=power)[1:]
    normalisers = [normaliser(row) for row in log_weights[1:]]
    return Evidence(
        log_marginal_likelihood=normalisers[-1].log_value - data.log_scale,
        standard_error=normalisers[-1].standard_error,
        effective_runs=normalisers[-1].effective_runs,
        runs=log_weights.shape[1],
        temperatures=temperatures,
        power=power,
        path=tuple(
            (b, estimate.log_value, estimate.standard_error)
            for b, estimate in zip(powers, normalisers, strict=True)
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
