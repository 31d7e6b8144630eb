"""Writes the tables of docs/correctness.md: `python -m tests.correctness.page`, with --run after a new run.

The cells and their p-values come from cells.py and tests/data/p_values.jsonl, the mutants from the test
modules, and the line of the soak from tests/data/soak.txt, which holds what its last long run printed. The
text between the tables is written by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.correctness.cells import CELLS
from tests.correctness.mutant_table import EQUIVALENT, mutants

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "correctness.md"
P_VALUES = ROOT / "tests" / "data" / "p_values.jsonl"
SOAK = ROOT / "tests" / "data" / "soak.txt"

SAME_DATA, NEW_DATA = "same data", "new data"  # names of tests in test_cells.py

# The first pattern that matches a file gives its layer.
LAYERS = {
    "tests/model/(updates/test_(gibbs|adjustments)|test_tempered)": "2 conditionals",
    "tests/model/(updates/|marginal/test_hybrid_marginal)": "5 joint",
    "tests/model/marginal/test_binary_marginal": "4 known targets",
    "tests/model/test_prior": "7 exact draws",
    "tests/model/": "1 formulas",
    "tests/mcmc/(test_rejection|tempering/test_tempered_draws)": "7 exact draws",
    "tests/mcmc/tempering/test_annealing": "6 normalisers",
    "tests/mcmc/(tempering/|one_at_a_time/)": "4 known targets",
    "tests/mcmc/test_(compositions|dynamic|hybrid_max|sghmc)": "4 known targets",
    "tests/approximate/": "4 known targets",
    "tests/mcmc/test_(invariance|jump|langevin|radial_heatbath)": "4 known targets",
    "tests/mcmc/": "3 trajectories",
    "tests/correctness/test_(cells|joint)": "5 joint",
    "tests/correctness/": "4 known targets",
    "tests/answers/": "7 exact draws",
    "tests/selftest": "9 your machine",
}


def layer(file: str) -> str:
    return next(name for pattern, name in LAYERS.items() if re.match(pattern, file))


def last_run() -> dict[tuple[str, str], dict[str, Any]]:
    """Results of the last run by (test, cell)."""
    lines = map(json.loads, P_VALUES.read_text().splitlines())
    return {(line["test"], line["cell"]): line for line in lines}


def cells_table() -> str:
    """Rows of the table of cells, with dashes for cells that the last run did not have."""
    names = ["architecture", "prior levels", "data", "operations", "accepted", "statistics"]
    results, lines = last_run(), _header(*names, "looks", "p", "looks, new data", "p, new data")
    for cell in CELLS:
        first, second = (results.get((test, str(cell))) for test in (SAME_DATA, NEW_DATA))
        rates = ["-", "-"]
        if first is not None:
            accepted = first["acceptance"]
            rates = ["" if accepted is None else f"{accepted:.2f}", str(first["n_statistics"])]
        names_of_cell = [cell.architecture, cell.levels, cell.data, cell.operations]
        lines.append(_row(*names_of_cell, *rates, *_looks_and_p(first), *_looks_and_p(second)))
    return "\n".join(lines)


def _looks_and_p(line: dict[str, Any] | None) -> tuple[str, str]:
    if line is None:
        return "-", "-"
    return str(line["looks"]), f"{line['p_value']:.2g}" + ("" if line["is_exact"] else " **failed**")


def cells_summary() -> str:
    lines = list(last_run().values())
    passed = sum(line["is_exact"] for line in lines)
    seeds = ", ".join(map(str, sorted({line["seed"] for line in lines})))
    return (
        f"{len(CELLS)} cells; of {len(lines)} tests of them in the last run (seed {seeds}) {passed} passed."
    )


def mutants_summary() -> str:
    table = mutants()
    counts = Counter(layer(mutant.file) for mutant in table)
    by_layer = ", ".join(f"{n} by layer {name}" for name, n in sorted(counts.items()))
    n_equivalent = sum(map(len, EQUIVALENT.values()))
    text = f"{len(table)} mutants, all killed: {by_layer}. {n_equivalent} more are equivalent."
    return textwrap.fill(text, 150)


def mutants_table() -> str:
    """Rows of the table of mutants, one for each test with all the bugs that it kills."""
    lines = _header("layer", "killed by", "mutants")
    ordered = sorted(mutants(), key=lambda mutant: (layer(mutant.file), mutant.file))
    for (file, test), group in groupby(ordered, key=lambda mutant: (mutant.file, mutant.test)):
        bugs = list(group)
        where = f"{file.removeprefix('tests/')}, {test.removeprefix('test_')}"
        lines.append(_row(layer(file), where, f"{len(bugs)}: " + "; ".join(mutant.bug for mutant in bugs)))
    return "\n".join(lines)


def equivalent_table() -> str:
    lines = _header("mutant", "in", "why no test of exactness can see it")
    for key, reasons in EQUIVALENT.items():
        file, test = key.removeprefix("tests/").split("::")
        name = re.sub(r"^test_|_stays_exact$", "", test).replace("_", " ")
        lines += [_row(bug or name, file, reason) for bug, reason in reasons.items()]
    return "\n".join(lines)


def soak_line() -> str:
    """The last line of the last long soak."""
    return "> " + SOAK.read_text().splitlines()[-1]


def _header(*names: str) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


def _row(*values: object) -> str:
    return "| " + " | ".join(str(value).replace("|", "\\|") for value in values) + " |"


TABLES = {
    "cells": cells_table,
    "cells summary": cells_summary,
    "mutants": mutants_table,
    "mutants summary": mutants_summary,
    "equivalent": equivalent_table,
    "soak": soak_line,
}


def written(text: str) -> str:
    """The page with its tables brought up to date."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name}: by tests/correctness/page.py -->\n", f"\n<!-- end of {name} -->"
        before, rest = text.split(start)
        text = before + start + table() + end + rest.split(end, 1)[1]
    return text


def run_cells() -> int:
    """Run every cell with many chains and record the p-values."""
    P_VALUES.unlink(missing_ok=True)
    arguments = ["-m", "long", "tests/correctness/test_cells.py", f"--p-values={P_VALUES}"]
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    status = run_cells() if "--run" in sys.argv[1:] else 0
    PAGE.write_text(written(PAGE.read_text()))
    sys.exit(status)
