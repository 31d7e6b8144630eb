"""The looks at a study: which one is due, its result, and the decision."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from rayfbnn.answers.judging.ladder_pooled import verdict_on_pooled_ladders
from rayfbnn.answers.judging.ladder_verdict import verdict_on_ladders
from rayfbnn.draws.quantities import DENSITIES, Quantities
from rayfbnn.draws.view import Draws, of_store
from rayfbnn.errors import StoreCorruptError, at_most_ten
from rayfbnn.store.store import Store
from rayfbnn.study.rule import Judged, Rule, judge, reasons
from rayfbnn.study.sealed import LookDocument

Action: TypeAlias = Literal["stop", "continue", "end"]


@dataclass(frozen=True)
class Due:
    """The next look at a configuration.

    number      number of the look, counted from 1
    iterations  iterations of the last phase that every member must have
    seeds       seeds of the members
    is_last     whether no later look is planned
    """

    number: int
    iterations: int
    seeds: tuple[int, ...]
    is_last: bool


@dataclass(frozen=True)
class Look:
    """The result of a look, and the decision.

    Attributes
    ----------
    number
        Number of the look at this configuration, counted from 1.
    iterations, draws
        Iterations of the last phase, and draws of each chain, that were looked at.
    seeds
        Seeds of the members.
    quantities
        Each quantity by its name.
    failed
        The reason for each member that could not be sampled, by its seed.
    digests
        The SHA-256 of the densities of each member's draws, by its seed.
    ok
        Whether the rule allows the study to stop.
    reasons
        A sentence for each reason that the study may not stop.
    action
        "stop" if `ok`; otherwise "continue" to the next look, or "end" if none is planned.
    """

    number: int
    iterations: int
    draws: int
    seeds: tuple[int, ...]
    quantities: dict[str, Judged]
    failed: dict[int, str]
    digests: dict[int, str]
    ok: bool
    reasons: tuple[str, ...]
    action: Action

    @property
    def max_rhat(self) -> float | None:
        """The largest nested R-hat; None if one is not known, or none was computed."""
        return _largest([one.rhat for one in self.quantities.values()])

    @property
    def max_drift(self) -> float | None:
        """The largest error of a mean from a shared drift, in standard deviations; None as for `max_rhat`."""
        return _largest([one.drift for one in self.quantities.values()])

    def to_document(self) -> dict[str, Any]:
        """Return the look as it is stored, without its number."""
        return {
            "iterations": self.iterations,
            "draws": self.draws,
            "seeds": list(self.seeds),
            "quantities": {name: asdict(one) for name, one in self.quantities.items()},
            "failed": {str(seed): reason for seed, reason in self.failed.items()},
            "digests": {str(seed): digest for seed, digest in self.digests.items()},
            "ok": self.ok,
            "reasons": list(self.reasons),
            "action": self.action,
        }

    @staticmethod
    def from_document(document: LookDocument) -> Look:
        """Return the look that a record stores."""
        return Look(
            number=document.number,
            iterations=document.iterations,
            draws=document.draws,
            seeds=tuple(document.seeds),
            quantities={
                name: Judged(**one.model_dump() | {"stuck": tuple(one.stuck), "apart": tuple(one.apart)})
                for name, one in document.quantities.items()
            },
            failed={int(seed): reason for seed, reason in document.failed.items()},
            digests={int(seed): digest for seed, digest in document.digests.items()},
            ok=document.ok,
            reasons=tuple(document.reasons),
            action=document.action,
        )


def _largest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def due_look(looks: Sequence[Look], lengths: Sequence[int], seeds: tuple[int, ...]) -> Due | None:
    """Return the next look at a configuration, or None if it is complete.

    looks    the earlier looks
    lengths  iterations of the last phase at the planned looks
    seeds    seeds of the members at the next look
    """
    if not looks:
        return Due(1, lengths[0], seeds, len(lengths) == 1)
    last = looks[-1]
    if last.action == "continue":
        later = [length for length in lengths if length > last.iterations]
        if not later:
            raise StoreCorruptError(
                f"look {last.number} decided to continue after {last.iterations} iterations, but the plan of"
                " the study has no later look"
            )
        iterations = later[0]
    elif set(seeds) == set(last.seeds):
        return None
    else:  # members were added after the last look, and reach its iterations before the next
        iterations = last.iterations
    return Due(last.number + 1, iterations, seeds, iterations >= lengths[-1])


def take_look(
    due: Due, n_draws: int, stores: Mapping[int, Store], failed: Mapping[int, str], rule: Rule
) -> Look:
    """Judge the first `n_draws` draws of each member by the rule, and return the look.

    stores  stores of the members that could be sampled, by seed
    """
    seeds = tuple(sorted(stores))
    runs = {seed: of_store(stores[seed], n_draws) for seed in seeds}
    judged = _judged(runs, rule)
    listed = reasons(judged.quantities, n_draws, dict(sorted(failed.items())), rule)
    listed = (*listed, *_reasons_of_ladders(runs))
    if len(seeds) < 2:
        listed = (*listed, f"{len(seeds)} member with draws: R-hat needs two or more")
    ok = not listed
    return Look(
        number=due.number,
        iterations=due.iterations,
        draws=n_draws,
        seeds=tuple(sorted(due.seeds)),
        quantities=judged.quantities,
        failed=dict(sorted(failed.items())),
        digests=judged.digests,
        ok=ok,
        reasons=listed,
        action="stop" if ok else "end" if due.is_last else "continue",
    )


def _reasons_of_ladders(runs: Mapping[int, Draws]) -> list[str]:
    """Return why ladders of members, by seed, may have missed a part of the posterior; [] for other runs.

    The sentences have no numbers, whose last digits may differ between machines.
    """
    verdicts = {seed: verdict_on_ladders(run) for seed, run in runs.items()}
    unsound: dict[str, list[str]] = {}
    for seed, verdict in verdicts.items():
        if verdict is not None and not verdict.is_sound:
            unsound.setdefault(verdict.grade, []).append(str(seed))
    sentences = [
        f"the evidence of the ladders of these seeds is {grade!r}: {', '.join(at_most_ten(seeds))}"
        for grade, seeds in sorted(unsound.items())
    ]
    if unsound or len(runs) < 2:
        return sentences
    pooled = verdict_on_pooled_ladders(list(runs.values()))
    if pooled is None or pooled.is_sound:
        return []
    return [f"the evidence of the ladders of all seeds together is {pooled.grade!r}"]


@dataclass(frozen=True)
class _JudgedDraws:
    quantities: dict[str, Judged]
    digests: dict[int, str]


def _judged(runs: Mapping[int, Draws], rule: Rule) -> _JudgedDraws:
    """Judge the draws of members, by seed, one quantity at a time."""
    if not runs:
        return _JudgedDraws({}, {})
    seeds, every = tuple(runs), list(runs.values())
    planned = Quantities.of_run(every[0], cases=rule.cases)
    judged, densities = {}, {seed: hashlib.sha256() for seed in seeds}
    for name, values in planned.each(every):
        of_members = values.reshape(len(seeds), every[0].n_chains, every[0].n_draws)
        judged[name] = judge(of_members, seeds, rule)
        if name in DENSITIES:
            for seed, of_member in zip(seeds, of_members, strict=True):
                densities[seed].update(np.ascontiguousarray(of_member, dtype="<f8").reshape(-1).data)
    return _JudgedDraws(
        {name: judged[name] for name in planned.origins},
        {seed: digest.hexdigest() for seed, digest in densities.items()},
    )
