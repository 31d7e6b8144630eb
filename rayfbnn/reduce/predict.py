"""Predictive means, medians, quantiles, probabilities and errors, in bounded memory."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.errors import DataError, StoreError
from rayfbnn.model.likelihood.heteroscedastic import log_precision
from rayfbnn.model.likelihood.models import log_density
from rayfbnn.model.mixtures.gaussian import mixture_quantiles
from rayfbnn.model.mixtures.poisson import count_modes, count_quantiles
from rayfbnn.reduce.draws import (
    Draws,
    activation_bytes,
    check_independent,
    check_same_posterior,
    committed,
    output_blocks,
    sigmas_of_columns,
)
from rayfbnn.reduce.effective import mcse_mean
from rayfbnn.reduce.known import known
from rayfbnn.reduce.lifetimes import mean_times, second_moments, survival_curve, time_quantiles

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.model.architecture import ModelSpec
    from rayfbnn.store.store import Store

QUANTILES = {"median": 0.5, "q01": 0.01, "q10": 0.1, "q90": 0.9, "q99": 0.99}
_MAX_LOG_PRECISION = 680.0  # and less its least: variances are then between 1e-296 and 1e296
MEASURES = ("squared_error", "absolute_error", "log_probability", "error_rate")


@dataclass(frozen=True)
class Prediction:
    """What a posterior predicts.

    summary  cases, draws, and with targets the mean over cases of each measure that applies, and its
             standard error as <measure>_se (absent for a single case)
    table    one row per case, on the scale of the data file
    """

    summary: dict[str, float]
    table: pd.DataFrame

    def to_json(self) -> str:
        """The summary as one JSON object; what is not known is null."""
        return json.dumps({name: known(value) for name, value in self.summary.items()})


def predict(
    stores: Sequence[Store], inputs: Array, targets: Array | None = None, *, memory_bytes: float = 256e6
) -> Prediction:
    """Predict targets at new inputs, averaged over all draws of one or several runs of the same posterior.

    Real targets: every column describes the predictive distribution, noise included,
    p(y | x) = (1/n) sum_d p(y | f_d(x), sigma_d), a mixture of Gaussians or t distributions; its mean is
    that of the networks' outputs f_d(x), also for t noise too heavy-tailed to have one (df <= 1); its
    standard deviation is infinite for df <= 2. mean_mcse is the Monte Carlo standard error of the mean.
    log_probability is the log of the mean over draws of the joint density of a case's targets. Missing
    targets (NaN) are left out of it and of the errors.
    Heteroscedastic targets: the same with a sigma_d(x). binary: p is the mean over draws of P(y = 1). class:
    p_k likewise. count: mean, sd, mode, median and quantiles of the mixture of Poisson distributions, the
    error rate that of guessing the mode. survival: those of the mixture of survival times but the mode, and
    the survival curve, P(T > t) at the hazard's time points, or if it is constant at the quartiles of the
    training times; a censored time has a log_probability and no errors.

    Cases are taken in chunks, draws in blocks, and memory grows with the number of draws only by what one
    case needs (8 bytes a draw for an output, 8 for a noise sigma).

    Parameters
    ----------
    inputs : (n_cases, n_inputs)      as on file
    targets : (n_cases, n_targets)    as on file
    memory_bytes : float              about what may be used at once
    """
    import pandas as pd

    check_same_posterior(stores)
    check_independent(stores)
    runs = [committed(store) for store in stores]
    inputs, targets = _checked(stores[0], inputs, targets)
    n_draws = sum(run.total for run in runs)
    model, n_targets = stores[0].spec.model, stores[0].data.n_targets
    sigmas = np.concatenate([_noise_sigmas(run) for run in runs], axis=1) if model.kind == "real" else None
    # Half of the memory for the outputs of all draws, a quarter for a block of draws, the rest for copies.
    per_case = 8 * n_draws * _n_values(model, n_targets) if _is_kept(model) else 8
    network = stores[0].spec.network
    per_case = max(per_case, 4 * model.n_pieces * activation_bytes(network, stores[0].spec.dtype))
    cases_at_once = max(1, int(memory_bytes / 2 / per_case))
    tables = []
    for first in range(0, len(inputs), cases_at_once):
        cases = slice(first, first + cases_at_once)
        chunk = (inputs[cases], None if targets is None else targets[cases])
        tables.append(_predict_chunk(runs, *chunk, sigmas=sigmas, block_bytes=memory_bytes / 4))
    table = pd.concat(tables, ignore_index=True)
    return Prediction(_summary(table, n_draws), table)


def _checked(store: Store, inputs: Array, targets: Array | None) -> tuple[Array, Array | None]:
    """The arrays as float64 (n_cases, columns), or DataError."""
    data = store.data
    inputs = np.asarray(inputs, dtype=np.float64)
    if inputs.ndim != 2 or inputs.shape[1] != data.n_inputs or len(inputs) == 0:
        raise DataError(f"inputs: the shape must be (cases, {data.n_inputs}), got {inputs.shape}")
    if targets is not None:
        targets = np.asarray(targets, dtype=np.float64)
        if targets.shape != (len(inputs), data.n_targets):
            raise DataError(
                f"targets: the shape must be {(len(inputs), data.n_targets)}, got {targets.shape}"
            )
    return inputs, targets


def _noise_sigmas(run: Draws) -> Array:
    """Noise standard deviation of each standardised target, (n_targets, n_draws of all chains)."""
    columns = run.store.precision_layout.noise_columns
    return sigmas_of_columns(run, columns).reshape(len(columns), -1)


def _is_kept(model: ModelSpec) -> bool:
    """Whether the outputs of all draws are needed at once, for quantiles."""
    return model.kind not in ("binary", "class")


def _n_values(model: ModelSpec, n_targets: int) -> int:
    """Numbers that a draw gives for a case: outputs, or the log hazards of all pieces."""
    return model.n_pieces if model.kind == "survival" else model.n_outputs(n_targets)


def _noise_df(model: ModelSpec) -> float:
    """Degrees of freedom of t noise, infinite for Gaussian noise."""
    assert model.noise is not None  # real targets have noise
    return model.noise.alphas[2]


def _predict_chunk(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array | None,
    *,
    sigmas: Array | None,
    block_bytes: float,
) -> pd.DataFrame:
    """The rows of the table for some cases; one pass over all draws."""
    import pandas as pd

    spec, data = runs[0].store.spec, runs[0].store.data
    reduced = _reduce_draws(runs, inputs, targets, block_bytes)
    columns: dict[str, Array] = {}
    kind, model = spec.model.kind, spec.model
    if _is_kept(model):
        if kind == "real":
            assert sigmas is not None  # real targets have noise
            predicted = _real_columns(reduced.outputs, sigmas[None], _noise_df(model))
        elif kind == "heteroscedastic":
            means, log_precisions = np.split(reduced.outputs, 2, axis=1)
            found = log_precision(log_precisions.astype(np.float64), model.noise_floor)
            sigmas = np.exp(-0.5 * np.clip(found, -_MAX_LOG_PRECISION, _MAX_LOG_PRECISION))
            predicted = _real_columns(means, sigmas, math.inf)
        elif kind == "count":
            predicted = _count_columns(reduced.outputs, runs)
        else:
            predicted = _survival_columns(reduced.outputs, runs)
        if kind in ("real", "heteroscedastic"):
            predicted["mean_mcse"] = reduced.mean_mcse[:, : data.n_targets]
        for target, name in enumerate(data.target_names):
            scale, center = data.target_scale[target], data.target_center[target]
            for column, values in predicted.items():
                is_spread = column in ("sd", "mean_mcse")
                columns[f"{name}_{column}"] = values[:, target] * scale + (0 if is_spread else center)
    elif kind == "binary":
        columns = {f"{name}_p": reduced.mean[:, target] for target, name in enumerate(data.target_names)}
    else:
        columns = {f"p_{label}": reduced.mean[:, label] for label in range(reduced.mean.shape[1])}
    if targets is not None:
        counted = np.where(targets < 0, np.nan, targets) if kind == "survival" else targets
        columns |= _errors(kind, columns, counted, data.target_names)
        is_observed = ~np.isnan(targets)
        log_scale = (is_observed * np.log(data.target_scale)).sum(axis=1)
        log_probability = reduced.log_probability - log_scale
        columns["log_probability"] = np.where(is_observed.any(axis=1), log_probability, np.nan)
    return pd.DataFrame(columns)


@dataclass(frozen=True)
class _Reduced:
    """All draws at some cases, networks' scale.

    mean            (n_cases, n_outputs): of probabilities (binary, class)
    log_probability (n_cases,) or None without targets
    outputs         (n_cases, n_outputs, n_draws), stores one after the other, each by chain (other models)
    mean_mcse       (n_cases, n_outputs) of outputs (real, heteroscedastic)
    """

    mean: Array
    log_probability: Array | None
    outputs: Array = None
    mean_mcse: Array = None


def _reduce_draws(
    runs: Sequence[Draws], inputs: Array, targets: Array | None, block_bytes: float
) -> _Reduced:
    spec, data = runs[0].store.spec, runs[0].store.data
    model = spec.model
    n_cases, n_outputs = len(inputs), _n_values(model, data.n_targets)
    n_draws = sum(run.total for run in runs)
    standardized = (inputs - data.input_center) / data.input_scale
    if targets is not None:
        targets = (targets - data.target_center) / data.target_scale
    total, log_sum = np.zeros((n_cases, n_outputs)), np.full(n_cases, -np.inf)
    kept = np.empty((n_cases, n_outputs, n_draws), dtype=spec.dtype) if _is_kept(model) else None
    for run, by_chain in zip(runs, _by_chain(kept, runs), strict=True):
        for chains, draws, outputs, precisions in output_blocks(run, standardized, memory_bytes=block_bytes):
            _check_finite(outputs, run.store)
            flat = outputs.reshape(-1, n_cases, n_outputs)
            if targets is not None:
                density = log_density(
                    flat,
                    targets,
                    precisions.reshape(len(flat), -1),
                    model=model,
                    layout=run.store.precision_layout,
                )
                log_sum = np.logaddexp(log_sum, scipy.special.logsumexp(density, axis=0))
            if by_chain is not None:
                by_chain[:, :, chains, draws] = np.moveaxis(outputs, (0, 1), (2, 3))
            else:
                total += probabilities(model.kind, flat).sum(axis=0)
    log_probability = None if targets is None else log_sum - math.log(n_draws)
    if kept is None:
        return _Reduced(total / n_draws, log_probability)
    mcse = _mean_mcse(kept, runs) if model.kind in ("real", "heteroscedastic") else None
    return _Reduced(None, log_probability, kept, mcse)


def _check_finite(outputs: Array, store: Store) -> None:
    """Raise StoreError unless all outputs (n_chains, n_draws, n_cases, n_outputs) are numbers."""
    is_finite = np.isfinite(outputs)
    if not is_finite.all():
        n_bad, dtype = int((~is_finite.all(axis=(2, 3))).sum()), store.spec.dtype
        better = "sample with dtype = float64 or " if dtype == "float32" else "sample with "
        raise StoreError(
            f"{store.path}: at least {n_bad} of the draws have outputs that are not finite in {dtype};"
            f" {better}priors that reach less far (larger alphas, smaller widths)"
        )


def _by_chain(kept: Array | None, runs: Sequence[Draws]) -> list[Array]:
    """Each run's part of `kept` (n_cases, n_outputs, n_draws) as a view (..., n_chains, n_draws)."""
    if kept is None:
        return [None] * len(runs)
    ends = np.cumsum([run.total for run in runs])
    return [
        kept[:, :, end - run.total : end].reshape(*kept.shape[:2], run.n_chains, run.n_draws)
        for run, end in zip(runs, ends, strict=True)
    ]


