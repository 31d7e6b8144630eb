"""The registry of approximations: nothing else knows their names, and a fifth one needs a line in it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.approximate.approximation import Approximation, Fit, right_values
from rayfbnn.approximate.registry import APPROXIMATIONS
from rayfbnn.spec import RunSpec
from tests.support.small import small

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rayfbnn"


def facts_of(path: Path) -> tuple[set[object], set[str], set[str]]:
    """Return the constants of a file, the names in its questions by isinstance, and its classes."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    questions = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass")
    ]
    names = {inner.id for node in questions for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    constants = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return constants, names, {node.name for node in nodes if isinstance(node, ast.ClassDef)}


@cache
def facts() -> dict[str, tuple[set[object], set[str], set[str]]]:
    """Return the facts of every file of the package."""
    return {str(path.relative_to(PACKAGE)): facts_of(path) for path in PACKAGE.rglob("*.py")}


def home_of(name: str) -> str:
    """Return the file of an approximation."""
    return APPROXIMATIONS[name].__module__.removeprefix("rayfbnn.").replace(".", "/") + ".py"


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_the_name_of_an_approximation_is_a_value_in_its_own_file_alone(name: str) -> None:
    assert {file for file, (constants, _, _) in facts().items() if name in constants} == {home_of(name)}


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_no_other_file_asks_whether_an_approximation_is_this_one(name: str) -> None:
    home = home_of(name)
    classes = facts()[home][2]
    assert {file for file, (_, names, _) in facts().items() if names & classes} <= {home}


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_the_parts_of_an_approximation_have_the_order_of_the_contract(name: str) -> None:
    kind = APPROXIMATIONS[name]
    (fit,) = [one for one in Fit.__subclasses__() if one.__module__ == kind.__module__]
    for part, contract in ((kind, Approximation), (fit, Fit)):
        order = [
            key for key, value in vars(contract).items() if callable(value) or isinstance(value, property)
        ]
        own = [key for key in vars(part) if key in order and key.strip("_") == key]
        assert own == sorted(own, key=order.index)


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_an_empty_table_is_the_approximation_with_its_defaults(name: str) -> None:
    spec = RunSpec.from_dict(small() | {"methods": {name: {}}}).for_method(name)
    assert spec.fit == APPROXIMATIONS[name]()
    assert RunSpec.from_json(spec.to_json()).fit == spec.fit
    assert all(right_values(APPROXIMATIONS[name]).values())


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of all verbs in a process with a point mass in its registry."""
    folder = tmp_path_factory.mktemp("fifth")
    command = [sys.executable, "-m", "tests.support.approximate.every_verb", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_fifth_approximation_is_sampled(answers: dict[str, Any]) -> None:
    assert answers["status"] and answers["verify"]
    assert answers["positions"] == 3 * 6 * [0.25] + 3 * 6 * [0.125]  # two starts, three draws, six weights


def test_a_fifth_approximation_is_shown(answers: dict[str, Any]) -> None:
    for text in (answers["show"], answers["show of a configuration"]):
        assert "Method: point, a point mass at a given place" in text
        assert "2 starts of at most 1 steps, then 3 independent draws each" in text
        assert "place       0.25" in text


def test_a_fifth_approximation_predicts_by_its_networks(answers: dict[str, Any]) -> None:
    """All parameters of the two networks are 1/4 and 1/8."""
    sums = np.array(answers["inputs"]).sum(axis=1)
    each = [w + 3 * w * np.tanh(w * sums + w) for w in (0.25, 0.125)]
    assert answers["predict"] == pytest.approx(np.mean(each, axis=0), rel=1e-5)


def test_a_fifth_approximation_is_diagnosed(answers: dict[str, Any]) -> None:
    diagnosis = answers["diagnose"]
    assert [start["weight"] for start in diagnosis["starts"]] == [0.5, 0.5]
    assert [start["log_evidence"] for start in diagnosis["starts"]] == [None, None]
    assert [reason.split(",")[0] for reason in diagnosis["reasons"]] == ["single networks have no spread"]


def test_a_fifth_approximation_is_compared(answers: dict[str, Any]) -> None:
    assert answers["compare"]["gradients"] == 0
    assert np.isfinite(answers["compare"]["w2"]) and "log_evidence" not in answers["compare"]


def test_a_fifth_approximation_is_reported(answers: dict[str, Any]) -> None:
    assert "--method point" in answers["report"] and "log density at the place" in answers["report"]


def test_wrong_keys_of_a_fifth_approximation_are_refused(answers: dict[str, Any]) -> None:
    outside, text, unknown = answers["refused"]
    assert outside == "methods.point.place: must be a number from -10 to 10, such as 0.5, got 11"
    assert text == 'methods.point.place: must be a number from -10 to 10, such as 0.5, got "x"'
    assert unknown.startswith("methods.point.plaec: unknown key (did you mean place?)")
