"""The verbs that run Markov chains: sample and resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rayfbnn.data import Source
from rayfbnn.errors import ConfigError
from rayfbnn.run.cores import n_cores
from rayfbnn.spec.messages import WEIGHTS_REFUSED
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    Spec,
    check_counts,
    check_log_format,
    check_new_path,
    check_workers,
    place_given,
    read_run_data,
    read_spec,
)
from rayfbnn.verbs.fitting import check_can_fit, new_fit
from rayfbnn.verbs.forecasting import forecast_text
from rayfbnn.verbs.until import Until, check_can_go_on, read_until, run_until

if TYPE_CHECKING:
    from rayfbnn.answers.judging.verdicts import Decisive
    from rayfbnn.run.running import LogFormat, RunSummary


def sample(
    spec: Spec,
    path: str | Path,
    *,
    data: Source | None = None,
    set: Sequence[str] = (),
    until: Literal["ok"] | None = None,
    max_time: str | float | None = None,
    decisive: Decisive = "predictions",
    workers: int | None = None,
    address: str | None = None,
    max_failures: int = 3,
    progress: bool = True,
    log_format: LogFormat = "text",
    sample_weight: object = None,
    method: str | None = None,
) -> RunSummary:
    """Draw from the posterior that a configuration describes, into a new store.

    Everything is checked before anything is created. Ctrl-C (or SIGTERM) ends the run after the iterations
    under way, commits them and raises KeyboardInterrupt; a second one ends it at once. `resume` continues
    the run either way, and the draws are the same as without the interruption.

    Parameters
    ----------
    spec
        The configuration: a TOML file, nested dictionaries, or a RunSpec.
    path
        The store to create; nothing may exist there yet.
    data
        The training cases, in place of the file that data.train names. A CSV or Parquet file, a DataFrame
        with the columns of inputs and targets (of pandas, Polars or Arrow), or a pair (X, y) of arrays.
    set
        Replaces values of the configuration by "key.path=value".
    until
        "ok" makes the run longer, round by round, until its verdict is ok or the time is over. The draws are
        those of a run that had the final length from the start.
    max_time
        Time after which a run with `until` ends in any case: seconds, or text such as "30m" or "1h30m".
    decisive
        The verdict that makes `ok`: "predictions" if these can be used, or "all" if everything has
        converged.
    workers
        Number of worker processes on this machine; one for each core, or for each GPU, if not given. 0
        samples in this process, without Ray.
    address
        Address of a Ray cluster to use instead, such as "auto" or "host:port". The store must then be on
        storage that all its nodes share.
    max_failures
        How many workers may die at the same block, one after another, before the run is given up. Those whose
        node died are not counted.
    progress
        Shows the progress on standard error, and before the run how long it will take.
    sample_weight
        Is refused: cases cannot be weighted.
    method
        The method, whose settings are in the section methods of the configuration. hmc and sghmc are runs
        with phases of their own; bbb, laplace, vep and map are approximations, whose chains are starts.
        Left out, the run has the phases of the configuration.

    log_format
        "json" adds a line of JSON for each block to STORE.log.jsonl, beside the store (in the current folder
        for a store in a bucket).

    Returns
    -------
    RunSummary
        Number of chains and draws, acceptance and divergences of the run; with `until` whether it is ok.
    """
    from rayfbnn.run.gpus import n_gpus
    from rayfbnn.run.kernel import kernel_for
    from rayfbnn.run.on_ray.cluster import check_ray
    from rayfbnn.run.progress import show_text

    if sample_weight is not None:
        raise ConfigError(f"sample_weight: {WEIGHTS_REFUSED}")
    place = place_given(path)
    spec = read_spec(spec, set).for_method(method)
    goal = read_until(until, max_time, decisive)
    check_new_path(place)
    check_workers(spec, workers, address, max_failures)
    check_log_format(log_format)
    if spec.device == "gpu":
        spec = spec.with_batches_for(n_gpus(workers, address))
    spec, dataset = read_run_data(spec, data)
    check_can_fit(spec, goal)
    if goal is not None:
        check_can_go_on(spec)
    spec.check_gradient()
    spec.check_data(dataset.n_cases)
    check_ray(workers, address)
    if progress and address is None:
        show_text(forecast_text(spec, dataset, workers=n_cores() if workers is None else workers))
    if spec.fit is None:
        store = Store.for_run(place, spec, dataset, kernel=kernel_for(spec))
    else:
        store = new_fit(place, spec, dataset)
    del dataset  # all cases in float64, which this process, perhaps a worker itself, does not need any more
    with store.lock():
        return _runner(store, goal, workers, address, max_failures, progress, log_format)()


def resume(
    path: str | Path,
    *,
    iterations: int | None = None,
    spec: Spec | None = None,
    data: Source | None = None,
    until: Literal["ok"] | None = None,
    max_time: str | float | None = None,
    decisive: Decisive = "predictions",
    workers: int | None = None,
    address: str | None = None,
    max_failures: int = 3,
    progress: bool = True,
    log_format: LogFormat = "text",
) -> RunSummary:
    """Continue a run that was stopped or killed, or make a finished run longer.

    The draws are bit for bit those of a run without the interruption. The store has its own copy of the
    configuration and of the training cases, so neither file is needed any more.

    Parameters
    ----------
    path
        The store of the run.
    iterations
        Length of the last phase in all; more than planned makes the run longer, less takes back what is not
        sampled yet.
    spec
        A configuration to compare with the store's: a TOML file, nested dictionaries, or a RunSpec. Any
        difference but a longer last phase is refused. The training file that it names is compared as well, if
        it is there.
    data
        Training cases to compare with those in the store: a CSV or Parquet file. Any difference is refused. A
        DataFrame or a pair (X, y) of arrays is compared as well. Without them the store's own copy is used,
        and no file is opened.
    until
        "ok" makes the run longer, round by round, until its verdict is ok or the time is over. The draws are
        those of a run that had the final length from the start.
    max_time
        Time after which a run with `until` ends in any case: seconds, or text such as "30m" or "1h30m".
    decisive
        The verdict that makes `ok`: "predictions" if these can be used, or "all" if everything has
        converged.
    workers
        Number of worker processes on this machine; one for each core, or for each GPU, if not given. 0
        samples in this process, without Ray.
    address
        Address of a Ray cluster to use instead, such as "auto" or "host:port". The store must then be on
        storage that all its nodes share.
    max_failures
        How many workers may die at the same block, one after another, before the run is given up. Those whose
        node died are not counted.
    progress
        Shows the progress on standard error.
    log_format
        "json" adds a line of JSON for each block to STORE.log.jsonl, beside the store (in the current folder
        for a store in a bucket).

    Returns
    -------
    RunSummary
        Number of chains and draws, acceptance and divergences of the whole run; with `until` whether it is
        ok.
    """
    from rayfbnn.run import resuming
    from rayfbnn.run.on_ray.cluster import check_ray
    from rayfbnn.run.running import unfinished_batches

    store = Store.open(path)
    _check_is_run(store)
    check_workers(store.spec, workers, address, max_failures)
    check_log_format(log_format)
    goal = read_until(until, max_time, decisive)
    check_can_fit(store.spec, goal)
    if goal is not None:
        check_can_go_on(store.spec)
    resuming.check_version(store)
    resuming.compare_kernel(store)
    if spec is not None:
        asked = read_spec(spec, ()).for_method(store.spec.method)
        iterations = resuming.agreed_iterations(store, asked, iterations)
        if data is None and asked.train_path is not None and asked.train_path.exists():
            data = asked.train_path
    if iterations is not None and store.spec.fit is not None:
        raise ConfigError(f"iterations: are those of a run of Markov chains, and {store.path} holds a fit")
    if iterations is not None:
        check_counts(least=1, iterations=iterations)
        resuming.check_length(store, iterations)
    resuming.compare_data(store, data)
    if iterations is not None or unfinished_batches(store, store.spec.total_iterations):
        check_ray(workers, address)
    with store.lock():
        if iterations is not None:
            resuming.set_length(store, iterations)
        return _runner(store, goal, workers, address, max_failures, progress, log_format)()


def _runner(
    store: Store,
    goal: Until | None,
    workers: int | None,
    address: str | None,
    max_failures: int,
    progress: bool,
    log_format: LogFormat,
) -> Callable[[], RunSummary]:
    """Return what runs the store's chains to their end, or in rounds to the goal if there is one."""
    from rayfbnn.run.running import run_to_end

    run = partial(
        run_to_end,
        store,
        workers=workers,
        address=address,
        max_failures=max_failures,
        progress=progress,
        log_format=log_format,
    )
    return run if goal is None else partial(run_until, store, goal, run, progress=progress)


def _check_is_run(store: Store) -> None:
    if store.kind in ("exact", "prior"):
        content = {"exact": "exact draws of `reject`", "prior": "draws of `prior`"}[store.kind]
        raise ConfigError(f"{store.path}: holds {content}, which are complete, so there is nothing to resume")
