"""The verb of job scripts: it samples, resumes or extends, whichever is needed for a run to be complete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rayfbnn.data import Source
from rayfbnn.errors import StoreExistsError
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.homes import storage_of
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import Spec, place_given, read_spec
from rayfbnn.verbs.sampling import resume, sample

if TYPE_CHECKING:
    from rayfbnn.answers.judging.verdicts import Decisive
    from rayfbnn.run.running import LogFormat, RunSummary


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

    The store is created if it is not there. If it is there, the run goes on from its last commit, and becomes
    longer if the configuration asks for more iterations of its last phase than it has. Every call with the
    same arguments therefore ends in the same store, however often it was stopped or killed before. A run that
    is longer than the configuration asks stays as it is.

    Parameters
    ----------
    spec
        The configuration: a TOML file, nested dictionaries, or a RunSpec. StoreMismatchError if the store
        was made from another one, or by another version of rayfbnn.
    path
        The store of the run; it is created if nothing is there.
    data
        The training cases, in place of the file that data.train names. A CSV or Parquet file, a DataFrame
        with the columns of inputs and targets (of pandas, Polars or Arrow), or a pair (X, y) of arrays. They
        are compared with those in the store, if it is there.
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
        Shows the progress on standard error.
    log_format
        "json" adds a line of JSON for each block to STORE.log.jsonl, beside the store (in the current folder
        for a store in a bucket).
    method
        The method, whose settings are in the section methods of the configuration. hmc and sghmc are runs
        with phases of their own; bbb, laplace, vep and map are approximations, whose chains are starts.
        Left out, the run has the phases of the configuration.

    Returns
    -------
    RunSummary
        Number of chains and draws, acceptance and divergences of the whole run; with `until` whether it is
        ok.
    """
    place = place_given(path)
    asked = read_spec(spec, set).for_method(method)
    how: dict[str, Any] = {
        "data": data,
        "until": until,
        "max_time": max_time,
        "decisive": decisive,
        "workers": workers,
        "address": address,
        "max_failures": max_failures,
        "progress": progress,
        "log_format": log_format,
    }
    if not storage_of(place).is_taken(place):
        # Another process may create it meanwhile, and may hold its lock.
        with suppress(StoreExistsError):
            return sample(asked, path, **how)
    return resume(path, spec=_at_least_as_long(asked, place), **how)


def _at_least_as_long(asked: RunSpec, place: Place) -> RunSpec:
    """Return the configuration with the length of the store at `place`, if that is longer."""
    planned = Store.open(place).spec
    asked = asked.resolved(planned.encoding)
    if asked.fit is not None:
        return asked
    longest = max(asked.phase[-1].iterations, planned.phase[-1].iterations)
    return asked.with_iterations(longest)
