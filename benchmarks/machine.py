"""Conditions of a measurement, and the file in which results are recorded."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers" / "bin" / "python"


def conditions(**settings: Any) -> dict[str, Any]:
    """Processor, load before the run, date, commit, versions, and the given settings."""
    import numpy

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
        + ("+" if _output("git", "-C", str(ROOT), "status", "--porcelain") else ""),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        **settings,
    }


def processor() -> str:
    """The processor's name, or its architecture if it has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def heading(values: dict[str, Any]) -> str:
    """The conditions as a line above a table."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def append(path: Path | None, record: dict[str, Any]) -> None:
    """Append a line of JSON to a file of results."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def pin(core: int | None) -> None:
    """Keep this process and its children on one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def peers_python(path: Path) -> str:
    """The interpreter of the peers' environment.

    If there is none, exit with a message that says how to make it.
    """
    if not path.exists():
        raise SystemExit(f"{path}: no environment of the peers is there; make it with `make peers`")
    return str(path)


def _output(*command: str) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    return finished.stdout.strip() if finished.returncode == 0 else "unknown"