def probabilities(kind: str, outputs: Array) -> Array:
    """P(y = 1) of each target (binary) or of each class, from outputs (..., n_outputs), float64."""
    outputs = outputs.astype(np.float64)
    return scipy.special.expit(outputs) if kind == "binary" else scipy.special.softmax(outputs, axis=-1)


def _real_columns(outputs: Array, sigmas: Array, df: float) -> dict[str, Array]:
    """Each column of a real target, (n_cases, n_targets), on the network's scale.

    outputs (n_cases, n_targets, n_draws); sigmas (n_cases or 1, n_targets, n_draws)
    """
    n_cases, n_targets, n_draws = outputs.shape
    noise_variance = math.inf if df <= 2 else df / (df - 2) if math.isfinite(df) else 1.0
    # Case by case: all at once would need a second array of every draw's outputs.
    variance = np.stack([case.var(axis=1, dtype=np.float64) for case in outputs])
    sd = np.sqrt(variance + noise_variance * np.square(sigmas).mean(axis=2))
    quantiles = np.empty((len(QUANTILES), n_cases, n_targets))
    for target in range(n_targets):
        found = mixture_quantiles(outputs[:, target], sigmas[:, target], list(QUANTILES.values()), df=df)
        quantiles[:, :, target] = found.T
    named = dict(zip(QUANTILES, quantiles, strict=True))
    order = ("mean", "median", "sd", "q01", "q10", "q90", "q99", "mean_mcse")
    mean = outputs.mean(axis=2, dtype=np.float64)
    columns = {"mean": mean, "sd": sd, "mean_mcse": np.full_like(mean, np.nan), **named}
    return {name: columns[name] for name in order}


