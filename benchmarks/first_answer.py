"""Processor seconds from the command to the first ok answer, by phase, beside boosting with a search.

    python benchmarks/first_answer.py --uci UCI_Datasets                 # twelve tables
    python benchmarks/first_answer.py robot_arm count --no-boosting
    python benchmarks/first_answer.py --python before/.venv/bin/python .venv/bin/python

A configuration has the data and the kind of model, nothing else. A run is one process on one core. It ends
when its predictions are ok, at its default length, or after --seconds. It is repeated --repeats times, and a
row has the medians. The interpreters of --python take turns, so that versions are compared in one run. Four
tables are published splits; --uci names the folder that has them (examples/uci/README.md), and without it
they are left out.

"start" is the time between the imports and the first iteration, and what is neither sampling nor verdicts.
"kernels" is the share of calls of the compiled extension in the time of tuning and draws. Boosting is
scikit-learn's, with a random search over 20 settings in five folds; it has no model of censored times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

UCI = ("yacht", "energy", "concrete", "wine-quality-red")
TABLES = (
    *("robot_arm", *UCI, "boston", "count", "survival", "glass", "breast_cancer", "diabetes"),
    "20000 x 20",
)
PHASES = ("imports", "start", "tuning", "draws", "verdicts")


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    """Run the configuration of a folder in this process; return the seconds of phases, and the answer.

    It replaces only names that all versions have: the loop over rounds, the function that judges draws, and
    the methods of the extension.
    """
    import rayfbnn
    from rayfbnn.answers import diagnostics
    from rayfbnn.kernels.cpu import compiled_module
    from rayfbnn.run import running

    spent = dict.fromkeys((*PHASES, "kernels"), 0.0)

    def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            started = time.process_time()
            try:
                return function(*arguments, **keywords)
            finally:
                spent[name] += time.process_time() - started

        return call

    run_rounds = running.run_rounds

    def timed_rounds(store: Any, *arguments: Any, **keywords: Any) -> Any:
        latest, last_phase = time.process_time(), len(store.spec.phase) - 1
        for progress in run_rounds(store, *arguments, **keywords):
            now = time.process_time()
            spent["draws" if progress.phase == last_phase else "tuning"] += now - latest
            yield progress
            latest = time.process_time()

    running.run_rounds = timed_rounds
    diagnostics.diagnose_draws = timed(diagnostics.diagnose_draws, "verdicts")
    extension = compiled_module._cpu
    for owner in (extension, extension.Kernel):
        for name in dir(owner):
            if not name.startswith("_") and name not in ("Kernel", "instruction_sets"):
                setattr(owner, name, timed(getattr(owner, name), "kernels"))
    spent["imports"] = time.process_time()
    rayfbnn.sample(
        folder / "run.toml", folder / "run.zarr", workers=0, progress=False, max_time=f"{seconds:g}s"
    )
    total = time.process_time()
    sampling, kernels = spent["tuning"] + spent["draws"], spent["kernels"]
    spent["start"] = total - sum(spent[phase] for phase in PHASES)
    prediction = rayfbnn.predict(folder / "run.zarr", data=folder / "test.csv")
    diagnosis = rayfbnn.diagnose(folder / "run.zarr")
    return {
        **{phase: spent[phase] for phase in PHASES},
        "seconds": total,
        "kernels": kernels / sampling,
        "log probability": float(prediction.summary["log_probability"]),
        "predictions": diagnosis.predictions.grade,
        "draws of a chain": prediction.stores[0].committed - prediction.stores[0].skipped,
        "divergences": diagnosis.divergences,
    }


def table(name: str, uci: Path | None) -> Any:
    """Return the Table of this name."""
    import numpy as np
    from table_problems import TABLES as KNOWN
    from table_problems import Table

    if name in UCI:
        if uci is None:
            raise SystemExit(f"{name}: --uci must name the folder of published splits")
        data = uci / name / "data"
        values = np.loadtxt(data / "data.txt")
        inputs, target, train, test = (
            np.loadtxt(data / f"index_{part}.txt", dtype=int, ndmin=1)
            for part in ("features", "target", "train_0", "test_0")
        )
        train_cases, test_cases = values[train], values[test]
        return Table(
            "real",
            *(train_cases[:, inputs], train_cases[:, target]),
            *(test_cases[:, inputs], test_cases[:, target]),
        )
    if name == "20000 x 20":
        random = np.random.default_rng(1)
        all_inputs = random.standard_normal((24_000, 20))
        signal = (
            np.sin(2 * all_inputs[:, 0]) + all_inputs[:, 1] * all_inputs[:, 2] + all_inputs[:, 3:8].sum(1) / 4
        )
        targets = (signal + 0.3 * random.standard_normal(24_000))[:, None]
        return Table("real", all_inputs[:20_000], targets[:20_000], all_inputs[20_000:], targets[20_000:])
    return KNOWN[name]()


def boosting(problem: Any) -> dict[str, float]:
    """Return the processor seconds of boosting with its search, and its mean log probability of test cases.

    Real targets have Gaussian noise as large as the residuals of unseen cases, and counts are Poisson.
    """
    import numpy as np
    from scipy import stats
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.model_selection import RandomizedSearchCV, cross_val_predict

    settings = {
        "learning_rate": stats.loguniform(0.02, 0.3),
        "max_iter": [50, 100, 200, 400],
        "max_leaf_nodes": [4, 8, 16, 31],
        "min_samples_leaf": [5, 10, 20],
        "l2_regularization": [0.0, 0.1, 1.0],
    }

    def searched(model: Any, scoring: str | None, targets: Any) -> Any:
        search = RandomizedSearchCV(model, settings, n_iter=20, cv=5, scoring=scoring, random_state=0)
        return search.fit(problem.inputs, targets).best_estimator_

    started, total = time.process_time(), 0.0
    for targets, unseen in zip(problem.targets.T, problem.test_targets.T, strict=True):
        if problem.kind in ("class", "binary"):
            model = searched(HistGradientBoostingClassifier(random_state=0), "neg_log_loss", targets)
            shares = model.predict_proba(problem.test_inputs)
            places = np.searchsorted(model.classes_, unseen)
            total += float(np.log(np.maximum(shares[np.arange(len(unseen)), places], 1e-12)).mean())
        elif problem.kind == "count":
            model = searched(HistGradientBoostingRegressor(loss="poisson", random_state=0), None, targets)
            total += float(stats.poisson.logpmf(unseen, model.predict(problem.test_inputs)).mean())
        else:
            model = searched(HistGradientBoostingRegressor(random_state=0), None, targets)
            residuals = targets - cross_val_predict(model, problem.inputs, targets, cv=5)
            scale = np.sqrt((residuals**2).mean())
            total += float(stats.norm.logpdf(unseen, model.predict(problem.test_inputs), scale).mean())
    return {"seconds": time.process_time() - started, "log probability": total}


def measured(name: str, python: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run a table in a fresh process of an interpreter, and return what `measure` returned."""
    problem = table(name, given.uci)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part in ("train", "test"):
            problem.frame(part).to_csv(folder / f"{part}.csv", index=False)
        keys = {"train": "train.csv", "targets": problem.target_names, **problem.data}
        lines = [
            f"{section} = {{ "
            + ", ".join(f"{key} = {json.dumps(value)}" for key, value in of.items())
            + " }\n"
            for section, of in (("data", keys), ("model", {"kind": problem.kind, **problem.model}))
        ]
        (folder / "run.toml").write_text("".join(lines))
        command = [python, str(Path(__file__).resolve()), "--measure", str(folder)]
        command += ["--seconds", str(given.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name} with {python}: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def line(name: str, rows: list[dict[str, Any]], other: dict[str, float] | None) -> str:
    """Return a row of the table in Markdown; numbers are the medians of the repeats."""
    middle = {key: median(row[key] for row in rows) for key in (*PHASES, "seconds", "kernels")}
    first = rows[0]
    cells = [
        name,
        f"{middle['seconds']:.1f}",
        *(f"{middle[phase]:.1f}" for phase in PHASES),
        f"{middle['kernels']:.0%}",
        f"{first['log probability']:.3f}",
        f"{first['predictions']} ({first['draws of a chain']})",
        "-" if other is None else f"{middle['seconds'] / other['seconds']:.2f}",
        "-" if other is None else f"{other['log probability']:.3f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEADINGS = (
    f"| table | s | {' | '.join(PHASES)} | kernels | log probability | predictions (draws of a chain) |"
    " time / boosting | its log probability |\n" + "|---" * (10 + 1) + "|"
)


def main(arguments: list[str] | None = None) -> None:
    """Measure the tables, print a row for each table and interpreter, and add it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="table", help=", ".join(TABLES))
    parser.add_argument("--uci", type=Path, help="the folder of published splits")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to compare")
    parser.add_argument("--seconds", type=float, default=600.0, help="the most of a run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-boosting", action="store_true")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="that all run on")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each row is added to")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.measure is not None:
        print(json.dumps(measure(given.measure, given.seconds)))
        return
    from machine import append, conditions, heading, pin

    about = conditions(seconds_allowed=given.seconds, repeats=given.repeats, python=given.python)
    pin(given.core)
    print(heading(about) + "\n\n" + HEADINGS, flush=True)
    for name in given.tables or [one for one in TABLES if given.uci or one not in UCI]:
        problem = table(name, given.uci)
        has_model = problem.kind != "survival" and not given.no_boosting
        other = boosting(problem) if has_model else None
        turns = [
            (python, measured(name, python, given)) for _ in range(given.repeats) for python in given.python
        ]
        for number, python in enumerate(given.python):
            rows = [row for one, row in turns if one == python]
            label = name if len(given.python) == 1 else f"{name} ({'before' if number == 0 else 'now'})"
            print(line(label, rows, other), flush=True)
            append(
                given.out,
                {"benchmark": "first_answer", **about, "table": label, "rows": rows, "boosting": other},
            )


if __name__ == "__main__":
    main()
