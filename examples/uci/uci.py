"""Runs the default configuration on published splits of regression tables, beside published errors.

    python uci.py UCI_Datasets/yacht UCI_Datasets/energy --out uci --splits 0-19 --workers 2 --page results.md

Each folder has data/ with data.txt, index_features.txt, index_target.txt, index_train_K.txt and
index_test_K.txt, and perhaps results/ with test_MC_rmse_NAME.txt and test_ll_NAME.txt, one number a line for
each split; README.md says where such folders are. OUT gets a folder for each of them, with the splits as CSV
files, a store for each split, and results.jsonl, which has a line for each finished split. A split with a
line is not run again, and a split that was stopped continues where it was. A table of all results in OUT is
printed, and replaces the text between two markers of PAGE. With --keep, FILE keeps the rows of the splits,
and the table has all datasets of FILE; docs/book.md is written from tests/data/uci.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rayfbnn
from rayfbnn.data import read_training
from rayfbnn.draws.quantities import is_of_predictions

START, END = "<!-- uci: by examples/uci/uci.py -->", "<!-- end of uci -->"
PUBLISHED_FILES = {"rmse": "test_MC_rmse", "log_probability": "test_ll"}
SUMMARY = {"rmse": "y_rmse", "log_probability": "log_probability"}  # the names in our predictions
SUBJECTS = ("predictions", "hyperparameters")
AGREE = ("converged", "usable")
NOTE = "Chains do not agree, or are not known to agree, in these splits:"
HEAD = (
    *("dataset", "splits", "RMSE", "log probability", "RMSE - published", "log probability - published"),
    *("R-hat of predictions; hyperparameters", "ESS of both", "predictions", "hyperparameters"),
    "processor seconds a split",
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Options of all splits: seed, chains, length as a share of the default schedule, and time limit."""

    seed: int
    chains: int
    length: float
    max_time: str | None


@dataclass(frozen=True)
class Split:
    """A split of a published folder, and the folder of its files."""

    source: Path
    number: int
    out: Path

    def file(self, end: str) -> Path:
        """Return the path of one of its files, such as split_3_train.csv."""
        return self.out / f"split_{self.number}{end}"


def write_tables(split: Split) -> None:
    """Write the training and the test cases as CSV files with columns x0, x1, ... and y."""
    values = np.loadtxt(split.source / "data" / "data.txt")
    features, target = _integers(split, "features"), _integers(split, "target")
    header = ",".join([*(f"x{number}" for number in range(len(features))), "y"])
    for part in ("train", "test"):
        cases = _integers(split, f"{part}_{split.number}")
        table = values[np.ix_(cases, np.concatenate([features, target]))]
        np.savetxt(split.file(f"_{part}.csv"), table, "%.17g", ",", header=header, comments="")


def _integers(split: Split, name: str) -> Any:
    return np.loadtxt(split.source / "data" / f"index_{name}.txt", ndmin=1).astype(int)


def run(split: Split, settings: Settings) -> Row:
    """Sample, predict and diagnose a split, or continue where it was stopped; return its results."""
    split.out.mkdir(parents=True, exist_ok=True)
    write_tables(split)
    configuration = {
        "seed": settings.seed,
        "chains": settings.chains,
        "data": {"train": str(split.file("_train.csv")), "targets": ["y"]},
        "model": {"kind": "real"},
    }
    store, test = split.file(".zarr"), split.file("_test.csv")
    with _processor_time(split.file(".seconds")):
        rayfbnn.sample_or_resume(
            configuration,
            store,
            set=_length(configuration, settings),
            until=None if settings.max_time is None else "ok",
            max_time=settings.max_time,
            workers=0,
            progress=False,
        )
        summary = rayfbnn.predict(store, data=test).summary
        diagnosis: Any = rayfbnn.diagnose(store, data=test)
    is_predicted = np.array([is_of_predictions(str(name)) for name in diagnosis.quantities.index])
    return {
        **{"dataset": split.source.name, "split": split.number, **asdict(settings)},
        **{"cases": summary["cases"], "draws": summary["draws"]},
        **{name: summary[ours] for name, ours in SUMMARY.items()},
        "minus_published": {name: summary[SUMMARY[name]] - value for name, value in published(split).items()},
        "predictions": _judged(diagnosis.quantities[is_predicted], diagnosis.predictions),
        "hyperparameters": _judged(diagnosis.quantities[~is_predicted], diagnosis.hyperparameters),
        "seconds": sum(map(float, split.file(".seconds").read_text().split())),
    }


