"""Predictive means, medians, quantiles, probabilities and errors, in bounded memory."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special

from rayfbnn.answers.contributions import check_contributions, contribution_columns
from rayfbnn.answers.effective import mcse_mean
from rayfbnn.answers.wording import known
from rayfbnn.arrays import Array
from rayfbnn.draws.agreement import check_independent, check_same_posterior
from rayfbnn.draws.outputs import activation_bytes, output_blocks
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError, DataError, StoreError
from rayfbnn.markup import tables
from rayfbnn.model.prior import noise_precisions

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.judging.verdicts import Verdict
    from rayfbnn.draws.view import Draws
    from rayfbnn.model.likelihood.data_model import DataModel
    from rayfbnn.model.likelihood.records import Predictive

MEASURES = ("squared_error", "absolute_error", "log_probability", "error_rate", "expected_error_rate")
_ROWS_SHOWN = 10  # in a notebook
_FAR = 100.0  # times the reach of the training cases; vague priors can give infinities nearer than that
_SQUARE_IS_LARGE = 1e15  # float32 holds the sums of squares of smaller outputs


@dataclass(frozen=True)
class Prediction:
    """The predictions of a posterior.

    Attributes
    ----------
    summary
        Number of cases and draws. If the cases have targets, also the mean over cases of each measure that
        applies, and its standard error as <measure>_se (absent for a single case). For binary, class and
        count targets, expected_error_rate is present even if the cases have no targets. If the draws are not
        from the posterior but from an earlier phase, early_phase is the number of that phase.
    table
        One row for each case, on the scale of the data file. Its last column is early_phase, if the summary
        has it.
    verdict
        Whether the draws are enough for these predictions; None if no verdict was requested, or if the draws
        are not of Markov chains.
    """

    summary: dict[str, float]
    table: pd.DataFrame
    verdict: Verdict | None = None

    def _repr_html_(self) -> str:
        """Return the summary, the first rows of the table and the verdict as HTML, for notebooks."""
        rows = self.table.head(_ROWS_SHOWN)
        cells = [(number, *row) for number, row in enumerate(rows.itertuples(index=False), start=1)]
        more = len(self.table) - len(rows)
        left_out = tables.paragraph(f"and {more:,} more cases") if more else ""
        verdict = "" if self.verdict is None else self.verdict._repr_html_()
        return self.measures_html() + tables.table(("case", *rows.columns), cells) + left_out + verdict

    def measures_html(self) -> str:
        """Return the summary as HTML: a row for each measure, with its standard error."""
        rows = [
            (name.replace("_", " "), value, self.summary.get(f"{name}_se"))
            for name, value in self.summary.items()
            if not name.endswith("_se")
        ]
        return tables.table(("", "mean", "standard error"), rows)

    def to_json(self) -> str:
        """Return the summary and the verdict as one JSON object; unknown values are null."""
        document: dict[str, Any] = {name: known(value) for name, value in self.summary.items()}
        if self.verdict is not None:
            verdict = self.verdict.to_dict()
            document["verdict"] = {name: verdict[name] for name in ("grade", "ok", "error")}
        return json.dumps(document)


@np.errstate(over="ignore", invalid="ignore")  # the table is searched for infinities
def predict_from_draws(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array | None = None,
    *,
    contributions: bool = False,
    memory_bytes: float = 256e6,
) -> Prediction:
    """Predict targets at new inputs, averaged over all draws of one or several runs of the same posterior.

    Real targets: every column describes the predictive distribution, noise included,
    p(y | x) = (1/n) sum_d p(y | f_d(x), sigma_d), a mixture of Gaussians or t distributions. Its mean is the
    mean of the network outputs f_d(x), even if t noise is too heavy-tailed to have a mean (df <= 1). Its
    standard deviation is infinite for df <= 2. mean_mcse is the Monte Carlo standard error of the mean.
    log_probability is the log of the mean over draws of the joint density of a case's targets. Missing
    targets (NaN) are left out of log_probability and of the errors.
    Heteroscedastic targets: the same with a sigma_d(x).
    Binary targets: p is the mean over draws of P(y = 1). Class targets: p_k likewise.
    Count targets: mean, sd, mode, median and quantiles of the mixture of Poisson distributions; the error
    rate is that of guessing the mode.
    Survival targets: the same columns without the mode, for the mixture of survival times, and the survival
    curve P(T > t) at the hazard's time points, or for a constant hazard at the quartiles of the training
    times. A censored time has a log_probability and no errors.
    expected_error_rate is the error rate of the guess that the predictive distribution itself expects: the
    mean over a case's targets of 1 - max_k p_k for labels (binary: of min(p, 1 - p)), and of one minus the
    probability of the mode for counts. It is given for every case, whether its targets are known or not.

    Cases are processed in chunks and draws in blocks. Memory grows with the number of draws only by the needs
    of one case: 8 bytes a draw for an output, and 8 for a noise sigma.

    Parameters
    ----------
    inputs : (n_cases, n_inputs)      as in the data file
    targets : (n_cases, n_targets)    as in the data file
    contributions : bool              adds the columns of `contribution_columns` to the table
    memory_bytes : float              approximate memory to use at once
    """
    import pandas as pd

    check_same_posterior(runs)
    check_independent(runs)
    if contributions:
        check_contributions(runs)
    inputs, targets = _checked(runs[0], inputs, targets)
    n_draws = sum(run.total for run in runs)
    model, n_targets = runs[0].spec.data_model, runs[0].data.n_targets
    sigmas = np.concatenate([noise_sigmas(run).reshape(-1, run.total) for run in runs], axis=1)
    # Half of the memory for the outputs of all draws, a quarter for a block of draws, the rest for copies.
    per_case = 8 if model.has_labels else 8 * n_draws * _n_values(model, n_targets)
    network = runs[0].spec.network
    per_case = max(per_case, 4 * model.n_cells * activation_bytes(network, runs[0].spec.dtype))
    cases_at_once = max(1, int(memory_bytes / 2 / per_case))
    tables = []
    for first in range(0, len(inputs), cases_at_once):
        cases = slice(first, first + cases_at_once)
        chunk = (inputs[cases], None if targets is None else targets[cases])
        tables.append(_predict_chunk(runs, *chunk, sigmas=sigmas, block_bytes=memory_bytes / 4))
    table = pd.concat(tables, ignore_index=True)
    if contributions:
        columns = contribution_columns(runs, inputs, memory_bytes=memory_bytes)
        table = _with_columns(table, columns)
    _check_far_cases(table, inputs, targets, runs[0])
    summary = _summary(table, n_draws)
    phase = runs[0].early_phase
    if phase is not None:
        table["early_phase"] = summary["early_phase"] = phase
    return Prediction(summary, table)


def first_infinity(table: pd.DataFrame) -> tuple[int, str] | None:
    """Return the row, counted from 0, and the column of the first infinite number in a table, or None."""
    numbers = table.select_dtypes("number")
    places = np.argwhere(np.isinf(numbers.to_numpy(dtype=np.float64)))
    return None if len(places) == 0 else (int(places[0, 0]), str(numbers.columns[places[0, 1]]))


def _check_far_cases(table: pd.DataFrame, inputs: Array, targets: Array | None, run: Draws) -> None:
    """Raise DataError for an infinite prediction of a case that is far outside the training cases.

    The standard deviation of t noise with at most two degrees of freedom is always infinite and not tested.
    """
    model, data = run.spec.data_model, run.data
    if getattr(model, "alpha", math.inf) <= 2:
        table = table[[name for name in table if not str(name).endswith("_sd")]]
    place = first_infinity(table)
    if place is None:
        return
    row, column = place
    values = np.concatenate([inputs[row], [] if targets is None else targets[row]])
    n_known = len(values)
    center = np.concatenate([data.input_center, data.target_center])[:n_known]
    training = np.hstack([data.inputs, data.targets])[:, :n_known]
    reach = np.nanmax(np.abs(training - center), axis=0)
    excess = np.nan_to_num(np.abs(values - center) / np.maximum(reach, np.finfo(float).tiny))
    farthest = int(excess.argmax())
    if excess[farthest] > _FAR:
        name = (*data.input_names, *data.target_names)[farthest]
        raise DataError(
            f"data: row {row + 1}, column {name}: {values[farthest]:g} is so far from the training cases that"
            f" {column} is not finite; correct it, or leave the row out"
        )


def _with_columns(table: pd.DataFrame, columns: dict[str, Array]) -> pd.DataFrame:
    """Return a table with further columns; ConfigError if it already has a column of the same name."""
    import pandas as pd

    for name in columns:
        if name in table:
            raise ConfigError(
                f"contributions: the table already has a column {name}, because of a target's"
                " name; rename the target, or leave contributions out"
            )
    return pd.concat([table, pd.DataFrame(columns)], axis=1)


def _checked(run: Draws, inputs: Array, targets: Array | None) -> tuple[Array, Array | None]:
    """Return the arrays as float64 (n_cases, columns); DataError if a shape or value does not fit."""
    data = run.data
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


def _n_values(model: DataModel, n_targets: int) -> int:
    """Return the number of values that a draw gives for a case: its outputs, or one for each cell."""
    return model.n_cells if model.n_cells > 1 else model.n_outputs(n_targets)


def _predict_chunk(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array | None,
    *,
    sigmas: Array,
    block_bytes: float,
) -> pd.DataFrame:
    """Return the rows of the table for some cases, in one pass over all draws."""
    import pandas as pd

    data, model = runs[0].data, runs[0].spec.data_model
    reduced = _reduce_draws(runs, inputs, targets, block_bytes)
    if reduced.outputs is None:
        columns = dict(zip(model.probability_columns(data.target_names), reduced.mean.T, strict=True))
        expected_errors: Array | None = model.expected_errors(reduced.mean)
    else:
        predicted = model.predict(reduced.outputs, sigmas[None], data.targets)
        columns = _scaled_columns(predicted, runs)
        expected_errors = predicted.expected_errors
    expected = {} if expected_errors is None else {"expected_error_rate": expected_errors.mean(axis=1)}
    errors = {} if targets is None else model.errors(columns, targets, data.target_names)
    labels = model.label_columns(columns, data.target_names) if model.has_labels else {}
    columns |= errors | expected | labels
    if targets is not None:
        is_observed = ~np.isnan(targets)
        log_scale = (is_observed * np.log(data.target_scale)).sum(axis=1)
        log_probability = reduced.log_probability - log_scale
        columns["log_probability"] = np.where(is_observed.any(axis=1), log_probability, np.nan)
    return pd.DataFrame(columns)


def _scaled_columns(predicted: Predictive, runs: Sequence[Draws]) -> dict[str, Array]:
    """Return the columns of each target in turn, on the data file's scale, (n_cases,) each."""
    data, scaled = runs[0].data, {}
    error = {"mean_mcse": _mean_mcse(predicted.draw_means, runs)}
    for target, name in enumerate(data.target_names):
        scale, center = data.target_scale[target], data.target_center[target]
        for column, values in (predicted.columns | error | predicted.more).items():
            is_spread = column in ("sd", "mean_mcse")
            scaled[f"{name}_{column}"] = values[:, target] * scale + (0 if is_spread else center)
    return scaled


