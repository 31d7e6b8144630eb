"""Checks and reading of the arguments that several verbs share, before anything is computed."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfbnn.arrays import gpu_is_available
from rayfbnn.data import Dataset, Source, is_path, read_training
from rayfbnn.data.paths import check_on_disk
from rayfbnn.errors import (
    ConfigError,
    RayStartError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
    at_most_ten,
)
from rayfbnn.output.whole_file import check_takes_files
from rayfbnn.spec import RunSpec
from rayfbnn.store.root import root_document, store_around
from rayfbnn.store.storage import storage_of
from rayfbnn.store.storage.places import Place, as_typed, is_address, place_of
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    from rayfbnn.arrays import Array
    from rayfbnn.draws.view import Draws
    from rayfbnn.reduce.passes import TaskExecutor
    from rayfbnn.run.running import RunOptions


_LONGEST_NAME = 200  # bytes; file systems allow 255, and unfinished files have longer names
_log = logging.getLogger(__name__)

Spec = RunSpec | Mapping[str, Any] | str | Path  # a configuration, its tables, or their TOML file


def read_spec(spec: Spec, overrides: Sequence[str]) -> RunSpec:
    """Return the configuration with its "key.path=value" overrides applied."""
    if isinstance(spec, RunSpec):
        if not overrides:
            return spec
        spec = spec.with_train(spec.train_path and spec.train_path.resolve())
        # Default phases follow from the other keys, unless one of them is changed.
        names_a_phase = any(one.strip().startswith("phase") for one in overrides)
        return RunSpec.from_dict(spec.to_dict() if names_a_phase else spec.written(), overrides)
    if isinstance(spec, Mapping):
        return RunSpec.from_dict(spec, overrides)
    return RunSpec.from_toml(spec, overrides)


def read_run_data(spec: RunSpec, data: Source | None) -> tuple[RunSpec, Dataset]:
    """Return the configuration for a store, resolved against its training cases, and these cases.

    data  the training cases, instead of the file that data.train names

    The configuration gets the absolute path of the file, which `resume` then finds from any folder, or no
    path if the cases are not from a file. A warning names the constant columns, which are left out, and there
    is one for each remark on the cases.
    """
    from rayfbnn.describe.data import remarks

    spec, dataset = read_training(spec, data)
    if spec.encoding is not None and spec.encoding.constant:
        listed = ", ".join(at_most_ten(f"{name} ({value})" for name, value in spec.encoding.constant.items()))
        _log.warning("constant columns are left out of the inputs: %s", listed)
    for remark in at_most_ten(remarks(spec, dataset)):
        _log.warning("%s", remark)
    path = spec.train_path if data is None else Path(data) if is_path(data) else None
    return spec.with_train(path and path.resolve()), dataset


def chosen_draws(
    store: Store, skip: int, last: int | None = None, chains: Sequence[int] | None = None
) -> Draws:
    """Return the draws of a store that the arguments of a verb choose; StoreError if it has no draws.

    For an approximation, only the draws of the starts that count are returned.
    """
    from rayfbnn.draws.subsets import chosen, with_members
    from rayfbnn.draws.view import committed

    check_choice(skip, last, chains)
    return with_members(chosen(committed(store), skip=skip, last=last, chains=chains))


def draws_for_predictions(
    store: Store, skip: int, last: int | None = None, chains: Sequence[int] | None = None
) -> Draws:
    """Return the chosen draws or, with a warning, states of an earlier phase if no draws are kept yet.

    ConfigError for a choice of draws if none are kept.
    """
    from rayfbnn.draws.subsets import chosen, with_members
    from rayfbnn.draws.view import committed_or_early, early_warning

    check_choice(skip, last, chains)
    run = committed_or_early(store)
    if run.early_phase is not None:
        if skip > 0:
            raise ConfigError(f"skip: must be 0 while {store.path} has kept no draws, got {skip}")
        if last is not None:
            raise ConfigError(f"last: leave it out while {store.path} has kept no draws, got {last}")
        _log.warning("%s", early_warning(run))
    return with_members(chosen(run, skip=skip, last=last, chains=chains))


def draws_weighed(runs: list[Draws], *, beside: str = "") -> list[Draws]:
    """Return runs whose ladders count by their evidence if phases remain, with a warning that names them.

    The result is the same list if all ladders count alike.

    beside  the end of the warning if they do not
    """
    from rayfbnn.answers.predict import weighed_by_evidence

    weighed, sentence = weighed_by_evidence(runs)
    is_equal = all(one is other for one, other in zip(weighed, runs, strict=False))
    if sentence:
        paths = ", ".join(at_most_ten(as_typed(run.path) for run in runs))
        _log.warning("%s: %s%s", paths, sentence, "" if is_equal else beside)
    return runs if is_equal else weighed


def warn_of_equal_weights(run: Draws) -> None:
    """Log a warning if all ladders of a run count alike in an answer, although `predict` weighs them."""
    if not run.is_of_ladders:
        return
    from rayfbnn.answers.judging.ladder_verdict import note_on_equal_weights

    if note := note_on_equal_weights(run):
        _log.warning("%s: %s", as_typed(run.path), note)


def check_counts(*, least: int, **values: int) -> None:
    """Raise ConfigError, naming the argument, unless each value is a whole number of at least `least`."""
    for name, value in values.items():
        if value % 1 != 0:  # also true for NaN and infinities
            raise ConfigError(f"{name}: must be a whole number, got {value}")
        if value < least:
            raise ConfigError(f"{name}: must be at least {least}, got {value}")


def check_choice(skip: int, last: int | None, chains: Sequence[int] | None) -> None:
    """Raise ConfigError, naming the argument, for impossible numbers of draws or chains."""
    check_counts(least=0, skip=skip)
    if last is not None:
        check_counts(least=1, last=last)
    for chain in chains or ():
        check_counts(least=0, chains=chain)


def check_thinning(draws: int | None, max_mcse: float) -> None:
    """Raise ConfigError for an impossible number of draws, or an impossible error of their mean."""
    if draws is not None:
        check_counts(least=1, draws=draws)
    if not 0 <= max_mcse < math.inf:
        raise ConfigError(f"max_mcse: must be above 0, such as 0.01, or 0 for all draws, got {max_mcse}")


def check_some_draws(draws: int | None, max_mcse: float) -> None:
    """Raise ConfigError unless at most one of a number of draws and an error of their mean is given."""
    check_thinning(draws, max_mcse)
    if draws is not None and max_mcse:
        raise ConfigError(f"draws: give either draws or max_mcse, got {draws} and {max_mcse}")


def check_reducing(workers: int | None, address: str | None, device: str = "cpu") -> None:
    """Raise ConfigError for contradictory options of a reduction, or if this machine lacks the device."""
    if device not in ("cpu", "gpu"):
        raise ConfigError(f'device: must be "cpu" or "gpu", got "{device}"')
    if address is None:
        check_device(device)
    if workers is not None:
        check_counts(least=0, workers=workers)
    _check_address(workers, address, "computes")


def _check_address(workers: int | None, address: str | None, what: str) -> None:
    if workers == 0 and address is not None:
        raise ConfigError(
            f"workers: 0 {what} in this process, without a cluster, got address {address}; leave one out"
        )


def reducing(
    workers: int | None, address: str | None, device: str = "cpu"
) -> AbstractContextManager[TaskExecutor]:
    """Return who runs the tasks of a reduction: this process unless workers or a cluster are given."""
    from rayfbnn.reduce.passes import TasksInProcess

    if workers or address is not None:
        from rayfbnn.reduce.on_ray import OnRay

        try:
            return OnRay(workers, address, device)
        except RayStartError as exc:
            _log.warning("%s. This goes on without Ray, in one process", exc)
    return nullcontext(TasksInProcess(device))


def check_decisive(decisive: str, *, also: tuple[str, ...] = ()) -> None:
    """Raise ConfigError unless `decisive` names a verdict that can decide, or one of `also`."""
    choices = ("predictions", "all", *also)
    if decisive not in choices:
        first, last = ", ".join(f'"{name}"' for name in choices[:-1]), choices[-1]
        raise ConfigError(f'decisive: must be {first} or "{last}", got "{decisive}"')


def stores_given(path: str | Path | Sequence[str | Path]) -> list[Store]:
    """Open the store or the stores that an argument names; ConfigError if there are none."""
    stores = [Store.open(one) for one in ([path] if isinstance(path, str | Path) else path)]
    if not stores:
        raise ConfigError("path: no store given; give one or several")
    return stores


def cases_with_targets(data: Source, spec: RunSpec, training: Dataset) -> tuple[Array, Array]:
    """Return the inputs and targets of cases, as on file; ConfigError if they have no targets."""
    from rayfbnn.data import read_cases

    inputs, targets = read_cases(data, spec, training)
    if targets is None:
        named = data if is_path(data) else "the table"
        raise ConfigError(f"data: {named} has no targets to compare with predictions; add them")
    return inputs, targets


def place_given(path: str | Path) -> Place:
    """Return the place that an argument names: a key in a bucket, or a path as written."""
    return place_of(path) if is_address(path) else Path(path)


def output_path(out: str | Path) -> Path:
    """Return the path of a file or folder to write; ConfigError for an address."""
    check_on_disk(out, "out")
    return Path(out)


def check_new_path(path: Place) -> None:
    """Raise an error unless a store can be created at `path`; nothing is ever replaced."""
    if os.path.lexists(path) if isinstance(path, Path) else storage_of(path).is_taken(path):
        problem = f"{path}: already exists; resume it"
        try:
            root_document(storage_of(path), path)
        except StoreFormatError as exc:
            problem = str(exc)  # it cannot be resumed
        except StoreError:
            pass  # whatever else is there, it is in the way
        raise StoreExistsError(f"{problem}, or give a new {'path' if isinstance(path, Path) else 'address'}")
    if isinstance(path, Path):
        check_folder(path)
        if (store := store_around(path)) is not None:
            raise ConfigError(f"{path}: lies inside the store {store}; give a path outside it")


def check_folder(path: Path) -> None:
    """Raise ConfigError unless the parent folder of `path` exists and new files can be created in it."""
    check_on_disk(path, "path")
    folder = path.absolute().parent
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise ConfigError(f"{path}: the name is longer than {_LONGEST_NAME} bytes; give a shorter one")
    if not os.path.isdir(folder):
        raise ConfigError(f"{path}: there is no folder {folder}; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: the folder {folder} cannot be written to; give another path")
    check_takes_files(path.absolute())


def input_files(store: Store, data: Source | None = None) -> list[Path]:
    """Return the files that a verb must not overwrite: the file of the training cases, and `data`."""
    train = store.spec.train_path
    return ([] if train is None else [train]) + ([Path(data)] if isinstance(data, str | Path) else [])


def check_output(path: Path, *, inputs: Sequence[Path]) -> None:
    """Raise ConfigError if writing `path` would change one of the inputs, or something inside a store.

    An input is recognised under any name, by a link or by another spelling of its path.
    """
    for file in inputs:
        if path.exists() and file.exists() and path.samefile(file):
            raise ConfigError(f"out: {path} is the input {file} itself; give another path")
    target = Path(os.path.realpath(path))  # a link is followed
    if not os.path.isdir(target):
        if os.path.lexists(target) and not os.path.isfile(target):
            raise ConfigError(f"out: {path} is not an ordinary file; give another path")
        if os.path.lexists(target) and not os.access(target, os.W_OK):
            raise ConfigError(f"out: {path} cannot be written to; give another path, or make it writable")
        check_folder(target)
    store = store_around(path)
    if store is not None:
        raise ConfigError(f"out: {path} lies inside the store {store}; give a path outside it")


def check_options(spec: RunSpec, options: RunOptions) -> None:
    """Raise ConfigError for contradictory options of a run, or if the run needs a GPU and finds none."""
    workers = options.workers
    if workers is not None and (workers % 1 != 0 or workers < 0):
        raise ConfigError(f"workers: must be 0 (this process) or more, got {workers}")
    _check_address(workers, options.address, "runs")
    check_counts(least=0, max_failures=options.max_failures)
    if options.log_format not in ("text", "json"):
        raise ConfigError(f'log_format: must be "text" or "json", got "{options.log_format}"')
    if options.address is None:
        check_device(spec.device)


def check_device(device: str) -> None:
    """Raise ConfigError for "gpu" on a machine without a GPU that CuPy can use."""
    if device == "gpu" and not gpu_is_available():
        raise ConfigError('device: there is no GPU here that CuPy can use, got "gpu"; use "cpu"')


_FEWEST_EFFECTIVE_RUNS = 10.0


def warn_of_few_runs(runs: int, effective_runs: float, way: str) -> None:
    """Log a warning if an estimate is not to be trusted; `way` says what would be better."""
    if effective_runs < _FEWEST_EFFECTIVE_RUNS:
        _log.warning(
            "the log evidence is not to be trusted: %d runs are worth %.1f equally weighted ones; %s",
            runs,
            effective_runs,
            way,
        )
