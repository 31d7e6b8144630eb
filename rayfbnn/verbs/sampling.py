"""The verbs that run Markov chains or fit approximations: sample, resume, and sample_or_resume."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rayfbnn.data import Source
from rayfbnn.errors import ConfigError, StoreExistsError
from rayfbnn.run import resuming
from rayfbnn.run.fitter import DRAWS_AT_ONCE, checked_state_shapes
from rayfbnn.run.hardware import kernel_name, n_cores, with_batches
from rayfbnn.run.on_ray import cluster
from rayfbnn.run.progress import show_text
from rayfbnn.run.running import Loop, RunOptions, unfinished_batches
from rayfbnn.spec import RunSpec
from rayfbnn.spec.messages import WEIGHTS_REFUSED
from rayfbnn.store.storage import storage_of
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    Spec,
    check_counts,
    check_new_path,
    check_options,
    place_given,
    read_run_data,
    read_spec,
)
from rayfbnn.verbs.showing import forecast_text
from rayfbnn.verbs.until import are_rounds_left, read_until, run_until

if TYPE_CHECKING:
    from rayfbnn.answers.judging.verdicts import Decisive
    from rayfbnn.data import Dataset
    from rayfbnn.run.running import LogFormat, RunSummary
    from rayfbnn.verbs.until import Until


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

    Everything is checked before anything is created, and all problems of the training table are named
    together (docs/data.md says how a table may be written). A forecast of the run's time is shown with the
    progress. Ctrl-C (or SIGTERM) ends the run after the iterations that are under way, and commits them; a
    second one ends it at once. In both cases `resume` continues the run, and the draws are the same as
    without the interruption.

    Parameters
    ----------
    spec
        The configuration: a TOML file. From Python also nested dictionaries, or a RunSpec.
    path
        The store to create; nothing may exist there yet.
    data
        The training cases, instead of the file that data.train names: a CSV or Parquet file. From Python also
        a DataFrame with the columns of inputs and targets (of pandas, Polars or Arrow), or a pair (X, y) of
        arrays.
    set
        Values that replace those of the configuration, each as "key.path=value".
    until
        "ok" makes the run longer, round by round, until its verdict is ok or `max_time` is over. The draws
        are those of a run that had the final length from the start. A configuration with neither phases nor
        iterations is run in rounds anyway, at most up to the default length.
    max_time
        Time limit of a run with `until`, or of one whose configuration leaves its length open: a number of
        seconds, or text such as "30m" or "1h30m".
    decisive
        The verdict that decides `ok`: "predictions" (they can be used) or "all" (everything has converged).
    workers
        Number of worker processes on this machine. The default is one for each core, or for each GPU. 0
        samples in this process, without Ray.
    address
        Address of a Ray cluster to use instead, such as "auto" or "host:port". The store must then be on
        storage that all nodes share.
    max_failures
        Number of workers that may die at the same block, one after another, before the run fails. Workers
        whose node died do not count.
    progress
        Show the progress on standard error.
    log_format
        "json" adds a line of JSON for each block to STORE.log.jsonl next to the store (in the current folder
        for a store in a bucket).
    sample_weight
        An error unless it is None: cases cannot be weighted.
    method
        The method, whose settings are in the section methods of the configuration. hmc and sghmc are runs
        with their own phases; bbb, laplace, vep and map are approximations, whose chains are starts. The
        default runs the phases of the configuration.

    Returns
    -------
    RunSummary
        Number of chains and draws, acceptance and divergences of the run; in rounds whether it is ok.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C or SIGTERM, with a message on how to resume.
    """
    if sample_weight is not None:
        raise ConfigError(f"sample_weight: {WEIGHTS_REFUSED}")
    place = place_given(path)
    configured = read_spec(spec, set).for_method(method)
    is_open, n_chains = configured.has_open_length, configured.chains
    goal = read_until(until, max_time, decisive, is_open=is_open, n_chains=n_chains)
    options = RunOptions(workers, address, max_failures, progress, log_format)
    return _advanced(new_store(place, configured, data, goal, options), goal, options)


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

    The draws are bit for bit those of a run without the interruption. A run in rounds goes on in rounds. The
    store has its own copy of the configuration and of the training cases, so neither file is needed any more.

    Parameters
    ----------
    path
        The store of the run.
    iterations
        Total length of the last phase. More than planned makes the run longer; less takes back iterations
        that have not been sampled yet.
    spec
        A configuration to compare with the store's: a TOML file. Any difference except a longer last phase is
        an error. The training file that it names is compared as well, if it exists. From Python also nested
        dictionaries, or a RunSpec.
    data
        Training cases to compare with those in the store: a CSV or Parquet file. Any difference is an error.
        By default the copy in the store is used, and no file is opened. From Python also a DataFrame or a
        pair (X, y) of arrays.
    until, max_time, decisive, workers, address, max_failures, progress, log_format
        See `sample`.

    Returns
    -------
    RunSummary
        Number of chains and draws, acceptance and divergences of the whole run; in rounds whether it is ok.
    """
    is_open = iterations is None and are_rounds_left(Store.open(path))
    goal = read_until(until, max_time, decisive, is_open=is_open)
    options = RunOptions(workers, address, max_failures, progress, log_format)
    asked = None if spec is None else read_spec(spec, ())
    store, length = checked_store(path, asked, data, goal, options, iterations=iterations)
    return _advanced(store, goal, options, length)


def sample_or_resume(
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
    method: str | None = None,
) -> RunSummary:
    """Bring a run to its end, wherever it stands: sample, resume or extend it, or do nothing if complete.

    The store is created if it does not exist. Otherwise the run continues from its last commit, and becomes
    longer if the configuration asks for more iterations of the last phase. Every call with the same arguments
    therefore ends with the same store, however often it was stopped or killed before. A run that is longer
    than the configuration asks stays as it is.

    Parameters
    ----------
    spec
        See `sample`.
    path
        The store of the run; it is created if nothing exists there.
    data, set, until, max_time, decisive, workers, address, max_failures, progress, log_format, method
        See `sample`.

    Returns
    -------
    RunSummary
        Number of chains and draws, acceptance and divergences of the whole run; in rounds whether it is ok.

    Raises
    ------
    StoreMismatchError
        If the store was made from another configuration or from other data, or by another version of rayfbnn.
    """
    place = place_given(path)
    asked = read_spec(spec, set).for_method(method)
    is_open, n_chains = asked.has_open_length, asked.chains
    goal = read_until(until, max_time, decisive, is_open=is_open, n_chains=n_chains)
    options = RunOptions(workers, address, max_failures, progress, log_format)
    store, length = None, None
    if not storage_of(place).is_taken(place):
        # Another process may create it now, and may hold its lock.
        with suppress(StoreExistsError):
            store = new_store(place, asked, data, goal, options)
    if store is None:
        store, length = checked_store(place, _at_least_as_long(asked, place), data, goal, options)
    return _advanced(store, goal, options, length)


def _advanced(store: Store, goal: Until | None, options: RunOptions, length: int | None = None) -> RunSummary:
    """Advance a store to its goal, or to its end if it has none or was ok before.

    length  the new length of the last phase, if it changes
    """
    with store.lock():
        resuming.take_up(store, length)
        verdicts = store.verdicts.all()
        if goal is not None and (goal.is_asked or not verdicts or not verdicts[-1].ok):
            return run_until(store, goal, options)
        with Loop(store, options) as loop:
            return loop.run(store.spec.total_iterations)


def new_store(
    place: Place, spec: RunSpec, data: Source | None, goal: Until | None, options: RunOptions
) -> Store:
    """Check everything, create the store of a run, and return it."""
    workers, address = options.workers, options.address
    check_new_path(place)
    check_options(spec, options)
    spec, dataset = read_run_data(spec, data)
    spec = with_batches(spec, workers, address)
    _check_goal(spec, goal)
    spec.check_gradient()
    spec.check_data(dataset.n_cases)
    cluster.check_ray(workers, address)
    if options.progress and address is None:
        show_text(forecast_text(spec, dataset, workers=n_cores() if workers is None else workers))
    if spec.fit is None:
        return Store.create(place, spec, dataset, kernel=kernel_name(spec))
    return new_fit(place, spec, dataset)


def checked_store(
    path: str | Path | Place,
    spec: RunSpec | None,
    data: Source | None,
    goal: Until | None,
    options: RunOptions,
    *,
    iterations: int | None = None,
) -> tuple[Store, int | None]:
    """Check that a store can be resumed, and return it with the length that its last phase is to get, if any.

    spec, data  a configuration and training cases that must be those of the store; None is not compared
    """
    store = Store.open(path)
    if store.kind in ("exact", "prior"):
        content = {"exact": "exact draws of `reject`", "prior": "draws of `prior`"}[store.kind]
        raise ConfigError(f"{store.path}: holds {content}, which are complete; there is nothing to resume")
    check_options(store.spec, options)
    _check_goal(store.spec, goal)
    resuming.check_version(store)
    resuming.compare_kernel(store)
    if spec is not None:
        asked = spec.for_method(store.spec.method)
        iterations = resuming.agreed_iterations(store, asked, iterations)
        if data is None and asked.train_path is not None and asked.train_path.exists():
            data = asked.train_path
    if iterations is not None and store.spec.fit is not None:
        raise ConfigError(f"iterations: only for runs of Markov chains; {store.path} holds a fit")
    if iterations is not None:
        check_counts(least=1, iterations=iterations)
        resuming.check_length(store, iterations)
    resuming.compare_data(store, data)
    if iterations is not None or unfinished_batches(store, store.spec.total_iterations):
        cluster.check_ray(options.workers, options.address)
    return store, iterations


def new_fit(place: Place, spec: RunSpec, dataset: Dataset) -> Store:
    """Create the store of a fit, before its first step; ConfigError if the method does not apply."""
    return Store.create(
        place,
        spec=spec,
        data=dataset,
        kernel=kernel_name(spec),
        kind="approximate",
        n_draws=spec.kept_draws,
        draws_per_block=min(DRAWS_AT_ONCE, spec.kept_draws),
        fit_state=checked_state_shapes(spec, dataset),
    )


def _check_goal(spec: RunSpec, goal: Until | None) -> None:
    """Raise ConfigError for a goal that a run can never reach, and for a fit of cases in parts."""
    if goal is not None and spec.fit is not None:
        raise ConfigError(f"until: only for runs of Markov chains; {spec.method} is an approximation")
    if goal is not None and spec.phase[-1].keep is not True:
        raise ConfigError("until: the last phase keeps no draws of the posterior; add one that does")
    if goal is not None and spec.chains < 2:
        raise ConfigError(f"until: one chain cannot be judged, got chains = {spec.chains}; give at least 4")
    if spec.fit is not None and spec.n_parts > 1:
        raise ConfigError(
            f"data.parts: {spec.method} needs all cases in one place, got {spec.n_parts}; it must be 1 (or"
            " left out)"
        )


def _at_least_as_long(asked: RunSpec, place: Place) -> RunSpec:
    """Return the configuration, with the length of the store at `place` if the store is longer."""
    if asked.fit is not None or asked.has_open_length:
        return asked
    planned = Store.open(place).spec
    asked = asked.resolved(planned.encoding).with_tuning_of(planned)
    longest = max(asked.phase[-1].iterations, planned.phase[-1].iterations)
    return asked.with_iterations(longest)
