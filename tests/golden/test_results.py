"""The draws of small runs are those that the number of the results stands for.

    python -m tests.golden.test_results    # records new draws, once RESULTS in rayfbnn/version.py is raised

The runs are short and in float64, so that machines and kernels agree to many digits. A change of rounding is
too small for these tests: compare the output of benchmarks/digests.py before and after it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayfbnn
from benchmarks.digests import AUTOMATIC, GIBBS, HEATBATH, OPERATIONS, cells, configuration
from rayfbnn.store.store import Store
from rayfbnn.version import RESULTS
from tests.support.store.fits import SETTINGS

RECORD = Path(__file__).with_name("results.json")
_ADVICE = (
    "draws have changed; if that is meant, raise RESULTS in rayfbnn/version.py, run"
    " python -m tests.golden.test_results, and say in CHANGELOG.md under Results what changed"
)


def runs(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the configuration of each run."""
    for network, model, operations in dict.fromkeys(cells()):
        is_plain = (network, operations) == ("one layer", "windows")
        if is_plain or model == "t" or operations == "marginal, both":
            spec = configuration(folder, network, model, OPERATIONS[operations])
            yield f"{network} | {model} | {operations}", spec
    plain = configuration(folder, "one layer", "real", OPERATIONS["hybrid"])
    for name, operation in AUTOMATIC.items():
        iteration = [GIBBS, HEATBATH, operation]
        tuned = {"iterations": 4, "keep": False, "operations": iteration}
        yield f"automatic {name}", plain | {"phase": [tuned, {"iterations": 2, "operations": iteration}]}
    del plain["phase"]
    for method, settings in SETTINGS.items():
        yield f"fit {method}", plain | {"method": method, "methods": {method: settings | {"draws": 4}}}
    # Rounding decides where longer runs end. Ladders for classes are short: nothing is held at their start.
    ladders = configuration(folder, "linear", "class", OPERATIONS["hybrid"]) | {"iterations": 1}
    del ladders["phase"]
    yield "ladders", ladders | {"ladder": {"levels": 3, "warmup": 1, "annealing": 4, "adaptation": 8}}


def summary(path: Path) -> list[float]:
    """Return means and mean squares of the parameters and the log precisions of a run, to ten digits."""
    store = Store.open(path)
    parts = (store.read_positions().astype(float), np.log(store.read_precisions()))
    return [float(f"{number:.10g}") for part in parts for number in (part.mean(), (part**2).mean())]


def summaries(folder: Path) -> dict[str, list[float]]:
    """Return the summary of every run by its name."""
    found = {}
    for number, (name, spec) in enumerate(runs(folder)):
        path = folder / f"{number}.zarr"
        rayfbnn.sample(spec | {"dtype": "float64"}, path, workers=0, progress=False)
        found[name] = summary(path)
    return found


def differing(recorded: Mapping[str, list[float]], found: Mapping[str, list[float]]) -> list[str]:
    """Return the names of the runs that are in one table alone, or that drew other numbers."""
    return [
        name
        for name in dict.fromkeys([*recorded, *found])
        if not np.allclose(recorded.get(name, np.nan), found.get(name, np.nan), rtol=1e-6, atol=1e-9)
    ]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return summaries(tmp_path_factory.mktemp("runs"))


def test_draws_change_only_with_the_number_of_the_results(found: dict[str, list[float]]) -> None:
    recorded = json.loads(RECORD.read_text())
    assert recorded["results"] == RESULTS, _ADVICE
    assert differing(recorded["runs"], found) == [], _ADVICE


def test_a_changed_draw_and_a_new_run_are_noticed(found: dict[str, list[float]]) -> None:
    for name, numbers in found.items():
        assert differing(found, found | {name: [numbers[0] * (1 + 1e-4), *numbers[1:]]}) == [name]
    assert differing(found, found | {"new": [1.0]}) == ["new"]


def record() -> None:
    """Write the record; refuse if draws differ from those recorded with the same number."""
    before = json.loads(RECORD.read_text()) if RECORD.exists() else {"results": 0}
    with tempfile.TemporaryDirectory() as folder:
        now = summaries(Path(folder))
    if before["results"] == RESULTS and differing(before["runs"], now):
        raise SystemExit(_ADVICE)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in now.items())
    RECORD.write_text(f'{{"results": {RESULTS}, "runs": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    record()