def _length(configuration: Row, settings: Settings) -> list[str]:
    """Return the override that gives the last phase its default length, or a share of it."""
    if settings.length == 1 and settings.max_time is not None:
        return []
    spec, _ = read_training(rayfbnn.RunSpec.from_dict(configuration))
    return [f"iterations={max(1, round(settings.length * spec.phase[-1].iterations))}"]


@contextmanager
def _processor_time(file: Path) -> Iterator[None]:
    """Add the processor time of a block to a file, also if the block is stopped."""
    start = time.process_time()
    try:
        yield
    finally:
        with file.open("a") as lines:
            lines.write(f"{time.process_time() - start:.2f}\n")


def _judged(quantities: Any, verdict: Any) -> Row:
    """Return the verdict, the largest R-hat and the smallest effective sample size; None if not known."""
    rhat, ess = quantities["rhat"].to_numpy(), quantities[["ess_bulk", "ess_tail"]].to_numpy()
    values = {"rhat": float(np.max(rhat)), "ess": float(np.min(ess))}
    known = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {**known, "verdict": verdict.grade}


def published(split: Split, name: str = "100_xepochs_1_hidden_layers") -> dict[str, float]:
    """Return the published RMSE and log probability of a split, as far as the folder has them."""
    values = {}
    for measure, start in PUBLISHED_FILES.items():
        file = split.source / "results" / f"{start}_{name}.txt"
        of_splits = file.read_text().split() if file.exists() else []
        if split.number < len(of_splits):
            values[measure] = float(of_splits[split.number])
    return values


def run_all(splits: Sequence[Split], settings: Settings, workers: int) -> None:
    """Run splits in this process, or each in a process of its own, and so many at a time."""
    if workers == 0:
        for split in splits:
            _record(split, run(split, settings))
        return
    with ThreadPoolExecutor(workers) as pool:
        tasks = [pool.submit(_in_a_process, split, settings) for split in splits]
        try:
            codes = [task.result() for task in as_completed(tasks)]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if any(codes):
        raise SystemExit("some splits have no results; start again to continue")


def _in_a_process(split: Split, settings: Settings) -> int:
    options = {"out": split.out.parent, "splits": split.number, **asdict(settings)}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    command = [sys.executable, __file__, str(split.source), *words]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def _record(split: Split, row: Row) -> None:
    with (split.out / "results.jsonl").open("a") as lines:
        lines.write(json.dumps(row) + "\n")
    print(f"{row['dataset']}, split {row['split']}: RMSE {row['rmse']:.4g}", file=sys.stderr)


def summaries(rows: Sequence[Row]) -> dict[str, Row]:
    """Return for each dataset its cells and notes in the table, and its rows."""
    found = {}
    for name in sorted({row["dataset"] for row in rows}):
        of_one = [row for row in rows if row["dataset"] == name]
        found[name] = {
            "dataset": name,
            "cells": _line(name, of_one),
            "notes": list(_disagreements(name, of_one)),
            "rows": sorted(of_one, key=lambda row: row["split"]),
        }
    return found