@dataclass(frozen=True)
class _Reduced:
    """The results of all draws at some cases, on the networks' scale.

    log_probability (n_cases,), or None without targets
    mean            (n_cases, n_labels) mean probabilities, for labels
    outputs         (n_cases, n_outputs, n_draws), for numbers; one run after the other, each by chain
    """

    log_probability: Array | None
    mean: Array = None
    outputs: Array = None


def _reduce_draws(
    runs: Sequence[Draws], inputs: Array, targets: Array | None, block_bytes: float
) -> _Reduced:
    spec, data = runs[0].spec, runs[0].data
    model = spec.data_model
    n_cases, n_outputs = len(inputs), _n_values(model, data.n_targets)
    n_draws = sum(run.total for run in runs)
    standardized = (inputs - data.input_center) / data.input_scale
    if targets is not None:
        targets = (targets - data.target_center) / data.target_scale
    total, log_sum = np.zeros((n_cases, n_outputs)), np.full(n_cases, -np.inf)
    kept = None if model.has_labels else np.empty((n_cases, n_outputs, n_draws), dtype=spec.dtype)
    for run, by_chain in zip(runs, _by_chain(kept, runs), strict=True):
        for chains, draws, outputs, precisions in output_blocks(run, standardized, memory_bytes=block_bytes):
            _check_finite(outputs, run)
            flat = outputs.reshape(-1, n_cases, n_outputs)
            if targets is not None:
                noise = noise_precisions(precisions.reshape(len(flat), -1), run.precision_layout)
                density = model.log_density(flat, targets, noise)
                log_sum = np.logaddexp(log_sum, scipy.special.logsumexp(density, axis=0))
            if by_chain is not None:
                by_chain[:, :, chains, draws] = np.moveaxis(outputs, (0, 1), (2, 3))
            else:
                total += model.probabilities(flat).sum(axis=0)
    log_probability = None if targets is None else log_sum - math.log(n_draws)
    if kept is None:
        return _Reduced(log_probability, mean=total / n_draws)
    return _Reduced(log_probability, outputs=kept)


