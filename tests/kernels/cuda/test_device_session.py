"""The tests, checks and measurements for a device, tried without one."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device import session, smoke
from benchmarks.device.session import Step
from benchmarks.machine import ROOT
from tests.support.shim.compiled import needs_gxx
from tests.support.standin_cupy.install import installed

ALLOWED = {"numpy", "scipy", "pytest", "hypothesis", "cupy"} | sys.stdlib_module_names


def module_level(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run with the file: those of functions run only when a test asks for them."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def needed_by(files: list[Path]) -> set[str]:
    """Packages that are imported with the files, or with the files of this repository that they import."""
    packages, seen, waiting = set(), set(), files
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for node in module_level(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{name}" for name in names)]
            for name in names:
                if name.partition(".")[0] not in ("rayfbnn", "tests"):
                    packages.add(name.partition(".")[0])
                    continue
                path = ROOT.joinpath(*name.split("."))
                waiting += [file for file in (path / "__init__.py", path.with_suffix(".py")) if file.exists()]
    return packages


def test_the_tests_of_a_device_are_listed_and_need_little() -> None:
    listed = {ROOT / file for file in session.device_tests()}
    # Split, so that this file has none of them. Some parameters are marked where they are made.
    marks = (
        "pytest.mark." + "gpu",
        'usefixtures("' + 'cupy")',
        "params=every_" + "backend(",
        '("backend", BACK' + "ENDS)",
    )
    marked = {
        file
        for file in (ROOT / "tests").rglob("test_*.py")
        if any(mark in file.read_text() for mark in marks)
    }
    assert listed == marked
    assert needed_by([*listed, ROOT / "tests" / "conftest.py"]) <= ALLOWED


def test_a_file_that_needs_more_is_seen() -> None:
    assert not needed_by([Path(__file__).parents[2] / "run" / "test_on_standin.py"]) <= ALLOWED


def test_a_session_without_a_device_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "about_device", lambda: "No module named 'cupy'")
    assert session.main(["--out", str(tmp_path / "out")]) == session.NO_DEVICE
    assert capsys.readouterr().err == "there is no device here: No module named 'cupy'\n"
    assert not (tmp_path / "out").exists()


def test_no_step_keeps_the_others_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def python(text: str) -> list[str]:
        return [sys.executable, "-c", text]

    steps = [
        Step("passes", 60, python("print('well')")),
        Step("fails", 60, python("import sys; print('why'); sys.exit(3)")),
        Step("hangs", 1, python("import time; time.sleep(600)")),
        Step("lacks", 60, python(""), program="no-such-program"),
        Step("last", 60, python("")),
    ]
    monkeypatch.setattr(session, "about_device", lambda: {"device": "a card"})
    monkeypatch.setattr(session, "steps", lambda out, *, jobs: steps)
    assert session.main(["--out", str(tmp_path)]) == 1
    rows = [json.loads(line) for line in (tmp_path / "session.jsonl").read_text().splitlines()]
    assert [(row["step"], row["status"]) for row in rows] == [
        ("passes", "ok"),
        ("fails", "exit code 3"),
        ("hangs", "took too long"),
        ("lacks", "no-such-program is not installed"),
        ("last", "ok"),
    ]
    assert all(row["device"] == "a card" and row["date"] and row["commit"] for row in rows)
    assert rows[1]["tail"] == "why\n" and (tmp_path / "passes.log").read_text() == "well\n"
    assert "failed: fails, hangs, lacks" in capsys.readouterr().out


def test_the_steps_of_a_session_are_in_order_of_risk() -> None:
    steps = session.steps(Path("out"), jobs=8)
    names = [step.name for step in steps]
    assert names.index("smoke") == 0 and names.index("tests-kernels") < names.index("benchmarks")
    for step in steps:
        assert step.command[0] == (step.program or sys.executable)
        files = [part for part in step.command if part.startswith("tests/")]
        assert all((ROOT / file).exists() for file in files)
    chosen = [set(session.device_tests()) & set(step.command) for step in steps]
    assert set.union(*chosen) == set(session.device_tests())


@pytest.fixture
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module


@needs_gxx
def test_the_smoke_checks_pass_on_the_stand_in(cupy: Any) -> None:
    chip = partial(smoke.against_array_code, chains=2, n_steps=2, compiled=smoke.launched)
    for check, most in (
        (partial(smoke.streams, 20), 1e-9),
        (smoke.graph, 0.0),
        (partial(chip, "2-4-1/20", expected="a warp a chain"), smoke.FLOAT32),
        (partial(chip, "2-40-1/20", expected="a block a chain"), smoke.FLOAT32),
        (partial(smoke.whole_update, "2-4-1/20", 2, 6), smoke.ENERGY),
        (partial(smoke.ladders, "2-4-1/20", 2, 4), smoke.ENERGY),
    ):
        result = smoke.run(check, most)
        assert result["ok"], result
    wrong = smoke.run(partial(chip, "2-4-1/20", expected="products"), 1.0)
    assert not wrong["ok"] and "is run by" in wrong["error"]


@needs_gxx
def test_the_rows_of_the_benchmark_are_measured_on_the_stand_in(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    device_steps = importlib.import_module("device_steps")
    try:
        row = partial(device_steps.row_or_error, dtype="float32", repeats=1)
        assert set(device_steps.product_rates(16, 1)) == {"float32", "TF32"}
        network = row(device_steps.measure, "2-4-1/20", 2, 2)
        assert network["errors"] == {} and set(network["gflops"]) == set(network["us_per_step"])
        assert "CUDA, whole trajectories, a warp a chain" in network["us_per_step"]
        iterations = row(device_steps.measure_iterations, "2-4-1/20", 2, 12)
        assert list(iterations["us_per_step"]) == ["iterations, window 1", "iterations, window 10"]
        failed = row(device_steps.measure, "not a shape", 2, 2)
        assert failed["us_per_step"] == {} and "ConfigError" in failed["errors"]["all"]
        _, errors = device_steps.timed({"breaks": lambda: 1 / 0})
        assert "ZeroDivisionError" in errors["breaks"]
    finally:
        for name in ("device_steps", "machine", "steps"):
            sys.modules.pop(name, None)
