"""The verb that writes a page of HTML on one or several runs: report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.data import Source, is_path, read_cases
from rayfbnn.errors import ConfigError
from rayfbnn.output.printing import say
from rayfbnn.output.whole_file import whole_file
from rayfbnn.store.storage.places import Place, near, place_of
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    check_folder,
    check_output,
    check_some_draws,
    draws_for_predictions,
    output_path,
)

if TYPE_CHECKING:
    from rayfbnn.reporting.reported_run import Cases


def report(
    path: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    data: Source | None = None,
    draws: int | None = None,
    max_mcse: float = 0.0,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
    progress: bool = True,
) -> Path:
    """Write a report on a run, or on several side by side: one page of HTML that needs no network.

    It has the data, the model in words, the verdicts with their advice, predictions with their calibration,
    residuals, the relevance and the averaged effects of inputs, traces, and how to repeat and cite the run.
    Verdicts use all draws, everything else about a thousand unless `draws` or `max_mcse` says otherwise.

    Parameters
    ----------
    path
        The store, or several stores to compare, which may be of different posteriors.
    out
        The file to write, which must end in .html; replaced if it exists.
    data
        Held-out cases with their targets, to compare predictions with: a CSV or Parquet file. The
        default is the training cases. From Python also a DataFrame or a pair (X, y).
    draws
        Use so many draws of all chains of a store for predictions and pictures, evenly spaced. The default
        is about 1,000.
    max_mcse
        Use as many draws as keep the Monte Carlo error of the predictive means below this share of the
        predictive standard deviation, such as 0.01. The default of 0 takes about 1,000.
    skip, last, chains
        See `predict`.
    progress
        See `sample`.

    Returns
    -------
    Path
        The file.
    """
    from rayfbnn.reporting.page import check_installed
    from rayfbnn.reporting.report import report_html
    from rayfbnn.reporting.reported_run import read_run

    check_some_draws(draws, max_mcse)
    places = [place_of(one) for one in ([path] if isinstance(path, str | Path) else path)]
    if not places:
        raise ConfigError("path: no store given; give one or several")
    out = output_path(out)
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(f"out: must end in .html, got {out}")
    if os.path.isdir(out):
        raise ConfigError(f"out: {out} is a folder; give the path of an .html file")
    check_folder(out)
    check_installed()
    stores = [Store.open(place) for place in places]
    trained = [file for store in stores if (file := store.spec.train_path) is not None]
    check_output(out, inputs=trained + ([Path(data)] if isinstance(data, str | Path) else []))
    every_case = [_cases(store, data) for store in stores]
    every_run = [draws_for_predictions(store, skip, last, chains) for store in stores]

    def tell(what: str) -> None:
        if progress:
            say(f"report: {what}")

    labels = _labels(places)
    with np.errstate(over="ignore", invalid="ignore"):  # vague priors reach infinity
        runs = [
            read_run(label, run, cases, tell, draws=draws, max_mcse=max_mcse)
            for label, run, cases in zip(labels, every_run, every_case, strict=True)
        ]
        text = report_html(runs, tell)
    with whole_file(out) as page:
        page.write(text.encode())
    return out


def _cases(store: Store, data: Source | None) -> Cases:
    """Return the cases that predictions are compared with: those of `data`, or the training cases."""
    from rayfbnn.reporting.reported_run import Cases

    if data is None:
        return Cases.chosen_from(
            store.data.inputs, store.data.targets, "the training cases", is_held_out=False
        )
    inputs, targets = read_cases(data, store.spec, store.data)
    named = str(data) if is_path(data) else "the table"
    if targets is None:
        raise ConfigError(
            f"data: {named} has no targets to compare with predictions; add them, or leave it out"
        )
    return Cases.chosen_from(inputs, targets, named, is_held_out=True)


def _labels(places: Sequence[Place]) -> list[str]:
    """Return the names of the stores; stores with the same name get their full path."""
    resolved = [place.resolve() if isinstance(place, Path) else place for place in places]
    counts = Counter(place.name for place in resolved)
    if len(set(resolved)) < len(resolved):
        raise ConfigError("path: the same store is given twice; give each store once")
    return [
        found.name if counts[found.name] == 1 else near(place)
        for found, place in zip(resolved, places, strict=True)
    ]
