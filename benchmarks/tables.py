"""Twenty-six tables by the default configuration, in bounded processor time, beside simple baselines.

    python benchmarks/tables.py                                    # all of them
    python benchmarks/tables.py diabetes friedman1 --seconds 120
    python benchmarks/tables.py wine --set chains=8 --no-baselines
    python benchmarks/tables.py diabetes wine --no-baselines --fixed

The configuration has data and the data model, nothing else but what --set says. A run is in one process. It
ends when its predictions are ok or it has the default length, as with `rayfbnn sample`, and counts the time
of its verdicts. With --fixed a second row has a run of the default length, or of --seconds of processor time.
A table has, for each
problem: the mean log probability of the test cases (nats a case, more is better), the number of draws, the
share of test targets in the 80 % intervals (for labels the coverage of sets of labels would be another
matter; counts are placed at random within their steps), the verdict on fit of `diagnose`, and "(right)" or
"(wrong)" where the truth is known, its other two verdicts, each with the worst R-hat and the least ESS, the
share of updates that diverged, and processor seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set
import pandas as pd  # noqa: E402
import table_baselines  # noqa: E402
from machine import append, conditions, heading, pin  # noqa: E402
from table_problems import TABLES, Table  # noqa: E402

import rayfbnn  # noqa: E402
from rayfbnn.data import read_training  # noqa: E402
from rayfbnn.draws.quantities import is_of_predictions  # noqa: E402
from rayfbnn.reduce.effective import MIN_DRAWS  # noqa: E402
from rayfbnn.run.executor import InProcess  # noqa: E402
from rayfbnn.run.hardware import kernel_name, with_batches  # noqa: E402
from rayfbnn.run.running import run_rounds  # noqa: E402
from rayfbnn.spec import RunSpec  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402

LABELS = ("class", "binary")


def configuration(table: Table) -> dict[str, Any]:
    """The keys of a configuration that leaves everything to the defaults."""
    return {
        "data": {"train": "train.csv", "targets": table.target_names, **table.data},
        "model": {"kind": table.kind, **table.model},
    }


def run_in_rounds(table: Table, folder: Path, *, overrides: list[str]) -> dict[str, Any]:
    """Sample until predictions are ok, at most up to the default length; predict and diagnose."""
    write_tables(table, folder)
    path = folder / "rounds.zarr"
    spec = RunSpec.from_dict(configuration(table), overrides, base_dir=folder)
    started = time.process_time()
    rayfbnn.sample(spec, path, workers=0, progress=False)
    ended = time.process_time()
    store = Store.open(path)
    result = {
        "seconds": ended - started,
        "draws": store.committed_draws,
        "chains": store.n_chains,
        "rounds": len(store.verdicts.all()) - 1,
        "seconds_of_rounds": [verdict.seconds for verdict in store.verdicts.all()],
        "settings": settings(store),
        "network": describe_network(store.spec),
    }
    return result | judged(path) | predicted(path, table, folder / "test.csv")


def write_tables(table: Table, folder: Path) -> None:
    """Write the training and the test cases as CSV files."""
    for part in ("train", "test"):
        table.frame(part).to_csv(folder / f"{part}.csv", index=False)


def run(table: Table, folder: Path, *, overrides: list[str], seconds: float) -> dict[str, Any]:
    """Sample a run of the default length, predict and diagnose in this process."""
    write_tables(table, folder)
    spec, dataset = read_training(RunSpec.from_dict(configuration(table), overrides, base_dir=folder))
    spec = with_batches(spec, 0, None)
    path = folder / "run.zarr"
    started = time.process_time()
    store = Store.create(path, spec, dataset, kernel=kernel_name(spec))
    kept_from = started
    last_phase = len(spec.phase) - 1
    with store.lock(), InProcess() as executor:
        for progress in run_rounds(store, executor):
            if progress.phase < last_phase:
                kept_from = time.process_time()
            if time.process_time() - started > seconds:
                executor.request_stop()
    ended = time.process_time()
    store = Store.open(path)
    result = {
        "seconds": ended - started,
        "seconds_before_draws": kept_from - started,
        "draws": store.committed_draws,
        "chains": store.n_chains,
        "settings": settings(store),
        "network": describe_network(spec),
    }
    if store.committed_draws < MIN_DRAWS:
        return result
    return result | judged(path) | predicted(path, table, folder / "test.csv")


def settings(store: Store) -> list[list[Any]]:
    """Stepsize and number of steps of each operation that was tuned."""
    if not store.tuning.rounds:
        return []
    return [[found.stepsize, found.steps, *found.scales] for found in store.tuning.latest()[1].values()]


def describe_network(spec: RunSpec) -> str:
    """The units of each hidden layer, and the priors."""
    layers = "-".join(str(layer.units) for layer in spec.network.hidden)
    return " ".join([layers, *(f"{name}={text}" for name, text in spec.network_keys.priors.items())])


def judged(path: Path) -> dict[str, Any]:
    """Return the verdicts of `diagnose`, with the worst R-hat and effective sample size."""
    diagnosis = rayfbnn.diagnose(path)
    quantities = diagnosis.quantities
    of_predictions = quantities.index.map(is_of_predictions).to_numpy(dtype=bool)
    result: dict[str, Any] = {"ok": diagnosis.ok, "reasons": list(diagnosis.reasons)}
    for verdict, part in (
        (diagnosis.predictions, quantities[of_predictions]),
        (diagnosis.hyperparameters, quantities[~of_predictions]),
    ):
        least = part[["ess_bulk", "ess_tail"]].min(axis=1)
        result[verdict.subject] = {
            "grade": verdict.grade,
            "rhat": part["rhat"].max(),
            "rhat_of": part["rhat"].idxmax(),
            "ess": least.min(),
            "ess_of": least.idxmin(),
        }
    result["fit"] = None if diagnosis.fit is None else diagnosis.fit.grade
    sigmas = quantities["mean"][quantities.index.str.startswith(("sigma_", "log_likelihood"))]
    result["means"] = {name: round(value, 3) for name, value in sigmas.items()}
    result["acceptance"] = diagnosis.acceptance
    result["divergences"] = diagnosis.divergences
    return result


def predicted(path: Path, table: Table, test: Path) -> dict[str, Any]:
    """Errors at the test cases, and the share of their targets in the 80 % intervals."""
    prediction = rayfbnn.predict(path, data=test)
    measures = ("log_probability", "log_probability_se", "squared_error", "error_rate")
    result = {name: prediction.summary[name] for name in measures if name in prediction.summary}
    if table.kind == "count" and prediction.fit is not None:
        result["coverage"] = prediction.fit.coverage["data"][table.target_names[0]]["0.8"]
    elif table.kind not in LABELS and (table.test_targets > 0).all() | (table.kind != "survival"):
        held = [
            covered(prediction.table, name, table.test_targets[:, number])
            for number, name in enumerate(table.target_names)
        ]
        result["coverage"] = float(np.mean(held))
    return result


def covered(predictions: pd.DataFrame, name: str, targets: np.ndarray) -> float:
    """The share of targets from the 10 % point to the 90 % point."""
    low, high = predictions[f"{name}_q10"].to_numpy(), predictions[f"{name}_q90"].to_numpy()
    return float(((low <= targets) & (targets <= high)).mean())


HEADINGS = (
    "| problem | ours | best baseline | truth | coverage | fit | predictions (R-hat, ESS) |"
    " hyperparameters (R-hat, ESS) |"
    " diverged | chains x draws | s |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""

    def number(value: float | None, form: str = ".3f") -> str:
        return "-" if value is None else format(value, form)

    def verdict(part: str) -> str:
        if part not in row:
            return "no draws"
        found = row[part]
        return f"{found['grade']} ({found['rhat']:.3f}, {found['ess']:.0f})"

    baselines = row.get("baselines", {})
    best = max(baselines, key=lambda name: baselines[name]) if baselines else None
    updates = row["chains"] * row["draws"]
    shown = [
        row["problem"],
        number(row.get("log_probability")),
        "-" if best is None else f"{baselines[best]:.3f} ({best})",
        number(row["truth"]),
        number(row.get("coverage"), ".2f"),
        fit_in_words(row),
        verdict("predictions"),
        verdict("hyperparameters"),
        number(row["divergences"] / updates, ".2%") if "divergences" in row else "-",
        f"{row['chains']} x {row['draws']}",
        f"{row['seconds']:.1f}"
        + (f" ({row['seconds_before_draws']:.0f} before draws)" if "seconds_before_draws" in row else ""),
    ]
    return "| " + " | ".join(shown) + " |"


def fit_in_words(row: dict[str, Any]) -> str:
    """The verdict on fit, and whether it is right where the truth is known."""
    if row.get("fit") is None:
        return "-"
    if row["fits"] is None or row["fit"] == "cannot tell":
        return str(row["fit"])
    return f"{row['fit']} ({'right' if (row['fit'] == 'no misfit') == row['fits'] else 'wrong'})"


def main(arguments: list[str] | None = None) -> None:
    """Measure the problems named, print a row for each, and add it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="problem", help=", ".join(TABLES))
    parser.add_argument("--seconds", type=float, default=120.0, help="of processor time for each problem")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the defaults")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--fixed", action="store_true", help="a run of the default length beside each run")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="that all run on")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each row is added to")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.problems if name not in TABLES]
    if unknown:
        parser.error(f"{unknown[0]} is no problem; they are {', '.join(TABLES)}")
    about = conditions(seconds_allowed=given.seconds, set=given.set)
    pin(given.core)
    print(heading(about) + "\n\n" + HEADINGS, flush=True)
    ratios = []
    for problem in given.problems or TABLES:
        table = TABLES[problem]()
        ways: dict[str, Callable[..., dict[str, Any]]] = {"": run_in_rounds}
        if given.fixed:
            ways["fixed"] = partial(run, seconds=given.seconds)
        baselines = {} if given.no_baselines else table_baselines.log_probabilities(table)
        taken = []
        for way, runs in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                found = runs(table, Path(folder), overrides=given.set)
            name = f"{problem} {way}".strip()
            row = {"problem": name, "truth": table.truth, "fits": table.fits, **found, "baselines": baselines}
            row["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            append(given.out, {"benchmark": "tables", **about, **json.loads(json.dumps(row, default=float))})
            print(line(row), flush=True)
            taken.append(found["seconds"])
        ratios.append(taken[0] / taken[-1])
    if given.fixed:
        print(f"\nmedian ratio of the processor time to that of the fixed length: {np.median(ratios):.2f}")


if __name__ == "__main__":
    main()
