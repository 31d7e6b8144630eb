"""Predictive means, medians, quantiles and errors, in bounded memory, and the verdict on them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.answers.effects import check_contributions, contribution_columns
from rayfbnn.answers.judging.chain_average import average_error
from rayfbnn.answers.judging.verdicts import Verdict, VerdictEvidence, judge_predictions, modes, summarize
from rayfbnn.answers.judging.words import as_json, word_of_chains
from rayfbnn.answers.measures import means_over_cases, measures_of_targets
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import is_of_predictions, quantities
from rayfbnn.draws.subsets import check_independent, check_same_posterior, thinned
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.model.likelihood.data_model import QUANTILES
from rayfbnn.numerals import plain
from rayfbnn.output.facts import Answer, Fact, Pairs, Paragraph, TableFact, html_of, with_error
from rayfbnn.reduce.passes import TaskExecutor, TasksInProcess
from rayfbnn.reduce.predictive import PredictiveSummary, summaries

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.judging.fit import FitVerdict


_ROWS_SHOWN, _DIGITS = 10, 5  # in a notebook, and of measures
_MOMENTS = ("mean", "sd", "mean_mcse")
_FAR = 100.0  # times the reach of the training cases; vague priors can give infinities nearer than that


@dataclass(frozen=True)
class UsedDraws:
    """The draws of one store that an answer is from.

    path           of the store
    chains         number of chains
    committed      draws of each chain that were committed when the store was opened; later ones are not used
    used           how many of them were used of each chain
    skipped        draws that were left out at the start of each chain
    chain_numbers  numbers of the chains, from 0, if only some were asked for
    """

    path: str
    chains: int
    committed: int
    used: int
    skipped: int = 0
    chain_numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Prediction(Answer):
    """The predictions of a posterior.

    Attributes
    ----------
    summary
        Number of cases and draws. If the cases have targets, also the mean over cases of each measure that
        applies, and its standard error as <measure>_se (absent for a single case). Targets that
        are numbers have <target>_rmse, the root of the mean squared error of each target's predictive mean
        (of its median, if it has t noise on a log scale and so no mean), and survival times c_index,
        Harrell's C-index of their predictive medians. For binary, class and count targets,
        expected_error_rate is present even if the cases have no targets. If the draws are not from the
        posterior but from an earlier phase, early_phase is the number of that phase.
    table
        One row for each case, on the scale of the data file. Its last column is early_phase, if the summary
        has it.
    verdict
        Whether the draws are enough for these predictions; None if no verdict was requested, or if the draws
        are not of Markov chains.
    stores
        The stores and which of their draws were used; empty if the draws are in memory.
    fit
        Whether the predictive distributions describe the targets of the cases; None if these are not known,
        or if no verdict was requested.
    equal_weights
        The same predictions with equal weights of all ladders, if those above weigh phases of ladders by
        their evidence; else None.
    """

    summary: dict[str, float]
    table: pd.DataFrame
    verdict: Verdict | None = None
    stores: tuple[UsedDraws, ...] = ()
    fit: FitVerdict | None = None
    equal_weights: Prediction | None = None

    def facts(self) -> list[Fact]:
        """Return the measures of the summary, the verdict on fit, and which draws were used."""
        rows, equal = {}, self.equal_weights
        for name, (value, error) in self.measures.items():
            others = "" if equal is None else f"   (equal weights {plain(equal.summary[name], _DIGITS)})"
            rows[name] = with_error(value, error, _DIGITS) + others
        if self.fit is not None:
            rows["fit"] = self.fit.grade_and_p
        if self.stores and (numbers := self.stores[0].chain_numbers) is not None:
            rows["chains"] = ", ".join(map(str, numbers))
        if any(store.skipped for store in self.stores):
            parts = dict.fromkeys(f"{store.skipped} of {store.committed}" for store in self.stores)
            rows["skipped"] = f"{', '.join(parts)} draws of each chain"
        return [Pairs(rows)]

    def _repr_html_(self) -> str:
        rows = self.table.head(_ROWS_SHOWN).set_axis(range(1, min(len(self.table), _ROWS_SHOWN) + 1))
        more = len(self.table) - len(rows)
        facts = [*self.facts(), TableFact.from_frame(rows, "case")]
        facts += [Paragraph(f"and {more:,} more cases")] if more else []
        return html_of(facts) + "".join(
            one._repr_html_() for one in (self.verdict, self.fit) if one is not None
        )

    @property
    def measures(self) -> dict[str, tuple[float, float | None]]:
        """The measures of the summary by name, each with its standard error if there is one."""
        names = (name for name in self.summary if not name.endswith("_se"))
        return {name: (self.summary[name], self.summary.get(f"{name}_se")) for name in names}

    def to_json(self) -> str:
        """Return the summary and the verdicts as one JSON object; unknown values are null."""
        document: dict[str, Any] = dict(self.summary)
        if self.verdict is not None:
            verdict = self.verdict.to_dict()
            document["verdict"] = {name: verdict[name] for name in ("grade", "ok", "error")}
        if self.fit is not None:
            document["fit"] = self.fit.to_dict()
        if self.equal_weights is not None:
            document["equal_weights"] = self.equal_weights.summary
        if self.stores:
            document["stores"] = self.stores
        return json.dumps(as_json(document))


@np.errstate(over="ignore", invalid="ignore")  # the table is searched for infinities
def predict_from_draws(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array | None = None,
    *,
    contributions: bool = False,
    executor: TaskExecutor | None = None,
    memory_bytes: float = 256e6,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Prediction:
    """Predict targets at new inputs, averaged over all draws of one or several runs of the same posterior.

    Real targets: every column describes the predictive distribution, noise included,
    p(y | x) = (1/n) sum_d p(y | f_d(x), sigma_d), a mixture of Gaussians or t distributions. Its mean is the
    mean of the network outputs f_d(x), even if t noise is too heavy-tailed to have a mean (df <= 1). Its
    standard deviation is infinite for df <= 2. mean_mcse is the Monte Carlo standard error of the mean.
    log_probability is the log of the mean over draws of the joint density of a case's targets. Missing
    targets (NaN) are left out of log_probability and of the errors.
    Heteroscedastic targets: the same with a sigma_d(x).
    Targets on a log scale: quantiles, densities and moments of exp of this mixture, in the units of the file.
    With t noise the moments do not exist and have no columns.
    Binary targets: p is the mean over draws of P(y = 1). Class targets: p_k likewise.
    Count targets: mean, sd, mode, median and quantiles of the mixture of Poisson distributions; the error
    rate is that of guessing the mode.
    Survival targets: the same columns without the mode, for the mixture of survival times, and the survival
    curve P(T > t) at the hazard's time points, or for a constant hazard at the quartiles of the training
    times. A censored time has a log_probability and no errors.
    expected_error_rate is the error rate of the guess that the predictive distribution itself expects: the
    mean over a case's targets of 1 - max_k p_k for labels (binary: of min(p, 1 - p)), and of one minus the
    probability of the mode for counts. It is given for every case, whether its targets are known or not.

    The draws are read in several passes, and only sums over them are kept. Memory does not grow with the
    number of draws.

    inputs : (n_cases, n_inputs)      as in the data file
    targets : (n_cases, n_targets)    as in the data file
    contributions : bool              adds the columns of `contribution_columns` to the table
    executor                          runs the tasks; this process unless given
    memory_bytes : float              approximate memory for sums
    on_progress : callable            called with the share of the work that is done, about
    """
    import pandas as pd

    check_same_posterior(runs)
    check_independent(runs)
    if contributions:
        check_contributions(runs)
    inputs, targets = _checked(runs[0], inputs, targets)
    data, model = runs[0].data, runs[0].spec.data_model
    executor = executor or TasksInProcess()
    parts = summaries(
        runs,
        data.standardized(inputs),
        None if targets is None else data.target_units.to_network(targets),
        executor=executor,
        quantiles={} if model.has_labels else QUANTILES,
        memory_bytes=memory_bytes,
        on_progress=on_progress,
    )
    tables = [_table(runs[0], summary, None if targets is None else targets[at]) for at, summary in parts]
    table = pd.concat(tables, ignore_index=True)
    if contributions:
        columns = contribution_columns(runs, inputs, executor=executor, memory_bytes=memory_bytes / 4)
        for name in columns:
            if name in table:
                raise ConfigError(
                    f"contributions: the table already has a column {name}, because of a target's"
                    " name; rename the target, or leave contributions out"
                )
        table = pd.concat([table, pd.DataFrame(columns)], axis=1)
    _check_far_cases(table, inputs, targets, runs[0])
    summary = {"cases": len(table), "draws": sum(run.total for run in runs)} | means_over_cases(table)
    if targets is not None:
        summary |= measures_of_targets(runs[0], table, targets)
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
    scaled = data.standardized(inputs[row])
    if targets is not None:
        scaled = np.concatenate([scaled, data.target_units.to_network(targets[row])])
    training = np.hstack([data.standardized_inputs, data.standardized_targets])[:, :n_known]
    reach = np.nanmax(np.abs(training), axis=0)
    excess = np.nan_to_num(np.abs(scaled) / np.maximum(reach, np.finfo(float).tiny))
    farthest = int(excess.argmax())
    if excess[farthest] > _FAR:
        name = (*data.input_names, *data.target_names)[farthest]
        raise DataError(
            f"data: row {row + 1}, column {name}: {values[farthest]:g} is so far from the training cases that"
            f" {column} is not finite; correct it, or leave the row out"
        )


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


def _table(run: Draws, summary: PredictiveSummary, targets: Array | None) -> pd.DataFrame:
    """Return the rows of the table for some cases; targets (n_cases, n_targets) are as on file."""
    import pandas as pd

    data, model = run.data, run.spec.data_model
    if model.has_labels:
        columns = dict(zip(model.probability_columns(data.target_names), summary.mean.T, strict=True))
        expected: Array | None = model.expected_errors(summary.mean)
    else:
        columns = _scaled_columns(run, summary)
        expected = None if summary.mass is None else 1 - summary.mass
    errors = {} if targets is None else model.errors(columns, targets, data.target_names)
    labels = model.label_columns(columns, data.target_names) if model.has_labels else {}
    columns |= errors
    if expected is not None:
        columns["expected_error_rate"] = expected.mean(axis=1)
    columns |= labels
    if targets is not None:
        is_observed = ~np.isnan(targets)
        log_jacobian = data.target_units.log_jacobian(targets).sum(axis=1)
        columns["log_probability"] = np.where(
            is_observed.any(axis=1), summary.log_probability - log_jacobian, np.nan
        )
    return pd.DataFrame(columns)


def _scaled_columns(run: Draws, summary: PredictiveSummary) -> dict[str, Array]:
    """Return the columns of each target in turn, on the data file's scale, (n_cases,) each.

    A target on a log scale that has no mean has no columns for the mean, its error and the sd.
    """
    data = run.data
    summary = summary.in_file_units(data.target_units)
    quantiles = dict(summary.quantiles)
    named = {"mean": summary.mean, "median": quantiles.pop("median")}
    if summary.modes is not None:
        named["mode"] = summary.modes
    named |= {"sd": summary.sd, **quantiles, "mean_mcse": summary.mcse}
    named |= {name: values[:, None] for name, values in summary.curves.items()}
    has_moments = run.spec.data_model.has_exponential_moments | ~data.target_units.is_log
    return {
        f"{name}_{column}": values[:, target]
        for target, name in enumerate(data.target_names)
        for column, values in named.items()
        if has_moments[target] or column not in _MOMENTS
    }


def weighed_by_evidence(runs: Sequence[Draws]) -> tuple[list[Draws], str]:
    """Weigh ladders by their evidence where phases of them remain; return draws, and a sentence about it.

    Runs without ladders are returned unchanged.
    """
    if not any(run.is_of_ladders for run in runs):
        return list(runs), ""
    from rayfbnn.answers.judging.ladder_verdict import pooled_by_evidence

    return pooled_by_evidence(runs)


_CASES = 10
_DRAWS, _LEAST_DRAWS = 4_000, 100  # of all chains together, and of each: enough for an ESS of 400


@np.errstate(over="ignore", invalid="ignore")  # a case may be far outside the training cases
def verdict_on_predictions(runs: Sequence[Draws], inputs: Array) -> Verdict | None:
    """Judge predictions that average over one or several runs.

    The result is None unless all draws are of Markov chains from the posterior. Draws of an earlier phase are
    not judged, because they are not from the posterior.

    At most 50 cases, 16 blocks of each batch and about 4,000 draws are used, so the time does not grow with
    the runs or the cases. Divergences are not counted, and no number of iterations is given.

    inputs  (n_cases, n_inputs) as in the data file
    """
    if any(run.kind != "mcmc" or run.early_phase is not None for run in runs):
        return None
    at_most = max(_LEAST_DRAWS, _DRAWS // sum(run.n_chains for run in runs))
    some = [thinned(run, at_most) for run in runs]
    of_runs = [quantities(run, cases=_CASES, inputs=inputs) for run in some]
    n_draws = min(run.n_draws for run in some)  # the last ones of each run
    by_name = {
        name: np.concatenate([of_run[name][:, -n_draws:] for of_run in of_runs])
        for name in of_runs[0]
        if is_of_predictions(name)
    }
    summary = summarize(by_name.items())
    evidence = VerdictEvidence(
        replace(summary, table=summary.table.assign(iterations=math.nan)),
        sum(run.n_chains for run in some),
        n_draws,
        divergences="",
        modes=modes(by_name["log_likelihood"], runs[0].chain_numbers if len(runs) == 1 else None),
        spec=runs[0].spec,
        path=str(runs[0].path),
        word=word_of_chains(runs),
    )
    verdict = judge_predictions(evidence, average_error(some, inputs=inputs))
    if any(run.is_of_ladders for run in runs):
        from rayfbnn.answers.judging.ladder_verdict import overruled_by_ladders

        return overruled_by_ladders(verdict, runs)
    return verdict