def _check_finite(outputs: Array, run: Draws) -> None:
    """Raise StoreError unless all outputs (n_chains, n_draws, n_cases, n_outputs) are finite."""
    is_finite = np.isfinite(outputs)
    if not is_finite.all():
        n_bad, dtype = int((~is_finite.all(axis=(2, 3))).sum()), run.spec.dtype
        better = "sample with dtype = float64 or " if dtype == "float32" else "sample with "
        raise StoreError(
            f"{run.path}: at least {n_bad} of the draws have outputs that are not finite in {dtype};"
            f" {better}less vague priors (larger alphas, smaller widths)"
        )


def _by_chain(kept: Array | None, runs: Sequence[Draws]) -> list[Array]:
    """Return each run's part of `kept` (n_cases, n_outputs, n_draws) as a view (..., n_chains, n_draws)."""
    if kept is None:
        return [None] * len(runs)
    ends = np.cumsum([run.total for run in runs])
    return [
        kept[:, :, end - run.total : end].reshape(*kept.shape[:2], run.n_chains, run.n_draws)
        for run, end in zip(runs, ends, strict=True)
    ]


def _mean_mcse(outputs: Array, runs: Sequence[Draws]) -> Array:
    """Return the Monte Carlo error of means over draws, (n_cases, n_outputs); NaN below 4 draws a chain.

    The chains of all runs are taken together, each cut to its last draws, as many as the shortest run has.
    Runs that disagree therefore make the error larger. The draws left out are assumed to be like the others.
    """
    n_common = min(run.n_draws for run in runs)
    pieces = [part[..., part.shape[-1] - n_common :] for part in _by_chain(outputs, runs)]
    chains = np.concatenate(pieces, axis=2) if len(pieces) > 1 else pieces[0]
    if max(chains.max(initial=0), -chains.min(initial=0)) > _SQUARE_IS_LARGE:
        chains = chains.astype(np.float64)
    share = chains.shape[2] * n_common / outputs.shape[2]
    return mcse_mean(chains) * math.sqrt(share)


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
