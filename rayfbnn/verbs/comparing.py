"""The verb that holds approximate posteriors against the exact one of the same model on the same data."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.judging.words import heat_warning
from rayfbnn.arrays import Array
from rayfbnn.data import Source, read_training
from rayfbnn.draws.fits import fit_summary
from rayfbnn.draws.view import Draws, committed
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operation import Tuning, gradient_evaluations
from rayfbnn.output.whole_file import make_folder, whole_file, whole_files
from rayfbnn.run.fitter import checked_state_shapes
from rayfbnn.run.progress import show_share, show_text
from rayfbnn.spec.written import METHODS
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    Spec,
    cases_with_targets,
    check_decisive,
    check_folder,
    output_path,
    read_spec,
    reducing,
    warn_of_equal_weights,
    warn_of_few_runs,
)
from rayfbnn.verbs.sampling import sample_or_resume

if TYPE_CHECKING:
    from rayfbnn.answers.comparison import Compared, Comparison
    from rayfbnn.answers.judging.verdicts import Decisive
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec

_REFERENCE = "hmc"
_EVIDENCE_FILE = "evidence.json"
_TEMPERATURES, _POWER = 1000, 4.0  # the defaults of `evidence`
_log = logging.getLogger(__name__)


def compare(
    spec: Spec,
    out: str | Path,
    *,
    data: Source,
    methods: str | Sequence[str] = (_REFERENCE,),
    exact: str | Path | None = None,
    set: Sequence[str] = (),
    decisive: Decisive = "all",
    annealing_runs: int = 0,
    workers: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Fit a model by several methods, and compare their predictions with those of the exact posterior.

    Each method has its store, METHOD.zarr, in the folder. A store that is there already is resumed, or used
    as it is if it is complete. The folder also gets the table as compare.csv, and the picture compare.png.

    Test scores say how good predictions are, distances how close a method is to the posterior; they may rank
    methods differently. No distance means anything below that between halves of the reference, which is the
    last row of the table. Warnings say if the reference does not pass `diagnose`, if a method predicts no
    better than without the inputs, and if the momentum of `sghmc` is far too hot.

    Parameters
    ----------
    spec
        See `sample`.
    out
        The folder for stores, table and picture; created if it does not exist.
    data
        The test cases with their targets: a CSV or Parquet file. From Python it may be a DataFrame (of
        pandas, Polars or Arrow) or a pair (X, y) as well.
    methods
        The methods to compare, separated by commas, in the order of the table's rows: hmc, sghmc, laplace,
        bbb, vep, map, with their settings in the section methods of the configuration. From Python it may be
        a list as well.
    exact
        A store with draws that count as exact, made by a run or by `reject`. The default is the store of hmc.
    set, decisive
        See `sample`.
    annealing_runs
        Number of runs of annealed importance sampling, each from the prior to the posterior, that estimate
        the log evidence of the model for the row of the reference, as `evidence` does. 0 makes none.
    workers
        See `sample`.
    progress
        Shows the progress on standard error, and before each fit how long it will take.

    Returns
    -------
    Comparison
        The table, whether the reference passes `diagnose`, and if not the reasons.
    """
    from rayfbnn.answers.comparison import Comparison, compare_draws
    from rayfbnn.pictures.comparison import picture
    from rayfbnn.run.on_ray.cluster import check_ray

    spec, folder, names = read_spec(spec, set), output_path(out), _read_methods(methods, exact)
    check_decisive(decisive)
    _check_folder(folder)
    of_exact = None if exact is None else Store.open(exact)
    resolved, dataset = read_training(spec, None)
    _check_methods(resolved, dataset, names)
    _check_dispersion(resolved if of_exact is None else of_exact.spec, resolved, names)
    check_annealing(resolved, annealing_runs)
    inputs, targets = cases_with_targets(data, resolved, dataset)
    reference = None if of_exact is None else committed(of_exact)
    if not folder.exists():
        check_ray(workers, None)
    make_folder(folder)
    runs: dict[str, Draws] = {}
    for name in names:
        if progress:
            show_text(f"{name}:")
        path = folder / f"{name}.zarr"
        sample_or_resume(spec, path, method=name, workers=workers, progress=progress)
        runs[name] = committed(Store.open(path))
    if reference is None:
        reference = runs[_REFERENCE]
    reasons = _doubts(reference, inputs, decisive)
    warn_of_equal_weights(reference)
    for reason in reasons:
        _log.warning("the reference %s may not have converged: %s", reference.path, reason)
    # Workers are started once more only where they were asked for.
    with (
        reducing(workers if workers and workers > 1 else None, None) as executor,
        show_share("comparing", show=progress) as on_progress,
    ):
        rows, floor = compare_draws(
            reference, runs, inputs, targets, executor=executor, on_progress=on_progress
        )
    rows = {name: _with_costs(row, runs[name].store) for name, row in rows.items()}
    _warn_of_poor_fits(rows, reference, targets)
    for run in runs.values():
        if warning := heat_warning(run.store):
            _log.warning("%s", warning)
    called = _REFERENCE if exact is None else str(exact)
    # A reference that is not among the methods has no other row.
    rows[f"halves of {called}"] = floor if exact is None else _with_costs(floor, reference.store)
    if annealing_runs:
        exact_row = _REFERENCE if _REFERENCE in rows else f"halves of {called}"
        estimate = annealed(resolved, dataset, folder, runs=annealing_runs, progress=progress)
        rows[exact_row] = _with_evidence(rows[exact_row], estimate)
    comparison = Comparison(called, rows, reasons)
    with whole_files(folder):
        with whole_file(folder / "compare.csv") as file:
            comparison.to_frame().to_csv(file, index=False)
        picture(comparison, runs, folder / "compare.png")
    return comparison


