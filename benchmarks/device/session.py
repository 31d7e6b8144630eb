"""All that is to be done on a device, in order of risk: smoke, tests, benchmarks, sanitizers and a profile.

    python -m benchmarks.device.session [--seconds 3600] [--only STEP ...] [--out FOLDER]

Each step is a process of its own with a limit of time, so that no step keeps the others from running. A line
of JSON for each step, with device, date and commit, is added to FOLDER/session.jsonl, and each step's output
is in FOLDER/STEP.log. The exit code is 0 if all steps passed, 1 if one did not, 2 if there is no device.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, append, conditions

NO_DEVICE = 2
_ABOUT = """
import json, cupy
device = cupy.cuda.runtime.getDeviceProperties(0)
print(json.dumps({
    "device": device["name"].decode(),
    "multiprocessors": device["multiProcessorCount"],
    "cupy": cupy.__version__,
    "runtime": cupy.cuda.runtime.runtimeGetVersion(),
    "driver": cupy.cuda.runtime.driverGetVersion(),
    "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
}))
"""
# The first tests to run: what all others need. A pattern for pytest's -k.
_FIRST = "is_that_of_the_array_code or random_numbers or compiled_once or products_by_address or copies"


_LADDERS = ["robot_arm", "--device", "gpu", "--ladders", "64", "--adaptation", "200", "--seconds", "90"]


@dataclass(frozen=True)
class Step:
    """A command, the most seconds that it may take, and the program that it needs besides Python."""

    name: str
    seconds: int
    command: list[str]
    program: str | None = None


def device_tests() -> list[str]:
    """The files of tests of a device that need neither pydantic, Ray nor Zarr, as the Makefile lists them."""
    text = (ROOT / "Makefile").read_text()
    listed = re.search(r"^DEVICE_TESTS := ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert listed is not None
    return listed[1].replace("\\\n", " ").split()


def steps(out: Path, *, jobs: int) -> list[Step]:
    """The steps in order of risk."""
    python = [sys.executable, "-m"]
    pytest = [*python, "pytest", "-m", "gpu", "-q", "--tb=short", "-n", str(jobs), "--timeout=240"]
    kernels, others = [], []
    for file in device_tests():
        (kernels if file.startswith("tests/kernels/") else others).append(file)
    smoke = [*python, "benchmarks.device.smoke"]
    sanitize = ["compute-sanitizer", "--error-exitcode", "9", "--tool"]
    profile = [
        "ncu",
        "--clock-control",
        "none",
        "--set",
        "full",
        "-k",
        "regex:advance|hybrid",
        "-c",
        "4",
        "-f",
    ]
    results = str(out / "results.jsonl")
    return [
        Step("smoke", 180, [*smoke, "--out", results]),
        Step("tests-first", 300, [*pytest, *kernels, "-k", _FIRST]),
        Step("tests-kernels", 600, [*pytest, *kernels, "-k", f"not ({_FIRST})"]),
        Step(
            "benchmarks",
            900,
            [sys.executable, "benchmarks/device_steps.py", "--repeats", "3", "--out", results],
        ),
        Step(
            "racecheck",
            300,
            [*sanitize, "racecheck", *smoke, "--small", "--without-pool"],
            "compute-sanitizer",
        ),
        Step(
            "memcheck", 300, [*sanitize, "memcheck", *smoke, "--small", "--without-pool"], "compute-sanitizer"
        ),
        Step("profile", 180, [*profile, "-o", str(out / "advance"), *smoke, "--small"], "ncu"),
        Step("tests-others", 900, [*pytest, *others]),
        # Whole runs, which need all that rayfbnn needs: 64 ladders, and as many chains for as long.
        Step("ladders", 300, [*python, "benchmarks.ladder", *_LADDERS]),
    ]


def about_device() -> dict[str, Any] | str:
    """The device and the versions on it, or why there is none."""
    try:
        finished = subprocess.run([sys.executable, "-c", _ABOUT], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "CuPy did not answer within two minutes"
    if finished.returncode != 0:
        return finished.stderr.strip().splitlines()[-1]
    return json.loads(finished.stdout)  # type: ignore[no-any-return]


def run(step: Step, out: Path, seconds: float) -> dict[str, Any]:
    """Run a step with a limit of time; its output goes to a file."""
    if step.program is not None and shutil.which(step.program) is None:
        return {"status": f"{step.program} is not installed", "seconds": 0.0}
    if seconds < 10:
        return {"status": "no time left", "seconds": 0.0}
    begin, log = time.monotonic(), out / f"{step.name}.log"
    with log.open("w") as file:
        # A session of its own, so that the step's own processes end with it.
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(min(step.seconds, seconds))
            status = "ok" if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = "took too long"
    tail = log.read_text(errors="replace")[-2000:]
    return {"status": status, "seconds": round(time.monotonic() - begin, 1), "tail": tail}


def environment() -> dict[str, str]:
    """Settings of the steps: two threads, compiled code kept between them, and no memory kept for JAX."""
    ours = {
        "OMP_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "CUPY_CACHE_DIR": str(ROOT / ".cupy_cache"),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    return {**os.environ, **ours}


def main(arguments: list[str] | None = None) -> int:
    """Run the steps, print a line for each, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".benchmarks" / "device")
    parser.add_argument("--seconds", type=float, default=3600, help="for all steps together")
    parser.add_argument("--jobs", type=int, default=8, help="tests at a time")
    parser.add_argument(
        "--only", nargs="*", metavar="STEP", help="the steps to run; none to look for a device"
    )
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    device = about_device()
    if isinstance(device, str):
        print(f"there is no device here: {device}", file=sys.stderr)
        return NO_DEVICE
    print(", ".join(f"{name} {value}" for name, value in device.items()), flush=True)
    out.mkdir(parents=True, exist_ok=True)
    end, failed = time.monotonic() + options.seconds, []
    for step in steps(out, jobs=options.jobs):
        if options.only is not None and step.name not in options.only:
            continue
        result = run(step, out, end - time.monotonic())
        about = conditions(**device)
        record = {"benchmark": "device_session", "step": step.name, **about, **result}
        append(out / "session.jsonl", record)
        print(f"{step.name}: {result['status']}, {result['seconds']} s", flush=True)
        if result["status"] != "ok":
            failed.append(step.name)
            print(result.get("tail", ""), flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
