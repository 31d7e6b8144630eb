"""The verbs that look at a configuration, a store or this machine: show, open, status, verify and bench."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.data import Source, read_training
from rayfbnn.errors import ConfigError
from rayfbnn.output.printing import say
from rayfbnn.run.hardware import n_cores
from rayfbnn.store.storage.places import is_address
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import Spec, check_counts, check_device, place_given, read_run_data, read_spec
from rayfbnn.verbs.forecasting import forecast_text

if TYPE_CHECKING:
    import xarray

    from rayfbnn.run.status import Status
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.records import VerifyReport
    from rayfbnn.timing.results import BenchResult, Row


def show(what: Spec, *, data: Source | None = None, set: Sequence[str] = ()) -> str:
    """Describe a configuration or a store in words: network, priors, schedule and its cost, defaults used.

    The text lists the inputs with the encoding of each column, and the columns that are left out. It names
    the kernel, the code that runs the trajectories on this machine; for a store this is the kernel that the
    run started with. For a store it says how far the run is. The columns of the training cases are checked if
    the file exists.

    Parameters
    ----------
    what
        A configuration (a TOML file), or a store. From Python also nested dictionaries, or a RunSpec.
    data
        See `sample`.
    set
        See `sample`. The configuration of a store is fixed.

    Returns
    -------
    str
        The description.
    """
    from rayfbnn.describe.configuration import describe
    from rayfbnn.describe.schedule import describe_rounds, describe_tuning

    if isinstance(what, str | Path) and (is_address(what) or os.path.isdir(what)):
        place = place_given(what)
        if set:
            raise ConfigError(
                f"set: the configuration of the store {place} is fixed, got {set[0]}; leave it out"
            )
        if data is not None:
            raise ConfigError(f"data: the store {place} has its own copy of the training cases; leave it out")
        store = Store.open(what)
        return (
            describe(store.spec, store=store)
            + "\n"
            + describe_tuning(store)
            + describe_rounds(store)
            + _describe_progress(store)
        )
    spec = read_spec(what, set)
    if data is None and spec.is_resolved and (spec.train_path is None or not os.path.exists(spec.train_path)):
        return describe(spec)
    spec, dataset = read_training(spec, data)
    spec.check_data(dataset.n_cases)
    return describe(spec, data=dataset) + forecast_text(spec, dataset, workers=n_cores())


def _describe_progress(store: Store) -> str:
    """Return a line for the store and, for a run, one for the progress of each batch of chains."""
    lines = [
        f"store: {store.path} ({store.kind}), {store.n_chains} chains, {store.committed_draws} draws each"
    ]
    if store.kind == "approximate":
        lines += [
            f"  starts {chains[0]}-{chains[-1]}: {min(done, store.spec.phase[0].iterations)} of at most"
            f" {store.spec.phase[0].iterations} steps"
            for chains, done in (
                (store.batch_chains(batch), store.progress(batch).iteration)
                for batch in range(store.n_batches)
            )
        ]
    if store.kind != "mcmc":
        return "\n".join(lines)
    for batch in range(store.n_batches):
        chains, progress = store.batch_chains(batch), store.progress(batch)
        updates = store.updates_until(store.last_record(batch))
        lines.append(
            f"  chains {chains[0]}-{chains[-1]}: iteration {progress.iteration} of"
            f" {store.spec.total_iterations}, {progress.draws} draws,"
            f" divergences {updates.kept.divergences} (warm-up {updates.warmup.divergences})"
        )
    return "\n".join(lines)


def open(path: str | Path) -> xarray.DataTree:
    """Open the draws of a store as an xarray DataTree, which ArviZ takes.

    It has the draws that are committed so far, and the groups stored with them, by ArviZ's names. Parameters
    are read from the disk when they are used. `to_datatree` adds the groups that have to be computed, such as
    the pointwise log likelihoods.

    Parameters
    ----------
    path
        The store.
    """
    from rayfbnn.answers.arviz.tree import stored_tree

    return stored_tree(Store.open(path))


def to_datatree(
    path: str | Path,
    *,
    groups: Sequence[str] | None = None,
    skip: int = 0,
    draws: int | None = None,
    prior: str | Path | None = None,
    max_memory: float = 2e9,
) -> xarray.DataTree:
    """Return the draws of a store as an xarray DataTree with every group that ArviZ can use.

    Stored are posterior, sample_stats, observed_data and constant_data, and, if phases were kept as warm-up,
    warmup_posterior and warmup_sample_stats. Computed are posterior_predictive (targets drawn at the training
    inputs), log_likelihood (of each training case and target) and log_prior. A store of draws from the prior
    has prior, prior_predictive and sample_stats_prior.

    Parameters
    ----------
    path
        The store.
    groups
        Names of the groups to return. The default is all groups of the store.
    skip
        See `predict`.
    draws
        Number of draws of each chain to take, evenly spaced. The default is all of them.
    prior
        A store that `prior` made from the same configuration and data, whose groups are added.
    max_memory
        Largest size in bytes of the computed groups together.

    Returns
    -------
    DataTree
        The groups. Targets and their log likelihoods are on the data file's scale.
    """
    from rayfbnn.answers.arviz.tree import to_datatree as tree_of

    check_counts(least=0, skip=skip)
    if draws is not None:
        check_counts(least=1, draws=draws)
    if not max_memory > 0:
        raise ConfigError(f"max_memory: must be a number of bytes above 0, such as 2e9, got {max_memory}")
    drawn_from_prior = None if prior is None else Store.open(prior)
    return tree_of(
        Store.open(path),
        groups,
        skip=skip,
        draws=draws,
        prior=drawn_from_prior,
        max_memory=max_memory,
    )


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


def verify(path: str | Path, *, repair: bool = False, dry_run: bool = False) -> VerifyReport:
    """Check every file of a store against its checksum and commit record.

    Parameters
    ----------
    path
        The store.
    repair
        Set aside damaged blocks and the blocks after them, which `resume` then computes again. Files are
        moved to `commits/discarded` in the store and never removed. A store of another version of rayfbnn is
        refused, since this version could not compute its draws again.
    dry_run
        Say what a repair would do, without changing anything.

    Returns
    -------
    VerifyReport
        Number of files checked, every problem that was found (before a repair), and the steps of the repair.
    """
    from rayfbnn.store.checking.verify import verify as verify_files

    if dry_run and not repair:
        raise ConfigError("dry_run: only for a repair; give repair as well")
    if not repair:
        return verify_files(path)
    return Store.open(path, check_records=False).repair(dry_run=dry_run)


def bench(
    spec: Spec | None = None,
    *,
    data: Source | None = None,
    set: Sequence[str] = (),
    device: str | None = None,
    chains: int | None = None,
    quick: bool = False,
    progress: bool = True,
) -> BenchResult:
    """Time leapfrog steps on this machine, of standard networks or of a configuration's own trajectories.

    The times are microseconds per step of a chain, by array code and by the kernel that is chosen here. The
    standard networks are in float32 with generated data. For a configuration the steps are those of its own
    trajectories, with its network, data, precision and batches, and there is an estimate of the time of the
    whole run. If the length of trajectories is automatic, the estimate is a range from the shortest to the
    longest, with a likely time from trying the first rounds of tuning for 20 seconds in a temporary store.

    Parameters
    ----------
    spec
        The configuration: a TOML file. The default is standard networks. From Python also nested
        dictionaries, or a RunSpec.
    data, set
        See `sample`.
    device
        "cpu" or "gpu". The default is the device of the configuration, or "cpu".
    chains
        Number of chains that advance together, at most the chains of the configuration. The default is a
        batch of the configuration, or 16, or 4096 on a GPU.
    quick
        Leave out the rounds of tuning, and time each standard network for a tenth of a second instead of a
        second.
    progress
        See `sample`.

    Returns
    -------
    BenchResult
        A row for each network or kind of trajectory and each kernel; for a configuration an estimate.
    """
    from rayfbnn.timing.results import BenchResult
    from rayfbnn.timing.steps import STANDARD_SHAPES, rows_of_shapes

    if device not in (None, "cpu", "gpu"):
        raise ConfigError(f'device: must be "cpu" or "gpu", got "{device}"')
    if chains is not None:
        check_counts(least=1, chains=chains)
    if spec is not None:
        overrides = list(set)
        if device is not None:
            overrides.append(f'device="{device}"')
        if chains is not None:
            overrides.append(f"chains_per_batch={chains}")
        return _bench_run(read_spec(spec, overrides), data, quick=quick, progress=progress)
    if data is not None:
        raise ConfigError("data: needs a configuration; give one, or leave it out")
    if set:
        raise ConfigError(f"set: needs a configuration, got {set[0]}; give one, or leave it out")
    device = device or "cpu"
    check_device(device)
    chains = chains or (4096 if device == "gpu" else 16)
    rows = rows_of_shapes(
        STANDARD_SHAPES,
        device=device,
        chains=chains,
        seconds=0.1 if quick else 1.0,
        report=partial(_show_row, show=progress),
    )
    return BenchResult(device, "float32", rows)


def _bench_run(spec: RunSpec, data: Source | None, *, quick: bool, progress: bool) -> BenchResult:
    """Time the trajectories of a configuration, and estimate the time of the whole run."""
    from rayfbnn.run.sampler import build_posterior
    from rayfbnn.timing import trial
    from rayfbnn.timing.results import BenchResult
    from rayfbnn.timing.runs import estimate_run
    from rayfbnn.timing.steps import rows_of_operations

    check_device(spec.device)
    spec, dataset = read_run_data(spec, data)
    spec.check_gradient()
    spec.check_data(dataset.n_cases)
    posterior = build_posterior(spec, dataset, device=spec.device)
    operations = [operation for phase in spec.phase for operation in phase.operations]
    chains = min(spec.chains, spec.chains_per_batch)
    rows = rows_of_operations(posterior, operations, chains=chains, report=partial(_show_row, show=progress))
    settings = None
    if not quick and trial.has_lengths_to_find(spec):
        if progress:
            say(f"running the first rounds of tuning for {trial.SECONDS:g} seconds")
        settings = trial.tried_settings(spec, dataset, seconds=trial.SECONDS)
    estimate = estimate_run(
        posterior,
        [(phase.operations, phase.iterations) for phase in spec.phase],
        chains=spec.chains,
        chains_per_batch=chains,
        sigmas=spec.initial.sigmas,
        workers=1 if spec.device == "gpu" else n_cores(),
        tuning_phases=spec.tuning_phases,
        tried=settings,
    )
    return BenchResult(spec.device, spec.dtype, rows, estimate)


def _show_row(row: Row, *, show: bool) -> None:
    """Print a line for a row as it is measured, if the progress is shown."""
    if show:
        say(f"{row.shape}, {row.chains} chains, {row.kernel}: {row.us_per_step:g} us")
