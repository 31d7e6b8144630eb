"""The creation of a store: it is written in a hidden folder and then renamed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict

from rayfbnn.data import Dataset
from rayfbnn.errors import ConfigError, StoreExistsError
from rayfbnn.spec import RunSpec
from rayfbnn.store.catalogue import COMMITS, FORMAT_VERSION, Header, array_plans
from rayfbnn.store.checking.documents import MOST_VALUES, values_in
from rayfbnn.store.checking.heads import Head, batch_folder, write_head
from rayfbnn.store.hierarchy import METADATA, array_metadata, group_metadata, planned_chunks
from rayfbnn.store.metadata import is_draw_coordinate
from rayfbnn.store.records import seal_of
from rayfbnn.store.root import FORMAT, LOCK
from rayfbnn.store.sizes import Length, check_size
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import MOST_BYTES, Storage
from rayfbnn.version import RESULTS, __version__

_GROUPS = "(warmup_)?(posterior|sample_stats)|prior_predictive|ladder|observed_data|constant_data"
_ARRAY = r"zarr\.json|c\.[\d.]*"
_BATCH = r"lock|head\.json|\d+\.(block|segment)"
# The keys of all files and folders of a new store; those of folders end with "/".
_OURS = re.compile(
    rf"zarr\.json|({_GROUPS})/(zarr\.json|[^/]+/({_ARRAY})?)?|commits/({_ARRAY}|lock|batch\d+/({_BATCH})?)?",
    re.ASCII,
)


def create(
    fs: Storage,
    path: Place,
    header: Header,
    spec: RunSpec,
    data: Dataset,
    kernel: str,
    fill: Callable[[Place], None] | None = None,
) -> None:
    """Create a store at `path`; a crash leaves no store there.

    fill  commits the draws that the store holds from the start; called with the place where it is built
    """
    if fs.is_taken(path):
        raise StoreExistsError(f"{path}: already exists; choose another path, or resume it")
    _check_text(spec)
    length = Length.from_longest(header, spec)
    check_size(header, spec, length, free_bytes=fs.free_bytes(path.parent))
    with fs.creation(path, f"{COMMITS}/{LOCK}", is_ours) as building:
        _build(fs, building, header, spec, data, kernel)
        if fill is not None:
            fill(building)


def is_ours(key: str) -> bool:
    """Return True for the key of a file that a creation may write, or of a folder, with "/" at its end."""
    return _OURS.fullmatch(key) is not None


def _check_text(spec: RunSpec) -> None:
    """Raise ConfigError if the configuration is larger than the limits for reading it from a store."""
    encoding = None if spec.encoding is None else spec.encoding.to_dict()
    raw = json.dumps([spec.to_dict(), encoding], indent=1).encode()
    if values_in(raw) > 0.9 * MOST_VALUES or len(raw) > 0.9 * MOST_BYTES:
        raise ConfigError(
            f"configuration: with the names and labels of the table it has {len(raw)} bytes and"
            f" {values_in(raw)} values, but a store holds at most {0.9 * MOST_BYTES:.0f} bytes and"
            f" {0.9 * MOST_VALUES:.0f} values; describe connections by a generator"
        )


def _build(fs: Storage, path: Place, header: Header, spec: RunSpec, data: Dataset, kernel: str) -> None:
    """Write all files of a new store into the folder `path`, and sync them."""
    plans = array_plans(header, spec, data)
    files: dict[str, bytes] = {}
    fixed: dict[str, str] = {}
    for plan in plans.values():
        files[f"{plan.path}/{METADATA}"] = array_metadata(plan)
        if plan.values is not None:
            for file, content in planned_chunks(plan):
                files[file] = content
                if not is_draw_coordinate(plan):  # an extension lengthens it
                    fixed[file] = hashlib.sha256(content).hexdigest()
    for group in dict.fromkeys(plan.partition("/")[0] for plan in plans if "/" in plan):
        files[f"{group}/{METADATA}"] = group_metadata({})
    sizes = asdict(header)
    if header.fit_state is None:
        del sizes["fit_state"]
    else:
        sizes["fit_state"] = dict(header.fit_state)
    root = group_metadata(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "rayfbnn_version": __version__,
            "results": RESULTS,
            "header": sizes,
            "spec": spec.to_dict(),
            "fixed_chunks": fixed,
            "kernel": kernel,
            "head_records": True,  # always true in this format
        }
        | ({} if spec.encoding is None else {"encoding": spec.encoding.to_dict()})
    )
    identity = seal_of(root, path / METADATA)
    batches = [batch_folder(path, batch) for batch in range(header.n_batches)]
    folders = {file[:end] for file in files for end, letter in enumerate(file) if letter == "/"}
    for folder in (*(path / name for name in sorted(folders)), *batches):
        fs.mkdir(folder)
    fs.write_files({path / file: content for file, content in files.items()})
    for batch, folder in enumerate(batches):
        write_head(fs, folder, Head(identity, batch))
    fs.write_root(path / METADATA, root)
    for folder in (*(path / name for name in sorted(folders, reverse=True)), path):
        fs.fsync_dir(folder)
