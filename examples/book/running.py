"""Runs one row: samples it, predicts its test cases, judges its chains, and sums up what its figure shows."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import maximum_likelihood
import numpy as np
import pandas as pd
import summaries
from rows import HERE, Row, at_length

import rayfbnn

_QUIET: dict[str, Any] = {"progress": False}


@dataclass(frozen=True)
class Finished:
    """A row whose draws are stored.

    skip  draws of each chain that its figure leaves out
    """

    row: Row
    store: Path
    skip: int

    @cached_property
    def tree(self) -> Any:
        """The draws as an xarray.DataTree."""
        return rayfbnn.open(self.store)

    @cached_property
    def train(self) -> pd.DataFrame:
        """The training cases."""
        return cases(self.row.train_path, self.row.train)

    @cached_property
    def test(self) -> pd.DataFrame:
        """The test cases."""
        assert self.row.test is not None
        return cases(HERE / self.row.test[0], self.row.test[1])

    @cached_property
    def prediction(self) -> rayfbnn.Prediction:
        """The predictions of the test cases."""
        return rayfbnn.predict(self.store, data=self.test, skip=self.skip)


def cases(path: Path, query: str) -> pd.DataFrame:
    """Return the cases of a file that a pandas query selects, all for an empty one."""
    table = pd.read_csv(path)
    return table.query(query).reset_index(drop=True) if query else table


def key_of(row: Row, length: float, seed: int) -> str:
    """Return what identifies the results of a row: they are computed again if anything here changes."""
    parts = [row.configuration(length), row.set, row.train, row.test, row.summaries, row.kind, row.skip, seed]
    return hashlib.sha1(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def run(row: Row, folder: Path, length: float, seed: int) -> dict[str, Any]:
    """Bring a row's run to its end, wherever it stands, and return its line of results.

    Returns
    -------
    dict
        row, figures, length, seed, key; draws, seconds (of the processor, in all calls); measures of the
        predictions with standard errors; rhat and ess of outputs and hyperparameters, acceptance and
        verdicts; what the summaries add.
    """
    key = key_of(row, length, seed)
    identity = {"row": row.name, "figures": row.figures, "length": length, "seed": seed, "key": key}
    if row.kind == "maximum":
        return identity | _maximum(row, length, seed)
    store = folder / f"{row.name}-{key}.zarr"
    with _processor_seconds(store.with_suffix(".seconds")) as seconds:
        _sample(row, store, length, seed)
    started = time.process_time()
    skip = at_length(row.skip, length) if row.skip else 0
    finished = Finished(row, store, skip)
    line: dict[str, Any] = identity
    if row.test is not None:
        line |= {name: float(value) for name, value in finished.prediction.summary.items()}
        _keep_cases(finished, folder / f"{row.name}-{key}.npz")
    if row.kind == "mcmc":
        line |= convergence(store, skip)
    for name in row.summaries:
        line |= getattr(summaries, name)(finished)
    return line | {"seconds": round(seconds() + time.process_time() - started, 1)}


def _maximum(row: Row, length: float, seed: int) -> dict[str, Any]:
    """Return the errors of maximum likelihood learning with the units of a row, and the seconds it took."""
    assert row.test is not None
    started = time.process_time()
    spec = rayfbnn.RunSpec.from_dict(row.configuration(), row.set)
    columns = [list(names) for names in (spec.data.inputs, spec.data.targets)]
    train, test = (
        maximum_likelihood.Cases(*(table[names].to_numpy() for names in columns))
        for table in (cases(row.train_path, row.train), cases(HERE / row.test[0], row.test[1]))
    )
    found = maximum_likelihood.learn(train, test, spec.network.hidden[0].units, seed=seed, length=length)
    return found | {"seconds": round(time.process_time() - started, 1)}


@contextmanager
def _processor_seconds(path: Path) -> Iterator[Callable[[], float]]:
    """Add the processor seconds of a block to those of earlier attempts in a file; yield what returns all."""

    def seconds() -> float:
        return float(path.read_text()) if path.exists() else 0.0

    started = time.process_time()
    try:
        yield seconds
    finally:
        path.write_text(f"{seconds() + time.process_time() - started:.2f}")


def _sample(row: Row, store: Path, length: float, seed: int) -> None:
    configuration = row.configuration(length)
    configuration["data"].pop("train")
    options: dict[str, Any] = {"data": cases(row.train_path, row.train), "set": [*row.set, f"seed={seed}"]}
    if row.kind == "mcmc":
        rayfbnn.sample_or_resume(configuration, store, workers=0, **options, **_QUIET)
    elif not store.exists():
        if row.kind == "exact":
            rayfbnn.reject(configuration, store, draws=10, **options, **_QUIET)
        else:
            rayfbnn.prior(configuration, store, draws=10, **options)


def _keep_cases(finished: Finished, path: Path) -> None:
    """Keep the measures of each test case, for paired comparisons of rows."""
    table = finished.prediction.table
    names = [name for name in summaries.MEASURES if name in table]
    np.savez_compressed(path, **{name: table[name].to_numpy(dtype=np.float64) for name in names})


def convergence(store: Path, skip: int) -> dict[str, Any]:
    """Return the largest R-hat and smallest ESS of outputs and of hyperparameters, and the verdicts."""
    found = rayfbnn.diagnose(store, skip=skip)
    table = found.quantities
    is_output = np.array(["[" in name for name in table.index])
    line: dict[str, Any] = {
        "acceptance": found.acceptance,
        "predictions": found.predictions.grade,
        "hyperparameters": found.hyperparameters.grade,
    }
    for name, chosen in (("outputs", table[is_output]), ("sigmas", table[~is_output])):
        if len(chosen):
            line[f"{name}_rhat"] = _number(chosen["rhat"].max())
            line[f"{name}_ess"] = _number(chosen["ess_bulk"].min())
    return line


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.4g}")
