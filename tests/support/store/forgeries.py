"""Forgeries of every field of every typed record, made from real stores and studies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from rayfbnn.errors import ConfigError, StoreCorruptError
from rayfbnn.spec import RunSpec
from rayfbnn.store import documents
from rayfbnn.store.documents import Document, as_document
from rayfbnn.store.records import SEAL, Record
from rayfbnn.store.root import RootDocument
from rayfbnn.store.tuning_log import TuningDocument
from rayfbnn.study import sealed as of_studies
from rayfbnn.study.files import LookDocument
from tests.support.store.forging import LEFT_OUT, chain_again, forge, read, sealed, set_at

_DEEP: list[Any] = []
for _ in range(400):
    _DEEP = [_DEEP]

# Any field may hold these.
_ANY: list[tuple[str, Any]] = [
    ("missing", LEFT_OUT),
    ("null", None),
    ("true", True),
    ("0", 0),
    ("-1", -1),
    ("1", 1),
    ("2", 2),
    ("10**18", 10**18),
    ("10**400", 10**400),
    ("NaN", float("nan")),
    ("Infinity", float("inf")),
    ("1e308", 1e308),
    ("-1e308", -1e308),
    ("5e-324", 5e-324),
    ("0.5", 0.5),
    ("empty text", ""),
    ("long text", "x" * 1_000_001),
    ("control characters", "\x1b]52;c;eA==\x07\n\x00"),
    ("a path", "../outside/secret.txt"),
    ("a type of objects", "|O"),
    ("empty list", []),
    ("empty object", {}),
    ("deep nesting", _DEEP),
    ("a long list", [0] * 200_000),
]


_KINDS: dict[str, type[Document]] = {  # the files of stores and studies with records, and their types
    "zarr.json": RootDocument,
    "commits/extension*.json": documents.ExtensionDocument,
    "commits/tuning/*.json": TuningDocument,
    "commits/verdicts/*.json": documents.VerdictDocument,
    "commits/holder.json": documents.HolderDocument,
    "commits/batch*/head.json": documents.HeadDocument,
    "commits/batch*/*.block": Record,
    "commits/batch*/*.segment": Record,
    "study.json": of_studies.PlanDocument,
    "looks/*.json": LookDocument,
    "additions/*.json": of_studies.AdditionDocument,
    "failures/*.json": of_studies.FailureDocument,
}


def _near(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield values of the right type that are a little wrong, or far off."""
    if isinstance(value, bool):
        yield "the contrary", not value
    elif isinstance(value, int):
        yield from (("one more", value + 1), ("one less", value - 1), ("negative", -value), ("2**31", 2**31))
        yield "2**53", 2**53
    elif isinstance(value, float):
        yield from (("negative", -value), ("1e300", 1e300), ("1e-300", 1e-300))
    elif isinstance(value, list) and value:
        yield from (("shorter", value[:-1]), ("longer", [*value, value[-1]]), ("reversed", value[::-1]))
        yield "twice", value + value
        if isinstance(value[0], int | float):
            extremes = (2**120, -(2**120), 0) if isinstance(value[0], int) else (1e308, -1e308, 5e-324, 0.0)
            yield from ((f"{one} each", [one] * len(value)) for one in extremes)
        if isinstance(value[0], list):
            yield "shorter within", [value[0][:-1], *value[1:]]
            yield "shorter within each", [one[:-1] for one in value]
    elif isinstance(value, dict):
        yield "one key more", value | {"other": 1}


@dataclass(frozen=True)
class Field:
    """A field of a file: its path of keys, and the record and field that it belongs to."""

    file: str
    path: tuple[Any, ...]
    of: str

    @property
    def is_of_configuration(self) -> bool:
        """True for a key of a configuration in a record."""
        return ".spec." in self.of or ".keys." in self.of

    def __str__(self) -> str:
        return f"{self.file}: {'.'.join(map(str, self.path))}"


@dataclass(frozen=True)
class Forgery:
    """A field of a store or study with a value that is not its own."""

    field: Field
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.field} is {self.name}"

    def apply(self, root: Path) -> None:
        """Forge the field, and seal everything that follows from it again."""
        content, payload = read(root / self.field.file)
        set_at(content, self.field.path, self.value)
        (root / self.field.file).write_bytes(sealed(content, payload))
        chain_again(root)

    def has_type(self, root: Path) -> bool:
        """Return True if the forged record and its configuration are right by themselves."""
        content = read(root / self.field.file)[0]
        set_at(content, self.field.path, self.value)
        try:
            _typed(self.field.file, content)
            for keys in _configurations(content):
                RunSpec.from_dict(keys)
        except (StoreCorruptError, ConfigError):
            return False
        return True


@dataclass(frozen=True)
class ForgedArrays:
    """A block or segment whose draws and state are one number."""

    file: str
    value: float

    def __str__(self) -> str:
        return f"{self.file}: all numbers are {self.value}"

    def apply(self, root: Path) -> None:
        payload = read(root / self.file)[1] or b""
        n = len(payload) // 8
        forged = np.full(n, self.value).tobytes() + payload[8 * n :]
        forge(root / self.file, lambda content: None, forged)


