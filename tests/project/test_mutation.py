"""The mutator makes the mutants that it says, and the bugs that once went unseen are killed."""

from __future__ import annotations

import signal
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.mutation import mutants
from benchmarks.mutation.child import run_tests
from benchmarks.mutation.mutants import DECIDING, PACKAGE, Mutant, compiled, mutants_of
from benchmarks.mutation.run import EQUIVALENT, in_order, table
from rayfbnn.model import output_layer
from tests.correctness.cell_statistics import posterior_of
from tests.correctness.cells import Cell
from tests.support.pages import ROOT

SOURCE = '''
"""A sentence with 1 number."""
LIMIT = 3


def share(values: tuple[int, ...], most: int = 2) -> float:
    """Return 1 share."""
    total = 0
    for value in values:
        if value < 0 and most:
            raise ValueError(f"{value} is below {0}")
        total += min(value, most)
    return -total / len(values[1])
'''


def test_each_kind_of_change_is_made_once_wherever_it_fits() -> None:
    found = {(mutant.function, mutant.kind, mutant.new) for mutant in mutants_of(SOURCE, "share.py")}
    assert found == {
        ("", "constant", "LIMIT = 4"),
        ("share", "constant", "def share(values: tuple[int, ...], most: int=3) -> float:"),
        ("share", "constant", "total = 1"),
        ("share", "condition", "if not (value < 0 and most):"),
        ("share", "and, or", "if value < 0 or most:"),
        ("share", "comparison", "if value <= 0 and most:"),
        ("share", "comparison", "if value > 0 and most:"),
        ("share", "constant", "if value < 1 and most:"),
        ("share", "dropped", "pass"),
        ("share", "arithmetic", "total -= min(value, most)"),
        ("share", "min, max", "total += max(value, most)"),
        ("share", "arithmetic", "return -total * len(values[1])"),
        ("share", "sign", "return total / len(values[1])"),
        ("share", "index", "return -total / len(values[0])"),
        ("share", "constant", "return -total / len(values[2])"),
    }


def test_a_mutant_of_the_package_is_compiled_with_its_change_alone() -> None:
    file = "model/output_layer.py"
    (mutant,) = (
        mutant
        for mutant in mutants_of((PACKAGE / file).read_text(), file)
        if mutant.kind == "index" and "group.prior.alphas[1]" in mutant.new
    )
    changed = ModuleType(output_layer.__name__)
    exec(compiled(mutant), changed.__dict__)
    posterior = posterior_of(Cell("one layer", "parameter", "real, noise fixed", "marginal, outputs"))
    assert not output_layer._targets_are_alike(posterior)
    assert changed._targets_are_alike(posterior)
    with pytest.raises(AssertionError, match="no longer there"):
        compiled(replace(mutant, old="x = 1"))


def test_the_tests_with_the_fewest_calls_in_every_file_come_first() -> None:
    mutant = Mutant("model/prior.py", "draw", "sign", "-x", "x", 1)
    calls = ["model/prior.py:draw"]
    tests = [
        {"test": test, "seconds": 1.0, "functions": functions}
        for test, functions in (
            ("tests/run/test_a.py::test_1", [*calls, "a", "b"]),
            ("tests/model/test_b.py::test_2", [*calls, "a"]),
            ("tests/model/test_b.py::test_3", calls),
            ("tests/model/test_c.py::test_4", ["model/prior.py:other"]),
        )
    ]
    assert [test["test"][-1] for test in in_order(mutant, tests)] == ["3", "1", "2"]


def test_mutants_since_a_commit_are_of_new_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(command, check=True, capture_output=True)

    package = tmp_path / "package"
    (package / "ring").mkdir(parents=True)
    file = package / "ring" / "share.py"
    file.write_text("FIRST = 1\nSECOND = 2\n")
    for words in (("init",), ("add", "."), ("commit", "-m", "first")):
        git(*words)
    file.write_text("FIRST = 1\nTHIRD = 3\nSECOND = 2\n")
    (package / "streams.py").write_text("FOURTH = 4\n")
    git("add", ".")
    monkeypatch.setattr(mutants, "PACKAGE", package)
    assert {mutant.new for mutant in mutants.chosen("HEAD")} == {"THIRD = 4", "FOURTH = 5"}
    assert len(mutants.chosen()) == 4


@pytest.mark.parametrize("pattern", DECIDING)
def test_every_pattern_of_deciding_files_names_a_file(pattern: str) -> None:
    assert any(PACKAGE.glob(pattern))