def _count_columns(outputs: Array, runs: Sequence[Draws]) -> dict[str, Array]:
    """Each column of a count, (n_cases, n_targets); outputs (n_cases, n_targets, n_draws) are log rates."""
    with np.errstate(over="ignore", invalid="ignore"):
        rates = np.exp(outputs.astype(np.float64))
        mean = rates.mean(axis=2)
        # The Poisson variance is the rate.
        columns = {"mean": mean, "sd": np.sqrt(rates.var(axis=2) + mean)}
    found = [count_quantiles(outputs[:, target], list(QUANTILES.values())) for target in range(mean.shape[1])]
    columns |= dict(zip(QUANTILES, np.stack(found, axis=-1).swapaxes(0, 1), strict=True))
    columns["mode"] = np.stack(
        [
            count_modes(outputs[:, target], columns["q01"][:, target], columns["q99"][:, target])
            for target in range(mean.shape[1])
        ],
        axis=1,
    )
    columns["mean_mcse"] = _mean_mcse(rates, runs)
    order = ("mean", "median", "mode", "sd", "q01", "q10", "q90", "q99", "mean_mcse")
    return {name: columns[name] for name in order}


def _survival_columns(outputs: Array, runs: Sequence[Draws]) -> dict[str, Array]:
    """Each column of a survival time, (n_cases, 1); outputs (n_cases, n_pieces, n_draws) are log hazards."""
    model, data = runs[0].store.spec.model, runs[0].store.data
    log_hazard = outputs.swapaxes(1, 2)
    times = mean_times(log_hazard, model)
    mean = times.mean(axis=1)
    squares = second_moments(log_hazard, model).mean(axis=1)
    quantiles = time_quantiles(log_hazard, list(QUANTILES.values()), model)
    points = np.array(model.times) if model.times else np.nanquantile(np.abs(data.targets), [0.25, 0.5, 0.75])
    curve = survival_curve(log_hazard, points, model)
    named = dict(zip(QUANTILES, quantiles.T, strict=True))
    columns = {
        "mean": mean,
        "median": named.pop("median"),
        "sd": np.sqrt(np.maximum(squares - mean**2, 0)),
        **named,
        "mean_mcse": _mean_mcse(times[:, None], runs)[:, 0],
        **{f"survival_{time:.6g}": values for time, values in zip(points, curve.T, strict=True)},
    }
    return {name: values[:, None] for name, values in columns.items()}