def _typed(name: str, content: dict[str, Any]) -> Document:
    """Return the content of a file of a store or study as its type of record."""
    model = next(model for pattern, model in _KINDS.items() if fnmatch(name, pattern))
    return as_document(model, json.dumps(content).encode(), "", "")


def _names(kind: Any) -> list[str]:
    """Return the fields of a type of record, or of a part of one, apart from the seal; [] for other types."""
    if isinstance(kind, type) and issubclass(kind, Document):
        return [name for name in kind.model_fields if name not in ("seal", "digest")]
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def records(root: Path) -> Iterator[tuple[str, Document]]:
    """Yield the name and the typed content of every record of a store or study."""
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root).as_posix()
        if any(fnmatch(name, pattern) for pattern in _KINDS):
            yield name, _typed(name, read(file)[0])


def fields(root: Path) -> Iterator[Field]:
    """Yield the fields of all records, once for each place that differs in more than a number of an entry."""
    seen: set[tuple[str, str]] = set()
    for name, record in records(root):
        content = read(root / name)[0]
        kind = type(record).__name__
        variant = ",".join(sorted(kinds_in(record)))
        for path, of in _paths(record, content, (), kind):
            if (variant, of) not in seen:
                seen.add((variant, of))
                yield Field(name, path, of)


def _paths(
    record: Any, content: Any, path: tuple[Any, ...], of: str
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the path of each field, with its name: a record and its field, or keys below it."""
    names = _names(type(record))
    for name in sorted(set(names) - content.keys()) if names else ():  # those left out have a default
        yield (*path, name), f"{type(record).__name__}.{name}"
    if isinstance(content, dict):
        is_of_configuration = {"spec", "keys"} & set(of.split("."))
        is_free = isinstance(record, dict) and not is_of_configuration  # any names, of the same meaning
        for key, value in [*content.items()][: 1 if is_free else None]:
            if key == SEAL:
                continue
            if names:
                inner, name = getattr(record, key), f"{type(record).__name__}.{key}"
            else:
                # The keys of a free object may be numbers in its record.
                inner = next(iter(record.values())) if is_free else record[key]
                name = f"{of}.{'*' if is_free else key}"
            yield (*path, key), name
            yield from _paths(inner, value, (*path, key), name)
    elif isinstance(content, list):
        # Tables of different sizes are of different kinds, as those of operations.
        kinds = [(type(one).__name__, len(one) if isinstance(one, dict) else 0) for one in content]
        for number in sorted(map(kinds.index, set(kinds))):
            yield (*path, number), f"{of}[]"
            yield from _paths(record[number], content[number], (*path, number), f"{of}[]")


def kinds_in(record: Any) -> set[str]:
    """Return the names of all types of records in a record."""
    if names := _names(type(record)):
        inner = (kinds_in(getattr(record, name)) for name in names)
        return {type(record).__name__}.union(*inner)
    if isinstance(record, dict):
        return set().union(*map(kinds_in, record.values()))
    return set().union(*map(kinds_in, record)) if isinstance(record, list | tuple) else set()


def _configurations(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the configurations in a record."""
    place = content.get("attributes", content)
    return [place["spec"]] if "spec" in place else [one["keys"] for one in content.get("configurations", ())]


def all_kinds() -> dict[str, list[str]]:
    """Return the fields, apart from the seal, of all types of records and of their parts."""

    def below(model: type[Document]) -> Iterator[type[Document]]:
        for one in model.__subclasses__():
            yield one
            yield from below(one)

    def parts(annotation: Any) -> Iterator[Any]:
        if names := _names(annotation):
            yield annotation
        for one in get_type_hints(annotation).values() if names else get_args(annotation):
            yield from parts(one)

    kinds = [model for model in below(Document) if not model.__subclasses__()]
    return {kind.__name__: _names(kind) for model in kinds for kind in parts(model)}


def forgeries(root: Path, field: Field) -> list[Forgery]:
    """Return all forgeries of a field of a store or study."""
    inner: Any = read(root / field.file)[0]
    *before, last = field.path
    for key in before:
        inner = inner[key]
    is_there = isinstance(inner, list) or last in inner
    values = [*_ANY, *_near(inner[last])] if is_there else _ANY[1:]  # what is not there cannot be left out
    return [
        Forgery(field, name, value)
        for name, value in values
        if _differs(value, inner[last] if is_there else LEFT_OUT)
    ]


def forged_arrays(root: Path) -> list[ForgedArrays]:
    """Return forgeries of the arrays in the last block or segment of each batch."""
    last = [
        sorted([*batch.glob("0*.block"), *batch.glob("0*.segment")])[-1:]
        for batch in sorted(root.glob("commits/batch*"))
    ]
    files = [file.relative_to(root).as_posix() for batch in last[:1] for file in batch]
    return [
        ForgedArrays(file, value)
        for file in files
        for value in (np.nan, np.inf, 0.0, -1.0, 0.5, 1e18, 1e308, -1e308)
    ]


def _differs(value: Any, original: Any) -> bool:
    return value is LEFT_OUT or repr(value) != repr(original)