# Bugs that no test saw once: the file, (old, new) in its source, and the test that shows each.
UNSEEN = {
    "effective runs": (
        "mcmc/tempering/annealing.py",
        ("weights.sum() ** 2 /", "weights.sum() /"),
        "tests/mcmc/tempering/test_annealing.py::test_effective_runs_are_the_number_of_equal_weights",
    ),
    "log scale of two targets": (
        "data/dataset.py",
        ("np.isfinite(self.targets).sum(axis=0)", "np.isfinite(self.targets).sum()"),
        "tests/core/test_data.py::test_the_log_scale_counts_the_observed_cases_of_each_target",
    ),
    "large negative values": (
        "data/dataset.py",
        ("np.abs(standardized) > limit", "standardized > limit"),
        "tests/core/test_data.py::test_values_of_either_sign_are_too_large_for_float32",
    ),
    "calibration error": (
        "answers/comparison.py",
        (
            'calibration_error(score["confidence"], score["is_right"])',
            'calibration_error(score["is_right"], score["confidence"])',
        ),
        "tests/answers/comparing/test_comparison.py::test_the_calibration_error_is_the_one_by_hand",
    ),
    "advice where R-hat binds": (
        "answers/judging/words.py",
        ("(max_rhat**2 - 1) if", "(max_rhat**2 + 1) if"),
        "tests/answers/test_verdicts.py"
        "::test_iterations_that_would_do_follow_from_rhat_where_it_asks_for_more",
    ),
    "constant quantity": (
        "answers/judging/verdicts.py",
        ("np.ptp(values) > 0", "np.ptp(values) >= 0"),
        "tests/answers/test_diagnostics.py::test_a_quantity_that_never_changes_has_a_mean_alone",
    ),
    "scores of few draws": (
        "reduce/effective.py",
        ("ranks /= n + 0.25", "ranks /= n + 1.25"),
        "tests/study/test_rule.py::test_few_draws_are_judged_by_normal_scores_of_their_ranks",
    ),
    "single normals": (
        "streams.py",
        ("2.0**31) % 2.0**32 - 2.0**31", "2.0*31) % 2.0**32 - 2.0**31"),
        "tests/core/test_streams.py::test_normals_of_single_precision_are_built_from_the_documented_words",
    ),
    "alike targets": (
        "model/output_layer.py",
        ("math.isinf(group.prior.alphas[2])", "math.isinf(group.prior.alphas[1])"),
        "tests/model/marginal/test_hybrid_marginal.py"
        "::test_targets_share_a_matrix_only_if_noise_and_priors_are_alike",
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_a_bug_that_once_went_unseen_can_be_put_in(name: str) -> None:
    file, (old, _), test = UNSEEN[name]
    assert (PACKAGE / file).read_text().count(old) == 1
    assert f"def {test.partition('::')[2]}(" in (ROOT / test.partition("::")[0]).read_text()


@pytest.mark.long
@pytest.mark.parametrize("name", UNSEEN)
def test_a_bug_that_once_went_unseen_is_killed(name: str) -> None:
    file, (old, new), test = UNSEEN[name]
    code = compile((PACKAGE / file).read_text().replace(old, new), str(PACKAGE / file), "exec")
    assert run_tests([test], seconds=120) == ""
    assert run_tests([test], seconds=120, file=file, code=code).startswith(test)


def test_a_test_that_hangs_or_is_not_there_is_told_from_one_that_passes(tmp_path: Path) -> None:
    (tmp_path / "test_hang.py").write_text(
        "def test_passes():\n    pass\n\ndef test_hangs():\n    while True:\n        pass\n"
    )
    file = str(tmp_path / "test_hang.py")
    assert run_tests([f"{file}::test_passes"], seconds=60) == ""
    assert run_tests([file], seconds=2) == f"status {signal.SIGXCPU.value}"
    assert run_tests([f"{file}::test_gone"], seconds=60).startswith("status")


def test_equivalent_mutants_are_in_files_of_the_package_and_have_a_reason() -> None:
    for key, reason in tomllib.loads(EQUIVALENT.read_text()).items():
        assert (PACKAGE / key.split(":")[0]).exists() and " -> " in key
        assert reason.endswith(".") and len(reason) > 40


def test_the_table_leaves_out_equivalent_mutants() -> None:
    mutants = [Mutant("model/prior.py", "", "sign", f"{n}", "x", 1) for n in range(3)]
    results = {mutant.key: {"by": "a test" * (mutant.old != "2")} for mutant in mutants}
    text = table(mutants, results)
    assert f"survived: {mutants[2].key}" in text and "66.7%" in text
