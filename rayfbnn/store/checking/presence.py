"""A check that a run can build on its store: no file is missing, or shorter or longer than it must be."""

from __future__ import annotations

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.hierarchy import holds
from rayfbnn.store.metadata import is_draw_coordinate
from rayfbnn.store.opened import OpenStore


def check_files(store: OpenStore) -> None:
    """Raise StoreCorruptError for a missing file, or for a chunk of another size than planned.

    Metadata, commit records and the blocks that are not gathered yet were read when the store was opened, and
    records of tuning are read now. Chunks are only listed, because reading them takes as long as predicting.
    """
    plans = store.hierarchy.plans
    files = [
        file
        for plan in plans.values()
        if plan.dims[:2] != ("chain", "draw")
        # Before a pending extension is finished, the numbers of its draws need not be there.
        and not (store.is_pending and is_draw_coordinate(plan))
        for file in plan.files_of_rows()
    ]
    listed = store.fs.each(lambda path: store.fs.sizes(store.path / path), plans)
    sizes = dict(zip(plans, listed, strict=True))
    for file in (*files, *store.rows.chunk_files()):
        path, _, name = file.rpartition("/")
        plan, size = plans[path], sizes[path].get(name)
        if size == plan.most_bytes:
            continue
        problem = "missing" if size is None else f"damaged: {size} bytes instead of {plan.most_bytes}"
        raise StoreCorruptError(f"{store.path / file}: {problem}{holds(plan, file)}")
    progress = store.commits.progress_of(range(store.header.n_batches))
    store.tuning.check_until(max(batch.iteration for batch in progress))