def _read_methods(methods: str | Sequence[str], exact: str | Path | None) -> list[str]:
    names = [name.strip() for name in methods.split(",")] if isinstance(methods, str) else list(methods)
    for name in names:
        if name not in METHODS:
            raise ConfigError(f'methods: "{name}" is no method; the methods are {", ".join(METHODS)}')
        if names.count(name) > 1:
            raise ConfigError(f"methods: {name} is there twice; name each method once")
    if exact is None and _REFERENCE not in names:
        raise ConfigError(
            f"methods: needs {_REFERENCE}, or `exact` with a store of exact draws, got {', '.join(names)}"
        )
    return names


def _check_folder(folder: Path) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise ConfigError(f"out: {folder} is a file; give a folder for the stores")
    check_folder(folder / "compare.png" if folder.is_dir() else folder)


def _check_methods(spec: RunSpec, dataset: Dataset, methods: Sequence[str]) -> None:
    """Raise ConfigError, naming the method, if one does not cover the model or lacks settings."""
    for method in methods:
        asked = spec.for_method(method)
        if asked.fit is not None:
            checked_state_shapes(asked, dataset)
        else:
            asked.check_data(dataset.n_cases)


def _check_dispersion(reference: RunSpec, spec: RunSpec, methods: Sequence[str]) -> None:
    """Raise ConfigError if counts of a method have another dispersion than those of the reference."""
    for method in methods:
        asked = spec.for_method(method)
        if asked.model.dispersion != reference.model.dispersion:
            own, other = (run.model_keys.dispersion or "none" for run in (asked, reference))
            raise ConfigError(
                f'model.dispersion: {method} would have "{own}", and the reference "{other}"; write the'
                ' same for both, such as "none" for Poisson counts'
            )


def check_annealing(spec: RunSpec, runs: int) -> None:
    """Raise ConfigError for a number of runs or for a model without an estimate; 0 runs need no check."""
    if runs == 0:
        return
    if runs < 2:
        raise ConfigError(
            f"annealing_runs: a standard error needs at least 2 runs, better 100 or more, got {runs};"
            " use 0 for no estimate"
        )
    if spec.temperature != 1:
        raise ConfigError(
            "annealing_runs: the evidence is defined at temperature 1, got temperature ="
            f" {spec.temperature:g}; leave one of them out"
        )
    if spec.n_parts > 1:
        raise ConfigError(
            f"annealing_runs: the evidence needs all cases in one place, got data.parts = {spec.n_parts};"
            " leave one of them out"
        )


def _doubts(reference: Draws, inputs: Array, decisive: Decisive) -> tuple[str, ...]:
    from rayfbnn.answers.diagnostics import diagnose_draws

    if reference.kind == "exact":
        return ()
    diagnosis = diagnose_draws(reference, inputs=inputs, decisive=decisive)
    if diagnosis.ok:
        return ()
    reasons = diagnosis.predictions.reasons if decisive == "predictions" else diagnosis.reasons
    return tuple(dict.fromkeys((diagnosis.decided_by, *reasons)))


def _warn_of_poor_fits(rows: dict[str, Compared], run: Draws, targets: Array) -> None:
    """Warn of methods that predict labels or real numbers no better than without the inputs."""
    from rayfbnn.answers.distances import log_probability_without_inputs

    model = run.spec.data_model
    if not (model.has_labels or model.is_real):
        return
    data, units = run.data, run.data.target_units
    scaled = units.to_network(targets)
    least = log_probability_without_inputs(data.standardized_targets, scaled, has_labels=model.has_labels)
    is_known = ~np.isnan(targets).all(axis=1)
    least -= float(units.log_jacobian(targets[is_known]).sum(axis=1).mean())
    for name, row in rows.items():
        if row.values["log_probability"] <= least:
            _log.warning(
                "%s predicts no better than without the inputs: its log probability is %.3f, and that of the"
                " shares, or of the mean and standard deviation, of the training targets %.3f",
                name,
                row.values["log_probability"],
                least,
            )


