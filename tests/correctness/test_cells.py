"""Every cell of cells.py keeps the joint distribution of parameters, precisions and data.

docs/correctness.md describes the tests as they are: no mutant and no cell is missing or made up.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

from rayfbnn.mcmc.operation import unrolled
from rayfbnn.mcmc.operations import OPERATIONS as ALL_OPERATIONS
from rayfbnn.model import cases, connections, network, sampled, wiring
from rayfbnn.model.likelihood import count, dispersed_count, heteroscedastic, survival
from rayfbnn.model.updates import gibbs
from tests.correctness import mutant_table, page
from tests.correctness.cell_statistics import Verdict, judged
from tests.correctness.cells import ARCHITECTURES, CELLS, DATA, LEVELS, OPERATIONS, Cell
from tests.correctness.page import NEW_DATA, SAME_DATA
from tests.support.mutants import mutant, sampled_with

QUICK = 4_000
EVERY_TIME = [cell for cell in CELLS if cell.every_time]


@pytest.mark.parametrize("cell", EVERY_TIME, ids=str)
def test_joint_distribution_stays(cell: Cell) -> None:
    assert judged(cell, n_chains=QUICK, name=", few chains").is_exact


@pytest.mark.long
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_joint_distribution_stays_with_many_chains(cell: Cell, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed")
    verdict = judged(cell, n_chains=cell.n_chains, name=f", seed {seed}" if seed else "")
    record(request, SAME_DATA, cell, verdict)
    assert verdict.is_exact
    assert not verdict.acceptance < 0.2  # at a rate of zero nothing moves, and no error would show


@pytest.mark.long
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_joint_distribution_stays_with_new_data(cell: Cell, request: pytest.FixtureRequest) -> None:
    """In Geweke's chain, data are drawn again after each of 25 iterations."""
    seed = request.config.getoption("--seed")
    verdict = judged(
        cell, n_chains=2_000, name=f", new data, seed {seed}", n_iterations=25, with_new_data=True
    )
    record(request, NEW_DATA, cell, verdict)
    assert verdict.is_exact


def record(request: pytest.FixtureRequest, test: str, cell: Cell, verdict: Verdict) -> None:
    """Append the verdict to the file of --p-values, if there is one."""
    if file := request.config.getoption("--p-values"):
        fields = asdict(verdict)
        if math.isnan(verdict.acceptance):
            fields["acceptance"] = None
        line = {"test": test, "cell": str(cell), "seed": request.config.getoption("--seed"), **fields}
        with Path(file).open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def test_there_are_enough_cells_and_none_twice() -> None:
    assert len(CELLS) >= 48
    assert [cell for cell, n in Counter(map(str, CELLS)).items() if n > 1] == []
    assert 6 <= len(EVERY_TIME) <= 14


def test_every_name_is_in_some_cell() -> None:
    assert {cell.architecture for cell in CELLS} == set(ARCHITECTURES)
    assert {cell.levels for cell in CELLS} == set(LEVELS)
    assert {cell.data for cell in CELLS} == set(DATA)
    assert {cell.operations for cell in CELLS} == set(OPERATIONS)


# Operations without a cell, each with its own tests.
NOT_IN_CELLS = {
    "repeat",  # unrolled into its operations
    "dynamic",  # biased, and shown to be: test_dynamic.py
    "sghmc",  # biased, with tests of its bias: test_sghmc.py
    "simulated-tempering",  # needs chains that share their data: test_tempering.py
}


def test_every_operation_is_in_some_cell_or_has_tests_of_its_own() -> None:
    used = {operation.op for operations in OPERATIONS.values() for operation in unrolled(operations)}
    assert used == {kind.op for kind in ALL_OPERATIONS} - NOT_IN_CELLS


