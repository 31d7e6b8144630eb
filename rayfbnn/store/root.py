"""The root of a store: its metadata, and the records that make the run longer."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayfbnn.data.encoding import Encoding
from rayfbnn.data.paths import near_paths
from rayfbnn.errors import ConfigError, StoreCorruptError, StoreError, StoreFormatError, StoreMissingError
from rayfbnn.spec import RunSpec
from rayfbnn.spec.messages import short
from rayfbnn.store.catalogue import COMMITS, FORMAT_VERSION, Header
from rayfbnn.store.checking.documents import (
    ExtensionDocument,
    HeaderDocument,
    RootDocument,
    as_document,
    parse_json,
)
from rayfbnn.store.hierarchy import METADATA
from rayfbnn.store.records import SEAL, seal_of, unseal
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage

FORMAT = "rayfbnn"
LOCK = "lock"
HOLDER = "holder.json"
_EXTENSION = re.compile(r"extension(\d{4,})\.json")


@dataclass(frozen=True)
class Root:
    """The root metadata, with the extensions laid over it.

    identity      digest of the root's metadata file, which never changes and thus identifies the store
    fixed_chunks  chunk file -> SHA-256 of its content, for all chunks written at creation
    n_extensions  number of times that the run was lengthened
    before        the header before the last extension; after a crash some arrays may still have its sizes
    version       version of rayfbnn that created the store
    results       number of its results (`rayfbnn.version`)
    kernel        name of the code that ran the first leapfrog steps
    """

    identity: str
    header: Header
    spec: RunSpec
    fixed_chunks: dict[str, str]
    n_extensions: int
    before: Header
    version: str
    results: int
    kernel: str


def root_document(fs: Storage, path: Place) -> tuple[str, dict[str, Any]]:
    """Return the identity of the store at `path` and the document in its root metadata file.

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
        if _has_commits(fs, path):
            raise StoreCorruptError(f"{file}: missing: the metadata of the store") from None
        raise StoreMissingError(f"{path}: has no {METADATA}; it is not a store, or it is damaged") from None
    if _is_of_another_program(raw) and not _has_commits(fs, path):
        raise StoreMissingError(f"{path}: is not a rayfbnn store")
    identity = seal_of(raw, file)
    document = parse_json(raw, file)
    _check_format(document.get("attributes"), path)
    return identity, document


def _has_commits(fs: Storage, path: Place) -> bool:
    try:
        return bool(fs.listdir(path / COMMITS))
    except FileNotFoundError:
        return False


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
    identity, document = root_document(fs, path)
    attributes = as_document(RootDocument, document, file, "the metadata of a store").attributes
    encoding = None if attributes.encoding is None else Encoding.from_dict(attributes.encoding.model_dump())
    header = _header(attributes.header)
    spec = _spec(attributes.spec, encoding, file)
    _check_sizes(header, spec, file, longest=header.n_draws)
    before, longest = header, header.n_draws
    extensions = _extensions(fs, path)
    for number in range(extensions):
        file = extension_file(path, number)
        extension = as_document(ExtensionDocument, unseal(fs.read(file), file), file, "an extension")
        if (extension.store, extension.number) != (identity, number):
            raise StoreCorruptError(f"{file}: belongs to another store or has another number")
        before = header
        header = replace(header, n_draws=extension.n_draws, n_blocks=extension.n_blocks)
        spec, longest = _spec(extension.spec, encoding, file), max(longest, header.n_draws)
        _check_sizes(header, spec, file, longest=longest)
    return Root(
        identity,
        header,
        spec,
        attributes.fixed_chunks,
        extensions,
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
    for name, size in planned.items():
        value = getattr(header, name)
        # Sizes of chunks have an upper bound only: they stay the same when the length changes.
        is_chunk = name in ("cases_per_chunk", "coordinate_chunk")
        if value > size if is_chunk else value != size:
            raise StoreCorruptError(f"{file}: {name} is {value}, but its configuration gives {size}")


def _header(document: HeaderDocument) -> Header:
    sizes = document.model_dump()
    if document.fit_state is not None:
        sizes["fit_state"] = tuple((name, tuple(shape)) for name, shape in document.fit_state.items())
    return Header(**sizes)


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
    try:
        raw = fs.read(file, at_most=at_most)
    except FileNotFoundError:
        raise StoreCorruptError(f"{file}: missing") from None
    if hashlib.sha256(raw).hexdigest() != expected:
        raise StoreCorruptError(f"{file}: damaged: its content is not what was written")


def store_around(path: Path) -> Path | None:
    """Return the store that `path` is or lies in, following links; None if it is outside all stores."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        if (folder / METADATA).is_file() and (folder / COMMITS).is_dir():
            return folder
    return None


def extension_files(fs: Storage, path: Place) -> list[Place]:
    """Return the files of the records of extensions."""
    try:
        return [path / COMMITS / name for name in fs.listdir(path / COMMITS) if _EXTENSION.fullmatch(name)]
    except FileNotFoundError:
        return []


def _extensions(fs: Storage, path: Place) -> int:
    try:
        names = fs.listdir(path / COMMITS)
    except FileNotFoundError:
        raise StoreCorruptError(f"{path / COMMITS}: missing: the commits of the run") from None
    numbers = sorted(int(match[1]) for name in names if (match := _EXTENSION.fullmatch(name)))
    for expected, number in enumerate(numbers):
        if number != expected:
            raise StoreCorruptError(f"{extension_file(path, expected)}: missing: an extension of the run")
    return len(numbers)


def extension_file(path: Place, number: int) -> Place:
    """Return the file of the record of an extension."""
    return path / COMMITS / f"extension{number:04d}.json"
