"""The metadata of a store, and the records that make the run longer, checked against the planned arrays."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rayfbnn.data.encoding import Encoding
from rayfbnn.data.paths import near_paths
from rayfbnn.errors import ConfigError, StoreCorruptError, StoreError, StoreFormatError, StoreMissingError
from rayfbnn.memory import memory_of_machine
from rayfbnn.spec import RunSpec
from rayfbnn.spec.messages import short
from rayfbnn.store.catalogue import (
    COMMITS,
    DISCARDED,
    FORMAT_VERSION,
    TUNING,
    VERDICTS,
    ArrayPlan,
    Header,
    Root,
)
from rayfbnn.store.documents import (
    MOST_DRAWS,
    RESULTS_BEFORE,
    ChunkFile,
    Digest,
    Document,
    ExtensionDocument,
    Plain,
    Seal,
    VerdictDocument,
    Whole,
    as_document,
    parse_json,
)
from rayfbnn.store.hierarchy import METADATA, array_metadata, group_metadata, planned_chunks
from rayfbnn.store.records import SEAL, SealedLog, seal_of
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage

FORMAT = "rayfbnn"
LOCK = "lock"
HOLDER = "holder.json"


class RootAttributes(Document):
    """The attributes of the root metadata; `spec` is checked where configurations are."""

    format: Literal["rayfbnn"]
    format_version: Whole
    rayfbnn_version: Plain
    results: Whole = RESULTS_BEFORE
    header: Header
    spec: dict[str, Any]
    fixed_chunks: dict[ChunkFile, Digest]
    kernel: Plain
    head_records: Literal[True]
    encoding: Encoding | None = None
    seal: Seal


class RootDocument(Document):
    """The root's zarr.json."""

    zarr_format: Literal[3]
    node_type: Literal["group"]
    attributes: RootAttributes


def root_document(fs: Storage, path: Place) -> tuple[str, bytes]:
    """Return the identity of the store at `path` and the content of its root metadata file.

    StoreMissingError without a store at this place, StoreFormatError if it has another format,
    StoreCorruptError if its root metadata is missing or damaged.
    """
    file = path / METADATA
    fs.check_folders([path / COMMITS])
    try:
        raw = fs.read(file)
    except FileNotFoundError:
        if not fs.is_taken(path):
            near = near_paths(path, [".zarr"]) if isinstance(path, Path) else ""
            raise StoreMissingError(f"{path}: does not exist{near}; give the path of a store") from None
        if _listed(fs, path / COMMITS):
            raise StoreCorruptError(f"{file}: missing: the metadata of the store") from None
        raise StoreMissingError(f"{path}: has no {METADATA}; it is not a store, or it is damaged") from None
    if _is_of_another_program(raw) and not _listed(fs, path / COMMITS):
        raise StoreMissingError(f"{path}: is not a rayfbnn store")
    identity = seal_of(raw, file)
    _check_format(parse_json(raw, file).get("attributes"), path)
    return identity, raw


def _is_of_another_program(raw: bytes) -> bool:
    """Return True for metadata with neither a seal nor the format name of this program."""
    if SEAL.encode() in raw:
        return False
    try:
        attributes = parse_json(raw, METADATA).get("attributes", {})
    except StoreCorruptError:
        return False
    return isinstance(attributes, dict) and attributes.get("format") != FORMAT


def read_root(fs: Storage, path: Place) -> Root:
    """Return the root metadata with the extensions applied; it raises what `root_document` raises."""
    file = path / METADATA
    identity, raw = root_document(fs, path)
    attributes = as_document(RootDocument, raw, file, "the metadata of a store").attributes
    encoding, header = attributes.encoding, attributes.header
    spec = _spec(attributes.spec, encoding, file)
    _check_sizes(header, spec, file, longest=header.n_draws)
    before, longest = header, header.n_draws
    log = extension_log(fs, path, identity)
    extensions = log.numbers()
    for expected, number in enumerate(extensions):
        file = log.file(expected)
        if number != expected:
            raise StoreCorruptError(f"{file}: missing: an extension of the run")
        extension = log.read(number)
        before = header
        header = replace(header, n_draws=extension.n_draws, n_blocks=extension.n_blocks)
        spec, longest = _spec(extension.spec, encoding, file), max(longest, header.n_draws)
        _check_sizes(header, spec, file, longest=longest)
    return Root(
        identity,
        header,
        spec,
        attributes.fixed_chunks,
        len(extensions),
        before,
        attributes.rayfbnn_version,
        attributes.results,
        attributes.kernel,
    )


def _check_format(attributes: Any, path: Place) -> None:
    """Raise StoreMissingError for another program's metadata, StoreFormatError for another format."""
    if not isinstance(attributes, dict) or attributes.get("format") != FORMAT:
        raise StoreMissingError(f"{path}: is not a rayfbnn store")
    version = attributes.get("format_version")
    if version != FORMAT_VERSION:
        raise StoreFormatError(
            f"{path}: store format {short(version)} is not supported; this version reads format"
            f" {FORMAT_VERSION}, so open the store with the version that made it"
        )


