"""The measurements in the record of a block, as JSON documents: of automatic operations, and of ladders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, TypeAlias

from rayfbnn.mcmc.ladder import measured as of_ladder
from rayfbnn.mcmc.ladder.records import LadderSettings
from rayfbnn.mcmc.tuning.measuring import Measured


@dataclass(frozen=True)
class LadderStarts:
    """The noise of the chains that ladders start from.

    n_starts  number of chains times iterations
    top       (n_targets,) sums of their log noise precisions, in units of 2**-40; () without noise
    """

    n_starts: int
    top: tuple[int, ...]

    def __add__(self, other: LadderStarts) -> LadderStarts:
        """Return the sums of both."""
        top = tuple(ours + theirs for ours, theirs in zip(self.top, other.top, strict=True))
        return LadderStarts(self.n_starts + other.n_starts, top)


@dataclass(frozen=True)
class LadderMeasured:
    """The measurements of some ladders in a round of the adaptation.

    settings  the settings of the round, which are the same for all batches
    measured  sums over iterations, for each ladder
    """

    settings: LadderSettings
    measured: of_ladder.Measured

    def __add__(self, other: LadderMeasured) -> LadderMeasured:
        """Return the measurements of the same ladders in the iterations of both."""
        if self.settings != other.settings:
            raise ValueError("blocks of one round have different settings")
        return LadderMeasured(self.settings, self.measured + other.measured)


Measurements: TypeAlias = Measured | LadderStarts | LadderMeasured


def to_document(measured: Measurements) -> dict[str, Any]:
    """Return measurements as a JSON document."""
    document: dict[str, Any] = as_lists(asdict(measured))
    return document


def as_lists(value: Any) -> Any:
    """Return a value with lists for tuples, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: as_lists(inner) for key, inner in value.items()}
    return [as_lists(inner) for inner in value] if isinstance(value, tuple | list) else value


def as_tuples(value: Any) -> Any:
    """Return a value with tuples for lists."""
    if isinstance(value, Mapping):
        return {key: as_tuples(inner) for key, inner in value.items()}
    return tuple(as_tuples(inner) for inner in value) if isinstance(value, tuple | list) else value


def measured_from(document: Mapping[str, Any]) -> Measured:
    """Return the measurements of an automatic operation in a JSON document."""
    return Measured(**as_tuples(document))


def starts_from(document: Mapping[str, Any]) -> LadderStarts:
    """Return the measurements of the chains that ladders start from."""
    return LadderStarts(**as_tuples(document))


def ladder_measured_from(document: Mapping[str, Any]) -> LadderMeasured:
    """Return the measurements of ladders in a JSON document."""
    settings = LadderSettings(**as_tuples(document["settings"]))
    return LadderMeasured(settings, of_ladder.Measured(**as_tuples(document["measured"])))


def summed(documents: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the sums of the measurements of a batch's blocks, given for each block one after the other."""
    return [to_document(added(list(map(_read, of_one)))) for of_one in zip(*documents, strict=True)]


def added(measured: Sequence[Any]) -> Any:
    """Return the sum of measurements of one kind."""
    return reduce(lambda ours, theirs: ours + theirs, measured)


def _read(document: Mapping[str, Any]) -> Measurements:
    if "n_starts" in document:
        return starts_from(document)
    return ladder_measured_from(document) if "settings" in document else measured_from(document)
