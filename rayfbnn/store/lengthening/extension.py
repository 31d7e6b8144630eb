"""A change of the length of a run: a record is published first, and then the arrays get that length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rayfbnn.errors import StoreError
from rayfbnn.spec import RunSpec
from rayfbnn.store.catalogue import ArrayPlan, array_plans
from rayfbnn.store.hierarchy import METADATA, array_metadata, planned_chunks
from rayfbnn.store.limits import Length, check_size
from rayfbnn.store.metadata import is_draw_coordinate, matches
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.store.root import Root, extension_file, read_sealed
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage


def check_longer(fs: Storage, path: Place, root: Root, spec: RunSpec, n_draws: int) -> None:
    """Raise ConfigError if a run of this length does not fit into memory or onto the disk."""
    longer = replace(root.header, n_draws=n_draws, n_blocks=_n_blocks(spec, n_draws))
    length = Length.from_phase(spec, len(spec.phase) - 1)
    check_size(longer, spec, length, free_bytes=fs.free_bytes(path), before=root.header)


def publish_extension(fs: Storage, path: Place, root: Root, spec: RunSpec, n_draws: int) -> None:
    """Publish the new length of the run, which any process may then apply with `carry_through`."""
    document = {
        "store": root.identity,
        "number": root.n_extensions,
        "n_draws": n_draws,
        "n_blocks": _n_blocks(spec, n_draws),
        "spec": spec.to_dict(),
        SEAL: NO_SEAL,
    }
    if not fs.write_exclusive(extension_file(path, root.n_extensions), seal(document)):
        raise StoreError(f"{path}: another process extended the run at the same time; try again")


def carry_through(fs: Storage, path: Place, root: Root) -> None:
    """Give every array the length of the last extension; this can be repeated after a crash.

    Coordinates come first if the run becomes longer, and last if it becomes shorter. Nobody notices a
    coordinate that is longer than its array, but the missing numbers of a shorter one would be read as 0.
    """
    plans = array_plans(root.header, root.spec)
    steps = [_set_coordinates, _set_metadata]
    for step in steps if root.header.n_draws >= root.before.n_draws else reversed(steps):
        step(fs, path, root, plans)


def _set_coordinates(fs: Storage, path: Place, root: Root, plans: Mapping[str, ArrayPlan]) -> None:
    """Write the numbers of the draws beyond the shorter length; remove chunks that no draw needs."""
    for plan in plans.values():
        if is_draw_coordinate(plan) and plan.shape[0] == root.header.n_draws:
            for file, content in planned_chunks(plan, first=min(root.before.n_draws, plan.shape[0] - 1)):
                fs.write_atomic(path / file, content)
            kept = set(plan.chunk_files(range(plan.shape[0])))
            for file in plan.chunk_files(range(root.before.n_draws)):
                if file not in kept:
                    fs.unlink(path / file, below=path)
            fs.fsync_dir(path / plan.path)


def _set_metadata(fs: Storage, path: Place, root: Root, plans: Mapping[str, ArrayPlan]) -> None:
    for plan in plans.values():
        metadata = path / plan.path / METADATA
        if not matches(read_sealed(fs, metadata), plan):
            fs.write_atomic(metadata, array_metadata(plan))
            fs.fsync_dir(metadata.parent)


def _n_blocks(spec: RunSpec, n_draws: int) -> int:
    """Return the maximum number of blocks of a batch."""
    return max(spec.total_iterations, n_draws)