def _mean_mcse(outputs: Array, runs: Sequence[Draws]) -> Array:
    """Monte Carlo standard error of the mean over draws, (n_cases, n_outputs); NaN below four draws a chain.

    The chains of all runs are looked at together, each cut to the last draws that the shortest run has, so
    that runs which disagree make the error larger; the draws left out then count as draws like those.
    """
    n_common = min(run.n_draws for run in runs)
    pieces = [part[..., part.shape[-1] - n_common :] for part in _by_chain(outputs, runs)]
    chains = np.concatenate(pieces, axis=2) if len(pieces) > 1 else pieces[0]
    share = chains.shape[2] * n_common / outputs.shape[2]
    return mcse_mean(chains) * math.sqrt(share)


def _errors(kind: str, columns: dict[str, Array], targets: Array, names: Sequence[str]) -> dict[str, Array]:
    """Errors of each case, summed over targets (real) or averaged over them (binary).

    Missing targets are left out; NaN where a case has no others.
    """
    is_observed = ~np.isnan(targets)
    n_observed = np.where(is_observed.any(axis=1), is_observed.sum(axis=1), np.nan)
    if kind not in ("binary", "class"):
        means = np.stack([columns[f"{name}_mean"] for name in names], axis=1)
        medians = np.stack([columns[f"{name}_median"] for name in names], axis=1)
        errors = {
            "squared_error": np.nansum(np.square(means - targets), axis=1) + 0 * n_observed,
            "absolute_error": np.nansum(np.abs(medians - targets), axis=1) + 0 * n_observed,
        }
        if kind == "count":
            modes = np.stack([columns[f"{name}_mode"] for name in names], axis=1)
            errors["error_rate"] = ((modes != targets) & is_observed).sum(axis=1) / n_observed
        return errors
    p = np.stack(list(columns.values()), axis=1)
    wrong = (p > 0.5) != (targets > 0.5) if kind == "binary" else p.argmax(axis=1)[:, None] != targets
    return {"error_rate": (wrong & is_observed).sum(axis=1) / n_observed}


def _summary(table: pd.DataFrame, n_draws: int) -> dict[str, float]:
    n_cases = len(table)
    summary: dict[str, float] = {"cases": n_cases, "draws": n_draws}
    for measure in MEASURES:
        if measure in table:
            n_known = int(table[measure].count())  # of cases with a target that is not missing
            summary[measure] = float(table[measure].mean())
            if n_known > 1:
                summary[f"{measure}_se"] = float(table[measure].std(ddof=1) / math.sqrt(n_known))
    return summary
