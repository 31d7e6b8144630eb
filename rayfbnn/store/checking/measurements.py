"""Checks that measurements and settings of tuning fit the run: its round, levels, ladders and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayfbnn.mcmc.operation import Tunable
from rayfbnn.mcmc.tuning.settings import lengths
from rayfbnn.store.tuning_rounds import Round

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec

# The coordinates of levels with a noise or power that is a float above 0.
_COORDINATES = {"noise": (-1419.0, 1489.0), "powers": (-744.0, 0.0)}


def measurements_problem(
    documents: Sequence[Mapping[str, Any]],
    tuning_round: Round | None,
    spec: RunSpec,
    *,
    ladders: int,
    iterations: int,
) -> str:
    """Return why the measurements in a record of iterations cannot belong to the round, or "".

    documents     of the types in `documents.RecordDocument.tuning`
    tuning_round  the round that the iterations belong to, or None
    ladders       number of chains, which are ladders in a run of them
    """
    if len(documents) != (0 if tuning_round is None else tuning_round.n_measured):
        return f"it has {len(documents)} measurements, which its iterations do not make"
    if tuning_round is None:
        return ""
    if tuning_round.of == "operations":
        pairs = zip(tuning_round.operations, documents, strict=True)
        return next(filter(None, (_operation_problem(*pair) for pair in pairs)), "")
    return _ladder_problem(documents[0], tuning_round, spec, ladders=ladders, iterations=iterations)


def _operation_problem(operation: Tunable, document: Mapping[str, Any]) -> str:
    measured = tuple(document.get("lengths", ()))
    if not measured or measured != lengths(operation)[: len(measured)]:
        return f"it does not have measurements of {operation.op}"
    return ""


def _ladder_problem(
    document: Mapping[str, Any], tuning_round: Round, spec: RunSpec, *, ladders: int, iterations: int
) -> str:
    n_targets = len(spec.data.targets) if spec.ladder_ends.kind == "noise" else 0
    if tuning_round.of == "starts":
        is_of_starts = "n_starts" in document and len(document["top"]) == n_targets
        return "" if is_of_starts else "it does not have the noise of the chains that ladders start from"
    if "settings" not in document:
        return "it does not have the measurements of ladders"
    sums = document["measured"]
    if (sums["ladders"], sums["iterations"], len(sums["top"])) != (ladders, iterations, n_targets):
        return "it has the measurements of other ladders, iterations or targets"
    return settings_problem(document["settings"], spec)


def settings_problem(settings: Mapping[str, Any], spec: RunSpec) -> str:
    """Return why ladders of a run cannot have these settings, or "".

    settings  of the type `documents.LadderSettingsDocument`
    """
    assert spec.ladder is not None
    ends, levels = spec.ladder_ends, settings["levels"]
    n_levels, most = len(levels) + 1, spec.ladder.most_levels
    if n_levels > most or spec.ladder.levels not in ("auto", n_levels):
        return f"its ladders have {n_levels} levels, and those of the run {most}"
    low, high = _COORDINATES[ends.kind]
    if not all(low <= level <= min(high, ends.top) for level in levels):
        return f"its levels are not between {low:g} and {min(high, ends.top):g}"
    n_targets = len(spec.data.targets) if ends.kind == "noise" else 0
    if len(settings["multipliers"]) != n_targets:
        return f"it has {len(settings['multipliers'])} multipliers of the noise, expected {n_targets}"
    return ""
