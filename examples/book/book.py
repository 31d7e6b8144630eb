"""Runs the experiments of Neal's book, and says which of its results come out.

    python book.py                              # everything, about two hours on one core
    python book.py --only 3.8 --length 0.1      # one figure, shorter
    python book.py --keep                       # everything, into the tables and pictures of docs/book.md

A row that is done is not run again, and one that was stopped goes on where it was. The exit code is 3 if a
statement of the book does not come out, unless docs/book.md says that it does not.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread for each process
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import comparing  # noqa: E402
import gates  # noqa: E402
import page  # noqa: E402
import running  # noqa: E402
from rows import Row, rows  # noqa: E402

KEPT = ROOT / "tests/data/book.jsonl"
_NOT_OK = 3  # the exit code of `rayfbnn diagnose` for a verdict that is not ok
_USUAL_SECONDS = 60.0  # of a row that nothing is known about


def main() -> None:
    """Run the rows that are asked for, and show the gates of their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="figures or rows, such as 3.8 or 4.13-6-ard")
    parser.add_argument("--length", type=float, default=1.0, help="share of the book's lengths")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes, one row each")
    parser.add_argument("--out", type=Path, default=ROOT / ".book", help="folder of stores and results")
    parser.add_argument("--keep", action="store_true", help="keep the results, and write docs/book.md")
    options = parser.parse_args()
    if not 0 < options.length <= 1:
        parser.error(f"--length: must be above 0 and at most 1, got {options.length}")
    if options.workers < 1:
        parser.error(f"--workers: must be at least 1, got {options.workers}")
    chosen = chosen_rows(options.only)
    if not chosen:
        known = ", ".join(sorted({figure for row in rows() for figure in row.figures}, key=page.order))
        parser.error(f"--only: no row for {' '.join(options.only)}; there are {known}")
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = run_all(chosen, options.out, options.length, options.seed, options.workers)
    results |= comparing.comparisons(results, options.out)
    lines, failed_gates = gates.report(results)
    print("\n".join(lines))
    if options.keep:
        if options.length < 1:
            parser.error("--keep: only results of the book's lengths are kept; leave --length out")
        keep(results)
        page.write(ROOT / "docs")
    if failed_gates:
        print("these statements did not come out:", *failed_gates, sep="\n  ", file=sys.stderr)
        sys.exit(_NOT_OK)


def chosen_rows(names: list[str]) -> list[Row]:
    """Return the rows of some figures, or rows by name; all for an empty list."""
    return [row for row in rows() if not names or row.name in names or set(names) & set(row.figures)]


def run_all(
    chosen: list[Row], out: Path, length: float, seed: int, workers: int
) -> dict[str, dict[str, Any]]:
    """Run rows in processes, and return the line of results of each by its name."""
    path = out / "results.jsonl"
    known = {line["key"]: line for line in read_lines(path)}
    keys = {row.name: running.key_of(row, length, seed) for row in chosen}
    usual = {line["row"]: line["seconds"] * length for line in read_lines(KEPT) if line.get("seconds")}
    costs = {row.name: usual.get(row.name, _USUAL_SECONDS * length) for row in chosen}
    left = [row for row in chosen if keys[row.name] not in known]
    left.sort(key=lambda row: -costs[row.name])
    total, done, started = sum(costs[row.name] for row in left), 0.0, time.monotonic()
    failed: list[str] = []
    print(f"{len(chosen) - len(left)} of {len(chosen)} rows are done", flush=True)
    job = functools.partial(_line_or_error, folder=out, length=length, seed=seed)
    with get_context("spawn").Pool(workers, _quieten) as pool:  # leaving it in any way ends its processes
        for number, (row, line, error) in enumerate(pool.imap_unordered(job, left), start=1):
            if line is None:
                failed.append(row.name)
                print(f"{row.name}: failed: {error}", flush=True)
                continue
            line |= {"commit": _commit(), "date": str(datetime.date.today())}
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            known[line["key"]] = line
            done += costs[row.name]
            seconds = (time.monotonic() - started) * (total - done) / done
            print(
                f"{row.name}: {line['seconds']:.0f} s; {number} of {len(left)} rows,"
                f" time left {datetime.timedelta(seconds=round(seconds))}",
                flush=True,
            )
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; the other rows are done and will not be run again")
    return {row.name: known[keys[row.name]] for row in chosen}


def _quieten() -> None:
    logging.getLogger("rayfbnn").setLevel(logging.ERROR)  # verdicts are in the results


def _line_or_error(
    row: Row, *, folder: Path, length: float, seed: int
) -> tuple[Row, dict[str, Any] | None, str]:
    try:
        return row, running.run(row, folder, length, seed), ""
    except KeyboardInterrupt:  # sampling turns a signal to stop into this
        raise SystemExit(130) from None
    except Exception as error:  # the other rows go on
        return row, None, f"{type(error).__name__}: {error}"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results, none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(results: dict[str, dict[str, Any]]) -> None:
    """Put results into the file of kept results, in place of earlier ones of the same rows."""
    kept = {line.get("row", line.get("comparison")): line for line in read_lines(KEPT)} | results
    ordered = sorted(kept, key=page.order)
    KEPT.write_text("".join(json.dumps(kept[name]) + "\n" for name in ordered))


def _commit() -> str:
    answer = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True, check=False
    )
    return answer.stdout.strip() or "unknown"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")
