"""Sampling in rounds: a run becomes longer until its verdict is ok, or until its time is over."""

from __future__ import annotations

import math
import re
import shlex
import time
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from rayfbnn.answers.judging.words import rounded_up
from rayfbnn.errors import ConfigError
from rayfbnn.numerals import duration
from rayfbnn.output.printing import say
from rayfbnn.run.resuming import set_length
from rayfbnn.run.running import Loop
from rayfbnn.spec.defaults import FIRST_ITERATIONS
from rayfbnn.store.documents import RoundVerdict
from rayfbnn.store.store import Store, word_for_chains
from rayfbnn.verbs.arguments import check_decisive

if TYPE_CHECKING:
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.judging.verdicts import Decisive, Verdict
    from rayfbnn.run.running import RunOptions, RunSummary

# A round adds half of the length at least, to keep the time of all verdicts small, and at most doubles it.
# The first rounds of a run of open length take less time than their verdicts, so on advice they grow faster.
_LEAST_GROWTH, _GROWTH, _MOST_GROWTH_OF_OPEN = 1.5, 2.0, 4.0
_TIME_MARGIN = 0.9  # share of the remaining time that is planned; speeds vary
_LEAST_ROUND = 0.05  # share of the run's length; a shorter round would hardly change the verdict
_UNLIMITED = 10**9  # iterations
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


@dataclass(frozen=True)
class Until:
    """The goal of a run in rounds.

    decisive  the verdict that must be ok
    seconds   the time limit, whatever the verdict
    is_open   whether the length of the run is open, so that the first rounds are shorter than planned
    is_asked  whether the user asked for rounds. If not, the run does not become longer than planned
    """

    decisive: Decisive
    seconds: float
    is_open: bool = False
    is_asked: bool = True


def read_until(
    until: str | None,
    max_time: str | float | None,
    decisive: Decisive,
    *,
    is_open: bool = False,
    n_chains: int | None = None,
) -> Until | None:
    """Return the goal that the arguments describe, or None for an ordinary run.

    ConfigError says which argument is wrong.

    is_open   whether the length of the run is open; such a run is in rounds even without `until`
    n_chains  number of chains if it is known; one chain cannot be judged
    """
    check_decisive(decisive)
    if until is None and is_open and n_chains != 1:
        seconds = math.inf if max_time is None else read_seconds(max_time)
        return Until(decisive, seconds, is_open=True, is_asked=False)
    if until is None:
        if max_time is not None:
            raise ConfigError(f'max_time: only for a run with until = "ok", got {max_time}; leave it out')
        return None
    if until != "ok":
        raise ConfigError(f'until: must be "ok", got "{until}"')
    if max_time is None:
        raise ConfigError("max_time: must be given with until, such as 30m; some runs are never ok")
    return Until(decisive, read_seconds(max_time), is_open=is_open)


def are_rounds_left(store: Store) -> bool:
    """Return True if a run in rounds was stopped or killed before its last round."""
    verdicts = store.verdicts.all()
    following = verdicts[-1].next_iterations if verdicts else None
    return following is not None and following <= store.spec.phase[-1].iterations


