"""The records of ladders: what a round measured, and the settings that follow from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rayfbnn.mcmc.ladder.adaptation import Plan, adapted, first_settings
from rayfbnn.mcmc.ladder.measured import Measured
from rayfbnn.mcmc.ladder.records import LadderSettings
from rayfbnn.mcmc.operation import Settings
from rayfbnn.store.measurements import (
    LadderMeasured,
    LadderStarts,
    added,
    as_lists,
    as_tuples,
    ladder_measured_from,
    starts_from,
)

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec


@dataclass(frozen=True)
class LadderRound:
    """The record of a round of ladders.

    measured  sums over its iterations: of the chains that ladders start from, or of all ladders of the run
    settings  the settings after the round
    """

    measured: LadderStarts | LadderMeasured
    settings: LadderSettings

    @property
    def of_levels(self) -> Measured | None:
        """The measurements of all levels, or None before there were any."""
        return self.measured.measured if isinstance(self.measured, LadderMeasured) else None


def plan_of(spec: RunSpec) -> Plan:
    """Return the plan of a run's adaptation."""
    ladder = spec.ladder
    assert ladder is not None
    hot = None if ladder.hot == "auto" else math.log(ladder.hot)
    return Plan(
        rounds=ladder.rounds,
        levels=None if ladder.levels == "auto" else ladder.levels,
        hot=-2 * hot if hot is not None and spec.ladder_ends.kind == "noise" else hot,
        most_levels=ladder.most_levels,
    )


def starting_round(
    spec: RunSpec, documents: Sequence[Mapping[str, Any]], tuned: Settings | None
) -> LadderRound:
    """Return the record of the round before annealing.

    ValueError if no noise was measured, but levels of noise need it.

    documents  the measurements of all blocks
    tuned      the settings that the warm-up has found, or None
    """
    starts: LadderStarts = added([starts_from(document) for document in documents])
    if spec.ladder_ends.kind == "noise" and not starts.top:
        raise ValueError("no noise of the chains was measured")
    settings = first_settings(
        spec.ladder_ends, plan_of(spec), top=starts.top, n_chains=starts.n_starts, tuned=tuned
    )
    return LadderRound(starts, settings)


def adapting_round(
    spec: RunSpec, number: int, documents: Sequence[Sequence[Mapping[str, Any]]]
) -> LadderRound:
    """Return the record of round `number` of the adaptation, counted from 0.

    ValueError if there can be none.

    documents  the measurements of each batch, block after block
    """
    by_batch: list[LadderMeasured] = [
        added([ladder_measured_from(document) for document in of_batch]) for of_batch in documents
    ]
    before = by_batch[0].settings
    if any(one.settings != before for one in by_batch):
        raise ValueError("batches of one round have different settings")
    measured = Measured.joined([one.measured for one in by_batch])
    settings = adapted(before, measured, ends=spec.ladder_ends, plan=plan_of(spec), number=number)
    return LadderRound(LadderMeasured(before, measured), settings)


def ladder_body(record: LadderRound) -> dict[str, Any]:
    """Return the part of a JSON document that describes a round."""
    body: dict[str, Any] = as_lists(asdict(record))
    return body


def ladder_from(document: Mapping[str, Any]) -> LadderRound:
    """Read what `ladder_body` returned, of the type `documents.LadderDocument`."""
    measured = document["measured"]
    read = starts_from if "n_starts" in measured else ladder_measured_from
    return LadderRound(read(measured), LadderSettings(**as_tuples(document["settings"])))
