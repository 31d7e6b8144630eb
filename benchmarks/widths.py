"""Networks of several widths and depths on many tables: predictions, agreement of chains, and cost.

    python benchmarks/widths.py boston glass --layers 8 32 16-16 --seconds 120
    python benchmarks/widths.py --uci FOLDER energy:0 yacht:0 --layers default
    python benchmarks/widths.py friedman:2000 --layers 32 --trajectories hybrid
    python benchmarks/widths.py glass --layers 16 --iterations 2000 --seconds 600

A problem is one of the fifteen of tables.py, `friedman:N` (Friedman 1 with N training cases and 10 inputs,
whose truth is known), or `NAME:SPLIT` with a folder of the published UCI splits (Hernandez-Lobato and Adams
2015, layout of Gal's MC dropout experiments). `--layers` are the units of each hidden layer, or `default`.
All runs have the default priors and the default schedule but for what is given. A run ends with its schedule
or after --seconds of processor time, of which all of the sampling counts. For each run there is: the mean log
probability of the test cases, RMSE or error rate, the share of targets in 80 % intervals, R-hat and effective
draws a second of processor time (the worst of each kind: outputs, log likelihood, noise, sigmas).
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import append, conditions, heading, pin
from scipy import stats
from sklearn import datasets
from table_problems import TABLES, Table
from tables import run

from rayfbnn.spec import RunSpec
from rayfbnn.spec.defaults import default_phases

N_TEST_OF_KNOWN = 2000
KINDS = ("outputs", "log_likelihood", "noise", "sigmas")


def problem(name: str, uci: Path | None) -> Table:
    """Return the table that is called so; ValueError if there is none."""
    if name in TABLES:
        return TABLES[name]()
    family, _, number = name.partition(":")
    if family == "friedman" and number.isdecimal():
        return _friedman(int(number))
    if uci is not None and (uci / family / "data" / f"index_train_{number}.txt").exists():
        return _published(uci / family / "data", number)
    raise ValueError(
        f"{name} is no problem; they are {', '.join(TABLES)}, friedman:N, and with --uci NAME:SPLIT"
    )


def _friedman(n_cases: int) -> Table:
    n_all = n_cases + N_TEST_OF_KNOWN
    inputs, targets = datasets.make_friedman1(n_samples=n_all, noise=1.0, random_state=1)
    _, signal = datasets.make_friedman1(n_samples=n_all, noise=0.0, random_state=1)
    truth = stats.norm.logpdf(targets[n_cases:], signal[n_cases:], 1.0).mean()
    targets = targets[:, None]
    return Table(
        "real", inputs[:n_cases], targets[:n_cases], inputs[n_cases:], targets[n_cases:], float(truth)
    )


def _published(folder: Path, split: str) -> Table:
    values = np.loadtxt(folder / "data.txt")
    features = np.loadtxt(folder / "index_features.txt", dtype=int)
    target = np.loadtxt(folder / "index_target.txt", dtype=int).reshape(1)
    train, test = (np.loadtxt(folder / f"index_{part}_{split}.txt", dtype=int) for part in ("train", "test"))
    features = features[np.ptp(values[np.ix_(train, features)], axis=0) > 0]
    parts = [values[np.ix_(cases, columns)] for cases in (train, test) for columns in (features, target)]
    return Table("real", *parts)


def overrides_of(layers: str, given: argparse.Namespace) -> list[str]:
    """Return the overrides of the default configuration."""
    overrides = [*given.set]
    if layers != "default":
        hidden = [f'{{ units = {units}, activation = "tanh" }}' for units in layers.split("-")]
        overrides.append(f"network.hidden=[{', '.join(hidden)}]")
    if given.iterations is not None:
        overrides.append(f"iterations={given.iterations}")
    return overrides


def with_hybrid(spec: RunSpec) -> RunSpec:
    """Return a run whose trajectories are those of hybrid, with windows, whatever the default is."""
    phases = default_phases(
        spec.network,
        spec.data_model,
        is_tempered=False,
        iterations=spec.phase[-1].iterations,
        is_divided=True,
    )
    return spec.model_copy(update={"phase": phases})


HEADINGS = (
    "| problem | layers | log probability | RMSE or errors | coverage | R-hat: outputs, log likelihood,"
    " noise, sigmas |"
    " effective draws a second, the same | chains x draws | s |\n|---|---|---|---|---|---|---|---|---|"
)


def line(row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""

    def of_kinds(measure: str, form: str, share: float = 1.0) -> str:
        values = [row.get(f"{kind}_{measure}") for kind in KINDS]
        return ", ".join("-" if value is None else format(value / share, form) for value in values)

    error = row.get("error_rate", math.sqrt(row.get("squared_error", math.nan)))
    shown = [
        row["problem"],
        row["layers"],
        f"{row.get('log_probability', math.nan):.3f}",
        f"{error:.3g}",
        f"{row.get('coverage', math.nan):.2f}",
        of_kinds("rhat", ".3f"),
        of_kinds("ess", ".2f", row["seconds"]),
        f"{row['chains']} x {row['draws']}",
        f"{row['seconds']:.0f} ({row['seconds_before_draws']:.0f} before draws)",
    ]
    return "| " + " | ".join(shown) + " |"


def main(arguments: list[str] | None = None) -> None:
    """Measure each problem with each network, print a row for each, and add it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("problems", nargs="+", metavar="problem")
    parser.add_argument("--layers", nargs="+", default=["default"], metavar="UNITS-UNITS")
    parser.add_argument("--seconds", type=float, default=120.0, help="of processor time for each run")
    parser.add_argument("--iterations", type=int, help="of the kept phase")
    parser.add_argument("--trajectories", choices=["default", "hybrid"], default="default")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the defaults")
    parser.add_argument("--uci", type=Path, help="a folder of published splits")
    parser.add_argument("--core", type=int, help="that all run on")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each row is added to")
    given = parser.parse_args(arguments)
    try:
        tables = {name: problem(name, given.uci) for name in given.problems}
    except ValueError as exc:
        parser.error(str(exc))
    changed = with_hybrid if given.trajectories == "hybrid" else lambda spec: spec
    about = conditions(seconds_allowed=given.seconds, set=given.set, trajectories=given.trajectories)
    pin(given.core)
    print(heading(about) + "\n\n" + HEADINGS, flush=True)
    for name, table in tables.items():
        for layers in given.layers:
            with tempfile.TemporaryDirectory() as folder:
                found = run(
                    table,
                    Path(folder),
                    overrides=overrides_of(layers, given),
                    seconds=given.seconds,
                    changed=changed,
                )
            row = {"problem": name, "layers": layers, "truth": table.truth, **found}
            append(given.out, {"benchmark": "widths", **about, **json.loads(json.dumps(row, default=float))})
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