def read_seconds(max_time: str | float) -> float:
    """Return a time in seconds, given as a number of them or as text such as "90s", "30m" or "1h30m"."""
    match = _DURATION.fullmatch(str(max_time).replace(" ", ""))
    numbers = [float(number or 0) for number in match.groups()] if match else [0.0]
    seconds = sum(number * unit for number, unit in zip(numbers, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise ConfigError(
            f'max_time: must be a time above 0, such as 90s, 30m, 1h30m or seconds, got "{max_time}"'
        )
    return seconds


def run_until(store: Store, until: Until, options: RunOptions) -> RunSummary:
    """Run the store in rounds until it is ok; the store must be locked.

    A run of open length has verdicts after 100 iterations of its last phase, 200, and so on. If it is ok, its
    length becomes that of the last round. Otherwise the first round is the planned run. A round beyond the
    planned length makes the last phase longer as `resume` does. The draws are therefore those of a run that
    had the final length from the start. The store records the verdict and the decision after each round.

    Ladders must have converged too. A run ends early if their verdict names an obstacle that more iterations
    cannot remove.
    """
    deadline = time.monotonic() + until.seconds
    length = _first_length(store, until)
    with Loop(store, options, deadline=deadline, in_rounds=True, starts_here=until.is_open) as loop:
        for number in count(1):
            started, before = time.monotonic(), store.done
            summary = loop.run(_iteration(store, length))
            diagnosis = _diagnosis(store, until.decisive)
            now = time.monotonic()
            # The speed is unknown if the run was complete already.
            seconds = (now - started) / (store.done - before) if store.done > before else 0.0
            is_bounded = seconds and until.seconds < math.inf
            affordable = int((deadline - now) / seconds) if is_bounded else _UNLIMITED
            following = _following(store, until, diagnosis, length, affordable=affordable)
            verdict = RoundVerdict(
                iterations=length,
                draws=store.committed_draws,
                decisive=until.decisive,
                predictions="no draws" if diagnosis is None else diagnosis.predictions.grade,
                hyperparameters="no draws" if diagnosis is None else diagnosis.hyperparameters.grade,
                ok=diagnosis is not None and _is_ok(diagnosis),
                seconds=round(now - started, 3),
                next_iterations=following,
            )
            store.verdicts.append(verdict.model_dump())
            if options.progress:
                say(_line(number, verdict, store, diagnosis))
            if following is None:
                break
            if following > store.spec.phase[-1].iterations:
                set_length(store, following)
            length = following
    if until.is_open and (verdict.ok or _obstacle(diagnosis)):
        set_length(store, length)  # the rest is not needed
    return replace(summary, ok=verdict.ok, obstacle=_obstacle(diagnosis))


def _first_length(store: Store, until: Until) -> int:
    """Return the length of the last phase at the first verdict; that of a run of open length is recorded.

    It is not less than any batch has sampled, because a run cannot become shorter than that.
    """
    planned = store.spec.phase[-1].iterations
    verdicts = store.verdicts.all()
    if not until.is_open:
        return planned
    if verdicts and verdicts[-1].next_iterations is not None:
        return min(verdicts[-1].next_iterations, planned)
    furthest = max(progress.iteration for progress in store.all_progress()) - _iteration(store, 0)
    length = FIRST_ITERATIONS
    while length < furthest:
        length *= 2
    length = min(length, planned)
    if not verdicts:
        none = "no draws"
        first = RoundVerdict(
            iterations=length,
            draws=0,
            decisive=until.decisive,
            predictions=none,
            hyperparameters=none,
            ok=False,
            seconds=0,
            next_iterations=length,
        )
        store.verdicts.append(first.model_dump())
    return length


def _iteration(store: Store, length: int) -> int:
    """Return the iteration of the run that ends this part of the last phase."""
    return store.spec.total_iterations - store.spec.phase[-1].iterations + length


def _diagnosis(store: Store, decisive: Decisive) -> Diagnosis | None:
    from rayfbnn.answers.diagnostics import diagnose_draws
    from rayfbnn.draws.view import committed

    return diagnose_draws(committed(store), decisive=decisive) if store.committed_draws else None


def _is_ok(diagnosis: Diagnosis) -> bool:
    """Return True if a run can end: its decisive verdict is ok, and so is that on its ladders, if it has any.

    Predictions may be usable although a ladder has made no round trip yet.
    """
    return diagnosis.ok and (diagnosis.ladders is None or diagnosis.ladders.ok)


def _obstacle(diagnosis: Diagnosis | None) -> str:
    return "" if diagnosis is None or diagnosis.ladders is None else diagnosis.ladders.obstacle


def _following(
    store: Store, until: Until, diagnosis: Diagnosis | None, length: int, *, affordable: int
) -> int | None:
    """Return the length of the last phase at the next verdict, or None if the run ends here.

    length      length of the last phase at this verdict
    affordable  number of iterations that the remaining time allows
    """
    if diagnosis is None or _is_ok(diagnosis) or store.done < _iteration(store, length):
        return None
    if _obstacle(diagnosis):
        return None
    planned = store.spec.phase[-1].iterations
    verdicts: list[Verdict] = [diagnosis.predictions]
    if diagnosis.ladders is not None and not diagnosis.ladders.ok:
        verdicts.append(diagnosis.ladders)
    if diagnosis.decisive == "all":
        verdicts.append(diagnosis.hyperparameters)
    advised = max(verdict.iterations or _GROWTH * length for verdict in verdicts)
    most = _MOST_GROWTH_OF_OPEN if until.is_open else _GROWTH
    wanted = rounded_up(min(max(advised, _LEAST_GROWTH * length), most * length))
    if not until.is_asked:
        wanted = min(wanted, planned)
    following = min(wanted, length + int(_TIME_MARGIN * affordable))
    return following if following - length > _LEAST_ROUND * length else None


def _line(number: int, verdict: RoundVerdict, store: Store, diagnosis: Diagnosis | None) -> str:
    if verdict.ok:
        decision = "ok"
    elif verdict.next_iterations is not None:
        decision = f"going on to {verdict.next_iterations} iterations"
    else:
        decision = f"not ok, since {_reason(diagnosis)}; {_way_on(store, diagnosis)}"
    word = word_for_chains(store)[:-1]
    grades = f"predictions {verdict.predictions}, hyperparameters {verdict.hyperparameters}"
    if diagnosis is not None and diagnosis.ladders is not None:
        grades += f", ladders {diagnosis.ladders.grade}"
    return (
        f"round {number}: {verdict.draws} draws in each {word}, {duration(verdict.seconds)}, {grades}:"
        f" {decision}"
    )


def _reason(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return "there are no draws"
    of_ladders = "" if diagnosis.ladders is None else diagnosis.ladders.decided_by
    return diagnosis.decided_by or of_ladders


def _way_on(store: Store, diagnosis: Diagnosis | None) -> str:
    """Say why a run that is not ok ends here, and what may help."""
    if _obstacle(diagnosis):
        assert diagnosis is not None and diagnosis.ladders is not None
        return "; ".join(diagnosis.ladders.advice[:2])
    is_complete = store.done == store.spec.total_iterations
    over = "this is the planned length" if is_complete else "the time is over"
    command = f"rayfbnn resume {shlex.quote(str(store.path))} --until ok --max-time 30m"
    return f"{over}; continue with: {command}"