def read_kept(path: Path) -> dict[str, Row]:
    """Return the kept summaries by dataset, without `rows` where these are lost; none without a file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["dataset"]: line for line in map(json.loads, lines)}


def table(datasets: dict[str, Row]) -> str:
    """Return a Markdown table with a line for each dataset, and then the splits whose chains do not agree."""
    ordered = [datasets[name] for name in sorted(datasets)]
    lines = [HEAD, ["---"] * len(HEAD), *(one["cells"] for one in ordered)]
    notes = [note for one in ordered for note in one["notes"]]
    return "\n".join(
        ["| " + " | ".join(line) + " |" for line in lines] + ["", NOTE, "", *notes] * bool(notes)
    )


def _line(dataset: str, rows: Sequence[Row]) -> list[str]:
    subjects = [[row[name] for row in rows] for name in SUBJECTS]
    differences = [row["minus_published"] for row in rows]
    return [
        dataset,
        str(len(rows)),
        *(_mean([row[name] for row in rows]) for name in PUBLISHED_FILES),
        *(_mean([one[name] for one in differences if name in one]) for name in PUBLISHED_FILES),
        "; ".join(_worst(max, [one["rhat"] for one in of_one], "{:.3f}") for of_one in subjects),
        "; ".join(_worst(min, [one["ess"] for one in of_one], "{:.0f}") for of_one in subjects),
        *(_counts([one["verdict"] for one in of_one]) for of_one in subjects),
        f"{np.mean([row['seconds'] for row in rows]):.0f}",
    ]


def _mean(values: Sequence[float]) -> str:
    """Return the mean over splits and its standard error, with two digits of the error."""
    if len(values) < 2:
        return f"{values[0]:.3g}" if values else "-"
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    digits = max(0, 1 - math.floor(math.log10(error))) if error > 0 else 3
    return f"{np.mean(values):.{digits}f} ± {error:.{digits}f}"


def _worst(choose: Any, values: Sequence[float | None], form: str) -> str:
    return "not known" if None in values else form.format(choose(values))


def _counts(verdicts: Sequence[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).most_common())


def _disagreements(dataset: str, rows: Sequence[Row]) -> Iterator[str]:
    for subject in SUBJECTS:
        splits: dict[str, list[str]] = {}
        for row in sorted(rows, key=lambda row: row["split"]):
            if row[subject]["verdict"] not in AGREE:
                splits.setdefault(row[subject]["verdict"], []).append(str(row["split"]))
        for verdict, numbers in splits.items():
            which = "" if len(numbers) == len(rows) else f" ({', '.join(numbers)})"
            yield f"* {dataset}, {subject}: {verdict} in {len(numbers)} of {len(rows)} splits{which}"


def replaced(page: str, text: str) -> str:
    """Return a page with a text between its two markers."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"the page needs the lines {START} and {END}")
    return f"{before}{START}\n\n{text}\n\n{END}{after}"


def _numbers(text: str) -> list[int]:
    """Return the numbers that a text such as 0-3,7 stands for."""
    ranges = [[int(number) for number in part.split("-")] for part in text.split(",")]
    return [number for one in ranges for number in range(one[0], one[-1] + 1)]


def _splits(source: Path, numbers: list[int] | None, out: Path) -> list[Split]:
    """Return the wanted splits of a folder, all of them by default; SystemExit if a file is missing."""
    if numbers is None:
        numbers = [int(file.stem.split("_")[-1]) for file in source.glob("data/index_train_*.txt")]
    names = ["data.txt", "index_features.txt", "index_target.txt"]
    names += [f"index_{part}_{number}.txt" for number in numbers for part in ("train", "test")]
    for name in names:
        if not (source / "data" / name).is_file():
            raise SystemExit(f"{source}: there is no data/{name} in it")
    return [Split(source, number, out / source.name) for number in sorted(numbers)]


def _read(out: Path) -> list[Row]:
    files = sorted(out.glob("*/results.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the splits that have no results yet, and print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="a dataset with its splits")
    parser.add_argument("--out", type=Path, default=Path("uci"), help="folder of all results")
    parser.add_argument("--splits", type=_numbers, help="such as 0-19 or 0,2,5-7; the default is all")
    parser.add_argument("--length", type=float, default=1.0, help="kept iterations, in those of the default")
    parser.add_argument("--max-time", help="make runs longer until predictions can be used, or for so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument(
        "--workers", type=int, default=0, help="splits at a time; 0 runs them in this process"
    )
    parser.add_argument("--page", type=Path, help="a page with the two markers, which gets the table")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="a file that keeps results of datasets")
    given = parser.parse_args(arguments)
    settings = Settings(given.seed, given.chains, given.length, given.max_time)
    splits = [
        split for folder in given.folders for split in _splits(folder.resolve(), given.splits, given.out)
    ]
    rows = _read(given.out)
    datasets = {split.source.name for split in splits}
    for row in rows:
        is_other = any(row[name] != value for name, value in asdict(settings).items())
        if row["dataset"] in datasets and is_other:
            raise SystemExit(
                f"{given.out}: has results of {row['dataset']} with other settings; choose another folder"
            )
    if given.page is not None:
        replaced(given.page.read_text(), "")
    done = {(row["dataset"], row["split"]) for row in rows}
    left = [split for split in splits if (split.source.name, split.number) not in done]
    run_all(left, settings, given.workers)
    datasets = summaries(_read(given.out))
    if given.keep is not None:
        datasets = read_kept(given.keep) | datasets
        given.keep.write_text("".join(json.dumps(datasets[name]) + "\n" for name in sorted(datasets)))
    text = table(datasets)
    print(text)
    if given.page is not None:
        given.page.write_text(replaced(given.page.read_text(), text))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; start again to continue")
    except rayfbnn.RayFBNNError as error:
        sys.exit(str(error))
