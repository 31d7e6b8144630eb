"""Checks before a run is resumed: only its length and the place of its training file may differ."""

from __future__ import annotations

import logging
from socket import gethostname

from rayfbnn.data import Source, first_difference, is_path, read_training_file
from rayfbnn.data.shuffling import unshuffled
from rayfbnn.errors import ConfigError, StoreMismatchError
from rayfbnn.kernels import choose
from rayfbnn.run.kernel import kernel_for
from rayfbnn.spec import RunSpec, differences
from rayfbnn.store.store import Store
from rayfbnn.version import __version__

_log = logging.getLogger(__name__)


def agreed_iterations(store: Store, asked: RunSpec, iterations: int | None) -> int | None:
    """Return the length asked for the last phase; StoreMismatchError names all other differences."""
    asked = asked.resolved(store.spec.encoding)
    last = f"phase[{len(store.spec.phase) - 1}].iterations"
    planned, wanted = store.spec.phase[-1].iterations, asked.phase[-1].iterations
    allowed = {"data.train"} | ({last} if wanted >= planned else set())  # the cases themselves are compared
    if asked.device == "gpu" and "chains_per_batch" not in asked.model_fields_set:
        allowed.add("chains_per_batch")  # it depends on how many GPUs there were
    disagreements = [line for line in differences(store.spec, asked) if line.split(": ")[0] not in allowed]
    if disagreements:
        listed = "".join(f"\n  {line}" for line in disagreements)
        raise StoreMismatchError(f"{store.path}: was made from another configuration:{listed}")
    return wanted if iterations is None and wanted > planned else iterations


def check_version(store: Store) -> None:
    """Refuse a run of another version: its draws might differ. Reading and predicting stay possible."""
    if store.root.version != __version__:
        raise StoreMismatchError(
            f"{store.path}: was made by rayfbnn {store.root.version}, and this is {__version__}, whose draws"
            f" may differ; resume it with rayfbnn {store.root.version}"
        )


def compare_kernel(store: Store) -> None:
    """Warn if this machine lacks the kernel that the run started with.

    Another kernel rounds differently: draws are as exact, but from here on not the same bits.
    """
    if not choose.is_available(store.root.kernel):
        _log.warning(
            "%s: was started with the kernel %s, which %s does not have; it continues with %s: draws are as"
            " correct, but from here on not bit for bit those that the first kernel would give",
            store.path,
            store.root.kernel,
            gethostname(),
            kernel_for(store.spec),
        )


def compare_data(store: Store, data: Source | None) -> None:
    """Refuse training cases that are not the store's.

    The file that the store's configuration names is not opened: who made the store may have named any file.
    """
    if data is None:
        return
    cases = read_training_file(data, store.spec)
    if cases.hash != store.root.header.data_hash:
        ours = store.data
        if store.spec.data.shuffle:  # rows are numbered as in the file
            ours, cases = unshuffled(ours), unshuffled(cases)
        raise StoreMismatchError(
            f"{store.path}: was made from other data than {data if is_path(data) else 'data'} holds now:"
            f" {first_difference(ours, cases)};"
            " leave the data out to continue with the store's own copy"
        )


def check_length(store: Store, iterations: int) -> None:
    """Raise ConfigError if the last phase would be shorter than what is sampled of it."""
    planned = store.spec.phase[-1].iterations
    furthest = max(store.progress(batch).iteration for batch in range(store.n_batches))
    sampled = furthest - (store.spec.total_iterations - planned)
    if iterations < min(planned, sampled):
        raise ConfigError(
            f"iterations: {sampled} of the {planned} iterations of the last phase are sampled; a run can be"
            f" made longer, and not shorter than what is sampled, got {iterations}"
        )


def set_length(store: Store, iterations: int) -> None:
    """Give the last phase `iterations` in all; the store must be locked.

    ConfigError if no phase may be so long, StoreMismatchError if the store cannot have this length.
    """
    if iterations != store.spec.phase[-1].iterations:
        check_length(store, iterations)  # another process may have sampled more meanwhile
        spec = store.spec.with_iterations(iterations)
        store.extend(spec, spec.kept_draws)
