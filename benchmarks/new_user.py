"""Minutes to the first prediction on eleven tables, with a configuration of two lines and nothing else.

    python benchmarks/new_user.py                    # all tables, each to the end of its run
    python benchmarks/new_user.py counts survival    # these
    python benchmarks/new_user.py --seconds 240      # no more than that of each run

`rayfbnn sample` runs as a user starts it, and `rayfbnn predict` is tried beside it until it gives a table,
which is then the first prediction; it is made once more when the run has ended, and the run is diagnosed.
All times count from the start of `sample`. A file with semicolons and decimal commas is refused, with a
message that says how to read it; for it the time is that of the message.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import append, conditions, heading
from new_user_tables import TASKS, Task

RAYFBNN = [sys.executable, "-c", "from rayfbnn.cli import main; main()"]


def write(task: Task, folder: Path) -> Path:
    """Write the files of a task, and return the configuration."""
    frame = task.frame.sample(frac=1, random_state=1)
    frame[: task.n_train].to_csv(folder / "train.csv", index=False, **(task.written or {}))
    frame[task.n_train :].to_csv(folder / "test.csv", index=False, **(task.written or {}))
    keys = {"train": "train.csv", **task.keys}
    path = folder / "run.toml"
    path.write_text(f'data = {_toml(keys)}\nmodel = {{ kind = "{task.kind}" }}\n')
    return path


def _toml(value: object) -> str:
    """Return an inline table, or a list or string, which TOML writes as JSON does."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def rayfbnn(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the program as the shell does, and return what it printed."""
    return subprocess.run([*RAYFBNN, *map(str, arguments)], capture_output=True, text=True, check=False)


def predicts(folder: Path) -> bool:
    """Return True if a table of predictions of the test cases can be made now."""
    out = folder / "predictions.csv"
    done = rayfbnn("predict", folder / "run.zarr", "--data", folder / "test.csv", "--out", out)
    return done.returncode == 0


def measured(name: str, seconds: float) -> dict[str, Any]:
    """Return the minutes to the first prediction and to the end of the run, and the verdicts."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        command = [*RAYFBNN, "sample", str(write(TASKS[name](), folder)), str(folder / "run.zarr")]
        began, first = time.monotonic(), None
        with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as run:
            while run.poll() is None:
                if first is None and (folder / "run.zarr").exists() and predicts(folder):
                    first = time.monotonic() - began
                if time.monotonic() - began > seconds:
                    run.terminate()
                time.sleep(1)
        ended = time.monotonic() - began
        is_last = predicts(folder) if run.returncode != 2 else False
        verdict = rayfbnn("diagnose", folder / "run.zarr", "--json") if is_last else None
        judged = json.loads(verdict.stdout) if verdict is not None and verdict.stdout else {}
        message = (folder / "log").read_text().strip().splitlines()
    return {
        "task": name,
        "exit code": run.returncode,
        "first prediction": first if first is not None else (ended if is_last else None),
        "run": ended,
        "last prediction": is_last,
        "predictions": judged.get("predictions", {}).get("grade"),
        "hyperparameters": judged.get("hyperparameters", {}).get("grade"),
        "message": message[-1] if message else "",
    }


def line(row: dict[str, Any]) -> str:
    """Return the row of a table."""
    first = "refused" if row["first prediction"] is None else f"{row['first prediction'] / 60:.1f}"
    cells = [row["task"], first, f"{row['run'] / 60:.1f}", row["predictions"], row["hyperparameters"]]
    return "| " + " | ".join(cell or "-" for cell in cells) + " |"


def main(arguments: list[str] | None = None) -> None:
    """Measure the tasks named, and print a table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="task", help=", ".join(TASKS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which a run is stopped")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each task is added to")
    options = parser.parse_args(arguments)
    about = conditions(seconds_allowed=options.seconds)
    print(heading(about))
    titles = ["task", "first prediction", "whole run", "predictions", "hyperparameters"]
    print(f"\n| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for name in options.tasks or TASKS:
        row = measured(name, options.seconds)
        append(options.out, {"benchmark": "new user", **about, **row})
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