def _check_sizes(header: Header, spec: RunSpec, file: Place, *, longest: int) -> None:
    """Raise StoreCorruptError unless the sizes fit the specification of the run.

    longest  the most draws that the run has had so far; it may have become shorter again
    """
    planned = {
        "cases_per_chunk": max(1, header.n_cases),
        "coordinate_chunk": max(header.draws_per_chunk, longest, header.n_warmup_draws),
        "n_blocks": max(spec.total_iterations, header.n_draws),
        "chains_per_batch": min(header.chains_per_batch, header.chains),
    }
    if header.kind in ("mcmc", "approximate"):
        planned |= {
            "chains": spec.chains,
            "n_draws": spec.kept_draws,
            "n_warmup_draws": spec.warmup_draws,
        }
    if (header.kind == "approximate") != (header.fit_state is not None):
        raise StoreCorruptError(f"{file}: approximations need fit_state, and nothing else has it")
    for name, size in planned.items():
        value = getattr(header, name)
        # Sizes of chunks have an upper bound only: they stay the same when the length changes.
        is_chunk = name in ("cases_per_chunk", "coordinate_chunk")
        if value > size if is_chunk else value != size:
            raise StoreCorruptError(f"{file}: {name} is {value}, but its configuration gives {size}")


def _spec(document: Any, encoding: Encoding | None, file: Place) -> RunSpec:
    try:
        return RunSpec.from_json(json.dumps(document)).resolved(encoding)
    except ConfigError as exc:
        raise StoreError(f"{file}: this version cannot read its configuration: {exc}") from exc


def read_sealed(fs: Storage, file: Place) -> bytes:
    """Return the content of a sealed file; StoreCorruptError if it is missing or damaged."""
    try:
        raw = fs.read(file)
    except FileNotFoundError:
        raise StoreCorruptError(f"{file}: missing") from None
    seal_of(raw, file)
    return raw


def read_fixed(fs: Storage, file: Place, expected: str, *, at_most: int) -> None:
    """Raise StoreCorruptError unless a chunk written at creation has the digest `expected`."""
    if hashlib.sha256(fs.read(file, at_most=at_most)).hexdigest() != expected:
        raise StoreCorruptError(f"{file}: damaged: its content is not what was written")


