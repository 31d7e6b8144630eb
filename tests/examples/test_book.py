"""The experiments of Neal's book: rows can run, short ones come out, and the page has the kept results."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.verbs.arguments import read_run_data, read_spec
from tests.support.pages import ROOT

BOOK = ROOT / "examples" / "book"
pytest.importorskip("matplotlib", reason="the plots extra is not installed")


@pytest.fixture(scope="module")
def book() -> Iterator[dict[str, Any]]:
    """The modules of the example by name."""
    sys.path.insert(0, str(BOOK))
    try:
        import comparing
        import gates
        import page
        import rows
        import running

        yield {module.__name__: module for module in (comparing, gates, page, rows, running)}
    finally:
        sys.path.remove(str(BOOK))


def row_named(book: dict[str, Any], name: str) -> Any:
    return next(row for row in book["rows"].rows() if row.name == name)


def test_every_configuration_reads_its_cases(book: dict[str, Any]) -> None:
    """One row for each configuration and set of changes; the cases of each row are there."""
    seen = set()
    for row in book["rows"].rows():
        train = book["running"].cases(row.train_path, row.train)
        assert len(train) > 0
        if row.test is not None:
            assert len(book["running"].cases(BOOK / row.test[0], row.test[1])) > 50 - len(train) // 20
        if (row.base, row.set) not in seen:
            seen.add((row.base, row.set))
            configuration = row.configuration()
            configuration["data"].pop("train")
            spec, dataset = read_run_data(read_spec(configuration, row.set), train)
            assert dataset.n_cases == len(train) and spec.network.n_parameters > 10


def test_a_driver_that_is_stopped_while_it_samples_ends_with_its_worker(tmp_path: Path) -> None:
    command = [sys.executable, str(BOOK / "book.py"), "--workers", "1", "--only", "3.9-langevin-0.1"]
    driver = subprocess.Popen(
        [*command, "--out", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        while driver.poll() is None and not list(tmp_path.glob("*.zarr")):
            time.sleep(0.2)
        time.sleep(3)  # sampling begins
        driver.send_signal(signal.SIGTERM)
        _, errors = driver.communicate(timeout=60)
    finally:
        driver.kill()
    assert driver.returncode == 1 and b"stopped; the same command goes on" in errors


def test_rows_have_names_of_their_own_and_every_figure(book: dict[str, Any]) -> None:
    rows = book["rows"].rows()
    assert len({row.name for row in rows}) == len(rows)
    figures = {figure for row in rows for figure in row.figures}
    assert figures >= {"1.2", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11"}
    assert figures >= {"4.1", "4.2", "4.3", "4.4", "4.6", "4.7", "4.8", "4.10", "4.11", "4.13", "4.14"}
    for configuration in BOOK.glob("*.toml"):
        assert any(row.base == configuration.stem for row in rows), configuration.name


def test_lengths_shorten_iterations_and_repetitions(book: dict[str, Any]) -> None:
    folds = row_named(book, "4.11-6+6-0")
    whole, short = folds.configuration()["phase"], folds.configuration(0.1)["phase"]
    assert [phase["iterations"] for phase in whole] == [1, 1, 1, 20, 100]
    assert [phase["iterations"] for phase in short] == [1, 1, 1, 2, 10]
    assert [phase["operations"][0]["times"] for phase in short] == [2, 150, 75, 10, 10]


def test_maximum_likelihood_learning_fits_the_training_cases_ever_better(
    book: dict[str, Any], tmp_path: Path
) -> None:
    """Figure 4.4 with few iterations; the error that is reported is the one of the start that learnt best."""
    line = book["running"].run(row_named(book, "4.4-8"), tmp_path, 0.05, 1)
    train, test = np.array(line["train_errors"]), np.array(line["test_errors"])
    assert train.shape == test.shape == (8, len(line["looks"])) and line["looks"][-1] == 50
    assert (np.diff(train, axis=1) <= 1e-9).all()
    best = train[:, -1].argmin()
    assert line["train_error"] == pytest.approx(train[best, -1], rel=1e-3)
    assert line["squared_error"] == pytest.approx(test[best, -1], rel=1e-3)
    assert train[best, -1] < 0.006 < test[best, -1]


def test_short_trajectories_are_stable_and_long_steps_are_not(book: dict[str, Any], tmp_path: Path) -> None:
    """Figure 3.3 at four stepsizes."""
    rows = book["rows"]
    phases = tuple(rows.phase(4, rows.pair(100, eta)) for eta in (0.1, 0.3, 0.7, 1.5))
    line = book["running"].run(replace(row_named(book, "3.3"), phases=phases), tmp_path, 1 / 4, 1)
    assert line["stepsizes"] == [0.1, 0.3, 0.7, 1.5]
    assert min(line["acceptances"][:2]) > 0.7 and max(line["acceptances"][2:]) < 0.05
    assert book["gates"].stability_limit(line) == pytest.approx((0.3 * 0.7) ** 0.5)


def test_random_walks_accept_as_in_the_book(book: dict[str, Any], tmp_path: Path) -> None:
    """Figure 3.9 with one super-transition of 2,000 updates."""
    for name, accepted in (("metropolis-0.3", 0.39), ("langevin-0.3", 0.81)):
        row = row_named(book, f"3.9-{name}")
        phases = (row.phases[0] | {"iterations": 1},)
        line = book["running"].run(replace(row, phases=phases), tmp_path, 0.25, 1)
        assert line["accepted"] == pytest.approx(accepted, abs=0.08)


def test_the_driver_runs_rows_once_and_compares_them(tmp_path: Path) -> None:
    def driver(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, BOOK / "book.py", "--out", tmp_path / "out", "--workers", "1", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    first = driver("--only", "4.6-1-24-0-no", "4.6-1-24-0-ard", "--length", "0.01")
    assert first.returncode == (3 if "FAILED" in first.stdout else 0), first.stderr
    assert "2 of 2 rows, time left 0:00:00" in first.stdout
    assert "4.6-1-24-0-ard has a smaller error rate than 4.6-1-24-0-no" in first.stdout
    lines = (tmp_path / "out/results.jsonl").read_text().splitlines()
    assert {json.loads(line)["row"] for line in lines} == {"4.6-1-24-0-no", "4.6-1-24-0-ard"}
    second = driver("--only", "4.6-1-24-0-no", "--length", "0.01")
    assert second.returncode == (3 if "FAILED" in second.stdout else 0)
    assert "1 of 1 rows are done" in second.stdout
    assert (tmp_path / "out/results.jsonl").read_text().splitlines() == lines
    wrong = [json.dumps(json.loads(line) | {"error_rate": 0.9}) for line in lines]
    (tmp_path / "out/results.jsonl").write_text("\n".join(wrong) + "\n")
    third = driver("--only", "4.6-1-24-0-no", "--length", "0.01")
    assert third.returncode == 3 and "FAILED  4.6   4.6-1-24-0-no: error rate" in third.stdout
    statement = "4.6: 4.6-1-24-0-no: error rate within 0.02 of 0.364: 0.9"
    assert third.stderr.splitlines()[-2:] == ["these statements did not come out:", f"  {statement}"]
    for options, words in (
        (("--only", "5.1"), "no row for 5.1; there are 1.2, 3.2, 3.3"),
        (("--length", "0"), "--length: must be above 0 and at most 1, got 0.0"),
        (("--workers", "0"), "--workers: must be at least 1"),
        (("--only", "1.2", "--length", "0.5", "--keep"), "--keep: only results of the book's lengths"),
    ):
        refused = driver(*options)
        assert refused.returncode == 2 and words in refused.stderr


def test_the_page_has_the_kept_results(book: dict[str, Any]) -> None:
    page, text = book["page"], (ROOT / "docs" / "book.md").read_text()
    results = page.kept()
    assert page.with_tables(text, results) == text
    for figure in page.TABLES:
        assert f"<!-- table {figure} -->" in text, f"docs/book.md has no table of figure {figure}"
    for line in results.values():
        assert line.get("length", 1.0) == 1.0 and ("comparison" in line or line["commit"])


def test_the_statements_that_do_not_come_out_are_those_that_are_known(book: dict[str, Any]) -> None:
    gates, results = book["gates"], book["page"].kept()
    lines, failed = gates.report(results)
    assert failed == [] and len(lines) == len(gates.GATES)
    differing = [gate.words for gate, _, passed in gates.judged(results) if not passed]
    assert differing == [gate.words for gate in gates.GATES if gate.differs] and len(differing) == 2
    worse = results | {"3.6-L2000": results["3.6-L8000"], "3.6-L8000": results["3.6-L2000"]}
    _, failed = gates.report(worse)  # the shorter trajectories are better than those of the book
    assert any("of five lengths, L = 8000" in line for line in failed)
    _, failed = gates.report(results | {"4.8-two": results["4.8-one"]})
    assert failed == [
        "4.8: two-level ARD: inputs of no use have ten times smaller weights:"
        " copies 5.1, noise 46 times smaller"
    ]


@pytest.mark.long
@pytest.mark.parametrize("figure", ["3.8", "3.10", "3.11", "4.6", "4.8", "4.11", "4.13"])
def test_shorter_runs_come_out(book: dict[str, Any], figure: str, tmp_path: Path) -> None:
    """A fifth or a quarter of the book's lengths gives what the book says."""
    length = {"3.10": 1.0, "3.11": 1.0, "4.8": 0.25}.get(figure, 0.2)
    figures = {"3.10", "3.11"} if figure == "3.11" else {figure}
    wanted = [row for row in book["rows"].rows() if figures & set(row.figures)]
    if figure in ("4.6", "4.11", "4.13"):  # without hidden units
        bases = ("led_linear", "boston_linear", "glass_linear")
        wanted = [row for row in wanted if row.base in bases]
    lines = {row.name: book["running"].run(row, tmp_path, length, 1) for row in wanted}
    lines |= book["comparing"].comparisons(lines, tmp_path)
    judged = book["gates"].judged(lines, figure)
    assert judged
    assert [f"{gate.words}: {found}" for gate, found, passed in judged if not (passed or gate.differs)] == []