# Bugs in the sampler's posterior: the module, (old, new) in its source, and the cell that must show it.
MUTANTS: dict[str, tuple[ModuleType, str, str, str]] = {
    "adjustments not in the groups' precisions": (
        gibbs,
        "rows = rows * xp.sqrt(precisions[:, None, columns])",
        "pass",
        "adjustments | group | real, each target | everything",
    ),
    "adjustments of weights alone": (
        gibbs,
        "n += rows.shape[1]",
        "n += rows.shape[1] if group.n_units > 1 else 0",
        "adjustments | group | real, each target | everything",
    ),
    "one of two ways into a layer": (
        network,
        "out += xp.matmul(matrix, source)",
        "pass",
        "past a layer | group | real | everything",
    ),
    "product left out": (
        network,
        "values[-1] *= sources[factor][:, :-1]",
        "pass",
        "product | group | real | everything",
    ),
    "rows for columns": (
        network,
        "2 if groups.by_row else 1",
        "1 if groups.by_row else 2",
        "normalize i % 2 | group | t, each target | everything",
    ),
    "another input left out": (
        wiring,
        "[i for i in range(units[source]) if i not in network.omitted[name]]",
        "list(range(n_units))",
        "inputs left out | group, unit | real, missing | everything",
    ),
    "shared weights used once": (
        connections,
        "self.to_cells(weights[:, self.weights_of, None])",
        "self.to_cells(weights[:, xp.arange(len(self.weights_of)) % weights.shape[1], None])",
        "shared weights | group | real | everything",
    ),
    "missing t values counted": (
        gibbs,
        "(self.weights * terms).sum(axis=2)",
        "terms.sum(axis=2)",
        "one layer | group | t, missing | random-grid",
    ),
    "padding is not zero": (
        connections,
        "gathered *= self.inside",
        "pass",
        "convolution | fixed | t | langevin",
    ),
    "count: twice the rate": (
        count,
        "- rate + rows",
        "- 2 * rate + rows",
        "one layer | group | count | everything",
    ),
    "count: missing counts are zeros": (
        cases,
        "    if weights is not None:\n        terms *= weights",
        "    if False:\n        terms *= weights",
        "adjustments | every level | count, missing | hybrid",
    ),
    "dispersion: the prior left out": (
        dispersed_count,
        "lambda x: log_prior(x, alpha, mean) + of_targets(x),",
        "lambda x: of_targets(x),",
        "one layer | group | count, dispersion | everything",
    ),
    "dispersion: the counts left out": (
        dispersed_count,
        "lambda x: log_prior(x, alpha, mean) + of_targets(x),",
        "lambda x: log_prior(x, alpha, mean),",
        "one layer | group | count, dispersion of each | random-grid",
    ),
    "dispersion: points beyond the slice": (
        dispersed_count,
        "inside = bounded(point) >= level",
        "inside = bounded(point) >= level - 1",
        "one layer | group | count, dispersion | everything",
    ),
    "dispersion: the density of a shape for that of its logarithm": (
        dispersed_count,
        "log_prior(x, alpha, mean) + of_targets(x),",
        "log_prior(x, alpha, mean) - x + of_targets(x),",
        "one layer | group | count, dispersion | everything",
    ),
    "dispersion: twice the mean of the shape above those of the targets": (
        gibbs,
        ".full((len(precisions), 1), group.mean)",
        ".full((len(precisions), 1), 2 * group.mean)",
        "one layer | group | count, dispersion of each | random-grid",
    ),
    "dispersion: counts of zero say nothing": (
        dispersed_count,
        "-((y + by_case) * excess * w)",
        "-(y * excess * w)",
        "one layer | group | count, dispersion | everything",
    ),
    "survival: censored times are events": (
        survival,
        "has_event = (targets > 0) &",
        "has_event = (targets != 0) &",
        "normalize i % 2 | parameter | survival, censored | random-grid",
    ),
    "survival: censored times count for nothing": (
        survival,
        "time = xp.abs(xp.nan_to_num(targets, nan=0.0))",
        "time = xp.maximum(xp.nan_to_num(targets, nan=0.0), 0.0)",
        "one layer | group | survival, pieces, censored | windows",
    ),
    "survival: the whole time in every piece": (
        survival,
        "xp.maximum(xp.minimum(time, ends) - starts, 0.0)",
        "xp.where(time > starts, time, 0.0)",
        "one layer | group | survival, pieces, censored | windows",
    ),
    "survival: time in place of log time": (
        survival,
        "math.log(time) if self.log_time else time",
        "time",
        "one layer | unit | survival, log time | everything",
    ),
    "heteroscedastic: half the normaliser": (
        heteroscedastic,
        "0.5 * (log_tau - z - _LOG_2_PI)",
        "0.25 * log_tau - 0.5 * (z - _LOG_2_PI)",
        "one layer | group | heteroscedastic | hybrid",
    ),
    "heteroscedastic: the floor forgotten": (
        heteroscedastic,
        "if floor == 0:",
        "if True:",
        "one layer | group, parameter | heteroscedastic, floor | everything",
    ),
    "missing targets count in the noise": (
        sampled,
        "weights = weights * self.observed",
        "pass",
        "one layer | group | real, missing | partitions",
    ),
    "missing t targets count in the noise": (
        sampled,
        "weights = weights * self.observed",
        "pass",
        "one layer | every level | t, missing | everything",
    ),
    "missing labels count as zeros": (
        cases,
        "    if weights is not None:\n        terms *= weights",
        "    if False:\n        terms *= weights",
        "offsets | group, parameter | binary, missing | persistent",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    module, old, new, row = MUTANTS[name]
    cell = next(cell for cell in CELLS if str(cell) == row)
    changed = sampled_with(mutant(module, (old, new)))
    assert not judged(cell, n_chains=QUICK // 2, name=f", {name}", posterior=changed).is_exact


def test_the_page_is_current() -> None:
    """To mend it: python -m tests.correctness.page (with --run if the cells themselves have changed)."""
    text = page.PAGE.read_text()
    assert page.written(text) == text


def test_there_are_at_least_60_mutants() -> None:
    table = mutant_table.mutants()
    assert len({(entry.file, entry.bug) for entry in table}) >= 60
    assert len({entry.bug for entry in table}) >= 60


def test_every_test_with_a_mutant_is_accounted_for() -> None:
    assert mutant_table.unaccounted() == []


def test_every_equivalent_mutant_has_its_reason() -> None:
    reasons = {key: set(entries) for key, entries in mutant_table.EQUIVALENT.items()}
    assert mutant_table.equivalent_in_tests() == reasons


def test_every_cell_was_in_the_last_run() -> None:
    """To mend it: python -m tests.correctness.page --run"""
    assert " - | - | - | - |" not in page.cells_table()
    assert "**failed**" not in page.cells_table()