def store_around(path: Path) -> Path | None:
    """Return the store that `path` is or lies in, following links; None if it is outside all stores."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        if (folder / METADATA).is_file() and (folder / COMMITS).is_dir():
            return folder
    return None


def extension_log(fs: Storage, path: Place, identity: str) -> SealedLog[ExtensionDocument]:
    """Return the records that change the length of the run."""
    folder, owner = path / COMMITS, ("store", identity)
    return SealedLog(
        fs, folder, folder, ExtensionDocument, "an extension", owner, prefix="extension", digits=4
    )


def verdict_log(fs: Storage, path: Place, identity: str) -> SealedLog[VerdictDocument]:
    """Return the verdicts on a run that was extended until it was ok.

    They are for people. Draws do not depend on them: a run that has the final length from the start gives the
    same draws.
    """
    commits, owner = path / COMMITS, ("store", identity)
    return SealedLog(fs, commits / VERDICTS, commits, VerdictDocument, "a record of a verdict", owner)


_BATCH = re.compile(r"batch\d+")
_NAMES_OF_TEXT: tuple[object, ...] = (
    "string",
    {"name": "string"},
    {"name": "string", "configuration": {}},
    {"name": "variable_length_utf8"},
    {"name": "variable_length_utf8", "configuration": {}},
)


def read_metadata(fs: Storage, path: Place, plans: Mapping[str, ArrayPlan]) -> tuple[dict[str, bytes], bool]:
    """Return every metadata file, checked and as planned, and True if an extension is unfinished.

    During an extension the result also has the chunks of the draw coordinates, which may be short on disk.
    """
    files = metadata_files(plans)
    contents = fs.each(lambda file: read_metadata_file(fs, path / file, plans, file), files)
    metadata = {file: content for file, (content, _) in zip(files, contents, strict=True)}
    is_pending = any(is_other for _, is_other in contents)
    if is_pending:
        for plan in plans.values():
            if plan.is_draw_coordinate:
                metadata.update(planned_chunks(plan))
    return metadata, is_pending


def read_metadata_file(
    fs: Storage, path: Place, plans: Mapping[str, ArrayPlan], file: str
) -> tuple[bytes, bool]:
    """Return one metadata file as planned, and True if the file itself is still from before an extension."""
    raw = read_sealed(fs, path)
    plan = plans.get(file.rpartition("/")[0])
    if plan is None:
        if file != METADATA and parse_json(raw, path) != parse_json(group_metadata({}), path):
            raise StoreCorruptError(f"{path}: does not describe a group of this run")
        return raw, False
    document = parse_json(raw, path)
    if matches(raw, plan):
        return array_metadata(plan), False
    shape = tuple(document["shape"]) if isinstance(document.get("shape"), list) else ()
    is_other = len(shape) == len(plan.shape) and all(
        type(n) is int and (0 <= n <= MOST_DRAWS if dim == "draw" else n == planned)
        for n, planned, dim in zip(shape, plan.shape, plan.dims, strict=True)
    )
    if is_other and matches(raw, replace(plan, shape=shape)):
        return array_metadata(plan), True
    raise StoreCorruptError(f"{path}: does not describe the array {plan.path} of this run")


def metadata_files(plans: Mapping[str, ArrayPlan]) -> list[str]:
    """Return the paths of the metadata files of groups and arrays in the store."""
    groups = dict.fromkeys(path.partition("/")[0] for path in plans if "/" in path)
    return [METADATA, *(f"{path}/{METADATA}" for path in (*groups, *plans))]


def check_layout(fs: Storage, path: Place, plans: Mapping[str, ArrayPlan]) -> None:
    """Raise StoreCorruptError if a folder of the store is a link, or if chunks do not fit into memory."""
    memory = memory_of_machine()
    for plan in plans.values():
        if plan.most_bytes > memory:
            raise StoreCorruptError(
                f"{path / plan.path}: a chunk has {plan.most_bytes} bytes, more than the memory of this"
                f" machine ({memory} bytes)"
            )
    groups = dict.fromkeys(name.partition("/")[0] for name in plans)
    commits = path / COMMITS
    fs.check_folders(path / name for name in (*groups, *plans))
    # Only existing folders: a store may claim to have a million batches.
    names = _listed(fs, commits)
    others = (DISCARDED, TUNING, VERDICTS)
    fs.check_folders(commits / name for name in names if name in others or _BATCH.fullmatch(name))


def _listed(fs: Storage, folder: Place) -> list[str]:
    try:
        return fs.listdir(folder)
    except FileNotFoundError:
        return []


def check_fixed_chunks(path: Place, fixed: Mapping[str, str], plans: Mapping[str, ArrayPlan]) -> None:
    """Raise StoreCorruptError unless the root metadata has a digest of each chunk written at creation."""
    planned = set()
    for plan in plans.values():
        if plan.is_drawn or plan.is_draw_coordinate:
            continue
        for file in plan.files_of_rows():
            if file not in fixed:  # stop here, because a store may claim any number of chunks
                raise StoreCorruptError(f"{path / METADATA}: has no digest of {file}")
            planned.add(file)
    for file in fixed:
        if file not in planned:
            raise StoreCorruptError(
                f"{path / METADATA}: has a digest of a file that is not part of the run: {file}"
            )


def matches(raw: bytes, plan: ArrayPlan) -> bool:
    """Return True if a metadata file describes the planned array, in every key that Zarr knows."""
    return _as_compared(raw, plan) == _as_compared(array_metadata(plan), plan)


def _as_compared(raw: bytes, plan: ArrayPlan) -> dict[str, Any]:
    """Return the metadata in one form for all versions of Zarr, which differ in the name of the text type."""
    document = json.loads(raw)
    if not isinstance(document, dict):
        return {}
    attributes, codecs = document.get("attributes"), document.get("codecs")
    if isinstance(attributes, dict):
        document["attributes"] = {**attributes, SEAL: ""}
    if isinstance(codecs, list):
        document["codecs"] = [
            {"configuration": {}, **codec} if isinstance(codec, dict) else codec for codec in codecs
        ]
    if plan.is_text and document.get("data_type") in _NAMES_OF_TEXT:
        document["data_type"] = "string"
    return {"storage_transformers": [], **document}


def draw_chunks(fs: Storage, path: Place, plan: ArrayPlan, root: Root) -> list[Place]:
    """Return the files of a draw coordinate, except files that an unfinished extension has yet to write."""
    file = f"{plan.path}/{METADATA}"
    try:
        _, is_other = read_metadata_file(fs, path / file, {plan.path: plan}, file)
    except StoreCorruptError:
        is_other = False
    length = root.before.n_draws if is_other else plan.shape[0]
    return [path / file for file in plan.chunk_files(range(length))]


def check_draws(fs: Storage, file: Place, plan: ArrayPlan, root: Root) -> None:
    """Raise StoreCorruptError unless a chunk of a draw coordinate has the present or the previous length."""
    raw = fs.read(file)
    lengths = {plan.shape[0]}
    if plan.shape[0] == root.header.n_draws:
        lengths.add(root.before.n_draws)
    for length in lengths:
        planned = replace(plan, shape=(length,), values=np.arange(length, dtype=np.int64))
        contents = {name.rpartition("/")[2]: content for name, content in planned_chunks(planned)}
        if contents.get(file.name) == raw:
            return
    raise StoreCorruptError(f"{file}: damaged: its values are not the numbers of the draws")
