"""The verbs that describe a configuration, a store or a running run: show, with a forecast, and status."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.errors import ConfigError
from rayfbnn.store.storage.places import is_address
from rayfbnn.store.store import Store, word_for_chains

if TYPE_CHECKING:
    from rayfbnn.data import Dataset, Source
    from rayfbnn.describe.configuration import Shown
    from rayfbnn.run.status import Status
    from rayfbnn.spec import RunSpec
    from rayfbnn.verbs.arguments import Spec


def show(what: Spec, *, data: Source | None = None, set: Sequence[str] = ()) -> Shown:
    """Describe a configuration or a store in words: network, priors, schedule and its cost, defaults used.

    The text lists the inputs with the encoding of each column, and the columns that are left out. It names
    the kernel, the code that runs the trajectories on this machine; for a store this is the kernel that the
    run started with. For a store it says how far the run is. The columns of the training cases are checked if
    the file exists, and all problems are named together. docs/data.md says how a table may be written.

    Parameters
    ----------
    what
        A configuration (a TOML file), or a store. From Python also nested dictionaries, or a RunSpec.
    data
        Cases to predict, which are compared with the training cases: missing columns, levels and missing
        values that no training case has, and numbers far outside their range. If the configuration names no
        file of training cases, or the file does not exist, these are the training cases instead.
    set
        See `sample`. The configuration of a store is fixed.

    Returns
    -------
    Shown
        The description: a text, whose attribute `numbers` has the configuration with all defaults, the
        network, the priors, and the size of the store.
    """
    from rayfbnn.describe.configuration import describe, shown
    from rayfbnn.describe.schedule import describe_rounds, describe_tuning
    from rayfbnn.verbs.arguments import place_given, read_spec

    if isinstance(what, str | Path) and (is_address(what) or os.path.isdir(what)):
        place = place_given(what)
        if set:
            raise ConfigError(
                f"set: the configuration of the store {place} is fixed, got {set[0]}; leave it out"
            )
        store = Store.open(what)
        progress = describe_tuning(store) + describe_rounds(store) + _describe_progress(store)
        compared = "" if data is None else f"\n\n{_describe_new_cases(store.spec, store.data, data)}"
        text = f"{describe(store.spec, store=store)}\n{progress}{compared}"
        return shown(text, store.spec, store=store)
    from rayfbnn.data import read_training
    from rayfbnn.run.hardware import n_cores, with_batches

    spec = read_spec(what, set)
    has_file = spec.train_path is not None and os.path.exists(spec.train_path)
    if not has_file and data is None and spec.is_resolved:
        return shown(describe(spec), spec)
    spec, dataset = read_training(spec, None if has_file else data)
    spec.check_data(dataset.n_cases)
    compared = f"\n{_describe_new_cases(spec, dataset, data)}\n" if has_file and data is not None else ""
    forecast = forecast_text(with_batches(spec, None, None), dataset, workers=n_cores())
    return shown(f"{describe(spec, data=dataset)}{compared}{forecast}", spec)


def _describe_new_cases(spec: RunSpec, training: Dataset, data: Source) -> str:
    from rayfbnn.describe.data import describe_new_cases

    return "\n".join(describe_new_cases(spec, training, data))


def _describe_progress(store: Store) -> str:
    word, draws = word_for_chains(store), f"{store.committed_draws} draws each"
    lines = [f"store: {store.path} ({store.kind}), {store.n_chains} {word}, {draws}"]
    if store.kind == "approximate":
        lines += [
            f"  starts {chains[0]}-{chains[-1]}: {min(done, store.spec.phase[0].iterations)} of at most"
            f" {store.spec.phase[0].iterations} steps"
            for chains, done in (
                (store.header.batch_chains(batch), store.progress(batch).iteration)
                for batch in range(store.n_batches)
            )
        ]
    if store.kind != "mcmc":
        return "\n".join(lines)
    for batch in range(store.n_batches):
        chains, progress = store.header.batch_chains(batch), store.progress(batch)
        updates = store.commits.updates_until(store.commits.last(batch))
        lines.append(
            f"  {word} {chains[0]}-{chains[-1]}: iteration {progress.iteration} of"
            f" {store.spec.total_iterations}, {progress.draws} draws,"
            f" divergences {updates.kept.divergences} (warm-up {updates.warmup.divergences})"
        )
    return "\n".join(lines)


def status(path: str | Path) -> Status:
    """Say how far a run is, how fast, when it will end, and whether anyone is at work on it.

    Any machine that reads the store can ask, during the run or later. Nothing is locked or changed.

    Parameters
    ----------
    path
        The store of the run.

    Returns
    -------
    Status
        The progress and speed of each batch, and the driver on record.
    """
    from rayfbnn.run.status import status_of

    return status_of(Store.open(path, check_records=False, headers_only=True))


def forecast_text(spec: RunSpec, dataset: Dataset, *, workers: int) -> str:
    """Return lines that forecast the time of a run on this machine, after an empty line.

    The text is "" for a run of a few seconds, for a run on a GPU, and for a configuration that cannot be run:
    a network that can only be drawn from its prior, or an approximation that does not cover the model. The
    measurements take a second or two.

    workers  number of worker processes; 0 for a run in this process
    """
    from rayfbnn.describe.schedule import describe_forecast, describe_large_store
    from rayfbnn.timing.forecast import START_OF_WORKERS, forecast

    try:
        spec.check_gradient()
        result = forecast(spec, dataset, workers=max(1, workers))
    except ConfigError:
        return ""
    if result is None:
        return ""
    result = result.after(START_OF_WORKERS if workers else 0.0)
    store = "" if spec.fit is not None else describe_large_store(spec)
    return f"\n{describe_forecast(spec, result)}\n{store}"
