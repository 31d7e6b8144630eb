"""Tables of 20,000 rows by 20 columns by the default configuration: first predictions, forecast, whole run.

    python benchmarks/large_tables.py                       # both tables, two workers, to the end
    python benchmarks/large_tables.py friedman --workers 0  # in one process: processor time means most
    python benchmarks/large_tables.py --seconds 120         # no more than that of each run

`rayfbnn sample` runs in a process of its own. Meanwhile 2,000 test cases are predicted from its store at
growing intervals, at first from its early phases. What is printed: R-squared at the test cases of gradient
boosting, of the truth, and of the predictions; the first prediction whose R-squared is above 0.8 of
boosting's, with the seconds since the start of the process and its processor seconds; the forecast of the
run in one process and (with --workers 0) what it took, both in processor seconds; the verdict on the
predictions in the end; the load of the machine.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set
import pandas as pd  # noqa: E402
from machine import append, conditions, heading  # noqa: E402
from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: E402

import rayfbnn  # noqa: E402
from rayfbnn.arrays import Array  # noqa: E402
from rayfbnn.data import read_training  # noqa: E402
from rayfbnn.errors import StoreError  # noqa: E402
from rayfbnn.spec import RunSpec  # noqa: E402
from rayfbnn.streams import Purpose, Streams  # noqa: E402
from rayfbnn.timing import forecast, steps  # noqa: E402

N_TRAIN, N_TEST, N_INPUTS = 20_000, 2_000, 20
LEVELS = ("north", "east", "south", "west", "centre")
USEFUL = 0.8  # of boosting's R-squared
SECONDS_BETWEEN = 2.0
CLOCK_TICK = os.sysconf("SC_CLK_TCK")


def friedman() -> tuple[pd.DataFrame, Array]:
    """Return Friedman 1 (1991) with 15 inputs that do not matter and unit noise, and its truth."""
    inputs = _uniform(1, N_INPUTS)
    truth = _friedman(inputs)
    return _frame(inputs).assign(y=truth + _normal(1)), truth


def regions() -> tuple[pd.DataFrame, Array]:
    """Return a table whose last column is a region, which shifts the target and in one turns x4 around."""
    inputs = _uniform(2, N_INPUTS)
    region = np.minimum((inputs[:, -1] * len(LEVELS)).astype(int), len(LEVELS) - 1)
    shift = np.array([0.0, 2.0, -3.0, 4.0, -1.0])[region]
    truth = _friedman(inputs) + shift - 15 * inputs[:, 3] * (region == 2)
    frame = _frame(inputs[:, :-1]).assign(region=np.array(LEVELS)[region])
    return frame.assign(y=truth + _normal(2)), truth


TABLES = {"friedman": friedman, "regions": regions}


def _friedman(x: Array) -> Array:
    return 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]


def _streams(seed: int) -> Streams:
    return Streams(seed, np.arange(N_TRAIN + N_TEST, dtype=np.uint64))


def _uniform(seed: int, n: int) -> Array:
    return _streams(seed).uniform(Purpose.ACCEPT, (n,))


def _normal(seed: int) -> Array:
    return _streams(seed).normal(Purpose.INITIAL_PARAMETER, (1,))[:, 0]


def _frame(inputs: Array) -> pd.DataFrame:
    return pd.DataFrame(inputs, columns=[f"x{number + 1}" for number in range(inputs.shape[1])])


def r_squared(predicted: Array, actual: Array) -> float:
    """Return one minus the squared error as a share of the variance."""
    return float(1 - ((actual - predicted) ** 2).mean() / actual.var())


def boosting(train: pd.DataFrame, test: pd.DataFrame) -> float:
    """Return R-squared of gradient boosting, which stops by itself when more trees do not help."""
    frames = [frame.drop(columns="y").copy() for frame in (train, test)]
    for frame in frames:
        if "region" in frame:
            frame["region"] = pd.Categorical(frame["region"], categories=list(LEVELS))
    model = HistGradientBoostingRegressor(
        max_iter=1000, early_stopping=True, categorical_features="from_dtype", random_state=0
    )
    return r_squared(model.fit(frames[0], train["y"]).predict(frames[1]), test["y"].to_numpy())


def forecast_in_processor_time(spec: RunSpec) -> float:
    """Forecast the processor time of a run in one process."""
    clock = SimpleNamespace(perf_counter=time.process_time)
    forecast.time = steps.time = clock  # type: ignore[assignment]
    result = forecast.forecast(*read_training(spec), workers=1)
    return math.nan if result is None else result.seconds


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far; NaN once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.nan
    return sum(int(field) for field in fields[11:13]) / CLOCK_TICK


def children_seconds() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(folder: Path, *, workers: int, seconds: float, overrides: list[str]) -> list[dict[str, float]]:
    """Sample in a process of its own, and return what was predicted on the way.

    Processor time is that of this process, so that it means nothing if there are workers besides.
    """
    store, test = folder / "run.zarr", pd.read_csv(folder / "test.csv")
    program = [sys.executable, "-c", "from rayfbnn.cli import main; main()"]
    command = [*program, "sample", str(folder / "run.toml"), str(store)]
    command += ["--workers", str(workers), *(part for text in overrides for part in ("--set", text))]
    started, seen = time.monotonic(), list[dict[str, float]]()
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        while process.poll() is None:
            time.sleep(SECONDS_BETWEEN * 1.1 ** len(seen))
            elapsed, used = time.monotonic() - started, processor_seconds(process.pid)
            if elapsed > seconds:
                process.terminate()
                process.wait()
            try:
                prediction = rayfbnn.load(store, draws=100, max_memory=64e6).predict(test)
            except StoreError:
                continue
            fit = r_squared(prediction.table["y_mean"].to_numpy(), test["y"].to_numpy())
            phase = prediction.summary.get("early_phase", 3)
            seen.append({"seconds": elapsed, "processor": used, "r2": fit, "phase": phase})
    return seen


def measured(name: str, *, workers: int, seconds: float, overrides: list[str]) -> dict[str, Any]:
    """Return all figures of one table."""
    frame, truth = TABLES[name]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        train, test = frame[:N_TRAIN], frame[N_TRAIN:]
        train.to_csv(path / "train.csv", index=False)
        test.to_csv(path / "test.csv", index=False)
        (path / "run.toml").write_text(
            'data = { train = "train.csv", targets = ["y"] }\nmodel = { kind = "real" }\n'
        )
        best = boosting(train, test)
        expected = forecast_in_processor_time(RunSpec.from_toml(path / "run.toml", overrides))
        before = children_seconds()
        seen = run(path, workers=workers, seconds=seconds, overrides=overrides)
        useful = [one for one in seen if one["r2"] > USEFUL * best]
        verdict = rayfbnn.predict(path / "run.zarr", data=path / "test.csv").verdict
        log = (path / "log").read_text().splitlines()
    return {
        "table": name,
        "boosting": best,
        "truth": r_squared(truth[N_TRAIN:], test["y"].to_numpy()),
        "first": useful[0] if useful else None,
        "last": seen[-1] if seen else None,
        "forecast": expected,
        "took": children_seconds() - before if workers == 0 else None,
        "verdict": None if verdict is None else f"{verdict.grade}, error {verdict.error}",
        "log": log[-1] if log else "",
        "load_after": round(os.getloadavg()[0], 1),
        "seen": seen,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure the tables named, print what was found, and add it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="table", help=", ".join(TABLES))
    parser.add_argument("--workers", type=int, default=2, help="0: in one process")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which a run is stopped")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the defaults")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each table is added to")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # that early predictions are not from the posterior
    about = conditions(workers=options.workers, seconds_allowed=options.seconds, set=options.set)
    print(heading(about), flush=True)
    for name in options.tables or TABLES:
        row = measured(name, workers=options.workers, seconds=options.seconds, overrides=options.set)
        append(options.out, {"benchmark": "large tables", **about, **row})
        for key, value in row.items():
            if key != "seen":
                print(f"  {key:<12}{value}", flush=True)


if __name__ == "__main__":
    main()
