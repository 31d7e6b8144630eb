"""Checks before a run is resumed: only its length and the path of its training file may differ."""

from __future__ import annotations

import logging
from socket import gethostname

from rayfbnn.data import Source, first_difference, is_path, read_dataset
from rayfbnn.data.dataset import unshuffled
from rayfbnn.errors import ConfigError, StoreMismatchError, at_most_ten
from rayfbnn.kernels import choose
from rayfbnn.run.hardware import kernel_name
from rayfbnn.spec import RunSpec, differences
from rayfbnn.store.repair import check_files
from rayfbnn.store.store import Store
from rayfbnn.version import difference

_log = logging.getLogger(__name__)


def agreed_iterations(store: Store, asked: RunSpec, iterations: int | None) -> int | None:
    """Return the length requested for the last phase. StoreMismatchError lists all other differences.

    A configuration that leaves the length open asks for none. Default tuning stays as in the store; its
    length follows from that of the last phase.
    """
    is_open = asked.has_open_length
    asked = asked.resolved(store.spec.encoding).with_tuning_of(store.spec)
    last = store.spec.length_key
    planned, wanted = store.spec.phase[-1].iterations, asked.phase[-1].iterations
    # The cases themselves are compared.
    allowed = {"data.train"} | ({last} if wanted >= planned or is_open else set())
    if asked.has_default_batches:
        allowed.add("chains_per_batch")  # its default depends on the number of cores or GPUs
    disagreements = [line for line in differences(store.spec, asked) if line.split(": ")[0] not in allowed]
    if disagreements:
        listed = "".join(f"\n  {line}" for line in at_most_ten(disagreements))
        raise StoreMismatchError(f"{store.path}: the store has a different configuration:{listed}")
    return wanted if iterations is None and wanted > planned and not is_open else iterations


def check_version(store: Store) -> None:
    """Raise StoreMismatchError for a run of another version or other results: its draws might differ.

    Reading and predicting remain possible.
    """
    if words := difference(store.root.version, store.root.results):
        raise StoreMismatchError(
            f"{store.path}: {words}, and its draws may differ; resume it with the version that made it"
        )


def compare_kernel(store: Store) -> None:
    """Warn if this machine lacks the kernel that the run started with.

    Another kernel rounds differently. Its draws are as exact, but from here on they differ in their bits.
    """
    if not choose.is_available(store.root.kernel):
        _log.warning(
            "%s: the run started with the kernel %s, which %s does not have; it continues with %s: draws are"
            " as correct, but from here on not bit for bit those of the first kernel",
            store.path,
            store.root.kernel,
            gethostname(),
            kernel_name(store.spec),
        )


def compare_data(store: Store, data: Source | None) -> None:
    """Raise StoreMismatchError if `data` has other training cases than the store.

    The file named in the store's configuration is not opened, because the store's author may have named any
    file.
    """
    if data is None:
        return
    cases = read_dataset(store.spec, data)
    if cases.hash != store.root.header.data_hash:
        ours = store.data
        if store.spec.data.shuffle:  # number the rows as in the file
            ours, cases = unshuffled(ours), unshuffled(cases)
        raise StoreMismatchError(
            f"{store.path}: its training cases differ from {data if is_path(data) else 'the given data'}:"
            f" {first_difference(ours, cases)};"
            " leave the data out to continue with the store's own copy"
        )


def check_length(store: Store, iterations: int) -> None:
    """Raise ConfigError if the last phase would be shorter than the part of it already sampled."""
    planned = store.spec.phase[-1].iterations
    furthest = max(progress.iteration for progress in store.all_progress())
    sampled = furthest - (store.spec.total_iterations - planned)
    if iterations < min(planned, sampled):
        raise ConfigError(
            f"iterations: must be at least {sampled}, because {sampled} of the {planned} iterations of the"
            f" last phase are already sampled, got {iterations}"
        )


def take_up(store: Store, iterations: int | None) -> None:
    """Check that the files are there that the run builds on, and set its length unless it stays.

    The store must be locked; StoreCorruptError names a missing file.
    """
    check_files(store)
    if iterations is not None:
        set_length(store, iterations)


def set_length(store: Store, iterations: int) -> None:
    """Set the total number of iterations of the last phase. The store must be locked.

    Raises ConfigError if no phase may be so long, and StoreMismatchError if the store cannot be so long.
    """
    if iterations != store.spec.phase[-1].iterations:
        check_length(store, iterations)  # another process may have sampled more meanwhile
        spec = store.spec.with_iterations(iterations)
        store.extend(spec, spec.kept_draws)