def _with_costs(row: Compared, store: Store) -> Compared:
    known: dict[str, float] = {} if store.seconds is None else {"seconds": store.seconds}
    if store.kind != "exact":  # rejection has no gradients
        known["gradients"] = gradients(store)
    if store.kind == "approximate":
        summary = fit_summary(store)
        log_evidence = summary.log_evidence[summary.weight > 0]
        if np.isfinite(log_evidence).any():
            known["log_evidence"] = float(np.nanmax(log_evidence))
    return replace(row, values=row.values | known)


def _with_evidence(row: Compared, estimate: dict[str, float]) -> Compared:
    """Return a row with the log evidence by annealed importance sampling, its error, and the runs' worth."""
    way = "ask for more annealing runs, or use `evidence` with more temperatures"
    warn_of_few_runs(int(estimate["runs"]), estimate["effective_runs"], way)
    known = {"log_evidence": estimate["log_evidence"], "log_evidence_se": estimate["standard_error"]}
    return replace(row, values=row.values | known)


def gradients(store: Store) -> float:
    """Return how many gradients of all cases the fit of a store took, of all chains together.

    A gradient of a batch counts as its share of the cases. An approximation does its own counting.
    """
    spec, n_cases = store.spec, len(store.targets)
    if store.kind == "approximate":
        fit = fit_summary(store)
        return fit.approximation.gradients(fit.state, n_cases=n_cases, n_outputs=spec.network.outputs)
    if spec.ladder is not None:
        return _gradients_of_ladders(store)
    total, settings = 0.0, store.tuning.latest()[1]
    for number, phase in enumerate(spec.phase):
        tuning = Tuning(settings, is_measured=number in spec.tuning_phases)
        for operation in phase.operations:
            for update in operation.unrolled():
                batch = getattr(update, "batch", None)
                share = 1.0 if batch is None else min(1.0, batch / n_cases)
                total += phase.iterations * share * gradient_evaluations((update,), tuning=tuning)
    return total * store.n_chains


def _gradients_of_ladders(store: Store) -> float:
    """Return how many gradients a run of ladders takes, of all ladders together, up to its planned end.

    Half of the ladders have a chain in the warm-up, and the levels of the other half are annealed there.
    """
    spec, log = store.spec, store.tuning
    settings, n_pairs = log.latest()[1], store.n_chains / 2
    total = 0.0
    for number, phase in enumerate(spec.phase[: spec.annealing_phase + 1]):
        tuning = Tuning(settings, is_measured=number < spec.annealing_phase)
        total += n_pairs * phase.iterations * gradient_evaluations(phase.operations, tuning=tuning)
    rounds = [one for one in log.rounds if one.of == "ladders"]
    found = [one.settings for one in log.ladder_rounds()]
    lengths = [spec.phase[spec.annealing_phase].iterations / 2, *(one.last - one.first + 1 for one in rounds)]
    for length, of_round in zip([*lengths, spec.phase[-1].iterations], found, strict=False):
        total += store.n_chains * length * sum(of_round.steps)
    return total


def annealed(spec: RunSpec, dataset: Dataset, folder: Path, *, runs: int, progress: bool) -> dict[str, float]:
    """Return the estimate in the folder if it is from the same number of runs, or compute it.

    The runs use Gibbs updates and `hybrid` with fixed stepsizes, whatever the phases of the configuration.
    """
    from rayfbnn.run.evidence import evidence
    from rayfbnn.spec.defaults import default_annealing

    file = folder / _EVIDENCE_FILE
    if file.exists() and (kept := _kept_estimate(file))["runs"] == runs:
        return kept
    with show_share(show=progress) as on_progress:
        estimated = evidence(
            spec,
            dataset,
            runs=runs,
            operations=default_annealing(),
            temperatures=_TEMPERATURES,
            power=_POWER,
            on_progress=on_progress,
        )
    estimate = {
        "runs": runs,
        "log_evidence": estimated.log_marginal_likelihood,
        "standard_error": estimated.standard_error,
        "effective_runs": estimated.effective_runs,
    }
    with whole_file(file) as unfinished:
        unfinished.write(json.dumps(estimate).encode())
    return estimate


def _kept_estimate(file: Path) -> dict[str, float]:
    try:
        kept = json.loads(file.read_text())
        names = ("runs", "log_evidence", "standard_error", "effective_runs")
        return {name: float(kept[name]) for name in names}
    except (ValueError, TypeError, KeyError) as exc:
        raise ConfigError(
            f"{file}: not a file that `compare` wrote; delete it to estimate the evidence again"
        ) from exc
