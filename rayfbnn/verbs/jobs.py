"""The verb of job scripts: it samples, resumes or extends a run until it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rayfbnn.data import Source
from rayfbnn.errors import StoreExistsError
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.homes import storage_of
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import Spec, place_given, read_spec
from rayfbnn.verbs.sampling import checked_store, new_store
from rayfbnn.verbs.until import read_until, run_until

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
    from rayfbnn.run.resuming import take_up
    from rayfbnn.run.running import RunOptions, run_to_end

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
    with store.lock():
        take_up(store, length)
        if goal is None or (not goal.is_asked and _is_ok(store)):
            return run_to_end(store, options)
        return run_until(store, goal, options)


def _is_ok(store: Store) -> bool:
    """Return True if the last verdict on a run in rounds was ok."""
    verdicts = store.verdicts.all()
    return bool(verdicts) and verdicts[-1].ok


def _at_least_as_long(asked: RunSpec, place: Place) -> RunSpec:
    """Return the configuration, with the length of the store at `place` if the store is longer."""
    if asked.fit is not None or asked.has_open_length:
        return asked
    planned = Store.open(place).spec
    asked = asked.resolved(planned.encoding).with_tuning_of(planned)
    longest = max(asked.phase[-1].iterations, planned.phase[-1].iterations)
    return asked.with_iterations(longest)
